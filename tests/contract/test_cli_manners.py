"""What commands print on a terminal and into a pipe: the same, without colours or movements."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import zklock
from tests.contract.support import SOON, granted, queued, run
from tests.contract.test_cli import PATIENCE, ZKLOCK, Commands
from tests.terminal import Terminal

AGE = re.compile(r"\b[0-9]+[dhms]([0-9]+[hms])?\b *|\b[0-9.]+ m?s\b")
OTHERS = pytest.mark.thorough(
    "what each command prints to terminals and in ASCII: two of them run, by the same way out"
)
LINES = [
    "show",
    "top --once",
    *(
        pytest.param(line, marks=OTHERS)
        for line in ("ls", "graph", "doctor", "show --json", "ls --json")
    ),
]


@pytest.fixture
def zk(zk: Commands) -> Commands:
    zk.environ["PYTHONIOENCODING"] = "utf-8"
    zk.environ.pop("NO_COLOR", None)
    return zk


@pytest.fixture
def queue(zklock_path: str, zklock_connect: Callable[..., Any]) -> Iterator[str]:
    """The path of a lock with a holder and a waiter."""
    one, two = (zklock_connect(timeout=30.0) for _ in range(2))
    second = zklock.Lock(two, zklock_path, identity="host-8")
    with zklock.Lock(one, zklock_path, identity="Jürgen"):
        waiting = run(granted, second)
        queued(one, zklock_path, 2)
        yield zklock_path
    waiting.result(SOON).release()


def told(text: str) -> list[str]:
    """Return the lines, without what changes from one second to the next, and without widths."""
    return [" ".join(AGE.sub("", line).split()) for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("line", LINES)
def test_a_terminal_is_shown_what_a_pipe_gets(line: str, zk: Commands, queue: str) -> None:
    command = [*line.split(), queue]
    _, out, _ = zk.run(*command)
    assert "\x1b" not in out
    assert "\r" not in out
    zk.environ |= {"NO_COLOR": "1", "TERM": "xterm"}
    with Terminal([*ZKLOCK, *command], env=zk.environ) as terminal:
        terminal.finish(PATIENCE)
    assert "\x1b" not in terminal.shown
    if line in {"show", "ls", "top --once", "graph"}:
        assert told(terminal.shown) == told(out)
        assert "Jürgen" in out


def test_the_live_screen_needs_a_terminal(zk: Commands) -> None:
    pytest.importorskip("textual")
    process = zk.start("top", zk.path, stdin=subprocess.DEVNULL)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 64
    assert errors == "zklock top: the live screen needs a terminal; or pass --once\n"


@pytest.mark.parametrize("line", [*LINES, "watch"])
def test_another_encoding_gets_escapes(line: str, zk: Commands, queue: str) -> None:
    zk.environ |= {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    if line == "watch":
        process = zk.start("watch", queue)
        assert process.stdout is not None
        out = process.stdout.readline()
        process.terminate()
    else:
        code, out, errors = zk.run(*line.split(), queue)
        assert code in {0, 1, 2}, errors
        assert errors.isascii()
        assert "Traceback" not in errors
    assert out.isascii()
    if line != "doctor":
        assert "J\\xfcrgen" in out or "J\\u00fcrgen" in out
