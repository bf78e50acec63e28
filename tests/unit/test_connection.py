"""The handler's socket, over a pair of sockets."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st
from kazoo.handlers.threading import SequentialThreadingHandler

from tests.unit.testing.wire import (
    AUTH,
    CONNECT,
    CONNECTED,
    PING,
    auth,
    event,
    ping,
    reply,
    request,
)
from zklock._kazoo.handler import Handler, WireObserver
from zklock._kazoo.socket import _Socket
from zklock.errors import ClientUnusable


class Noted(WireObserver):
    def __init__(self) -> None:
        self.timeouts: list[float] = []
        self.pings = 0
        self.closed = 0

    def on_connect(self, sent: float, timeout: float) -> None:
        self.timeouts.append(timeout)

    def on_ping(self, sent: float, answered: float) -> None:
        assert sent <= answered
        self.pings += 1

    def on_close(self) -> None:
        self.closed += 1


class Pair:
    """A handler's socket, and the server's end of it."""

    def __init__(self, handler: Handler | None = None) -> None:
        self.handler = handler or Handler()
        self.noted = Noted()
        self.handler.observe(self.noted)
        self.far, near = socket.socketpair()
        near.setblocking(False)
        self.far.settimeout(5)
        self.socket = _Socket(near, self.handler)

    def close(self) -> None:
        self.far.close()
        self.socket.close()

    def send(self, data: bytes) -> bytes:
        while data:
            data = data[self.socket.send(data) :]
        return self.far.recv(65536)

    def receive(self) -> bytes:
        """Read until nothing more is there, or the end."""
        received = b""
        while True:
            try:
                chunk = self.socket.recv(7)
            except BlockingIOError:
                return received
            if not chunk:
                return received + b"END"
            received += chunk


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def xid_of(frame: bytes) -> int:
    return int(struct.unpack_from(">i", frame, 4)[0])


def test_requests_are_numbered_through_over_connections() -> None:
    handler = Handler()
    numbers = []
    for _ in range(3):
        pair = Pair(handler)
        assert pair.send(CONNECT) == CONNECT
        for xid in (1, 2):
            sent = pair.send(request(xid, "exists"))
            assert sent[8:] == request(xid, "exists")[8:]
            numbers.append(xid_of(sent))
        assert pair.send(ping()) == ping()
        pair.close()
    assert numbers == [1, 2, 3, 4, 5, 6]


def test_numbers_begin_again_after_the_last() -> None:
    handler = Handler()
    handler._xid = 2**31 - 2
    assert [handler.next_xid(), handler.next_xid(), handler.next_xid()] == [2**31 - 1, 1, 2]


def test_the_end_of_the_session_is_told_before_it_is_sent(pair: Pair) -> None:
    pair.send(CONNECT)
    pair.send(request(1, "exists"))
    pair.send(ping())
    assert pair.noted.closed == 0
    pair.far.close()  # nothing can be sent any more
    with pytest.raises(BrokenPipeError):
        pair.send(struct.pack(">iii", 8, 2, -11))
    assert pair.noted.closed == 1


kinds_of_frames = st.lists(st.sampled_from(["reply", "ping", "event"]), max_size=12)
cuts = st.lists(st.integers(1, 40), min_size=1, max_size=40)


@given(kinds=kinds_of_frames, cuts=cuts, before=st.integers(0, 1000))
def test_replies_come_back_under_the_numbers_asked_however_they_arrive(
    kinds: list[str], cuts: list[int], before: int
) -> None:
    handler = Handler()
    handler._xid = before
    pair = Pair(handler)
    pair.send(CONNECT)
    wire, wanted = CONNECTED, CONNECTED
    asked = 0
    for kind in kinds:
        if kind == "reply":
            asked += 1
            sent = xid_of(pair.send(request(asked, "exists")))
            wire += reply(sent)
            wanted += reply(asked)
        elif kind == "ping":
            pair.send(ping())
            wire += reply(PING)
            wanted += reply(PING)
        else:
            wire += event(1, "/a")
            wanted += event(1, "/a")
    received = b""
    for cut in [*cuts, len(wire)]:
        piece, wire = wire[:cut], wire[cut:]
        if piece:
            pair.far.sendall(piece)
            received += receive_some(pair, more=bool(wire))
    assert received == wanted
    assert pair.noted.timeouts == [4.0]
    assert pair.noted.pings <= kinds.count("ping")
    pair.close()


def receive_some(pair: Pair, more: bool) -> bytes:
    """Read what can be passed on; a header that is not whole makes the socket wait for more."""
    pair.handler.session_timeout = 0.003
    try:
        return pair.receive()
    except TimeoutError:
        assert more
        return b""


@pytest.mark.parametrize("stray", [1, 3, 7])
def test_a_reply_out_of_turn_ends_the_stream_after_what_came_before(pair: Pair, stray: int) -> None:
    pair.send(CONNECT)
    for xid in (1, 2, 3):
        pair.send(request(xid, "exists"))
    first = reply(1) + event(1, "/a")
    pair.far.sendall(CONNECTED + first + reply(stray) + reply(2))
    assert pair.receive() == CONNECTED + first + b"END"
    assert pair.socket.pending()


class TestSeveralRequests:
    """Those that wait to be sent go out together."""

    def test_go_out_with_the_last(self, pair: Pair) -> None:
        pair.send(CONNECT)
        reader, writer = pair.handler.create_socket_pair()
        for _ in range(3):
            writer.send(b"\0")
        pair.far.setblocking(False)
        for xid in (1, 2):
            frame = request(xid, "exists")
            assert pair.socket.send(frame) == len(frame)
            reader.recv(1)
            with pytest.raises(BlockingIOError):
                pair.far.recv(65536)
        assert pair.send(request(3, "exists")) == b"".join(request(n, "exists") for n in (1, 2, 3))
        reader.close()

    def test_go_out_before_anything_is_waited_for(self, pair: Pair) -> None:
        pair.send(CONNECT)
        reader, writer = pair.handler.create_socket_pair()
        for _ in range(2):
            writer.send(b"\0")
        pair.socket.send(request(1, "exists"))
        for _ in range(2):
            reader.recv(1)  # the other has been given up
        assert pair.handler.select([pair.socket, reader], [], [], 0) == ([], [], [])
        assert pair.far.recv(65536) == request(1, "exists")
        reader.close()

    def test_are_sent_whole_however_little_is_taken(self, pair: Pair) -> None:
        pair.send(CONNECT)
        reader, writer = pair.handler.create_socket_pair()
        pair.handler.session_timeout = 30.0
        count = 400
        for _ in range(count):
            writer.send(b"\0")
        sent = b"".join(request(xid + 1, "create", "/" + "x" * 4096) for xid in range(count))
        received = bytearray()

        def receive() -> None:
            while len(received) < len(sent):
                received.extend(pair.far.recv(1000))

        far = threading.Thread(target=receive)
        far.start()
        for xid in range(count):
            pair.socket.send(request(xid + 1, "create", "/" + "x" * 4096))
            reader.recv(1)
        far.join()
        assert received == sent
        reader.close()

    def test_to_a_server_that_takes_no_more_time_out(self, pair: Pair) -> None:
        pair.send(CONNECT)
        pair.handler.session_timeout = 0.003
        with pytest.raises(TimeoutError, match="no more requests"):
            for xid in range(1, 10_000):
                pair.socket.send(request(xid, "create", "/" + "x" * 4096))


def test_what_has_arrived_counts_as_readable_until_it_is_read(pair: Pair) -> None:
    pair.send(CONNECT)
    reader, _ = pair.handler.create_socket_pair()
    rlist = [pair.socket, reader]
    assert pair.handler.select(rlist, [], [], 0) == ([], [], [])
    assert not pair.socket.pending()
    pair.far.sendall(CONNECTED)
    assert pair.handler.select(rlist, [], [], 5) == ([pair.socket], [], [])
    assert pair.socket.pending()
    assert pair.receive() == CONNECTED
    assert not pair.socket.pending()
    pair.far.close()
    assert pair.handler.select(rlist, [], [], 5) == ([pair.socket], [], [])
    assert pair.receive() == b"END"
    reader.close()


@pytest.mark.parametrize("size", [1, 7, 20, 33, 1000])
def test_credentials_are_answered_when_it_is_their_turn(pair: Pair, size: int) -> None:
    pair.send(CONNECT)
    sent = [pair.send(request(1, "exists")), pair.send(auth()), pair.send(request(2, "exists"))]
    first, second = xid_of(sent[0]), xid_of(sent[2])
    # The server answers them at once, and what was asked before them when it is done.
    stream = CONNECTED + reply(AUTH) + ping() + reply(first) + reply(second)
    received = b""
    for at in range(0, len(stream), size):
        pair.far.sendall(stream[at : at + size])
        with contextlib.suppress(TimeoutError):  # there is nothing for kazoo yet
            received += pair.receive()
        pair.handler.session_timeout = 0.003
    assert received == CONNECTED + ping() + reply(1) + reply(AUTH) + reply(2)


def test_refused_credentials_are_told_at_once(pair: Pair) -> None:
    pair.send(CONNECT)
    pair.send(request(1, "exists"))
    pair.send(auth())
    pair.far.sendall(CONNECTED + reply(AUTH, -115))
    assert pair.receive() == CONNECTED + reply(AUTH, -115)


def test_an_interpreter_that_cannot_poll_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "poll")
    with pytest.raises(ClientUnusable, match="eventlet"):
        Handler()


def test_a_server_is_waited_for_longer_where_all_were_silent_but_not_where_they_closed() -> None:
    handler = Handler()
    handler.session_timeout = 0.06
    first = handler.turn()
    assert 0 < first < handler.session_timeout / 3
    for _ in range(3):
        pair = Pair(handler)
        pair.send(CONNECT)
        pair.far.close()
        assert handler.select([pair.socket], [], [], 5) == ([pair.socket], [], [])
        assert pair.receive() == b"END"
        pair.socket.close()
        assert handler.turn() == first
    pair = Pair(handler)
    pair.send(CONNECT)
    assert handler.select([pair.socket], [], [], 5) == ([], [], [])
    assert handler.turn() == 2 * first
    pair.close()


Hosts = dict[str, list[str]]


def tries(monkeypatch: pytest.MonkeyPatch, handler: Handler, hosts: Hosts) -> list[float]:
    """Return how long each address of these names may take to accept a connection."""
    waits: list[float] = []

    def connect(_: Handler, **options: float) -> None:
        waits.append(options["timeout"])
        raise TimeoutError

    def look_up(host: str, port: int, *_: int) -> list[tuple[Any, ...]]:
        if not hosts[host]:
            raise socket.gaierror
        return [(None, None, None, "", (each, port)) for each in hosts[host]]

    monkeypatch.setattr(SequentialThreadingHandler, "create_connection", connect)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    for host, addresses in hosts.items():
        for address in addresses:
            with pytest.raises(TimeoutError):
                handler.create_connection(address=(address, 1), hostname=host, timeout=12.0)
    return waits


class TestTheTimeForAServer:
    def test_is_shared_by_addresses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        handler = Handler()
        handler.serve_hosts([("a", 1), (" b", 1), ("c", 1)])
        assert tries(monkeypatch, handler, {"a": ["1"], "b": ["2"], "c": ["3"]}) == 3 * [3.0]
        handler.serve_hosts([("a", 1)])
        assert handler.servers == 1
        assert tries(monkeypatch, handler, {"a": ["1", "2", "3"]}) == 3 * [3.0]
        # Of a client that connect() has not made.
        assert tries(monkeypatch, Handler(), {"a": ["1", "2", "3"]}) == 3 * [3.0]

    def test_is_shared_by_names_that_have_no_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        handler = Handler()
        handler.serve_hosts([("a", 1), ("b", 1)])
        assert tries(monkeypatch, handler, {"a": ["1"], "b": []}) == [4.0]

    def test_is_that_of_the_present_addresses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        handler = Handler()
        handler.serve_hosts([("a", 1)])
        assert tries(monkeypatch, handler, {"a": ["1"]}) == [6.0]
        assert tries(monkeypatch, handler, {"a": ["2", "3"]}) == 2 * [4.0]  # no longer the first
        pair = Pair(handler)
        pair.send(CONNECT)
        pair.far.sendall(CONNECTED)
        assert pair.receive() == CONNECTED
        handler.session_timeout = 6.0
        assert tries(monkeypatch, handler, {"a": ["2", "3", "4", "5", "6"]}) == 5 * [1.0]
        pair.close()

    def test_is_so_if_a_name_cannot_be_looked_up_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        handler = Handler()
        handler.serve_hosts([("a", 1)])
        tries(monkeypatch, handler, {"a": []})
        with pytest.raises(TimeoutError):
            handler.create_connection(address=("1", 1), hostname="a", timeout=12.0)
        assert handler.servers == 1


@pytest.mark.parametrize("started", [0, 1, 2])
def test_a_start_that_is_interrupted_leaves_no_thread(
    started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kazoo ends the threads of a handler that has started whole, and of no other."""
    handler = Handler()
    spawn, spawned = handler.spawn, list[threading.Thread]()

    def interrupted(func: Any) -> threading.Thread:
        if len(spawned) < started:
            spawned.append(spawn(func))
        if len(spawned) == started:
            raise KeyboardInterrupt
        return spawned[-1]

    with monkeypatch.context() as patch:
        patch.setattr(handler, "spawn", interrupted)
        with pytest.raises(KeyboardInterrupt):
            handler.start()
    for thread in spawned:
        thread.join(60.0)
        assert not thread.is_alive()
    called = threading.Event()
    handler.start()
    handler.completion_queue.put(called.set)
    assert called.wait(60.0)
    handler.stop()
