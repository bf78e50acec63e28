"""A worker pool on three servers: the leading one is killed, one is cut off with its worker.

The workers are processes, of both fronts; every ownership is noted, and judged by the checker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import zklock
from tests.backends import QUICK_ELECTIONS, backend_to_cut
from tests.chaos.checker import Verdict, check
from tests.chaos.history import History, load
from tests.chaos.pool_worker import PoolWorker
from tests.chaos.run import note_pool
from tests.contract.support import boottime
from zklock.testing import Ensemble, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow("three servers are started")]

PATH = "/pool"
SHARDS = 12
TICK = 500
FRONTS = ("threads", "asyncio")
SOON = 60.0
Hire = Callable[..., PoolWorker]


@pytest.fixture(scope="module")
def shared_ensemble() -> Iterator[Ensemble]:
    with Ensemble(
        3,
        tick_time=TICK,
        sync_limit=20,
        backend=backend_to_cut(),
        system_properties=QUICK_ELECTIONS,
    ) as running:
        yield running


@pytest.fixture
def ensemble(shared_ensemble: Ensemble) -> Iterator[Ensemble]:
    yield shared_ensemble
    shared_ensemble.heal_all()
    shared_ensemble.start()
    with zklock.connect(shared_ensemble.hosts) as client:
        client.delete(PATH, recursive=True)


@pytest.fixture
def hire(tmp_path: Path) -> Iterator[Hire]:
    """Return ``hire(identity, hosts, front, timeout)``: a worker process that has joined."""
    workers: list[PoolWorker] = []

    def start(identity: str, hosts: str, front: str, timeout: float) -> PoolWorker:
        worker = PoolWorker(
            hosts=hosts,
            path=PATH,
            folder=str(tmp_path),
            identity=identity,
            front=front,
            timeout=timeout,
            shards=SHARDS,
        )
        workers.append(worker)
        worker.hear()
        return worker

    yield start
    for worker in workers:
        worker.close()


def settled(*workers: PoolWorker) -> list[dict[int, str]]:
    """Wait until the workers own all shards, in equal parts; return who has what."""
    found: list[dict[int, str]] = []

    def done() -> bool:
        found[:] = [worker.owned() for worker in workers]
        sizes = [len(mine) for mine in found]
        return sum(sizes) == SHARDS and max(sizes) - min(sizes) <= 1

    wait_for(done, SOON, lambda: f"equal parts, but {[len(mine) for mine in found]}")
    return found


def ended_in_order(ensemble: Ensemble, folder: Path, *workers: PoolWorker) -> Verdict:
    """Stop the workers; return the verdict, which nothing speaks against."""
    for worker in workers:
        worker.ask("stop")
        assert worker.process.wait(SOON) == 0
    with zklock.connect(ensemble.hosts) as client, History(folder, "director") as history:
        history.note("calm")
        note_pool(client, PATH, history)
    found = check(load(folder))
    assert found.violations == []
    return found


def test_the_leading_server_is_killed(ensemble: Ensemble, hire: Hire, tmp_path: Path) -> None:
    """Nobody loses a shard, also who was connected to it; the pool's own leader is one of them."""
    leader = ensemble.leader()
    rest = ",".join(server.hosts for server in ensemble.followers())
    first = f"{leader.hosts},{rest}"
    workers = [hire("a", first, "threads", 10.0)]
    wait_for(lambda: workers[0].ask("leads"), SOON, "the first to lead the pool")
    workers += [
        hire("b", first, "asyncio", 10.0),
        hire("c", rest, "threads", 10.0),
        hire("d", rest, "asyncio", 10.0),
    ]
    before = settled(*workers)
    leader.kill()
    wait_for(
        lambda: any(server.mode() == "leader" for server in ensemble.servers if server.running),
        SOON,
        "another leader",
    )
    late = [hire("e", rest, "threads", 10.0), hire("f", rest, "asyncio", 10.0)]
    after = settled(*workers, *late)
    for was, now in zip(before, after[:4], strict=True):
        assert now.items() < was.items()  # one was given up for those who came, none was lost
    found = ended_in_order(ensemble, tmp_path, *workers, *late)
    assert dict(found.ends) == {"RELEASED": found.grants}
    assert found.grants > SHARDS


@pytest.mark.parametrize("leads", [True, False], ids=["the pool's leader", "another worker"])
@pytest.mark.parametrize("front", FRONTS)
def test_a_worker_is_cut_off_with_its_server(
    ensemble: Ensemble, hire: Hire, tmp_path: Path, front: str, leads: bool
) -> None:
    """It loses its shards before others are granted them; after the heal it joins anew."""
    minority = ensemble.followers()[0]
    majority = ",".join(each.hosts for each in ensemble.servers if each is not minority)

    def hire_the_one() -> PoolWorker:
        return hire("cut", minority.hosts, front, 4.0)

    first = hire_the_one() if leads else hire("a", majority, "threads", 4.0)
    wait_for(lambda: first.ask("leads"), SOON, "the first to lead the pool")
    one = first if leads else hire_the_one()
    others = [hire("b", majority, "asyncio", 4.0)]
    others.append(hire("a", majority, "threads", 4.0) if leads else first)
    mine, *theirs = settled(one, *others)
    began = boottime()
    ensemble.cut_from_peers(minority)
    wait_for(lambda: not one.owned(), SOON, "the loss of all shards")
    assert boottime() - began < 4.0  # without a word from ZooKeeper
    after = settled(*others)
    assert one.owned() == {}
    for was, now in zip(theirs, after, strict=True):
        assert was.items() < now.items()  # none of theirs was touched
    tokens: dict[int, str] = {number: token for each in after for number, token in each.items()}
    assert all(tokens[number] > token for number, token in mine.items())
    assert sum(bool(other.ask("leads")) for other in others) == 1
    ensemble.heal(minority)
    anew, *_ = settled(one, *others)
    assert all(token > tokens[number] for number, token in anew.items())
    found = ended_in_order(ensemble, tmp_path, one, *others)
    assert set(found.ends) == {"RELEASED", "LEASE_LAPSED"}
    assert found.ends["LEASE_LAPSED"] == len(mine)
    assert found.noticed["LEASE_LAPSED"] > 0
