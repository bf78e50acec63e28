"""Whose turn it is to use a connection: callers that write and read while kazoo's loop waits.

``zklock/_kazoo/turn.py`` says what must hold, and why it does.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType
from typing import Self

import pytest

from tests.contract.struck import Moments, Struck
from tests.unit.test_riders import (
    GET_CHILDREN,
    GET_DATA,
    Kazoo,
    Rides,
    answers,
    asks,
    names,
    numbers,
    split,
)
from tests.unit.testing.wire import PING, event
from zklock._kazoo import turn as turn_module
from zklock._kazoo.deletion import Deletion
from zklock._kazoo.riders import Rider
from zklock._kazoo.riding import Listener, RidingSocket
from zklock._kazoo.watches import Watch as SetWatch
from zklock._recipes.effects import Flight, Read
from zklock.testing import wait_for

pytestmark = pytest.mark.skipif(not turn_module.READS, reason="callers read on Linux alone")

SOON = 60.0
DELETED, CHANGED, CHILD = 2, 3, 4


class Landing:
    """A flight of one request for each name, and what was heard of it."""

    def __init__(self, kazoo: Kazoo, *names: str) -> None:
        self.flight: Flight = tuple(map(Read, names))
        self.heard: list[tuple[int | None, bytes]] = []
        self.completed = 0
        rides = Rides(kazoo)
        self.riders = [self._awaited(rides.rider(name)) for name in names]

    def _awaited(self, rider: Rider) -> Rider:
        return Rider(rider.line, rider.body, self.hear, None, self)

    def hear(self, error: int | None, body: bytes) -> None:
        self.heard.append((error, body))

    def complete(self) -> None:
        self.completed += 1


@pytest.fixture
def kazoo() -> Iterator[Kazoo]:
    kazoo = Kazoo()
    kazoo.run()
    yield kazoo
    kazoo.close()


@contextlib.contextmanager
def asleep(kazoo: Kazoo) -> Iterator[None]:
    """Have the connection thread wait in its loop."""
    kazoo.reader.flush()
    kazoo.connection.turn.release()
    try:
        yield
    finally:
        kazoo.connection._take_back()
        kazoo.reader.awake()


def received(kazoo: Kazoo) -> list[bytes]:
    """Return what the server has received, without a step of kazoo's loop."""
    data = b""
    kazoo.far.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while chunk := kazoo.far.recv(65536):
            data += chunk
    return split(data)


def hears(kazoo: Kazoo) -> bool:
    """Whether the connection thread would hear what has arrived."""
    here = kazoo.connection.fileno()
    return here in dict(kazoo.connection.turn.wait(0.0))


def is_woken(kazoo: Kazoo) -> bool:
    """Whether somebody has woken the connection thread."""
    return kazoo.reader.fileno() in dict(kazoo.connection.turn.wait(0.0))


def is_free(kazoo: Kazoo) -> bool:
    """Whether nobody has the turn."""
    turn = kazoo.connection.turn
    if turn.acquire(False):
        turn.release()
        return True
    return False


def sent(kazoo: Kazoo, *names: str) -> Landing:
    """Have a caller send a flight that it waits for."""
    landing = Landing(kazoo, *names)
    kazoo.handler.depart(landing.riders)
    return landing


def answer(kazoo: Kazoo) -> None:
    """Have the one request that is sent answered."""
    (number,) = numbers(kazoo.sent())
    kazoo.far.sendall(answers(number))
    kazoo.run()


def watched(rides: Rides, path: str) -> None:
    """Have a rider watch a node."""
    rides.ride(path, rides.watch(path))
    answer(rides.kazoo)


def read_behind(kazoo: Kazoo, other: bytes) -> Landing:
    """Have a caller read when its reply comes behind something else."""
    landing = sent(kazoo, "/a")
    (number,) = numbers(received(kazoo))
    kazoo.far.sendall(other + answers(number))
    assert kazoo.handler.read(landing.flight, SOON)
    return landing


class TestTheEnd:
    def test_what_refers_to_a_connection_keeps_no_descriptor(self, kazoo: Kazoo) -> None:
        """Such as an error in a record of a log, with the frames that it has come from."""
        ended = kazoo.connection
        poller = ended.turn._poller
        assert not poller.closed
        ended.close()
        assert poller.closed
        assert ended.fileno() == -1

    def test_who_leaves_replies_of_a_connection_that_has_ended_does_nothing(
        self, kazoo: Kazoo
    ) -> None:
        with asleep(kazoo):
            landing = sent(kazoo, "/a")
        assert kazoo.connection.turn.reading is landing
        kazoo.connection.close()
        kazoo.connection.turn.release()
        kazoo.handler.read_no_more(landing.flight)
        assert kazoo.connection.turn.acquire(False)
        assert landing.heard == [(None, b"")]


class TestWriting:
    def test_a_caller_writes_while_the_connection_thread_waits(self, kazoo: Kazoo) -> None:
        rides = Rides(kazoo)
        with asleep(kazoo):
            rides.ride("/a")
            rides.ride("/b")
            frames = received(kazoo)
            assert names(frames) == ["/a", "/b"]
            assert len(set(numbers(frames))) == 2
            assert is_free(kazoo)
        kazoo.far.sendall(b"".join(map(answers, numbers(frames))))
        kazoo.run()
        assert [name for name, *_ in rides.heard] == ["/a", "/b"]

    def test_it_sends_what_others_have_put_in_line_first(self, kazoo: Kazoo) -> None:
        rides = Rides(kazoo)
        with asleep(kazoo):
            kazoo.handler.board(rides.rider("/others"))
            rides.ride("/mine")
            assert names(received(kazoo)) == ["/others", "/mine"]

    def test_it_drops_nobody_elses(self, kazoo: Kazoo) -> None:
        """A signal handler could strike just then, and who waits for it would wait for ever."""
        rides = Rides(kazoo)
        of_an_earlier_line = rides.rider("/earlier")
        of_an_earlier_line.line = RidingSocket(kazoo.pair(), kazoo.handler)
        with asleep(kazoo):
            kazoo.handler.board(rides.rider("/others"))
            kazoo.reader.board(of_an_earlier_line)
            rides.ride("/mine")
            assert rides.heard == []
        kazoo.run()
        assert rides.heard == [("/earlier", None, b"")]
        of_an_earlier_line.line.close()
        assert kazoo.handler.waiting == 0

    def test_it_does_not_while_kazoo_may_have_a_request_in_its_queue(self, kazoo: Kazoo) -> None:
        rides = Rides(kazoo)
        result = kazoo.handler.async_result()
        with asleep(kazoo):
            rides.ride("/late")
            assert received(kazoo) == []
        assert names(kazoo.sent()) == ["/late"]
        result.set(None)
        with asleep(kazoo):
            rides.ride("/soon")
            assert names(received(kazoo)) == ["/soon"]

    def test_a_result_that_nobody_has_any_more_counts_no_longer(self, kazoo: Kazoo) -> None:
        result = kazoo.handler.async_result()
        assert kazoo.handler._is_asked()
        del result
        assert not kazoo.handler._is_asked()

    def test_of_many_results_those_that_are_there_are_forgotten(self, kazoo: Kazoo) -> None:
        results = [kazoo.handler.async_result() for _ in range(100)]
        for each in results:
            each.set(None)
        assert not kazoo.handler._is_asked()
        assert not kazoo.handler._open

    def test_it_does_not_while_wake_ups_stand_in_line(self, kazoo: Kazoo) -> None:
        rides = Rides(kazoo)
        kazoo.ask(asks(1, "/users"))
        with asleep(kazoo):
            rides.ride("/mine")
            assert received(kazoo) == []
        assert names(kazoo.sent()) == ["/users", "/mine"]

    def test_what_the_system_does_not_take_is_left_to_the_connection_thread(self) -> None:
        kazoo = Kazoo()
        kazoo.connection.close()
        kazoo.connect(near_buffer=4096)
        kazoo.run()
        rides = Rides(kazoo)
        with asleep(kazoo):
            for number in range(8):
                name = f"/{number}" + "x" * 40_000
                kazoo.handler.board(rides.rider(name))
            kazoo.handler.rouse()
            assert kazoo.connection._held
        data = bytearray()

        def receive() -> None:
            while len(data) < 8 * 40_000:
                data.extend(kazoo.far.recv(1 << 20))

        server = threading.Thread(target=receive)
        server.start()
        kazoo.run()
        server.join(SOON)
        got = split(bytes(data))
        assert [name[:2] for name in names(got)] == [f"/{number}" for number in range(8)]
        kazoo.close()

    def test_a_connection_that_fails_is_ended_by_the_connection_thread(self, kazoo: Kazoo) -> None:
        kazoo.far.close()
        with asleep(kazoo):
            landing = sent(kazoo, "/a")
            landing_2 = sent(kazoo, "/b")
        kazoo.run()
        assert kazoo.dropped is not None
        assert landing.heard == landing_2.heard == [(None, b"")]


class TestReading:
    def test_a_caller_hears_its_replies_and_the_connection_thread_does_not(
        self, kazoo: Kazoo
    ) -> None:
        with asleep(kazoo):
            landing = sent(kazoo, "/a", "/b")
            first, second = numbers(received(kazoo))
            kazoo.far.sendall(answers(first, rest=b"1"))
            assert not hears(kazoo)
            assert kazoo.handler.read(landing.flight, SOON)
            assert landing.heard == [(0, b"1")]
            kazoo.far.sendall(answers(second, error=-101, rest=b"2"))
            assert not hears(kazoo)
            assert kazoo.handler.read(landing.flight, SOON)
            assert landing.heard == [(0, b"1"), (-101, b"2")]
            assert not kazoo.handler.read(landing.flight, SOON)
            kazoo.far.sendall(event(DELETED, "/x"))
            wait_for(lambda: hears(kazoo), SOON, "the event")

    def test_one_that_must_not_sleep_hears_what_comes_at_once(
        self, kazoo: Kazoo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("zklock._kazoo.spin.LIMIT", SOON)
        with asleep(kazoo):
            landing = sent(kazoo, "/a", "/b")
            first, second = numbers(received(kazoo))
            for number in (first, second):
                kazoo.far.sendall(answers(number))
                assert kazoo.handler.read(landing.flight, None)
            assert landing.heard == [(0, b""), (0, b"")]

    def test_and_leaves_what_comes_later_to_the_connection_thread(self, kazoo: Kazoo) -> None:
        with asleep(kazoo):
            landing = sent(kazoo, "/a")
            (number,) = numbers(received(kazoo))
            assert kazoo.handler.glances()
            assert not kazoo.handler.read(landing.flight, None)
            assert not kazoo.handler.glances()
            kazoo.handler.read_no_more(landing.flight)
            kazoo.far.sendall(answers(number))
            assert hears(kazoo)
        kazoo.run()
        assert landing.heard == [(0, b"")]

    @pytest.mark.parametrize("pieces", [1, 3, 20])
    def test_replies_may_come_in_pieces(self, kazoo: Kazoo, pieces: int) -> None:
        with asleep(kazoo):
            landing = sent(kazoo, "/a")
            (number,) = numbers(received(kazoo))
            data = answers(number, rest=b"body")
            while data:
                kazoo.far.sendall(data[:pieces])
                data = data[pieces:]
                assert kazoo.handler.read(landing.flight, SOON)
            assert landing.heard == [(0, b"body")]

    def test_what_is_not_for_it_is_left_to_the_connection_thread(self, kazoo: Kazoo) -> None:
        rides = Rides(kazoo)
        watched(rides, "/watched")
        with asleep(kazoo):
            landing = read_behind(kazoo, event(DELETED, "/watched"))
            assert landing.heard == []
            assert not kazoo.handler.read(landing.flight, SOON)
        kazoo.run()
        assert landing.heard == [(0, b"")]
        assert rides.heard[-1] == ("DELETED", "/watched")

    def test_a_reply_that_is_too_short_ends_the_connection(self, kazoo: Kazoo) -> None:
        with asleep(kazoo):
            landing = sent(kazoo, "/a")
            (number,) = numbers(received(kazoo))
            kazoo.far.sendall(struct.pack(">iii", 8, number, 0))
            assert kazoo.handler.read(landing.flight, SOON)
            assert not kazoo.handler.read(landing.flight, 0.0)
        kazoo.run()
        assert kazoo.dropped is not None
        assert landing.heard == [(None, b"")]

    def test_nobody_reads_while_something_else_is_under_way(self, kazoo: Kazoo) -> None:
        rides = Rides(kazoo)
        with asleep(kazoo):
            rides.ride("/before")
            landing = sent(kazoo, "/a")
            assert not kazoo.handler.read(landing.flight, SOON)
            before, mine = numbers(received(kazoo))
        kazoo.far.sendall(answers(before) + answers(mine))
        kazoo.run()
        assert landing.heard == [(0, b"")]

    def test_another_who_sends_ends_it(self, kazoo: Kazoo) -> None:
        with asleep(kazoo):
            landing = sent(kazoo, "/a")
            done: list[bool] = []
            reader = threading.Thread(
                target=lambda: done.append(kazoo.handler.read(landing.flight, SOON))
            )
            reader.start()
            Rides(kazoo).ride("/other")
            reader.join()
            assert done == [False]
            mine, other = numbers(received(kazoo))
            kazoo.far.sendall(answers(mine) + answers(other))
            wait_for(lambda: hears(kazoo), SOON, "the replies")
        kazoo.run()
        assert landing.heard == [(0, b"")]

    def test_the_connection_thread_that_wakes_ends_it(self, kazoo: Kazoo) -> None:
        with asleep(kazoo):
            landing = sent(kazoo, "/a")
        (number,) = numbers(received(kazoo))
        kazoo.far.sendall(answers(number))
        kazoo.step(0.01)
        kazoo.run()
        assert landing.heard == [(0, b"")]
        assert not kazoo.handler.read(landing.flight, SOON)

    def test_a_caller_that_stops_leaves_it_to_the_connection_thread(self, kazoo: Kazoo) -> None:
        with asleep(kazoo):
            landing = sent(kazoo, "/a")
            assert kazoo.handler.read(landing.flight, 0.0)
            kazoo.handler.read_no_more(landing.flight)
            (number,) = numbers(received(kazoo))
            kazoo.far.sendall(answers(number))
            wait_for(lambda: hears(kazoo), SOON, "the reply")
            assert not kazoo.handler.read(landing.flight, SOON)
        kazoo.run()
        assert landing.heard == [(0, b"")]

    def test_a_caller_that_stops_in_the_turn_of_another_does_so_too(self, kazoo: Kazoo) -> None:
        with asleep(kazoo):
            landing = sent(kazoo, "/a")
            (number,) = numbers(received(kazoo))
            assert kazoo.connection.turn.acquire(False)
            try:
                kazoo.handler.read_no_more(landing.flight)
            finally:
                kazoo.connection.turn.release()
            kazoo.far.sendall(answers(number))
            assert is_woken(kazoo)
        kazoo.step(0.01)
        kazoo.run()
        assert landing.heard == [(0, b"")]

    def test_what_it_leaves_is_no_half_frame_for_one_who_comes_late(self, kazoo: Kazoo) -> None:
        kazoo.handler.session_timeout = 3.0
        rides = Rides(kazoo)
        watched(rides, "/watched")
        with asleep(kazoo):
            landing = read_behind(kazoo, event(DELETED, "/watched"))
        kazoo.connection._arrived_at -= 1000.0
        kazoo.connection.stall()  # nothing has arrived when the connection thread wakes
        kazoo.run()
        assert kazoo.dropped is None
        assert landing.heard == [(0, b"")]

    @pytest.mark.parametrize("listens", [False, True])
    def test_a_signal_that_another_thread_has_taken_is_seen_to(
        self, kazoo: Kazoo, listens: bool
    ) -> None:
        """Python's main thread sleeps, and is not woken by it."""

        def handle(number: int, frame: FrameType | None) -> None:
            raise Struck

        def take() -> None:
            wait_for(lambda: kazoo.reader.bell.waiting == 1, SOON, "the caller")
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, handle)
        taking = threading.Thread(target=take)
        try:
            with asleep(kazoo):
                taking.start()
                if listens:
                    gone = Gone(kazoo)
                    with pytest.raises(Struck):
                        kazoo.handler.listen(gone.deletion, b"/blocker", math.inf)
                else:
                    landing = sent(kazoo, "/a")
                    with pytest.raises(Struck):
                        kazoo.handler.read(landing.flight, math.inf)
        finally:
            taking.join()
            signal.signal(signal.SIGUSR1, before)

    def test_a_ring_wakes_it(self, kazoo: Kazoo) -> None:
        with asleep(kazoo):
            landing = sent(kazoo, "/a")
            kazoo.handler.ring()
            assert kazoo.handler.read(landing.flight, SOON)
            assert landing.heard == []

    def test_it_rings_once_only(self, kazoo: Kazoo) -> None:
        """Else a caller would ask again and again until its reply comes, and never sleep."""
        with asleep(kazoo):
            landing = sent(kazoo, "/a")
            kazoo.handler.ring()
            assert kazoo.handler.read(landing.flight, SOON)
            started = time.monotonic()
            assert kazoo.handler.read(landing.flight, 0.1)
            assert time.monotonic() - started > 0.05

    def test_the_end_of_the_connection_is_told_by_the_connection_thread(self, kazoo: Kazoo) -> None:
        with asleep(kazoo):
            landing = sent(kazoo, "/a")
            kazoo.far.close()
            kazoo.handler.read(landing.flight, SOON)
            assert landing.heard == []
        kazoo.run()
        assert kazoo.dropped is not None
        assert landing.heard == [(None, b"")]

    def test_after_the_end_nobody_reads(self, kazoo: Kazoo) -> None:
        with asleep(kazoo):
            landing = sent(kazoo, "/a")
        kazoo.connection.close()
        assert not kazoo.handler.read(landing.flight, SOON)
        assert landing.heard == [(None, b"")]

    def test_a_zxid_that_a_caller_has_seen_is_noted(self, kazoo: Kazoo) -> None:
        with asleep(kazoo):
            landing = sent(kazoo, "/a")
            (number,) = numbers(received(kazoo))
            kazoo.far.sendall(answers(number, zxid=4711))
            kazoo.handler.read(landing.flight, SOON)
        assert kazoo.handler.seen(0) == 4711

    def test_an_older_answer_is_left_to_the_connection_thread(self, kazoo: Kazoo) -> None:
        with asleep(kazoo):
            for zxid, heard in ((90, [(0, b"")]), (80, [])):
                landing = sent(kazoo, "/a")
                (number,) = numbers(received(kazoo))
                kazoo.far.sendall(answers(number, zxid=zxid))
                kazoo.handler.read(landing.flight, SOON)
                assert landing.heard == heard
        kazoo.run()
        assert kazoo.handler.gives_up
        assert kazoo.dropped is not None
        assert landing.heard == [(None, b"")]


class Gone:
    """A caller that waits for a deletion; how often it was told, and how often it may have been."""

    def __init__(self, kazoo: Kazoo, path: str = "/blocker") -> None:
        self.told = self.missed = 0
        self.due = True
        self.deletion = Deletion(path, self._come, self._miss, lambda: self.due)
        self._kazoo = kazoo
        self.rides = Rides(kazoo)

    def _come(self) -> None:
        self.told += 1

    def _miss(self) -> None:
        self.missed += 1

    def watched(self, *others: str) -> Self:
        """Have it watched, and others, by riders."""
        for path in (self.deletion.path, *others):
            watched(self.rides, path)
        self.rides.heard.clear()
        return self

    def listen(self, seconds: float = SOON) -> bool:
        heard: bool = self._kazoo.handler.listen(
            self.deletion, self.deletion.path.encode(), seconds
        )
        return heard


def listening(kazoo: Kazoo, gone: Gone) -> threading.Thread:
    """Have a thread listen."""
    thread = threading.Thread(target=gone.listen)
    thread.start()
    turn = kazoo.connection.turn
    wait_for(lambda: isinstance(turn.reading, Listener), SOON, "the listener")
    wait_for(lambda: is_free(kazoo), SOON, "the end of its turn")
    return thread


class TestListening:
    def test_a_caller_hears_its_deletion_and_nobody_else_does(self, kazoo: Kazoo) -> None:
        gone = Gone(kazoo).watched()
        kazoo.far.sendall(event(DELETED, "/blocker"))
        with asleep(kazoo):
            assert gone.listen()
            assert is_free(kazoo)
            assert not hears(kazoo)
        kazoo.run()
        assert (gone.told, gone.missed, gone.rides.heard) == (1, 0, [])

    def test_less_than_a_frame_is_left_to_the_connection_thread(self, kazoo: Kazoo) -> None:
        gone = Gone(kazoo).watched()
        with asleep(kazoo):
            thread = listening(kazoo, gone)
            kazoo.far.sendall(event(DELETED, "/blocker")[:1])
            thread.join()
            assert is_woken(kazoo)
        kazoo.far.sendall(event(DELETED, "/blocker")[1:])
        kazoo.step(0.01)
        kazoo.run()
        assert (gone.told, gone.rides.heard) == (0, [("DELETED", "/blocker")])

    def test_a_later_watch_for_it_is_another_one(self, kazoo: Kazoo) -> None:
        gone = Gone(kazoo).watched()
        kazoo.far.sendall(event(DELETED, "/blocker"))
        with asleep(kazoo):
            assert gone.listen()
        kazoo.far.sendall(event(DELETED, "/blocker"))
        kazoo.run()
        assert gone.rides.heard == []
        assert kazoo.received == [event(DELETED, "/blocker")]

    @pytest.mark.parametrize(
        "first",
        [
            event(DELETED, "/other"),
            event(CHANGED, "/blocker"),
            event(CHILD, "/blocker"),
            event(DELETED, "/blocker/below"),
            event(DELETED, "/block"),
            event(DELETED, "/nobody"),
            answers(PING),
        ],
        ids=["another", "changed", "children", "below", "shorter", "nobody's", "a ping"],
    )
    def test_anything_else_is_left_to_the_connection_thread(
        self, kazoo: Kazoo, first: bytes
    ) -> None:
        gone = Gone(kazoo).watched("/other")
        with asleep(kazoo):
            kazoo.far.sendall(first + event(DELETED, "/blocker"))
            assert not gone.listen()
            assert kazoo.connection.turn.reading is None
            assert not gone.listen()  # at once: something is there
            assert gone.told == 0
        kazoo.run()
        assert len(gone.rides.heard) + len(kazoo.received) == 2

    def test_what_comes_behind_it_is_left_and_told_later(self, kazoo: Kazoo) -> None:
        gone = Gone(kazoo).watched("/other")
        with asleep(kazoo):
            kazoo.far.sendall(event(DELETED, "/blocker") + event(DELETED, "/other"))
            assert gone.listen()
            assert (gone.told, gone.rides.heard) == (1, [])
            assert not gone.listen()
        kazoo.run()
        assert gone.rides.heard == [("DELETED", "/other")]

    @pytest.mark.parametrize("how", ["kazoo", "another rider", "its children", "sees all"])
    def test_what_others_watch_is_told_by_the_connection_thread(
        self, kazoo: Kazoo, how: str
    ) -> None:
        gone = Gone(kazoo).watched()
        watches = kazoo.connection._sorted.watches
        watch = gone.rides.watch("/blocker")
        if how == "kazoo":
            watches.answered(SetWatch(GET_DATA, b"/blocker", None), 0)
        elif how == "another rider":
            watches.answered(watch, 0)
        elif how == "its children":
            watches.answered(gone.rides.watch("/blocker", GET_CHILDREN), 0)
        else:
            watches.of_kazoo(4711, b"")
        with asleep(kazoo):
            kazoo.far.sendall(event(DELETED, "/blocker"))
            assert not gone.listen()
            assert gone.told == 0
        kazoo.run()
        assert ("DELETED", "/blocker") in gone.rides.heard
        assert len(kazoo.received) == (how in {"kazoo", "sees all"})

    @pytest.mark.parametrize("length", [-1, 1])
    def test_a_path_of_another_length_than_the_frame_is_left(
        self, kazoo: Kazoo, length: int
    ) -> None:
        gone = Gone(kazoo).watched()
        data = bytearray(event(DELETED, "/blocker"))
        struct.pack_into(">i", data, 28, len("/blocker") + length)
        with asleep(kazoo):
            kazoo.far.sendall(data)
            assert not gone.listen()
        assert gone.told == 0

    def test_nobody_listens_while_something_is_under_way(self, kazoo: Kazoo) -> None:
        gone = Gone(kazoo).watched()
        with asleep(kazoo):
            gone.rides.ride("/other")
            assert not gone.listen()
        answer(kazoo)
        with asleep(kazoo):
            other = sent(kazoo, "/a")
            assert not gone.listen()
            assert kazoo.connection.turn.reading is other

    def test_nobody_listens_in_the_turn_of_another(self, kazoo: Kazoo) -> None:
        gone = Gone(kazoo).watched()
        assert not gone.listen()
        kazoo.connection.close()
        assert not gone.listen()

    def test_who_waits_for_it_no_longer_leaves_it_to_others(self, kazoo: Kazoo) -> None:
        """An outcome may come, and ring, before the listener forgets what has rung."""
        gone = Gone(kazoo).watched()
        gone.due = False
        with asleep(kazoo):
            kazoo.far.sendall(event(DELETED, "/blocker"))
            assert not gone.listen(math.inf)
            assert is_woken(kazoo)
        kazoo.step(0.01)
        kazoo.run()
        assert (gone.told, gone.rides.heard) == (0, [("DELETED", "/blocker")])

    def test_its_time_ends(self, kazoo: Kazoo) -> None:
        gone = Gone(kazoo).watched()
        with asleep(kazoo):
            assert not gone.listen(0.0)
            kazoo.far.sendall(event(DELETED, "/blocker"))
            wait_for(lambda: hears(kazoo), SOON, "the event")
        assert gone.told == 0

    def test_a_ring_ends_it(self, kazoo: Kazoo) -> None:
        gone = Gone(kazoo).watched()
        with asleep(kazoo):
            thread = listening(kazoo, gone)
            kazoo.handler.ring()
            thread.join()
            assert kazoo.connection.turn.reading is None
        assert gone.told == 0

    def test_another_who_sends_ends_it(self, kazoo: Kazoo) -> None:
        gone = Gone(kazoo).watched()
        with asleep(kazoo):
            thread = listening(kazoo, gone)
            other = sent(kazoo, "/a")
            thread.join()
            (number,) = numbers(received(kazoo))
            kazoo.far.sendall(event(DELETED, "/blocker") + answers(number))
            kazoo.handler.read(other.flight, SOON)  # if the listener has left the bell in time
            assert not kazoo.handler.read(other.flight, SOON)
            assert other.heard == []  # the event comes first
        kazoo.step(0.01)
        kazoo.run()
        assert (gone.told, gone.rides.heard) == (0, [("DELETED", "/blocker")])
        assert other.heard == [(0, b"")]

    def test_nobody_forgets_what_has_rung_for_another(self, kazoo: Kazoo) -> None:
        """One that still waits, and reads no more, would sleep on."""
        bell, number = kazoo.reader.bell, kazoo.connection.fileno()
        others: list[Landing] = []
        gone = Gone(kazoo).watched()

        def due() -> bool:
            bell.ring()
            others.append(sent(kazoo, "/a"))
            (sent_number,) = numbers(received(kazoo))
            kazoo.far.sendall(answers(sent_number))
            kazoo.connection._take_back()
            kazoo.run()
            kazoo.reader.flush()
            kazoo.connection.turn.release()
            assert others[0].heard == [(0, b"")]
            return not gone.listen()

        with asleep(kazoo):
            assert bell.wait(number, SOON, due)
            assert bell.waiting == 0
            assert not gone.listen(0.0)
            assert not bell.wait(number, SOON, lambda: False)

    def test_the_connection_thread_that_wakes_ends_it(self, kazoo: Kazoo) -> None:
        gone = Gone(kazoo).watched()
        with asleep(kazoo):
            thread = listening(kazoo, gone)
        kazoo.step(0.01)
        thread.join()
        kazoo.far.sendall(event(DELETED, "/blocker"))
        kazoo.step(0.01)
        kazoo.run()
        assert (gone.told, gone.rides.heard) == (0, [("DELETED", "/blocker")])

    def test_who_comes_back_in_the_turn_of_another_has_it_ended(self, kazoo: Kazoo) -> None:
        gone = Gone(kazoo).watched()
        with asleep(kazoo):
            thread = listening(kazoo, gone)
            turn = kazoo.connection.turn
            assert turn.acquire(False)
            try:
                kazoo.handler.ring()
                thread.join()
            finally:
                turn.release()
            assert isinstance(turn.reading, Listener)
            assert is_woken(kazoo)
        kazoo.step(0.01)
        assert turn.reading is None

    def test_the_end_of_the_connection_is_told_by_the_connection_thread(self, kazoo: Kazoo) -> None:
        gone = Gone(kazoo).watched()
        with asleep(kazoo):
            kazoo.far.close()
            assert not gone.listen()
        kazoo.run()
        assert kazoo.dropped is not None
        assert gone.told == 0

    def test_a_limit_that_the_system_does_not_take_is_no_fault(self, kazoo: Kazoo) -> None:
        gone = Gone(kazoo).watched()
        kazoo.far.sendall(event(DELETED, "/blocker"))
        with asleep(kazoo):
            assert gone.listen(threading.TIMEOUT_MAX)

    def test_it_ends_after_a_time_without_a_limit_too(
        self, kazoo: Kazoo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gone = Gone(kazoo).watched()
        monkeypatch.setattr(turn_module, "TURN", 0.001)
        with asleep(kazoo):
            assert not gone.listen(math.inf)
            assert kazoo.connection.turn.reading is None

    def test_a_client_that_is_closed_meanwhile_keeps_nobody(self, kazoo: Kazoo) -> None:
        """By a signal handler, perhaps, that has interrupted the caller."""
        gone = Gone(kazoo).watched()

        def due() -> bool:
            kazoo.connection._take_back()
            kazoo.connection.close()
            kazoo.reader.close()
            return True

        kazoo.reader.flush()
        kazoo.connection.turn.release()
        deletion = replace(gone.deletion, due=due)
        assert not kazoo.handler.listen(deletion, b"/blocker", math.inf)
        assert gone.told == 0

    def test_what_it_leaves_is_no_half_frame_for_one_who_comes_late(self, kazoo: Kazoo) -> None:
        """A signal handler sleeps, before the connection thread is woken."""
        kazoo.handler.session_timeout = 3.0
        gone = Gone(kazoo).watched("/other")
        with asleep(kazoo):
            kazoo.far.sendall(event(DELETED, "/other"))
            assert not gone.listen()
        kazoo.connection._arrived_at -= 1000.0
        kazoo.connection.stall()  # nothing has arrived when the connection thread wakes
        kazoo.run()
        assert kazoo.dropped is None
        assert gone.rides.heard == [("DELETED", "/other")]

    def test_an_interrupt_at_every_moment_loses_nothing(self) -> None:
        at = 0
        moments = Moments()
        struck = True
        while struck:
            at += 1
            kazoo = Kazoo()
            kazoo.run()
            gone = Gone(kazoo).watched()
            kazoo.far.sendall(event(DELETED, "/blocker"))
            with asleep(kazoo):
                struck = moments.run(gone.listen, at)
                assert is_free(kazoo), moments.where
                assert kazoo.reader.bell.waiting == 0, moments.where
            kazoo.reader.wake()
            kazoo.run()
            told = gone.told or gone.missed or gone.rides.heard
            assert told or kazoo.dropped is not None, moments.where
            assert kazoo.connection.turn.reading is None, moments.where
            kazoo.close()
        assert at > 20

    def test_in_its_turn_an_interrupt_ends_the_connection(
        self, kazoo: Kazoo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def struck(self: RidingSocket) -> None:
            raise Struck

        gone = Gone(kazoo).watched()
        with asleep(kazoo), monkeypatch.context() as patch:
            patch.setattr(RidingSocket, "arrived", struck)
            with pytest.raises(Struck):
                gone.listen(0.0)
        kazoo.run()
        assert kazoo.dropped is not None
        assert (gone.told, gone.missed) == (0, 1)


class TestAnInterrupt:
    @pytest.mark.parametrize("waits", [False, True])
    def test_at_every_moment_leaves_the_turn_free_and_nothing_unheard(self, waits: bool) -> None:
        at = 0
        moments = Moments()
        struck = True
        while struck:
            at += 1
            kazoo = Kazoo()
            kazoo.run()
            landing = Landing(kazoo, "/a")

            def use(kazoo: Kazoo = kazoo, landing: Landing = landing) -> None:
                if not waits:
                    kazoo.handler.board(landing.riders[0])
                    kazoo.handler.rouse()
                    return
                kazoo.handler.depart(landing.riders)
                kazoo.far.sendall(b"".join(map(answers, numbers(received(kazoo)))))
                kazoo.handler.read(landing.flight, SOON)

            with asleep(kazoo):
                struck = moments.run(use, at)
                assert is_free(kazoo), moments.where
                assert kazoo.reader.bell.waiting == 0, moments.where
            kazoo.reader.wake()
            kazoo.run()
            if kazoo.dropped is None:
                left = numbers(received(kazoo))
                kazoo.far.sendall(b"".join(map(answers, left)))
                kazoo.run()
            # Who is struck before the flight departs cleans up after it.
            gone = not landing.riders[0].hear
            heard = landing.heard or landing.completed
            assert heard or (struck and not gone), moments.where
            kazoo.close()
        assert at > 20

    def test_in_a_turn_ends_the_connection(
        self, kazoo: Kazoo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def struck(self: RidingSocket) -> None:
            raise Struck

        other = Rides(kazoo)
        with asleep(kazoo):
            landing = sent(kazoo, "/a")
            with monkeypatch.context() as patch:
                patch.setattr(RidingSocket, "arrived", struck)
                with pytest.raises(Struck):
                    kazoo.handler.read(landing.flight, 0.0)
            assert kazoo.connection.turn.struck
            other.ride("/b")
            assert len(received(kazoo)) == 1
        kazoo.run()
        assert kazoo.dropped is not None
        assert landing.completed == 1
        assert other.heard == [("/b", None, b"")]

    def test_as_a_reply_is_heard_has_it_completed(
        self, kazoo: Kazoo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def struck(self: Rider, error: int | None, body: bytes) -> None:
            raise Struck

        with asleep(kazoo):
            landing = sent(kazoo, "/a")
            (number,) = numbers(received(kazoo))
            kazoo.far.sendall(answers(number))
            with monkeypatch.context() as patch:
                patch.setattr(Rider, "land", struck)
                with pytest.raises(Struck):
                    kazoo.handler.read(landing.flight, SOON)
            assert not kazoo.connection.turn.struck
        kazoo.run()
        assert kazoo.dropped is None
        assert landing.completed == 1

    def test_in_a_turn_is_known_to_its_signal_handler(
        self, kazoo: Kazoo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[bool] = []

        def handle(number: int, frame: FrameType | None) -> None:
            told.append(kazoo.handler.in_turn())

        arrived = RidingSocket.arrived

        def interrupted(self: RidingSocket) -> None:
            os.kill(os.getpid(), signal.SIGUSR1)
            arrived(self)

        before = signal.signal(signal.SIGUSR1, handle)
        try:
            with asleep(kazoo):
                landing = sent(kazoo, "/a")
                monkeypatch.setattr(RidingSocket, "arrived", interrupted)
                assert kazoo.handler.read(landing.flight, 0.0)
                assert not kazoo.handler.in_turn()
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert told == [True]


class TestACallerThatDoesNotComeBack:
    def test_costs_the_connection_which_it_closes_itself(
        self, kazoo: Kazoo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A signal handler has interrupted it in its turn, and waits."""
        kazoo.handler.session_timeout = 0.3
        near = kazoo.connection
        come, go = threading.Event(), threading.Event()
        take = RidingSocket._take

        def stuck(self: RidingSocket, rider: Rider) -> bool:
            come.set()
            assert go.wait(SOON)
            return take(self, rider)

        monkeypatch.setattr(RidingSocket, "_take", stuck)
        landing = Landing(kazoo, "/a")
        kazoo.handler.board(Rides(kazoo).rider("/in-line"))
        near.turn.release()
        caller = threading.Thread(target=kazoo.handler.depart, args=(landing.riders,))
        caller.start()
        assert come.wait(SOON)
        near._take_back()
        assert near.turn.given_up
        kazoo.run()
        assert isinstance(kazoo.dropped, TimeoutError)
        assert near.fileno() >= 0
        go.set()
        caller.join()
        assert near.fileno() == -1
        assert landing.heard == [(None, b"")]


def test_a_forked_child_reads_and_sends_nothing(kazoo: Kazoo) -> None:
    with asleep(kazoo):
        landing = sent(kazoo, "/a")
        (number,) = numbers(received(kazoo))
        kazoo.far.sendall(answers(number))
        child = os.fork()
        if not child:
            kazoo.handler.after_fork()
            quiet = not kazoo.handler.read(landing.flight, SOON) and kazoo.handler.line is None
            os._exit(0 if quiet else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert kazoo.handler.read(landing.flight, SOON)
        assert landing.heard == [(0, b"")]
