"""What holds for both RedisGuards beyond the conformance suite."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tests.contract.fencing.awaited import fresh, on
from tests.contract.fencing.conftest import Stores
from tests.contract.fencing.guards_under_test import AsyncRedisStore, RedisStore
from tests.contract.fencing.interrupts import THOUSANDS, leaves_open, strikes
from tests.contract.fencing.lossy import LoadsAfterwards, LosesReplies
from zklock.errors import GuardUnusable, NoAnswer, OutcomeUnknown, StaleToken
from zklock.fencing import RedisGuard, aio
from zklock.token import FencingToken

A, B = FencingToken(7, 33), FencingToken(7, 34)


@pytest.fixture(params=["redis", "redis-cluster"])
def store(request: pytest.FixtureRequest, stores: Stores) -> RedisStore:
    return fresh(stores, request.param, RedisStore)


@pytest.fixture
def client(store: RedisStore) -> Iterator[Any]:
    with contextlib.closing(store.client()) as client:
        yield client


@pytest.fixture
def guard(store: RedisStore) -> Iterator[RedisGuard]:
    with contextlib.closing(store.open()) as handle:
        yield handle.redis_guard


@contextlib.asynccontextmanager
async def awaited(store: RedisStore) -> AsyncIterator[tuple[Any, aio.RedisGuard]]:
    assert isinstance(store, AsyncRedisStore)
    async with store.async_client() as client:
        yield client, aio.RedisGuard(client, store.resource)


@on("redis", "redis-cluster", "redis-asyncio", "redis-cluster-asyncio")
def test_a_script_of_the_callers_own(store: RedisStore, guard: RedisGuard, client: Any) -> None:
    key = guard.key("count")
    script = "return {redis.call('INCRBY', KEYS[1], ARGV[1]), #KEYS, #ARGV}"
    assert guard.highest() is None
    assert guard.run(script, [key], [5], A) == [5, 1, 1]
    assert guard.run(script, [key], [5], A) == [10, 1, 1]
    RedisGuard(client, store.resource).claim(B)
    for call in (lambda: guard.run(script, [key], [5], A), lambda: guard.set(key, 0, A)):
        with pytest.raises(StaleToken) as caught:
            call()
        assert (caught.value.token, caught.value.highest) == (A, B)
    assert client.get(key) == b"10"


@pytest.mark.parametrize(
    ("script", "result"),
    [
        ("", None),
        ("return", None),
        ("return nil", None),
        ("return false", None),
        ("return true", 1),
        ("return 7", 7),
        ("return 'text'", b"text"),
        ("return {1, {'a', 'b'}}", [1, [b"a", b"b"]]),
        ("return redis.call('GET', KEYS[1])", None),
        ("local function f() return 3 end\nreturn f() -- and a comment", 3),
    ],
)
def test_results_of_scripts(guard: RedisGuard, script: str, result: object) -> None:
    assert guard.run(script, [guard.key("k")], [], A) == result


def test_errors_of_scripts_pass(guard: RedisGuard) -> None:
    from redis.exceptions import ResponseError

    with pytest.raises(ResponseError, match="mine"):
        guard.run("return redis.error_reply('mine')", [], [], A)
    with pytest.raises(ResponseError, match="compiling"):
        guard.run("return (", [], [], A)
    with pytest.raises(ResponseError, match=r"(?i)unknown"):
        guard.run("return redis.call('NONSENSE')", [], [], A)
    with pytest.raises(TypeError, match="must be sequences"):
        guard.run("return 1", "key", [], A)
    with pytest.raises(TypeError, match="must be sequences"):
        guard.run("return 1", b"key", [], A)  # type: ignore[arg-type]


def test_a_client_that_decodes(store: RedisStore) -> None:
    import redis

    if store.cluster:
        decoding: Any = redis.RedisCluster(host="127.0.0.1", port=store.port, decode_responses=True)
    else:
        decoding = redis.Redis(port=store.port, decode_responses=True)
    with contextlib.closing(decoding):
        guard = RedisGuard(decoding, store.resource)
        guard.claim(B)
        assert guard.highest() == B
        assert guard.run("return 'text'", [], [], B) == "text"
        with pytest.raises(StaleToken):
            guard.claim(A)


def test_the_mark_has_no_time_to_live(guard: RedisGuard, client: Any) -> None:
    fence = guard.key("zklock-fence")
    assert client.ttl(fence) == -1
    client.expire(fence, 1000)
    guard.claim(A)
    assert client.ttl(fence) == -1


@pytest.mark.parametrize(
    "mark", ["", "34", "NONE", str(A).replace("7", "g"), str(A)[:-1] + "x", str(A) + "0", ["a"]]
)
def test_a_spoilt_mark_is_refused(guard: RedisGuard, client: Any, mark: str | list[str]) -> None:
    fence, told = guard.key("zklock-fence"), "is not a token but"
    if isinstance(mark, list):
        client.execute_command("DEL", fence)  # some releases of redis-py warn of their delete()
        client.rpush(fence, *mark)
        told = "WRONGTYPE"
    else:
        client.set(fence, mark)
    for call in (lambda: guard.set(guard.key("data"), b"x", B), guard.highest):
        with pytest.raises(GuardUnusable, match=told):
            call()
    assert client.get(guard.key("data")) is None


def test_scripts_that_the_server_forgot_are_sent_again(guard: RedisGuard, client: Any) -> None:
    guard.claim(A)
    client.script_flush()
    guard.claim(B)
    assert guard.highest() == B


@on("redis-cluster")
def test_keys_of_other_slots_are_refused_by_a_cluster(guard: RedisGuard, client: Any) -> None:
    assert client.keyslot(guard.key("data")) == client.keyslot(guard.key("zklock-fence"))
    with pytest.raises(Exception, match="slot"):
        guard.set("elsewhere", b"x", A)


@on("redis")
def test_an_eviction_of_the_mark_is_noticed(guard: RedisGuard, client: Any) -> None:
    """Under an allkeys policy Redis may evict the mark: refused, not started anew."""
    guard.claim(A)
    client.config_set("maxmemory-policy", "allkeys-random")
    client.config_set("maxmemory", 1)
    try:
        # The first command over the limit makes the server evict.
        with contextlib.suppress(Exception):
            client.set("more", b"x")
    finally:
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")
    with pytest.raises(GuardUnusable, match="no mark"):
        guard.claim(B)


def test_each_call_is_one_script(guard: RedisGuard, client: Any) -> None:
    """Comparison and change are one step; a plain read may go to a replica, which is behind."""
    for call in (lambda: guard.set(guard.key("data"), b"x", A), guard.highest):
        call()  # the server may not know the script
        before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        call()
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 1


@pytest.fixture
def lossy(store: RedisStore) -> Iterator[tuple[LosesReplies, RedisGuard]]:
    with (
        contextlib.closing(LosesReplies(store.port)) as proxy,
        contextlib.closing(replace(store, port=proxy.port).open()) as handle,
    ):
        yield proxy, handle.redis_guard


@pytest.mark.hazard("H52")
@on("redis", "redis-asyncio")
def test_a_script_that_redis_py_sends_again_runs_once(
    lossy: tuple[LosesReplies, RedisGuard], client: Any
) -> None:
    proxy, guard = lossy
    key = guard.key("count")
    for script, expected in (
        ("return redis.call('INCRBY', KEYS[1], ARGV[1])", [5, 10, 15]),
        ("redis.call('INCRBY', KEYS[1], ARGV[1])", [None] * 3),
        (
            "redis.call('INCRBY', KEYS[1], ARGV[1]) return {1, {'a', '\\0'}, false}",
            [[1, [b"a", b"\0"], None]] * 3,
        ),
        (
            "redis.call('INCRBY', KEYS[1], ARGV[1]) return redis.call('SET', KEYS[1] .. 'b', '')",
            [b"OK"] * 3,
        ),
    ):
        client.set(key, 0)
        results = []
        for _ in range(3):
            proxy.armed = True
            results.append(guard.run(script, [key], [5], A))
        assert client.get(key) == b"15"
        assert results == expected
    assert proxy.lost == 12


@pytest.mark.hazard("H52")
@on("redis")
def test_a_value_that_redis_py_sends_again_does_not_come_back(
    lossy: tuple[LosesReplies, RedisGuard], store: RedisStore, client: Any
) -> None:
    """Between the two, another thread of the same holder has set another value."""
    proxy, guard = lossy
    key = guard.key("data")
    other = RedisGuard(client, store.resource)
    guard.set(key, b"0", A)
    proxy.armed = True
    guard.set(key, b"1", A)
    assert client.get(key) == b"1"
    call = next(iter(client.scan_iter(guard.key("zklock-call:*"))))
    other.set(key, b"2", A)
    guard._executor[0].calls -= 1
    guard.set(key, b"1", A)
    assert client.get(key) == b"2"
    assert 0 < client.ttl(call) <= 600


@on("redis")
def test_a_script_that_failed_is_not_run_again(
    lossy: tuple[LosesReplies, RedisGuard], client: Any
) -> None:
    from redis.exceptions import ResponseError

    proxy, guard = lossy
    key = guard.key("count")
    proxy.armed = True
    with pytest.raises(ResponseError, match=r"(?i)unknown"):
        guard.run("redis.call('INCR', KEYS[1]) redis.call('NONSENSE')", [key], [], A)
    assert (client.get(key), proxy.lost) == (b"1", 1)
    with pytest.raises(ResponseError, match=r"(?i)unknown"):
        guard.run("redis.call('INCR', KEYS[1]) redis.call('NONSENSE')", [key], [], A)


@on("redis")
def test_a_change_whose_server_died_is_in_doubt_while_the_next_one_loads(
    store: RedisStore, client: Any
) -> None:
    """redis-py sends the change again, and gets the answer that nothing can be done yet."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    with (
        contextlib.closing(LoadsAfterwards(store.port)) as proxy,
        contextlib.closing(redis.Redis(port=proxy.port, retry=Retry(NoBackoff(), 2))) as repeating,
    ):
        guard = RedisGuard(repeating, store.resource)
        key = guard.key("count")
        increase = "return redis.call('INCR', KEYS[1])"
        guard.run(increase, [key], [], A)
        proxy.armed = True
        with pytest.raises(OutcomeUnknown) as caught:
            guard.run(increase, [key], [], A)
        assert isinstance(caught.value.__cause__, redis.BusyLoadingError)
        assert (client.get(key), proxy.lost) == (b"2", 1)
        with pytest.raises(NoAnswer):
            guard.highest()


@pytest.fixture
def replica(store: RedisStore, client: Any, guard: RedisGuard) -> Iterator[RedisGuard]:
    """A guard whose client reaches a server that only reads, and has seen A."""
    guard.claim(A)
    client.execute_command("REPLICAOF", "127.0.0.1", 1)  # no such server: it keeps its data
    yield guard
    client.execute_command("REPLICAOF", "NO", "ONE")


@on("redis")
def test_a_server_that_only_reads_refuses_every_change(replica: RedisGuard) -> None:
    """A replica, or a former primary, may not know the newest mark."""
    for change in (
        replica.create,
        lambda: replica.claim(A),
        lambda: replica.claim(B),
        lambda: replica.set(replica.key("data"), b"x", A),
    ):
        with pytest.raises(GuardUnusable, match="read only"):
            change()
    assert replica.highest() == A


@on("redis")
def test_a_mark_that_could_not_be_made_is_told(client: Any, store: RedisStore) -> None:
    import redis

    client.acl_setuser("reader", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-set"])
    with (
        contextlib.closing(redis.Redis(port=store.port, username="reader", password="")) as weak,
        pytest.raises(GuardUnusable, match="can't run"),
    ):
        RedisGuard(weak, f"{store.resource}-new").create()
    client.acl_deluser("reader")


@pytest.mark.slow("real servers, and connections that are struck or lost")
@leaves_open
@pytest.mark.parametrize("number", [200, THOUSANDS])
def test_after_a_strike_anywhere_each_call_gets_its_own_answer(
    store: RedisStore, number: int
) -> None:
    """redis-py gives a connection back with a reply that nobody has read."""
    from redis.exceptions import ResponseError

    with contextlib.ExitStack() as stack:

        def begin() -> tuple[RedisGuard, str]:
            client = stack.enter_context(contextlib.closing(store.client()))
            guard = RedisGuard(client, store.resource)
            guard.claim(B)
            return guard, guard.key("data")

        def calls(turn: int) -> None:
            with contextlib.suppress(ResponseError):
                match turn % 4:
                    case 0:
                        guard.run("return redis.error_reply('struck')", [], [], B)
                    case 1:
                        guard.set(key, "struck", B)
                    case 2:
                        guard.claim(B)
                    case 3:
                        guard.highest()

        guard, key = begin()
        for turn, _ in strikes(calls, number):
            said = guard.run("return ARGV[1]", [], [f"turn {turn}"], B)
            assert said == f"turn {turn}".encode()
            with pytest.raises(StaleToken):
                guard.set(key, "stale", A)
            guard.set(key, f"turn {turn}", B)
            assert guard.highest() == B
            if turn % 500 == 499:
                # A strike may cost a place in the pool of redis-py, which has a hundred.
                guard, key = begin()


@contextlib.contextmanager
def poisoned(
    store: RedisStore, single: bool, reply: str
) -> Iterator[tuple[RedisGuard, Callable[[], None]]]:
    """Yield a guard, and a call that leaves a reply unread on its connection."""
    import redis

    if isinstance(store, AsyncRedisStore):
        with contextlib.closing(store.open()) as handle:
            pool = handle.client.connection_pool

            async def leave() -> None:
                connection = await pool.get_connection()
                await connection.send_command("EVAL", reply, 0)
                await pool.release(connection)

            yield handle.redis_guard, lambda: handle.runner.run(leave())
        return
    with contextlib.closing(
        redis.Redis(port=store.port, single_connection_client=single)
    ) as client:

        def poison() -> None:
            connection: Any = client.connection or client.connection_pool.get_connection()
            connection.send_command("EVAL", reply, 0)
            if not single:
                client.connection_pool.release(connection)

        yield RedisGuard(client, store.resource), poison


@pytest.mark.parametrize("reply", ["return 'earlier'", "return redis.error_reply('earlier')"])
@pytest.mark.parametrize(
    ("store", "single"),
    [("redis", False), ("redis", True), ("redis-asyncio", False)],
    indirect=["store"],
)
def test_the_reply_to_an_earlier_call_is_not_taken(
    store: RedisStore, client: Any, reply: str, single: bool
) -> None:
    """What a strike leaves behind: a connection with a reply that waits."""
    with poisoned(store, single, reply) as (guard, poison):
        guard.claim(B)
        for call, answer in (
            (lambda: guard.run("return ARGV[1]", [], ["mine"], B), b"mine"),
            (lambda: guard.set(guard.key("data"), "x", B), None),
            (lambda: guard.claim(B), None),
            (guard.highest, B),
            (guard.create, None),
        ):
            poison()
            assert call() == answer
            poison()
            with pytest.raises(StaleToken):
                guard.claim(A)
        assert client.get(guard.key("data")) == b"x"


@on("redis-asyncio")
async def test_calls_of_many_tasks_all_happen_once(store: RedisStore) -> None:
    async with awaited(store) as (_, guard):
        add = "return redis.call('INCR', KEYS[1])"
        calls = (guard.run(add, [guard.key("n")], [], A) for _ in range(50))
        assert sorted(await asyncio.gather(*calls)) == list(range(1, 51))


@pytest.mark.slow("real servers, and connections that are struck or lost")
@pytest.mark.hazard("H52")
@leaves_open
@on("redis-asyncio", "redis-cluster-asyncio")
@pytest.mark.parametrize("number", [100, THOUSANDS])
async def test_after_a_cancelled_call_all_others_get_their_own_answers(
    store: RedisStore, number: int
) -> None:
    """What was cancelled may have happened; its number is not used again, nor its connection."""
    async with awaited(store) as (client, guard):
        key = guard.key("n")
        await guard.set(key, 0, B)
        add = "return redis.call('INCRBY', KEYS[1], ARGV[1])"
        for turn in range(number):
            for call in (guard.run(add, [key], [1], B), guard.claim(B), guard.highest()):
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


def test_calls_of_many_threads_and_processes_all_happen(guard: RedisGuard, client: Any) -> None:
    key = guard.key("count")
    script = "return redis.call('INCR', KEYS[1])"
    guard.run(script, [key], [], A)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: guard.run(script, [key], [], A), range(200)))
    assert client.get(key) == b"201"
    before = [caller.name for caller in guard._executor]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            names = {guard._caller().name for _ in range(len(before))}
            os.write(writing, b"same" if names & set(before) else b"others")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 10) == b"others"
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("head", ["#!lua", "#!lua flags=allow-stale"])
def test_a_script_with_a_head(guard: RedisGuard, head: str) -> None:
    assert guard.run(f"{head}\nreturn ARGV[1]", [], ["a"], A) == b"a"
    assert guard.run(head, [], [], A) is None
    with pytest.raises(StaleToken):
        guard.run(f"{head}\nreturn 1", [], [], FencingToken(6, 0))


@on("redis")
def test_a_script_that_may_not_write(guard: RedisGuard) -> None:
    with pytest.raises(ValueError, match="no-writes: it advances the mark"):
        guard.run("#!lua flags=no-writes\nreturn 1", [], [], A)


@on("redis")
def test_a_client_of_valkey(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    valkey = pytest.importorskip("valkey")
    # A program with valkey-py needs no redis-py.
    for name in [name for name in sys.modules if name.partition(".")[0] == "redis"]:
        monkeypatch.setitem(sys.modules, name, None)
    with contextlib.closing(valkey.Valkey(port=store.port)) as client:
        guard = RedisGuard(client, store.resource)
        guard.create()
        assert guard.highest() is None
        assert guard.run("return ARGV[1]", [], ["a"], B) == b"a"
        assert guard.highest() == B
        with pytest.raises(StaleToken):
            guard.claim(A)
        with pytest.raises(valkey.exceptions.ResponseError, match="mine"):
            guard.run("return redis.error_reply('mine')", [], [], B)
        client.delete(guard.key("zklock-fence"))
        client.rpush(guard.key("zklock-fence"), "a")
        for call in (lambda: guard.claim(A), guard.highest):
            with pytest.raises(GuardUnusable, match="WRONGTYPE"):
                call()
        connection = client.connection_pool.get_connection("EVAL")
        connection.send_command("EVAL", "return 'earlier'", 0)
        client.connection_pool.release(connection)
        client.rename(guard.key("zklock-fence"), "elsewhere")
        with pytest.raises(GuardUnusable, match="no mark"):
            guard.highest()


@on("redis")
def test_clients_that_it_cannot_use_are_refused(client: Any) -> None:
    import redis.asyncio

    awaited = redis.asyncio.Redis()
    refused: list[tuple[type[Any], Any, str]] = [
        (RedisGuard, awaited, r"not a client of redis\.asyncio"),
        (RedisGuard, awaited.pipeline(), r"not a client of redis\.asyncio"),
        (RedisGuard, client.pipeline(), "not a pipeline"),
        (RedisGuard, "redis://127.0.0.1", r"a client of redis-py, not builtins\.str"),
        (aio.RedisGuard, client, r"use zklock\.fencing\.RedisGuard"),
        (aio.RedisGuard, client.pipeline(), r"use zklock\.fencing\.RedisGuard"),
        (aio.RedisGuard, awaited.pipeline(), "not a pipeline"),
        (aio.RedisGuard, awaited.pipeline(transaction=False), "not a pipeline"),
    ]
    for kind, wrong, said in refused:
        with pytest.raises(TypeError, match=said):
            kind(wrong, "a")
    clients: list[tuple[type[Any], Any]] = [(RedisGuard, client), (aio.RedisGuard, awaited)]
    for kind, right in clients:
        for name in ("{a}", "a}", "a{b"):
            with pytest.raises(ValueError, match="must not contain braces"):
                kind(right, name)
