"""What rides past kazoo's queue, on a real server, beside what the user asks of the same client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.security import make_digest_acl

import zklock
from tests.contract.support import SOON, granted, run
from zklock import aio
from zklock.testing import FaultProxy, FrameKind, wait_for


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
