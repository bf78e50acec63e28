"""``zklock watch``, ``wait`` and ``gc`` as operators run them."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

import zklock
from tests.contract.support import SOON, granted, run
from tests.contract.test_cli import PATIENCE, Commands
from tests.modes import repeated
from zklock.testing.proxy import FaultProxy


class Watching:
    """A running ``zklock watch --json``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def next(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the command ended: {self.process.wait(SOON)}"
        told: dict[str, Any] = json.loads(line)
        assert told["version"] == 1
        return told

    def hears(self, *expected: str) -> None:
        """Insist on the next events, as ``event identity``."""
        for each in expected:
            told = self.next()
            assert f"{told['event']} {told['contender']['identity']}" == each


def test_a_queue_from_the_first_contender_to_the_last(
    zk: Commands, zklock_connect: Callable[..., Any]
) -> None:
    watching = Watching(zk.start("watch", "--json", zk.path))
    first = granted(zklock.Lock(zk.patient, zk.path, identity="a"))
    crashing = zklock_connect(timeout=30.0)
    told = watching.next()
    # Only the first line may be that of a first look: the command starts slowly.
    assert told["event"] in {"granted", "holds"}
    assert told["contender"]["token"] == str(first.token)
    assert (told["path"], told["holders"], told["waiting"]) == (zk.path, 1, 0)

    waiting = run(granted, zklock.Lock(zk.patient, zk.path, identity="b"))
    watching.hears("queued b")
    impatient = zklock.Lock(zk.patient, zk.path, identity="c")
    assert impatient.acquire(timeout=0.5) is None
    watching.hears("queued c", "withdrawn c")

    dying = run(zklock.Lock(crashing, zk.path, identity="d").acquire)
    watching.hears("queued d")
    crashing.stop()
    assert dying.exception(PATIENCE) is not None
    watching.hears("withdrawn d")

    first.release()
    watching.hears("released a", "granted b")
    waiting.result(PATIENCE).release()
    watching.hears("released b")
    watching.process.send_signal(signal.SIGINT)
    assert watching.process.wait(PATIENCE) == 130


def test_what_is_there_comes_first_and_is_readable(zk: Commands) -> None:
    with zklock.Lock(zk.patient, zk.path, identity="a\x1b[31m") as grant:
        watching = zk.start("watch", zk.path)
        assert watching.stdout is not None
        line = watching.stdout.readline()
    watching.terminate()
    assert watching.wait(PATIENCE) == 143
    session = f"{grant.session_id:#x}"
    assert line.split()[1:] == [
        "holds", "lock", str(grant.token), session, r"a\x1b[31m", "(0", "waiting)"
    ]  # fmt: skip


@pytest.mark.hazard("H55")
@pytest.mark.slow("commands are started, four at a time")
def test_a_signal_ends_it_in_the_middle_of_what_happens(zk: Commands) -> None:
    lock = zklock.Lock(zk.patient, zk.path)
    ended = threading.Event()

    def take_turns() -> None:
        while not ended.is_set():
            with lock:
                pass

    turns = run(take_turns)
    try:
        for _ in range(repeated(3, 1)):
            watching = [zk.start("watch", zk.path) for _ in range(4)]
            for process in watching:
                assert process.stdout is not None
                assert process.stdout.readline()
                reading = run(process.stdout.read)
                process.terminate()
                assert process.wait(PATIENCE) == 143
                reading.result(SOON)
    finally:
        ended.set()
        turns.result(SOON)


def test_nothing_is_missed_over_a_lost_connection(zk: Commands, zklock_proxy: FaultProxy) -> None:
    lock = zklock.Lock(zk.patient, zk.path, identity="a")
    grant = granted(lock)
    process = zk.start("watch", "--json", "--hosts", zklock_proxy.hosts, zk.path)
    watching = Watching(process)
    watching.hears("holds a")
    zklock_proxy.cut()
    assert watching.next()["event"] == "interrupted"
    grant.release()
    zklock_proxy.restore()
    assert watching.next()["event"] == "resumed"
    watching.hears("released a")
    other = granted(lock)
    watching.hears("granted a")
    other.release()


def test_a_lock_is_waited_for(zk: Commands) -> None:
    lock = zklock.Lock(zk.patient, zk.path, identity="host-7")
    grant = granted(lock)
    waiting = zk.start("wait", zk.path)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(2.0)
    assert len(lock.contenders()) == 1, "it does not queue"
    grant.release()
    assert waiting.wait(PATIENCE) == 0


def test_a_permit_is_waited_for(zk: Commands) -> None:
    with zklock.Semaphore(zk.patient, zk.path, limit=2):
        assert zk.run("wait", zk.path)[0] == 0


def test_tokens_stay_safe_when_a_node_is_removed(zk: Commands) -> None:
    lock = zklock.Lock(zk.patient, f"{zk.path}/a")
    with lock as grant:
        old = grant.token
    assert zk.run("gc", "--yes", zk.path) == (0, "1 node removed\n", "")
    with lock as grant:
        assert grant.token > old


@pytest.mark.parametrize(
    ("answer", "used", "status"), [("n", 0, 1), ("", 0, 1), ("y", 0, 0), ("y", 1, 1)]
)
def test_it_asks_before_it_removes(answer: str, used: int, status: int, zk: Commands) -> None:
    """The nodes are listed, then somebody may queue, then the answer comes."""
    free = f"{zk.path}/free"
    lock = zklock.Lock(zk.patient, free)
    with lock:
        pass
    terminal, slave = pty.openpty()
    asking = zk.start("gc", zk.path, stdin=slave)
    os.close(slave)
    assert asking.stdout is not None
    assert asking.stderr is not None
    assert asking.stdout.readline() == f"{free}\n"
    assert asking.stdout.readline().startswith("Tokens stay safe: ")
    with lock if used else nullcontext():
        os.write(terminal, f"{answer}\n".encode())
        out, errors = asking.stdout.read(), asking.stderr.read()
    os.close(terminal)
    told = "0 nodes removed\n" if used else "" if status else "1 node removed\n"
    assert out == f"Remove 1 node? [y/N] {told}"
    asking.wait(PATIENCE)
    kept = f"zklock gc: {free} is not removed: it is in use again\n"
    assert (asking.returncode, errors) == (status, kept if used else "")
    assert (zk.patient.exists(free) is None) == (status == 0)
