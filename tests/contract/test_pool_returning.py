"""Workers that are killed and come back with the same identity: their shards wait for them."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import pytest
from kazoo.security import make_acl

import zklock
from tests.contract.lasting import LASTING
from tests.contract.support import SOON, Child, children, freeze, gone
from tests.contract.workers import numbers
from zklock.testing import wait_for

Connect = Callable[..., Any]

SHARDS = 12
SESSION = 4.0
LONG = 600.0
"""A delay that does not end during a test, in seconds."""


def owned(*workers: Any) -> list[int]:
    return sorted(number for worker in workers for number in has(worker))


def has(worker: Any) -> dict[int, str]:
    """Return the shards of a worker here, or in another process, with the tokens."""
    if isinstance(worker, Child):
        worker.tell("owned")
        return {int(number): token for number, token in worker.hears().items()}
    return {number: str(grant.token) for number, grant in worker.owned().items()}


def shared(*workers: Any, each: int) -> None:
    wait_for(
        lambda: [len(has(worker)) for worker in workers] == [each] * len(workers),
        SOON,
        lambda: f"{each} shards each, not {[has(worker) for worker in workers]}",
    )


@pytest.fixture
def start(zklock_hosts: str, zklock_path: str) -> Callable[..., Child]:
    """Start a worker in a process of its own."""

    def child(identity: str, **options: Any) -> Child:
        options = {"rejoin_delay": LONG, "shards": SHARDS, "timeout": SESSION, **options}
        started = Child("work", hosts=zklock_hosts, path=zklock_path, identity=identity, **options)
        assert started.hears() == "ready"
        return started

    return child


def expired(client: Any, path: str, identity: str) -> None:
    """Wait until the worker's session has ended."""
    pool = zklock.WorkerPool(client, path)
    wait_for(lambda: identity not in [one.identity for one in pool.members()], SOON)


OTHERS = pytest.mark.thorough(
    "workers that come back: the leader before its session has ended, and another one after it, run"
)


@pytest.mark.parametrize(
    ("when", "leads"),
    [
        pytest.param("before", True, id="before-the leader"),
        pytest.param("before", False, id="before-another", marks=OTHERS),
        pytest.param("after", True, id="after-the leader", marks=OTHERS),
        pytest.param("after", False, id="after-another"),
    ],
)
def test_one_that_is_killed_gets_its_shards_again(
    start: Callable[..., Child], zklock_connect: Connect, zklock_path: str, leads: bool, when: str
) -> None:
    """``when``: it comes back before or after its former session has ended."""
    client = zklock_connect(timeout=30.0)
    here = zklock.WorkerPool(client, zklock_path, shards=SHARDS, identity="here", settle=0.05)
    with ExitStack() as stack:
        if not leads:
            stack.enter_context(here)
            wait_for(lambda: here.is_leader, SOON)
        first = stack.enter_context(start("w1"))
        if leads:
            shared(first, each=SHARDS)
            stack.enter_context(here)
        shared(first, here, each=SHARDS // 2)
        mine, before = has(here), has(first)
        keeps(client, zklock_path, "w1", before)
        first.process.kill()
        first.process.wait()
        if when == "after":
            expired(client, zklock_path, "w1")
            wait_for(lambda: here.is_leader, SOON)
        again = stack.enter_context(start("w1"))
        after = renewed(again, before)
        assert all(after[number] > token for number, token in before.items())
        assert has(here) == mine  # with the same tokens: not one has moved
        again.tell("stop")
        assert again.hears() == "left"
        shared(here, each=SHARDS)  # it has left in order: nothing waits for it
        gone(client, f"{zklock_path}/returning")


def test_who_has_nothing_to_be_assigned_on_is_away(
    start: Callable[..., Child], zklock_connect: Connect, other: Any, zklock_path: str
) -> None:
    """So a leader sees a worker whose session has just ended, if the news of it comes late."""
    client = zklock_connect(timeout=30.0)
    options: dict[str, Any] = {"shards": SHARDS, "settle": 0.05}
    here = zklock.WorkerPool(client, zklock_path, identity="here", **options)
    with here, start("w1", timeout=30.0) as worker:
        shared(worker, here, each=SHARDS // 2)
        before = set(has(worker))
        keeps(client, zklock_path, "w1", before)
        members = f"{zklock_path}/members"
        said = [
            json.loads(client.get(f"{members}/{name}")[0]) for name in children(client, members)
        ]
        (profile,) = (it for it in said if it["identity"] == "w1")
        freeze(worker.process.pid)
        try:
            client.delete(f"{zklock_path}/assigned/{profile['assigned']}")
            with zklock.WorkerPool(other, zklock_path, identity="w2", **options):
                wanted = wait_for(lambda: planned_for(here, "w2"), SOON)
        finally:
            worker.process.send_signal(signal.SIGCONT)
        assert [len(wanted.get(who, ())) for who in ("here", "w2", None)] == [SHARDS // 3] * 3
        assert wanted[None] < before


def planned_for(pool: Any, identity: str) -> dict[str | None, set[int]] | None:
    """Return which shards are assigned to whom, once some are to this worker."""
    wanted: dict[str | None, set[int]] = {}
    for it in pool.assignment():
        wanted.setdefault(it.wanted, set()).add(it.shard)
    return wanted if identity in wanted else None


def kept(client: Any, path: str, identity: str) -> set[Any]:
    """Return the shards that are kept for a worker."""
    place = f"{path}/returning/_{identity}"
    return numbers(json.loads(client.get(place)[0])["shards"]) if client.exists(place) else set()


def keeps(client: Any, path: str, identity: str, shards: Iterable[int]) -> None:
    """Wait until these shards are kept for a worker."""
    wait_for(
        lambda: kept(client, path, identity) == set(shards),
        SOON,
        lambda: f"{set(shards)} kept for {identity}, but {kept(client, path, identity)}",
    )


def renewed(worker: Any, before: dict[int, str]) -> dict[int, str]:
    """Wait until a worker has the same shards with other tokens, and return them."""

    def done() -> bool:
        now = has(worker)
        return now.keys() == before.keys() and not set(before.values()) & set(now.values())

    wait_for(done, SOON, lambda: f"{has(worker)} after {before}")
    return has(worker)


def test_meanwhile_nobody_has_them_and_then_they_move(
    start: Callable[..., Child], zklock_connect: Connect, zklock_path: str
) -> None:
    client = zklock_connect(timeout=30.0)
    here = zklock.WorkerPool(client, zklock_path, shards=SHARDS, identity="here", settle=0.05)
    with here:
        with start("w1") as first, start("w2", rejoin_delay=3.0) as second:
            shared(first, second, here, each=SHARDS // 3)
            numbers = {worker: set(has(worker)) for worker in (first, second, here)}
            for worker, name in ((first, "w1"), (second, "w2")):
                keeps(client, zklock_path, name, numbers[worker])
                worker.process.kill()
        expired(client, zklock_path, "w1")
        expired(client, zklock_path, "w2")
        # Those of the second one move, those of the first one wait.
        wait_for(lambda: len(has(here)) > SHARDS // 3, SOON)
        wait_for(lambda: not kept(client, zklock_path, "w2"), SOON)
        wait_for(
            lambda: set(has(here)) == numbers[here] | numbers[second], SOON, lambda: f"{has(here)}"
        )
        assert kept(client, zklock_path, "w1") == numbers[first]
        wanted = {one.shard: one.wanted for one in here.assignment()}
        assert all(wanted[number] is None for number in numbers[first])
    # The rest of the place is for the next leader, until w1 is back or its delay is over.
    assert children(client, f"{zklock_path}/returning") == ["_w1"]


def test_one_that_has_come_back_for_nothing_has_no_claim_any_more(
    start: Callable[..., Child], zklock_connect: Connect, zklock_path: str
) -> None:
    """What it had is another's, and is kept for that one when it crashes in turn."""
    client = zklock_connect(timeout=30.0)
    options: dict[str, Any] = {"shards": 2, "rejoin_delay": LONG, "settle": 0.05}
    here, back = (
        zklock.WorkerPool(client, zklock_path, identity=name, **options) for name in ("here", "w1")
    )

    def wanted() -> dict[Any, str | None]:
        return {one.shard: one.wanted for one in here.assignment()}

    with here:
        with start("w1", shards=2) as first:
            shared(first, here, each=1)
            (number,) = before = has(first)
            keeps(client, zklock_path, "w1", before)
            first.process.kill()
        expired(client, zklock_path, "w1")
        with start("w2", shards=2) as second:
            back.drain()
            with back:
                wait_for(lambda: has(second).keys() == before.keys(), SOON)
                keeps(client, zklock_path, "w2", before)
                back.resume()
                wait_for(lambda: not any(one.draining for one in here.members()), SOON)
                second.process.kill()
                expired(client, zklock_path, "w2")
                wait_for(lambda: wanted()[number] is None, SOON, lambda: f"{wanted()}")
                with start("w2", shards=2) as again:
                    wait_for(lambda: has(again).keys() == before.keys(), SOON)
                    assert not has(back)


@LASTING
class TestInOrder:
    def test_who_stops_or_drains_leaves_nothing(
        self, front: Any, other: Any, zklock_path: str
    ) -> None:
        first, second = (
            front.pool(other, zklock_path, shards=4, identity=name, rejoin_delay=LONG, settle=0.0)
            for name in "ab"
        )
        with first:
            with second:
                shared(first, second, each=2)
                assert second.drain(SOON)
                shared(first, each=4)
                second.resume()
                shared(first, second, each=2)
            shared(first, each=4)
            assert children(other, f"{zklock_path}/returning") == ["_a"]
        gone(other, f"{zklock_path}/returning")

    def test_a_session_that_is_replaced(
        self,
        front: Any,
        other: Any,
        zklock_connect: Connect,
        zklock_path: str,
        zklock_expire_session: Callable[[Any], int],
    ) -> None:
        client = zklock_connect(timeout=30.0)
        options = {"shards": 6, "rejoin_delay": LONG, "settle": 0.0}
        leader = front.pool(other, zklock_path, identity="a", **options)
        with leader:
            wait_for(lambda: leader.is_leader, SOON)
            worker = front.pool(client, zklock_path, identity="b", **options)
            with worker:
                shared(leader, worker, each=3)
                mine, before = has(leader), has(worker)
                keeps(other, zklock_path, "b", before)
                for _ in range(3):  # a crash loop that comes back in time is not left out
                    zklock_expire_session(client)
                    before = renewed(worker, before)
                    assert has(leader) == mine
                    keeps(other, zklock_path, "b", before)

    def test_one_whose_session_ends_as_it_leaves(
        self,
        front: Any,
        other: Any,
        zklock_connect: Connect,
        zklock_path: str,
        zklock_expire_session: Callable[[Any], int],
    ) -> None:
        """The place does not end with the session: a leader would keep its shards for nobody."""
        client = zklock_connect(timeout=30.0)
        worker = front.pool(client, zklock_path, shards=2, identity="a", rejoin_delay=LONG)
        with worker:
            shared(worker, each=2)
            keeps(other, zklock_path, "a", has(worker))
            zklock_expire_session(client)
        gone(other, f"{zklock_path}/returning")

    def test_one_that_may_not_make_its_place(
        self,
        front: Any,
        other: Any,
        client: Any,
        zklock_path: str,
    ) -> None:
        """No try leaves a worker behind, which would be given shards."""
        options = {"shards": 2, "settle": 0.0, "retry": (0.05, 0.05)}
        with front.pool(other, zklock_path, identity="a", **options) as first:
            shared(first, each=2)
            other.create(f"{zklock_path}/returning", acl=[make_acl("world", "anyone", read=True)])
            second = front.pool(client, zklock_path, identity="b", rejoin_delay=LONG, **options)
            for _ in range(5):
                with pytest.raises(zklock.AccessDenied):
                    second.start()
            assert len(children(other, f"{zklock_path}/members")) == 1
            shared(first, each=2)
        gone(other, f"{zklock_path}/assigned")

    @pytest.mark.parametrize("part", ["/_z", ""])
    def test_what_acls_hide_stops_nobody(
        self,
        front: Any,
        other: Any,
        zklock_path: str,
        caplog: pytest.LogCaptureFixture,
        part: str,
    ) -> None:
        """Neither the place of one worker, nor all that is kept."""
        hidden = f"{zklock_path}/returning{part}"
        options = {"shards": 2, "settle": 0.0, "rejoin_delay": LONG if part else 0.0}
        acl = [make_acl("world", "anyone", write=True, create=True, delete=True)]
        other.ensure_path(hidden.rpartition("/")[0])
        other.create(hidden, acl=acl)
        first, second = (
            front.pool(other, zklock_path, identity=each, **options) for each in ("a", "b")
        )
        with first, second:
            shared(first, second, each=1)
            told = [each for each in caplog.messages if "ACLs hide its place" in each]
            assert all(hidden in each for each in told)
            assert 1 <= len(told) <= 2, "once by each that leads"
        other.delete(hidden)

    def test_two_of_one_identity(self, front: Any, other: Any, zklock_path: str) -> None:
        options = {"shards": 4, "identity": "a", "rejoin_delay": LONG, "settle": 0.0}
        first, second = (front.pool(other, zklock_path, **options) for _ in range(2))
        with first:
            shared(first, each=4)
            with second:
                wait_for(lambda: len(has(second)) == 4, SOON)
                assert not has(first)

    def test_what_it_must_be(self, front: Any, other: Any, zklock_path: str) -> None:
        with pytest.raises(ValueError, match="identity="):
            front.pool(other, zklock_path, rejoin_delay=5.0)
        for wrong in (-1.0, float("inf"), float("nan")):
            with pytest.raises(ValueError, match="rejoin_delay"):
                front.pool(other, zklock_path, identity="a", rejoin_delay=wrong)
        with pytest.raises(TypeError, match="rejoin_delay"):
            front.pool(other, zklock_path, identity="a", rejoin_delay="5")
