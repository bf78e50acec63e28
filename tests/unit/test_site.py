"""What docs/site adds to the pages; ``make docs`` builds the site, and checks its links."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit import test_public_names

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


def test_every_page_that_code_names_is_there() -> None:
    name = re.compile(r"(?<![\w/.-])(?:docs|examples|findings)/[\w./-]+\.(?:md|py|sh|svg)\b")
    files = [
        file
        for folder in ("zklock", "tests", "docs", "examples")
        for file in (ROOT / folder).rglob("*.py")
    ]
    named = {(it, file) for file in files for it in name.findall(file.read_text())}
    assert named
    assert [(it, file) for it, file in named if not (ROOT / it).exists()] == []


def links_to_files(page: Path) -> list[str]:
    """Return what a page links to, but for addresses and its own headings."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"\]\(<?([^()\s<>]+)>?(?: [^()]*)?\)", text)
    return [link.partition("#")[0] for link in found if not re.match(r"[a-z]+:|#", link)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    links = links_to_files(page)
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_is_listed_once(tools: tuple[Any, Any], tmp_path: Path) -> None:
    """Else the build ends."""
    make, api = tools
    make.stage(tmp_path)
    assert {f"docs/api/{package}" for package in api.PACKAGES} == {
        make.name_of(path, tmp_path) for path in (tmp_path / "docs" / "api").iterdir()
    }


def test_every_public_module_stands_on_a_page(tools: tuple[Any, Any]) -> None:
    _, api = tools
    pages = "\n".join(api.page(package, about) for package, about in api.PACKAGES.items())
    for module in test_public_names.PACKAGES:
        assert f".. currentmodule:: {module}\n" in pages
        assert set(api.NAMES[module]) == set(importlib.import_module(module).__all__)
