"""WorkerPool on a real ZooKeeper: shares, hand-overs, crashes, pauses, executors; both fronts."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import zklock
from tests.chaos import checker
from tests.chaos.history import History, load
from tests.chaos.pool_worker import PoolWorker
from tests.contract import workers
from tests.contract.fronts import Place, Steps
from tests.contract.support import SOON, boottime, children, freeze, gone, now_of, tree
from tests.contract.workers import Front, Join, joining
from tests.modes import repeated
from zklock import aio
from zklock.testing import FaultProxy, expire_session, wait_for

SHARDS = 24


@pytest.fixture
def join(front: Front, zklock_connect: Callable[..., Any], zklock_path: str) -> Iterator[Join]:
    """Return ``join(identity, **options)``: a started worker with a session of its own."""
    with joining(front, zklock_path, zklock_connect, shards=SHARDS) as join:
        yield join


@pytest.fixture
def processes(
    zklock_hosts: str, zklock_path: str, tmp_path: Path
) -> Iterator[Callable[..., PoolWorker]]:
    """Return ``processes(identity, **options)``: a worker process that has joined.

    Every second one is of asyncio.
    """
    workers: list[PoolWorker] = []

    def start(identity: str, **options: Any) -> PoolWorker:
        fronts = ("threads", "asyncio")
        settings = {"timeout": 4.0, "shards": SHARDS, "front": fronts[len(workers) % 2], **options}
        worker = PoolWorker(
            hosts=zklock_hosts,
            path=zklock_path,
            folder=str(tmp_path),
            identity=identity,
            **settings,
        )
        workers.append(worker)
        worker.hear()
        return worker

    yield start
    for worker in workers:
        worker.close()


def counts(*pools: Any) -> list[int]:
    return [len(pool.owned()) for pool in pools]


def shared(*pools: Any, counted: list[int] | None = None, total: int = SHARDS) -> None:
    """Wait until the workers own so many shards each, by default in equal parts."""
    if counted is None:
        workers.shared(pools, range(total))
    else:
        wait_for(lambda: counts(*pools) == counted, SOON, lambda: f"{counts(*pools)}")
        assert len({number for pool in pools for number in pool.owned()}) == sum(counted)


def test_one_worker_owns_all(join: Join, zklock_client: Any, zklock_path: str) -> None:
    pool = join("one")
    shared(pool)
    assert sorted(pool.owned()) == list(range(SHARDS))
    for number, grant in pool.owned().items():
        grant.verify()
        assert grant.lock_path == f"{zklock_path}/shards/{number}"
    pool.stop()
    assert pool.owned() == {}
    left = tree(zklock_client, zklock_path)
    parents = ["", "/assigned", "/leader", "/members", "/owned", "/shards"]
    assert sorted(left) == sorted(
        [f"{zklock_path}{name}" for name in parents]
        + [f"{zklock_path}/shards/{number}" for number in range(SHARDS)]
    )


def held_up(event: threading.Event) -> Callable[..., Steps]:
    """Return what handlers and callbacks do that heed nothing but this event."""

    def body(*args: object) -> Steps:
        yield event

    return body


def test_clients_of_either_sort(mine: Place, session_seconds: float) -> None:
    options: dict[str, Any] = {}
    if not isinstance(mine.client.handler, zklock.Handler):
        options["session_timeout"] = session_seconds
    with mine.pool(shards=SHARDS, **options) as pool:
        shared(pool)
        assert not pool.drain(0.0) or not pool.owned()
        assert pool.drain(SOON)


def test_a_join_and_a_leave_move_no_more_than_they_must(join: Join) -> None:
    one = join("a")
    shared(one)
    tokens = {number: grant.token for number, grant in one.owned().items()}
    two = join("b")
    shared(one, two)
    assert all(grant.token > tokens[number] for number, grant in two.owned().items())
    before = [set(one.owned()), set(two.owned())]
    three = join("c")
    shared(one, two, three)
    after = [set(one.owned()), set(two.owned())]
    assert all(now < was for now, was in zip(after, before, strict=True))
    tokens = {number: grant.token for number, grant in one.owned().items()}
    three.stop()
    shared(one, two)
    for number, token in tokens.items():
        assert one.owned()[number].token == token


def test_weights(join: Join) -> None:
    small, big = join("small"), join("big", capacity=2.0)
    shared(small, big, counted=[8, 16])
    small.set_capacity(4)
    assert small.capacity == 4.0
    shared(small, big, counted=[16, 8])


def test_drain_and_resume(join: Join) -> None:
    one, two = join("a"), join("b")
    shared(one, two)
    assert one.drain(SOON)
    assert one.draining
    shared(two)
    (first, second) = two.members()
    assert (first.identity, first.draining, first.assigned) == ("a", True, 0)
    assert (second.identity, second.draining, second.assigned) == ("b", False, SHARDS)
    assert two.drain(SOON)
    assert counts(one, two) == [0, 0]
    one.resume()
    shared(one)


def test_drained_before_it_joins(join: Join, mine: Place) -> None:
    one = join("a")
    shared(one)
    two = mine.pool(identity="b")
    assert two.drain()
    two.set_capacity(3.0)
    two.start()
    wait_for(lambda: [it.draining for it in one.members()] == [False, True], SOON, "a member")
    shared(one)
    two.resume()
    shared(one, two, counted=[6, 18])
    two.stop()
    assert two.drain()


def test_shards_come_and_go(join: Join) -> None:
    one, two = join("a"), join("b")
    shared(one, two)
    before = set(one.owned())
    one.set_shards(SHARDS * 2)
    shared(one, two, total=SHARDS * 2)
    assert before <= set(one.owned())
    two.set_shards(5)
    shared(one, two, total=5)
    assert sorted([*one.owned(), *two.owned()]) == list(range(5))
    late = join("c", shards=64)
    shared(one, two, late, total=5)


def test_assignment(join: Join, mine: Place) -> None:
    one, two = join("a"), join("b")
    shared(one, two)
    outside = mine.pool()
    expected = {
        number: (name, grant.token)
        for name, pool in (("a", one), ("b", two))
        for number, grant in pool.owned().items()
    }
    wait_for(
        lambda: {it.shard: (it.owner, it.token) for it in outside.assignment()} == expected,
        SOON,
        "what is owned is told",
    )
    assert [it.shard for it in outside.assignment()] == list(range(SHARDS))
    assert {it.shard: it.wanted for it in outside.assignment()} == {
        number: name for number, (name, _) in expected.items()
    }
    one.stop()
    two.stop()
    assert {(it.wanted, it.owner, it.token) for it in outside.assignment()} == {(None, None, None)}


def test_a_hand_over_in_order(front: Front, join: Join) -> None:
    """Told, finished, released, granted: the new owner never begins before the old one ended."""
    events: list[tuple[str, str, int]] = []
    noting = threading.Lock()

    def note(who: str, what: str, shard: int) -> None:
        with noting:
            events.append((who, what, shard))

    def options(who: str) -> dict[str, Any]:
        def handle(shard: zklock.Shard) -> Steps:
            note(who, "handles", shard.number)
            yield shard.should_stop
            shard.check()
            yield 0.05  # the work of the last piece
            shard.check()
            note(who, "ends", shard.number)

        def revoked(shard: int, grant: zklock.Grant) -> None:
            assert grant.held
            note(who, "revoked", shard)

        return {
            "on_assigned": lambda shard, grant: note(who, "assigned", shard),
            "on_revoked": revoked,
            "handler": front.script(handle),
        }

    one = join("a", shards=6, **options("a"))
    shared(one, total=6)
    two = join("b", shards=6, **options("b"))
    shared(one, two, total=6)
    wait_for(lambda: sum(it[:2] == ("b", "handles") for it in events) == 3, SOON, "handled")
    for shard in two.owned():
        mine = [(who, what) for who, what, number in events if number == shard]
        assert mine[:2] == [("a", "assigned"), ("a", "handles")]
        assert sorted(mine[2:4]) == [("a", "ends"), ("a", "revoked")]
        assert mine[4:] == [("b", "assigned"), ("b", "handles")]


@pytest.mark.parametrize("what", ["handler", "on_revoked"])
def test_what_does_not_end_keeps_its_shard(front: Front, join: Join, what: str) -> None:
    """The leader wants it elsewhere; who works on it still owns it until it has finished."""
    finish = threading.Event()
    options = {what: front.script(held_up(finish))}
    one = join("a", shards=2, **options)
    shared(one, total=2)
    two = join("b", shards=2)
    wait_for(
        lambda: sorted((it.wanted or "") for it in two.assignment()) == ["a", "b"], SOON, "assigned"
    )
    (moving,) = [it for it in two.assignment() if it.wanted == "b"]
    assert moving.owner == "a"
    assert not one.drain(0.4)
    with pytest.raises(zklock.PoolStuck, match="shards 0-1"):
        one.stop(0.3)
    assert counts(one, two) == [2, 0]
    finish.set()
    one.stop()
    shared(two, total=2)


def test_a_session_lost_and_another(join: Join, mine: Place) -> None:
    """The grants are lost, the handlers told; in the new session the worker is a member again.

    What was assigned to it in the former session it does not take: each shard is had again once.
    """
    assigned: list[int] = []
    revoked: list[bool] = []
    stopped: list[int] = []

    def handle(shard: zklock.Shard) -> Steps:
        try:
            yield shard.should_stop
        finally:  # a task is cancelled besides
            if not shard.held:
                stopped.append(shard.number)

    one = join(
        "a",
        client=mine.client,
        handler=mine.front.script(handle),
        on_assigned=lambda shard, grant: assigned.append(shard),
        on_revoked=lambda shard, grant: revoked.append(grant.held),
    )
    shared(one)
    before = {number: grant.token for number, grant in one.owned().items()}
    expire_session(mine.client)
    wait_for(lambda: len(stopped) == SHARDS, SOON, lambda: f"{len(stopped)} were told")
    wait_for(lambda: len(revoked) == SHARDS, SOON, lambda: f"{len(revoked)} were revoked")
    shared(one)
    wait_for(lambda: len(assigned) >= 2 * SHARDS, SOON, lambda: f"assigned {assigned}")
    assert all(grant.token > before[number] for number, grant in one.owned().items())
    assert revoked == [False] * SHARDS
    assert sorted(assigned) == sorted(2 * list(range(SHARDS)))


def test_a_shard_whose_node_is_deleted_is_lost_and_had_again(
    join: Join, zklock_client: Any
) -> None:
    told: list[tuple[int, bool]] = []
    one = join("a", on_revoked=lambda shard, grant: told.append((shard, grant.held)))
    shared(one)
    grant = one.owned()[3]
    zklock_client.delete(grant.path)
    assert grant.lost.wait(SOON)
    wait_for(lambda: told == [(3, False)], SOON, lambda: f"told {told}")
    shared(one)
    assert one.owned()[3].token > grant.token


def test_the_leader_goes_and_nothing_that_runs_is_lost(join: Join) -> None:
    pools = [join(name) for name in "abc"]
    shared(*pools)
    leader = next(pool for pool in pools if pool.is_leader)
    others = [pool for pool in pools if pool is not leader]
    before = [{n: it.token for n, it in pool.owned().items()} for pool in others]
    leader.stop()
    shared(*others)
    for pool, tokens in zip(others, before, strict=True):
        now = {number: grant.token for number, grant in pool.owned().items()}
        assert tokens.items() <= now.items()
    assert sum(pool.is_leader for pool in others) == 1


def test_another_leader_corrects_what_was_written_behind_its_back(
    join: Join, zklock_client: Any, zklock_path: str
) -> None:
    one, two = join("a"), join("b")
    shared(one, two)
    for name in children(zklock_client, f"{zklock_path}/assigned"):
        zklock_client.set(f"{zklock_path}/assigned/{name}", b"x 0-23")
    leader, other = (one, two) if one.is_leader else (two, one)
    leader.stop()
    shared(other)
    join("c")


# Handlers.


@pytest.mark.parametrize("executor", ["threads", "asyncio"])
def test_handlers_run_where_the_executor_says(join: Join, executor: str) -> None:
    running: set[int] = set()
    homes: set[object] = set()

    def handle(shard: zklock.Shard) -> None:
        running.add(shard.number)
        homes.add(threading.current_thread())
        shard.should_stop.wait()
        running.discard(shard.number)

    async def serve(shard: aio.Shard) -> None:
        running.add(shard.number)
        homes.add(asyncio.get_running_loop())
        await shard.should_stop.wait()
        shard.check()
        running.discard(shard.number)

    if executor == "threads":
        one = join("a", handler=handle, executor=executor)
    else:
        one = join("a", handler=serve)
    wait_for(lambda: len(running) == SHARDS, SOON, "all handled")
    assert len(homes) == (SHARDS if executor == "threads" else 1)
    assert threading.main_thread() not in homes
    one.stop()
    assert not running


def test_an_executor_of_the_user(join: Join) -> None:
    """Two threads, so that two shards are handled at a time, and the others wait for theirs."""
    running: list[int] = []

    def handle(shard: zklock.Shard) -> None:
        running.append(shard.number)
        shard.should_stop.wait()

    with ThreadPoolExecutor(2) as executor:
        one = join("a", handler=handle, executor=executor)
        shared(one)
        wait_for(lambda: len(running) == 2, SOON, "two handled")
        one.stop()
        assert len(running) == 2
        assert executor.submit(lambda: "still mine").result(SOON) == "still mine"


def test_a_loop_of_the_user(client: Any, zklock_path: str) -> None:
    ended: list[int] = []

    async def handle(shard: aio.Shard) -> None:
        await shard.should_stop.wait()
        ended.append(shard.number)

    async def main() -> None:
        options: dict[str, Any] = {"handler": handle, "executor": asyncio.get_running_loop()}
        pool = zklock.WorkerPool(client, zklock_path, shards=SHARDS, **options)
        await asyncio.to_thread(pool.start)
        await asyncio.to_thread(wait_for, lambda: len(pool.owned()) == SHARDS, SOON, "all owned")
        await asyncio.to_thread(pool.stop)

    asyncio.run(main())
    assert sorted(ended) == list(range(SHARDS))


def test_a_loop_of_the_user_that_is_closed(client: Any, zklock_path: str) -> None:
    """It leaves handlers that never end. The shards are given up, whatever ``on_error`` is."""
    running: list[int] = []

    async def handle(shard: aio.Shard) -> None:
        running.append(shard.number)
        await shard.should_stop.wait()

    loop = asyncio.new_event_loop()
    options: dict[str, Any] = {"handler": handle, "executor": loop, "on_error": "stop"}
    pool = zklock.WorkerPool(client, zklock_path, shards=SHARDS, **options)

    async def main() -> None:
        await asyncio.to_thread(pool.start)
        await asyncio.to_thread(wait_for, lambda: len(running) == SHARDS, SOON, "all handled")

    loop.run_until_complete(main())
    loop.close()
    wait_for(lambda: pool.draining and not pool.owned(), SOON, "all shards are given up")
    pool.stop()


def test_a_failing_handler_is_called_again(
    join: Join, mine: Place, caplog: pytest.LogCaptureFixture
) -> None:
    times: list[float] = []

    def handle(shard: zklock.Shard) -> Steps:
        times.append(now_of(mine.client))
        if len(times) < 5:
            raise ValueError("the handler's own")
        yield shard.should_stop

    with caplog.at_level(logging.ERROR):
        script = mine.front.script(handle)
        one = join("a", client=mine.client, shards=1, handler=script, retry=(0.05, 10.0))
        wait_for(lambda: len(times) == 5, SOON, "called again")
        one.stop()
    pauses = [later - sooner for sooner, later in pairwise(times)]
    for number, pause in enumerate(pauses):
        assert pause >= 0.025 * 2**number
    assert sum("the handler of shard 0 raised" in it.message for it in caplog.records) == 4


def test_a_failing_handler_is_stopped_where_asked(front: Front, join: Join) -> None:
    calls: list[int] = []

    def handle(shard: zklock.Shard) -> Steps:
        calls.append(shard.number)
        yield 0.0
        raise ValueError("the handler's own")

    one = join("a", shards=3, handler=front.script(handle), on_error="stop", retry=(0.01, 0.01))
    shared(one, total=3)
    wait_for(lambda: len(calls) == 3, SOON, "called")
    time.sleep(0.1)  # ten pauses
    assert sorted(calls) == [0, 1, 2]
    assert counts(one) == [3]


def test_callbacks_that_raise_hold_nothing_up(
    front: Front, join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(shard: int, grant: Any) -> None:
        raise ValueError("the callback's own")

    def fail_later(shard: int, grant: Any) -> Steps:
        yield 0.0
        fail(shard, grant)

    handled: list[int] = []

    def handle(shard: zklock.Shard) -> Steps:
        handled.append(shard.number)
        yield 0.0

    later, handler = front.script(fail_later), front.script(handle)
    one = join("a", shards=3, on_assigned=fail, on_revoked=later, handler=handler)
    wait_for(lambda: len(handled) == 3, SOON, "handled")
    one.stop()
    for what in ("on_assigned", "on_revoked"):
        assert sum(f"{what} of shard" in it.message for it in caplog.records) == 3


def test_a_stop_that_may_not_wait_finds_nothing_stuck_where_nobody_works(mine: Place) -> None:
    one = mine.pool(identity="a", shards=2)
    one.drain()
    one.start()
    one.stop(0.0)
    mine.gone("/members")


def test_stopped_in_the_middle_of_everything(
    join: Join, zklock_client: Any, zklock_path: str
) -> None:
    for delay in range(0, 60, 4):
        one = join("a")
        time.sleep(delay / 200)  # swept over the whole of the way in
        one.stop()
        for parent in ("members", "assigned", "owned"):
            assert children(zklock_client, f"{zklock_path}/{parent}") == []
        # A worker that was still queueing withdraws in the background.
        gone(zklock_client, f"{zklock_path}/leader")
        for number in children(zklock_client, f"{zklock_path}/shards"):
            gone(zklock_client, f"{zklock_path}/shards/{number}")


def test_wrong_use(mine: Place) -> None:
    async def awaits(shard: aio.Shard) -> None: ...

    def generates(shard: zklock.Shard) -> Iterator[None]:
        yield

    async def generates_too(shard: aio.Shard) -> AsyncIterator[None]:
        yield

    values: tuple[dict[str, Any], ...] = (
        {"shards": 0},
        {"shards": 65537},
        {"capacity": 0},
        {"capacity": float("inf")},
        {"on_error": "ignore"},
        {"executor": "threads"},
        {"handler": print, "executor": "gevent"},
        {"retry": (2, 1)},
        {"settle": -1},
        {"settle": float("inf")},
        {"identity": ""},
    )
    for options in values:
        with pytest.raises(ValueError, match=r"."):
            mine.pool(**options)
    types: tuple[dict[str, Any], ...] = (
        {"shards": "64"},
        {"shards": True},
        {"capacity": "1"},
        {"on_assigned": 1},
        {"on_revoked": 1},
        {"handler": 1},
        {"handler": generates},
        {"handler": generates_too},
        {"handler": generates, "executor": "processes"},
        {"handler": print, "executor": 3},
        {"handler": print, "executor": ProcessPoolExecutor(1)},
        {"handler": print, "executor": "asyncio"},
        {"handler": awaits, "executor": "threads"},
        {"handler": lambda shard: None, "executor": "processes"},
    )
    for options in types:
        with pytest.raises(TypeError):
            mine.pool(**options)
    pool = mine.pool()
    with pytest.raises(ValueError, match="capacity"):
        pool.set_capacity(-1)
    with pytest.raises(TypeError, match="shards"):
        pool.set_shards(2.5)
    pool.stop()
    with pool, pytest.raises(zklock.ZkLockError, match="started before"):
        pool.start()
    with pytest.raises(zklock.ZkLockError, match="started before"):
        pool.start()
    assert mine.nodes() != []


# Processes that crash and stand still.


def verdict(folder: Path, client: Any, path: str) -> checker.Verdict:
    """Note the end of the history, and what is left; return what the checker says of it."""
    with History(folder, "director") as history:
        history.note("calm")
        for number in children(client, f"{path}/shards"):
            lock = f"{path}/shards/{number}"
            history.note("left", lock=lock, names=children(client, lock))
    return checker.check(load(folder))


def test_a_crash_and_a_history_of_ownership(
    processes: Any, zklock_client: Any, zklock_path: str, tmp_path: Path
) -> None:
    """Workers come, crash, stand still, drain, leave: never two owners, and tokens that rise."""
    history = History(tmp_path, "nemesis")
    workers = [processes(name) for name in ("a", "b", "c")]
    shared(*workers)
    one, two, three = workers
    history.note("kill", worker="c")
    three.process.kill()
    shared(one, two)
    late = processes("d", capacity=2.0)
    shared(one, two, late, counted=[6, 6, 12])
    began = boottime()
    freeze(two.process.pid)
    wait_for(lambda: sum(counts(one, late)) == SHARDS, SOON, "redistributed")
    history.note("pause", at=began, worker="b", until=boottime())
    os.kill(two.process.pid, signal.SIGCONT)
    shared(one, two, late, counted=[6, 6, 12])
    assert one.ask("drain", SOON)
    shared(two, late, counted=[8, 16])
    one.ask("resume")
    late.ask("capacity", 1.0)
    shared(one, two, late)
    late.ask("shards", 30)
    shared(one, two, late, total=30)
    for worker in (one, two, late):
        worker.ask("stop")
        assert worker.process.wait(SOON) == 0
    history.close()
    found = verdict(tmp_path, zklock_client, zklock_path)
    assert found.violations == []
    assert found.grants > SHARDS * 2
    assert set(found.ends) == {"RELEASED", "CRASHED", "LEASE_LAPSED"}


def test_a_leader_that_stands_still_is_replaced(processes: Any) -> None:
    workers = [processes(name) for name in ("a", "b", "c")]
    shared(*workers)
    leader = next(worker for worker in workers if worker.ask("leads"))
    others = [worker for worker in workers if worker is not leader]
    before = [worker.owned() for worker in others]
    freeze(leader.process.pid)
    shared(*others)
    for worker, tokens in zip(others, before, strict=True):
        assert tokens.items() <= worker.owned().items()
    os.kill(leader.process.pid, signal.SIGCONT)
    shared(*workers)
    assert not leader.ask("leads")


FRAMES = 60
ONE_OF = repeated(1, 4)
"""Of so many frames one is lost."""


@pytest.mark.slow("each frame is lost once")
@pytest.mark.parametrize("way", ["drop_before_request", "drop_before_reply"])
def test_every_frame_of_the_way_in_and_out_is_lost_once(
    way: str, front: Front, zklock_hosts: str, zklock_connect: Callable[..., Any], zklock_path: str
) -> None:
    """Whatever is lost, the worker owns all in the end, and leaves nothing behind."""
    onlooker = zklock_connect()

    def case(number: int) -> bool:
        path = f"{zklock_path}/{number}"
        with FaultProxy(zklock_hosts) as proxy:
            client = zklock.connect(proxy.hosts, timeout=20.0)
            fault = getattr(proxy, way)(number)
            with front.pool(client, path, shards=3, settle=0.05) as pool:
                shared(pool, total=3)
                for each in pool.owned().values():
                    each.verify(SOON)
            client.stop()
            client.close()
            parents = [f"{path}/{name}" for name in ("leader", "members", "assigned", "owned")]
            for parent in [*parents, *(f"{path}/shards/{each}" for each in range(3))]:
                gone(onlooker, parent)
            return bool(fault.fired.is_set())

    with ThreadPoolExecutor(6) as cases:
        struck = list(cases.map(case, range(1, FRAMES, ONE_OF)))
    assert sum(struck) > len(struck) // 2


def test_zookeeper_goes_and_comes_back(
    front: Front, zklock_own_server: Any, zklock_connect: Any
) -> None:
    client = zklock_connect(zklock_own_server.hosts)
    late = front.pool(client, "/pool", shards=SHARDS)
    with front.pool(client, "/pool", shards=SHARDS) as pool:
        shared(pool)
        zklock_own_server.kill()
        wait_for(lambda: not pool.owned(), SOON, "lost with the lease")
        with pytest.raises(zklock.NoAnswer):
            late.start()
        late.stop()
        zklock_own_server.start()
        shared(pool)
        zklock_own_server.kill()
        pool.stop()
