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
        "Install <docs/howto/install>",
        "Quick start <self>",
        "docs/which",
        "docs/tutorial",
        "docs/why",
    ],
    "Using it": [
        "docs/howto",
        "docs/family",
        "docs/election",
        "docs/pool",
        "docs/asyncio",
        "docs/fencing",
        "docs/testing",
        "docs/coming-from-kazoo",
        "Other clients <docs/interop>",
        "docs/contrib/index",
    ],
    "Operating": [
        "docs/operating",
        "docs/runbook",
        "docs/telemetry",
        "Commands <docs/commands>",
    ],
    "Reference": [
        "docs/reference",
        "API <docs/api/zklock>",
        "docs/guarantees",
        "docs/versions",
    ],
    "More": ["docs/internals", "docs/index"],
}
"""What the side of each page lists, by kind."""

BELOW = {
    "docs/family": ["docs/kept"],
    "docs/tutorial": ["examples/README", "docs/demo"],
    "docs/why": ["docs/which-lock-in-python", "docs/comparison"],
    "docs/howto": ["docs/howto/*"],
    "docs/testing": ["compose/README"],
    "docs/contrib/index": ["docs/contrib/*"],
    "docs/operating": ["docs/failures"],
    "docs/commands": ["docs/commands/*"],
    "docs/reference": ["docs/errors"],
    "docs/api/zklock": ["docs/api/zklock.*"],
    "docs/versions": ["docs/changelog"],
    "docs/internals": [
        "docs/recipe",
        "docs/evidence",
        "docs/mutants",
        "docs/hazards",
        "docs/chaos",
        "docs/model/index",
        "docs/decisions",
        "docs/benchmarks",
        "docs/design",
    ],
    "docs/index": ["findings/README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY"],
}
"""Pages that the side lists below another one. A page that stands in no list ends the build."""

PAGES = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "examples/README.md",
    "compose/README.md",
    "findings/README.md",
)
LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
NAME_OF_A_TEST = re.compile(r"`(?:Test\w+::)?test_\w+`")
TEST = re.compile(r"(?: {4})?(class|def|async def) ([Tt]est\w+)")
LANGUAGES = {".py": "python", ".yml": "yaml", ".json": "json", ".sh": "sh"}


def navigation(pages: set[str]) -> dict[str, str]:
    """Return the lists for the first page, and for each page that has others below it."""
    listed: set[str] = set()

    def entries(patterns: list[str]) -> list[str]:
        found = []
        for each in patterns:
            title, _, name = each.removesuffix(">").rpartition(" <")
            names = ["self"] if name == "self" else fnmatch.filter(sorted(pages - listed), name)
            if not names:
                sys.exit(f"docs: {name} is no page, or is listed twice: see {__file__}")
            listed.update(names)
            paths = [it if it == "self" else f"/{it}" for it in names]
            found += [f"{title} <{it}>" if title else it for it in paths]
        return found

    side = {kind: entries(patterns) for kind, patterns in NAVIGATION.items()}
    lists = {page: contents(entries(patterns)) for page, patterns in BELOW.items()}
    if left := sorted(pages - listed):
        sys.exit(f"docs: {left} stand nowhere on the side: see {__file__}")
    return {
        "index": "\n".join(contents(*it) for it in zip(side.values(), side, strict=True)),
        **lists,
    }


def name_of(page: Path, source: Path) -> str:
    """Return how Sphinx names a page."""
    return page.relative_to(source).with_suffix("").as_posix()


def contents(pages: list[str], caption: str = "") -> str:
    """Return a table of contents, which only the side shows."""
    options = [f":caption: {caption}"] if caption else []
    return "\n".join(["", "```{toctree}", ":hidden:", *options, "", *pages, "```", ""])


def as_rst(listing: str) -> str:
    """Return a table of contents as a page of docstrings has it."""
    indented = re.sub(r"^(?=.)", "   ", listing, flags=re.MULTILINE)
    return indented.replace("   ```{toctree}", ".. toctree::").replace("   ```", "")


def stage(source: Path) -> None:
    """Lay out in ``source`` what Sphinx reads."""
    shutil.copytree(ROOT / "docs", source / "docs", ignore=shutil.ignore_patterns("site"))
    for page in PAGES:
        (source / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / page, source / page)
    show_files(source)
    first = source / "README.md"
    first.rename(source / "index.md")
    (source / "docs" / "api").mkdir()
    for package, about in api.PACKAGES.items():
        (source / "docs" / "api" / f"{package}.rst").write_text(api.page(package, about))
    pages = {name_of(page, source) for kind in ("md", "rst") for page in source.rglob(f"*.{kind}")}
    pages = {page for page in pages if page != "index" and not page.startswith("files/")}
    for page, listing in navigation(pages).items():
        if (file := source / f"{page}.md").exists():
            file.write_text(file.read_text() + listing)
        else:
            file = file.with_suffix(".rst")
            file.write_text(file.read_text() + as_rst(listing))


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
