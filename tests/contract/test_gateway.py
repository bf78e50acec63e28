"""What rides past kazoo's queue, on a real server, beside what the user asks of the same client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

import pytest
from kazoo.security import make_digest_acl

import zklock
from tests.contract.fronts import Place, Threads
from tests.contract.support import SOON, granted, open_connection, results, run
from zklock import aio, telemetry
from zklock.testing import FaultProxy, FrameKind, wait_for

T = TypeVar("T")


@pytest.fixture
def front() -> Threads:
    return Threads()


@pytest.fixture
def client(zklock_proxy: FaultProxy, zklock_connect: Callable[..., Any]) -> Any:
    client = zklock_connect(zklock_proxy.hosts)
    wait_for(lambda: open_connection(client.handler) is not None, SOON, "the line")
    return client


def writes(proxy: FaultProxy) -> list[str]:
    ops = {"create2", "setData", "delete"}  # and no heartbeats
    return [
        frame.op for frame in proxy.frames if frame.kind is FrameKind.REQUEST and frame.op in ops
    ]


def test_no_release_overtakes_the_users_own_writes(
    client: Any, zklock_proxy: FaultProxy, zklock_path: str
) -> None:
    client.ensure_path(zklock_path)
    lock = zklock.Lock(client, zklock_path)
    grant = granted(lock)
    before = len(writes(zklock_proxy))
    written = [client.set_async(zklock_path, b"%d" % number) for number in range(50)]
    grant.release()
    for each in written:
        each.get(timeout=SOON)
    assert writes(zklock_proxy)[before:] == ["setData"] * 50 + ["delete"]


def test_a_missing_path_is_not_made_before_what_was_asked_is_answered(
    client: Any, zklock_proxy: FaultProxy, zklock_path: str
) -> None:
    lock = aio.Lock(client, zklock_path)
    refused = zklock_proxy.hold_before_reply(
        op={"create", "create2"}, where=lambda frame: str(frame.path).startswith(f"{zklock_path}/")
    )
    order: list[int] = []

    async def wait(number: int) -> None:
        async with lock:
            order.append(number)

    async def ask() -> None:
        first = asyncio.create_task(wait(0))
        await asyncio.to_thread(refused.wait, SOON)
        others = [asyncio.create_task(wait(number)) for number in range(1, 10)]
        await asyncio.sleep(0)  # they have asked
        zklock_proxy.release()
        await asyncio.wait_for(asyncio.gather(first, *others), SOON)

    asyncio.run(ask())
    assert order == list(range(10))


def test_kazoo_does_not_see_what_rides(client: Any, zklock_path: str) -> None:
    client.ensure_path(zklock_path)
    before = client.last_zxid
    with zklock.Lock(client, zklock_path):
        assert client.last_zxid == before
        assert client.get_children(zklock_path)
        assert client.last_zxid > before


def test_a_user_who_watches_the_same_node_hears_of_it_too(
    mine: Place, theirs: Place, zklock_proxy: FaultProxy
) -> None:
    holder = granted(theirs.Lock())
    events: list[Any] = []
    assert mine.client.exists(holder.path, watch=events.append)
    waiting = run(granted, mine.Lock())
    answer = (FrameKind.REPLY, "getData", holder.path)
    zklock_proxy.wait_for_frame(lambda it: (it.kind, it.op, it.path) == answer, SOON)
    holder.release()
    waiting.result(SOON).release()
    wait_for(lambda: len(events) == 1, SOON, lambda: f"{events}")
    assert (events[0].type, events[0].path) == ("DELETED", holder.path)


def test_acls_are_those_of_the_client(
    other: Any, zklock_connect: Callable[..., Any], zklock_path: str
) -> None:
    other.ensure_path(zklock_path)
    acl = [make_digest_acl("me", "secret", all=True)]
    client = zklock_connect(default_acl=acl, auth_data=[("digest", "me:secret")])
    with zklock.Lock(client, zklock_path) as grant:
        assert client.get_acls(grant.path)[0] == acl


def test_a_limit_of_years_is_one(mine: Place, theirs: Place) -> None:
    """The system takes none of more than 24 days."""
    years = threading.TIMEOUT_MAX
    granted(mine.Lock(), timeout=years).release()
    grant = granted(theirs.Lock())
    waiting = theirs.waits(mine.Lock(), 2, timeout=years)
    grant.release()
    waiting.result(SOON).release()


def test_several_who_wait_on_one_client_are_all_told(mine: Place, theirs: Place) -> None:
    for number in range(20):
        before = granted(theirs.Lock())
        order: list[int] = []

        def wait(at: int, order: list[int] = order) -> None:
            with mine.Lock():
                order.append(at)

        waiting = []
        for at in range(4):
            waiting.append(run(wait, at))
            theirs.queued(2 + at)
        before.release()
        results(waiting)
        assert order == [0, 1, 2, 3], number


def test_what_the_user_asks_while_one_waits_is_answered(mine: Place, theirs: Place) -> None:
    grant = granted(theirs.Lock())
    waiting = run(granted, mine.Lock())
    for number in range(100):
        mine.client.set(mine.path, b"%d" % number)
    grant.release()
    waiting.result(SOON).release()


def test_a_user_who_never_stops_asking_keeps_no_request_of_a_lock_waiting(
    client: Any, zklock_proxy: FaultProxy, zklock_path: str
) -> None:
    """What the user asks before a call goes before it, and what the user asks later does not."""
    client.ensure_path(zklock_path)
    lock, enough, most = zklock.Lock(client, f"{zklock_path}/lock"), threading.Event(), 200
    granted(lock).release()

    def ask(_: object = None) -> None:
        if not enough.is_set():
            client.set_async(zklock_path, b"").rawlink(ask)

    for _ in range(most):
        ask()
    try:
        for _ in range(5):
            before = len(writes(zklock_proxy))
            grant = granted(lock)
            assert writes(zklock_proxy)[before:].index("create2") <= 2 * most
            grant.release()
    finally:
        enough.set()
    grant = granted(lock)
    assert grant.held
    grant.release()


@pytest.mark.parametrize(
    "begin", [zklock.LeaderElection.changes, zklock.LeaderElection.membership_changes]
)
def test_who_begins_to_watch_an_election_keeps_no_event_from_others(
    begin: Callable[[zklock.LeaderElection], Any],
    zklock_client: Any,
    zklock_connect: Callable[..., Any],
    zklock_path: str,
) -> None:
    """Else nobody reads until the next heartbeat is sent."""
    zklock_client.ensure_path(zklock_path)
    client = zklock_connect(timeout=40.0)
    election = zklock.LeaderElection(client, f"{zklock_path}/election")
    assert election.leader() is None
    connection = open_connection(client.handler)
    assert connection is not None

    def told_before_a_heartbeat() -> bool:
        told, sent = threading.Event(), list[telemetry.Event]()
        client.get(zklock_path, watch=lambda _: told.set())
        wait_for(lambda: client.handler.session.link.idle, SOON, "nothing under way")
        with closing(begin(election)), closing(telemetry.subscribe(sent.append)) as subscription:
            zklock_client.set(zklock_path, b"")
            assert told.wait(SOON)
            assert subscription.flush(SOON)
        return not [event for event in sent if isinstance(event, telemetry.HeartbeatSent)]

    assert any(told_before_a_heartbeat() for _ in range(3))
