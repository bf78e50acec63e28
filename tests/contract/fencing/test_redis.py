"""What holds for RedisGuard beyond the conformance suite."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.fencing.conftest import Stores
from tests.contract.fencing.subjects import RedisStore
from zklock.errors import GuardUnusable, StaleToken
from zklock.fencing import RedisGuard
from zklock.token import FencingToken

A, B = FencingToken(7, 33), FencingToken(7, 34)


@pytest.fixture(params=["redis", "redis-cluster"])
def store(request: pytest.FixtureRequest, stores: Stores) -> RedisStore:
    subject = stores[request.param]
    assert isinstance(subject, RedisStore)
    return subject.fresh()


@pytest.fixture
def client(store: RedisStore) -> Iterator[Any]:
    with contextlib.closing(store.client()) as client:
        yield client


@pytest.fixture
def guard(store: RedisStore, client: Any) -> RedisGuard:
    return RedisGuard(client, store.resource)


def test_a_script_of_the_callers_own(guard: RedisGuard, client: Any) -> None:
    key = guard.key("count")
    script = "return {redis.call('INCRBY', KEYS[1], ARGV[1]), #KEYS, #ARGV}"
    assert guard.run(script, [key], [5], B) == [5, 1, 1]
    assert guard.run(script, [key], [5], B) == [10, 1, 1]
    with pytest.raises(StaleToken):
        guard.run(script, [key], [5], A)
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
    "mark", ["", "34", "NONE", str(A).replace("7", "g"), str(A)[:-1] + "x", str(A) + "0"]
)
def test_a_spoilt_mark_is_refused(guard: RedisGuard, client: Any, mark: str) -> None:
    client.set(guard.key("zklock-fence"), mark)
    with pytest.raises(GuardUnusable, match="is not a token but"):
        guard.set(guard.key("data"), b"x", B)
    assert client.get(guard.key("data")) is None


def test_a_mark_of_another_type_is_refused(guard: RedisGuard, client: Any) -> None:
    fence = guard.key("zklock-fence")
    client.delete(fence)
    client.rpush(fence, "a")
    for call in (lambda: guard.claim(A), guard.highest):
        with pytest.raises(GuardUnusable, match="WRONGTYPE"):
            call()


def test_scripts_that_the_server_forgot_are_sent_again(guard: RedisGuard, client: Any) -> None:
    guard.claim(A)
    client.script_flush()
    guard.claim(B)
    assert guard.highest() == B


@pytest.mark.parametrize("store", ["redis-cluster"], indirect=True)
def test_keys_of_other_slots_are_refused_by_a_cluster(guard: RedisGuard, client: Any) -> None:
    assert client.keyslot(guard.key("data")) == client.keyslot(guard.key("zklock-fence"))
    with pytest.raises(Exception, match="slot"):
        guard.set("elsewhere", b"x", A)


@pytest.mark.parametrize("store", ["redis"], indirect=True)
def test_a_resource_is_a_hash_tag(client: Any) -> None:
    for name in ("{a}", "a}", "a{b"):
        with pytest.raises(ValueError, match="without braces"):
            RedisGuard(client, name)


@pytest.mark.parametrize("store", ["redis"], indirect=True)
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


@pytest.mark.parametrize("store", ["redis"], indirect=True)
def test_a_command_monitor_sees_one_script(guard: RedisGuard, client: Any) -> None:
    """Comparison and change reach the server as one command."""
    guard.set(guard.key("data"), b"x", A)
    before = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
    guard.set(guard.key("data"), b"y", A)
    after = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert after == before + 1
