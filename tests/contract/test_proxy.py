"""The fault proxy between kazoo, as it is, and a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from zklock.testing import FaultProxy, FrameKind, ZooKeeperServer

DEADLINE = 60.0


class Recorder:
    """Lets a test wait for a state of the client instead of for time to pass."""

    def __init__(self) -> None:
        self.news = threading.Condition()
        self.states: list[str] = []

    def __call__(self, state: str) -> None:
        with self.news:
            self.states.append(state)
            self.news.notify_all()

    def wait(self, state: str) -> None:
        with self.news:
            assert self.news.wait_for(lambda: state in self.states, DEADLINE), self.states


@pytest.fixture
def states() -> Recorder:
    return Recorder()


@pytest.fixture
def client(zklock_proxy: FaultProxy, states: Recorder) -> Iterator[Any]:
    client = KazooClient(zklock_proxy.hosts, timeout=2.0)
    client.start(DEADLINE)
    client.add_listener(states)
    yield client
    client.stop()
    client.close()


def test_a_whole_conversation_is_understood(
    zklock_proxy: FaultProxy, client: Any, zklock_path: str
) -> None:
    mark = zklock_proxy.mark()
    before = zklock_proxy.counts
    seen = threading.Event()
    client.create(zklock_path, b"1")
    client.get(zklock_path, watch=lambda event: seen.set())
    client.set(zklock_path, b"2")
    assert seen.wait(DEADLINE)
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


def test_every_position_of_a_conversation_is_reached_alike_every_time(
    zklock_proxy: FaultProxy, client: Any, zklock_client: Any, zklock_path: str
) -> None:
    """Five creates in one batch, ended at each: the n-th fault is at the n-th create."""
    zklock_client.create(zklock_path)
    for n in range(1, 6):
        paths = [f"{zklock_path}/{n}-{k}" for k in range(1, 6)]
        fault = zklock_proxy.drop_after_request(n, op="create")
        batch = [client.create_async(path) for path in paths]
        results = [result.exception if result.wait(DEADLINE) else None for result in batch]
        assert fault.wait(DEADLINE).path == paths[n - 1]
        done = [path for path in paths if zklock_client.exists(path)]
        heard = [
            path
            for path, result, error in zip(paths, batch, results, strict=True)
            if error is None and result.get() == path
        ]
        assert heard[: n - 1] == paths[: n - 1]
        assert paths[n - 1] not in heard
        # What kazoo had not sent when the connection dropped, it sends on the next one.
        assert done[:n] == paths[:n]
        client.retry(client.exists, "/")


def test_a_cut_beyond_the_timeout_ends_the_session(
    zklock_proxy: FaultProxy,
    client: Any,
    zklock_client: Any,
    zklock_path: str,
    states: Recorder,
) -> None:
    client.create(zklock_path, ephemeral=True)
    gone = threading.Event()
    assert zklock_client.exists(zklock_path, watch=lambda event: gone.set())
    session = client.client_id[0]
    zklock_proxy.cut()
    assert gone.wait(DEADLINE)
    zklock_proxy.restore()
    states.wait("LOST")
    states.wait("CONNECTED")
    assert client.client_id[0] != session


def test_a_black_hole_ends_the_session_and_the_client_is_not_told(
    zklock_proxy: FaultProxy,
    client: Any,
    zklock_client: Any,
    zklock_path: str,
    states: Recorder,
) -> None:
    client.create(zklock_path, ephemeral=True)
    gone = threading.Event()
    assert zklock_client.exists(zklock_path, watch=lambda event: gone.set())
    zklock_proxy.blackhole()
    assert gone.wait(DEADLINE)
    assert "LOST" not in states.states
    zklock_proxy.restore()
    states.wait("LOST")


def test_a_pause_shorter_than_the_timeout_costs_nothing(
    zklock_proxy: FaultProxy, client: Any, zklock_path: str, states: Recorder
) -> None:
    zklock_proxy.hold()
    created = client.create_async(zklock_path, ephemeral=True)
    zklock_proxy.wait_for_frame(lambda frame: frame.path == zklock_path, DEADLINE)
    assert not created.ready()
    zklock_proxy.release()
    assert created.get(timeout=DEADLINE) == zklock_path
    assert states.states == []


def test_a_handshake_without_its_answer_is_tried_again(
    zklock_proxy: FaultProxy, states: Recorder
) -> None:
    fault = zklock_proxy.drop_before_reply(op="connect")
    client = KazooClient(zklock_proxy.hosts, timeout=2.0)
    try:
        client.start(DEADLINE)
        first, second = zklock_proxy.connections
        assert first.session_id != second.session_id == client.client_id[0]
        assert fault.fired.is_set()
    finally:
        client.stop()
        client.close()


def test_the_address_survives_a_restart_of_the_server(zklock_own_server: ZooKeeperServer) -> None:
    with FaultProxy(zklock_own_server) as proxy:
        client = KazooClient(proxy.hosts, timeout=10.0)
        client.start(DEADLINE)
        recorder = Recorder()
        client.add_listener(recorder)
        try:
            zklock_own_server.kill()
            recorder.wait("SUSPENDED")
            zklock_own_server.start()
            recorder.wait("CONNECTED")
            assert client.exists("/") is not None
        finally:
            client.stop()
            client.close()
