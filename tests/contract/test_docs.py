"""The code in the docs: the tutorial runs, the rest at least parses."""

import re
from contextlib import nullcontext
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
    assert re.search(r"send with [1-7] s of lease", printed)  # of 10 s, two thirds at most


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_in_the_docs_is_python(page: Path) -> None:
    for block in blocks(page):
        compile(block, page.name, "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


SOURCES = sorted([*PAGES, *(ROOT / "zklock").rglob("*.py"), ROOT / "Makefile"])


def test_what_is_to_be_installed_can_be() -> None:
    """No package index has zklock's distribution: it is installed from a folder or from a wheel."""
    told = {
        command
        for source in SOURCES
        for command in re.findall(r"pip install [^\n`]*", source.read_text())
    }
    assert told
    assert [command for command in told if re.search(r"""install ["']?zklock""", command)] == []


def test_the_tutorial_survives_a_lock_that_is_free_again() -> None:
    (block,) = (each for each in blocks(ROOT / "docs" / "tutorial.md") if "timeout=2.0" in each)

    class Free:
        """A lock that was not got, and that nobody holds when one looks."""

        def attempt(self, **_: object) -> nullcontext[None]:
            return nullcontext()

        def holder(self) -> None:
            return None

    exec(compile(block, "tutorial.md", "exec"), {"lock": Free()})
