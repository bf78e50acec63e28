"""What WorkerPool for asyncio has of its own: its loop, its tasks, cancellation."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import zklock
from tests.contract.conftest import left_threads
from tests.contract.support import SOON, children, gone
from tests.contract.test_aio import aside
from tests.contract.test_aio_election import until
from zklock import aio
from zklock.testing import wait_for

Make = Callable[..., aio.WorkerPool]
SHARDS = 6
EPHEMERAL = ("leader", "members", "assigned", "owned")


@pytest.fixture
def make(other: Any, zklock_path: str) -> Make:
    """Return ``make(at, **options)``: a worker. All share a client."""

    def worker(at: str = "", **options: Any) -> aio.WorkerPool:
        return aio.WorkerPool(other, zklock_path + at, **{"shards": SHARDS, **options})

    return worker


def owns(*pools: Any, total: int = SHARDS) -> bool:
    """Whether the workers own all shards, in equal parts."""
    sizes = [len(pool.owned()) for pool in pools]
    return sum(sizes) == total and max(sizes) - min(sizes) <= 1


def all_gone(client: Any, path: str) -> None:
    """Wait until no worker has anything in ZooKeeper."""
    for name in EPHEMERAL:
        gone(client, f"{path}/{name}")
    for number in children(client, f"{path}/shards"):
        gone(client, f"{path}/shards/{number}")


async def waits(shard: aio.Shard) -> None:
    await shard.should_stop.wait()


async def no_more_tasks(*others: asyncio.Task[Any]) -> None:
    """Wait until this task, and those given, are the only ones."""
    mine = {asyncio.current_task(), *others}
    await until(lambda: asyncio.all_tasks() == mine, "the end of all other tasks")


class TestWhereThingsRun:
    async def test_handlers_and_callbacks_run_on_the_loop(self, make: Make) -> None:
        home, seen = asyncio.get_running_loop(), set()
        grants: dict[int, aio.Grant] = {}
        handled = set()

        async def handle(shard: aio.Shard) -> None:
            handled.add(shard.number)
            seen.add(("handler", asyncio.get_running_loop(), threading.current_thread()))
            assert isinstance(shard.should_stop, asyncio.Event)
            shard.check()
            await shard.should_stop.wait()

        def assigned(shard: int, grant: aio.Grant) -> None:
            seen.add(("assigned", asyncio.get_running_loop(), threading.current_thread()))
            grants[shard] = grant

        async def revoked(shard: int, grant: aio.Grant) -> None:
            seen.add(("revoked", asyncio.get_running_loop(), threading.current_thread()))
            assert grant.held
            await asyncio.sleep(0.01)
            assert grant.held  # released only when this has returned

        pool = make(handler=handle, on_assigned=assigned, on_revoked=revoked)
        async with pool as entered:
            assert entered is pool
            # a shard that is given back before its handler began never has one
            await until(lambda: owns(pool) and len(grants) == len(handled) == SHARDS)
            assert pool.owned() == grants
            assert all(isinstance(grant, aio.Grant) for grant in grants.values())
            await grants[0].verify()
        thread = threading.current_thread()
        assert seen == {(what, home, thread) for what in ("handler", "assigned", "revoked")}
        assert pool.owned() == {}
        await no_more_tasks()

    async def test_plain_functions_run_where_the_executor_says(self, make: Make) -> None:
        names = set()

        def handle(shard: zklock.Shard) -> None:
            names.add(threading.current_thread().name.rpartition("_")[0])
            shard.should_stop.wait()

        with ThreadPoolExecutor(SHARDS, "mine") as mine:
            for executor in (None, "threads", mine):
                names.clear()
                async with make(handler=handle, executor=executor) as pool:
                    await until(lambda pool=pool: owns(pool) and names)  # type: ignore[misc]
                assert names == {"mine" if executor is mine else "zklock-shard"}

    async def test_both_fronts_in_one_pool_on_one_client(
        self, make: Make, other: Any, zklock_path: str
    ) -> None:
        async with make(identity="task") as one:
            two = zklock.WorkerPool(other, zklock_path, identity="thread")
            await aside(two.start)
            await until(lambda: owns(one, two))
            said = [SHARDS // 2] * 2
            await aside(wait_for, lambda: [it.owned for it in two.members()] == said, SOON, "news")
            members = await one.members()
            assert [it.identity for it in members] == ["task", "thread"]
            assert await aside(two.members) == members
            await aside(two.stop)
            await until(lambda: owns(one))

    async def test_a_blocked_loop_holds_up_no_others_shards(
        self, make: Make, zklock_client: Any, zklock_path: str
    ) -> None:
        """Threads decide: what nobody works on is handed over while the loop is blocked."""
        async with make() as pool:
            await until(lambda: owns(pool))
            other = zklock.WorkerPool(zklock_client, zklock_path)
            other.start()  # blocks this loop, as does all up to the stop
            wait_for(lambda: owns(pool, other), SOON, "a hand-over past a blocked loop")
            other.stop()
            wait_for(lambda: owns(pool), SOON, "the shards are back")


class TestLoss:
    async def test_the_task_of_a_lost_shard_is_cancelled(
        self, make: Make, other: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        events: list[tuple[str, int]] = []

        async def handle(shard: aio.Shard) -> None:
            events.append(("begins", shard.number))
            try:
                await asyncio.Event().wait()  # heeds nothing but its cancellation
            except asyncio.CancelledError:
                assert shard.should_stop.is_set()
                assert not shard.held
                events.append(("is cancelled", shard.number))
                raise

        def revoked(shard: int, grant: aio.Grant) -> None:
            events.append((f"is revoked, held: {grant.held}", shard))

        pool = make(shards=2, handler=handle, on_revoked=revoked, on_error="stop")
        with caplog.at_level(logging.ERROR, "zklock"):
            await pool.start()
            await until(lambda: len(events) == 2)
            grant = pool.owned()[1]
            await aside(other.delete, grant.path)
            await until(lambda: events.count(("begins", 1)) == 2, "handled anew")
            assert grant.lost.is_set()
            mine = [what for what, shard in events if shard == 1]
            assert sorted(mine[1:3]) == ["is cancelled", "is revoked, held: False"]
            assert events.count(("begins", 0)) == 1
            assert pool.owned()[1].token > grant.token
        assert [it.message for it in caplog.records if "handler" in it.message] == []
        with pytest.raises(zklock.PoolStuck, match="shards 0-1"):
            await pool.stop(0.2)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()  # these handlers end no other way
        await pool.stop()

    async def test_a_lost_callback_of_a_shard_runs_on_the_loop(
        self, make: Make, other: Any
    ) -> None:
        told: list[tuple[zklock.LossReason, bool]] = []
        home = asyncio.get_running_loop()

        async def lost(loss: zklock.Loss) -> None:
            told.append((loss.reason, asyncio.get_running_loop() is home))

        async with make(shards=1) as pool:
            await until(lambda: owns(pool, total=1))
            pool.owned()[0].add_lost_callback(lost)
            await aside(other.delete, pool.owned()[0].path)
            await until(lambda: told != [])
            assert told == [(zklock.LossReason.NODE_DELETED, True)]

    async def test_a_cancellation_by_others_is_a_failure(
        self, make: Make, caplog: pytest.LogCaptureFixture
    ) -> None:
        tasks: list[asyncio.Task[Any] | None] = []

        async def handle(shard: aio.Shard) -> None:
            tasks.append(asyncio.current_task())
            await shard.should_stop.wait()

        with caplog.at_level(logging.ERROR, "zklock"):
            async with make(shards=1, handler=handle, retry=(0.01, 0.01)):
                await until(lambda: len(tasks) == 1)
                assert tasks[0] is not None
                tasks[0].cancel()
                await until(lambda: len(tasks) == 2, "handled once more")
        (record,) = [it for it in caplog.records if "the handler of shard 0 raised" in it.message]
        assert record.exc_info is not None
        assert record.exc_info[0] is asyncio.CancelledError


Act = Callable[[aio.WorkerPool], Coroutine[Any, Any, Any]]
ACTS: dict[str, Act] = {
    "stop": lambda pool: pool.stop(),
    "drain": lambda pool: pool.drain(),
    "set_shards": lambda pool: pool.set_shards(SHARDS),
    "assignment": lambda pool: pool.assignment(),
    "members": lambda pool: pool.members(),
}
DELAYS = [0.0, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.1]


async def cancelled_after(delay: float, act: Coroutine[Any, Any, Any]) -> bool:
    """Cancel it after so many seconds; whether it had not ended by then."""
    task = asyncio.create_task(act)
    await asyncio.sleep(delay)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return task.cancelled()


class TestCancellation:
    async def test_of_start(self, make: Make, zklock_client: Any, zklock_path: str) -> None:
        """Cancelled, it leaves what it has joined, and may be started again."""
        struck = 0
        for number, delay in enumerate(DELAYS):
            path = f"{zklock_path}/{number}"
            pool = make(f"/{number}", handler=waits)
            if await cancelled_after(delay, pool.start()):
                struck += 1
                await aside(gone, zklock_client, f"{path}/members")
                await pool.start()
            await until(lambda pool=pool: owns(pool))  # type: ignore[misc]
            await pool.stop()
            await aside(all_gone, zklock_client, path)
        assert struck
        await no_more_tasks()

    async def test_of_stop(self, make: Make, zklock_client: Any, zklock_path: str) -> None:
        """The departure goes on by itself, to its end: nothing is left, and nobody runs."""
        struck = 0
        for delay in DELAYS:
            pool = make(handler=waits)
            await pool.start()
            await until(lambda pool=pool: owns(pool))  # type: ignore[misc]
            struck += await cancelled_after(delay, pool.stop())
            await aside(all_gone, zklock_client, zklock_path)
            await no_more_tasks()
            assert pool.owned() == {}
        assert struck
        await until(lambda: not pool_threads(), f"the end of the threads {pool_threads()}")

    @pytest.mark.parametrize("what", [name for name in ACTS if name != "stop"])
    async def test_of_what_is_asked_of_a_running_pool(
        self, make: Make, zklock_client: Any, zklock_path: str, what: str
    ) -> None:
        """The pool works on as if nothing had been."""
        struck = 0
        async with make(handler=waits) as pool:
            for delay in DELAYS:
                await until(lambda: owns(pool))
                struck += await cancelled_after(delay, ACTS[what](pool))
                assert pool.draining == (what == "drain")
                if what == "drain":
                    await until(lambda: not pool.owned(), "the draining goes on")
                pool.resume()
            await until(lambda: owns(pool))
        assert struck
        await no_more_tasks()
        await aside(all_gone, zklock_client, zklock_path)

    async def test_of_a_pools_body_leaves_in_order(
        self, make: Make, zklock_client: Any, zklock_path: str
    ) -> None:
        begun: list[aio.Shard] = []
        ended: list[bool] = []

        async def handle(shard: aio.Shard) -> None:
            begun.append(shard)
            await shard.should_stop.wait()
            await asyncio.sleep(0.02)
            ended.append(shard.held)

        inside = asyncio.Event()

        async def body() -> None:
            async with make(handler=handle) as pool:
                await until(lambda: owns(pool) and len(begun) == SHARDS)
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(body())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [True] * SHARDS
        await aside(all_gone, zklock_client, zklock_path)


def pool_threads() -> list[str]:
    """Return the threads that pools have started."""
    names = ("zklock-pool", "zklock-campaign", "zklock-lead", "zklock-stop", "zklock-shard")
    return [name for name in left_threads() if name.startswith(names)]


class TestWrongUse:
    async def test_twice(self, make: Make) -> None:
        pool = make()
        first, second = await asyncio.gather(pool.start(), pool.start(), return_exceptions=True)
        assert first is None
        assert isinstance(second, zklock.ZkLockError)
        assert "started before" in str(second)
        await until(lambda: owns(pool))
        await pool.stop()
        await pool.stop()
        with pytest.raises(zklock.ZkLockError, match="started before"):
            await pool.start()

    async def test_stopped_while_it_starts(
        self, make: Make, zklock_client: Any, zklock_path: str
    ) -> None:
        for _ in range(10):
            pool = make(handler=waits)
            starting = asyncio.create_task(pool.start())
            await asyncio.sleep(0)
            await pool.stop()
            with pytest.raises(zklock.ZkLockError, match="stopped before it had joined"):
                await starting
            with pytest.raises(zklock.ZkLockError, match="started before"):
                await pool.start()
        assert await aside(children, zklock_client, f"{zklock_path}/members") == []
        assert not pool_threads()

    async def test_on_another_loop(self, make: Make) -> None:
        async with make() as pool:
            await until(lambda: owns(pool))

            async def abroad() -> None:
                for refused in (pool.stop, pool.drain):
                    with pytest.raises(RuntimeError, match="another event loop"):
                        await refused()
                with pytest.raises(zklock.ZkLockError, match="started before"):
                    await pool.start()
                assert len(await pool.members()) == 1
                assert pool.owned()

            await aside(asyncio.run, abroad())
            assert not pool.draining
            assert owns(pool)

    async def test_without_a_session(self, make: Make, other: Any) -> None:
        pool = make()
        await aside(other.stop)
        with pytest.raises(zklock.ClientClosed):
            await pool.start()
        with pytest.raises(zklock.ClientClosed):
            await pool.members()
        await pool.stop()
        assert await pool.drain()

    async def test_a_loop_is_no_executor(self, make: Make) -> None:
        with pytest.raises(TypeError, match="must not be a loop"):
            make(handler=waits, executor=asyncio.get_running_loop())


class TestTheEndOfTheLoop:
    """The pool was not stopped, or not to the end: it leaves all the same."""

    @pytest.mark.parametrize(
        "how", ["as it works", "as it stops", "without a cancellation", "in a callback"]
    )
    def test_the_pool_leaves(
        self, make: Make, zklock_client: Any, zklock_path: str, how: str
    ) -> None:
        begun, ended, revoked = list[aio.Shard](), list[bool](), list[int]()
        assigned: list[int] = []
        options: dict[str, Any] = {"on_revoked": lambda shard, grant: revoked.append(shard)}

        async def handle(shard: aio.Shard) -> None:
            begun.append(shard)
            try:
                await shard.should_stop.wait()
            except asyncio.CancelledError:
                await asyncio.sleep(0.05)
                ended.append(shard.held)
                raise

        async def never_returns(shard: int, grant: aio.Grant) -> None:
            assigned.append(shard)
            await asyncio.get_running_loop().create_future()

        if how == "in a callback":
            options["on_assigned"] = never_returns
        pool = make(handler=handle, **options)

        async def main() -> None:
            await pool.start()
            await until(lambda: owns(pool) and SHARDS in (len(begun), len(assigned)))
            if how == "as it stops":
                stopping = asyncio.create_task(pool.stop())
                await asyncio.sleep(0)
                stopping.cancel()

        if how.startswith("as it"):
            asyncio.run(main())
        else:  # nothing tells the tasks, which never end
            loop = asyncio.new_event_loop()
            loop.run_until_complete(main())
            loop.close()
        all_gone(zklock_client, zklock_path)
        assert pool.owned() == {}
        if how == "as it works":
            assert ended == [True] * SHARDS  # released when they had ended, and not before
            assert revoked == []
        wait_for(lambda: not pool_threads(), SOON, lambda: f"{pool_threads()} end")
