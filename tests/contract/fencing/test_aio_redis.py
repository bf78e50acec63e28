"""What holds for the RedisGuard of asyncio beyond the conformance suite."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.contract.fencing.awaited import fresh, played
from tests.contract.fencing.conftest import Stores
from tests.contract.fencing.guards_under_test import AsyncRedisStore
from tests.contract.fencing.interrupts import THOUSANDS, leaves_open
from tests.contract.fencing.lossy import LosesReplies
from zklock.errors import StaleToken
from zklock.fencing import RedisGuard as ThreadedGuard
from zklock.fencing.aio import RedisGuard
from zklock.token import FencingToken

A, B = FencingToken(7, 33), FencingToken(7, 34)

ADD = "return redis.call('INCRBY', KEYS[1], ARGV[1])"


@pytest.fixture(params=["redis-asyncio", "redis-cluster-asyncio"])
def store(request: pytest.FixtureRequest, stores: Stores) -> AsyncRedisStore:
    return fresh(stores, request.param, AsyncRedisStore)


@pytest.fixture
def single(stores: Stores) -> AsyncRedisStore:
    return fresh(stores, "redis-asyncio", AsyncRedisStore)


@contextlib.asynccontextmanager
async def guarded(store: AsyncRedisStore) -> AsyncIterator[tuple[Any, RedisGuard]]:
    client = store.async_client()
    try:
        yield client, RedisGuard(client, store.resource)
    finally:
        await client.aclose()


def test_both_kinds_fence_one_resource(store: AsyncRedisStore) -> None:
    async def play() -> None:
        async with guarded(store) as (client, guard):
            await guard.create()
            assert await guard.highest() is None
            assert await guard.run(ADD, [guard.key("n")], [5], A) == 5
            with contextlib.closing(store.client()) as plain:
                ThreadedGuard(plain, store.resource).claim(B)
            with pytest.raises(StaleToken) as caught:
                await guard.set(guard.key("n"), 0, A)
            assert (caught.value.token, caught.value.highest) == (A, B)
            assert await guard.highest() == B
            assert await client.get(guard.key("n")) == b"5"

    played(play)


@pytest.mark.hazard("H52")
def test_a_script_that_redis_py_sends_again_runs_once(single: AsyncRedisStore) -> None:
    async def play() -> None:
        import redis.asyncio

        with contextlib.closing(LosesReplies(single.port)) as proxy:
            client = redis.asyncio.Redis(port=proxy.port)
            try:
                guard = RedisGuard(client, single.resource)
                for result in (5, 10, 15):
                    proxy.armed = True
                    assert await guard.run(ADD, [guard.key("n")], [5], A) == result
                assert proxy.lost == 3
            finally:
                await client.aclose()

    played(play)


def test_calls_of_many_tasks_all_happen_once(single: AsyncRedisStore) -> None:
    async def play() -> None:
        async with guarded(single) as (_, guard):
            calls = (guard.run(ADD, [guard.key("n")], [1], A) for _ in range(50))
            assert sorted(await asyncio.gather(*calls)) == list(range(1, 51))

    played(play)


@pytest.mark.slow("real servers, and connections that are struck or lost")
@pytest.mark.hazard("H52")
@leaves_open
@pytest.mark.parametrize("number", [100, THOUSANDS])
def test_after_a_cancelled_call_all_others_get_their_own_answers(
    store: AsyncRedisStore, number: int
) -> None:
    """What was cancelled may have happened; its number is not used again, nor its connection."""

    async def play() -> None:
        async with guarded(store) as (client, guard):
            key = guard.key("n")
            await guard.set(key, 0, B)
            for turn in range(number):
                calls = (guard.run(ADD, [key], [1], B), guard.claim(B), guard.highest())
                for call in calls:
                    task = asyncio.create_task(call)
                    for _ in range(turn % 12):
                        await asyncio.sleep(0)
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
                assert await guard.run("return ARGV[1]", [], [f"turn {turn}"], B) == (
                    f"turn {turn}".encode()
                )
                with pytest.raises(StaleToken):
                    await guard.claim(A)
                assert await guard.highest() == B
            assert int(await client.get(key)) <= number

    played(play)


@pytest.mark.parametrize("reply", ["return 'earlier'", "return redis.error_reply('earlier')"])
def test_the_reply_to_an_earlier_call_is_not_taken(single: AsyncRedisStore, reply: str) -> None:
    async def play() -> None:
        async with guarded(single) as (client, guard):
            await guard.claim(B)

            async def poison() -> None:
                connection = await client.connection_pool.get_connection()
                await connection.send_command("EVAL", reply, 0)
                await client.connection_pool.release(connection)

            for call in (lambda: guard.run("return 1", [], [], B), lambda: guard.claim(B)):
                await poison()
                assert await call() in {1, None}
                await poison()
                assert await guard.highest() == B
                await poison()
                with pytest.raises(StaleToken):
                    await guard.claim(A)

    played(play)


def test_clients_that_would_not_be_awaited_are_refused(single: AsyncRedisStore) -> None:
    async def play() -> None:
        with contextlib.closing(single.client()) as plain:
            for wrong in (plain, plain.pipeline()):
                with pytest.raises(TypeError, match=r"use zklock\.fencing\.RedisGuard"):
                    RedisGuard(wrong, "a")
        async with guarded(single) as (client, _):
            for pipeline in (client.pipeline(), client.pipeline(transaction=False)):
                with pytest.raises(TypeError, match="not a pipeline"):
                    RedisGuard(pipeline, "a")
            with pytest.raises(ValueError, match="must not contain braces"):
                RedisGuard(client, "{a}")

    played(play)
