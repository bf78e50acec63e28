"""The supervisor's messages, and how it finds and ends processes."""

from __future__ import annotations

import ast
import errno
import math
import os
import pty
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from zklock._ground import clock
from zklock.cli import supervisor

SOURCE = Path(supervisor.__file__)
SESSION = ["setsid", "--ctty", "sh", "-c", '"$@"; exec sleep 60', "sh"]
"""Runs a program in a session with a terminal, which outlives the program."""


def test_it_needs_nothing_but_python() -> None:
    """It runs without site-packages."""
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(SOURCE.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= sys.stdlib_module_names


def test_its_clock_is_that_of_leases() -> None:
    before = clock.clock()
    now = supervisor.clock()
    assert before <= now <= clock.clock()


def test_messages_arrive_whole_and_in_order() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        wire = supervisor.Wire(theirs.fileno())
        assert wire.receive() == []
        supervisor.Wire(ours.fileno()).send(supervisor.SIGNAL, 15)
        supervisor.Wire(ours.fileno()).send(supervisor.RUN, [b"\xff"], {b"a": b"\xe4"}, 1.5, 2.5)
        assert wire.receive() == [("signal", 15), ("run", [b"\xff"], {b"a": b"\xe4"}, 1.5, 2.5)]
        assert wire.receive() == []
        ours.close()
        assert wire.receive() is None


@pytest.mark.parametrize("at", [1, 3, 4, 5, 9])
def test_a_message_may_come_in_parts(at: int) -> None:
    source, sink = socket.socketpair()
    with source, sink:
        supervisor.Wire(source.fileno()).send(supervisor.END, 1.25)
        whole = sink.recv(1000)
        source.sendall(whole[:at])
        wire = supervisor.Wire(sink.fileno())
        assert wire.receive() == []
        source.sendall(whole[at:] + whole)
        assert wire.receive() == [("end", 1.25)] * 2


@pytest.fixture
def others() -> set[int]:
    """The children that this process has already."""
    return supervisor.children_of(os.getpid())


STAYS = "import time; print(flush=True); time.sleep(60)"


def test_children_are_found_and_ended_but_those_to_spare(others: set[int]) -> None:
    spared, ended = (
        subprocess.Popen([sys.executable, "-I", "-S", "-c", STAYS], stdout=subprocess.PIPE)
        for _ in range(2)
    )
    try:
        assert supervisor.children_of(os.getpid()) - others == {spared.pid, ended.pid}
        reaped: dict[int, int] = {}
        supervisor.end_all(reaped.__setitem__, spare={*others, spared.pid})
        assert reaped == {ended.pid: signal.SIGKILL}
        assert spared.poll() is None
    finally:
        for process in (spared, ended):
            process.kill()
            process.communicate()


def test_the_search_does_not_need_the_kernel_to_list_children(
    others: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = supervisor._read
    monkeypatch.setattr(
        supervisor, "_read", lambda file: None if file.endswith("children") else read(file)
    )
    with subprocess.Popen([sys.executable, "-I", "-c", STAYS], stdout=subprocess.PIPE) as child:
        try:
            assert supervisor.children_of(os.getpid()) - others == {child.pid}
        finally:
            child.kill()


@pytest.mark.parametrize(
    ("module", "lacks", "number"),
    [
        (os, "nothing", 0),
        (os, "pidfd_open", errno.ENOSYS),
        (os, "pidfd_open", errno.EPERM),
        (os, "pidfd_open", None),
        (signal, "pidfd_send_signal", errno.EPERM),
        (signal, "pidfd_send_signal", None),
    ],
)
def test_a_process_that_is_no_descendant_is_not_signalled(
    monkeypatch: pytest.MonkeyPatch, module: Any, lacks: str, number: int | None
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, "not here")

    if number is None:  # Python was built where the system lacks it
        monkeypatch.delattr(module, lacks)
    else:
        monkeypatch.setattr(module, lacks, fail, raising=lacks != "nothing")
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            supervisor._signal(child.pid, signal.SIGKILL, family={1})
            assert child.poll() is None
            supervisor._signal(child.pid, signal.SIGKILL, family={os.getpid()})
            assert child.wait(20) == -signal.SIGKILL
        finally:
            child.kill()


CHASED = f"""
import os, sys
sys.path.insert(0, {str(SOURCE.parent)!r})
import supervisor
supervisor.become_subreaper()
def chain():
    # Each process ends as soon as it has another, in a session of its own.
    while True:
        os.setsid()
        if os.fork():
            os._exit(0)
for _ in range(3):
    if not os.fork():
        chain()
count = []
supervisor.end_all(lambda *_: count.append(1))
print(len(count) >= 3, supervisor.children_of(os.getpid()))
"""


def test_those_that_fork_and_leave_the_session_are_ended() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", CHASED],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("True set()\n", "")


def test_it_ends_with_a_runner_that_ends_before_the_command_begins() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SOURCE), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
        )
    try:
        ours.close()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def test_a_process_that_cannot_be_started_is_told_of() -> None:
    starts = (
        "import errno, os, runpy, sys\n"
        "def fork(): raise OSError(errno.EAGAIN, 'no process is left')\n"
        "os.fork = fork\n"
        "runpy.run_path(sys.argv.pop(1), run_name='__main__')\n"
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", starts, str(SOURCE), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
        )
        wire = supervisor.Wire(ours.fileno())
        try:
            wire.send(supervisor.RUN, [b"true"], {}, math.inf, math.inf, None, False)
            assert process.communicate(timeout=20)[1] == b""
            assert wire.receive() == [(supervisor.FAILED, errno.EAGAIN)]
        finally:
            process.kill()
            process.wait()


def test_a_command_has_the_terminal_before_it_begins_and_a_missing_one_gives_it_back() -> None:
    # The system's record of this process: its group, and the terminal's foreground group.
    look = b"read _ _ _ _ own _ _ front _ < /proc/self/stat; exit $((own != front))"
    for argv, lent, told in (
        ([b"sh", b"-c", look], True, (supervisor.EXITED, 0)),
        ([b"sh", b"-c", look], False, (supervisor.EXITED, 1)),
        ([b"./missing"], True, (supervisor.FAILED, errno.ENOENT)),
    ):
        terminal, theirs = pty.openpty()
        ours, wired = socket.socketpair()
        with ours, wired, os.fdopen(terminal, "rb"), os.fdopen(theirs, "rb") as stdin:
            process = subprocess.Popen(
                [*SESSION, sys.executable, "-I", "-S", str(SOURCE), str(wired.fileno())],
                pass_fds=[wired.fileno()],
                stdin=stdin,
            )
            wire = supervisor.Wire(ours.fileno())
            environ = {b"PATH": os.environb[b"PATH"]}
            try:
                lender = process.pid if lent else None
                wire.send(supervisor.RUN, argv, environ, math.inf, math.inf, lender, False)
                received: list[supervisor.Message] = []
                while told not in received:
                    messages = wire.receive()
                    assert messages is not None, received
                    received += messages
                if told[0] == supervisor.FAILED:
                    assert os.tcgetpgrp(terminal) == process.pid
            finally:
                process.kill()
                process.wait()
