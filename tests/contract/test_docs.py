"""The code in the docs: the tutorial runs, the rest at least parses."""

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import zklock
from zklock import Client, FencingToken, connect

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
TOKEN = re.compile(r"[0-9a-f]{16}-[0-9]{10}")
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def blocks(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text())


def run(page: Path, hosts: str, **scope: object) -> None:
    """Run the blocks of a page, one after the other, on this ZooKeeper."""
    for block in blocks(page):
        exec(compile(block.replace("127.0.0.1:2181", hosts), page.name, "exec"), scope)


@pytest.fixture
def hosts(zklock_hosts: str, zklock_client: Client, zklock_path: str) -> str:
    """A ZooKeeper with nothing in it."""
    zklock_client.ensure_path(zklock_path)
    return zklock_hosts + zklock_path


def test_the_tutorial_runs_from_top_to_bottom(
    hosts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ROOT / "docs" / "tutorial.md"
    run(page, hosts)
    printed = capsys.readouterr().out
    assert "mine: " in printed
    assert "['reporter-1']\nthe second one has to wait\n" in printed
    assert "the token has grown: True\n" in printed
    assert re.search(r"send with [1-7] s of lease", printed)  # of 10 s, two thirds at most
    (shown,) = re.findall(r"^```text\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    wanted, found = TOKEN.sub("TOKEN", shown), TOKEN.sub("TOKEN", printed)
    assert re.search(re.escape(wanted).replace("…", ".+") + r"\Z", found), found


@pytest.mark.parametrize(("name", "number"), [("first.py", 0), ("paused.py", 1)])
def test_a_first_program_says_what_its_page_says(
    hosts: str, capsys: pytest.CaptureFixture[str], name: str, number: int
) -> None:
    page = ROOT / "README.md"
    program = blocks(page)[number].replace("127.0.0.1:2181", hosts)
    exec(compile(program, name, "exec"), {})
    printed = f"$ python3 {name}\n{capsys.readouterr().out}```"
    assert TOKEN.sub("TOKEN", printed) in TOKEN.sub("TOKEN", page.read_text())


def test_the_examples_of_which_do_i_need_run(hosts: str) -> None:
    done: list[str] = []

    def start_due_jobs(token: FencingToken) -> None:
        if not done:
            done.append("lead")
            scope["election"].stop()

    def handle_next(number: int, token: FencingToken) -> None:
        if not scope["ended"]:
            done.append("consume")
            scope["ended"].append(True)

    with connect(hosts) as client:
        scope: dict[str, Any] = {
            "client": client,
            "zklock": zklock,
            "start_due_jobs": start_due_jobs,
            "handle_next": handle_next,
            "scan": lambda token: done.append("scan"),
            "compute_report": list,
            "save": lambda rows, token: done.append("save"),
        }
        for block in blocks(ROOT / "docs" / "which.md"):
            exec(compile(block.replace("(1.0)", "(0.01)"), "which.md", "exec"), scope)
    assert [*dict.fromkeys(done)] == ["lead", "consume", "scan", "save"]


def test_the_readme_shows_what_the_doctor_says() -> None:
    text = (ROOT / "README.md").read_text()
    shown = text.partition("$ zklock doctor\n")[2].partition("```")[0].splitlines()
    page = (ROOT / "docs" / "commands" / "doctor.md").read_text()
    assert shown
    assert [line for line in shown if f"\n{line.rstrip('…')}" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_in_the_docs_is_python(page: Path) -> None:
    """In the tutorial it can be pasted into an interpreter: an empty line ends a block there."""
    for block in blocks(page):
        compile(block, page.name, "exec")
        assert page.stem != "tutorial" or not re.search(r"\n\n+ ", block), block


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


@pytest.mark.parametrize("name", ["README.md", "docs/howto/install.md"])
def test_a_page_names_the_present_version(name: str) -> None:
    text = (ROOT / name).read_text()
    named = re.findall(r"zklock(?:[-_]recipes(?:==|-)| )([0-9]+\.[0-9]+\.[0-9]+)", text)
    assert set(named) == {zklock.__version__}


def test_the_tutorial_survives_a_lock_that_is_free_again() -> None:
    (block,) = (each for each in blocks(ROOT / "docs" / "tutorial.md") if "timeout=2.0)" in each)

    class Free:
        """A lock that was not got, and that nobody holds when one looks."""

        def attempt(self, **_: object) -> nullcontext[None]:
            return nullcontext()

        def holder(self) -> None:
            return None

    exec(compile(block, "tutorial.md", "exec"), {"rival": Free()})
