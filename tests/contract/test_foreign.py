"""Contenders of other clients on the same path (H20): they wait for us, and we for them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.recipe.lock import Lock as KazooLock, ReadLock as KazooReadLock

import zklock
from tests.contract.support import SOON, children, granted, kazoo_client, queued, run

pytestmark = pytest.mark.hazard("H20")

FOREIGN: dict[str, Callable[[], str]] = {
    "Curator InterProcessMutex": lambda: f"_c_{uuid.uuid4()}-lock-",
    "Curator LeaderLatch": lambda: f"_c_{uuid.uuid4()}-latch-",
    "Curator semaphore lease": lambda: f"_c_{uuid.uuid4()}-lease-",
    "Curator read": lambda: f"_c_{uuid.uuid4()}-__READ__",
    "Curator write": lambda: f"_c_{uuid.uuid4()}-__WRIT__",
    "go-zookeeper": lambda: f"_c_{uuid.uuid4().hex}-lock-",
    "ZooKeeper recipes": lambda: "x-72057752732237824-",
    "ZooKeeper recipes, negative session": lambda: "x--72057752732237824-",
    "kazoo": lambda: f"{uuid.uuid4().hex}__lock__",
    "kazoo read": lambda: f"{uuid.uuid4().hex}__rlock__",
}
STRANGE = [
    "lock",
    "config",
    "0000000000",
    "_c_-lock-",
    "_c_00000000-0000-0000-0000-000000000000-lock-000000000",
    "_c_00000000-0000-0000-0000-000000000000-lock-00000000000000",
    "x-lock-12",
    "task-0000000000",
    "__lock__x0000000000",
    "-lock-0000000000.bak",
    "-LOCK-0000000000",
    "ä-0000000000",
]


@pytest.mark.parametrize("who", FOREIGN)
def test_a_contender_that_came_earlier_is_waited_for(
    zklock_client: Any, other: Any, zklock_path: str, who: str
) -> None:
    other.ensure_path(zklock_path)
    node = other.create(
        f"{zklock_path}/{FOREIGN[who]()}", b"their data", ephemeral=True, sequence=True
    )
    lock = zklock.Lock(zklock_client, zklock_path)
    assert lock.acquire(blocking=False) is None
    waiting = run(granted, lock)
    queued(other, zklock_path, 2)
    holder, waiter = lock.contenders()
    assert (holder.path, holder.identity, holder.sequence) == (node, "their data", 0)
    assert holder.session_id == other.client_id[0]
    assert waiter.sequence == 2
    other.set(node, b"changed")  # Curator asks holders to revoke like this: it is no release
    with pytest.raises(TimeoutError):
        waiting.result(0.1)
    other.delete(node)
    grant = waiting.result(SOON)
    assert grant.token.sequence == 2
    grant.release()


def test_a_contender_that_came_later_is_not(
    zklock_client: Any, other: Any, zklock_path: str
) -> None:
    lock = zklock.Lock(zklock_client, zklock_path)
    grant = granted(lock)
    for make_name in FOREIGN.values():
        other.create(f"{zklock_path}/{make_name()}", ephemeral=True, sequence=True)
    grant.verify()
    told = lock.contenders()
    assert [each.sequence for each in told] == list(range(len(FOREIGN) + 1))
    lock.release()
    assert lock.acquire(blocking=False) is None
    for name in children(other, zklock_path):
        other.delete(f"{zklock_path}/{name}")


def test_strange_names_are_no_contenders(zklock_client: Any, other: Any, zklock_path: str) -> None:
    other.ensure_path(zklock_path)
    for name in STRANGE:
        other.create(f"{zklock_path}/{name}")
    lock = zklock.Lock(zklock_client, zklock_path)
    with lock as grant:
        assert [each.path for each in lock.contenders()] == [grant.path]
    assert sorted(children(other, zklock_path)) == sorted(STRANGE)
    for name in STRANGE:
        other.delete(f"{zklock_path}/{name}")


@pytest.mark.parametrize("make", [KazooLock, KazooReadLock])
def test_locks_of_kazoo_take_turns_with_ours(
    zklock_client: Any,
    zklock_hosts: str,
    other: Any,
    zklock_path: str,
    make: Callable[..., Any],
) -> None:
    ours = [zklock.Lock(zklock_client, zklock_path) for _ in range(2)]
    with kazoo_client(zklock_hosts) as client:
        theirs = [
            make(client, zklock_path, f"kazoo {number}", extra_lock_patterns=["-lock-"])
            for number in range(2)
        ]
        first = granted(ours[0])
        assert not theirs[0].acquire(blocking=False)
        assert theirs[0].contenders()[:1] == [first.identity]
        waiting = run(theirs[0].acquire, timeout=SOON)
        queued(other, zklock_path, 2)
        then = run(granted, ours[1])
        queued(other, zklock_path, 3)
        assert [each.identity for each in ours[0].contenders()][1] == "kazoo 0"
        ours[0].release()
        assert waiting.result(SOON)
        assert not then.done()
        assert ours[0].acquire(blocking=False) is None
        theirs[0].release()
        grant = then.result(SOON)
        assert not theirs[1].acquire(blocking=False)
        grant.release()
        assert theirs[1].acquire(timeout=SOON)
        theirs[1].release()


def test_many_of_both_exclude_each_other(
    zklock_connect: Callable[..., Any], zklock_hosts: str, zklock_path: str
) -> None:
    inside: list[str] = []
    overlaps: list[list[str]] = []

    def work(lock: Any, name: str) -> int:
        for _ in range(10):
            with lock:
                inside.append(name)
                if len(inside) != 1:
                    overlaps.append(list(inside))
                inside.remove(name)
        return 10

    with kazoo_client(zklock_hosts) as client:
        locks = [KazooLock(client, zklock_path, extra_lock_patterns=["-lock-"]) for _ in range(4)]
        locks += [zklock.Lock(zklock_connect(), zklock_path) for _ in range(4)]
        working = [run(work, lock, f"{number}") for number, lock in enumerate(locks)]
        assert sum(each.result(SOON) for each in working) == 80
    assert not overlaps
