"""Numbers of requests: none comes twice in a session, and a reply out of turn ends a connection."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss

import zklock
from tests.contract.support import SOON
from tests.unit.testing.wire import Server, reply
from zklock._core.link import FIRST
from zklock.testing import FaultProxy, FrameKind, wait_for

NO_NODE = -101


def test_no_number_comes_twice(
    zklock_connect: Callable[..., Any], zklock_proxy: FaultProxy, zklock_path: str
) -> None:
    """A server confuses requests of one session and number, whichever connection they are of.

    kazoo begins anew with each connection: its own numbers are its own affair.
    """
    client = zklock_connect(zklock_proxy.hosts)
    session = client.client_id[0]
    lock = zklock.Lock(client, zklock_path)
    for _ in range(3):
        with lock:
            pass
        zklock_proxy.drop()
    with lock:
        assert client.client_id[0] == session
    frames = [frame for frame in zklock_proxy.frames if frame.kind is FrameKind.REQUEST]
    xids = [frame.xid for frame in frames if frame.xid is not None and frame.xid >= FIRST]
    assert len({frame.connection for frame in frames}) > 2
    assert xids == sorted(set(xids))


def test_a_reply_out_of_turn_costs_the_connection_and_not_the_client() -> None:
    def swallow(body: bytes) -> bytes:
        _, opcode = struct.unpack_from(">ii", body)
        return b"" if opcode == 9 else answer(body)  # sync

    def answer(body: bytes) -> bytes:
        return reply(struct.unpack_from(">i", body)[0], NO_NODE)

    with Server(answer) as server:
        client = zklock.connect(server.hosts, timeout=4.0)
        try:
            assert client.exists("/a") is None
            server.answer = swallow
            synced, looked = client.sync_async("/a"), client.exists_async("/a")
            for pending in (synced, looked):
                with pytest.raises(ConnectionLoss):
                    pending.get(timeout=SOON)
            wait_for(lambda: client.connected, SOON, "a new connection")
            assert len(server.connections) == 2
            assert client.exists("/a") is None
        finally:
            client.stop()
            client.close()
