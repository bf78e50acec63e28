"""A client's connection, which is zklock's own: kazoo rides on it.

kazoo keeps the handshake, authentication, the session, pings, reconnection, and whatever the user
asks for. It gets all that by the three public methods of ``IHandler``: what it takes for its socket
(``GatewaySocket``) gathers the frames that are kazoo's; what it takes for a wake-up socket pair is
a line of wake-ups (``wake``); ``select`` waits until there is something for it.

**One mutex guards the socket** and the numbers of requests; whoever has it writes. zklock's own
requests are written at once, on the thread that asks. One thread for each connection reads. It
completes zklock's requests, tells of events, and gathers kazoo's frames.

Why it is right:

1. *No request of ours overtakes what the user has queued in kazoo before it.* It is written at once
   only while kazoo has no request in its queue. Else kazoo is asked (see ``wake``).
2. *Nothing goes out before or after the session.* The line opens when kazoo waits for replies and
   for wake-ups at once, which it does after handshake and authentication only. It closes with the
   request to end the session, and at the first sign of the connection's end.
3. *Replies come in the order of the requests.* A request gets its number, its place among those
   that are due, and its place in the bytes to be sent in one go, under the mutex. The reader takes
   one frame after the other.
4. *What is under way at the end of a connection is dropped, exactly once*: when kazoo closes it.
   Each request is claimed by one of those who complete it (``Rider``).
5. *An interrupt is a lost connection.* What strikes the main thread under the mutex leaves ``torn``
   set: the connection is dropped, and kazoo resumes the session.
6. *A signal handler, or a finalizer, that interrupts its own thread under the mutex* leaves its
   request in line; the connection thread writes it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from zklock._ground import threads
from zklock._ground.clock import clock
from zklock._ground.events import Event
from zklock._ground.mutexes import ReentrantMutex, owned_by_me
from zklock._ground.records import log_fields
from zklock._ground.strikes import of_the_call
from zklock._kazoo.carrying import CarryingHandler, CarryingSocket
from zklock._kazoo.riders import Rider
from zklock._kazoo.socket import _CHUNK, _WakeWriter
from zklock._kazoo.wake import Order

log = logging.getLogger("zklock")

_LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class GatewaySocket(CarryingSocket):
    """What kazoo takes for its socket."""

    _carrier: GatewayHandler

    def __init__(
        self,
        sock: Any,
        handler: GatewayHandler,
        server: str = "",
        another: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(sock, handler, server, another)
        self.torn = False
        self._inbox: deque[bytes] = deque()
        self._closed = False
        self._ear: tuple[socket.socket, socket.socket] | None = None  # once a thread reads

    # For kazoo, on its connection thread.

    def in_main_loop(self) -> None:
        """Note that kazoo waits for replies and wake-ups at once: it has finished connecting."""
        if self._may_ride:
            self._may_ride = False
            self.rides = True

    def send(self, data: Any) -> int:
        """Send a frame, or hold it back until kazoo has sent all that it has queued."""
        frame = bytes(data)
        if self._asked is None:
            frame = self._request(frame)
            self._begin_to_read()
            with self._carrier.mutex:
                self._held += frame
                self._write()
            return len(data)
        with self._carrier.mutex:
            self._held += self._request(frame)
            if self._proving or self._carrier.waiting < 2 or len(self._held) > _CHUNK:
                self._write()
        return len(data)

    def flush(self) -> None:
        with self._carrier.mutex:
            self._write()

    def recv(self, size: int) -> bytes:
        if self._asked is None:
            return bytes(self._sock.recv(size))
        if self._proving:
            return self._proved(size)
        if not self._buffer:
            if self._inbox:
                self._buffer = memoryview(self._inbox.popleft())
            elif isinstance(self._end, OSError):
                raise self._end
            elif not self._end:
                raise BlockingIOError(errno.EAGAIN, "no whole frame has arrived")
        data = bytes(self._buffer[:size])
        self._buffer = self._buffer[size:]
        return data

    def pending(self) -> int:
        return len(self._buffer) or len(self._inbox) or int(self._end is not False)

    def close(self) -> None:
        """Close; the reader drops what is under way."""
        self.rides = self._may_ride = False
        with self._carrier.mutex:
            self._closed = True
            self._sock.close()
        self._wake_reader()

    # Under the mutex.

    def _take(self, dropped: list[Rider], rider: Rider) -> bool:
        """Put a request of ours behind what is to be sent, unless it is over, or cannot go."""
        if not self._put(rider):
            dropped.append(rider)
        return True

    def _write(self) -> None:
        """Send what is held; the reader sends the rest if the server takes no more now."""
        try:
            while self._held:
                del self._held[: int(self._sock.send(self._held))]
        except _LATER as error:
            if not of_the_call(error):
                raise
            self._wake_reader()
        except OSError as error:
            if not of_the_call(error):
                raise
            self._stop(error)

    # For any thread that is not under the mutex.

    def write(self, wake: Order) -> bool:
        """Send our requests that stand first in line; return whether none is left there."""
        dropped: list[Rider] = []
        with self._carrier.mutex:
            try:
                self.torn = True
                over = wake.hand_over(partial(self._take, dropped))
                self._write()
                self.torn = False
            finally:
                if self.torn:
                    self.shut_down()
        for rider in dropped:
            rider.drop()
        return over

    def _stop(self, end: OSError | bool) -> None:
        """Let nothing more out; kazoo still gets what has arrived before."""
        self.rides = self._may_ride = False
        self._end = self._end or end
        self._carrier.wake_kazoo()

    # For the reader, which has a thread of its own.

    def _begin_to_read(self) -> None:
        self._ear = socket.socketpair()
        for each in self._ear:
            each.setblocking(False)
        try:
            threads.start(self._read_on, "zklock-reader")
        except RuntimeError as error:
            self._close_ear()
            raise OSError(errno.EAGAIN, f"no thread can be started: {error}") from error

    def _wake_reader(self) -> None:
        ear = self._ear
        if ear is not None:
            try:
                ear[1].send(b"\0")
            except OSError as error:
                if not of_the_call(error):
                    raise
                return  # full: it wakes up already; or over

    def _close_ear(self) -> None:
        ear, self._ear = self._ear, None
        for each in ear or ():
            each.close()

    def _read_on(self) -> None:
        """Read until kazoo closes the connection."""
        try:
            self._read()
        except Exception:
            if not self._closed:
                log.exception("the connection is dropped after an error", extra=log_fields())
        finally:
            self._stop(True)
            while not self._closed:
                self._await_close()
            self._end_reading()

    def _end_reading(self) -> None:
        """Drop what is under way: nothing is read any more."""
        for rider in self._sorted.left():
            rider.drop()
        self._carrier.ended(self)
        self._close_ear()

    def _read(self) -> None:
        assert self._ear is not None
        ear, here = self._ear[0], self._sock.fileno()
        poll = select.poll()
        poll.register(ear, select.POLLIN)
        poll.register(here, select.POLLIN)
        full = False
        while not self._is_over():
            happened = poll.poll()
            if len(happened) > 1 or happened[0][0] != here:
                with contextlib.suppress(BlockingIOError):
                    ear.recv(_CHUNK)
            self._receive()
            with self._carrier.mutex:
                if self._closed:
                    return
                self._write()
                if full is not bool(self._held):
                    full = not full
                    poll.modify(here, select.POLLIN | (select.POLLOUT if full else 0))

    def _is_over(self) -> bool:
        """Whether nothing more is to be read."""
        return self._closed or self._end is not False

    def _await_close(self) -> None:
        assert self._ear is not None
        poll = select.poll()
        poll.register(self._ear[0], select.POLLIN)
        poll.poll()

    def _receive(self) -> None:
        """Take what has arrived."""
        try:
            while not self._end:
                with self._carrier.mutex:
                    if self._closed:
                        return
                    chunk = self._sock.recv(_CHUNK)
                if chunk:
                    self._sort(chunk)
                else:
                    self._closed_early()
                    self._stop(True)
                if self.eager:
                    return
        except _LATER:
            return
        except OSError as error:
            self._closed_early(error)
            self._stop(error)

    def _sort(self, chunk: bytes) -> None:
        self._sorted.feed(chunk)
        before = len(self._inbox)
        while True:
            frame = self._sorted.sort()
            if frame:
                self._inbox.append(frame)
            elif not self._sorted.more:
                break
        if self._sorted.broken:
            self._closed_early()
            self._stop(True)
        elif len(self._inbox) > before:
            self._carrier.wake_kazoo()

    # For Frames.

    def connected(self, milliseconds: int, read_only: bool) -> None:
        self._may_ride = milliseconds > 0 and not read_only
        self._connected(milliseconds)


class _Wakes(Order):
    """The wake-ups of kazoo's connection thread, which waits in ``GatewayHandler.select``."""

    def __init__(self, write: Callable[[Order], object], ring: Callable[[], None]) -> None:
        super().__init__(write)
        self._ring = ring

    def rouse(self) -> None:
        self._ring()

    def close(self) -> None:
        """Do nothing: it has no sockets."""


class GatewayHandler(CarryingHandler):
    """zklock's handler, whose connections carry zklock's requests beside kazoo's."""

    _connection = GatewaySocket

    def __init__(self) -> None:
        super().__init__()
        self.mutex = ReentrantMutex()
        self.interrupted: Callable[[], bool] = owned_by_me(self.mutex)
        self._bell = Event()

    @property
    def line(self) -> GatewaySocket | None:
        """The connection that takes our requests now; ``None``: they go through kazoo."""
        connection = self._socket
        rides = isinstance(connection, GatewaySocket) and connection.rides and not self.forked
        return connection if rides else None  # type: ignore[return-value]

    def rouse(self) -> None:
        """Have sent what was put in line: on this thread, unless kazoo may have a queue."""
        line, wake = self.line, self._riders
        if wake is None or not wake.pending():
            return
        queued = self.interrupted() or (self._open and self._is_asked())
        if line is None or queued or not line.write(wake):
            self.wake_kazoo()

    def wake_kazoo(self) -> None:
        """Have kazoo's connection thread look whether there is something for it."""
        self._bell.set()

    def ended(self, connection: GatewaySocket) -> None:
        """Drop the requests of a closed connection that are still in line."""
        if self._riders is not None:
            self._riders.strand(connection)

    def create_socket_pair(self) -> tuple[_Wakes, _WakeWriter]:
        """Return the (reader, writer) with which kazoo wakes its connection thread."""
        self._wake = self._riders = _Wakes(self._write, self.wake_kazoo)
        return self._riders, _WakeWriter(self._riders)

    def select(
        self,
        rlist: Sequence[Any],
        wlist: Sequence[Any],
        xlist: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait until one of these has something for kazoo. Sending never waits."""
        if wlist:
            return [], list(wlist), []
        connection = rlist[0]
        if len(rlist) == 2:
            connection.in_main_loop()
        else:
            timeout = connection.patience(timeout)
        until = math.inf if timeout is None else clock() + timeout
        connection.flush()
        while True:
            self._bell.clear()
            ready = [each for each in rlist if each.pending()]
            left = until - clock()
            if ready or left <= 0:
                break
            self._bell.wait(left)
        if len(rlist) == 1 and not ready:
            connection.waited()
        return ready, [], []
