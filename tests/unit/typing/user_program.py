"""What a user writes: checked by mypy --strict, as all tests are. Never run.

Bodies of ``with``, callbacks and loops are here. What each method returns is pinned in
``tests/unit/public_names.txt``.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, assert_type

import zklock
from zklock import aio
from zklock.fencing import verify_owner


def threads() -> None:
    client = zklock.connect("zk1:2181", timeout=timedelta(seconds=10).total_seconds())
    assert_type(client, zklock.Client)
    assert_type(client.handler, zklock.Handler)
    assert_type(client.connected, bool)
    with zklock.connect("zk1:2181") as short_lived:
        assert_type(short_lived, zklock.Client)
    handler = zklock.Handler()
    assert_type(handler.session_timeout, float | None)

    def on_lost(loss: zklock.Loss) -> None:
        assert_type(loss.reason, zklock.LossReason)
        print(loss.grant.token, loss.noticed, loss.lease_end, zklock.__version__)

    def give_way(grant: zklock.Grant) -> None:
        grant.abandon()

    lock = zklock.Lock(
        client,
        "/locks/report",
        identity="host-7",
        timeout=5.0,
        on_lost=on_lost,
        on_suspended=lambda grant: print(grant.remaining()),
        on_release_requested=give_way,
        tidy=True,
        track_abandoned=True,
        lock_delay=1.0,
        session_timeout=10.0,
        lease_fraction=0.7,
    )
    assert_type(lock.acquire(blocking=False), zklock.Grant | None)
    with lock.attempt(timeout=2.0) as perhaps:
        assert_type(perhaps, zklock.Grant | None)
    if perhaps is not None:
        with perhaps as entered:
            assert_type(entered, zklock.Grant)
    with lock as grant:
        assert_type(grant, zklock.Grant)
        assert_type(grant.token, zklock.FencingToken)
        assert_type(grant.lost, threading.Event)
        grant.add_lost_callback(on_lost)
        assert_type(verify_owner(client, grant.lock_path, grant), zklock.Contender)

    with zklock.RLock(client, "/locks/again") as outer:
        assert_type(outer, zklock.Grant)
    with zklock.ReadLock(client, "/locks/table", identity="reader"):
        pass
    writer = zklock.WriteLock(client, "/locks/table")
    with writer:
        assert_type(writer.downgrade(), zklock.Grant)
    semaphore = zklock.Semaphore(client, "/locks/scanner", limit=3, on_lost=on_lost)
    assert_type(semaphore.acquire(permits=2), zklock.Grant | None)
    with semaphore.attempt(timeout=0, permits=2) as permits:
        assert_type(permits, zklock.Grant | None)
    several = zklock.MultiLock([lock, writer, semaphore], timeout=3.0, on_lost=on_lost)
    with several.attempt() as perhaps_all:
        assert_type(perhaps_all, zklock.MultiGrant | None)
    with several as all_of_them:
        assert_type(all_of_them, zklock.MultiGrant)
        assert_type(all_of_them.tokens, dict[str, zklock.FencingToken])


def errors(path: str) -> None:
    try:
        raise zklock.LockLost("lost", path=path)
    except zklock.StaleToken as stale:
        assert_type(stale.highest, zklock.FencingToken | None)
    except zklock.LimitMismatch as mismatch:
        assert_type(mismatch.kept, int | None)
    except zklock.NotOwner as other:
        assert_type(other.holder, str | None)
    except zklock.LockLost as lost:
        assert_type(lost.loss, zklock.Loss | None)
    except zklock.ZkLockError as error:
        print(error.token)


def pools() -> None:
    def consume(shard: zklock.Shard) -> None:
        assert_type(shard.number, int)
        assert_type(shard.token, zklock.FencingToken)
        while shard.held and not assert_type(shard.should_stop.wait(1.0), bool):
            shard.check()

    async def consume_soon(shard: aio.Shard) -> None:
        assert_type(shard.should_stop, asyncio.Event)
        await shard.should_stop.wait()

    def on_assigned(shard: int, grant: zklock.Grant) -> None:
        print(shard, grant.token)

    def on_name(shard: str, grant: zklock.Grant) -> None:
        print(shard, grant.token)

    client = zklock.connect()
    zklock.WorkerPool(client, "/pools/regions", shards=["eu", "us"], on_assigned=on_name).stop()
    pool = zklock.WorkerPool(
        client,
        "/pools/orders",
        shards=256,
        identity="host-7",
        capacity=2.0,
        on_assigned=on_assigned,
        on_revoked=lambda shard, grant: print(shard, grant.held),
        handler=consume,
        executor=ThreadPoolExecutor(8),
        on_error="retry",
        retry=(0.5, 30.0),
        settle=0.2,
    )
    with pool:
        assert_type(pool.owned(), dict[Any, zklock.Grant])
        for change in pool.membership_changes(timeout=1.0):
            assert_type(change, zklock.MembershipChange[zklock.PoolWorker])
    zklock.WorkerPool(client, "/pools/mail", handler=consume_soon, executor="asyncio").stop()


def leaders() -> None:
    client = zklock.connect()

    def lead(leadership: zklock.Leadership) -> None:
        while not leadership.should_stop.wait(1.0):
            leadership.check()

    election = zklock.LeaderElection(client, "/leader", identity="host-7", payload=b"10.0.0.7:80")
    election.run(lead, stop=threading.Event(), on_error="raise")
    election.observe(lambda change: print(change.leader))
    for change in election.changes(timeout=1.0):
        assert_type(change, zklock.LeaderChange)
    assert_type(election.acquire(timeout=1.0), zklock.Leadership | None)
    assert_type(election.acquire(blocking=False), zklock.Leadership | None)
    with election.acquire() as acquired:
        assert_type(acquired, zklock.Leadership)
    with election.attempt() as leadership:
        assert_type(leadership, zklock.Leadership | None)
    for more in election.membership_changes(timeout=1.0):
        assert_type(more, zklock.MembershipChange[zklock.Contender])
        assert_type(more.joined, tuple[zklock.Contender, ...])
    with election.observe_membership(lambda change: print(change.left)) as observer:
        assert_type(observer, zklock.Observer)


async def tasks() -> None:
    async with aio.connect("zk1:2181") as client:
        assert_type(client, zklock.Client)
        lock = aio.Lock(client, "/locks/report", on_suspended=lambda grant: print(grant.token))
        async with lock as grant:
            assert_type(grant, aio.Grant)
            await grant.verify()
            await grant.lost.wait()
        assert_type(await lock.acquire(timeout=1.0), aio.Grant | None)
        async with lock.attempt(timeout=2.0) as perhaps:
            assert_type(perhaps, aio.Grant | None)
        if perhaps is not None:
            async with perhaps as entered:
                assert_type(entered, aio.Grant)
        async with aio.RLock(client, "/r"), aio.ReadLock(client, "/t"):
            pass
        writer = aio.WriteLock(client, "/t")
        async with writer:
            assert_type(await writer.downgrade(), aio.Grant)
        semaphore = aio.Semaphore(client, "/s", limit=None)
        assert_type(await semaphore.acquire(permits=2), aio.Grant | None)
        async with aio.MultiLock([lock, writer]) as several:
            assert_type(several, aio.MultiGrant)


async def leading_tasks() -> None:
    async def lead(leadership: aio.Leadership) -> None:
        await leadership.should_stop.wait()
        leadership.resign()

    async with aio.connect() as client:
        election = aio.LeaderElection(client, "/leader", payload="10.0.0.7:80", grace=5.0)
        await election.run(lead, stop=asyncio.Event(), on_error="raise")
        election.observe(lambda change: print(change.leader))
        async for change in election.changes(timeout=1.0):
            assert_type(change, zklock.LeaderChange)
        assert_type(await election.acquire(timeout=1.0), aio.Leadership | None)
        async with await election.acquire() as acquired:
            assert_type(acquired, aio.Leadership)
        async with election.attempt() as leadership:
            assert_type(leadership, aio.Leadership | None)
        async for more in election.membership_changes(timeout=1.0):
            assert_type(more, zklock.MembershipChange[zklock.Contender])


async def pools_of_tasks() -> None:
    async def consume(shard: aio.Shard) -> None:
        await shard.should_stop.wait()

    async def on_revoked(shard: int, grant: aio.Grant) -> None:
        await grant.verify()

    async with aio.connect() as client:
        pool = aio.WorkerPool(
            client,
            "/pools/orders",
            shards=256,
            capacity=2.0,
            on_assigned=lambda shard, grant: print(shard, grant.token),
            on_revoked=on_revoked,
            handler=consume,
        )
        async with pool as entered:
            assert_type(entered, aio.WorkerPool)
            assert_type(pool.owned(), dict[Any, aio.Grant])
