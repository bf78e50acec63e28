"""The code in the docs: the tutorial runs, the rest at least parses."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def blocks(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text())


def test_the_tutorial_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, object] = {}
    for block in blocks(ROOT / "docs" / "tutorial.md"):
        exec(compile(block, "tutorial.md", "exec"), scope)
    printed = capsys.readouterr().out
    assert "mine: " in printed
    assert "send with 7 s of lease" in printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_in_the_docs_is_python(page: Path) -> None:
    for block in blocks(page):
        compile(block, page.name, "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
