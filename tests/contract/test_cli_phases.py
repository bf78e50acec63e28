"""``zklock run`` and ``zklock elect`` end in every phase: on signals, and on errors of any kind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import zklock
from tests.contract.scenes import PRIVATE
from tests.contract.support import gone, queued
from tests.contract.test_cli import PATIENCE, ZKLOCK, Commands, await_file, python
from tests.contract.test_demo import parent_of
from tests.terminal import Terminal
from zklock.testing import wait_for
from zklock.testing.proxy import FaultProxy

PROMPT = 8.0
"""Seconds within which a command that was told to end has ended, whatever ZooKeeper does. Its
session timeout is longer by far."""

COMMANDS = [
    "run",
    pytest.param(
        "elect",
        marks=pytest.mark.thorough(
            "the ends of `zklock elect` in each phase: one supervisor ends it and `zklock run`"
        ),
    ),
]
ERRORS = pytest.mark.thorough(
    "errors of an acquire, of each sort: one of them and an interrupt end a command"
)
SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture
def mute() -> Iterator[str]:
    """The address of a server that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def doctored(zk: Commands, prelude: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a command after something was done to its process."""
    main = "\nimport sys\nfrom zklock.cli import main\nsys.exit(main())"
    return zk.start_program(textwrap.dedent(prelude) + main, *arguments)


# Errors


@pytest.mark.hazard("H54")
@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        pytest.param("RuntimeError('something else')", 125, "something else", marks=ERRORS),
        ('RuntimeError("can\'t start new thread")', 125, "can't start new thread"),
        pytest.param("MemoryError()", 125, "MemoryError", marks=ERRORS),
        pytest.param(
            "OSError(24, 'Too many open files')", 125, "Too many open files", marks=ERRORS
        ),
        ("KeyboardInterrupt()", 130, ""),
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_whatever_ends_the_acquire_ends_the_command(
    command: str, error: str, status: int, sentence: str, zk: Commands
) -> None:
    prelude = f"""
        import zklock
        def refuse(*_, **__):
            raise {error}
        zklock.Lock.acquire = zklock.LeaderElection.acquire = refuse
    """
    process = doctored(zk, prelude, command, zk.path, "true")
    out, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (status, "")
    assert sentence in errors
    assert "Traceback" not in errors


@pytest.mark.hazard("H54")
@pytest.mark.parametrize("thread", ["zklock-run", "zklock-elect", "zklock-run-child"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_thread_that_cannot_be_started_ends_the_command(
    command: str, thread: str, zk: Commands
) -> None:
    prelude = f"""
        import threading
        start = threading.Thread.start
        def refuse(self):
            if self.name == {thread!r}:
                raise RuntimeError("can't start new thread")
            start(self)
        threading.Thread.start = refuse
    """
    program = ["sh", "-c", f"touch {zk.folder}/ran"]
    process = doctored(zk, prelude, command, zk.path, "--", *program)
    _, errors = process.communicate(timeout=PATIENCE)
    other = {"run": "elect", "elect": "zklock-run"}[command]
    if other in thread and thread != "zklock-run-child":
        assert (process.returncode, errors) == (0, "")  # none that this command needs
        return
    assert process.returncode == 125
    assert "can't start new thread" in errors
    assert not (zk.folder / "ran").exists()
    gone(zk.patient, zk.path)


@pytest.mark.hazard("H54")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_was_begun_does_not_outlive_an_error(command: str, zk: Commands) -> None:
    prelude = f"""
        import pathlib, time, zklock
        def refuse(*_):
            while not pathlib.Path({str(zk.folder / "pid")!r}).exists():
                time.sleep(0.01)
            raise RuntimeError("no more callbacks")
        zklock.Grant.add_lost_callback = refuse
    """
    program = f"echo $$ > {zk.folder}/new; mv {zk.folder}/new {zk.folder}/pid; exec sleep 60"
    process = doctored(zk, prelude, command, zk.path, "--", "sh", "-c", program)
    assert process.wait(PATIENCE) == 125
    assert parent_of(int((zk.folder / "pid").read_text())) is None


@pytest.mark.parametrize("command", COMMANDS)
def test_children_are_waited_for_where_the_signal_of_their_end_does_not_come(
    command: str, zk: Commands
) -> None:
    for before in (
        lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD]),
    ):
        process = zk.start(command, zk.path, "--", "sh", "-c", "exit 7", preexec_fn=before)
        assert process.wait(PATIENCE) == 7


# Signals


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_while_connecting(
    command: str, number: signal.Signals, zk: Commands, mute: str
) -> None:
    process = zk.start("-v", command, "--hosts", mute, "--connect-timeout", "60", "/x", "true")
    assert process.stderr is not None
    assert any("Connecting" in line for line in process.stderr)
    process.send_signal(number)
    process.communicate(timeout=PROMPT)
    assert process.returncode == 128 + number


@pytest.mark.hazard("H54")
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_while_waiting_and_cut_off(
    command: str, number: signal.Signals, zk: Commands, zklock_proxy: FaultProxy
) -> None:
    with zklock.Lock(zk.patient, zk.path):
        hosts = ["--hosts", zklock_proxy.hosts, "--session-timeout", "20"]
        process = zk.start(command, *hosts, zk.path, "true")
        queued(zk.patient, zk.path, 2)
        zklock_proxy.blackhole()
        process.send_signal(number)
        assert process.wait(PROMPT) == 128 + number
        zklock_proxy.restore()


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_while_the_command_runs_and_it_is_cut_off(
    command: str, number: signal.Signals, zk: Commands, zklock_proxy: FaultProxy
) -> None:
    program = f"""
        import os, pathlib, signal, time
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: os._exit(9))
        pathlib.Path({str(zk.folder / "began")!r}).write_text("yes")
        while True:
            time.sleep(0.05)
    """
    hosts = ["--hosts", zklock_proxy.hosts, "--session-timeout", "20"]
    process = zk.start(command, *hosts, zk.path, *python(program))
    await_file(zk.folder / "began")
    zklock_proxy.blackhole()
    process.send_signal(number)
    assert process.wait(PROMPT) == 9
    zklock_proxy.restore()


@pytest.mark.hazard("H54")
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_while_releasing(
    command: str, number: signal.Signals, zk: Commands, zklock_proxy: FaultProxy
) -> None:
    program = (
        f"echo $$ > {zk.folder}/pid; while [ ! -e {zk.folder}/go ]; do sleep 0.02; done; exit 5"
    )
    hosts = ["--hosts", zklock_proxy.hosts, "--session-timeout", "20"]
    process = zk.start(command, *hosts, zk.path, "--", "sh", "-c", program)
    wait_for(lambda: (zk.folder / "pid").exists() and (zk.folder / "pid").read_text(), PATIENCE)
    pid = int((zk.folder / "pid").read_text())
    zklock_proxy.blackhole()
    (zk.folder / "go").touch()
    wait_for(lambda: parent_of(pid) is None, PATIENCE)
    process.send_signal(number)
    assert process.wait(PROMPT) == 5
    zklock_proxy.restore()


# What a waiting command says


def test_a_waiting_command_says_what_for(zk: Commands, zklock_connect: Callable[..., Any]) -> None:
    """The holder of a lock, of a permit, and one that ACLs hide; behind another, and alone."""
    lock, permit, hidden = (f"{zk.path}/{it}" for it in ("lock", "permit", "hidden"))
    owner = zklock_connect(auth_data=[("digest", "owner:secret")])
    owner.create(hidden, makepath=True)
    owner.default_acl = PRIVATE
    mine = zklock.Lock(zk.patient, lock, identity="host-7")
    semaphore = zklock.Semaphore(zk.patient, permit, limit=1, identity="host-7")
    with mine as grant, semaphore as other, zklock.Lock(owner, hidden) as secret:
        first = zk.start("run", lock, "true")
        queued(zk.patient, lock, 2)
        for path, options, holder, place in (
            (lock, [], f"host-7 ({grant.token}, came AGE)", "number 2 of 2"),
            (permit, ["--limit", "1"], f"host-7 ({other.token}, came AGE)", "number 1 of 1"),
            (hidden, [], f"(unnamed) ({secret.token})", ""),
        ):
            code, _, errors = zk.run("run", "-v", "-w", "4", *options, path, "true")
            held = re.escape(f"{path} is held by {holder}; {place}").replace("AGE", r"\d+s ago")
            assert code == 75
            for what in ("waits", "gives up"):
                assert re.search(rf"zklock run: {what}: {held}", errors), errors
    assert first.wait(PATIENCE) == 0
    assert first.communicate() == ("", "")


def test_on_a_terminal_it_says_what_it_waits_for(zk: Commands) -> None:
    with Terminal([*ZKLOCK, "run", zk.path, "true"], env=zk.environ) as terminal:
        with zklock.Lock(zk.patient, zk.path, identity="host-7"):
            terminal.expect("number 1 of 1 waiting", PATIENCE)
        assert terminal.finish(PATIENCE) == 0
    assert f"{zk.path} is held by host-7" in terminal.shown


def test_it_says_that_nobody_answers(zk: Commands, mute: str) -> None:
    hosts = ["--hosts", mute, "--connect-timeout", "4"]
    process = zk.start("run", "-v", *hosts, "/x", "true")
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 69
    assert errors.count(f"zklock run: no ZooKeeper server of {mute} has answered yet\n") == 1


def test_once_somebody_answers_it_says_what_it_waits_for(
    zk: Commands, zklock_proxy: FaultProxy
) -> None:
    zklock_proxy.cut()
    options = ["-v", "--connect-timeout", "60", "--hosts", zklock_proxy.hosts]
    with zklock.Lock(zk.patient, zk.path, identity="host-7"):
        process = zk.start("run", *options, zk.path, "true")
        assert process.stderr is not None
        assert any("has answered yet" in line for line in process.stderr)
        zklock_proxy.restore()
        assert any("zklock run: waits: " in line for line in process.stderr)
    assert process.wait(PATIENCE) == 0


# Bytes


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_whose_name_is_no_text(command: str, zk: Commands) -> None:
    file = os.fsencode(zk.folder) + b"/\xff\xfe"
    Path(os.fsdecode(file)).write_text('#!/bin/sh\nprintf %s "$1"\n')
    Path(os.fsdecode(file)).chmod(0o755)
    done = subprocess.run(
        [*ZKLOCK, command, zk.path, "--", file, b"\xe4\xf6"],
        env=zk.environ,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\xe4\xf6", b"")
