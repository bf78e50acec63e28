"""Interrupts of who holds something already: what it has is counted and kept as it was."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import zklock
from tests.contract.struck import Moments, Struck
from tests.contract.support import SOON, granted
from zklock import aio
from zklock.testing import simulated, wait_for

PATH = "/locks/report"


@pytest.fixture
def client() -> Iterator[Any]:
    with simulated() as sim:
        yield sim.client(10.0)


def uses(lock: Any) -> int:
    """Return how often this thread has acquired the lock."""
    return len(lock._holdings().grants)


@pytest.mark.parametrize("kind", [zklock.RLock, zklock.ReadLock])
def test_an_acquire_counts_if_and_only_if_it_returns(client: Any, kind: Any) -> None:
    """Else release() would take it for what was acquired last, and the one before stayed held."""
    lock = kind(client, PATH)
    grant = granted(lock)
    moments = Moments()
    at = 1
    while moments.strike(lock.acquire, at):
        assert uses(lock) == 1
        at += 1
    assert at > 15
    assert uses(lock) == 2
    lock.release()
    assert grant.held
    lock.release()
    assert not grant.held


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_use_is_given_up_once_however_often_that_is_repeated(client: Any, left: int) -> None:
    lock = zklock.RLock(client, PATH)
    grant, *_ = [granted(lock) for _ in range(left + 1)]
    moments = Moments()
    at = 1
    while moments.strike(lambda: lock._abandon_use(grant), at):
        at += 1
    assert at > 5
    assert uses(lock) == left
    assert grant.held == (left > 0)


@pytest.mark.slow("an interrupt at each moment of a body")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("then", [0, 1, 2, 3])
@pytest.mark.parametrize("how", ["lock", "grant", "attempt"])
def test_a_body_with_several_gives_up_one_use_of_each(client: Any, how: str, then: int) -> None:
    """``then``: so soon a second interrupt strikes."""
    locks = [zklock.RLock(client, f"{PATH}/{name}") for name in "ab"]
    several = zklock.MultiLock(locks)
    make: dict[str, Any] = {
        "lock": lambda: several,
        "grant": several.acquire,
        "attempt": several.attempt,
    }

    def use() -> None:
        with make[how]():
            pass

    moments = Moments()
    at, struck = 0, True
    while struck:
        at += 1
        before = [granted(lock) for lock in locks]
        struck = moments.strike(use, at, then)
        assert [uses(lock) for lock in locks] == [1, 1], moments.where
        assert all(grant.held for grant in before)
        for lock in locks:
            lock.release()
    assert at > 50


def test_an_interrupt_of_a_release_of_several_arrives(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if another of the locks was lost. The rest is given back without waiting."""
    locks = [zklock.RLock(client, f"{PATH}/{name}") for name in "abc"]
    before = locks[0].acquire()
    assert before is not None
    several = zklock.MultiLock(locks)
    grant = several.acquire()
    assert grant is not None

    strikes, end = iter([Struck]), grant.grants[1]._end

    def ends(**how: bool) -> Any:
        for error in strikes:
            raise error
        return end(**how)

    grant.grants[2]._lose(zklock.LossReason.NODE_DELETED, noticed=0.0, lease_end=0.0)
    monkeypatch.setattr(grant.grants[1], "_end", ends)
    with pytest.raises(Struck):
        several.release()
    assert [each.held for each in grant.grants] == [True, False, False]
    locks[0].release()
    assert before.released


def test_an_election_runs_again_after_an_interrupt_as_it_ended(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    election = zklock.LeaderElection(client, PATH)
    stop = threading.Event()
    stop.set()
    ends, end = iter([Struck]), election._end_run

    def struck(call: object) -> None:
        for error in ends:
            raise error
        end(call)

    monkeypatch.setattr(election, "_end_run", struck)
    with pytest.raises(Struck):
        election.run(lambda leadership: None, stop)
    election.run(lambda leadership: None, stop)


def test_several_locks_of_a_closed_loop_are_given_back(client: Any) -> None:
    """Their coroutine is closed where no loop runs, and no task."""
    loop = asyncio.new_event_loop()
    paths = [f"{PATH}/{name}" for name in "abc"]
    holder = zklock.Lock(client, paths[-1]).acquire()
    assert holder is not None
    asked = [aio.Lock(client, paths[0]), aio.RLock(client, paths[1]), aio.Lock(client, paths[2])]

    async def begin() -> asyncio.Task[Any]:
        task = loop.create_task(aio.MultiLock(asked).acquire())
        while not (asked[0].held and asked[1].held):
            await asyncio.sleep(0)
        return task

    task = loop.run_until_complete(begin())
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task
    holder.release()  # what is granted now is heard by nobody

    def given_back() -> bool:
        gc.collect()
        return all(zklock.Lock(client, path).contenders() == [] for path in paths)

    wait_for(given_back, SOON, "all is given back")
