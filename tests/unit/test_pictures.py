"""The pictures and the tables of figures are those that docs/site makes, and pages show them."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from zklock._engine import attempt_state, grant_state

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


SITE = str(DOCS / "site")


def loaded() -> tuple[Any, Any]:
    sys.path.insert(0, SITE)
    try:
        return importlib.import_module("pictures"), importlib.import_module("figures")
    finally:
        sys.path.remove(SITE)


pictures, figures = loaded()


@pytest.mark.parametrize("name", pictures.DRAWN)
def test_a_picture_is_as_drawn(name: str) -> None:
    there = (DOCS / "pictures" / f"{name}.svg").read_text()
    assert there == pictures.DRAWN[name]().svg(), "run: python docs/site/pictures.py"
    ElementTree.fromstring(there)


@pytest.mark.parametrize("name", pictures.DRAWN)
def test_a_page_shows_the_picture_and_says_what_is_on_it(name: str) -> None:
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    shown = [
        alt
        for page in pages
        for alt in re.findall(rf"!\[([^\]]*)\]\([\w./]*pictures/{name}\.svg\)", page.read_text())
    ]
    assert shown
    assert all(len(alt) > 40 for alt in shown)


@pytest.mark.parametrize("name", figures.TABLES)
def test_a_table_of_figures_is_as_measured(name: str) -> None:
    found = figures.block(name).search(figures.PAGE.read_text())
    assert found is not None
    assert found[2] == figures.TABLES[name](), "run: python docs/site/pictures.py"


def copy_error(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have the tables and the plots made from a copy of what was measured."""
    for file in figures.RESULTS.glob("*.json"):
        (folder / file.name).write_text(file.read_text())
    monkeypatch.setattr(figures, "RESULTS", folder)


def test_a_lock_is_compared_with_each_peer_and_a_missing_one_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copy_error(monkeypatch, tmp_path)
    told = figures.measured("lock")
    told["conditions"] |= {"Curator": "5.7.1", "missing": {}}
    here = told["figures"]["one machine"]
    for name, micro in (("kazoo", 1000.0), ("zklock", 400.0), ("curator", 800.0), ("floor", 200.0)):
        here[name] = {"p50": micro / 1e6, "processor": micro / 2e6}
    here["curator"]["processor"] = 1.5e-4
    (tmp_path / "lock.json").write_text(json.dumps(told))
    compared = figures.TABLES["lock"]()
    assert "Curator 5.7.1." in compared
    assert re.search(r"zklock's `Lock` \| 1 \+ 1 \| 0\.40 \|.*\| 200 \|", compared)
    assert re.search(r"warm JVM \| 2 \+ 1 \| 0\.80 \|.*\| 150 \|", compared)
    del here["curator"], told["conditions"]["Curator"]
    told["conditions"]["missing"] = {"Curator": "no jars of Curator"}
    (tmp_path / "lock.json").write_text(json.dumps(told))
    compared = figures.TABLES["lock"]()
    assert "Missing: Curator." in compared
    assert re.search(r"warm JVM \| 2 \+ 1 \| – \|.*\| – \|", compared)


def test_memory_and_disk_stand_side_by_side_and_who_is_nowhere_has_no_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def times(micro: int) -> dict[str, float]:
        return {"p10": micro / 2e6, "p50": micro / 1e6, "p90": micro / 5e5}

    copy_error(monkeypatch, tmp_path)
    told = figures.measured("lock")
    told["conditions"] |= {
        "backend": "java",
        "Redis": "7.0.15, redis-py 8.1.0",
        "missing": {"Curator": "no jars", "etcd": "no etcd"},
    }
    told["conditions"].pop("etcd", None)
    told["figures"] |= {
        "one machine": {"kazoo": times(1000), "Redis": times(200)},
        "one machine, disk": {"kazoo": times(4000), "zklock": times(3000)},
    }
    (tmp_path / "lock.json").write_text(json.dumps(told))
    table = figures.TABLES["disk"]()
    assert "ZooKeeper ran in local Java. Redis 7.0.15, redis-py 8.1.0." in table
    assert "Missing: Curator, etcd." in table
    assert "| zklock's `Lock` | – | – | 3000 (1500–6000) |" in table
    assert "| redis-py's `Lock` | 0.20 | 200 (100–400) | – |" in table
    assert "etcd3gw" not in table


def test_held_locks_are_told_each_in_the_unit_of_its_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copy_error(monkeypatch, tmp_path)
    told = figures.measured("held")
    told["conditions"] |= {"count": 500, "timeout": 8.0}
    told["figures"] |= {"resident": 2048.0, "traced": 1024.0}
    told["figures"]["hold"] |= {"core": 0.0123, "requests": 12.0, "transactions": 10.0}
    (tmp_path / "held.json").write_text(json.dumps(told))
    table = figures.TABLES["held"]()
    assert "500 locks, session timeout 8 s." in table
    assert "for each lock | 2.0 KiB |" in table
    assert "`tracemalloc` | 1.0 KiB |" in table
    assert "transactions | 10.0 |" in table
    assert "| 1.2 % of a core |" in table


def test_a_table_and_a_plot_follow_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copy_error(monkeypatch, tmp_path)
    told = figures.measured("fencing")
    told["day"] = "1999-12-31"
    told["figures"]["file, durable"] = {"unguarded": 100.0, "guarded": 123.0}
    (tmp_path / "fencing.json").write_text(json.dumps(told))
    drawn, table = pictures.DRAWN["bench-fencing"]().svg(), figures.TABLES["fencing"]()
    assert "| file, durable | 100 | 123 | 1.23 |" in table
    assert ">1.23<" in drawn
    assert "1999-12-31" in drawn
    assert "1999-12-31" in table


@pytest.mark.parametrize(
    ("name", "table"),
    [("life", grant_state.TABLE), ("stages", attempt_state.TABLE)],
    ids=["life", "stages"],
)
def test_a_state_machine_shows_all_states_and_all_steps_that_change_them(
    name: str, table: dict[Any, Any]
) -> None:
    words = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", pictures.DRAWN[name]().svg()))
    for (state, event), after in table.items():
        if state is not after:
            assert all(re.search(rf"\b{each.value}\b", words) for each in (state, event, after))


def test_words_that_do_not_fit_are_refused() -> None:
    picture = pictures.Picture(100, "a picture", "")
    with pytest.raises(ValueError, match="no room"):
        picture.text(400, 50, "far too many words for what is left")
