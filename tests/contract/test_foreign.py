"""Contenders of other clients on the same path (H20): they wait for us, and we for them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.recipe.lock import Lock as KazooLock, ReadLock as KazooReadLock

import zklock
from tests.contract.fronts import Place, Threads
from tests.contract.support import SOON, granted, kazoo_client, run

pytestmark = pytest.mark.hazard("H20")


@pytest.fixture
def front() -> Threads:
    return Threads()


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
def test_a_contender_that_came_earlier_is_waited_for(mine: Place, other: Any, who: str) -> None:
    other.ensure_path(mine.path)
    prefix = f"{mine.path}/{FOREIGN[who]()}"
    node = other.create(prefix, b"their data", ephemeral=True, sequence=True)
    lock = mine.Lock()
    assert lock.acquire(blocking=False) is None
    waiting = mine.waits(lock, 2)
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


def test_a_contender_that_came_later_is_not(mine: Place, other: Any) -> None:
    lock = mine.Lock()
    grant = granted(lock)
    for make_name in FOREIGN.values():
        other.create(f"{mine.path}/{make_name()}", ephemeral=True, sequence=True)
    grant.verify()
    told = lock.contenders()
    assert [each.sequence for each in told] == list(range(len(FOREIGN) + 1))
    lock.release()
    assert lock.acquire(blocking=False) is None


UNKNOWN = {
    "Solr's elector": "72057752732237824-host:8983_solr-n_",
    "Accumulo": "zlock#c86b7d2e-6160-47e0-8646-d30f05985a21#",
    "HBase's table lock": "write-",
    "zk-ruby": "ex",
    "aiozk with a label of its own": "mine-c86b7d2e616047e08646d30f05985a21-",
    "aiozk's candidate": "candidate-c86b7d2e616047e08646d30f05985a21-",
    "digits before the number": "lock-2026",
}


@pytest.mark.parametrize("kind", ["Lock", "ReadLock", "Semaphore"])
@pytest.mark.parametrize("who", UNKNOWN)
def test_an_unknown_contender_before_ours_is_told(
    mine: Place, other: Any, who: str, kind: str
) -> None:
    """Whether it would have to wait for that node, zklock cannot know: it enters beside nobody."""
    queue, more = ("/locks", {"limit": 1}) if kind == "Semaphore" else ("", {})
    lock = getattr(mine, kind)(**more)
    prefix = f"{mine.path}{queue}/{UNKNOWN[who]}"
    node = other.create(prefix, ephemeral=True, sequence=True, makepath=True)
    name = node.rpartition("/")[2]
    for blocking in (False, True):
        with pytest.raises(zklock.MixedNames, match=re.escape(name)):
            lock.acquire(blocking)
    assert mine.nodes(queue) == [name]
    other.delete(node)
    granted(lock).release()


def test_an_unknown_contender_is_told_to_a_lock_of_several_and_to_an_election(
    mine: Place, other: Any
) -> None:
    other.create(f"{mine.path}/b/n_", ephemeral=True, sequence=True, makepath=True)
    several = zklock.MultiLock([mine.Lock("/a"), mine.Lock("/b")])
    with pytest.raises(zklock.MixedNames, match="n_0000000000"):
        several.acquire()
    mine.gone("/a")
    with pytest.raises(zklock.MixedNames, match="n_0000000000"):
        mine.LeaderElection("/b").run(lambda leadership: None)


def test_sequential_nodes_that_stay_are_no_contenders(mine: Place, other: Any) -> None:
    """The entries of kazoo's queue, for example: a lock may stand at the path of a queue."""
    for number in range(20):
        other.create(f"{mine.path}/entry-{number:03}-", sequence=True, makepath=True)
    with mine.Lock() as grant:
        other.create(f"{mine.path}/n_", ephemeral=True, sequence=True)
        grant.verify()


@pytest.mark.parametrize("make", [KazooLock, KazooReadLock])
def test_locks_of_kazoo_take_turns_with_ours(
    mine: Place, zklock_hosts: str, make: Callable[..., Any]
) -> None:
    ours = [mine.Lock() for _ in range(2)]
    with kazoo_client(zklock_hosts) as client:
        theirs = [
            make(client, mine.path, f"kazoo {number}", extra_lock_patterns=["-lock-"])
            for number in range(2)
        ]
        first = granted(ours[0])
        assert not theirs[0].acquire(blocking=False)
        assert theirs[0].contenders()[:1] == [first.identity]
        waiting = run(theirs[0].acquire, timeout=SOON)
        mine.queued(2)
        then = mine.waits(ours[1], 3)
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
