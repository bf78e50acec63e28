"""A handler, its sockets and a store that carry ``riders``, for clients that are made for them."""

from __future__ import annotations

import errno
import logging
import math
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol, TypeVar

from kazoo import exceptions

from zklock._ground.clock import clock
from zklock._ground.records import log_fields
from zklock._ground.strikes import may_strike
from zklock._kazoo import carrying, wire
from zklock._kazoo.carrying import CarryingHandler, CarryingSocket
from zklock._kazoo.client import Kazoo
from zklock._kazoo.deletion import Deletion
from zklock._kazoo.handler import _UNPOLLED
from zklock._kazoo.riders import Awaited, Rider
from zklock._kazoo.socket import _CHUNK, _WakeWriter, is_closed
from zklock._kazoo.spin import milliseconds
from zklock._kazoo.store import (
    _CREATING,
    MAX_REQUEST,
    After,
    Results,
    Store,
    _Landing,
    _paths,
    _too_large,
    failed,
    shielded,
)
from zklock._kazoo.turn import READS, TRY, Bell, Turn
from zklock._kazoo.wake import Order, WakeReader
from zklock._kazoo.watches import Watch as SetWatch
from zklock._recipes.effects import (
    Create,
    CreateAll,
    Exists,
    Flight,
    List,
    Request,
    Watch,
    WatchExists,
    WatchList,
)

log = logging.getLogger("zklock")
T = TypeVar("T")

_PATIENCE = 10.0
"""The session timeout, in seconds, until it is known."""

_WATCHING = (Watch, WatchList, WatchExists)  # made once: `A | B` makes an object at each evaluation

_SMALL = MAX_REQUEST // 8
"""The bytes of a request that need not be estimated: an estimate is less than eight times as much.

It is furthest from the truth for short creates in a transaction: 256 bytes are estimated for each
besides its path and its data, and 48 are on the wire.
"""


class Carries(carrying.Carries, Protocol):
    """What a socket that carries riders needs from its handler."""

    def ended(self, connection: RidingSocket) -> None:
        """Note that a connection is closed."""

    def ring(self) -> None:
        """Wake a caller that reads."""


class Listener:
    """A caller that waits for a deletion. ``path`` is as the server knows it."""

    flight = None

    def __init__(self, deletion: Deletion, path: bytes) -> None:
        self.deletion = deletion
        self.path = path

    def complete(self) -> None:
        """Tell that the deletion may have come."""
        self.deletion.missed()


class RidingSocket(CarryingSocket):
    """Only who has the turn calls it, except ``rides``, ``turn`` and ``shut_down()``."""

    _carrier: Carries

    def __init__(
        self,
        sock: Any,
        handler: Carries,
        server: str = "",
        another: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(sock, handler, server, another)
        self.turn = Turn()
        self._arrived_at = -math.inf

    def in_main_loop(self, wake: WakeReader) -> None:
        """Note that kazoo waits for replies and wake-ups at once: it has finished connecting."""
        self.turn.open(self.fileno(), wake.fileno())
        if self._may_ride:
            self._may_ride = False
            self.rides = True

    def write(self, wake: Order) -> None:
        wake.hand_over(self._take)
        try:
            self.flush()
        except OSError as error:  # kazoo would not hear of it here
            self._stop(error)

    def _take(self, rider: Rider) -> bool:
        """Put a rider behind what is to be sent, with a number; drop it if it cannot go."""
        if not self._put(rider):
            rider.drop()
        return True

    def _take_here(self, rider: Rider) -> bool:
        """Do so on a caller's thread, where no rider of others is dropped: it could be lost."""
        return (not rider.hear or rider.line is self) and self._take(rider)

    # For callers that have the turn.

    def write_here(
        self, wake: WakeReader, riders: Sequence[Rider], awaited: Awaited | None
    ) -> tuple[bool, bool]:
        """Send the riders in line, and then these.

        Return whether these go out, and whether nothing is left to do for the connection thread.
        ``awaited``: what the caller reads the replies to, if it can.
        """
        turn = self.turn
        if turn.struck or not self.rides:
            return False, False
        turn.struck = True
        if turn.reading is not None:
            self.stop_reading()
        idle = self._sorted.idle and not self._held and wake.bell.waiting == 0
        going = not wake.pending() or wake.hand_over(self._take_here)
        if going:
            for rider in riders:
                self._take(rider)
            if idle and awaited is not None:
                wake.bell.hush()
                turn.read(self.fileno(), awaited)
        over = going
        try:
            del self._held[: int(self._sock.send(self._held))]
        except BlockingIOError:
            over = False
        except OSError as error:
            self._stop(error)
            over = False
        turn.struck = False
        return going, over and not self._held

    def read_here(
        self, bell: Bell, awaited: Awaited, taking: list[Awaited]
    ) -> tuple[list[tuple[Rider, int, bytes]], bool] | None:
        """Receive, and take the replies to the riders of a landing.

        Return them, and whether there is something else for the connection thread. ``None``: they
        are not for this caller any more. ``taking`` gets the landing before a reply is taken.
        """
        turn = self.turn
        if not self._receive_here(awaited, taking):
            return None
        replies, others = self._sorted.replies_to(awaited)
        rest = self._leaves(others)
        if rest or not self._sorted.due:
            turn.stop_reading(self.fileno())
        elif not replies and bell.waiting == 0:
            bell.hush()  # whatever has rung: else it would ring until the reply comes
        turn.struck = False
        return replies, rest

    def listen_here(self, wake: WakeReader, awaited: Listener) -> bool:
        """Have the caller hear what arrives next; return whether it can: nothing is under way."""
        turn = self.turn
        busy = turn.struck or turn.reading is not None or wake.pending() or self._held
        if busy or not self.rides or not self._sorted.idle or wake.bell.waiting > 1:
            return False
        turn.struck = True
        wake.bell.hush()
        turn.read(self.fileno(), awaited)
        turn.struck = False
        return True

    def hear_here(self, awaited: Listener, taking: list[Awaited]) -> tuple[bool, bool] | None:
        """Receive, and take the event that a caller listens for; it listens no longer.

        Return whether it has come, and whether there is something else for the connection thread.
        ``None``: the caller does not listen any more. ``taking``: see ``read_here``.
        """
        turn = self.turn
        if not self._receive_here(awaited, taking):
            return None
        come = self._sorted.take_deletion(awaited.path)
        rest = self._leaves(not self._sorted.idle)
        turn.stop_reading(self.fileno())
        turn.struck = False
        return come, rest

    def _receive_here(self, awaited: Awaited, taking: list[Awaited]) -> bool:
        """Receive, for who is about to take something; return whether it still may.

        ``turn.struck`` is set then, and ``taking`` has what it waits for.
        """
        turn = self.turn
        if turn.reading is not awaited or turn.struck or not self.rides:
            return False
        taking.append(awaited)
        turn.struck = True
        self.arrived()
        return True

    def _leaves(self, others: bool) -> bool:
        """Return whether a caller leaves anything to the connection thread, which may come late."""
        self._sorted.more |= others  # it is no frame in whose middle the server has stopped
        return others or self._end is not False

    def leave_to_others(self, flight: object) -> bool:
        """Read no more, if it is the replies to this flight."""
        reading = self.turn.reading
        if reading is not None and reading.flight is flight:
            self.turn.stop_reading(self.fileno())
        return True

    def stop_reading(self) -> None:
        """Have the connection thread hear what arrives, and the reader that it need not wait."""
        self.turn.stop_reading(self.fileno())
        self._carrier.ring()

    # For the connection thread.

    def recv(self, size: int) -> bytes:
        if self.turn.given_up:
            raise TimeoutError("a caller does not give the connection back")
        if self._asked is None:
            return bytes(self._sock.recv(size))
        if self._proving:
            return self._proved(size)
        if not self.pending():
            self.arrived()
        if not self.pending():
            raise BlockingIOError(errno.EAGAIN, "no whole frame has arrived")
        if not self._buffer and isinstance(self._end, OSError):
            raise self._end
        data = bytes(self._buffer[:size])
        self._buffer = self._buffer[size:]
        return data

    def arrived(self) -> None:
        """Receive what has come."""
        try:
            while not self._end:
                chunk = self._sock.recv(_CHUNK)
                self._arrived_at = clock()
                if chunk:
                    self._sorted.feed(chunk)
                else:
                    self._stop(True)
                    self._closed_early()
                if self._below is None or not self._below():
                    return
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            self._closed_early(error)
            self._stop(error)

    def _stop(self, end: OSError | bool) -> None:
        """Receive nothing more; what was received is still passed on."""
        self.rides = self._may_ride = False
        self._end = self._end or end

    def pending(self) -> int:
        """Return how many bytes there are for kazoo; 1 at the end. Replies to riders are taken."""
        if self.turn.given_up:
            return 1
        if self._buffer:
            return len(self._buffer)
        frame = self._sorted.sort()
        if frame:
            self._buffer = memoryview(frame)
            return len(frame)
        if self._sorted.broken and not self._end:
            self._stop(True)
            self._closed_early()
        return int(self._end is not False and not self._sorted.more)

    @property
    def more(self) -> bool:
        """Whether there may be more to take without receiving anything."""
        return self._sorted.more

    def stalls_at(self) -> float:
        """Return when too much time has passed in the middle of a frame."""
        if not self._sorted.partial:
            return math.inf
        timeout = self._carrier.session_timeout
        return math.inf if timeout is None else self._arrived_at + timeout / 3

    def stall(self) -> None:
        """End the connection if too much time has passed in the middle of a frame.

        Nothing has arrived, and nothing is left to be taken: else it need not be in the middle.
        """
        if clock() >= self.stalls_at():
            self._stop(TimeoutError("the server stopped in the middle of a reply"))

    def close(self) -> None:
        """Close, and drop the riders that are under way: nothing is read any more."""
        self.rides = self._may_ride = False
        try:
            if self.turn.given_up:
                super().shut_down()
            else:
                self.bury()
        finally:
            for rider in self._sorted.left():
                rider.drop()
            self._carrier.ended(self)

    def bury(self) -> None:
        """Close the connection; if the connection thread has given it up, a late caller does."""
        self._sock.close()
        self.turn.close()

    def wait(self, wake: WakeReader, seconds: float) -> tuple[bool, bool]:
        """Wait for the server and for wake-ups, and let callers have the turn meanwhile.

        Return whether the server has sent something, and whether there are wake-ups.
        """
        turn, here = self.turn, self.fileno()
        if seconds == 0:
            happened = turn.wait(0.0)
        else:
            turn.release()
            try:
                happened = turn.wait(seconds)
            finally:
                self._take_back()
        if turn.given_up:
            return False, False
        if turn.reading is not None:
            self.stop_reading()
            happened += turn.wait(0.0)
        numbers = [number for number, _ in happened]
        if turn.struck:
            self._stop(ConnectionAbortedError(errno.ECONNABORTED, "a caller was interrupted"))
            self._sorted.broken = True
        return here in numbers, wake.fileno() in numbers

    def _take_back(self) -> None:
        """Take the turn; give the connection up if a caller does not give it back."""
        turn, timeout = self.turn, self._carrier.session_timeout
        if not turn.acquire(True, (timeout or _PATIENCE) / 3):
            turn.given_up = True
            if turn.acquire(False):
                turn.given_up = False
            else:
                self.rides = self._may_ride = False
                log.warning(
                    "a thread blocks the connection: connection dropped",
                    extra=log_fields(),
                )

    def connected(self, milliseconds: int, read_only: bool) -> None:
        if milliseconds > 0 and self._asked is not None:  # 0: the session has expired
            self._may_ride = self.eager and not read_only
        self._connected(milliseconds)


class RidingHandler(CarryingHandler):
    """zklock's handler, with sockets that carry riders.

    ``callers``: the threads, by their idents, that have the turn of a connection or are about to
    ask for it; each with the connection.
    """

    _connection = RidingSocket
    _riders: WakeReader | None

    def __init__(self) -> None:
        super().__init__()
        self._orphans: deque[Awaited] = deque()
        self.callers: set[tuple[int, Any]] = set()

    @property
    def line(self) -> RidingSocket | None:
        """The connection that takes riders now; ``None``: requests must go through kazoo."""
        connection = self._socket
        return connection if isinstance(connection, RidingSocket) and connection.rides else None

    def rouse(self) -> None:
        """Have the riders that were put in line sent: on this thread, if it can have the turn."""
        line = self.line
        if self._riders is not None and (line is None or not self._sent_here(line, (), None)):
            self._wake_up()

    def depart(self, riders: Sequence[Rider]) -> None:
        """Send the riders of a flight that the caller waits for."""
        line: Any = riders[0].line
        if not self._sent_here(line, riders, riders[0].landing):
            for rider in riders:
                self.board(rider)
            self._wake_up()

    def _wake_up(self) -> None:
        """Wake the connection thread, if it waits."""
        if self._riders is not None:
            try:
                self._riders.rouse()
            except OSError as error:
                if not is_closed(error):
                    raise

    def _sent_here(
        self, line: RidingSocket, riders: Sequence[Rider], awaited: Awaited | None
    ) -> bool:
        """Send what stands in line, and these riders behind it, if this thread can have the turn.

        Return whether these riders go out. No request of kazoo's may be in its queue, which zklock
        does not see. kazoo asks for a result before it queues a request, and keeps it there.
        """
        wake = self._riders
        if wake is None or (self._open and self._is_asked()):
            return False
        done = self._in_turn(line, line.write_here, wake, riders, awaited)
        if done is None:
            return False
        going, over = done
        if not over:
            self._wake_up()
        return going

    def _in_turn(self, line: RidingSocket, use: Callable[..., T], *what: object) -> T | None:
        """Use a connection if its turn can be had at once; ``None``: it cannot be had, or used."""
        me, turn = (threading.get_ident(), line), line.turn
        if me in self.callers:
            return None  # a signal handler, which has interrupted this
        try:
            self.callers.add(me)
            for taken in map(turn.acquire, TRY):
                if not taken:
                    return None
                try:
                    used = use(*what)
                finally:
                    turn.release()
                    if turn.struck or turn.given_up:
                        self._came_back(line)
                return used
            return None
        finally:
            self.callers.discard(me)

    def _came_back(self, line: RidingSocket) -> None:
        """See to a connection whose caller was struck, or has come back late."""
        if line.turn.given_up:
            line.bury()
        self._wake_up()

    def read(self, flight: object, seconds: float | None) -> bool:
        """Wait once, and have the replies to a flight heard that have come; see ``turn``.

        Return whether any were heard, or may still be read here. With ``None``, do not sleep.
        """
        line, wake = self._socket, self._riders
        number = -1 if line is None else line.fileno()
        if not isinstance(line, RidingSocket) or wake is None or number < 0:
            return False
        awaited = line.turn.reading
        if awaited is None or awaited.flight is not flight:
            return False
        taking: list[Awaited] = []
        try:
            if not wake.bell.wait(number, seconds, lambda: line.turn.reading is awaited):
                return False
            taken = self._in_turn(line, line.read_here, wake.bell, awaited, taking)
            if taken is None:
                return False
            replies, rest = taken
            if rest:
                self._wake_up()
            for rider, error, body in replies:
                rider.land(error, body)
        except BaseException:
            self._orphans.extend(taking)
            self._wake_up()
            raise
        return True

    def listen(self, deletion: Deletion, path: bytes, seconds: float) -> bool:
        """Wait for a deletion, and have it told here; see ``turn``. Return whether it was told.

        At most ``seconds``. It also ends when anything else happens on the connection, or the bell
        rings: who waits on is then told by other threads.
        """
        line, wake = self._socket, self._riders
        if not isinstance(line, RidingSocket) or wake is None or line.fileno() < 0:
            return False
        listener, taking = Listener(deletion, path), list[Awaited]()

        def begun() -> bool:
            # What came before is told by then, and has perhaps rung before the bell was hushed.
            begins = self._in_turn(line, line.listen_here, wake, listener)
            return bool(begins) and deletion.due()

        try:
            heard = None
            if wake.bell.listen(line.fileno(), seconds, begun):
                heard = self._in_turn(line, line.hear_here, listener, taking)
            come, rest = heard or (False, line.turn.reading is listener)
            if rest:
                self._wake_up()
            if come:
                deletion.come()
        except BaseException:
            self._orphans.extend(taking)
            self._wake_up()
            raise
        return come

    def glances(self) -> bool:
        """Whether a caller that must not sleep should read the replies to what it sends next."""
        return self._riders is not None and self._riders.bell.glance.due()

    def read_no_more(self, flight: object) -> None:
        """Have the connection thread hear the replies to a flight, if they are read here."""
        line = self._socket
        if not isinstance(line, RidingSocket) or line.turn.reading is None:
            return
        if not self._in_turn(line, line.leave_to_others, flight):
            self._wake_up()  # the connection thread ends it

    def ring(self) -> None:
        """Wake a caller that reads."""
        if self._riders is not None:
            self._riders.bell.ring()

    def in_turn(self) -> bool:
        """Whether this is a signal handler that has interrupted a caller in its turn."""
        return (threading.get_ident(), self._socket) in self.callers

    def after_fork(self) -> None:
        """Leave the connection to the parent of this process."""
        if isinstance(self._socket, RidingSocket):
            self._socket.rides = False

    def ended(self, connection: RidingSocket) -> None:
        """Note that a connection is closed: drop its riders that are still in line."""
        self.ring()
        if self._riders is not None:
            self._riders.strand(connection)
        self._see_to_orphans()

    def _see_to_orphans(self) -> None:
        """Complete what callers have taken replies to, and were struck before they were heard."""
        while self._orphans:
            self._orphans.popleft().complete()

    def create_socket_pair(self) -> tuple[WakeReader, _WakeWriter]:
        """Return the (reader, writer) with which kazoo wakes its connection thread."""
        self._wake = self._riders = WakeReader(self._write)
        return self._riders, _WakeWriter(self._riders)

    def select(
        self,
        rlist: Sequence[Any],
        wlist: Sequence[Any],
        xlist: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Do what the other handler's does. Replies to riders are taken, and wake nobody else."""
        if wlist and all(each.eager for each in wlist):
            return [], list(wlist), []  # their send() waits by itself, if it must
        if len(rlist) == 2:
            connection, wake = rlist
            return self._both(connection, wake, math.inf if timeout is None else timeout), [], []
        ready = self._alone((*rlist, *wlist)[0], bool(rlist), timeout)
        return (list(rlist), list(wlist), []) if ready else ([], [], [])

    def _alone(self, connection: RidingSocket, reads: bool, timeout: float | None) -> bool:
        """Wait for a connection, and for no wake-ups, while kazoo reads or writes a frame."""
        timeout = connection.patience(timeout)
        until = math.inf if timeout is None else clock() + timeout
        while not (reads and connection.pending()):
            idle = not reads
            stalls_at = math.inf
            if reads:
                connection.flush()
                idle, stalls_at = not connection.more, connection.stalls_at()
            happened = self._polled_until(
                (connection,) if reads else (),
                () if reads else (connection,),
                min(until, stalls_at) if idle else 0.0,
            )
            if happened and not reads:
                return True
            if happened:
                connection.arrived()
            elif reads and idle:
                connection.stall()
            if clock() >= until and not (reads and (connection.pending() or connection.more)):
                connection.waited()
                return False
        return True

    def _both(self, connection: RidingSocket, wake: WakeReader, timeout: float) -> list[Any]:
        """Wait for replies and for wake-ups, in kazoo's main loop; return what is readable.

        What is there already is passed on without asking the system, but not for ever: what comes
        to the other socket must not wait long.
        """
        connection.in_main_loop(wake)
        until = clock() + timeout
        ready = self._readable(connection, wake)
        while not ready or self._unpolled >= _UNPOLLED:
            connection.flush()
            wake.flush()
            # What came before flush() has not woken this thread: it is looked for first.
            idle = not (ready or connection.more or wake.pending())
            due = min(until, connection.stalls_at()) if idle else 0.0
            replied = self._receive(connection, wake, due)
            self._unpolled = 0
            if idle and not replied:
                connection.stall()
            ready = self._readable(connection, wake)
            if not ready and clock() >= until and not connection.more:
                break
        self._unpolled += 1
        return ready

    def _readable(self, connection: RidingSocket, wake: WakeReader) -> list[Any]:
        return [each for each in (connection, wake) if each.pending()]

    def _receive(self, connection: RidingSocket, wake: WakeReader, until: float) -> bool:
        """Receive what comes until then; return whether something came from the server."""
        replied, woken = connection.wait(wake, max(0.0, until - clock()) if until else 0.0)
        wake.awake()
        self._see_to_orphans()
        if woken:
            wake.arrived()
        if replied:
            connection.arrived()
        return replied

    def _polled_until(
        self, rlist: Sequence[Any], wlist: Sequence[Any], until: float
    ) -> list[tuple[int, int]]:
        """Return what happens to these sockets until then."""
        seconds = until - clock() if until else 0.0
        happened: list[tuple[int, int]] = self._poll(rlist, wlist).poll(milliseconds(seconds))
        return happened


class AwaitedLanding(_Landing):
    """The landing of a flight that a caller waits for, and may read the replies to."""

    def complete(self) -> None:
        """Complete it: what was not heard counts as dropped."""
        for slot, request in enumerate(self.flight):
            self._results.setdefault(slot, failed(request, exceptions.ConnectionLoss()))
        self._finish()


class RidingStore(Store):
    """Sends flights as riders where it can, else through kazoo as the other store does."""

    def __init__(
        self,
        client: Kazoo,
        on_event: Callable[[str, str | None], None],
        is_mine: Callable[[int], bool],
        lock: AbstractContextManager[object],
        after: After,
        *,
        handler: RidingHandler,
    ) -> None:
        super().__init__(client, on_event, is_mine, lock, after)
        self._client = client
        self._carrier = handler
        # One for all watches: a set of callables is kept for each path. So waiters that gave up
        # leave nothing behind.
        self._told = shielded(on_event)
        if READS and isinstance(handler, RidingHandler):
            self.reader = Reader(self, handler)

    def fly(self, flight: Flight, done: Callable[[Results], None]) -> None:
        try:
            super().fly(flight, done)
            self._carrier.rouse()
        except BaseException:
            self._carrier.nudge()  # what is in line is sent, and what kazoo has queued
            raise

    def fly_awaited(self, flight: Flight, done: Callable[[Results], None]) -> None:
        """Send a flight that the caller waits for; the caller may read the replies to it.

        It can if the flight needs nothing of others, and is sent at once (see ``turn``).
        """
        line, first = self._carrier.line, flight[0]
        if line is None:
            gone = False
        elif isinstance(first, _CREATING):
            gone = self._makings.heed(first, partial(self._depart, line, flight, done))
        else:
            gone = self._depart(line, flight, done)
        if not gone:
            self.fly(flight, done)

    def listen(self, deletion: Deletion, seconds: float) -> bool:
        """Wait for the deletion of a node; see ``runtime.Reader``."""
        path = wire.full_path(deletion.path, self._client.chroot)
        return self._carrier.listen(deletion, path, seconds)

    def _depart(self, line: RidingSocket, flight: Flight, done: Callable[[Results], None]) -> bool:
        """Send a flight whose replies the caller may read; return whether it can go so."""
        riders = self._riders_of(line, flight, done)
        if riders is None:
            return False
        try:
            self._carrier.depart(riders)
        except BaseException:
            self._carrier.nudge()
            raise
        return True

    def _riders_of(
        self, line: RidingSocket, flight: Flight, done: Callable[[Results], None]
    ) -> list[Rider] | None:
        """Return the riders of a flight; ``None`` if it has to go another way, or with others."""
        if self._makings.under_way:
            return None
        landing, riders = AwaitedLanding(flight, done), []
        chroot, acl = self._client.chroot, self._client.default_acl
        for slot, request in enumerate(flight):
            encode = wire.ENCODERS.get(type(request))
            shares = isinstance(request, List) and request.path in self._listings.under_way
            if encode is None or shares:
                return None
            body = encode(request, chroot, acl)
            if len(body) > _SMALL:
                return None
            hear = partial(self._heard, request, partial(landing.put, slot))
            watch = self._watch(request) if isinstance(request, _WATCHING) else None
            riders.append(Rider(line, body, hear, watch, landing))
        return riders

    def _ask(self, request: Request, put: Callable[[Any], None]) -> None:
        line, encode = self._carrier.line, wire.ENCODERS.get(type(request))
        if line is None:
            self._ask_kazoo(request, put)
            return
        if encode is None:
            # kazoo could send it before the riders that stand in line (see ``wake``), such as
            # creates that must find a node missing. So it is asked when a rider behind them is
            # answered. ``rouse()``: a making that had to wait is asked for outside ``fly``.
            path, _ = _paths(request)
            self._ask(Exists(path), lambda _: self._ask_behind(request, put))
            self._carrier.rouse()
            return
        body = encode(request, self._client.chroot, self._client.default_acl)
        if len(body) > _SMALL and (size := self._size(request)) > MAX_REQUEST:
            put(_too_large(request, size))
        else:
            # Once it stands in line, the connection thread must be woken for it, or this thread
            # must send it. ``fly`` does that at its end, once for the whole flight. So does
            # whatever kazoo answers (see ``_answered``). Replies to riders are heard on the
            # connection thread, which looks at the line before it waits.
            hear = partial(self._heard, request, put)
            watch = self._watch(request) if isinstance(request, _WATCHING) else None
            self._carrier.board(Rider(line, body, hear, watch))

    def _ask_kazoo(self, request: Request, put: Callable[[Any], None]) -> None:
        super()._ask(request, partial(self._answered, put))

    def _ask_behind(self, request: Request, put: Callable[[Any], None]) -> None:
        """Ask kazoo, now that what stood in line is answered."""
        try:
            self._ask_kazoo(request, put)
        except BaseException:
            put(None)  # who needs the node finds out, and asks again
            raise

    def _answered(self, put: Callable[[Any], None], result: Any) -> None:
        """Take kazoo's answer, on whichever thread, and wake for the riders that waited for it."""
        try:
            put(result)
        finally:
            self._carrier.rouse()

    def _watch(self, request: Watch | WatchList | WatchExists) -> SetWatch:
        """Return the watch that a request asks for."""
        path = wire.full_path(request.path, self._client.chroot)
        return SetWatch(wire.WATCHING[type(request)], path, (self._told, request.path))

    def _heard(
        self, request: Request, put: Callable[[Any], None], code: int | None, body: bytes
    ) -> None:
        """Take the reply to a request; see ``riders.Hear``."""
        kind = type(request)
        decode = wire.DECODERS.get(kind)
        result: Any = None
        if code is None:
            result = failed(request, exceptions.ConnectionLoss())
        elif code:
            result = failed(request, wire.error_of(code))
        elif decode is not None:
            try:
                answer = decode(body)
                if isinstance(request, Create):
                    path, stat = answer
                    answer = self._client.unchroot(path), stat
                elif isinstance(request, CreateAll):
                    answer = [
                        self._client.unchroot(each) if isinstance(each, str) else each
                        for each in answer
                    ]
                result = self._values[kind](request, answer)
            except Exception as error:
                if may_strike():  # a signal handler's
                    raise
                result = failed(request, error)  # the reply cannot be read
        put(result)


class Reader:
    """Has callers read the replies to what they wait for, where they can; see ``turn``."""

    def __init__(self, store: RidingStore, handler: RidingHandler) -> None:
        self.fly = store.fly_awaited
        self.reads = handler.read
        self.listen = store.listen
        self.glances = handler.glances
        self.read_no_more = handler.read_no_more
        self.ring = handler.ring
        self.after_fork = handler.after_fork
        self.callers = handler.callers
        self.interrupted = handler.in_turn
