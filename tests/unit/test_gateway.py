"""kazoo on zklock's connection, over a pair of sockets; kazoo's loop and the reader are stepped.

``zklock/_kazoo/gateway.py`` says what must hold, and why it does.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from kazoo.exceptions import SessionExpiredError

from tests.contract.secure import Authority
from tests.contract.struck import Moments
from tests.contract.support import open_connection
from tests.unit.testing.wire import (
    AUTH,
    CONNECT,
    CONNECTED,
    OPS,
    auth,
    event,
    frame,
    ping,
    text,
)
from zklock._ground import threads
from zklock._ground.clock import clock
from zklock._ground.interrupts import raised_by_the_call
from zklock._kazoo import client_state, gateway
from zklock._kazoo.client_state import WireObserver
from zklock._kazoo.gateway import GatewaySocket
from zklock._kazoo.handler import Handler
from zklock._kazoo.watches import Watch
from zklock._kazoo.wire_request import WireRequest
from zklock._recipes.effects import Sync
from zklock.testing import wait_for

SOON = 60.0
NO_NODE, PING = -101, -2
EXISTS, GET_DATA, GET_CHILDREN = 3, 4, 8
CREATED, DELETED, CHANGED, CHILD = 1, 2, 3, 4
CLOSE = frame(struct.pack(">ii", 9, OPS["closeSession"]))


def asks(xid: int, path: str = "/kazoo", *, watch: bool = False) -> bytes:
    return frame(struct.pack(">ii", xid, EXISTS) + text(path) + bytes([watch]))


def answers(xid: int, error: int = 0, zxid: int = 7, rest: bytes = b"") -> bytes:
    return frame(struct.pack(">iqi", xid, zxid, error) + rest)


def split(data: bytes) -> list[bytes]:
    """Return the frames in it."""
    frames = []
    while data:
        end = 4 + struct.unpack_from(">i", data)[0]
        frames.append(data[:end])
        data = data[end:]
    return frames


class Stepped(GatewaySocket):
    """Read by the thread that waits for it."""

    def _begin_to_read(self) -> None:
        self._ear, self._poller = gateway._pair(), select.epoll()
        self._poller.register(self._sock)

    def step(self, seconds: float) -> None:
        """Receive what has come, or comes in so many seconds."""
        poll = select.poll()
        if not (self.closed or self._end):
            poll.register(self, select.POLLIN)
            if poll.poll(1000 * seconds):
                self._receive()

    def arrived(self) -> None:
        self._receive()

    def close(self) -> None:
        super().close()
        if self._ear is not None:
            self._end_reading()


class SteppedHandler(Handler):
    _connection = Stepped

    def select(
        self,
        rlist: Sequence[Any],
        wlist: Sequence[Any],
        xlist: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        for each in rlist:
            if not isinstance(each, Stepped) or each.pending():
                continue
            if len(rlist) == 1 or not (self.waiting or each.wants_a_look()):
                each.step(timeout or 0.0)
        return super().select(rlist, wlist, xlist, 0.0)


class Kazoo:
    """What kazoo's connection thread does in its main loop, over one connection after the other."""

    HANDLER: type[Any] = SteppedHandler

    def __init__(self, handler: Any = None) -> None:
        self.handler = handler or self.HANDLER()
        self.reader, self.writer = self.handler.create_socket_pair()
        self.queue: deque[tuple[bytes, Any]] = deque()
        self.received: list[bytes] = []
        self.dropped: OSError | None = None
        self.ends: list[socket.socket] = []
        self.connection: Any
        self.far: socket.socket
        self.connect()

    def connect(self, near_buffer: int | None = None, connected: bytes = CONNECTED) -> None:
        """Shake hands, which kazoo does before its main loop."""
        near = self.pair()
        if near_buffer is not None:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, near_buffer)
        self.connection = self.handler._connection(near, self.handler)
        self.dropped = None
        self.connection.send(CONNECT)
        self.far.sendall(connected)
        assert self.handler.select([self.connection], [], [], SOON)[0]
        assert self.read() == connected
        self.far.recv(65536)

    def pair(self) -> socket.socket:
        """Make a pair of sockets: the server's end is ``far``, the other is returned."""
        self.far, near = socket.socketpair()
        self.ends.append(self.far)
        self.far.settimeout(SOON)
        near.setblocking(False)
        return near

    def ask(self, data: bytes, *, wakes: bool = True) -> None:
        """Queue a request, as a thread of the user does."""
        self.queue.append((data, self.handler.async_result()))
        if wakes:
            self.writer.send(b"\0")

    def read(self) -> bytes:
        length = b""
        while len(length) < 4:
            length += self.connection.recv(4 - len(length)) or self._broken()
        rest = b""
        while len(rest) < struct.unpack(">i", length)[0]:
            assert self.connection.pending()  # only whole frames are passed on
            rest += self.connection.recv(7)
        return length + rest

    def _broken(self) -> bytes:
        raise ConnectionResetError

    def step(self, timeout: float = 0.0) -> bool:
        """Go through the loop once; return whether there was something to do."""
        ready = self.handler.select([self.connection, self.reader], [], [], timeout)[0]
        if self.connection in ready:
            self.received.append(self.read())
        if self.reader in ready:
            if self.queue:
                data, result = self.queue[0]
                assert self.handler.select([], [self.connection], [], 1.0)[1]
                assert self.connection.send(data) == len(data)
                self.queue.popleft()
                result.set()  # rather when it is answered
            self.reader.recv(1)
        return bool(ready)

    def run(self) -> None:
        """Go through the loop while there is something to do."""
        try:
            while self.step():
                pass
        except OSError as error:
            self.dropped = error
            self.connection.close()

    def sent(self) -> list[bytes]:
        """Return what the server has received by now."""
        self.run()
        data = b""
        self.far.setblocking(False)
        try:
            while chunk := self.far.recv(65536):
                data += chunk
        except (BlockingIOError, ConnectionResetError):
            pass
        return split(data)

    def close(self) -> None:
        for end in self.ends:
            end.close()
        self.connection.close()
        self.reader.close()


class Rides:
    """Riders, and what they hear."""

    def __init__(self, kazoo: Kazoo) -> None:
        self.kazoo = kazoo
        self.heard: list[Any] = []
        self.then: Callable[[], object] = lambda: None

    def rider(self, name: str, watch: Watch | None = None) -> WireRequest:
        def hear(error: int | None, body: bytes) -> None:
            self.heard.append((name, error, body))
            self.then()

        return WireRequest(struct.pack(">i", GET_DATA) + text(name) + b"\1", hear, watch)

    def ride(self, name: str, watch: Watch | None = None) -> None:
        """Ask as zklock does."""
        self.kazoo.handler.write([self.rider(name, watch)])

    def watch(self, path: str, opcode: int = GET_DATA) -> Watch:
        def told(kind: str, known: str) -> None:
            self.heard.append((kind, known))

        return Watch(opcode, path.encode(), (told, path))


@pytest.fixture
def kazoo() -> Iterator[Kazoo]:
    kazoo = Kazoo()
    kazoo.run()
    yield kazoo
    kazoo.close()


@pytest.fixture
def rides(kazoo: Kazoo) -> Rides:
    return Rides(kazoo)


def names(frames: list[bytes]) -> list[str]:
    """Return the paths of requests, in order."""
    return [each[16 : 16 + struct.unpack_from(">i", each, 12)[0]].decode() for each in frames]


def numbers(frames: list[bytes]) -> list[int]:
    return [struct.unpack_from(">i", each, 4)[0] for each in frames]


class TestTheOrderOfRequests:
    def test_gateway_and_kazoo_are_numbered_together(self, kazoo: Kazoo, rides: Rides) -> None:
        kazoo.ask(asks(1, "/a"))
        rides.ride("/b")
        rides.ride("/c")
        kazoo.ask(asks(2, "/d"))
        rides.ride("/e")
        sent = kazoo.sent()
        assert sorted(names(sent)) == ["/a", "/b", "/c", "/d", "/e"]
        assert numbers(sent) == [1, 2, 3, 4, 5]

    def test_what_was_queued_before_goes_first(self, kazoo: Kazoo, rides: Rides) -> None:
        before = [f"/{number}" for number in range(5)]
        for xid, path in enumerate(before, 1):
            kazoo.ask(asks(xid, path))
        rides.ride("/rider")
        assert names(kazoo.sent()) == [*before, "/rider"]

    @pytest.mark.parametrize("unwoken", [0, 1, 3])
    def test_a_user_who_never_stops_asking_has_all_requests_sent_in_the_end(
        self, kazoo: Kazoo, rides: Rides, unwoken: int
    ) -> None:
        for xid in range(1, 40):
            kazoo.ask(asks(xid, f"/{xid}"), wakes=xid > unwoken)  # threads that were interrupted
            if xid % 4 == 0:
                rides.ride(f"/rider-{xid}")
        sent = names(kazoo.sent())
        assert [name for name in sent if "rider" not in name] == [f"/{xid}" for xid in range(1, 40)]
        assert not kazoo.queue
        assert not kazoo.step()
        riders = [name for name in sent if "rider" in name]
        assert riders == [f"/rider-{xid}" for xid in range(4, 40, 4)]
        assert all(sent.index(f"/rider-{xid}") > sent.index(f"/{xid}") for xid in range(4, 40, 4))

    def test_ours_go_out_at_once_while_kazoo_has_no_queue(self, kazoo: Kazoo, rides: Rides) -> None:
        rides.ride("/a")
        assert names(split(kazoo.far.recv(65536))) == ["/a"]

    def test_what_an_interrupted_writer_has_sent_is_not_sent_again(
        self, kazoo: Kazoo, rides: Rides, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else a create would make two nodes, of which the clean-up finds one."""
        sock = kazoo.connection._sock

        class Interrupted:
            def __getattr__(self, name: str) -> Any:
                return getattr(sock, name)

            def send(self, data: bytes) -> int:
                sock.send(data)
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(kazoo.connection, "_sock", Interrupted())
            patch.setattr(kazoo.connection, "shut_down", lambda: None)  # it comes too late
            with pytest.raises(KeyboardInterrupt):
                rides.ride("/a")
        kazoo.connection.flush()
        assert names(split(kazoo.far.recv(65536))) == ["/a"]
        assert kazoo.far.recv(65536) == b""  # it is shut down


class TestTheLine:
    """When riders are taken."""

    def test_opens_in_the_main_loop(self) -> None:
        kazoo = Kazoo()
        lines = [open_connection(kazoo.handler)]  # kazoo still authenticates
        kazoo.run()
        lines.append(open_connection(kazoo.handler))
        kazoo.close()
        lines.append(open_connection(kazoo.handler))
        assert lines == [None, kazoo.connection, None]

    def test_closes_with_the_request_to_end_the_session(self, kazoo: Kazoo, rides: Rides) -> None:
        rides.ride("/before")
        kazoo.run()
        kazoo.ask(CLOSE)
        kazoo.run()
        assert open_connection(kazoo.handler) is None
        rides.ride("/after")
        kazoo.far.sendall(answers(1, rest=b"!"))  # what went before is still answered
        assert len(kazoo.sent()) == 2
        assert rides.heard == [("/before", 0, b"!")]
        kazoo.connection.close()
        assert rides.heard == [("/before", 0, b"!"), ("/after", None, b"")]

    def test_the_end_of_the_session_is_told_before_it_is_sent(self, kazoo: Kazoo) -> None:
        class Noted(WireObserver):
            def on_close(self) -> None:
                kazoo.far.setblocking(False)
                with pytest.raises(BlockingIOError):
                    kazoo.far.recv(1)
                told.append(self)

        told: list[Noted] = []
        kazoo.handler.observe(Noted())
        kazoo.ask(CLOSE)
        assert len(kazoo.sent()) == len(told) == 1

    def test_closes_when_the_connection_is_dropped(self, kazoo: Kazoo) -> None:
        kazoo.handler.drop()
        assert open_connection(kazoo.handler) is None

    @pytest.mark.parametrize("flag", [b"\1", b"\0", b""])
    def test_stays_closed_at_a_server_that_only_reads(self, flag: bytes) -> None:
        kazoo = Kazoo()
        kazoo.connection.close()
        kazoo.connect(connected=frame(CONNECTED[4:-1] + flag))
        kazoo.run()
        assert (open_connection(kazoo.handler) is None) == (flag == b"\1")
        rides = Rides(kazoo)
        rides.ride("/a")
        assert rides.heard == ([("/a", None, b"")] if flag == b"\1" else [])
        kazoo.close()

    def test_stays_closed_for_a_session_that_is_over(self) -> None:
        kazoo = Kazoo()
        kazoo.connection.close()
        over = struct.pack(">iiqi16s?", 0, 0, 0, 16, bytes(16), False)
        kazoo.connect(connected=frame(over))
        kazoo.run()
        assert open_connection(kazoo.handler) is None
        kazoo.close()

    def test_is_no_other_connection_of_kazoo(self, kazoo: Kazoo) -> None:
        """kazoo opens more of them, for words of four letters."""
        far, near = socket.socketpair()
        word = kazoo.handler._connection(near, kazoo.handler)
        word.sendall(b"srvr")
        assert far.recv(10) == b"srvr"
        far.sendall(b"answer")
        assert word.recv(10) == b"answer"
        word.close()
        far.close()
        assert open_connection(kazoo.handler) is kazoo.connection


class TestReplies:
    def test_are_taken_before_kazoo_sees_them(self, kazoo: Kazoo, rides: Rides) -> None:
        rides.ride("/a")
        rides.ride("/b")
        (first, second) = numbers(kazoo.sent())
        kazoo.far.sendall(answers(first, rest=b"one") + answers(second, error=NO_NODE))
        kazoo.run()
        assert rides.heard == [("/a", 0, b"one"), ("/b", NO_NODE, b"")]
        assert kazoo.received == []

    @pytest.mark.parametrize("size", [1, 7, 20, 33, 1000])
    def test_to_credentials_come_when_it_is_their_turn(
        self, kazoo: Kazoo, rides: Rides, size: int
    ) -> None:
        kazoo.ask(asks(1))
        kazoo.ask(auth())
        kazoo.ask(asks(2))
        sent = numbers(kazoo.sent())
        rides.ride("/a")
        (rider,) = numbers(kazoo.sent())
        kazoo.ask(auth())
        kazoo.sent()
        # The server answers them at once, and what was asked before them when it is done.
        stream = answers(AUTH) + answers(AUTH, zxid=8)
        stream += answers(sent[0]) + answers(sent[2]) + answers(rider, rest=b"r")
        for at in range(0, len(stream), size):
            kazoo.far.sendall(stream[at : at + size])
            kazoo.run()
        wanted = [answers(1), answers(AUTH), answers(2), answers(AUTH, zxid=8)]
        assert kazoo.received == wanted
        assert rides.heard == [("/a", 0, b"r")]
        assert kazoo.dropped is None

    def test_that_refuse_credentials_come_at_once(self, kazoo: Kazoo) -> None:
        kazoo.ask(asks(1))
        kazoo.ask(auth())
        kazoo.sent()
        kazoo.far.sendall(answers(AUTH, error=-115))
        kazoo.run()
        assert kazoo.received == [answers(AUTH, error=-115)]

    @pytest.mark.parametrize("stray", [1, 3, 7])
    def test_out_of_turn_end_the_connection(
        self, kazoo: Kazoo, rides: Rides, stray: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        for name in "abc":
            rides.ride(f"/{name}")
        kazoo.run()
        kazoo.far.sendall(answers(1) + answers(stray) + answers(2))
        kazoo.run()
        assert kazoo.dropped is not None
        assert [(name, error) for name, error, _ in rides.heard] == [
            ("/a", 0),
            ("/b", None),
            ("/c", None),
        ]
        assert f"server answered request {stray} instead of 2: connection dropped" in caplog.text

    @pytest.mark.parametrize("bad", [b"\xff\xff\xff\xff", b"\0\0\0\3abc", b"\0\0\0\0" * 5])
    def test_that_cannot_be_replies_end_the_connection(
        self, kazoo: Kazoo, rides: Rides, bad: bytes
    ) -> None:
        rides.ride("/a")
        kazoo.run()
        kazoo.far.sendall(bad)
        kazoo.run()
        assert kazoo.dropped is not None
        assert rides.heard == [("/a", None, b"")]

    def test_of_an_unknown_error_are_errors(
        self, kazoo: Kazoo, rides: Rides, caplog: pytest.LogCaptureFixture
    ) -> None:
        rides.ride("/a")
        kazoo.run()
        kazoo.far.sendall(answers(1, error=-4321))
        kazoo.run()
        assert rides.heard == [("/a", -100, b"")]
        assert "unknown error code -4321" in caplog.text

    @pytest.mark.parametrize("size", [1, 7, 20, 33, 1000])
    def test_are_heard_in_order_however_they_arrive(
        self, kazoo: Kazoo, rides: Rides, size: int
    ) -> None:
        for name in "ab":
            rides.ride(f"/{name}", rides.watch(f"/{name}"))
        kazoo.ask(asks(1))
        kazoo.run()
        rides.ride("/c")
        kazoo.sent()
        stream = answers(1) + answers(2) + event(DELETED, "/b")
        stream += answers(3) + answers(4, NO_NODE)
        for at in range(0, len(stream), size):
            kazoo.far.sendall(stream[at : at + size])
            kazoo.run()
        assert rides.heard == [
            ("/a", 0, b""),
            ("/b", 0, b""),
            ("DELETED", "/b"),
            ("/c", NO_NODE, b""),
        ]
        assert kazoo.received == [answers(1)]

    def test_lead_to_more_requests_at_once(self, kazoo: Kazoo, rides: Rides) -> None:
        rides.ride("/first")
        kazoo.run()
        kazoo.far.recv(65536)

        def then() -> None:
            rides.then = lambda: None
            rides.ride("/second")

        rides.then = then
        kazoo.far.sendall(answers(1))
        assert names(kazoo.sent()) == ["/second"]

    def test_whose_hearer_fails_end_no_thread(
        self, kazoo: Kazoo, rides: Rides, caplog: pytest.LogCaptureFixture
    ) -> None:
        def then() -> None:
            rides.then = lambda: None
            raise RuntimeError("ours")

        rides.then = then
        rides.ride("/a")
        rides.ride("/b")
        kazoo.run()
        kazoo.far.sendall(answers(1) + answers(2))
        connection = threading.Thread(target=kazoo.run)
        connection.start()
        connection.join(SOON)
        assert [name for name, *_ in rides.heard] == ["/a", "/b"]
        assert "continues after an error in zklock" in caplog.text


class TestEvents:
    def test_that_only_riders_watch_for_are_kept_from_kazoo(
        self, kazoo: Kazoo, rides: Rides
    ) -> None:
        rides.ride("/a", rides.watch("/a"))
        kazoo.run()
        kazoo.far.sendall(answers(1) + event(DELETED, "/a") + event(CREATED, "/a"))
        kazoo.run()
        assert rides.heard[1:] == [("DELETED", "/a")]
        assert kazoo.received == [event(CREATED, "/a")]  # used up: it is not for us

    @pytest.mark.parametrize(
        ("opcode", "kind", "sees"),
        [
            (EXISTS, DELETED, True),
            (GET_DATA, CHANGED, True),
            (GET_CHILDREN, DELETED, True),
            (GET_CHILDREN, CHANGED, False),
            (106, CHANGED, True),  # a request that this kazoo does not have
        ],
    )
    def test_that_kazoo_watches_for_are_passed_on(
        self, kazoo: Kazoo, rides: Rides, opcode: int, kind: int, sees: bool
    ) -> None:
        rides.ride("/a", rides.watch("/a"))
        kazoo.ask(frame(struct.pack(">ii", 1, opcode) + text("/a") + b"\1"))
        kazoo.run()
        kazoo.far.sendall(answers(1) + answers(2) + event(kind, "/a"))
        kazoo.run()
        assert len(rides.heard) == 2
        assert kazoo.received == [answers(1), *([event(kind, "/a")] if sees else [])]

    @pytest.mark.parametrize(
        ("opcode", "error", "watches"),
        [(GET_DATA, NO_NODE, False), (EXISTS, NO_NODE, True), (EXISTS, -102, False)],
    )
    def test_a_refused_request_leaves_no_watch(
        self, kazoo: Kazoo, rides: Rides, opcode: int, error: int, watches: bool
    ) -> None:
        rides.ride("/a", rides.watch("/a", opcode))
        kazoo.run()
        kazoo.far.sendall(answers(1, error) + event(CREATED, "/a"))
        kazoo.run()
        assert rides.heard[1:] == ([("CREATED", "/a")] if watches else [])

    def test_of_children_and_of_data_are_told_apart(self, kazoo: Kazoo, rides: Rides) -> None:
        rides.ride("/data", rides.watch("/a"))
        rides.ride("/children", rides.watch("/a", GET_CHILDREN))
        kazoo.run()
        kazoo.far.sendall(answers(1) + answers(2) + event(CHILD, "/a") + event(CHANGED, "/a"))
        kazoo.run()
        assert rides.heard[2:] == [("CHILD", "/a"), ("CHANGED", "/a")]


class TestTheEnd:
    """Of a connection: what is under way is dropped, once."""

    @pytest.mark.parametrize("how", ["end", "reset", "cut"])
    def test_drops_what_awaits_a_reply(self, kazoo: Kazoo, rides: Rides, how: str) -> None:
        rides.ride("/answered")
        rides.ride("/sent")
        kazoo.run()
        if how != "reset":
            kazoo.far.recv(65536)  # else unread data makes the end a reset
        kazoo.far.sendall(answers(1) + (answers(2)[:9] if how == "cut" else b""))
        kazoo.run()
        rides.ride("/last")
        kazoo.far.close()
        assert len(rides.heard) == 1
        kazoo.run()
        assert kazoo.dropped is not None
        wanted = [("/answered", 0), ("/sent", None), ("/last", None)]
        assert [(name, error) for name, error, _ in rides.heard] == wanted
        kazoo.connection.close()
        assert len(rides.heard) == 3

    def test_comes_after_the_last_reply_is_read(self, kazoo: Kazoo, rides: Rides) -> None:
        count = 50
        for number in range(count):
            rides.ride(f"/{number}")
        kazoo.run()
        kazoo.far.recv(65536)
        kazoo.far.sendall(b"".join(answers(number + 1) for number in range(count)))
        kazoo.far.close()
        kazoo.run()
        assert [error for _, error, _ in rides.heard] == [0] * count

    def test_takes_no_rider_that_comes_late(self, kazoo: Kazoo, rides: Rides) -> None:
        kazoo.connection.close()
        rides.ride("/late")
        assert rides.heard == [("/late", None, b"")]
        kazoo.connect()
        rides.ride("/early")  # it is not open yet
        kazoo.ask(asks(1, "/kazoo"))
        kazoo.far.setblocking(False)
        with pytest.raises(BlockingIOError):
            kazoo.far.recv(1)
        rides.ride("/now")
        assert names(kazoo.sent()) == ["/early", "/kazoo", "/now"]
        assert len(rides.heard) == 1

    def test_drops_what_waits(self, kazoo: Kazoo, rides: Rides) -> None:
        kazoo.ask(asks(1, "/kazoo"))
        rides.ride("/a")
        assert rides.heard == []
        kazoo.connection.close()
        assert rides.heard == [("/a", None, b"")]
        kazoo.connect()
        rides.ride("/b")
        kazoo.connection.close()
        assert rides.heard == [("/a", None, b""), ("/b", None, b"")]

    def test_takes_nothing_away_from_the_writer(
        self, kazoo: Kazoo, rides: Rides, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        state, writes, goes_on = kazoo.connection.state, threading.Event(), threading.Event()
        next_xid = state.next_xid

        def paused() -> Any:
            writes.set()
            assert goes_on.wait(SOON)
            return next_xid()

        monkeypatch.setattr(state, "next_xid", paused)
        with ThreadPoolExecutor() as pool:
            writer = pool.submit(rides.ride, "/a")
            assert writes.wait(SOON)
            kazoo.connection._ended = True
            late = pool.submit(rides.ride, "/b")
            wait([late], 0.1)  # it is about to drop what is queued: it must wait for the writer
            goes_on.set()
            writer.result(SOON)
            late.result(SOON)
        assert sorted(rides.heard) == [("/a", None, b""), ("/b", None, b"")]

    def test_when_sending_fails(self, kazoo: Kazoo, rides: Rides) -> None:
        kazoo.far.close()
        rides.ride("/a")
        kazoo.run()
        assert kazoo.dropped is not None
        assert rides.heard == [("/a", None, b"")]

    def test_of_the_session_is_no_end_of_numbers(self, kazoo: Kazoo, rides: Rides) -> None:
        rides.ride("/a")
        first = numbers(kazoo.sent())
        kazoo.connection.close()
        kazoo.connect()
        kazoo.run()
        rides.ride("/b")
        assert numbers(kazoo.sent()) > first


class TestWhatHasBeenSeen:
    """The handshake of a later connection says it."""

    def handshake(self, kazoo: Kazoo, zxid: int, session: int) -> int:
        kazoo.connection.close()
        kazoo.connection = kazoo.handler._connection(kazoo.pair(), kazoo.handler)
        kazoo.connection.send(
            frame(struct.pack(">iqiqi16s?", 0, zxid, 4000, session, 16, b"p" * 16, False))
        )
        asked = kazoo.far.recv(65536)
        said: int = struct.unpack_from(">q", asked, 8)[0]
        wanted = frame(struct.pack(">iqiqi16s?", 0, said, 4000, session, 16, b"p" * 16, False))
        assert asked == wanted
        return said

    def test_is_the_most_that_riders_and_kazoo_have_seen(self, kazoo: Kazoo, rides: Rides) -> None:
        for zxid in (70, 90, -1, 0, 90):
            rides.ride("/a")
            (sent,) = numbers(kazoo.sent())
            kazoo.far.sendall(answers(sent, zxid=zxid))
            kazoo.run()
        assert self.handshake(kazoo, 75, session=5) == 90
        assert self.handshake(kazoo, 95, session=5) == 95
        assert self.handshake(kazoo, 0, session=0) == 0  # a new session has seen nothing
        assert self.handshake(kazoo, 3, session=6) == 3


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time by which the handler goes."""
    now = [clock()]
    monkeypatch.setattr(client_state, "clock", lambda: now[0])
    return now


class TestGoingBack:
    """An answer with a lower zxid than an earlier reply ends the connection, and the session."""

    @pytest.mark.parametrize("answer", ["rider", "kazoo", "ping"])
    def test_is_not_passed_on(self, kazoo: Kazoo, rides: Rides, answer: str) -> None:
        rides.ride("/a")
        (sent,) = numbers(kazoo.sent())
        kazoo.far.sendall(answers(sent, zxid=90))
        kazoo.run()
        kazoo.received.clear()
        if answer == "rider":
            rides.ride("/b")
        elif answer == "kazoo":
            kazoo.ask(asks(1, "/c"))
        kazoo.run()
        if answer == "ping":
            kazoo.connection.send(ping())
            kazoo.far.recv(65536)
            back = frame(struct.pack(">iqi", -2, 80, 0))
        else:
            back = answers(numbers(kazoo.sent())[0], zxid=80)
        kazoo.far.sendall(event(DELETED, "/d") + back)
        kazoo.run()
        assert kazoo.dropped is not None
        assert len(kazoo.received) == 1  # the event: it names no transaction
        assert kazoo.handler.gives_up

    @pytest.mark.parametrize("zxid", [0, 90, 91])
    def test_is_not_what_names_no_transaction_or_the_same(
        self, kazoo: Kazoo, rides: Rides, zxid: int
    ) -> None:
        for path, at in (("/a", 90), ("/b", zxid)):
            rides.ride(path)
            kazoo.far.sendall(answers(numbers(kazoo.sent())[0], zxid=at))
            kazoo.run()
        assert [name for name, *_ in rides.heard] == ["/a", "/b"]
        assert kazoo.dropped is None

    def test_another_session_is_begun_after_a_timeout(self, kazoo: Kazoo, now: list[float]) -> None:
        kazoo.handler.seen(90)
        kazoo.handler.cancel(80)
        timeout = kazoo.handler.session_timeout
        assert timeout is not None

        def connect(session: int) -> None:
            kazoo.connection.close()
            kazoo.connection = kazoo.handler._connection(kazoo.pair(), kazoo.handler)
            asked = struct.pack(">iqiqi16s?", 0, 0, 4000, session, 16, b"p" * 16, False)
            kazoo.connection.send(frame(asked))

        with pytest.raises(SessionExpiredError):
            connect(5)
        now[0] += 0.9 * timeout
        with pytest.raises(ConnectionRefusedError):
            connect(0)
        now[0] += 0.2 * timeout
        connect(0)
        assert not kazoo.handler.gives_up
        assert not kazoo.handler.goes_back(80)


def refused(**options: Any) -> socket.socket:
    raise ConnectionRefusedError


class TestServersThatTurnItAway:
    """They close the connection, and do not answer the handshake."""

    def asks(self, kazoo: Kazoo, another: Callable[..., Any] | None = None) -> int | None:
        """Connect, be turned away, and return the zxid that was named; ``None``: not asked.

        ``another``: makes a second connection, on which the server is asked whether it serves.
        """
        kazoo.connection.close()
        kazoo.connection = kazoo.handler._connection(kazoo.pair(), kazoo.handler, another=another)
        asked = frame(struct.pack(">iqiqi16s?", 0, 75, 4000, 5, 16, b"p" * 16, False))
        try:
            kazoo.connection.send(asked)
        except ConnectionRefusedError:
            return None
        said: int = struct.unpack_from(">q", kazoo.far.recv(65536), 8)[0]
        kazoo.far.close()
        kazoo.connection.arrived()
        return said

    def test_are_asked_anew_when_the_session_must_be_dead(
        self, kazoo: Kazoo, now: list[float], caplog: pytest.LogCaptureFixture
    ) -> None:
        timeout = kazoo.handler.session_timeout
        assert timeout is not None
        assert self.asks(kazoo) == 75
        now[0] += 1.4 * timeout
        assert self.asks(kazoo) == 75
        now[0] += 0.2 * timeout
        assert self.asks(kazoo, refused) is None  # no quorum, perhaps
        assert self.asks(kazoo) == 75
        assert "have refused this client" not in caplog.text
        assert self.asks(kazoo) == 0
        assert "have refused this client" in caplog.text

    @pytest.mark.parametrize(
        ("said", "asked"),
        [
            ("Zookeeper version: 3.9.5\nMode: follower\nNode count: 5\n", True),
            ("Zookeeper version: 3.9.5\nMode: read-only\nNode count: 5\n", False),
            ("This ZooKeeper instance is not currently serving requests\n", False),
            ("srvr is not executed because it is not in the whitelist.\n", True),
            ("", False),
        ],
        ids=["serves", "serves only reads", "serves nothing", "may not say", "says nothing"],
    )
    def test_are_asked_if_they_serve(
        self, kazoo: Kazoo, now: list[float], said: str, asked: bool
    ) -> None:
        timeout = kazoo.handler.session_timeout
        assert timeout is not None
        assert self.asks(kazoo) == 75
        now[0] += 2 * timeout
        near, far = socket.socketpair()
        with far:
            far.sendall(said.encode())
            far.shutdown(socket.SHUT_WR)
            assert self.asks(kazoo, lambda **options: near) == (75 if asked else None)

    def test_are_asked_as_before_once_one_has_answered(
        self, kazoo: Kazoo, now: list[float]
    ) -> None:
        timeout = kazoo.handler.session_timeout
        assert timeout is not None
        assert self.asks(kazoo) == 75
        now[0] += 2 * timeout
        assert [self.asks(kazoo) for _ in range(2)] == [75, 0]
        kazoo.handler.connected(now[0], timeout, True)
        assert [self.asks(kazoo) for _ in range(2)] == [75, 75]


def test_a_forked_child_sends_nothing(kazoo: Kazoo, rides: Rides) -> None:
    kazoo.run()
    child = os.fork()
    if not child:
        try:
            rides.ride("/child")
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    kazoo.step()
    assert kazoo.sent() == []
    rides.ride("/parent")
    assert names(kazoo.sent()) == ["/parent"]


def taken(kazoo: Kazoo, wanted: int) -> bytes:
    """Return what the server takes, so many bytes."""
    data = b""
    while len(data) < wanted:
        data += kazoo.far.recv(4096)
    return data


def begun() -> Kazoo:
    """Return a connection that has a reader."""
    handler = Handler()
    handler._wanted = SOON
    return Kazoo(handler)


class TestTheReader:
    """The thread that reads a connection."""

    def test_sends_what_came_while_it_received_over_tls(self, kazoo: Kazoo) -> None:
        receives, goes_on = threading.Event(), threading.Event()

        class Tls:
            """One thing at a time: to send waits for who receives."""

            def __init__(self, plain: socket.socket) -> None:
                self.fileno, self.send, self.close = plain.fileno, plain.send, plain.close

            def pending(self) -> int:
                return 0

            def recv(self, size: int) -> bytes:
                receives.set()
                assert goes_on.wait(SOON)
                raise ssl.SSLWantReadError

        class Read(Stepped):
            def _begin_to_read(self) -> None:
                super()._begin_to_read()
                self.received = pool.submit(self._receive)
                assert receives.wait(SOON)

        kazoo.connection.close()
        near: Any = Tls(kazoo.pair())
        with ThreadPoolExecutor() as pool:
            kazoo.connection = Read(near, kazoo.handler)
            kazoo.connection.send(CONNECT)
            goes_on.set()
            kazoo.connection.received.result(SOON)
        assert len(kazoo.far.recv(65536)) == len(CONNECT)

    def test_hears_replies_while_kazoo_does_nothing(self) -> None:
        kazoo = begun()
        kazoo.run()
        rides, heard = Rides(kazoo), threading.Event()
        rides.then = heard.set
        rides.ride("/a")
        (sent,) = numbers(split(kazoo.far.recv(65536)))
        kazoo.far.sendall(answers(sent, rest=b"!"))
        assert heard.wait(SOON)
        assert rides.heard == [("/a", 0, b"!")]
        kazoo.close()

    def test_sends_what_the_server_did_not_take_at_once(self) -> None:
        kazoo = begun()
        kazoo.connection.close()
        kazoo.connect(near_buffer=4096)
        kazoo.run()
        rides = Rides(kazoo)
        wanted = [f"/{number}-" + "x" * 3000 for number in range(100)]
        for name in wanted:
            rides.ride(name)
        whole = sum(len(name) + 17 for name in wanted)
        frames = split(taken(kazoo, whole))
        assert names(frames) == wanted
        assert numbers(frames) == sorted(numbers(frames))
        kazoo.close()

    def test_wakes_kazoo_for_its_replies_and_for_the_end(self) -> None:
        kazoo = begun()
        kazoo.run()
        kazoo.ask(asks(1))
        assert kazoo.step()
        (sent,) = numbers(split(kazoo.far.recv(65536)))
        kazoo.far.sendall(answers(sent))
        assert kazoo.step(SOON)
        assert kazoo.received == [answers(1)]
        kazoo.far.close()
        with pytest.raises(ConnectionResetError):
            kazoo.step(SOON)
        kazoo.close()

    def test_wakes_kazoo_also_if_it_has_taken_the_frame_before_meanwhile(self) -> None:
        kazoo = begun()
        kazoo.run()
        tells, goes_on = threading.Event(), threading.Event()

        def hold(*_: object) -> None:
            tells.set()
            assert goes_on.wait(SOON)

        rides = Rides(kazoo)
        rides.ride("/a", Watch(GET_DATA, b"/a", (hold, "/a")))
        (number,) = numbers(split(kazoo.far.recv(65536)))
        kazoo.far.sendall(answers(number) + event(CHILD, "/first"))
        wait_for(kazoo.connection.pending, SOON)
        kazoo.far.sendall(event(DELETED, "/a") + event(CHILD, "/second"))
        assert tells.wait(SOON)
        assert kazoo.step()
        kazoo.handler._bell.clear()  # it sleeps
        goes_on.set()
        assert kazoo.handler._bell.wait(SOON)
        assert kazoo.step()
        assert kazoo.received == [event(CHILD, "/first"), event(CHILD, "/second")]
        kazoo.close()

    def test_ends_with_the_connection_and_drops_what_is_under_way(self) -> None:
        kazoo = begun()
        kazoo.run()
        rides, over = Rides(kazoo), threading.Event()
        rides.then = over.set
        rides.ride("/a")
        kazoo.connection.close()
        assert over.wait(SOON)
        assert rides.heard == [("/a", None, b"")]
        wait_for(lambda: kazoo.connection._ear is None)
        kazoo.close()

    def test_that_cannot_be_started_is_a_failed_connection(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise threads.NoThread("can't start new thread")

        kazoo = begun()
        kazoo.connection.close()
        monkeypatch.setattr(threads, "start", refuse)
        with pytest.raises(OSError, match="can't start new thread"):
            kazoo.connect()
        kazoo.close()
        assert kazoo.connection.fileno() == -1


class OverTls(Kazoo):
    """kazoo's thread over TLS; a thread of its own reads."""

    def __init__(self, authority: Authority) -> None:
        pem = authority.certify("localhost")
        self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.load_cert_chain(pem)
        self._client = ssl.create_default_context(cafile=authority.certificate)
        handler = Handler()
        handler._wanted = SOON
        super().__init__(handler)

    def pair(self) -> socket.socket:
        near, far = super().pair(), self.far
        near.settimeout(SOON)
        with ThreadPoolExecutor() as pool:
            served = pool.submit(self._server.wrap_socket, far, server_side=True)
            safe = self._client.wrap_socket(near, server_hostname="localhost")
            self.far = served.result(SOON)
        self.ends.append(self.far)
        safe.setblocking(False)
        return safe


class TestSendingOverTls:
    """Python's ``ssl`` makes the system call in a method of its own, as other sockets may."""

    def test_what_the_server_does_not_take_at_once_is_sent_later(self, tmp_path: Path) -> None:
        kazoo = OverTls(Authority(tmp_path))
        kazoo.connection.close()
        kazoo.connect(near_buffer=4096)
        kazoo.run()
        rides = Rides(kazoo)
        wanted = [f"/{number}-" + "x" * 3000 for number in range(100)]
        for name in wanted:
            rides.ride(name)
        assert names(split(taken(kazoo, sum(len(name) + 17 for name in wanted)))) == wanted
        kazoo.close()

    def test_a_broken_connection_is_no_error_of_the_caller(self, tmp_path: Path) -> None:
        kazoo = OverTls(Authority(tmp_path))
        kazoo.run()
        rides, over = Rides(kazoo), threading.Event()
        rides.then = over.set
        with kazoo.connection._receiving:  # the reader does not notice it first
            kazoo.far.close()
            rides.ride("/a")
        kazoo.run()
        assert over.wait(SOON)
        assert rides.heard == [("/a", None, b"")]
        kazoo.close()

    def test_a_signal_handler_that_strikes_in_it_is_told_apart(self) -> None:
        def struck(_: bytes) -> int:
            raise BlockingIOError

        class Sends(socket.socket):
            write: Callable[[bytes], int]

            def send(self, data: Any, flags: int = 0) -> int:
                return self.write(data)

        def sends(write: Callable[[bytes], int]) -> bool:
            with Sends() as own:
                own.write = write
                try:
                    own.send(b"")
                except OSError as error:
                    return raised_by_the_call(error)
            raise AssertionError

        assert sends(partial(os.write, -1))
        assert not sends(struck)


class Strike(Exception):
    """What a signal handler raises."""


BATCH = (Sync("/"),)


class Landing:
    """What a caller waits for: the replies to its riders, or their end."""

    def __init__(self, rides: Rides, *names: str) -> None:
        self.batch = BATCH
        self.heard: list[tuple[str, int | None]] = []
        self.threads: set[int] = set()
        self.names = names
        self.over = False
        self.done = threading.Event()
        self.riders = [self.rider(rides, name) for name in names]

    def rider(self, rides: Rides, name: str) -> WireRequest:
        def hear(error: int | None, body: bytes) -> None:
            if name in dict(self.heard):
                return
            self.heard.append((name, error))
            self.threads.add(threading.get_ident())
            if len(self.heard) == len(self.names):
                self.done.set()

        return rides.rider(name)._replace(hear=hear, landing=self)

    def complete(self) -> None:
        for name in {*self.names} - {name for name, _ in self.heard}:
            self.heard.append((name, None))
        self.done.set()


@pytest.mark.skipif(not gateway.READS, reason="callers read on Linux alone")
class TestACallerThatReads:
    @pytest.fixture
    def kazoo(self) -> Iterator[Kazoo]:
        kazoo = begun()
        kazoo.run()
        yield kazoo
        kazoo.close()

    def departed(self, kazoo: Kazoo, rides: Rides, *names: str) -> tuple[Landing, list[int]]:
        landing = Landing(rides, *names)
        kazoo.handler.write(landing.riders, landing)
        return landing, numbers(split(kazoo.far.recv(65536)))

    def test_takes_its_replies_itself(self, kazoo: Kazoo, rides: Rides) -> None:
        for _ in range(3):
            landing, sent = self.departed(kazoo, rides, "/a", "/b")
            kazoo.far.sendall(answers(sent[0]) + answers(sent[1], NO_NODE))
            assert kazoo.handler.hear(BATCH, SOON)
            assert landing.heard == [("/a", 0), ("/b", NO_NODE)]
            assert landing.threads == {threading.get_ident()}
            assert kazoo.connection.reading is None

    @pytest.mark.parametrize("size", [1, 7, 23])
    def test_also_if_they_come_in_pieces(self, kazoo: Kazoo, rides: Rides, size: int) -> None:
        landing, sent = self.departed(kazoo, rides, "/a", "/b")
        stream = answers(sent[0]) + answers(sent[1])
        for at in range(0, len(stream), size):
            assert not landing.done.is_set()
            kazoo.far.sendall(stream[at : at + size])
            assert kazoo.handler.hear(BATCH, SOON)
        assert not kazoo.handler.hear(BATCH, SOON)
        assert landing.threads == {threading.get_ident()}

    def test_asks_again_before_it_sleeps_where_replies_come_soon(
        self, kazoo: Kazoo, rides: Rides, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now, spun = [0.0], list[int]()
        replies: list[bytes] = []

        def passes() -> None:
            spun[-1] += 1
            now[0] += gateway.SPIN / 3
            if spun[-1] == late:
                kazoo.far.sendall(replies.pop())

        monkeypatch.setattr(gateway, "clock", lambda: now[0])
        monkeypatch.setattr(gateway, "_let_others_run", passes)
        kazoo.connection._spins = True
        for late in (0, 1, 2, 3, 0, 1):
            spun.append(0)
            _, (sent,) = self.departed(kazoo, rides, "/a")
            replies.append(answers(sent))
            if not late:
                kazoo.far.sendall(replies.pop())
            assert kazoo.handler.hear(BATCH, SOON)
        assert spun == [0, 1, 2, 3, 0, 1]

    def test_sleeps_at_once_for_a_while_where_others_need_the_processor(
        self, kazoo: Kazoo, rides: Rides, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now, spun, others = [0.0], 0, 0.0

        def passes() -> None:
            nonlocal spun
            spun += 1
            now[0] += others

        monkeypatch.setattr(gateway, "clock", lambda: now[0])
        monkeypatch.setattr(gateway, "_let_others_run", passes)
        kazoo.connection._spins = True

        def asks() -> int:
            """Return how often it has asked before it slept."""
            nonlocal spun
            spun = 0
            _, (sent,) = self.departed(kazoo, rides, "/a")
            kazoo.far.sendall(answers(sent))
            assert kazoo.handler.hear(BATCH, SOON)
            return spun

        assert [asks(), asks()] == [0, 1]
        others = 1.5 * gateway.SPIN
        assert [asks(), asks()] == [1, 0]  # the answer had taken long: the next one may, too
        others = 0.0
        assert [asks() for _ in range(gateway.VAIN)] == [0] * gateway.VAIN
        assert asks() == 1

    def test_that_must_not_sleep_glances_and_after_one_in_vain_not_for_a_while(
        self, kazoo: Kazoo, rides: Rides, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now, spun = [0.0], 0

        def passes() -> None:
            nonlocal spun
            spun += 1
            now[0] += gateway.SPIN / 3

        monkeypatch.setattr(gateway, "clock", lambda: now[0])
        monkeypatch.setattr(gateway, "_let_others_run", passes)
        kazoo.connection._spins = True

        def glances(*, in_time: bool) -> int:
            """Return how often it has asked; a reply that is late is heard by the reader."""
            nonlocal spun
            spun = 0
            landing, (sent,) = self.departed(kazoo, rides, "/a")
            if in_time:
                kazoo.far.sendall(answers(sent))
            assert kazoo.handler.hear(BATCH, None)
            if not in_time:
                kazoo.far.sendall(answers(sent))
            assert landing.done.wait(SOON)
            return spun

        assert [glances(in_time=True) for _ in range(3)] == [1, 1, 1]
        assert glances(in_time=False) == 3
        for _ in range(gateway.VAIN):
            assert glances(in_time=False) == 0
        assert glances(in_time=True) == 1

    def test_takes_nothing_from_another_one_that_tells(self, kazoo: Kazoo, rides: Rides) -> None:
        _, (sent,) = self.departed(kazoo, rides, "/a")
        kazoo.connection.teller = other = threading.get_ident() + 1
        kazoo.far.sendall(answers(sent))
        assert kazoo.handler.hear(BATCH, SOON)
        assert kazoo.connection.teller == other

    def test_tells_the_events_before_them(self, kazoo: Kazoo, rides: Rides) -> None:
        landing, sent = self.departed(kazoo, rides, "/a", "/b")
        kazoo.far.sendall(answers(sent[0]) + event(CHILD, "/of-kazoo") + answers(sent[1]))
        assert kazoo.handler.hear(BATCH, SOON)
        assert landing.heard == [("/a", 0), ("/b", 0)]
        assert landing.threads == {threading.get_ident()}
        assert kazoo.step(SOON)
        assert kazoo.received == [event(CHILD, "/of-kazoo")]

    def test_leaves_all_else_to_the_reader(self, kazoo: Kazoo, rides: Rides) -> None:
        landing, sent = self.departed(kazoo, rides, "/a", "/b")
        kazoo.far.sendall(answers(sent[0]) + answers(PING) + answers(sent[1]))
        assert kazoo.handler.hear(BATCH, SOON)
        assert landing.done.wait(SOON)
        assert landing.heard == [("/a", 0), ("/b", 0)]
        assert len(landing.threads) == 2
        assert kazoo.step(SOON)
        assert kazoo.received == [answers(PING)]

    @pytest.mark.parametrize("error", [TimeoutError, BlockingIOError])
    @pytest.mark.parametrize("call", ["recv", "shutdown"])
    def test_what_a_signal_handler_raises_is_no_end_of_the_connection(
        self, kazoo: Kazoo, rides: Rides, error: type[OSError], call: str
    ) -> None:
        landing, sent = self.departed(kazoo, rides, "/a")
        kazoo.far.sendall(answers(sent[0]))
        kazoo.connection._struck = call == "shutdown"  # before: who writes next ends it

        def strike(_: FrameType, event: str, called: Any) -> None:
            if event == "c_return" and called.__name__ == call:
                sys.setprofile(None)
                raise error

        sys.setprofile(strike)
        try:
            with pytest.raises(error):
                if call == "recv":
                    kazoo.handler.hear(BATCH, SOON)
                else:
                    rides.ride("/b")
        finally:
            sys.setprofile(None)
        assert open_connection(kazoo.handler) is None
        kazoo.connection.close()
        assert landing.done.wait(SOON)

    @pytest.mark.parametrize("who", ["rider", "kazoo"])
    def test_takes_its_replies_also_when_another_writes(
        self, kazoo: Kazoo, rides: Rides, who: str
    ) -> None:
        landing, sent = self.departed(kazoo, rides, "/a")
        caller = threading.Thread(target=kazoo.handler.hear, args=(BATCH, SOON))
        caller.start()
        wait_for(lambda: kazoo.connection._reads_until > 0.0, SOON)
        if who == "rider":
            rides.ride("/other")
        else:
            kazoo.ask(asks(1))
            kazoo.step()
        sent += numbers(split(kazoo.far.recv(65536)))
        kazoo.far.sendall(answers(sent[0]) + answers(sent[1]))
        caller.join(SOON)
        assert landing.threads == {caller.ident}
        assert kazoo.connection.reading is None
        wait_for(lambda: rides.heard or kazoo.step(), SOON)
        assert rides.heard == ([("/other", 0, b"")] if who == "rider" else [])

    def test_that_is_held_up_leaves_it_to_the_reader_when_another_writes(
        self, kazoo: Kazoo, rides: Rides, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        landing, sent = self.departed(kazoo, rides, "/a")
        held, goes = threading.Event(), threading.Event()

        def wait(*_: object) -> bool:
            held.set()
            return goes.wait(SOON)

        monkeypatch.setattr(gateway, "LONGEST", 0.0)
        monkeypatch.setattr(kazoo.connection, "_wait", wait)
        caller = threading.Thread(target=kazoo.handler.hear, args=(BATCH, SOON))
        caller.start()
        assert held.wait(SOON)
        rides.ride("/other")
        kazoo.far.sendall(answers(sent[0]))
        assert landing.done.wait(SOON)
        goes.set()
        caller.join(SOON)
        assert caller.ident not in landing.threads

    def test_that_needs_no_more_leaves_the_rest_to_the_reader(
        self, kazoo: Kazoo, rides: Rides
    ) -> None:
        landing, sent = self.departed(kazoo, rides, "/a", "/b")
        landing.over = True  # as without a parent: its listing is not waited for
        kazoo.far.sendall(answers(sent[0]))
        assert kazoo.handler.hear(BATCH, SOON)
        assert landing.heard == [("/a", 0)]
        kazoo.far.sendall(answers(sent[1]))
        assert landing.done.wait(SOON)
        assert len(landing.threads) == 2

    def test_that_does_not_come_leaves_it_to_the_reader_when_another_writes(
        self, kazoo: Kazoo, rides: Rides
    ) -> None:
        landing, sent = self.departed(kazoo, rides, "/a")
        kazoo.far.sendall(answers(sent[0]))
        rides.ride("/other")
        assert landing.done.wait(SOON)
        assert not kazoo.handler.hear(BATCH, SOON)

    def test_leaves_to_the_reader_what_a_signal_handler_of_its_own_waits_for(
        self, kazoo: Kazoo, rides: Rides
    ) -> None:
        landing, heard = Landing(rides, "/b"), threading.Event()
        rides.then = heard.set
        told: list[bool] = []

        def interrupted(error: int | None, body: bytes) -> None:
            rides.ride("/handler")
            kazoo.far.sendall(answers(sent[1]) + answers(sent[1] + 1))
            told.append(heard.wait(SOON))

        first = rides.rider("/a")._replace(hear=interrupted, landing=landing)
        kazoo.handler.write([first, *landing.riders], landing)
        sent = numbers(split(kazoo.far.recv(65536)))
        kazoo.far.sendall(answers(sent[0]))
        assert kazoo.handler.hear(BATCH, SOON)
        assert told == [True]
        assert landing.done.wait(SOON)

    def test_whose_time_is_over_leaves_it_to_the_reader(self, kazoo: Kazoo, rides: Rides) -> None:
        landing, sent = self.departed(kazoo, rides, "/a")
        assert kazoo.handler.hear(BATCH, 2 * gateway.LONGEST)
        assert kazoo.connection.reading is not None
        assert kazoo.handler.hear(BATCH, 0.0)
        assert not kazoo.handler.hear(BATCH, SOON)
        kazoo.far.sendall(answers(sent[0]))
        assert landing.done.wait(SOON)

    def test_does_not_read_while_something_is_under_way(self, kazoo: Kazoo, rides: Rides) -> None:
        rides.ride("/before")
        landing, sent = self.departed(kazoo, rides, "/a")
        assert not kazoo.handler.hear(BATCH, SOON)
        kazoo.far.sendall(answers(sent[0]) + answers(sent[1]))
        assert landing.done.wait(SOON)
        assert threading.get_ident() not in landing.threads

    def test_reads_for_no_other_batch(self, kazoo: Kazoo, rides: Rides) -> None:
        landing, sent = self.departed(kazoo, rides, "/a")
        assert not kazoo.handler.hear((Sync("/"),), SOON)
        kazoo.far.sendall(answers(sent[0]))
        assert kazoo.handler.hear(BATCH, SOON)
        assert landing.threads == {threading.get_ident()}

    @pytest.mark.parametrize("how", ["end", "close"])
    def test_hears_of_the_end_of_the_connection(self, kazoo: Kazoo, rides: Rides, how: str) -> None:
        landing, _ = self.departed(kazoo, rides, "/a")
        (kazoo.connection if how == "close" else kazoo.far).close()
        while kazoo.handler.hear(BATCH, SOON):
            pass
        if how == "end":
            with pytest.raises(ConnectionResetError):
                kazoo.step(SOON)
            kazoo.connection.close()
        assert landing.done.wait(SOON)
        assert landing.heard == [("/a", None)]

    @pytest.mark.parametrize("what", ["depart", "hear"])
    def test_an_interrupt_at_every_moment_loses_nothing(self, what: str) -> None:
        """What was sent is heard, by whichever thread, or the connection ends and drops it."""
        moments, at, ended, kept = Moments(), 0, 0, 0
        while not at or moments.where:
            at += 1
            kazoo = begun()
            kazoo.run()
            rides = Rides(kazoo)
            landing = Landing(rides, "/a", "/b")
            depart = partial(kazoo.handler.write, landing.riders, landing)
            if what == "depart":
                moments.run(depart, at)
            else:
                depart()
                kazoo.far.sendall(answers(1) + answers(2))
                moments.run(lambda: kazoo.handler.hear(BATCH, SOON), at)  # noqa: B023
            assert not kazoo.handler.interrupted()
            rides.ride("/next")  # as a heartbeat does
            sent = [each for each in kazoo.sent() if what == "depart"]
            if open_connection(kazoo.handler) is None:
                ended += 1
                kazoo.connection.close()
            elif what == "hear":
                kept += 1
                kazoo.far.sendall(answers(3))
                wait_for(lambda: rides.heard == [("/next", 0, b"")], SOON, f"moment {at}")  # noqa: B023
            elif "/a" in names(sent):
                kept += 1
                kazoo.far.sendall(b"".join(map(answers, numbers(sent))))
            if what == "depart" and "/a" not in names(sent):  # the exception has told its caller
                kazoo.connection.close()
                wait_for(lambda: kazoo.connection._ear is None, SOON)  # noqa: B023
                landing.complete()
            assert landing.done.wait(SOON), at
            assert sorted(name for name, _ in landing.heard) == ["/a", "/b"], at
            kazoo.close()
        assert at > 20
        assert ended
        assert kept


@pytest.mark.skipif(not gateway.READS, reason="callers read on Linux alone")
class TestACallerThatWaitsForEvents:
    @pytest.fixture
    def kazoo(self) -> Iterator[Kazoo]:
        kazoo = begun()
        kazoo.run()
        yield kazoo
        kazoo.close()

    def watched(self, kazoo: Kazoo, rides: Rides, *paths: str) -> list[tuple[str, int]]:
        """Have watches placed; return what those who watch will hear, and on which threads."""
        told: list[tuple[str, int]] = []

        def hear(kind: str, path: str) -> None:
            told.append((path, threading.get_ident()))
            rides.then()

        for path in paths:
            rides.ride(path, Watch(GET_DATA, path.encode(), (hear, path)))
            (number,) = numbers(split(kazoo.far.recv(65536)))
            kazoo.far.sendall(answers(number))
        wait_for(lambda: len(rides.heard) == len(paths), SOON)
        wait_for(lambda: not kazoo.connection._telling, SOON)
        return told

    @pytest.fixture(autouse=True)
    def for_long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gateway, "LONGEST", SOON)

    def waits(self, kazoo: Kazoo) -> threading.Thread:
        """Return a thread that waits for events, and then for replies."""
        caller = threading.Thread(
            target=lambda: kazoo.handler.hear((), SOON) and kazoo.handler.hear(BATCH, SOON)
        )
        caller.start()
        wait_for(lambda: kazoo.connection.reading is not None, SOON)
        return caller

    def test_takes_them_itself(self, kazoo: Kazoo, rides: Rides) -> None:
        told = self.watched(kazoo, rides, "/a", "/b")
        caller = self.waits(kazoo)
        kazoo.far.sendall(event(DELETED, "/a") + event(DELETED, "/b"))
        caller.join(SOON)
        assert told == [("/a", caller.ident), ("/b", caller.ident)]
        assert kazoo.connection.reading is None

    def test_and_the_replies_to_what_it_then_asks(self, kazoo: Kazoo, rides: Rides) -> None:
        self.watched(kazoo, rides, "/a")
        landing = Landing(rides, "/next")
        rides.then = partial(kazoo.handler.write, landing.riders, landing)
        caller = self.waits(kazoo)
        kazoo.far.sendall(event(DELETED, "/a"))
        (number,) = numbers(split(kazoo.far.recv(65536)))
        kazoo.far.sendall(answers(number))
        caller.join(SOON)
        assert landing.threads == {caller.ident}

    def test_leaves_all_else_to_the_reader(self, kazoo: Kazoo, rides: Rides) -> None:
        told = self.watched(kazoo, rides, "/a", "/b")
        rides.heard.clear()
        caller = self.waits(kazoo)
        rides.ride("/other")
        (number,) = numbers(split(kazoo.far.recv(65536)))
        kazoo.far.sendall(event(DELETED, "/a") + answers(number) + event(DELETED, "/b"))
        caller.join(SOON)
        wait_for(lambda: len(told) == 2, SOON)
        assert [path for path, _ in told] == ["/a", "/b"]
        assert [thread == caller.ident for _, thread in told] == [True, False]
        assert rides.heard == [("/other", 0, b"")]

    def test_that_is_forked_meanwhile_takes_nothing(
        self, kazoo: Kazoo, rides: Rides, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The parent has the same socket."""
        told = self.watched(kazoo, rides, "/a")
        caller = self.waits(kazoo)
        with monkeypatch.context() as patch:
            patch.setattr(kazoo.handler, "_process", "the parent")
            kazoo.far.sendall(event(DELETED, "/a"))
            caller.join(SOON)
            assert not told
        wait_for(lambda: told, SOON)
        assert told[0][1] != caller.ident

    def test_tells_kazoo_of_its_own(self, kazoo: Kazoo) -> None:
        caller = self.waits(kazoo)
        kazoo.far.sendall(event(CHILD, "/of-kazoo"))
        caller.join(SOON)
        assert kazoo.step(SOON)
        assert kazoo.received == [event(CHILD, "/of-kazoo")]

    def test_does_not_read_while_something_is_under_way(self, kazoo: Kazoo, rides: Rides) -> None:
        told = self.watched(kazoo, rides, "/a")
        rides.ride("/before")
        assert not kazoo.handler.hear((), SOON)
        kazoo.far.sendall(event(DELETED, "/a"))
        wait_for(lambda: told, SOON)
        assert told[0][1] != threading.get_ident()

    def test_waits_for_a_moment_alone(
        self, kazoo: Kazoo, rides: Rides, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told = self.watched(kazoo, rides, "/a")
        monkeypatch.setattr(gateway, "LONGEST", 0.001)
        assert kazoo.handler.hear((), SOON)
        kazoo.far.sendall(event(DELETED, "/a"))
        wait_for(lambda: told, SOON)
        assert told[0][1] != threading.get_ident()

    def test_tells_all_before_another_thread_receives(self, kazoo: Kazoo, rides: Rides) -> None:
        """A contender that hears first of its blocker believes that its own node is there."""
        told = self.watched(kazoo, rides, "/a", "/b")
        tells, goes_on = threading.Event(), threading.Event()

        def hold() -> None:
            tells.set()
            assert goes_on.wait(SOON)

        rides.then = hold
        caller = self.waits(kazoo)
        kazoo.far.sendall(event(DELETED, "/a"))
        assert tells.wait(SOON)
        rides.then = lambda: None
        landing = Landing(rides, "/other")
        kazoo.handler.write(landing.riders, landing)
        (number,) = numbers(split(kazoo.far.recv(65536)))
        kazoo.far.sendall(event(DELETED, "/b") + answers(number))
        assert not kazoo.handler.hear(BATCH, SOON)
        assert not kazoo.handler.hear((), SOON)
        ear, _ = kazoo.connection._ear
        kazoo.connection._wake_reader()
        wait_for(lambda: not select.select([ear], [], [], 0)[0], SOON)  # it has looked
        assert [path for path, _ in told] == ["/a"]
        goes_on.set()
        assert landing.done.wait(SOON)
        assert [path for path, _ in told] == ["/a", "/b"]
        caller.join(SOON)

    @pytest.mark.parametrize("beside", ["a wake-up", "another caller's end"])
    def test_tells_all_before_another_thread_sorts(
        self, kazoo: Kazoo, rides: Rides, beside: str
    ) -> None:
        told = self.watched(kazoo, rides, "/a", "/b")
        tells, goes_on = threading.Event(), threading.Event()

        def hold() -> None:
            rides.then = lambda: None
            tells.set()
            assert goes_on.wait(SOON)

        caller = self.waits(kazoo)
        rides.ride("/other")
        (number,) = numbers(split(kazoo.far.recv(65536)))
        rides.then = hold
        kazoo.far.sendall(event(DELETED, "/a") + answers(number) + event(DELETED, "/b"))
        assert tells.wait(SOON)
        if beside == "another caller's end":
            kazoo.connection._reads_until = 0.0  # a caller has read before, and was held up
            rides.ride("/late")
        ear, _ = kazoo.connection._ear
        for _ in range(2):  # when it wakes up again, it has looked
            kazoo.connection._wake_reader()
            wait_for(lambda: not select.select([ear], [], [], 0)[0], SOON)
        so_far = [path for path, _ in told]
        goes_on.set()
        caller.join(SOON)
        assert so_far == ["/a"]
        wait_for(lambda: len(told) == 2, SOON)
        assert [path for path, _ in told] == ["/a", "/b"]

    def test_is_interrupted_in_what_a_signal_handler_does_meanwhile(
        self, kazoo: Kazoo, rides: Rides
    ) -> None:
        self.watched(kazoo, rides, "/a")
        seen: list[bool] = []
        rides.then = lambda: seen.append(kazoo.handler.interrupted())
        caller = self.waits(kazoo)
        kazoo.far.sendall(event(DELETED, "/a"))
        caller.join(SOON)
        assert seen == [True]
        assert not kazoo.connection.teller

    def test_an_interrupt_at_every_moment_loses_no_event(self) -> None:
        """It is told, or the connection ends: then all who watch look again."""
        moments, at, ended, kept = Moments(), 0, 0, 0
        while not at or moments.where:
            at += 1
            kazoo = begun()
            kazoo.run()
            rides = Rides(kazoo)
            told = self.watched(kazoo, rides, "/a")
            over = threading.Event()

            def send(connection: Any, far: socket.socket, over: threading.Event) -> None:
                wait_for(lambda: connection.reading is not None or over.is_set(), SOON)
                far.sendall(event(DELETED, "/a"))

            sender = threading.Thread(target=send, args=(kazoo.connection, kazoo.far, over))
            sender.start()
            moments.run(lambda: kazoo.handler.hear((), SOON), at)  # noqa: B023
            over.set()
            sender.join(SOON)
            assert not kazoo.handler.interrupted()
            rides.ride("/next")  # as a heartbeat does
            if open_connection(kazoo.handler) is None:
                ended += 1
            else:
                kept += 1
                wait_for(lambda: told, SOON)  # noqa: B023
            kazoo.close()
        assert at > 20
        assert ended
        assert kept


class TestAnInterrupt:
    """What strikes the main thread while it has the mutex."""

    @pytest.mark.parametrize("step", ["next_xid", "_write"])
    def test_costs_the_connection_and_nothing_else(
        self, kazoo: Kazoo, rides: Rides, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        def strike(*_: object) -> None:
            raise Strike

        home = kazoo.connection if step == "_write" else kazoo.handler
        with monkeypatch.context() as patch:
            patch.setattr(home, step, strike)
            with pytest.raises(Strike):
                rides.ride("/a")
        assert open_connection(kazoo.handler) is None
        assert not kazoo.handler.interrupted()
        kazoo.run()
        assert kazoo.dropped is not None
        assert rides.heard == [("/a", None, b"")]

    def test_by_a_handler_that_does_not_return_keeps_no_other_thread(
        self, kazoo: Kazoo, rides: Rides, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It has struck while a request was sent."""
        writes, goes = threading.Event(), threading.Event()
        near = kazoo.connection._sock

        class Held:
            def send(self, data: bytes) -> int:
                writes.set()
                assert goes.wait(SOON)
                return int(near.send(data))

        with monkeypatch.context() as patch:
            patch.setattr(kazoo.connection, "_sock", Held())
            other = threading.Thread(target=rides.ride, args=("/held",))
            other.start()
            assert writes.wait(SOON)
            rides.ride("/a")
            kazoo.ask(asks(1, "/kazoo"))
            assert kazoo.step()
            rides.ride("/b")
            goes.set()
            other.join()
        assert names(kazoo.sent()) == ["/held", "/a", "/kazoo", "/b"]

    def test_by_a_handler_that_asks_has_its_request_sent_when_it_returns(
        self, kazoo: Kazoo, rides: Rides, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        number: Callable[[], int] = kazoo.handler.next_xid

        def interrupted() -> int:
            monkeypatch.setattr(kazoo.handler, "next_xid", number)
            rides.ride("/handler")
            return number()

        monkeypatch.setattr(kazoo.handler, "next_xid", interrupted)
        rides.ride("/a")
        sent = kazoo.sent()
        assert names(sent) == ["/a", "/handler"]
        assert numbers(sent) == [1, 2]


def test_a_forked_child_has_no_line(
    kazoo: Kazoo, rides: Rides, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_connection(kazoo.handler) is kazoo.connection
    monkeypatch.setattr(kazoo.handler, "_process", -1)
    assert open_connection(kazoo.handler) is None
    rides.ride("/child")
    assert rides.heard == [("/child", None, b"")]
    kazoo.far.setblocking(False)
    with pytest.raises(BlockingIOError):
        kazoo.far.recv(1)
