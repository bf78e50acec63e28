"""A clean-up deletes the ancestors of a path while it is made: it is made again (kazoo 251)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import zklock
from tests.contract.support import SOON, run
from zklock.fencing import ZooKeeperGuard
from zklock.testing import FaultProxy, Frame, wait_for

CREATES = ("create", "create2")


def acquire(client: Any, path: str) -> None:
    with zklock.Lock(client, path, timeout=SOON):
        pass


def acquire_a_permit(client: Any, path: str) -> None:
    with zklock.Semaphore(client, path, limit=1, timeout=SOON):
        pass


def lead(client: Any, path: str) -> None:
    term = zklock.LeaderElection(client, path).acquire(timeout=SOON)
    assert term is not None
    with term:
        pass


def join(client: Any, path: str) -> None:
    with zklock.WorkerPool(client, path, shards=1, handler=lambda _: None):
        pass


def make_a_mark(client: Any, path: str) -> None:
    ZooKeeperGuard(client, path).create()


USES: tuple[Callable[[Any, str], None], ...] = (acquire, acquire_a_permit, lead, join, make_a_mark)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("use", USES)
def test_ancestors_that_go_while_the_path_is_made(
    zklock_hosts: str, other: Any, zklock_path: str, use: Callable[[Any, str], None], times: int
) -> None:
    top = f"{zklock_path}/home/of"

    def made(frame: Frame) -> bool:
        return frame.path == top and frame.error == 0

    with FaultProxy(zklock_hosts) as proxy, zklock.connect(proxy.hosts) as client:
        holds = [proxy.hold_before_reply(op=CREATES, where=made)]
        used = run(use, client, f"{top}/locks/report")
        for left in reversed(range(times)):
            wait_for(lambda: holds[-1].fired.is_set() or used.done(), SOON, "the ancestors")
            if left:
                holds.append(proxy.hold_before_reply(op=CREATES, where=made))
            other.delete(zklock_path, recursive=True)
            proxy.release()
        # A contender is made together with its path: whoever deletes both breaks the lock.
        with suppress(zklock.LockLost):
            used.result(SOON)
    other.delete(zklock_path, recursive=True)
