"""``zklock demo`` as a user runs it: a process of its own, with a real ZooKeeper."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
from kazoo.client import KazooClient

from tests.contract.support import ROOT
from tests.terminal import COLUMNS
from zklock.cli.parser import build
from zklock.testing import wait_for
from zklock.testing.ports import free_ports

pytestmark = pytest.mark.slow("whole demos are played")

PAGE = (ROOT / "docs" / "demo.md").read_text()
BOUND = 240.0
"""Seconds within which a demo is over."""
STEADY = ("--session-timeout", "6")
"""For a demo that must end well on a machine that stalls for a second or two."""
ONE_IS_ENOUGH = pytest.mark.thorough(
    "the ends of a demo that has begun: each plays half of one; that it ends while it sets up runs"
)


class Demo:
    """A running ``zklock demo``."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.printed, self.errors = folder / "printed", folder / "errors"
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.descendants: dict[int, str] = {}
        with self.printed.open("wb") as out, self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "zklock.cli", "demo", *arguments],
                stdout=out,
                stderr=errors,
                env={**os.environ, "TMPDIR": str(self.temporary)},
            )

    def await_line(self, text: str) -> None:
        """Wait until it has printed this, and note which processes there are by then."""

        def found() -> bool:
            over = self.process.poll()
            printed = text in self.printed.read_text()
            assert printed or over is None, f"no {text!r}, and exit status {over}: {self.why()}"
            return printed

        wait_for(found, BOUND, self.why)
        self.descendants |= descendants(self.process.pid)

    def finish(self) -> int:
        try:
            return self.process.wait(BOUND)
        finally:
            self.process.kill()
            self.process.wait()

    def why(self) -> str:
        return self.printed.read_text() + self.errors.read_text()

    def assert_gone(self) -> None:
        """Assert that all processes that were noted have ended, and that no file is left."""
        assert self.descendants
        wait_for(
            lambda: all(parent_of(pid) is None for pid in self.descendants),
            10.0,
            lambda: f"still there: {[pid for pid in self.descendants if parent_of(pid)]}",
        )


Start: TypeAlias = Callable[..., Demo]


def descendants(pid: int) -> dict[int, str]:
    """Return the processes below this one, Java and shells included, and their command lines."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := parent_of(int(entry.name))) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found: dict[int, str] = {}
    todo = children.get(pid, [])
    while todo:
        found[todo[0]] = Path(f"/proc/{todo[0]}/cmdline").read_text().replace("\0", " ")
        todo = [*todo[1:], *children.get(todo[0], [])]
    return found


def parent_of(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, parent, *_ = stat.rpartition(")")[2].split()
    return None if state == "Z" else int(parent)


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    demos: list[Demo] = []

    def begin(*arguments: str) -> Demo:
        demos.append(Demo(tmp_path_factory.mktemp("demo"), *arguments))
        return demos[-1]

    yield begin
    for demo in demos:
        demo.process.kill()
        demo.process.wait()


def forms(lines: str) -> list[str]:
    """Return lines in a form that is the same in each run."""
    return re.sub(r"w[0-9]", "WORKER", re.sub(r"[0-9]+[.0-9]* ", "NUMBER ", lines)).splitlines()


def test_the_demo(start: Start) -> None:
    demo = start(*STEADY)
    demo.await_line("SIGKILL to w1")
    assert demo.finish() == 0, demo.why()
    assert demo.errors.read_text() == ""
    printed = demo.printed.read_text()
    assert printed.endswith("\nAll of it held.\n")
    assert [line for line in printed.splitlines() if len(line) >= COLUMNS] == []
    (shown,) = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (scene,) = (it for it in printed.split("\n\n") if it.startswith("2. "))
    assert forms(scene) == forms(shown)
    assert printed.count("   ok: ") == 22
    demo.assert_gone()
    assert list(demo.temporary.iterdir()) == []


def test_where_nothing_runs_zookeeper_it_is_played_on_the_embedded_server_and_says_so(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No Java on the path, an engine that does not answer, and nothing may be installed."""
    for name in [name for name in os.environ if name.startswith(("ZKLOCK", "ZOO", "JAVA"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{free_ports()[0]}")
    monkeypatch.setenv("ZKLOCK_PROVISION", "0")
    demo = start(*STEADY)
    assert demo.finish() == 0, demo.why()
    errors = demo.errors.read_text()
    assert "no real ZooKeeper: embedded (for tests, demos and a first try, never" in errors
    for reason in ("container: no container engine answers", "java: no java command"):
        assert reason in errors
    assert " (embedded) at " in demo.printed.read_text().splitlines()[0]


@pytest.mark.thorough("whole demos: one is played")
def test_a_given_zookeeper_is_left_as_it_was(
    start: Start, zklock_hosts: str, zklock_client: KazooClient
) -> None:
    before = sorted(zklock_client.get_children("/"))
    demo = start(*STEADY, "--hosts", zklock_hosts)
    assert demo.finish() == 0, demo.why()
    assert sorted(zklock_client.get_children("/")) == before


@ONE_IS_ENOUGH
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_it_and_all_it_started(
    start: Start, number: signal.Signals, status: int
) -> None:
    demo = start(*STEADY)
    demo.await_line("SIGSTOP to w1")  # a stopped worker is the hardest to get rid of
    demo.process.send_signal(number)
    assert demo.finish() == status
    assert "All of it held" not in demo.printed.read_text()
    assert number.name in demo.errors.read_text()
    demo.assert_gone()
    assert list(demo.temporary.iterdir()) == []


def test_interrupted_while_it_sets_up(start: Start) -> None:
    demo = start()
    demo.await_line("1. The holder")
    demo.process.send_signal(signal.SIGINT)
    assert demo.finish() == 130
    demo.assert_gone()
    assert list(demo.temporary.iterdir()) == []


@ONE_IS_ENOUGH
def test_nothing_outlives_a_killed_demo(start: Start) -> None:
    demo = start(*STEADY)
    demo.await_line("SIGSTOP to w1")
    demo.process.kill()
    assert demo.finish() == -signal.SIGKILL
    demo.assert_gone()


def test_a_worker_that_dies_fails_it(start: Start) -> None:
    demo = start(*STEADY)
    demo.await_line("SIGKILL to w1")
    (victim,) = (pid for pid, line in demo.descendants.items() if "demo.worker lock w2" in line)
    os.kill(victim, signal.SIGKILL)
    assert demo.finish() == 1
    assert "w2 has ended, with -9, and never reported 'over'" in demo.errors.read_text()
    demo.assert_gone()
    assert list(demo.temporary.iterdir()) == []


def test_the_page_has_the_commands_and_their_options() -> None:
    known = vars(build("demo").parse_args(["demo"]))
    options = {f"--{name.replace('_', '-')}" for name in known} - {"--parser", "--run", "--verbose"}
    assert options == set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^demo: .*\n\t\$\(BIN\)/zklock demo ", makefile, re.MULTILINE)
