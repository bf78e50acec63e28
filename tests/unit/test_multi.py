"""Several locks as one: what no test of the contract can bring about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import zklock
from zklock.testing import Simulation, simulated

PATHS = ["/locks/a", "/locks/b"]


@pytest.fixture
def sim() -> Iterator[Simulation]:
    with simulated() as sim:
        yield sim


@pytest.fixture
def client(sim: Simulation) -> Any:
    return sim.client(10.0)


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
