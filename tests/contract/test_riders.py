"""What rides past kazoo's queue, on a real server, beside what the user asks of the same client."""

from __future__ import annotations

import asyncio
import contextlib
import select
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest
from kazoo.security import make_digest_acl

import zklock
from tests.contract.support import SOON, granted, run
from zklock import aio
from zklock._engine.session import Session
from zklock._kazoo.riding import Listener
from zklock.testing import FaultProxy, FrameKind, wait_for

T = TypeVar("T")


@pytest.fixture(autouse=True)
def riders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZKLOCK_RIDER", "on")


@pytest.fixture
def client(zklock_proxy: FaultProxy, zklock_connect: Callable[..., Any]) -> Any:
    client = zklock_connect(zklock_proxy.hosts)
    wait_for(lambda: client.handler.line is not None, SOON, "the line")
    return client


def writes(proxy: FaultProxy) -> list[str]:
    ops = {"setData", "delete"}  # and no heartbeats
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


def test_a_missing_path_is_not_made_before_what_stands_in_line_is_sent(
    client: Any, zklock_proxy: FaultProxy, zklock_path: str
) -> None:
    lock, line = aio.Lock(client, zklock_path), client.handler.line
    ready = select.poll()
    ready.register(line.fileno(), select.POLLIN)
    refused = zklock_proxy.hold_before_reply(
        op={"create", "create2"},
        where=lambda frame: str(frame.path).startswith(f"{zklock_path}/"),
    )
    order: list[int] = []

    async def wait(number: int) -> None:
        async with lock:
            order.append(number)

    async def ask() -> None:
        first = asyncio.create_task(wait(0))
        await asyncio.to_thread(refused.wait, SOON)
        assert line.turn.acquire(True, SOON)  # nobody else writes or reads
        try:
            zklock_proxy.release()
            assert ready.poll(1000 * SOON), "the reply to the first"
            others = [asyncio.create_task(wait(number)) for number in range(1, 10)]
            await asyncio.sleep(0)  # they have asked, and stand in line
        finally:
            line.turn.release()
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
    client: Any,
    zklock_proxy: FaultProxy,
    zklock_path: str,
    zklock_connect: Callable[..., Any],
    zklock_hosts: str,
) -> None:
    holder = granted(zklock.Lock(zklock_connect(zklock_hosts), zklock_path))
    events: list[Any] = []
    assert client.exists(holder.path, watch=events.append)
    waiting = run(granted, zklock.Lock(client, zklock_path))
    zklock_proxy.wait_for_frame(
        lambda frame: (
            frame.kind is FrameKind.REPLY and (frame.op, frame.path) == ("getData", holder.path)
        ),
        SOON,
    )
    holder.release()
    waiting.result(SOON).release()
    wait_for(lambda: len(events) == 1, SOON, lambda: f"{events}")
    assert (events[0].type, events[0].path) == ("DELETED", holder.path)


@pytest.mark.parametrize("chroot", ["", "/root-of-riders/below"])
def test_a_chroot_is_that_of_the_client(
    zklock_hosts: str, zklock_connect: Callable[..., Any], zklock_path: str, chroot: str
) -> None:
    onlooker = zklock_connect(zklock_hosts)
    root = zklock_path + chroot
    onlooker.ensure_path(root)
    first, second = (zklock_connect(zklock_hosts + root) for _ in range(2))
    holder = granted(zklock.Lock(first, "/lock"))
    assert holder.path.startswith("/lock/")
    assert onlooker.exists(root + holder.path)
    waiting = run(granted, zklock.Lock(second, "/lock"))
    wait_for(lambda: len(onlooker.get_children(f"{root}/lock")) == 2, SOON, "the waiter")
    holder.verify(SOON)
    holder.release()
    waiting.result(SOON).release()
    assert onlooker.get_children(f"{root}/lock") == []
    onlooker.delete(root, recursive=True)


def test_acls_are_those_of_the_client(
    zklock_hosts: str, zklock_connect: Callable[..., Any], zklock_path: str
) -> None:
    zklock_connect(zklock_hosts).ensure_path(zklock_path)
    acl = [make_digest_acl("me", "secret", all=True)]
    client = zklock_connect(zklock_hosts, default_acl=acl, auth_data=[("digest", "me:secret")])
    with zklock.Lock(client, zklock_path) as grant:
        assert client.get_acls(grant.path)[0] == acl


def passing(client: Any, path: str) -> Callable[[], None]:
    """Return what takes a lock and gives it back."""

    def passes() -> None:
        with zklock.Lock(client, path):
            pass

    return passes


def behind(
    client: Any, other: Any, path: str, wait: Callable[[], T]
) -> tuple[zklock.Grant, Future[T]]:
    """Have ``wait`` run, which waits for a lock of the client's; return when it listens itself.

    It does not where anything else is under way, such as a heartbeat.
    """
    found: list[tuple[zklock.Grant, Future[T]]] = []

    def tried() -> bool:
        grant, line = granted(zklock.Lock(other, path)), client.handler.line
        waiting = run(wait)
        with contextlib.suppress(TimeoutError):
            wait_for(lambda: isinstance(line.turn.reading, Listener), 0.5, interval=0.001)
            found.append((grant, waiting))
            return True
        grant.release()
        waiting.result(SOON)
        return False

    wait_for(tried, SOON, "a waiter that listens")
    return found[0]


def test_who_waits_hears_itself_that_its_turn_has_come(
    client: Any, zklock_client: Any, zklock_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless a heartbeat comes in between."""
    heard: list[int] = []
    on_event = Session._on_event

    def noted(self: Session, kind: str, path: str | None, *by: Any) -> None:
        if by:
            heard.append(threading.get_ident())
        on_event(self, kind, path, *by)

    def waits() -> int:
        with zklock.Lock(client, zklock_path):
            return threading.get_ident()

    def waited() -> bool:
        heard.clear()
        grant, waiting = behind(client, zklock_client, zklock_path, waits)
        grant.release()
        waiter = waiting.result(SOON)
        return heard == [waiter]

    monkeypatch.setattr(Session, "_on_event", noted)
    wait_for(waited, SOON, "a waiter that has heard it")


def test_a_limit_of_years_is_one(client: Any, zklock_client: Any, zklock_path: str) -> None:
    """The system takes none of more than 24 days."""

    def waits() -> None:
        with zklock.Lock(client, zklock_path).attempt(timeout=threading.TIMEOUT_MAX) as got:
            assert got

    for _ in range(20):
        waits()
    grant, waiting = behind(client, zklock_client, zklock_path, waits)
    grant.release()
    waiting.result(SOON)


def test_several_who_wait_on_one_client_are_all_told(
    client: Any, zklock_client: Any, zklock_path: str
) -> None:
    for number in range(20):
        before = granted(zklock.Lock(zklock_client, zklock_path))
        order: list[int] = []

        def wait(at: int, order: list[int] = order) -> None:
            with zklock.Lock(client, zklock_path):
                order.append(at)

        lock, waiting = zklock.Lock(client, zklock_path), []
        for at in range(4):
            waiting.append(run(wait, at))
            wait_for(lambda: len(lock.contenders()) == len(waiting) + 1, SOON, "the queue")  # noqa: B023
        before.release()
        for each in waiting:
            each.result(SOON)
        assert order == [0, 1, 2, 3], number


def test_a_user_who_watches_the_blocker_hears_of_it_too(
    client: Any, zklock_client: Any, zklock_path: str
) -> None:
    events: list[Any] = []
    grant, waiting = behind(client, zklock_client, zklock_path, passing(client, zklock_path))
    assert client.exists(grant.path, watch=events.append)
    grant.release()
    waiting.result(SOON)
    wait_for(lambda: events, SOON, "the event")
    assert [(each.type, each.path) for each in events] == [("DELETED", grant.path)]


def test_what_the_user_asks_while_one_waits_is_answered(
    client: Any, zklock_client: Any, zklock_path: str
) -> None:
    grant = granted(zklock.Lock(zklock_client, zklock_path))
    waiting = run(granted, zklock.Lock(client, zklock_path))
    for number in range(100):
        client.set(zklock_path, b"%d" % number)
    grant.release()
    waiting.result(SOON).release()


def test_who_listens_hears_that_the_session_is_lost(
    client: Any,
    zklock_client: Any,
    zklock_path: str,
) -> None:
    grant, waiting = behind(client, zklock_client, zklock_path, passing(client, zklock_path))
    client.stop()
    with pytest.raises(zklock.ClientClosed):
        waiting.result(SOON)
    grant.release()


def test_a_task_hears_on_its_loop_what_comes_at_once(
    client: Any, zklock_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = aio.Lock(client, zklock_path)
    reader = lock._session.reader
    assert reader is not None
    heard: list[bool] = []
    reads, loop = reader.reads, threading.get_ident()

    def read(flight: object, seconds: float | None) -> bool:
        assert (seconds, threading.get_ident()) == (None, loop)
        heard.append(reads(flight, seconds))
        return heard[-1]

    async def hears() -> None:
        async with asyncio.timeout(SOON):
            while heard.count(True) < 20:
                async with lock:
                    pass

    monkeypatch.setattr(reader, "reads", read)
    monkeypatch.setattr("zklock._kazoo.spin.LIMIT", SOON)  # the proxy is slow
    asyncio.run(hears())
