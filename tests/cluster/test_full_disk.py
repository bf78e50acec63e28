"""A ZooKeeper server whose disk is full: what a holder and a waiter see."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

import zklock
from tests.backends import backend_or_skip
from tests.contract.support import SOON, Losses, granted, queued, run
from zklock import LossReason
from zklock.testing import Ensemble, StartFailed, ZooKeeperServer, wait_for

Mount = Callable[[Path], Path]

SESSION = 8.0
FORCED = {"zookeeper.forceSync": "yes"}


@pytest.fixture
def small() -> Iterator[Mount]:
    """Return what mounts a small file system on a folder."""
    with ExitStack() as stack:

        def mount(folder: Path) -> Path:
            folder.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
            if shutil.which("mount") is None or subprocess.run(command, check=False).returncode:
                pytest.skip("may not mount a file system")
            stack.callback(subprocess.run, ["umount", str(folder)], check=True)
            return folder

        yield mount


def fill(folder: Path) -> Path:
    """Write a file until the disk is full."""
    path = folder / "filling"
    full = pytest.raises(OSError, match=re.escape(os.strerror(errno.ENOSPC)))
    with path.open("wb", buffering=0) as file, full:
        while True:
            file.write(b"x" * 4096)
    return path


def writes_until(over: Callable[[], bool], client: Any) -> int:
    """Write numbers to a node until then; return the last number that was confirmed."""
    confirmed = 0

    def write() -> bool:
        nonlocal confirmed
        with suppress(KazooException, KazooTimeoutError):
            client.set_async("/number", b"%d" % (confirmed + 1)).get(timeout=0.5)
            confirmed += 1
        return over()

    wait_for(write, SOON, "the server to notice")
    return confirmed


def test_a_holder_of_the_only_server_is_told_in_time(
    tmp_path: Path, small: Mount, zklock_connect: Callable[..., Any]
) -> None:
    disk = small(tmp_path / "disk")
    with ZooKeeperServer(
        backend=backend_or_skip("java"), data_dir=disk / "data", system_properties=FORCED
    ) as server:
        holder, waiter, writer = (zklock_connect(server.hosts, timeout=SESSION) for _ in range(3))
        writer.create("/number", b"0")
        losses = Losses()
        grant = granted(zklock.Lock(holder, "/lock", on_lost=losses))
        waiting = run(granted, zklock.Lock(waiter, "/lock"))
        queued(writer, "/lock", 2)

        filling = fill(disk)
        confirmed = writes_until(lambda: not server.running, writer)
        assert losses.one().reason is LossReason.LEASE_LAPSED
        assert not waiting.done()
        with pytest.raises(StartFailed):
            server.start()
        assert not waiting.done()

        filling.unlink()
        server.start()
        assert waiting.result(SOON).token > grant.token
        wait_for(lambda: writer.connected, SOON, "the writer to be back")
        assert int(writer.get("/number")[0]) >= confirmed > 0


@pytest.mark.parametrize("full", ["leader", "follower"])
def test_one_of_three_costs_no_lock(
    full: str, tmp_path: Path, small: Mount, zklock_connect: Callable[..., Any]
) -> None:
    disks = [small(tmp_path / str(number)) for number in (1, 2, 3)]
    with Ensemble(
        3, backend=backend_or_skip("java"), data_dir=tmp_path, system_properties=FORCED
    ) as ensemble:
        victim = ensemble.leader() if full == "leader" else ensemble.followers()[0]
        others = [server for server in ensemble.servers if server is not victim]
        hosts = ",".join(server.hosts for server in (victim, *others))
        holder, waiter = (
            zklock_connect(hosts, timeout=SESSION, randomize_hosts=False) for _ in range(2)
        )
        writer = zklock_connect(hosts, timeout=SESSION)
        writer.create("/number", b"0")
        grant = granted(zklock.Lock(holder, "/lock"))
        waiting = run(granted, zklock.Lock(waiter, "/lock"))
        queued(writer, "/lock", 2)

        filling = fill(disks[ensemble.servers.index(victim)])
        writes_until(lambda: victim.mode() is None, writer)
        wait_for(lambda: holder.connected, SOON, "the holder on another server")
        grant.verify()
        assert grant.held
        grant.release()
        assert waiting.result(SOON).token > grant.token

        filling.unlink()
        victim.start()
        ensemble.wait_until_serving()
