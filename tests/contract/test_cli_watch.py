"""``zklock watch``, ``wait`` and ``gc`` as operators run them."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

import zklock
from tests.contract.support import SOON, queued, run
from tests.contract.test_cli import PATIENCE, Commands
from tests.modes import repeated
from zklock.testing import wait_for
from zklock.testing.proxy import FaultProxy


@pytest.fixture
def one(zklock_connect: Callable[..., Any]) -> KazooClient:
    """A client whose session outlives commands that are slow to start."""
    return zklock_connect(timeout=30.0)


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
    zk: Commands, one: KazooClient, zklock_connect: Callable[..., Any], zklock_path: str
) -> None:
    watching = Watching(zk.start("watch", "--json", zklock_path))
    lock = zklock.Lock(one, zklock_path, identity="a")
    crashing = zklock_connect(timeout=30.0)
    first = lock.acquire()
    assert first is not None
    told = watching.next()
    # Only the first line may be that of a first look: the command starts slowly.
    assert told["event"] in {"granted", "holds"}
    assert told["contender"]["token"] == str(first.token)
    assert (told["path"], told["holders"], told["waiting"]) == (zklock_path, 1, 0)

    waiting = run(zklock.Lock(one, zklock_path, identity="b").acquire)
    watching.hears("queued b")
    impatient = zklock.Lock(one, zklock_path, identity="c")
    assert impatient.acquire(timeout=0.5) is None
    watching.hears("queued c", "withdrawn c")

    dying = run(zklock.Lock(crashing, zklock_path, identity="d").acquire)
    watching.hears("queued d")
    crashing.stop()
    assert dying.exception(PATIENCE) is not None
    watching.hears("ended d")

    first.release()
    watching.hears("released a", "granted b")
    second = waiting.result(PATIENCE)
    assert second is not None
    second.release()
    watching.hears("released b")
    watching.process.send_signal(signal.SIGINT)
    assert watching.process.wait(PATIENCE) == 130


def test_the_end_of_a_run_is_not_told_as_a_crash(
    zk: Commands, one: KazooClient, zklock_path: str, tmp_path: Path
) -> None:
    line = f"while [ ! -e {tmp_path}/end ]; do sleep 0.02; done"
    running = zk.start("run", "--identity", "job", zklock_path, "-c", line)
    queued(one, zklock_path, 1)
    watching = Watching(zk.start("watch", "--json", zklock_path))
    watching.hears("holds job")
    (tmp_path / "end").touch()
    assert running.wait(PATIENCE) == 0
    # It has released, and closed its client a moment later.
    assert watching.next()["event"] in {"released", "ended"}


def test_what_is_there_comes_first_and_is_readable(
    zk: Commands, one: KazooClient, zklock_path: str
) -> None:
    with zklock.Lock(one, zklock_path, identity="a\x1b[31m") as grant:
        watching = zk.start("watch", zklock_path)
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
def test_a_signal_ends_it_in_the_middle_of_what_happens(
    zk: Commands, one: KazooClient, zklock_path: str
) -> None:
    lock = zklock.Lock(one, zklock_path)
    ended = threading.Event()

    def take_turns() -> None:
        while not ended.is_set():
            with lock:
                pass

    turns = run(take_turns)
    try:
        for _ in range(repeated(3, 1)):
            watching = [zk.start("watch", zklock_path) for _ in range(4)]
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


def test_nothing_is_missed_over_a_lost_connection(
    zk: Commands, one: KazooClient, zklock_path: str, zklock_proxy: FaultProxy
) -> None:
    lock = zklock.Lock(one, zklock_path, identity="a")
    grant = lock.acquire()
    assert grant is not None
    process = zk.start("watch", "--json", "--hosts", zklock_proxy.hosts, zklock_path)
    watching = Watching(process)
    watching.hears("holds a")
    zklock_proxy.cut()
    assert watching.next()["event"] == "interrupted"
    grant.release()
    zklock_proxy.restore()
    assert watching.next()["event"] == "resumed"
    watching.hears("released a")
    other = lock.acquire()
    assert other is not None
    watching.hears("granted a")
    other.release()


def test_a_lock_is_waited_for(zk: Commands, one: KazooClient, zklock_path: str) -> None:
    assert zk.run("wait", zklock_path) == (0, "", "")
    lock = zklock.Lock(one, zklock_path, identity="host-7")
    grant = lock.acquire()
    assert grant is not None
    assert zk.run("wait", "-w", "0.3", zklock_path) == (
        1,
        "",
        f"zklock wait: {zklock_path} is held by host-7\n",
    )
    waiting = zk.start("wait", zklock_path)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(2.0)
    assert len(lock.contenders()) == 1, "it does not queue"
    grant.release()
    assert waiting.wait(PATIENCE) == 0


def test_a_permit_is_waited_for(zk: Commands, one: KazooClient, zklock_path: str) -> None:
    semaphore = zklock.Semaphore(one, zklock_path, limit=2)
    first, second = semaphore.acquire(), semaphore.acquire()
    assert first is not None
    assert second is not None
    assert zk.run("wait", "-w", "0.3", zklock_path)[0] == 1
    first.release()
    assert zk.run("wait", zklock_path)[0] == 0
    second.release()


def test_what_nobody_uses_is_removed(zk: Commands, one: KazooClient, zklock_path: str) -> None:
    deep, held = f"{zklock_path}/deep/er", f"{zklock_path}/held"
    one.ensure_path(f"{zklock_path}/never-used")
    with zklock.Lock(one, deep) as grant:
        old = grant.token
    semaphore = zklock.Semaphore(one, f"{zklock_path}/permits", limit=2)
    with semaphore:
        pass
    with zklock.Lock(one, held):
        assert zk.run("gc", "--dry-run", zklock_path) == (
            0,
            f"{deep}\n{zklock_path}/deep\n2 nodes would be removed\n",
            "",
        )
        assert zk.run("gc", "--yes", zklock_path) == (0, "2 nodes removed\n", "")
        assert sorted(one.get_children(zklock_path)) == ["held", "never-used", "permits"]
    with zklock.Lock(one, deep) as grant:
        assert grant.token > old, "tokens stay safe"
    told = json.loads(zk.run("gc", "--yes", "--json", zklock_path)[1])
    assert told == {
        "version": 1,
        "path": zklock_path,
        "found": [deep, f"{zklock_path}/deep", held],
        "removed": [deep, f"{zklock_path}/deep", held],
        "kept": [],
    }
    assert semaphore.contenders() == []
    assert one.get(f"{zklock_path}/permits")[0] == b"2"
    assert zk.run("gc", "--yes", zklock_path)[1] == (f"nothing to remove below {zklock_path}\n")
    assert zk.run("gc", "--yes", f"{zklock_path}/no")[0] == 66


@pytest.mark.parametrize(("answer", "status"), [("n", 1), ("", 1), ("y", 0)])
def test_it_asks_first(
    answer: str, status: int, zk: Commands, one: KazooClient, zklock_path: str
) -> None:
    free = f"{zklock_path}/free"
    with zklock.Lock(one, free):
        pass
    terminal, slave = pty.openpty()
    asking = zk.start("gc", zklock_path, stdin=slave)
    os.close(slave)
    os.write(terminal, f"{answer}\n".encode())
    out, errors = asking.communicate(timeout=PATIENCE)
    os.close(terminal)
    assert (asking.returncode, errors) == (status, "")
    lines = out.splitlines()
    assert lines[0] == free
    assert lines[1].startswith("Tokens stay safe: ")
    assert lines[2].startswith("Remove 1 node? [y/N] ")
    assert (one.exists(free) is None) == (status == 0)


def test_without_a_terminal_nobody_is_asked(
    zk: Commands, one: KazooClient, zklock_path: str
) -> None:
    with zklock.Lock(one, f"{zklock_path}/free"):
        pass
    code, _, errors = zk.run("gc", zklock_path)
    assert code == 64
    assert "there is nobody to ask: pass --yes or --dry-run" in errors
    assert one.exists(f"{zklock_path}/free") is not None


def test_who_comes_meanwhile_keeps_the_node(
    zk: Commands, one: KazooClient, zklock_path: str
) -> None:
    """The nodes are listed, then somebody queues, then the answer is yes."""
    free = f"{zklock_path}/free"
    with zklock.Lock(one, free):
        pass
    terminal, slave = pty.openpty()
    asking = zk.start("gc", zklock_path, stdin=slave)
    os.close(slave)
    assert asking.stdout is not None
    assert asking.stdout.readline() == f"{free}\n"
    with zklock.Lock(one, free):
        queued(one, free, 1)
        os.write(terminal, b"y\n")
        out, errors = asking.communicate(timeout=PATIENCE)
        assert len(one.get_children(free)) == 1
    os.close(terminal)
    assert (asking.returncode, errors) == (
        1,
        f"zklock gc: {free} is not removed: it is in use again\n",
    )
    assert "0 nodes removed" in out
    wait_for(lambda: not one.get_children(free), SOON)
