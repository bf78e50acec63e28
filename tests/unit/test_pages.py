"""The pages: what they name is there, and what they tell follows from the code and its tests.

``docs/failures.md`` and ``docs/hazards.md`` name promises of ``docs/guarantees.md`` by their
numbers. Rows name tests as links that have the test's name as their text; the tests of a hazard
carry its number. ``make docs`` builds the site, and checks its links.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from kazoo.client import KazooClient
from kazoo.recipe import lock as recipes
from kazoo.recipe.election import Election
from kazoo.recipe.partitioner import SetPartitioner

from tests.compare.locks import uses
from tests.compare.page import FINDINGS, HEADS, parts, results, table
from tests.unit import test_public_names
from zklock._core.lease import DEFAULT_FRACTION, HEARTBEATS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *ROOT.glob("*.md"),
    *(page for folder in ("compose", "docs", "examples") for page in (ROOT / folder).rglob("*.md")),
    ROOT / "findings" / "README.md",
]
NUMBER = re.compile(r"\b[PH][0-9]+\b")
MODULE = re.compile(r"\[`\w+`\]\(\.\./(zklock/[\w/]+\.py)\)")
TEST = re.compile(r"\[`((?:Test\w+::)?test_\w+)`\]\(\.\./(tests/[\w/]+\.py)\)")

sys.path.insert(0, str(DOCS / "site"))
make, api, pictures, figures, record = map(
    importlib.import_module, ("make", "api", "pictures", "figures", "record")
)
sys.path.remove(str(DOCS / "site"))


READING_PATHS = (
    "tutorial which kept fencing howto/jobs asyncio election pool coming-from-kazoo testing"
)


def test_what_a_reader_walks_through_is_short_and_names_its_reader() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 900
    for name in READING_PATHS.split():
        text = (DOCS / f"{name}.md").read_text()
        assert len(text.split()) <= 1600, name
        assert re.match(r"# .+\n\nFor [^?]+: [^?]+\?", text), name


# Tests that pages name.


@functools.cache
def names_in(file: Path) -> dict[str, set[str]]:
    """Return the tests of a file, as pytest spells them, with the hazards that each holds.

    A hazard's number stands in the name of a test (``_h5``), or in a mark or another decorator of
    the test, of its class or of the file.
    """
    body = ast.parse(file.read_text()).body if file.exists() else []
    marks = [
        each for each in body if isinstance(each, ast.Assign) and "pytestmark" in ast.unparse(each)
    ]
    return dict(_functions(body, "", _hazards(marks)))


def _functions(
    body: list[ast.stmt], before: str, hazards: set[str]
) -> Iterator[tuple[str, set[str]]]:
    for each in body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            own = {f"H{number}" for number in re.findall(r"_h([0-9]+)(?=_|$)", each.name)}
            yield f"{before}{each.name}", hazards | own | _hazards(each.decorator_list)
        elif isinstance(each, ast.ClassDef):
            of_class = hazards | _hazards(each.decorator_list)
            yield from _functions(each.body, f"{before}{each.name}::", of_class)


def _hazards(nodes: list[Any]) -> set[str]:
    told = " ".join(map(ast.unparse, nodes))
    return set(re.findall(r"'(H[0-9]+)'", told))


def names_tests(told: str) -> bool:
    """Whether a text names tests that exist, and nothing else."""
    named = TEST.findall(told)
    missing = [name for name, file in named if name not in names_in(ROOT / file)]
    return bool(named) and missing == [] and TEST.sub("", told).strip() == ""


def rows_of(page: str, first: str) -> dict[str, list[str]]:
    """Return the cells of the rows of a page whose first cell is such a one."""
    rows = [line[2:-2].split(" | ") for line in lines_of(page) if line.startswith("| ")]
    return {found[1]: row for row in rows if (found := re.match(first, row[0]))}


def lines_of(page: str) -> list[str]:
    return (DOCS / page).read_text().splitlines()


PROMISES = rows_of("guarantees.md", r"(P[0-9]+)$")
HAZARDS = rows_of("hazards.md", r"(H[0-9]+)$")
FAILURES = rows_of("failures.md", r"\*\*(.+?)\*\*")
ROWS = PROMISES | HAZARDS | FAILURES


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_a_row_is_filled_and_its_last_cell_names_tests_that_exist(row: list[str]) -> None:
    assert len(row) == 4
    assert all(cell.strip() for cell in row)
    assert names_tests(row[3])


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_names_modules_that_exist(promise: str) -> None:
    where = PROMISES[promise][2]
    modules = MODULE.findall(where)
    assert modules
    assert MODULE.sub("", where).strip() == ""
    assert [module for module in modules if not (ROOT / module).exists()] == []


@pytest.mark.parametrize("row", [*HAZARDS, *FAILURES])
def test_a_hazard_or_a_failure_names_promises_that_stand_in_the_table(row: str) -> None:
    told = " ".join(ROWS[row])
    named = set(NUMBER.findall(TEST.sub("", told))) - {row}
    assert named <= set(PROMISES)
    assert named or "*no promise*" in told or "*not guaranteed*" in told


@pytest.mark.parametrize("hazard", HAZARDS)
def test_the_tests_of_a_hazard_carry_its_number(hazard: str) -> None:
    for test, file in TEST.findall(HAZARDS[hazard][3]):
        assert hazard in names_in(ROOT / file)[test], f"{test} does not carry {hazard}"


def test_the_numbers_have_no_gaps_and_no_test_carries_another() -> None:
    assert list(PROMISES) == [f"P{each + 1}" for each in range(len(PROMISES))]
    assert list(HAZARDS) == [f"H{each + 1}" for each in range(len(HAZARDS))]
    files = (ROOT / "tests").rglob("test_*.py")
    carried = {it for file in files for numbers in names_in(file).values() for it in numbers}
    assert carried == set(HAZARDS)


@pytest.mark.parametrize(("page", "rows"), [("hazards.md", HAZARDS), ("failures.md", FAILURES)])
def test_every_row_is_read(page: str, rows: dict[str, list[str]]) -> None:
    lines = [line for line in lines_of(page) if line.startswith("|")]
    heads = [line for line in lines if line.startswith("|---")]
    assert len(rows) == len(lines) - 2 * len(heads) > 0


# What links and code name.


def test_every_page_that_code_names_is_there() -> None:
    name = re.compile(r"(?<![\w/.-])(?:docs|examples|findings)/[\w./-]+\.(?:md|py|sh|svg)\b")
    folders = ("zklock", "tests", "docs", "examples")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    named = {(it, file) for file in files for it in name.findall(file.read_text())}
    assert named
    assert [(it, file) for it, file in named if not (ROOT / it).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"\]\(<?([^()\s<>]+)>?(?: [^()]*)?\)", text)
    links = [link.partition("#")[0] for link in found if not re.match(r"[a-z]+:|#", link)]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_is_listed_once(tmp_path: Path) -> None:
    """Else the build ends."""
    make.stage(tmp_path)
    assert {f"docs/api/{package}" for package in api.PACKAGES} == {
        make.name_of(path, tmp_path) for path in (tmp_path / "docs" / "api").iterdir()
    }


def test_every_public_module_stands_on_a_page() -> None:
    pages = "\n".join(api.page(package, about) for package, about in api.PACKAGES.items())
    for module in test_public_names.PACKAGES:
        assert f".. currentmodule:: {module}\n" in pages
        assert set(api.NAMES[module]) == set(importlib.import_module(module).__all__)


# Pictures and figures.


@pytest.mark.parametrize("name", pictures.DRAWN)
def test_a_picture_is_as_drawn(name: str) -> None:
    there = (DOCS / "pictures" / f"{name}.svg").read_text()
    assert there == pictures.DRAWN[name]().svg(), "run: python docs/site/pictures.py"
    ElementTree.fromstring(there)


@pytest.mark.parametrize("name", [*pictures.DRAWN, "demo"])
def test_a_page_shows_the_picture_and_says_what_is_on_it(name: str) -> None:
    link = re.compile(rf"!\[([^\]]*)\]\([\w./]*pictures/{name}\.svg\)")
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    shown = [alt for page in pages for alt in link.findall(page.read_text())]
    assert shown
    assert all(len(alt) > 40 for alt in shown)


def test_the_readme_tells_the_measured_time() -> None:
    here = figures.measured("lock")["figures"]["one machine"]
    found = re.search(r"takes ([\d.]+) of the time of kazoo", (ROOT / "README.md").read_text())
    assert found is not None
    assert found[1] == figures.over(here, "zklock", "kazoo"), "measured anew: change the README"


@pytest.mark.parametrize("name", figures.TABLES)
def test_a_table_of_figures_is_as_measured(name: str) -> None:
    found = figures.block(name).search(figures.PAGE.read_text())
    assert found is not None
    assert found[2] == figures.TABLES[name](), "run: python docs/site/pictures.py"


def test_a_recording_shows_each_line_when_it_was_printed() -> None:
    command = [sys.executable, "-c", "print('   0.1  w1  LOST   a < b\\n\\nIt held.')"]
    lines = record.recorded(command)
    assert [line for _, line in lines] == ["   0.1  w1  LOST   a < b", "", "It held."]
    made = record.svg([(0.0, "first"), (2.0, "second"), (2.0, lines[0][1])])
    ElementTree.fromstring(made)
    assert '<tspan class="bad">LOST</tspan>   a &lt; b</text>' in made
    length, down = 2.0 + record.PACE + record.REST, record.LINE * (record.ROWS - 1)
    for at, place in ((0.0, down), (2.0, down - record.LINE), (2.2, down - 2 * record.LINE)):
        assert f"{at / length:.3%} {{ transform: translateY({place}px) }}" in made
    with pytest.raises(SystemExit, match="status 3"):
        record.recorded([sys.executable, "-c", "raise SystemExit(3)"])


def test_the_recorded_demo_passed_its_checks() -> None:
    there = ElementTree.parse(DOCS / "pictures" / "demo.svg")
    lines = ["".join(each.itertext()) for each in there.iter("{http://www.w3.org/2000/svg}text")]
    assert lines[0] == "$ zklock demo"
    assert len([line for line in lines if re.match(" +ok", line)]) >= 10


TICK = 2.0
SLOWEST = 0.30
"""How long answers may take, in parts of the timeout: see ``zklock._core.heartbeat``."""


def test_the_table_for_choosing_a_timeout_follows_from_the_numbers_of_the_lease() -> None:
    seconds = re.compile(r"^\| [^|]+ \|((?: [0-9.]+ s \|){5})$", re.MULTILINE)
    rows = seconds.findall((DOCS / "howto.md").read_text())
    assert len(rows) == 6
    for row in rows:
        timeout, *told = map(float, re.findall(r"[0-9.]+", row))
        outage = (DEFAULT_FRACTION - 1 / HEARTBEATS) * timeout
        known, free = DEFAULT_FRACTION * timeout, timeout + TICK
        assert told == [round(each, 1) for each in (outage, SLOWEST * timeout, known, free)]
        assert 4 * TICK <= timeout <= 20 * TICK


# Others: docs/comparison.md, docs/coming-from-kazoo.md, docs/which-lock-in-python.md.

COMPARISON = (DOCS / "comparison.md").read_text()
PEERS = dict(re.findall(r"^### (.+?)\n(.+?)(?=^##|\Z)", COMPARISON, re.MULTILINE | re.DOTALL))


def test_every_tick_names_tests_that_exist() -> None:
    ticks = re.findall(r"^\| (.+?) \| ✓ \| (.+?) \|$", COMPARISON, re.MULTILINE)
    assert len(ticks) == COMPARISON.count("✓") > 0
    assert [told for told, tests in ticks if not names_tests(tests)] == []


@pytest.mark.parametrize("peer", PEERS)
def test_another_one_has_sources_and_is_the_better_choice_somewhere(peer: str) -> None:
    if peer == "Not locking":  # in our own words
        return
    above, *statements = re.split(r"^- ", PEERS[peer], flags=re.MULTILINE)
    sourced = "All statements are of" in above and "](https://" in above
    for statement in statements:
        if not statement.startswith("*Choose"):
            assert sourced or "](https://" in statement or TEST.search(statement), statement
    assert any(re.match(r"\*Choose (it|them)\* ", each) for each in statements)


COMING = (DOCS / "coming-from-kazoo.md").read_text()
SECTIONS: dict[Any, list[str]] = {
    recipes.Lock: ["Lock"],
    recipes.ReadLock: ["Lock", "ReadLock` and `WriteLock"],
    recipes.WriteLock: ["Lock", "ReadLock` and `WriteLock"],
    recipes.Semaphore: ["Semaphore"],
    Election: ["Election"],
    SetPartitioner: ["SetPartitioner"],
}


@pytest.mark.parametrize("kind", SECTIONS, ids=lambda kind: kind.__name__)
def test_every_public_name_of_kazoo_has_its_place(kind: Any) -> None:
    """Names of attributes, methods and arguments, in the first cells of the sections' tables."""
    # A partitioner sets to work when it is made; what it sets is read from its source.
    made = kind if kind is SetPartitioner else kind(KazooClient(), "/lock")
    given = re.findall(r"self\.(\w+) =", inspect.getsource(kind))
    names = {name for name in [*dir(made), *given] if not name.startswith("_")}
    calls = [it for it in (kind, *(getattr(kind, name, None) for name in names)) if callable(it)]
    arguments = {each for call in calls for each in inspect.signature(call).parameters}
    told: set[str] = set()
    for heading in SECTIONS[kind]:
        section = COMING.partition(f"\n## `{heading}`\n")[2].partition("\n## ")[0]
        for cell in re.findall(r"^\| ([^|]*) \|", section, re.MULTILINE):
            told |= {*re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", cell)))}
    assert names | arguments - {"self"} | {kind.__name__} <= told


def test_the_locks_of_kazoo_are_these() -> None:
    found = {
        each for name, each in vars(recipes).items() if inspect.isclass(each) and name[0] != "_"
    }
    assert {each for each in found if each.__module__ == recipes.__name__} <= set(SECTIONS)


def test_the_page_shows_what_the_last_comparison_has_seen() -> None:
    assert parts()[1] == table(), "python -m tests.compare.page writes it"
    rows = results()["rows"]
    assert list(rows) == list(uses())
    for row in rows.values():
        assert "not run" in row or list(row["cells"]) == list(HEADS)


@pytest.mark.parametrize("cell", FINDINGS, ids="-".join)
def test_a_finding_is_there_and_belongs_to_a_cell(cell: tuple[str, str]) -> None:
    assert (ROOT / "findings" / f"{FINDINGS[cell]}.sh").exists()
    assert cell[0] in uses()
    assert cell[1] in HEADS
