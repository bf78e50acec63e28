"""What docs/site adds to the pages; ``make docs`` builds the site, and checks its links."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import zklock
from tests.unit import test_public_names
from zklock._core.attempt import Stage
from zklock.contrib.asgi import Background

SITE = Path(__file__).parents[2] / "docs" / "site"


@pytest.fixture(scope="module")
def tools() -> tuple[Any, Any]:
    """The modules ``make`` and ``api``, which find each other as when the first one is run."""
    sys.path.insert(0, str(SITE))
    try:
        return importlib.import_module("make"), importlib.import_module("api")
    finally:
        sys.path.remove(str(SITE))


ROOT = SITE.parents[1]
PAGES = [
    *ROOT.glob("*.md"),
    *(page for folder in ("compose", "docs", "examples") for page in (ROOT / folder).rglob("*.md")),
    ROOT / "findings" / "README.md",
]


def links_to_files(page: Path) -> list[str]:
    """Return what a page links to, but for addresses and its own headings."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"\]\(<?([^()\s<>]+)>?(?: [^()]*)?\)", text)
    return [link.partition("#")[0] for link in found if not re.match(r"[a-z]+:|#", link)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    links = links_to_files(page)
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_links_are_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[a](b.md#c), ![d](e.svg), [f](https://g), [h](#i)\n```\n[j](k.md)\n```\n")
    assert links_to_files(page) == ["b.md", "e.svg"]


def test_the_design_names_all_stages_of_an_attempt() -> None:
    design = (ROOT / "docs" / "design.md").read_text()
    head = next(line for line in design.splitlines() if line.startswith("| | *new* | *running*"))
    assert re.findall(r"\*(\w+)\*", head) == [stage.name.lower() for stage in Stage]


def entries(source: Path, page: str) -> list[str]:
    """Return the pages that a page lists in its tables of contents."""
    file = next(it for kind in ("md", "rst") if (it := source / f"{page}.{kind}").exists())
    listed: list[str] = []
    for listing in re.split(r"^```\{toctree\}|^\.\. toctree::", file.read_text(), flags=re.M)[1:]:
        lines = (line.strip() for line in listing.split("```")[0].splitlines())
        listed += [line.split("<")[-1].strip("/>") for line in lines if line and line[0] != ":"]
    return listed


def test_every_page_is_listed_once(tools: tuple[Any, Any], tmp_path: Path) -> None:
    make, api = tools
    make.stage(tmp_path)
    side = entries(tmp_path, "index")
    below = [name for page in make.BELOW for name in entries(tmp_path, page)]
    pages = [path for kind in ("*.md", "*.rst") for path in tmp_path.rglob(kind)]
    names = {make.name_of(path, tmp_path) for path in pages} - {"index"} | {"self"}
    wanted = {name for name in names if not name.startswith("files/")}
    assert sorted(side + below) == sorted(wanted)
    assert {f"docs/api/{package}" for package in api.PACKAGES} < wanted
    assert {*make.BELOW} <= {*side}
    assert len(side) <= 25, "the side of the site is a list that a reader can take in"


def test_a_page_that_nothing_lists_ends_the_build(tools: tuple[Any, Any]) -> None:
    make, _ = tools
    listed = {
        name.rpartition("<")[2].rstrip(">").replace("*", "x")
        for names in [*make.NAVIGATION.values(), *make.BELOW.values()]
        for name in names
    } - {"self"}
    make.navigation(listed)
    with pytest.raises(SystemExit, match="docs/new"):
        make.navigation({*listed, "docs/new"})
    with pytest.raises(SystemExit, match="docs/which"):
        make.navigation(listed - {"docs/which"})


def test_the_pages_of_docstrings_begin_with_a_client_and_a_lock(tools: tuple[Any, Any]) -> None:
    _, api = tools
    for package in ("zklock", "zklock.aio"):
        found = re.findall(r"\.\. auto\w+:: (\S+)", api.page(package, ""))
        assert found[:2] == [f"{package}.connect", f"{package}.Lock"]


def test_every_public_module_stands_on_a_page(tools: tuple[Any, Any]) -> None:
    _, api = tools
    pages = "\n".join(api.page(package, about) for package, about in api.PACKAGES.items())
    for module in test_public_names.PACKAGES:
        assert f".. currentmodule:: {module}\n" in pages
        assert set(api.NAMES[module]) == set(importlib.import_module(module).__all__)


def test_what_is_entered_by_with_is_called_so(tools: tuple[Any, Any]) -> None:
    _, api = tools
    made: Any
    for made, back in [(zklock.LeaderElection.terminating, ""), (Background.lifespan, "Async")]:
        text = str(inspect.signature(made)).replace("'", "")
        found = api.signature(None, "method", "x", made, None, "()", text.partition(" -> ")[2])
        assert found == ("()", f"{back}ContextManager[None]")


def test_a_link_to_a_test_leads_to_it(tools: tuple[Any, Any], tmp_path: Path) -> None:
    make, _ = tools
    file = tmp_path / "test_it.py"
    file.write_text(
        "def test_one(): ...\n\n\nclass TestTwo:\n    async def test_three(self): ...\n"
    )
    shown = "\n".join(make.code(file))
    for name, line in [
        ("`test_one`", "def test_one"),
        ("`TestTwo::test_three`", "    async def test_three"),
    ]:
        assert f"({make.anchor_of(file, name)})=\n\n````python\n{line}" in shown


def test_a_link_to_a_whole_file_leads_to_its_begin(tools: tuple[Any, Any], tmp_path: Path) -> None:
    make, _ = tools
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "page.md"
    page.write_text(
        "[`tests/unit/test_site.py`](../tests/unit/test_site.py) "
        "[`test_every_page_is_listed_once`](../tests/unit/test_site.py)"
    )
    make.show_files(tmp_path)
    shown = "/files/tests/unit/test_site.py.md"
    assert f"]({shown}) " in page.read_text()
    anchor = "tests-unit-test-site-test-every-page-is-listed-once"
    assert page.read_text().endswith(f"]({shown}#{anchor})")


def test_what_is_said_of_names_is_said_of_names_that_exist(tools: tuple[Any, Any]) -> None:
    _, api = tools
    public = {name: module for module, names in api.NAMES.items() for name in names}
    assert {*api.GIVEN, *api.INNER, *api.CALLED} <= {*public}
    assert not {*api.WRITTEN} & {*public}
    for name, members in [*api.INNER.items(), *api.CALLED.items()]:
        cls = getattr(importlib.import_module(public[name]), name)
        known = {*dir(cls), *inspect.get_annotations(cls)}
        assert [member for member in members if member not in known] == []


def test_what_zklock_calls_itself_is_not_listed(tools: tuple[Any, Any]) -> None:
    _, api = tools
    from zklock.testing import FaultProxy

    listed = api.members(FaultProxy)
    assert "cut" in listed
    assert not {*listed} & api.INNER["FaultProxy"]
    assert not [name for name in listed if name.startswith("_")]
