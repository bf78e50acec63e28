"""``zklock run`` where processes are stopped and go on: on terminals, in pipelines, by signals."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.contract.support import boottime, freeze, gone
from tests.contract.test_cli import PATIENCE, Commands, await_file
from tests.contract.test_cli_run import BEGIN, until

PROMPT = "now-type> "
CTRL_C, CTRL_Z = "\x03", "\x1a"
ZKLOCK = f"{sys.executable} -m zklock.cli"
STOPS = 20


@pytest.fixture
def zklock_client(zklock_connect: Callable[..., Any]) -> Any:
    """A client whose session outlives commands that are slow to start."""
    return zklock_connect(timeout=30.0)


class TerminalSession:
    """A command that leads a session on a terminal of its own."""

    def __init__(self, zk: Commands, command: Sequence[str]) -> None:
        self._terminal, theirs = pty.openpty()
        leader = ["setsid", "--ctty", *command]
        self.process = zk.start_raw(leader, {"PS1": PROMPT, "TERM": "dumb"}, theirs)
        os.close(theirs)
        self._seen = ""

    def close(self) -> None:
        os.close(self._terminal)

    def expect(self, text: str) -> None:
        """Wait until this is shown, behind what was expected before."""
        deadline = boottime() + PATIENCE
        while text not in self._seen:
            ready = select.select([self._terminal], [], [], deadline - boottime())[0]
            assert ready, (text, self._seen)
            self._seen += os.read(self._terminal, 4096).decode()
        self._seen = self._seen.partition(text)[2]

    def type_in(self, text: str) -> None:
        os.write(self._terminal, text.encode())


@pytest.fixture
def session(zk: Commands) -> Iterator[Callable[[Sequence[str]], TerminalSession]]:
    started: list[TerminalSession] = []

    def start(command: Sequence[str]) -> TerminalSession:
        started.append(TerminalSession(zk, command))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def shell(session: Callable[[Sequence[str]], TerminalSession]) -> TerminalSession:
    """An interactive shell, which controls jobs."""
    found = session(["bash", "--norc", "--noediting", "-i"])
    found.expect(PROMPT)
    return found


def test_it_stops_goes_on_and_is_interrupted_with_its_command(
    shell: TerminalSession, zklock_path: str, zklock_client: KazooClient
) -> None:
    program = 'echo be""gan; exec sed -u s/^/got-/'
    shell.type_in(f"{ZKLOCK} run {zklock_path} -- sh -c '{program}'\n")
    shell.expect("began")
    shell.type_in("one\n")
    shell.expect("got-one")
    shell.type_in(CTRL_Z)
    shell.expect(PROMPT)
    shell.type_in("fg\n")
    shell.expect("sed -u")  # the shell says what goes on
    shell.type_in("three\n")
    shell.expect("got-three")
    shell.type_in(CTRL_C)
    shell.expect(PROMPT)
    shell.type_in("echo status-$?\n")
    shell.expect("status-130")
    shell.type_in("exit\n")
    assert shell.process.wait(PATIENCE) == 0
    gone(zklock_client, zklock_path)


def test_the_rest_of_a_pipeline_may_use_the_terminal(
    shell: TerminalSession, zklock_path: str, tmp_path: Path
) -> None:
    command = BEGIN.format(tmp_path) + until(tmp_path / "end")
    reader = f"{until(tmp_path / 'began')}; read it < /dev/tty; echo got-$it; touch {tmp_path}/end"
    shell.type_in(f"{ZKLOCK} run {zklock_path} -- sh -c '{command}' | sh -c '{reader}'\n")
    await_file(tmp_path / "began")
    shell.type_in("one\n")
    shell.expect("got-one")
    shell.expect(PROMPT)
    shell.type_in("echo status-${PIPESTATUS[*]}\n")
    shell.expect("status-0 0")


def test_a_command_in_a_pipeline_may_use_the_terminal(
    shell: TerminalSession, zklock_path: str
) -> None:
    program = 'echo be""gan; read it < /dev/tty; echo got-$it'
    shell.type_in(f"{ZKLOCK} run {zklock_path} -- sh -c '{program}' | cat\n")
    shell.expect("began")
    shell.type_in("one\n")
    shell.expect("got-one")
    shell.expect(PROMPT)


def test_a_pipeline_is_interrupted(shell: TerminalSession, zklock_path: str) -> None:
    shell.type_in(f"{ZKLOCK} run {zklock_path} -- sh -c 'echo be\"\"gan; exec sleep 60' | cat\n")
    shell.expect("began")
    shell.type_in(CTRL_C)
    shell.expect(PROMPT)
    shell.type_in("echo status-${PIPESTATUS[0]}\n")
    shell.expect("status-130")


def test_it_does_not_stop_where_no_shell_could_let_it_go_on(
    session: Callable[[Sequence[str]], TerminalSession], zklock_path: str
) -> None:
    program = 'echo be""gan; exec sed -u s/^/got-/'
    alone = session([*ZKLOCK.split(), "run", zklock_path, "--", "sh", "-c", program])
    alone.expect("began")
    alone.type_in("one\n")
    alone.expect("got-one")
    alone.type_in(CTRL_Z)
    alone.expect("^Z")
    alone.type_in("two\n")
    alone.expect("got-two")
    alone.type_in(CTRL_C)
    assert alone.process.wait(PATIENCE) == 130


@pytest.mark.parametrize("command", ["run", "elect"])
def test_a_command_that_others_stop_and_let_go_on_keeps_its_lock(
    command: str, zk: Commands, zklock_path: str, tmp_path: Path
) -> None:
    line = BEGIN.format(tmp_path) + until(tmp_path / "end") + "; exit 3"
    process = zk.start(
        command, zklock_path, "-c", line, stdin=subprocess.DEVNULL, start_new_session=True
    )
    pid = int(await_file(tmp_path / "began"))
    for _ in range(STOPS):  # as a program that limits its processor time does
        freeze(pid)
        os.kill(pid, signal.SIGCONT)
    (tmp_path / "end").touch()
    assert process.wait(PATIENCE) == 3
