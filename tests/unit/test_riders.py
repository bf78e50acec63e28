"""Riders on a connection of kazoo's, over a pair of sockets; kazoo's loop is stepped by hand.

``zklock/_kazoo/riders.py`` says what must hold, and why it does.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, strategies as st
from kazoo.exceptions import SessionExpiredError

from tests.contract.struck import Moments
from tests.unit.bytecodes import Bytecodes, Struck
from tests.unit.testing.wire import (
    AUTH,
    CONNECT,
    CONNECTED,
    OPS,
    PING,
    auth,
    event,
    frame,
    ping,
    text,
)
from zklock._ground.clock import clock
from zklock._kazoo import handler as handler_module, wake
from zklock._kazoo.frames import RUN
from zklock._kazoo.riders import Rider
from zklock._kazoo.riding import RidingHandler, RidingSocket
from zklock._kazoo.watches import Watch
from zklock.testing import wait_for

SOON = 60.0
NO_NODE = -101
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


class Kazoo:
    """What kazoo's connection thread does in its main loop, over one connection after the other."""

    HANDLER: type[Any] = RidingHandler

    def __init__(self, handler: Any = None) -> None:
        self.handler = handler or self.HANDLER()
        self.reader, self.writer = self.handler.create_socket_pair()
        self.queue: deque[bytes] = deque()
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
        self.queue.append(data)
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
                data = self.queue.popleft()
                assert self.handler.select([], [self.connection], [], 1.0)[1]
                assert self.connection.send(data) == len(data)
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
        except BlockingIOError:
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

    def rider(self, name: str, watch: Watch | None = None) -> Rider:
        def hear(error: int | None, body: bytes) -> None:
            self.heard.append((name, error, body))
            self.then()

        line = self.kazoo.handler.line or self.kazoo.connection
        return Rider(line, struct.pack(">i", GET_DATA) + text(name) + b"\1", hear, watch)

    def ride(self, name: str, watch: Watch | None = None) -> None:
        self.kazoo.handler.board(self.rider(name, watch))
        self.kazoo.handler.rouse()

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
    def test_riders_and_kazoo_are_numbered_together(self, kazoo: Kazoo, rides: Rides) -> None:
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

    @pytest.mark.parametrize("others", [1, 3])
    def test_also_where_other_threads_have_queued_and_not_woken_kazoo_yet(
        self, kazoo: Kazoo, rides: Rides, others: int
    ) -> None:
        """Their requests are sent for the wake-ups of this one."""
        theirs = [f"/theirs-{number}" for number in range(others)]
        for xid, path in enumerate(theirs, 1):
            kazoo.ask(asks(xid, path), wakes=False)
        kazoo.ask(asks(others + 1, "/mine"))
        rides.ride("/rider")
        assert names(kazoo.sent()) == [*theirs, "/mine", "/rider"]
        for _ in theirs:
            kazoo.writer.send(b"\0")  # they go on
        rides.ride("/another")
        assert names(kazoo.sent()) == ["/another"]

    def test_wake_ups_for_nothing_are_harmless(self, kazoo: Kazoo, rides: Rides) -> None:
        kazoo.handler.nudge()
        kazoo.ask(asks(1, "/a"))
        kazoo.handler.nudge()
        rides.ride("/rider")
        assert names(kazoo.sent()) == ["/a", "/rider"]

    def test_riders_keep_their_order(self, kazoo: Kazoo, rides: Rides) -> None:
        wanted = []
        for number in range(20):
            wanted.append(f"/{number}")
            rides.ride(wanted[-1])
            if number % 3 == 0:
                kazoo.ask(asks(number + 1, "/kazoo"))
        assert [name for name in names(kazoo.sent()) if name != "/kazoo"] == wanted

    def test_a_user_who_never_stops_asking_does_not_keep_riders_from_being_sent(
        self, kazoo: Kazoo, rides: Rides, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(wake, "ASKED", 10)
        rides.ride("/rider")
        sent: list[str] = []
        for xid in range(1, 40):
            kazoo.ask(asks(xid))
            kazoo.step()
        sent = names(kazoo.sent())
        assert sent.index("/rider") == 11

    def test_a_user_who_never_stops_asking_keeps_no_rider_longer_than_the_first(
        self, kazoo: Kazoo, rides: Rides, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """At most so many requests that were queued later go before each of them."""
        monkeypatch.setattr(wake, "ASKED", 10)
        queued = 0
        later: list[int] = []
        for _ in range(20):
            while len(kazoo.queue) < 30:
                kazoo.ask(asks(queued := queued + 1))
            rides.ride("/rider")
            before, sent = queued, list[str]()
            while "/rider" not in sent:
                kazoo.ask(asks(queued := queued + 1))
                assert kazoo.step()
                with contextlib.suppress(BlockingIOError):
                    kazoo.far.setblocking(False)
                    sent += names(split(kazoo.far.recv(65536)))
            later.append(queued - len(kazoo.queue) - before)
        assert max(later) <= 10 + 1

    @pytest.mark.parametrize("unwoken", [0, 1, 3])
    def test_a_user_who_never_stops_asking_has_all_requests_sent_in_the_end(
        self, kazoo: Kazoo, rides: Rides, monkeypatch: pytest.MonkeyPatch, unwoken: int
    ) -> None:
        monkeypatch.setattr(wake, "ASKED", 3)
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

    def test_what_is_under_way_goes_out_together(self, kazoo: Kazoo, rides: Rides) -> None:
        for name in "abc":
            rides.ride(f"/{name}")
        assert kazoo.step()
        assert names(split(kazoo.far.recv(65536))) == ["/a", "/b", "/c"]


class TestTheLine:
    """When riders are taken."""

    def test_opens_in_the_main_loop(self) -> None:
        kazoo = Kazoo()
        lines = [kazoo.handler.line]  # kazoo still authenticates
        kazoo.run()
        lines.append(kazoo.handler.line)
        kazoo.close()
        lines.append(kazoo.handler.line)
        assert lines == [None, kazoo.connection, None]

    def test_closes_with_the_request_to_end_the_session(self, kazoo: Kazoo, rides: Rides) -> None:
        rides.ride("/before")
        kazoo.run()
        kazoo.ask(CLOSE)
        late = rides.rider("/after")
        kazoo.run()
        assert kazoo.handler.line is None
        kazoo.handler.board(late)
        assert rides.heard == [("/after", None, b"")]
        kazoo.far.sendall(answers(1, rest=b"!"))  # what went before is still answered
        assert len(kazoo.sent()) == 2
        assert rides.heard[1:] == [("/before", 0, b"!")]

    def test_closes_when_the_connection_is_dropped(self, kazoo: Kazoo) -> None:
        kazoo.handler.drop()
        assert kazoo.handler.line is None

    @pytest.mark.parametrize("flag", [b"\1", b"\0", b""])
    def test_stays_closed_at_a_server_that_only_reads(self, flag: bytes) -> None:
        kazoo = Kazoo()
        kazoo.connection.close()
        kazoo.connect(connected=frame(CONNECTED[4:-1] + flag))
        kazoo.run()
        assert (kazoo.handler.line is None) == (flag == b"\1")
        kazoo.close()

    def test_stays_closed_for_a_session_that_is_over(self) -> None:
        kazoo = Kazoo()
        kazoo.connection.close()
        over = struct.pack(">iiqi16s?", 0, 0, 0, 16, bytes(16), False)
        kazoo.connect(connected=frame(over))
        kazoo.run()
        assert kazoo.handler.line is None
        kazoo.close()

    def test_stays_closed_over_tls(self) -> None:
        class Tls:
            def __init__(self, sock: socket.socket) -> None:
                self._sock = sock

            def pending(self) -> int:
                return 0

            def __getattr__(self, name: str) -> Any:
                return getattr(self._sock, name)

        far, near = socket.socketpair()
        near.setblocking(False)
        handler = RidingHandler()
        connection = RidingSocket(Tls(near), handler)
        reader, _ = handler.create_socket_pair()
        connection.send(CONNECT)
        far.sendall(CONNECTED)
        handler.select([connection, reader], [], [], SOON)
        connection.recv(100)
        handler.select([connection, reader], [], [], 0)
        assert handler.line is None
        for each in (connection, far, reader):
            each.close()

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
        assert kazoo.handler.line is kazoo.connection


pieces = st.lists(st.integers(1, 60), max_size=60)
kinds = st.lists(st.sampled_from(["kazoo", "rider", "ping", "event", "mine"]), max_size=14)


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

    @given(kinds=kinds, cuts=pieces)
    def test_come_in_the_order_of_the_stream_however_they_arrive(
        self, kinds: list[str], cuts: list[int]
    ) -> None:
        kazoo = Kazoo()
        with contextlib.closing(kazoo):
            kazoo.run()
            rides = Rides(kazoo)
            stream, wanted = self._ask(kazoo, rides, kinds)
            for cut in [*cuts, len(stream) or 1]:
                piece, stream = stream[:cut], stream[cut:]
                if piece:
                    kazoo.far.sendall(piece)
                while kazoo.step():
                    rides.heard += kazoo.received
                    kazoo.received.clear()
            assert rides.heard == wanted

    def _ask(self, kazoo: Kazoo, rides: Rides, kinds: list[str]) -> tuple[bytes, list[Any]]:
        """Send requests; return the answers, and what has to be heard in this order."""
        stream = b""
        wanted: list[Any] = []
        for number, kind in enumerate(kinds, 1):
            if kind == "kazoo":
                kazoo.ask(asks(number))
                (sent,) = numbers(kazoo.sent())
                stream += answers(sent, rest=b"k" * number)
                wanted.append(answers(number, rest=b"k" * number))
            elif kind == "rider":
                rides.ride(f"/{number}")
                (sent,) = numbers(kazoo.sent())
                stream += answers(sent, rest=b"r" * number)
                wanted.append((f"/{number}", 0, b"r" * number))
            elif kind == "ping":
                kazoo.connection.send(ping())
                kazoo.sent()
                stream += answers(PING)
                wanted.append(answers(PING))
            elif kind == "event":
                stream += event(CHANGED, "/of-kazoo")
                wanted.append(event(CHANGED, "/of-kazoo"))
            else:
                rides.ride(f"/w{number}", rides.watch(f"/watched-{number}"))
                (sent,) = numbers(kazoo.sent())
                stream += answers(sent) + event(DELETED, f"/watched-{number}")
                wanted += (f"/w{number}", 0, b""), ("DELETED", f"/watched-{number}")
        return stream, wanted

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

    def test_that_stop_in_the_middle_end_the_connection(self, kazoo: Kazoo, rides: Rides) -> None:
        kazoo.handler.session_timeout = 0.06
        rides.ride("/a")
        kazoo.run()
        kazoo.far.sendall(answers(1)[:-1])
        with pytest.raises(TimeoutError, match="middle of a reply"):
            kazoo.step(SOON)
        assert rides.heard == []

    def test_that_wait_for_kazoo_are_not_in_the_middle_of_anything(
        self, kazoo: Kazoo, rides: Rides
    ) -> None:
        """The process was stopped for a while, when everything had arrived."""
        kazoo.handler.session_timeout = 0.03
        kazoo.ask(asks(1))
        rides.ride("/a")
        kazoo.run()
        kazoo.far.sendall(answers(1) + answers(2))
        assert kazoo.handler.select([kazoo.connection, kazoo.reader], [], [], SOON)[0]
        kazoo.connection._arrived_at -= 1.0
        for _ in range(20):
            assert kazoo.handler.select([kazoo.connection, kazoo.reader], [], [], SOON)[0]
        assert kazoo.read() == answers(1)
        kazoo.run()
        assert kazoo.dropped is None
        assert rides.heard == [("/a", 0, b"")]

    def test_of_an_unknown_error_are_errors(
        self, kazoo: Kazoo, rides: Rides, caplog: pytest.LogCaptureFixture
    ) -> None:
        rides.ride("/a")
        kazoo.run()
        kazoo.far.sendall(answers(1, error=-4321))
        kazoo.run()
        assert rides.heard == [("/a", -100, b"")]
        assert "unknown error code -4321" in caplog.text

    def test_do_not_keep_requests_from_being_sent(self, kazoo: Kazoo, rides: Rides) -> None:
        count = 5 * RUN
        for number in range(count):
            rides.ride(f"/{number}")
        kazoo.run()
        kazoo.far.recv(65536)
        kazoo.far.sendall(b"".join(answers(number + 1) for number in range(count)))

        def then() -> None:
            rides.then = lambda: None
            kazoo.ask(asks(1))

        rides.then = then
        assert kazoo.step()
        assert names(split(kazoo.far.recv(65536))) == ["/kazoo"]
        assert len(rides.heard) <= 2 * RUN
        kazoo.run()
        assert len(rides.heard) == count

    def test_may_lead_to_more_riders(self, kazoo: Kazoo, rides: Rides) -> None:
        """They are put in line while a reply is heard, and written after."""
        rides.ride("/first")
        kazoo.run()
        kazoo.far.recv(65536)

        def then() -> None:
            rides.then = lambda: None
            rides.ride("/second")
            kazoo.far.setblocking(False)
            with pytest.raises(BlockingIOError):
                kazoo.far.recv(1)

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

    def test_whose_hearer_is_struck_on_the_main_thread_let_the_exception_go_on(
        self, kazoo: Kazoo, rides: Rides
    ) -> None:
        """A signal handler raised it there. It is a caller's rider, which is dropped at once."""

        def then() -> None:
            raise TimeoutError("of a signal handler")

        late = rides.rider("/late")
        kazoo.connection.close()
        rides.then = then
        with pytest.raises(TimeoutError, match="of a signal handler"):
            kazoo.handler.board(late)


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
    def test_drops_what_awaits_a_reply_and_what_is_in_line(
        self, kazoo: Kazoo, rides: Rides, how: str
    ) -> None:
        rides.ride("/answered")
        rides.ride("/sent")
        kazoo.run()
        if how != "reset":
            kazoo.far.recv(65536)  # else unread data makes the end a reset
        kazoo.far.sendall(answers(1) + (answers(2)[:9] if how == "cut" else b""))
        kazoo.run()
        rides.ride("/in-line")
        kazoo.far.close()
        assert len(rides.heard) == 1
        kazoo.run()
        assert kazoo.dropped is not None
        wanted = [("/answered", 0), ("/sent", None), ("/in-line", None)]
        assert [(name, error) for name, error, _ in rides.heard] == wanted
        kazoo.connection.close()
        assert len(rides.heard) == 3

    def test_comes_after_the_last_reply_is_read(self, kazoo: Kazoo, rides: Rides) -> None:
        count = 3 * RUN
        for number in range(count):
            rides.ride(f"/{number}")
        kazoo.run()
        kazoo.far.recv(65536)
        kazoo.far.sendall(b"".join(answers(number + 1) for number in range(count)))
        kazoo.far.close()
        kazoo.run()
        assert [error for _, error, _ in rides.heard] == [0] * count

    def test_drops_riders_that_come_late(self, kazoo: Kazoo, rides: Rides) -> None:
        late = rides.rider("/late")
        kazoo.connection.close()
        kazoo.handler.board(late)
        assert rides.heard == [("/late", None, b"")]
        kazoo.connect()
        rides.ride("/next")
        assert names(kazoo.sent()) == []  # the line was not open yet
        rides.ride("/now")
        assert names(kazoo.sent()) == ["/now"]
        assert rides.heard == [("/late", None, b""), ("/next", None, b"")]

    def test_finds_a_rider_that_was_in_time_for_the_deque_only(
        self, kazoo: Kazoo, rides: Rides
    ) -> None:
        """Its caller is not heard of again: it was interrupted."""
        old = rides.rider("/old")
        kazoo.connection.close()
        kazoo.reader.board(old)
        kazoo.connect()
        kazoo.run()
        rides.ride("/new")
        assert names(kazoo.sent()) == ["/new"]
        assert rides.heard == [("/old", None, b"")]

    def test_when_sending_fails(self, kazoo: Kazoo, rides: Rides) -> None:
        kazoo.far.close()
        rides.ride("/a")
        kazoo.run()
        assert kazoo.dropped is not None
        assert rides.heard == [("/a", None, b"")]

    def test_when_the_server_takes_no_more(self) -> None:
        kazoo = Kazoo()
        kazoo.connection.close()
        kazoo.connect(near_buffer=4096)
        kazoo.run()
        kazoo.handler.session_timeout = 0.03
        rides = Rides(kazoo)
        for number in range(100):
            rides.ride("/" + "x" * 4096 + str(number))
        kazoo.run()
        assert isinstance(kazoo.dropped, TimeoutError)
        assert len(rides.heard) == 100
        kazoo.close()

    def test_of_the_session_is_no_end_of_numbers(self, kazoo: Kazoo, rides: Rides) -> None:
        rides.ride("/a")
        first = numbers(kazoo.sent())
        kazoo.connection.close()
        kazoo.connect()
        kazoo.run()
        rides.ride("/b")
        assert numbers(kazoo.sent()) > first


def test_what_is_taken_in_parts_is_sent_whole() -> None:
    kazoo = Kazoo()
    kazoo.connection.close()
    kazoo.connect(near_buffer=4096)
    kazoo.run()
    rides = Rides(kazoo)
    wanted = [f"/{number}-" + "x" * 3000 for number in range(100)]
    received = bytearray()

    def receive() -> None:
        while received.count(b"x") < 100 * 3000:
            received.extend(kazoo.far.recv(777))

    far = threading.Thread(target=receive)
    far.start()
    for number, name in enumerate(wanted):
        rides.ride(name)
        if number % 10 == 0:
            kazoo.ask(asks(number + 1))
    kazoo.run()
    far.join(SOON)
    frames = split(bytes(received[: received.rfind(b"x") + 2]))
    assert [name for name in names(frames) if name != "/kazoo"] == wanted
    assert numbers(frames) == sorted(numbers(frames))
    kazoo.close()


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
    monkeypatch.setattr(handler_module, "clock", lambda: now[0])
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

    def test_another_session_is_begun_after_a_timeout(self, kazoo: Kazoo, now: list[float]) -> None:
        kazoo.handler.seen(90)
        assert not kazoo.handler.goes_back(90)
        assert not kazoo.handler.goes_back(0)
        assert kazoo.handler.goes_back(80)
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


class TestServersThatTurnItAway:
    """They close the connection, and do not answer the handshake."""

    def asks(self, kazoo: Kazoo, serves: bool = True) -> int | None:
        """Connect, be turned away, and return the zxid that was named; ``None``: not asked."""
        kazoo.connection.close()
        kazoo.connection = kazoo.handler._connection(kazoo.pair(), kazoo.handler)
        if not serves:
            kazoo.connection._serves = lambda: False
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
        assert self.asks(kazoo, serves=False) is None  # no quorum, perhaps
        assert self.asks(kazoo) == 75
        assert "have refused this client" not in caplog.text
        assert self.asks(kazoo) == 0
        assert "have refused this client" in caplog.text

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


class TestWaking:
    def test_nobody_is_woken_who_does_not_wait(self, kazoo: Kazoo, rides: Rides) -> None:
        rides.ride("/a")
        assert not wakes_up(kazoo)
        kazoo.run()
        kazoo.reader.flush()  # it is about to wait
        rides.ride("/b")
        assert wakes_up(kazoo)

    def test_what_comes_just_before_the_wait_is_not_missed(
        self, kazoo: Kazoo, rides: Rides, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flush = kazoo.connection.flush

        def late() -> None:
            monkeypatch.undo()
            rides.ride("/a")  # between the look and the wait
            flush()

        monkeypatch.setattr(kazoo.connection, "flush", late)
        assert kazoo.step(SOON)
        assert names(kazoo.sent()) == ["/a"]

    def test_threads_that_ride_are_all_answered(self, kazoo: Kazoo) -> None:
        """None is forgotten while the connection thread falls asleep."""
        rides = Rides(kazoo)
        over = threading.Event()

        def serve() -> None:
            data = b""
            while not over.is_set():
                try:
                    data += kazoo.far.recv(65536)
                except TimeoutError:
                    continue
                while len(data) > 8 and len(data) >= (end := struct.unpack_from(">i", data)[0] + 4):
                    kazoo.far.sendall(answers(numbers([data])[0]))
                    data = data[end:]

        def loop() -> None:
            while not over.is_set():
                kazoo.step(SOON)

        def ask(name: str) -> None:
            for number in range(200):
                heard = threading.Event()
                kazoo.handler.board(
                    Rider(
                        kazoo.connection,
                        struct.pack(">i", GET_DATA) + text(f"/{name}-{number}") + b"\0",
                        lambda *_, heard=heard: heard.set(),
                    )
                )
                kazoo.handler.rouse()
                if number % 7 == 0:
                    kazoo.ask(asks(number + 1))
                assert heard.wait(SOON)

        kazoo.far.settimeout(0.2)
        ends = [threading.Thread(target=each) for each in (serve, loop)]
        askers = [threading.Thread(target=ask, args=(name,)) for name in "abcd"]
        for thread in (*ends, *askers):
            thread.start()
        for thread in askers:
            thread.join()
        wait_for(lambda: len(kazoo.received) == 4 * 29, SOON, lambda: f"{len(kazoo.received)}")
        over.set()
        kazoo.handler.nudge()
        for thread in ends:
            thread.join()
        assert rides.heard == []


def wakes_up(kazoo: Kazoo) -> bool:
    """Return whether a byte was sent to wake kazoo's thread."""
    try:
        return bool(kazoo.reader._read.recv(10))
    except BlockingIOError:
        return False


OURS = tuple(f"_kazoo/{name}.py" for name in ("handler", "riding", "carrying", "riders", "wake"))


class TestAnInterruptAtEveryMoment:
    """Of a caller who puts a rider in line, with the connection thread asleep or not."""

    @pytest.mark.parametrize("asleep", [True, False])
    def test_leaves_the_line_as_it_was(self, kazoo: Kazoo, rides: Rides, asleep: bool) -> None:
        moments = Moments()
        moments.run(lambda: rides.ride("/counted"))
        total = moments.count
        assert total > 10
        kazoo.sent()
        for at in range(1, total + 1):
            if asleep:
                kazoo.reader.flush()
            assert moments.run(lambda: rides.ride("/struck"), at)
            kazoo.handler.nudge()  # as ``Store.fly`` does
            assert not asleep or wakes_up(kazoo)
            rides.ride("/next")
            assert names(kazoo.sent()) in (["/next"], ["/struck", "/next"])

    def test_also_where_the_line_is_closed_meanwhile(self, kazoo: Kazoo, rides: Rides) -> None:
        line = kazoo.connection
        kazoo.connection.close()
        moments = Moments()
        total = 20
        for at in range(1, total + 1):
            rider = rides.rider(f"/{at}")
            rider.line = line
            moments.run(lambda rider=rider: kazoo.handler.board(rider), at)  # type: ignore[misc]
        kazoo.connect()
        kazoo.run()
        rides.ride("/next")
        assert names(kazoo.sent()) == ["/next"]
        heard = [name for name, *_ in rides.heard]
        assert len(heard) == len(set(heard))

    def test_a_signal_handler_that_rides_in_the_middle_is_in_line_itself(
        self, kazoo: Kazoo, rides: Rides
    ) -> None:

        class Handles(Bytecodes):
            def __call__(self, frame: FrameType, what: str, arg: object) -> Any:
                try:
                    return super().__call__(frame, what, arg)
                except Struck:
                    rides.ride("/handler")
                    return self

        bytecodes = Handles(*OURS)
        bytecodes.run(lambda: rides.ride("/counted"))
        total = bytecodes.count
        kazoo.sent()
        for at in range(1, total + 1):
            kazoo.reader.flush()
            bytecodes.run(lambda: rides.ride("/main"), at)
            assert wakes_up(kazoo)
            assert sorted(names(kazoo.sent())) == ["/handler", "/main"]


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
