"""Builds the site: ``python docs/site/make.py``. Its first page is ``build/site/html/index.html``.

The pages are those that a code host shows. They are copied in the same layout, so that each
relative link means the same in both places. Three things are added: the navigation, a page for each
public package, made of its docstrings, and a page for each file that is linked to and is no page.
"""

from __future__ import annotations

import fnmatch
import re
import shutil
import sys
from pathlib import Path

import api
from sphinx.cmd.build import main as sphinx

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

NAVIGATION = {
    "Start": [
        "docs/which",
        "docs/tutorial",
        "docs/why",
        "docs/comparison",
        "docs/demo",
        "examples/README",
        "docs/index",
    ],
    "How-to": [
        "docs/howto",
        "docs/family",
        "docs/election",
        "docs/pool",
        "docs/asyncio",
        "docs/fencing",
        "docs/howto/*",
        "docs/testing",
        "docs/coming-from-kazoo",
        "docs/interop",
    ],
    "Frameworks": ["docs/contrib/*"],
    "Operating": [
        "docs/operating",
        "docs/failures",
        "docs/runbook",
        "docs/telemetry",
        "docs/hazards",
        "docs/commands",
        "docs/commands/*",
        "compose/README",
    ],
    "Reference": [
        "docs/reference",
        "docs/errors",
        "docs/api/zklock",
        "docs/api/zklock.aio",
        "docs/api/zklock.fencing",
        "docs/api/zklock.telemetry",
        "docs/api/zklock.contrib",
        "docs/api/zklock.testing",
        "docs/versions",
        "docs/changelog",
    ],
    "Explanation": [
        "docs/guarantees",
        "docs/evidence",
        "docs/recipe",
        "docs/model/index",
        "docs/design",
        "docs/benchmarks",
        "docs/chaos",
        "docs/decisions/index",
    ],
    "Project": ["CONTRIBUTING", "SECURITY"],
}
"""What the side of each page lists, by kind. What is not listed follows at the end."""

LISTS = {"docs/decisions/index": "docs/decisions/0*"}
"""Pages that list others, in the order of their names."""

PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md", "compose/README.md")
LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
NAME_OF_A_TEST = re.compile(r"`(?:Test\w+::)?test_\w+`")
TEST = re.compile(r"(?: {4})?(class|def|async def) ([Tt]est\w+)")
LANGUAGES = {".py": "python", ".yml": "yaml", ".json": "json", ".sh": "sh"}


def navigation(source: Path) -> str:
    """Return the lists of all pages, for the first one."""
    pages = {name_of(page, source) for page in source.rglob("*.md")} - {"README"}
    pages |= {f"docs/api/{package}" for package in api.PACKAGES}
    pages -= {page for page in pages if page.startswith("files/")}
    pages -= {page for others in LISTS.values() for page in fnmatch.filter(pages, others)}
    lists, listed = [], set()
    for kind, patterns in NAVIGATION.items():
        found = [page for each in patterns for page in sorted(fnmatch.filter(pages, each))]
        if gone := [each for each in patterns if not fnmatch.filter(pages, each)]:
            sys.exit(f"docs: {gone} of NAVIGATION are no pages: take them out of {__file__}")
        lists.append(contents(f":caption: {kind}\n:hidden:", found))
        listed |= {*found}
    more = sorted(pages - listed)
    return "\n".join([*lists, contents(":caption: More\n:hidden:", more) if more else ""])


def name_of(page: Path, source: Path) -> str:
    """Return how Sphinx names a page."""
    return page.relative_to(source).with_suffix("").as_posix()


def contents(options: str, pages: list[str]) -> str:
    """Return a table of contents."""
    return "\n".join(["", "```{toctree}", options, "", *pages, "```", ""])


def stage(source: Path) -> None:
    """Lay out in ``source`` what Sphinx reads."""
    shutil.copytree(ROOT / "docs", source / "docs", ignore=shutil.ignore_patterns("site"))
    for page in PAGES:
        (source / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / page, source / page)
    show_files(source)
    first = source / "README.md"
    (source / "index.md").write_text(first.read_text() + navigation(source))
    first.unlink()
    for page, others in LISTS.items():
        listing = source / f"{page}.md"
        found = sorted(f"/{name_of(it, source)}" for it in source.glob(f"{others}.md"))
        listing.write_text(listing.read_text() + contents(":hidden:", found))
    (source / "docs" / "api").mkdir()
    for package, about in api.PACKAGES.items():
        (source / "docs" / "api" / f"{package}.rst").write_text(api.page(package, about))


def show_files(source: Path) -> None:
    """Make a page for each file or folder that is linked to and is no page; lead links there."""
    shown: set[Path] = set()
    for page in sorted(source.rglob("*.md")):
        place = page.parent.relative_to(source)

        def led(link: re.Match[str], place: Path = place) -> str:
            text, target, anchor = link[1], link[2], link[3] or ""
            file = (ROOT / place / target).resolve().relative_to(ROOT)
            if file.suffix in {".svg", ".png"}:
                return link[0]
            to = f"/files/{file}.md"
            if file == Path("README.md"):
                to = "/index.md"
            elif file.suffix == ".md":
                return link[0]
            else:
                shown.add(file)
                anchor = f"#{anchor_of(file, text)}" if NAME_OF_A_TEST.fullmatch(text) else ""
            return f"[{text}]({to}{anchor})"

        page.write_text(LINK.sub(led, page.read_text()))
    for file in shown:
        page = source / "files" / f"{file}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(shown_file(file))


def shown_file(file: Path) -> str:
    """Return a page that shows a file, or the files of a folder that are no pages."""
    folder = ROOT / file
    files = sorted(folder.iterdir()) if folder.is_dir() else [folder]
    blocks = [f"---\norphan: true\nnosearch: true\n---\n\n# {file}\n"]
    for each in files:
        if each.suffix != ".md":
            blocks += [f"## {each.name}\n"] if len(files) > 1 else []
            blocks += code(each.relative_to(ROOT))
    return "\n".join(blocks)


def code(file: Path) -> list[str]:
    """Return a file's text in blocks: one for each test, with a name that links can lead to."""
    language = LANGUAGES.get(file.suffix, "text")
    blocks = [f"````{language}"]
    group = ""
    for line in (ROOT / file).read_text().splitlines():
        found = TEST.match(line)
        if found and found[1] == "class":
            group = found[2]
        elif found:
            name = f"{group}::{found[2]}" if line.startswith(" ") else found[2]
            blocks += ["````", "", f"({anchor_of(file, name)})=", "", f"````{language}"]
        blocks.append(line)
    return [*blocks, "````", ""]


def anchor_of(file: Path, name: str) -> str:
    """Return what links to a test lead to: no other one on the site, whatever the test's name."""
    name = name.strip("`").replace("::", "-")
    return re.sub(r"\W|_", "-", f"{file.with_suffix('')}-{name}").lower()


def main() -> int:
    """Build the site anew; return Sphinx's exit status."""
    output = ROOT / "build" / "site"
    shutil.rmtree(output, ignore_errors=True)
    source = output / "source"
    stage(source)
    arguments = ["-q", "-W", "--keep-going", "-j", "auto", "-c", str(HERE)]
    arguments += ["-d", str(output / "doctrees"), str(source), str(output / "html")]
    status: int = sphinx(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
