"""Contenders of other clients on the same path (H20): they wait for us, and we for them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.recipe.lock import Lock as KazooLock, ReadLock as KazooReadLock

import zklock
from tests.contract.support import SOON, children, gone, granted, kazoo_client, queued, run

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
    "aiozk": lambda: f"lock-{uuid.uuid4().hex}-",
    "aiozk read": lambda: f"read-{uuid.uuid4().hex}-",
    "aiozk write": lambda: f"write-{uuid.uuid4().hex}-",
    "kazoo": lambda: f"{uuid.uuid4().hex}__lock__",
    "kazoo read": lambda: f"{uuid.uuid4().hex}__rlock__",
}


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


UNKNOWN = {
    "Solr's elector": "72057752732237824-host:8983_solr-n_",
    "Accumulo": "zlock#c86b7d2e-6160-47e0-8646-d30f05985a21#",
    "HBase's table lock": "write-",
    "zk-ruby": "ex",
    "aiozk with a label of its own": "mine-c86b7d2e616047e08646d30f05985a21-",
    "aiozk's candidate": "candidate-c86b7d2e616047e08646d30f05985a21-",
    "digits before the number": "lock-2026",
}


@pytest.mark.parametrize("kind", [zklock.Lock, zklock.ReadLock, zklock.Semaphore])
@pytest.mark.parametrize("who", UNKNOWN)
def test_an_unknown_contender_before_ours_is_told(
    zklock_client: Any, other: Any, zklock_path: str, who: str, kind: Any
) -> None:
    """Whether it would have to wait for that node, zklock cannot know: it enters beside nobody."""
    lock = kind(zklock_client, zklock_path, **({"limit": 1} if kind is zklock.Semaphore else {}))
    queue = f"{zklock_path}/locks" if kind is zklock.Semaphore else zklock_path
    node = other.create(f"{queue}/{UNKNOWN[who]}", ephemeral=True, sequence=True, makepath=True)
    for blocking in (False, True):
        with pytest.raises(zklock.MixedNames, match=re.escape(node.rpartition("/")[2])):
            lock.acquire(blocking)
    assert children(other, queue) == [node.rpartition("/")[2]]
    other.delete(node)
    granted(lock).release()


def test_an_unknown_contender_is_told_to_a_lock_of_several(
    zklock_client: Any, other: Any, zklock_path: str
) -> None:
    paths = [f"{zklock_path}/{name}" for name in "ab"]
    node = other.create(f"{paths[1]}/n_", ephemeral=True, sequence=True, makepath=True)
    several = zklock.MultiLock([zklock.Lock(zklock_client, path) for path in paths])
    with pytest.raises(zklock.MixedNames, match="n_0000000000"):
        several.acquire()
    gone(other, paths[0])
    other.delete(node)


def test_an_unknown_candidate_is_told_to_an_election(
    zklock_client: Any, other: Any, zklock_path: str
) -> None:
    node = other.create(f"{zklock_path}/n_", ephemeral=True, sequence=True, makepath=True)
    with pytest.raises(zklock.MixedNames, match="n_0000000000"):
        zklock.LeaderElection(zklock_client, zklock_path).run(lambda leadership: None)
    other.delete(node)


def test_sequential_nodes_that_stay_are_no_contenders(
    zklock_client: Any, other: Any, zklock_path: str
) -> None:
    """The entries of kazoo's queue, for example: a lock may stand at the path of a queue."""
    entries = [
        other.create(f"{zklock_path}/entry-{number:03}-", sequence=True, makepath=True)
        for number in range(20)
    ]
    lock = zklock.Lock(zklock_client, zklock_path)
    with lock as grant:
        later = other.create(f"{zklock_path}/n_", ephemeral=True, sequence=True)
        grant.verify()
    for node in (*entries, later):
        other.delete(node)


@pytest.mark.parametrize("make", [KazooLock, KazooReadLock])
def test_locks_of_kazoo_take_turns_with_ours(
    zklock_client: Any, zklock_hosts: str, other: Any, zklock_path: str, make: Callable[..., Any]
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
