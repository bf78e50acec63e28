"""The fault proxy between kazoo, as it is, and a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError

from tests.contract.support import SOON, kazoo_client
from zklock.testing import FaultProxy, FrameKind, ZooKeeperServer, wait_for


@pytest.fixture
def client(zklock_proxy: FaultProxy) -> Iterator[Any]:
    with kazoo_client(zklock_proxy.hosts, timeout=2.0) as client:
        yield client


def test_a_whole_conversation_is_understood(
    zklock_proxy: FaultProxy, client: Any, zklock_path: str
) -> None:
    mark = zklock_proxy.mark()
    before = zklock_proxy.counts
    seen = threading.Event()
    client.create(zklock_path, b"1")
    client.get(zklock_path, watch=lambda event: seen.set())
    client.set(zklock_path, b"2")
    assert seen.wait(SOON)
    client.get_children(zklock_path)
    client.sync(zklock_path)
    with pytest.raises(NoNodeError):
        client.delete(f"{zklock_path}/none")
    client.create(f"{zklock_path}/c-", ephemeral=True, sequence=True, include_data=True)
    frames = [frame for frame in zklock_proxy.frames if frame.number > mark]
    asked = [frame for frame in frames if frame.kind is FrameKind.REQUEST]
    assert [frame.op for frame in asked] == [
        "create",
        "getData",
        "setData",
        "getChildren",
        "sync",
        "delete",
        "create2",
    ]
    assert [frame.op for frame in frames if frame.kind is FrameKind.REPLY] == [
        frame.op for frame in asked
    ]
    assert [frame.error for frame in frames if frame.kind is FrameKind.REPLY] == [
        0, 0, 0, 0, 0, -101, 0,
    ]  # fmt: skip
    assert [(frame.op, frame.path) for frame in frames if frame.kind is FrameKind.EVENT] == [
        ("NodeDataChanged", zklock_path)
    ]
    assert zklock_proxy.counts.requests - before.requests == len(asked) == 7
    (connection,) = zklock_proxy.connections
    assert connection.session_id == client.client_id[0]
    assert connection.session_timeout == 2.0


def test_the_address_survives_a_restart_of_the_server(zklock_own_server: ZooKeeperServer) -> None:
    with FaultProxy(zklock_own_server) as proxy, kazoo_client(proxy.hosts) as client:
        states: list[str] = []
        client.add_listener(states.append)
        zklock_own_server.kill()
        wait_for(lambda: "SUSPENDED" in states, SOON)
        zklock_own_server.start()
        wait_for(lambda: "CONNECTED" in states, SOON)
        assert client.exists("/") is not None
