"""Several locks as one: what no test of the contract can bring about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import zklock
from zklock._core.attempt import Attempt
from zklock._locks.multi_base import MultiBase
from zklock.errors import NoAnswer
from zklock.testing import Simulation, simulated

PATHS = ["/locks/a", "/locks/b"]


@pytest.fixture
def sim() -> Iterator[Simulation]:
    with simulated() as sim:
        yield sim


@pytest.fixture
def client(sim: Simulation) -> Any:
    return sim.client(10.0)


def test_it_gives_up_for_want_of_an_answer_only_if_there_is_a_limit(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two ensembles with the same full path may be silent for a session timeout."""
    failures = iter([NoAnswer("silent", path=PATHS[0])])
    in_order = MultiBase._order

    async def order(self: Any, call: Any) -> Any:
        for error in failures:
            raise error
        return await in_order(self, call)

    monkeypatch.setattr(MultiBase, "_order", order)
    multi = zklock.MultiLock([zklock.Lock(client, path) for path in PATHS])
    with multi as grant:
        assert grant.held
    failures = iter([NoAnswer("silent", path=PATHS[0])])
    assert multi.acquire(timeout=60.0) is None


def test_it_reads_no_answers_itself_while_it_asks_for_others(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for another client's answers would keep all others of this one waiting."""
    begun: list[bool] = []
    start = Attempt.start

    def starts(attempt: Attempt[Any], *, awaited: bool = False) -> Attempt[Any]:
        begun.append(awaited)
        return start(attempt, awaited=awaited)

    monkeypatch.setattr(Attempt, "start", starts)
    assert zklock.MultiLock([zklock.Lock(client, path) for path in PATHS]).acquire()
    assert begun == [False, False]


def test_errors_of_a_release_follow_one_another(client: Any) -> None:
    multi = zklock.MultiLock([zklock.Lock(client, path) for path in (*PATHS, "/locks/c")])
    grant = multi.acquire()
    assert grant is not None
    for each in (grant.grants[0], grant.grants[2]):
        each.release()
    with pytest.raises(zklock.NotHeld, match="/locks/a") as raised:
        grant.release()
    assert isinstance(raised.value.__context__, zklock.NotHeld)
    assert "/locks/c" in str(raised.value.__context__)
    assert not grant.grants[1].held


def test_a_release_without_answers_takes_a_moment_in_all(sim: Simulation, client: Any) -> None:
    grant = zklock.MultiLock([zklock.Lock(client, path) for path in PATHS]).acquire()
    assert grant is not None
    sim.partition(client)
    began = sim.now
    sim.run(grant.release)
    assert sim.now - began == pytest.approx(1.0)
