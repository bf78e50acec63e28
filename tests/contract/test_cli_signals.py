"""``zklock run`` and ``zklock elect`` pass signals on; none ends them and leaves the lock taken."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

import zklock
from tests.contract.support import gone, queued
from tests.contract.test_cli import PATIENCE, Commands, await_file, python, text_of
from zklock.testing import wait_for

FOR_COMMANDS = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH]
ENDING = [signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM, signal.SIGXCPU, signal.SIGRTMIN]


@pytest.fixture(params=["run", "elect"])
def command(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def heed() -> None:
    """Have a process heed all signals, however the tests were started."""
    for number in [*FOR_COMMANDS, *ENDING]:
        signal.signal(number, signal.SIG_DFL)


def started(zk: Commands, *arguments: str) -> subprocess.Popen[str]:
    # A session that lasts: its node is deleted, and does not go with it.
    return zk.start(*arguments[:1], "--session-timeout", "20", *arguments[1:], preexec_fn=heed)


def notes(folder: Path) -> Sequence[str]:
    """Return a command that notes signals, and its begin; SIGTERM ends it, with status 3."""
    return python(f"""
        import os, pathlib, signal, time
        folder = pathlib.Path({str(folder)!r})
        def note(number, frame):
            with open(folder / "heard", "a") as file:
                print(number, file=file)
        for number in signal.valid_signals() - {{signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT}}:
            signal.signal(number, note)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
        with open(folder / "began", "a") as file:
            print("once", file=file)
        while True:
            time.sleep(0.05)
        """)


@pytest.mark.parametrize("number", FOR_COMMANDS)
def test_one_that_waits_does_not_end_by_what_is_for_its_command(
    command: str, number: signal.Signals, zk: Commands
) -> None:
    with zklock.Lock(zk.patient, zk.path):
        process = started(zk, command, zk.path, "true")
        queued(zk.patient, zk.path, 2)
        process.send_signal(number)
    # It has run its command: a runner that is slow to hear the signal passes it on to that.
    assert process.wait(PATIENCE) in {0, 128 + number}


@pytest.mark.hazard("H54")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, *ENDING])
def test_any_other_signal_ends_one_that_waits_and_it_leaves_the_queue(
    command: str, number: int, zk: Commands
) -> None:
    with zklock.Lock(zk.patient, zk.path):
        process = started(zk, command, zk.path, "true")
        queued(zk.patient, zk.path, 2)
        process.send_signal(number)
        assert process.wait(PATIENCE) == 128 + number
        assert len(zk.patient.get_children(zk.path)) == 1


@pytest.mark.hazard("H54")
def test_signals_go_to_the_command_while_it_runs(command: str, zk: Commands) -> None:
    process = started(zk, command, zk.path, *notes(zk.folder))
    await_file(zk.folder / "began")
    heard: list[str] = []
    for number in [*FOR_COMMANDS, *ENDING]:
        process.send_signal(number)
        heard.append(str(int(number)))
        wait_for(lambda: text_of(zk.folder / "heard").split() == heard, PATIENCE)
    assert process.poll() is None
    process.terminate()
    assert process.wait(PATIENCE) == 3
    gone(zk.patient, zk.path)


def test_a_member_whose_command_goes_on_after_a_hangup_stands_again(zk: Commands) -> None:
    process = started(zk, "elect", "--grace", "6", zk.path, *notes(zk.folder))
    await_file(zk.folder / "began")
    process.send_signal(signal.SIGHUP)
    await_file(zk.folder / "heard")
    (node,) = queued(zk.patient, zk.path, 1)
    zk.patient.delete(f"{zk.path}/{node}")
    wait_for(lambda: text_of(zk.folder / "began").split() == ["once"] * 2, PATIENCE)
    process.terminate()
    assert process.wait(PATIENCE) == 3


@pytest.mark.parametrize("option", [[], ["--pass-hup"]])
def test_a_hangup_that_ends_the_command_ends_the_candidacy(option: list[str], zk: Commands) -> None:
    line = f"echo $$ >> {zk.folder}/began; exec sleep 60"
    process = started(zk, "elect", "--again", *option, zk.path, "-c", line)
    await_file(zk.folder / "began")
    process.send_signal(signal.SIGHUP)
    if option:
        wait_for(lambda: len(text_of(zk.folder / "began").split()) == 2, PATIENCE)
        process.terminate()
    assert process.wait(PATIENCE) == (143 if option else 129)


def test_a_hangup_may_be_for_the_command_alone(command: str, zk: Commands) -> None:
    with zklock.Lock(zk.patient, zk.path):
        process = started(zk, command, "--pass-hup", zk.path, "true")
        queued(zk.patient, zk.path, 2)
        process.send_signal(signal.SIGHUP)
    assert process.wait(PATIENCE) == 0


def test_a_hangup_after_which_the_command_goes_on_does_not_end_the_keeping(zk: Commands) -> None:
    line = f"trap 'echo yes > {zk.folder}/heard' HUP; echo yes > {zk.folder}/began; "
    line += f"while [ ! -e {zk.folder}/heard ]; do sleep 0.02; done; echo yes > {zk.folder}/over"
    process = started(zk, "run", "--at-least", "3600", zk.path, "-c", line)
    await_file(zk.folder / "began")
    process.send_signal(signal.SIGHUP)
    await_file(zk.folder / "over")
    # Were it not kept, the next would be granted once the command has ended.
    assert zk.run("run", "-w", "1", zk.path, "true")[0] == 75
    process.terminate()
    assert process.wait(PATIENCE) == 0
    gone(zk.patient, zk.path)
