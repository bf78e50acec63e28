"""``zklock run`` where processes are stopped and go on: on terminals, in pipelines, by signals."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import signal
import subprocess
import termios
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.contract.support import freeze, gone
from tests.contract.test_cli import PATIENCE, ZKLOCK, Commands, await_file
from tests.contract.test_cli_run import BEGIN, until
from tests.terminal import Terminal

PROMPT = "now-type> "
CTRL_C, CTRL_Z = "\x03", "\x1a"
RUN = f"{shlex.join(ZKLOCK)} run"
SED = 'echo be""gan; exec sed -u s/^/got-/'
STOPS = 20


class Session(Terminal):
    """A command that leads a session on a terminal of its own."""

    def __init__(self, zk: Commands, command: Sequence[str]) -> None:
        environ = {**zk.environ, "PS1": PROMPT, "TERM": "dumb"}
        super().__init__(
            command, env=environ, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        )
        self._at = 0

    def talk(self, *steps: tuple[str, str]) -> None:
        """Type each text, and wait for what has to be shown behind what was waited for before."""
        for typed, shown in steps:
            self.type_in(typed)
            self._at = self.expect(re.escape(shown), PATIENCE, self._at)


@pytest.fixture
def shell(zk: Commands) -> Iterator[Session]:
    """An interactive shell, which controls jobs."""
    with Session(zk, ["bash", "--norc", "--noediting", "-i"]) as found:
        found.talk(("", PROMPT))
        yield found


def test_it_stops_goes_on_and_is_interrupted_with_its_command(
    shell: Session, zklock_path: str, patient: KazooClient
) -> None:
    shell.talk(
        (f"{RUN} {zklock_path} -- sh -c '{SED}'\n", "began"),
        ("one\n", "got-one"),
        (CTRL_Z, PROMPT),
        ("fg\n", "sed -u"),  # the shell says what goes on
        ("three\n", "got-three"),
        (CTRL_C, PROMPT),
        ("echo status-$?\n", "status-130"),
    )
    shell.type_in("exit\n")
    assert shell.process.wait(PATIENCE) == 0
    gone(patient, zklock_path)


def test_the_rest_of_a_pipeline_may_use_the_terminal(
    shell: Session, zklock_path: str, tmp_path: Path
) -> None:
    command = BEGIN.format(tmp_path) + until(tmp_path / "end")
    reader = f"{until(tmp_path / 'began')}; read it < /dev/tty; echo got-$it; touch {tmp_path}/end"
    shell.type_in(f"{RUN} {zklock_path} -- sh -c '{command}' | sh -c '{reader}'\n")
    await_file(tmp_path / "began")
    shell.talk(("one\n", "got-one"), ("", PROMPT), ("echo at-${PIPESTATUS[*]}\n", "at-0 0"))


def test_a_command_in_a_pipeline_may_use_the_terminal(shell: Session, zklock_path: str) -> None:
    program = 'echo be""gan; read it < /dev/tty; echo got-$it'
    shell.talk(
        (f"{RUN} {zklock_path} -- sh -c '{program}' | cat\n", "began"),
        ("one\n", "got-one"),
        ("", PROMPT),
    )


def test_a_pipeline_is_interrupted(shell: Session, zklock_path: str) -> None:
    shell.talk(
        (f"{RUN} {zklock_path} -- sh -c 'echo be\"\"gan; exec sleep 60' | cat\n", "began"),
        (CTRL_C, PROMPT),
        ("echo status-${PIPESTATUS[0]}\n", "status-130"),
    )


def test_it_does_not_stop_where_no_shell_could_let_it_go_on(zk: Commands, zklock_path: str) -> None:
    with Session(zk, [*ZKLOCK, "run", zklock_path, "--", "sh", "-c", SED]) as alone:
        alone.talk(("", "began"), ("one\n", "got-one"), (CTRL_Z, "^Z"), ("two\n", "got-two"))
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
