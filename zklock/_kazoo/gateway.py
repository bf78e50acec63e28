"""A client's connection, which is zklock's own: kazoo rides on it.

kazoo keeps the handshake, authentication, the session, pings, reconnection, and whatever the user
asks for. It gets all that by the three public methods of ``IHandler``: what it takes for its socket
(``GatewaySocket``) gathers the frames that are kazoo's; what it takes for a wake-up socket pair is
a line of wake-ups (``wake``); ``select`` waits until there is something for it.

**One mutex guards what goes out**: the socket, and the numbers of requests. Whoever has it writes.
zklock's own requests (``WireRequest``) are written at once, on the thread that asks. One thread for
each connection reads. It completes zklock's requests, tells of events, and gathers kazoo's frames.

**A caller that waits may read instead**, if nothing else is under way: the reader does not listen
meanwhile, and no thread has to wake another one. The caller takes the replies to its own requests
and leaves all else to the reader. Whoever writes ends this. It is only a short way: whoever listens
meanwhile, ``ears`` has one thread at a time receive and take.

Why it is right:

1. *No request of ours overtakes what the user has queued in kazoo before it.* It is written at once
   only while kazoo has no request in its queue. Else kazoo is asked (see ``wake``).
2. *Nothing goes out before or after the session.* The line opens when kazoo waits for replies and
   for wake-ups at once, which it does after handshake and authentication only. It stays closed at a
   server that only reads. It closes with the request to end the session, and at the first sign of
   the connection's end.
3. *Replies come in the order of the requests.* A request gets its number, its place among those
   that are due, and its place in the bytes to be sent in one go, under the mutex. Frames are taken
   one after the other.
4. *A later server has seen what our replies have shown.* The handshake carries the highest zxid of
   any reply (``handler.seen``).
5. *What is under way at the end of a connection is dropped, exactly once*: by the reader, when
   kazoo has closed it. A caller that was late looks at the line after it has put its request there,
   and drops it itself. Each request is claimed by one of those who complete it (``WireRequest``).
6. *An interrupt is a lost connection.* What strikes the main thread while it writes, or takes its
   replies, leaves ``torn`` set, or an orphan: the connection is dropped, the reader completes what
   was not heard, and kazoo resumes the session.
7. *A signal handler, or a finalizer, that interrupts its own thread in here* leaves its request in
   line; the connection thread writes it. It must not wait for the answer: ``interrupted`` tells.
   One that does not return keeps kazoo's thread and the reader, and so costs the session. It keeps
   nobody else: others leave their requests in line, and the lease ends by its own clock.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import select
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

from kazoo.exceptions import AuthFailedError, SessionClosedRequireSaslError
from kazoo.handlers.threading import KazooTimeoutError

from zklock._ground import threads
from zklock._ground.clock import clock
from zklock._ground.mutexes import Mutex
from zklock._ground.records import log_fields
from zklock._ground.strikes import of_the_call
from zklock._kazoo.frames import AUTH_XID, Frames
from zklock._kazoo.socket import (
    _CHUNK,
    _CLOSE,
    _HEAD,
    _NUMBER,
    _PING,
    Hears,
    _Socket,
)
from zklock._kazoo.wake import Wakes
from zklock._kazoo.wire_request import Awaited, WireRequest

log = logging.getLogger("zklock")

_LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

_CODE = struct.Struct(">i")
_ERROR = slice(12, 16)  # of a reply without its length
_REQUIRED = _CODE.pack(SessionClosedRequireSaslError.code)
_CUT = "the connection was cut while the server looked at the credentials"

READS = hasattr(select, "epoll")
"""Whether callers can read: it must be possible to have the reader not hear what arrives."""

SPIN = 0.0006
"""Seconds. For how long a caller that reads asks again and again, before it sleeps, if its last
replies came within that time: a thread that sleeps takes as long to wake up."""

VAIN = 16
"""How many glances of an event loop are left out after one in vain."""

LONGEST = 0.05
"""Seconds. For how long a caller reads without a look whether others have brought its outcome."""


class Carries(Hears, Protocol):
    """What a connection needs from its handler."""

    mutex: Any

    def sent(self) -> None:
        """Note that kazoo has sent a request of its queue."""

    def wake_kazoo(self) -> None:
        """Have kazoo's connection thread look whether there is something for it."""

    def rouse(self) -> None:
        """Have sent what was put in line."""

    def ended(self, connection: GatewaySocket) -> None:
        """Drop the requests of a closed connection that are still in line."""


class GatewaySocket(_Socket):
    """What kazoo takes for its socket.

    ``open``: it takes requests of ours. ``reading``: what a caller reads the replies to.
    """

    def __init__(
        self,
        sock: Any,
        handler: Carries,
        server: str = "",
        another: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(sock, handler, server, another)
        self.open = False
        self.torn = False
        self.reading: Awaited | None = None
        self.taking = 0  # the thread with this ident takes the replies that it reads
        self.ears = Mutex()
        self.saw, self.goes_back = handler.seen, handler.goes_back
        self._carrier = handler
        self._may_open = False
        self._sorted = Frames(self)
        self._held = bytearray()  # to be sent
        self._inbox: deque[bytes] = deque()
        self._buffer = memoryview(b"")  # what kazoo has begun to receive
        self._end: OSError | bool = False  # of what is received
        self._closed = False
        self._orphans: list[Awaited] = []  # what callers are taking the replies to
        self._ear: _Pair | None = None  # once a thread reads: wakes it
        self._poller: Any = None
        self._bell: _Pair | None = None  # once a thread reads: wakes a caller that reads
        self._rung = False
        self._inside = False  # a caller waits for its replies, or for the bell
        self._full = False  # the server takes no more now
        self._spins = False  # another core can do what is waited for
        self._brief = False  # the last replies came soon
        self._vain = 0  # how many glances are left out

    # For kazoo, on its connection thread.

    def in_main_loop(self) -> None:
        """Note that kazoo waits for replies and wake-ups at once: it has finished connecting."""
        if self._may_open:
            self._may_open = False
            self.open = True

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
            self._stop_reading()
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

    def _proved(self, size: int) -> bytes:
        """Receive the answer to credentials.

        kazoo takes the end of the connection here for a refusal, and gives the client up for good.
        Servers since ZooKeeper 3.6 answer when they refuse. So an end without an answer is told as
        a time-out: then kazoo connects again.
        """
        self._proving = False
        try:
            data = self.recv(size)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise  # kazoo tries again
        except OSError as error:
            raise KazooTimeoutError(_CUT) from error
        finally:
            self._proving = True
        if not data:
            raise KazooTimeoutError(_CUT)
        if data[_ERROR] == _REQUIRED:  # kazoo knows one refusal; another one ends its thread
            data = data[: _ERROR.start] + _CODE.pack(AuthFailedError.code) + data[_ERROR.stop :]
        return data

    def pending(self) -> int:
        return len(self._buffer) or len(self._inbox) or int(self._end is not False)

    def close(self) -> None:
        """Close; the reader drops what is under way."""
        self.open = self._may_open = False
        with self._carrier.mutex:
            self._stop_reading()
            self._sock.close()
            self._closed = True  # last: the reader ends when it sees this
        self._wake_reader()

    def shut_down(self) -> None:
        self.open = False
        super().shut_down()
        self._wake_reader()

    # Under the mutex.

    def _request(self, frame: bytes) -> bytes:
        if self._asked is None:
            frame = self._shake_hands(frame)
            self._sorted.zxid = self._carrier.seen(0)
            return frame
        if self._fresh:
            self._look_for_proof(frame)
        length, xid, opcode = _HEAD.unpack_from(frame)
        if length == 8 and opcode == _PING:
            self._pinged = clock()
            return frame
        if length == 8 and opcode == _CLOSE:
            self.open = self._may_open = False
            self._carrier.closing()
        self._carrier.sent()
        if xid == AUTH_XID:
            self._sorted.due.append((AUTH_XID, AUTH_XID, None, None))
        if xid <= 0:
            return frame
        number = self._carrier.next_xid()
        watch = self._sorted.watches.of_kazoo(opcode, bytes(frame[_HEAD.size :]))
        self._sorted.due.append((number, xid, None, watch))
        return _NUMBER.pack(length, number) + frame[_NUMBER.size :]

    def _take(self, dropped: list[WireRequest], request: WireRequest) -> bool:
        """Put a request of ours behind what is to be sent, unless it is over, or cannot go."""
        if not request.hear or request.connection is not self or not self.open:
            dropped.append(request)
            return True
        body, number = request.body, self._carrier.next_xid()
        self._sorted.due.append((number, 0, request, request.watch))
        self._held += _NUMBER.pack(len(body) + 4, number) + body
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

    def _lend(self, awaited: Awaited) -> None:
        """Let a caller read; the reader does not listen meanwhile."""
        if self._rung:
            self._rung = False
            _drain(self._bell)
        self.reading = awaited
        self._poller.modify(self.fileno(), 0)

    def _stop_reading(self, awaited: Awaited | None = None) -> None:
        """Let the reader listen, and a caller that reads go; or this caller alone, by itself."""
        if self.reading is not None and awaited in {None, self.reading}:
            self.reading = None
            self._listen()
            if awaited is None:
                self._rung = True
                _wake(self._bell)

    def _listen(self) -> None:
        self._poller.modify(self.fileno(), select.POLLIN | (select.POLLOUT if self._full else 0))

    # For any thread that is not under the mutex.

    def write(
        self, wake: Wakes, requests: Sequence[WireRequest] = (), landing: Awaited | None = None
    ) -> bool:
        """Send our requests that stand first in line, and then these.

        Return whether that was all: nothing is left in line. Else these were not sent. ``landing``:
        what the caller reads the replies to, if it can. This waits for the mutex for a moment only:
        a signal handler that does not return may have interrupted the thread that has it.
        """
        dropped: list[WireRequest] = []
        over = False
        for taken in map(self._carrier.mutex.acquire, (True,), (LONGEST,)):
            if not taken:
                return False
            try:
                self.torn = True
                self._stop_reading()
                lends = landing is not None and self._lends()
                over = wake.hand_over(partial(self._take, dropped))
                if over:
                    for request in requests:
                        self._take(dropped, request)
                    if lends and landing is not None and not dropped:
                        self._lend(landing)
                self._write()
                self.torn = False
            finally:
                self._carrier.mutex.release()
                if self.torn:
                    self.shut_down()
        for request in dropped:
            request.drop()
        return over

    def _lends(self) -> bool:
        """Whether a caller may read the replies to what it sends next: nothing is under way."""
        able = self._bell is not None and self.open and not self._inside
        return able and self._sorted.idle and not self._held

    def _stop(self, end: OSError | bool) -> None:
        """Let nothing more out; kazoo still gets what has arrived before."""
        self.open = self._may_open = False
        self._end = self._end or end
        self._carrier.wake_kazoo()

    # For a caller that reads.

    def hear(self, awaited: Awaited, seconds: float | None) -> bool:
        """Wait for replies, at most so long, and take those that have come.

        ``False`` at once if this caller reads no more. When its time is over, the reader listens.
        With ``None`` it does not sleep, as an event loop runs on it.
        """
        number = self.fileno()
        if number < 0 or self.reading is not awaited:
            return False
        if self._await_replies(awaited, number, seconds):
            try:
                self._take_replies(awaited)
            except BaseException:
                self.shut_down()
                raise
        return True

    def _take_replies(self, awaited: Awaited) -> None:
        with self.ears:
            try:
                self.taking = threading.get_ident()
                if self.reading is not awaited:
                    return
                self._orphans.append(awaited)
                self._receive_once()
                replies, others = self._sorted.replies_to(awaited)
                if others or self._end or not self._sorted.due:
                    with self._carrier.mutex:
                        self._stop_reading(awaited)
                if others:
                    self._wake_reader()
            finally:
                self.taking = 0
        for request, error, body in replies:
            request.land(error, body)
        with contextlib.suppress(ValueError):  # the reader has completed it
            self._orphans.remove(awaited)
        self._carrier.rouse()

    def _await_replies(self, awaited: Awaited, number: int, seconds: float | None) -> bool:
        """Wait; return whether something may have come."""
        assert self._bell is not None
        come, goes_on = [], False
        try:
            self._inside = True  # nobody else reads, or drains the bell
            if self.reading is awaited:
                poll = select.poll()
                for each in (number, self._bell[0]):
                    poll.register(each, select.POLLIN)
                if seconds is None:
                    come = self._glance(poll.poll)
                else:
                    come = self._wait(poll.poll, seconds)
                goes_on = bool(come) or (seconds is not None and seconds > LONGEST)
        finally:
            self._inside = False
            if not goes_on:
                with self._carrier.mutex:
                    self._stop_reading(awaited)
        return bool(come)

    def _wait(self, poll: Poll, seconds: float) -> list[Any]:
        began, limit = clock(), min(seconds, LONGEST)
        come = _spun(poll, began + min(limit, SPIN)) if self._brief else []
        come = come or poll(math.ceil(1000 * limit))
        self._brief = self._spins and clock() < began + SPIN
        return come

    def _glance(self, poll: Poll) -> list[Any]:
        """Ask again and again for a moment; after one in vain, do not for a while."""
        if self._vain or not self._spins:
            self._vain -= bool(self._vain)
            return []
        come = _spun(poll, clock() + SPIN)
        self._vain = 0 if come else VAIN
        return come

    # For the reader, which has a thread of its own.

    def _begin_to_read(self) -> None:
        self._ear = _pair()
        if READS and self.eager:
            self._bell = _pair()
            self._spins = len(os.sched_getaffinity(0)) > 1
        self._poller = select.epoll() if READS else select.poll()
        for number in (self._ear[0].fileno(), self._sock.fileno()):
            self._poller.register(number, select.POLLIN)
        try:
            threads.start(self._read_on, "zklock-reader")
        except RuntimeError as error:
            self._close_ear()
            raise OSError(errno.EAGAIN, f"no thread can be started: {error}") from error

    def _wake_reader(self) -> None:
        _wake(self._ear)

    def _close_ear(self) -> None:
        ear, self._ear = self._ear, None
        for each in (*(ear or ()), *(self._bell or ())):
            each.close()
        if READS and self._poller is not None:
            self._poller.close()

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
        """Complete what is under way: nothing is read any more."""
        for request in self._sorted.left():
            request.drop()
        while self._orphans:
            self._orphans.pop().complete()
        self._carrier.ended(self)
        self._close_ear()

    def _read(self) -> None:
        while not self._is_over():
            self._await_wake()
            with self.ears:
                self._receive()
            self._carrier.rouse()  # what was heard may have led to more
            with self._carrier.mutex:
                if self._closed:
                    return
                self._write()
                if self._full is not bool(self._held):
                    self._full = not self._full
                    if self.reading is None:
                        self._listen()

    def _is_over(self) -> bool:
        """Whether nothing more is to be read."""
        return self._closed or self._end is not False

    def _await_wake(self) -> None:
        """Wait until something has arrived, or somebody has woken this thread."""
        assert self._ear is not None
        happened = self._poller.poll()
        if self._ear[0].fileno() in [number for number, _ in happened]:
            _drain(self._ear)

    def _await_close(self) -> None:
        """Wait until somebody has woken this thread: what arrives is not read any more."""
        assert self._ear is not None
        poll = select.poll()
        poll.register(self._ear[0], select.POLLIN)
        poll.poll()
        _drain(self._ear)

    def _receive(self) -> None:
        """Take what has arrived."""
        self._sort()
        while self._receive_once():
            self._sort()
            if self.eager:
                return

    def _receive_once(self) -> bool:
        """Receive once; return whether something had come."""
        try:
            with self._carrier.mutex:
                if self._closed or self._end:
                    return False
                chunk = self._sock.recv(_CHUNK)
        except _LATER:
            return False
        except OSError as error:
            self._closed_early(error)
            self._stop(error)
            return False
        if chunk:
            self._sorted.feed(chunk)
        else:
            self._closed_early()
            self._stop(True)
        return bool(chunk)

    def _sort(self) -> None:
        before = len(self._inbox)
        while frame := self._sorted.sort():
            self._inbox.append(frame)
        if self._sorted.broken:
            self._closed_early()
            self._stop(True)
        elif len(self._inbox) > before:
            self._carrier.wake_kazoo()

    # For Frames.

    def connected(self, milliseconds: int, read_only: bool) -> None:
        """Note the answer to the handshake; 0 milliseconds: the session has expired."""
        self._may_open = milliseconds > 0 and not read_only
        self._connected(milliseconds)


Poll: TypeAlias = Callable[[int], list[Any]]
"""Waits for so many milliseconds, and returns what there is."""

_Pair: TypeAlias = tuple[socket.socket, socket.socket]
"""The reading and the writing end of what wakes a thread. Neither blocks."""


def _pair() -> _Pair:
    pair = socket.socketpair()
    for each in pair:
        each.setblocking(False)
    return pair


def _wake(pair: _Pair | None) -> None:
    if pair is not None:
        try:
            pair[1].send(b"\0")
        except OSError as error:
            if not of_the_call(error):
                raise
            return  # full: it wakes up already; or over


def _drain(pair: _Pair | None) -> None:
    if pair is not None:
        with contextlib.suppress(BlockingIOError):
            pair[0].recv(_CHUNK)


def _spun(poll: Poll, until: float) -> list[Any]:
    """Ask again and again until then; return what there is."""
    come: list[Any] = []
    while not come and clock() < until:
        _let_others_run()
        come = poll(0)
    return come


def _let_others_run() -> None:
    os.sched_yield()
