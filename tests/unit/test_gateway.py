"""kazoo on zklock's connection, over a pair of sockets; kazoo's loop and the reader are stepped.

``zklock/_kazoo/gateway.py`` says what must hold, and why it does. What holds of riders holds here,
too: their tests are run again.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.unit import test_riders as riders
from tests.unit.test_riders import SOON, Kazoo, Rides, answers, asks, names, numbers, split
from tests.unit.testing.wire import event
from zklock._ground import threads
from zklock._kazoo.gateway import GatewayHandler, GatewaySocket
from zklock._kazoo.riders import Rider
from zklock.testing import wait_for


class Stepped(GatewaySocket):
    """Read by the thread that waits for it."""

    def _begin_to_read(self) -> None:
        self._ear = socket.socketpair()

    def step(self, seconds: float) -> None:
        """Receive what has come, or comes in so many seconds."""
        poll = select.poll()
        if not (self._closed or self._end):
            poll.register(self, select.POLLIN)
            if poll.poll(1000 * seconds):
                self._receive()

    def arrived(self) -> None:
        self._receive()

    def close(self) -> None:
        super().close()
        if self._ear is not None:
            self._end_reading()


class SteppedHandler(GatewayHandler):
    _connection = Stepped

    def select(
        self,
        rlist: Sequence[Any],
        wlist: Sequence[Any],
        xlist: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        for each in rlist:
            if isinstance(each, Stepped) and not any(one.pending() for one in rlist):
                each.step(timeout or 0.0)
        return super().select(rlist, wlist, xlist, 0.0)


@pytest.fixture(autouse=True)
def stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kazoo, "HANDLER", SteppedHandler)


kazoo, now, rides = riders.kazoo, riders.now, riders.rides


class TestTheOrderOfRequests(riders.TestTheOrderOfRequests):
    # While kazoo has no queue, a request of ours goes out at once.
    test_what_is_under_way_goes_out_together = None  # type: ignore[assignment]
    test_a_user_who_never_stops_asking_does_not_keep_riders_from_being_sent = None  # type: ignore[assignment]

    def test_ours_go_out_at_once_while_kazoo_has_no_queue(self, kazoo: Kazoo, rides: Rides) -> None:
        rides.ride("/a")
        assert names(split(kazoo.far.recv(65536))) == ["/a"]


class TestTheLine(riders.TestTheLine):
    test_stays_closed_over_tls = None  # type: ignore[assignment]


class TestReplies(riders.TestReplies):
    # kazoo's frames wait for kazoo, and keep no reply of ours from being heard.
    test_come_in_the_order_of_the_stream_however_they_arrive = None  # type: ignore[assignment]
    test_do_not_keep_requests_from_being_sent = None  # type: ignore[assignment]
    test_that_wait_for_kazoo_are_not_in_the_middle_of_anything = None  # type: ignore[assignment]
    # A server that stops for good is noticed by a heartbeat that is not answered.
    test_that_stop_in_the_middle_end_the_connection = None  # type: ignore[assignment]
    test_may_lead_to_more_riders = None  # type: ignore[assignment]

    @pytest.mark.parametrize("size", [1, 7, 20, 33, 1000])
    def test_are_heard_in_order_however_they_arrive(
        self, kazoo: Kazoo, rides: Rides, size: int
    ) -> None:
        for name in "ab":
            rides.ride(f"/{name}", rides.watch(f"/{name}"))
        kazoo.ask(asks(1))
        rides.ride("/c")
        kazoo.sent()
        stream = answers(1) + answers(2) + event(riders.DELETED, "/b")
        stream += answers(3) + answers(4, riders.NO_NODE)
        for at in range(0, len(stream), size):
            kazoo.far.sendall(stream[at : at + size])
            kazoo.run()
        assert rides.heard == [
            ("/a", 0, b""),
            ("/b", 0, b""),
            ("DELETED", "/b"),
            ("/c", riders.NO_NODE, b""),
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


class TestEvents(riders.TestEvents):
    pass


class TestTheEnd(riders.TestTheEnd):
    test_when_the_server_takes_no_more = None  # type: ignore[assignment]


class TestWhatHasBeenSeen(riders.TestWhatHasBeenSeen):
    pass


def taken(kazoo: Kazoo, wanted: int) -> bytes:
    """Return what the server takes, so many bytes."""
    data = b""
    while len(data) < wanted:
        data += kazoo.far.recv(4096)
    return data


def begun() -> Kazoo:
    """Return a connection that has a reader."""
    handler = GatewayHandler()
    handler._wanted = SOON
    return Kazoo(handler)


class TestTheReader:
    """The thread that reads a connection."""

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
            raise RuntimeError("can't start new thread")

        kazoo = begun()
        kazoo.connection.close()
        monkeypatch.setattr(threads, "start", refuse)
        with pytest.raises(OSError, match="can't start new thread"):
            kazoo.connect()
        kazoo.close()
        assert kazoo.connection.fileno() == -1


class Strike(Exception):
    """What a signal handler raises."""


class TestAnInterrupt:
    """What strikes the main thread while it has the mutex."""

    @pytest.mark.parametrize("step", ["next_xid", "seen", "_write"])
    def test_costs_the_connection_and_nothing_else(
        self, kazoo: Kazoo, rides: Rides, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        def strike(*_: object) -> None:
            raise Strike

        home = kazoo.connection if step == "_write" else kazoo.handler
        with monkeypatch.context() as patch:
            patch.setattr(home, step, strike)
            with pytest.raises(Strike) if step != "seen" else contextlib.nullcontext():
                rides.ride("/a")
        torn = step != "seen"
        assert (kazoo.handler.line is None) == torn
        assert not kazoo.handler.interrupted()
        kazoo.run()
        assert (kazoo.dropped is not None) == torn
        assert rides.heard == ([("/a", None, b"")] if torn else [])

    def test_by_a_handler_that_asks_leaves_its_request_to_kazoo(
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


def test_a_forked_child_has_no_line(kazoo: Kazoo, monkeypatch: pytest.MonkeyPatch) -> None:
    line = kazoo.handler.line
    assert line is kazoo.connection
    late = Rider(line, b"", lambda *_: None)
    monkeypatch.setattr(kazoo.handler, "_process", -1)
    assert kazoo.handler.line is None
    kazoo.handler.board(late)
    kazoo.handler.rouse()
    kazoo.far.setblocking(False)
    with pytest.raises(BlockingIOError):
        kazoo.far.recv(1)


class TestGoingBack(riders.TestGoingBack):
    pass


class TestServersThatTurnItAway(riders.TestServersThatTurnItAway):
    pass
