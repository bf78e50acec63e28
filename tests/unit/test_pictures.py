"""The pictures and the tables of figures are those that docs/site makes, and pages show them."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


SITE = str(DOCS / "site")


def loaded(*names: str) -> list[Any]:
    sys.path.insert(0, SITE)
    try:
        return [importlib.import_module(name) for name in names]
    finally:
        sys.path.remove(SITE)


pictures, figures = loaded("pictures", "figures")
SHOWN = [*pictures.DRAWN, "demo"]


@pytest.mark.parametrize("name", pictures.DRAWN)
def test_a_picture_is_as_drawn(name: str) -> None:
    there = (DOCS / "pictures" / f"{name}.svg").read_text()
    assert there == pictures.DRAWN[name]().svg(), "run: python docs/site/pictures.py"
    ElementTree.fromstring(there)


@pytest.mark.parametrize("name", SHOWN)
def test_a_page_shows_the_picture_and_says_what_is_on_it(name: str) -> None:
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    shown = [
        alt
        for page in pages
        for alt in re.findall(rf"!\[([^\]]*)\]\([\w./]*pictures/{name}\.svg\)", page.read_text())
    ]
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
