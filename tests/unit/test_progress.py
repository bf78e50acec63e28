"""What is seen of a long installation."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.terminal import COLUMNS, Terminal

PROGRESS = str(Path(__file__).parents[2] / ".ci" / "progress")
PATIENCE = 60.0
PIP = """\
Obtaining file:///src/zklock
  Installing build dependencies: started
  Installing build dependencies: finished with status 'done'
Collecting kazoo>=2.10 (from zklock-recipes==0.1.0)
  Downloading kazoo-2.10.0-py2.py3-none-any.whl.metadata (2.8 kB)
Requirement already satisfied: six in ./.venv/lib/python3.11/site-packages (1.16.0)
Collecting docker>=7 (from zklock-recipes==0.1.0)
Collecting {long}~=1.0 (from docker>=7->zklock-recipes==0.1.0)
Installing collected packages: {long}, kazoo, docker, zklock-recipes
Successfully installed docker-7.1.0 kazoo-2.10.0 zklock-recipes-0.1.0
""".format(long="a-name-that-is-too-long-" * 4)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    file = tmp_path / "output"
    file.write_text(PIP)
    return file


def test_a_terminal_shows_how_far_it_is_in_one_line_that_fits(output: Path) -> None:
    with output.open() as said, Terminal([PROGRESS, "venv: "], stdin=said) as terminal:
        assert terminal.finish(PATIENCE) == 0, terminal.shown
    assert all(len(line) < COLUMNS for line in terminal.lines)
    steps = [line.partition(" s, ")[2] for line in terminal.lines if line]
    assert steps[:2] == ["package 1: kazoo", "package 2: docker"]
    assert steps[2].startswith("package 3: a-name-that-is-too-long-a-name")
    assert steps[3:] == ["installing 4 packages", "done"]
    assert terminal.shown.count("\n") == 1


def test_a_log_gets_no_more_than_a_line_every_few_seconds(output: Path) -> None:
    with output.open() as said:
        done = subprocess.run([PROGRESS], stdin=said, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    told = done.stderr.splitlines()
    assert told[-1].endswith(" s, done")
    assert "\x1b" not in done.stderr


def test_it_shows_that_time_passes_while_nothing_is_said() -> None:
    with Terminal([PROGRESS], stdin=subprocess.PIPE) as terminal:
        assert terminal.process.stdin is not None
        terminal.process.stdin.write(b"Collecting kazoo\n")
        terminal.process.stdin.flush()
        terminal.expect(r"[1-9]\d* s, package 1: kazoo", PATIENCE)
        terminal.process.stdin.close()
        assert terminal.finish(PATIENCE) == 0, terminal.shown
    assert terminal.lines[-2].endswith(" s, done")
