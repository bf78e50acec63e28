"""What hooks are told of locks, elections, pools and guards, against a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest

import zklock
from tests.contract.fronts import Place
from tests.contract.lasting import LASTING
from tests.contract.support import SOON, granted, run
from zklock import LossReason, telemetry
from zklock.telemetry import (
    EpochChanged,
    Event,
    Granted,
    GrantEvent,
    LeaderChanged,
    Lost,
    Queued,
    Released,
    SessionEnded,
    ShardMoved,
    Withdrawn,
)
from zklock.testing import expire_session, wait_for

E = TypeVar("E", bound=Event)


class Heard:
    """A hook that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.subscription = telemetry.subscribe(self.events.append)

    def all(self, *kinds: type[E]) -> list[E]:
        assert self.subscription.flush(SOON)
        return [event for event in self.events if isinstance(event, kinds)]

    def wait(self, *kinds: type[E], count: int = 1) -> list[E]:
        """Wait for so many events of these kinds."""
        return wait_for(
            lambda: found if len(found := self.all(*kinds)) >= count else None,
            SOON,
            lambda: f"{count} of {kinds} in {self.events}",
        )


@pytest.fixture
def heard() -> Iterator[Heard]:
    made = Heard()
    yield made
    made.subscription.close()


@LASTING
def test_the_story_of_two_contenders(heard: Heard, mine: Place, theirs: Place) -> None:
    one = mine.Lock(identity="one")
    first = granted(one)
    second = mine.waits(theirs.Lock(identity="two"), 2)
    heard.wait(Queued, count=2)
    one.release()
    grant = second.result(SOON)
    grant.release()
    story = [
        (type(it).__name__, it.identity)
        for it in heard.all(telemetry.LockEvent)
        if it.path == mine.path
    ]
    for who in ("one", "two"):
        assert [what for what, it in story if it == who] == ["Queued", "Granted", "Released"]
    assert len(story) == 6
    assert [it.ahead for it in heard.all(Queued)] == [0, 1]
    assert [it.token for it in heard.all(Granted)] == [first.token, grant.token]
    before, after = heard.all(Granted)
    assert before.gap is None
    assert before.waited is not None
    assert after.waited is not None
    if after.gap is not None:  # else the first one was gone before the second could watch it
        assert 0 <= after.gap <= after.waited
    assert {it.node for it in heard.all(Granted)} == {it.node for it in heard.all(Queued)}


@LASTING
def test_every_kind_says_what_it_is(heard: Heard, client: Any, zklock_path: str) -> None:
    locks: list[Any] = [
        zklock.Lock(client, f"{zklock_path}/exclusive"),
        zklock.RLock(client, f"{zklock_path}/again"),
        zklock.ReadLock(client, f"{zklock_path}/read"),
        zklock.WriteLock(client, f"{zklock_path}/write"),
        zklock.Semaphore(client, f"{zklock_path}/semaphore", limit=3),
    ]
    for lock in locks:
        lock.acquire(timeout=SOON)
        lock.release()
    permits = granted(locks[-1], permits=2)
    permits.release()
    kinds = [(it.path.rpartition("/")[2], it.kind) for it in heard.all(Granted)]
    assert kinds == [
        ("exclusive", "exclusive"),
        ("again", "exclusive"),
        ("read", "read"),
        ("write", "write"),
        ("semaphore", "semaphore"),
        ("semaphore", "semaphore"),
    ]
    assert heard.all(Granted)[-1].permits == 2
    assert [it.token for it in heard.all(Released)] == [it.token for it in heard.all(Granted)]
    assert {it.path for it in heard.all(Queued)} == {lock.path for lock in locks}


@LASTING
def test_one_that_does_not_get_it_withdraws(heard: Heard, mine: Place, theirs: Place) -> None:
    holder = granted(mine.Lock())
    lock = theirs.Lock(identity="late")
    assert lock.acquire(timeout=0.2) is None
    (late,) = heard.wait(Withdrawn)
    assert (late.identity, late.error) == ("late", None)
    assert round(late.waited, 9) >= 0.2  # a difference of two times
    pending = mine.waits(lock, 2)
    lock.cancel()
    with pytest.raises(zklock.AcquireCancelled):
        pending.result(SOON)
    assert heard.wait(Withdrawn, count=2)[1].error == "AcquireCancelled"
    holder.release()


@LASTING
def test_a_lock_that_is_broken(heard: Heard, mine: Place, theirs: Place) -> None:
    grant = granted(mine.Lock())
    theirs.Lock().break_lock(timeout=SOON)
    (lost,) = heard.wait(Lost)
    assert (lost.token, lost.reason) == (grant.token, LossReason.NODE_DELETED)
    assert lost.lasted is not None
    assert not heard.all(Released)


def test_a_session_that_expires(heard: Heard, mine: Place) -> None:
    grant = granted(mine.Lock())
    expire_session(mine.client)
    (lost,) = heard.wait(Lost)
    assert lost.token == grant.token
    assert grant.session_id in {it.session_id for it in heard.wait(SessionEnded)}


@LASTING
def test_a_lock_whose_znode_was_made_anew(heard: Heard, client: Any, zklock_path: str) -> None:
    lock = zklock.Lock(client, zklock_path, tidy=True)
    epochs = []
    for _ in range(2):
        epochs.append(granted(lock).token.epoch)
        lock.release()
    (changed,) = heard.all(EpochChanged)
    assert (changed.path, changed.before, changed.now) == (zklock_path, *epochs)


@LASTING
def test_an_election_and_its_observer(
    heard: Heard, client: Any, other: Any, zklock_path: str
) -> None:
    election = zklock.LeaderElection(client, zklock_path, identity="me")
    onlooker = zklock.LeaderElection(other, zklock_path)
    with onlooker.changes(timeout=SOON) as changes:
        stop = threading.Event()
        led = run(election.run, lambda leadership: leadership.should_stop.wait(SOON), stop=stop)
        wait_for(lambda: any(it.leader == "me" for it in heard.all(LeaderChanged)), SOON)
        heard.wait(Granted)  # an observer may see who is the first before that one is told
        stop.set()
        led.result(SOON)
        wait_for(lambda: heard.all(LeaderChanged)[-1].leader is None, SOON)
        assert next(changes) is not None
    (granted_,) = heard.all(Granted)
    assert granted_.kind == "election"
    assert [it.token for it in heard.all(LeaderChanged) if it.leader] == [granted_.token]
    assert [it.token for it in heard.wait(Released)] == [granted_.token]


@LASTING
def test_the_shards_of_a_pool(heard: Heard, client: Any, zklock_path: str) -> None:
    pool = zklock.WorkerPool(client, zklock_path, shards=3, identity="worker")
    pool.start()
    try:
        wait_for(lambda: len(pool.owned()) == 3, SOON)
        tokens = {number: grant.token for number, grant in pool.owned().items()}
    finally:
        pool.stop()
    taken = [it for it in heard.wait(ShardMoved, count=6) if it.owned]
    assert {it.shard: it.token for it in taken} == tokens
    left = [it for it in heard.all(ShardMoved) if not it.owned]
    assert {it.shard: it.token for it in left} == tokens
    assert {(it.path, it.identity) for it in heard.all(ShardMoved)} == {(zklock_path, "worker")}
    shards = [it for it in heard.all(Granted) if it.kind == "shard"]
    assert {it.token for it in shards} == set(tokens.values())


@LASTING
def test_hooks_that_hang_and_raise_harm_no_lock(
    heard: Heard, client: Any, other: Any, zklock_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    go = threading.Event()

    def fails(event: Event) -> None:
        raise ValueError("a fault of the hook's")

    hanging = telemetry.subscribe(lambda event: go.wait(SOON), most=3)
    failing = telemetry.subscribe(fails)
    try:
        lock, behind = zklock.Lock(client, zklock_path), zklock.Lock(other, zklock_path)
        for _ in range(20):
            first = granted(lock)
            second = run(granted, behind)
            first.release()
            second.result(SOON).release()
        grant = granted(lock)
        told = threading.Event()
        grant.add_lost_callback(lambda loss: told.set())
        client.delete(grant.path)
        assert told.wait(SOON)
        assert hanging.dropped > 0
        assert failing.dropped == 0
        assert failing.flush(SOON)
        tokens = {it.token for it in heard.all(GrantEvent)}
        assert len(tokens) == 41
        assert len([it for it in caplog.records if "a telemetry hook raised" in it.message]) == 1
    finally:
        go.set()
        hanging.close()
        failing.close()
