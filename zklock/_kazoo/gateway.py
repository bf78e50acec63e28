"""A client's connection, which is zklock's own: kazoo rides on it.

kazoo keeps the handshake, authentication, the session, pings, reconnection, and whatever the user
asks for. It gets all that by the three public methods of ``IHandler``: what it takes for its socket
(``GatewaySocket``) gathers the frames that are kazoo's; what it takes for a wake-up socket pair
counts wake-ups (``wake``); ``select`` waits until there is something for it.

**Nobody waits to write.** zklock's own requests (``WireRequest``) and kazoo's frames are queued by
whoever asks. One of these threads at a time is the writer, and sends what all have queued. One
thread for each connection reads. It completes zklock's requests, tells of events, and gathers
kazoo's frames.

**A caller that waits may read instead**, if nothing else is under way: the reader does not listen
meanwhile, and no thread has to wake another one. The caller takes the replies to its own requests,
which come before those to later ones, and the events before them. While it waits in a queue, it
takes the events of the first moment. It leaves all else to the reader.

Why it is right:

1. *No request of ours overtakes what the user has queued in kazoo before it.* kazoo asks for a
   result before it queues a request. While no result is open, and kazoo is not woken, its queue is
   empty. Else ours waits, until kazoo has looked into its queue and found nothing, or has sent as
   many requests as there could be.
2. *Nothing goes out before or after the session.* The line opens when kazoo waits for replies and
   for wake-ups at once, which it does after handshake and authentication only. What comes before
   waits. The line stays closed at a server that only reads: what comes is dropped. It closes with
   the request to end the session, and at the first sign of the connection's end.
3. *Replies come in the order of the requests.* The writer gives each request its number, its place
   among those that are due, and its place in the bytes to be sent, in one go. One thread at a time
   receives and sorts, and nobody begins to while another tells what it has sorted. So events are
   told in the order in which they come.
4. *A later server has seen what our replies have shown.* The handshake carries the highest zxid of
   any reply (``ClientState.seen``).
5. *What is under way at the end of a connection is dropped, exactly once*: by the reader, when
   kazoo has closed it; what is queued later, by who has queued it.
6. *An interrupt is a lost connection.* What strikes the main thread while it writes, or takes its
   replies, shuts the connection down: the reader completes what was not heard, and kazoo resumes
   the session. A caller that is struck elsewhere reads no more: whoever writes next sees to it.
7. *A signal handler, or a finalizer, that interrupts its own thread in here* has its request sent
   when it returns. It must not wait for the answer: ``Handler.interrupted`` tells. One that does
   not return costs the session. It keeps no other thread, and the lease ends by its own clock.
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
from typing import Any

from kazoo.exceptions import AuthFailedError, SessionClosedRequireSaslError
from kazoo.handlers.threading import KazooTimeoutError

from zklock._ground import threads
from zklock._ground.clock import clock
from zklock._ground.interrupts import raised_by_the_call
from zklock._ground.mutexes import ReentrantMutex, owned_by_me
from zklock._ground.records import log_fields
from zklock._kazoo.client_state import ClientState
from zklock._kazoo.frames import AUTH_XID, Frames
from zklock._kazoo.socket import (
    _CHUNK,
    _CLOSE,
    _HEAD,
    _LATER,
    _NUMBER,
    _PING,
    HandshakingSocket,
)
from zklock._kazoo.watches import Watch
from zklock._kazoo.wire_request import Awaited, WireRequest
from zklock._recipes.effects import Batch

log = logging.getLogger("zklock")

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
"""How often nobody asks so, after an event loop did in vain, or others had the processor for longer
than ``SPIN``: who uses up its share by asking waits the longer for the next one."""

LONGEST = 0.05
"""Seconds. For how long a caller reads without a look whether others have brought its outcome."""


class _Events:
    """What a caller waits for that reads events: no replies."""

    batch: Batch = ()
    over = True

    def complete(self) -> None:
        """Nothing was asked."""


class GatewaySocket(HandshakingSocket):
    """What kazoo takes for its socket.

    ``open``: it takes requests of ours. ``closed``: kazoo has closed it. ``reading``: what a caller
    reads the replies to. ``writes()``, ``receives()``: whether this thread is the one that does so
    now. ``teller``: the thread that tells of events it has read while it waits.
    """

    def __init__(
        self,
        sock: Any,
        state: ClientState,
        server: str = "",
        another: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(sock, state, server, another)
        self.open = False
        self.reading: Awaited | None = None
        self.teller = 0
        self._reads_until = 0.0  # the caller listens until then
        self._reads_by = 0  # the thread that does so
        self._orphans: dict[Awaited, None] = {}  # what callers are taking the replies to
        self._struck = False  # an exception has struck in a step, perhaps even before shut_down()
        self._may_open = False
        self._frames = Frames(self)
        self._held = bytearray()  # to be sent: numbered
        self._blocked = False  # the server takes no more now
        self._sending = False  # the writer has begun to send what it holds
        self._buffer = memoryview(b"")  # what kazoo has begun to receive
        self._end: OSError | bool = False  # of what is received
        self.closed = False
        self._ended = False  # what was under way has been dropped
        # What waits, behind so many requests of kazoo's on this connection.
        self._later: deque[tuple[int, Sequence[WireRequest]]] = deque()
        self._sent = 0  # requests of kazoo's
        self._looked = 0  # how many waited when kazoo was told to look into its queue
        self._sent_before = 0  # it looked
        self._refuses = False  # the server only reads
        # To be numbered and sent: kazoo's number, what comes behind it, a request of ours, a watch.
        self._queue: deque[tuple[int, bytes, WireRequest | None, Watch | None]] = deque()
        self._writing, self._receiving = ReentrantMutex(), ReentrantMutex()
        self.writes, self.receives = map(owned_by_me, (self._writing, self._receiving))
        self._ear: tuple[socket.socket, socket.socket] | None = None  # wakes the reader
        self._poller: Any = None
        self._listens = True  # the reader, to what arrives
        self._telling = False  # the reader receives, or tells what it has sorted
        self._full = False  # the reader listens for when the server takes more
        self._spins = len(os.sched_getaffinity(0)) > 1 if READS else False
        self._brief = False  # the last replies came soon
        self._vain = 0  # how often it is not asked again and again

    # For kazoo, on its connection thread.

    def in_main_loop(self) -> None:
        """Note that kazoo waits for replies and wake-ups at once: it has finished connecting."""
        if self._may_open:
            self._may_open = False
            self.open = True
        behind_none = self._looked if self._sent == self._sent_before else 0
        self._looked = 0
        while self.open and self._later and (behind_none > 0 or self._later[0][0] <= self._sent):
            behind_none -= 1
            self._add(self._later[0][1])
            self._later.popleft()

    def wants_a_look(self) -> bool:
        """Whether kazoo is to look into its queue, as requests of ours wait."""
        return self.open and bool(self._later)

    def looks(self) -> None:
        """Note that kazoo is about to look into its queue."""
        self._looked, self._sent_before = len(self._later), self._sent

    def send(self, data: Any) -> int:
        """Queue a frame; it is sent when kazoo has queued all that it has."""
        frame = bytes(data)
        if self._asked is None:
            self._held += self._shake_hands(frame)
            self._begin_to_read()
            self.flush()
        else:
            self._end_late_reading()
            self._queue_frame(frame)
            if self._proving or self.state.waiting < 2:
                self.flush()
        return len(frame)

    def _queue_frame(self, frame: bytes) -> None:
        if self._fresh:
            self._look_for_proof(frame)
        length, xid, opcode = _HEAD.unpack_from(frame)
        watch = None
        if length == 8 and opcode == _PING:
            self._pinged = clock()
        else:
            if length == 8 and opcode == _CLOSE:
                self.open = self._may_open = False
                self.state.closing()
            self._sent += 1
            if xid > 0:
                watch = self._frames.watches.of_kazoo(opcode, frame[_HEAD.size :])
        self._queue.append((xid, frame[_NUMBER.size :], None, watch))

    def recv(self, size: int) -> bytes:
        if self._asked is None:
            return bytes(self._sock.recv(size))
        if self._proving:
            return self._proved(size)
        if not self._buffer:
            if self._frames.inbox:
                self._buffer = memoryview(self._frames.inbox.popleft())
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
        return len(self._buffer) or len(self._frames.inbox) or int(self._end is not False)

    def close(self) -> None:
        """Close; the reader drops what is under way."""
        self.open = self._may_open = False
        with self._receiving, self._writing:
            self.reading = None
            self._sock.close()
            self.closed = True  # last: the reader ends when it sees this
        self._wake_reader()

    def shut_down(self) -> None:
        self.open = False
        super().shut_down()
        self._wake_reader()

    # For any thread.

    def write(self, requests: Sequence[WireRequest], landing: Awaited | None = None) -> None:
        """Send requests of ours, or have them wait; they are dropped at the connection's end.

        ``landing``: what the caller reads the replies to, if it can.
        """
        if self._struck:
            self.shut_down()
        try:
            if landing is None and self._reads_by == threading.get_ident():
                self._reads_until = 0.0  # a signal handler that has interrupted it may wait
            self._end_late_reading()
            before = self.state.queued()
            if before or self._later or not self.open:
                self._later.append((self._sent + before, requests))
                self.state.wake_kazoo()
            else:
                if landing is not None and not self._frames.due:
                    self._lend(landing)
                self._add(requests)
                self.flush()
            if self._ended or self._refuses:
                self._drop()
        except BaseException:
            self._struck = True  # the next heartbeat sees this if another one strikes here
            self.shut_down()
            raise

    def _add(self, requests: Sequence[WireRequest]) -> None:
        self._queue.extend([(0, each.body, each, each.watch) for each in requests])

    def flush(self) -> None:
        """Send what is queued, unless another thread is the writer: it looks again at the end."""
        again = True
        while again and not self.writes():
            for free in map(self._writing.acquire, (False,)):
                if not free:
                    return
                try:
                    self._write()
                finally:
                    self._writing.release()
            again = bool(self._queue)

    def _write(self) -> None:
        """Give what is queued its numbers, and send it, or what the server takes of it now."""
        while self._queue:
            kazoos, payload, request, watch = first = self._queue[0]
            number = self.state.next_xid() if kazoos >= 0 else kazoos
            if kazoos >= 0 or kazoos == AUTH_XID:
                self._frames.due.append((number, kazoos, request, watch))
            self._held += _NUMBER.pack(len(payload) + 4, number) + payload
            # Last: an interrupt may strike, and the request be another's. Its handler may drop all.
            if self._queue and self._queue[0] is first:
                self._queue.popleft()
        if self._sending:  # a writer was interrupted: nothing is sent a second time
            self.shut_down()
            return
        try:
            while self._held:
                self._sending = True
                del self._held[: int(self._sock.send(self._held))]
                self._sending = False
            self._blocked = False
        except _LATER as error:
            if not raised_by_the_call(error):
                raise
            self._sending = False
            if not self._blocked:
                self._blocked = True
                self._wake_reader()
        except OSError as error:
            if not raised_by_the_call(error):
                raise
            self._sending = False
            self._stop(error)

    def _lend(self, landing: Awaited) -> None:
        """Let a caller read the replies to what it is about to ask, if nothing else is under way.

        The reader does not listen meanwhile.
        """
        if not READS or not self.eager or self.receives():
            return
        for free in map(self._receiving.acquire, (False,)):
            if not free:
                return
            try:
                busy = self._frames.due or self._queue or self._held or self._telling
                tells = self.teller in {0, threading.get_ident()}
                if self.open and not busy and tells and self._frames.sorted:
                    self.reading = landing
                    if self._listens:
                        self._poller.modify(self.fileno(), 0)
                        self._listens = False
            finally:
                self._receiving.release()

    def _end_late_reading(self) -> None:
        """Have the reader listen if a caller should and does not: it is interrupted, or held up."""
        if self.reading is not None and clock() > self._reads_until:
            self._wake_reader()

    def _listen(self) -> None:
        """Let the reader listen, and no caller. The caller of this is who may receive."""
        self._poller.modify(self.fileno(), select.POLLIN | (select.POLLOUT if self._full else 0))
        self._listens = True
        self.reading = None  # last: who is interrupted before still counts as late

    def _stop(self, end: OSError | bool) -> None:
        """Let nothing more out; kazoo still gets what has arrived before."""
        self.open = self._may_open = False
        self._end = self._end or end
        self.state.wake_kazoo()

    # For a caller that reads.

    def hear(self, batch: Batch, seconds: float | None) -> bool:
        """Wait for replies to a batch, at most so long, and take what has come; see ``_take``.

        ``False`` at once if this caller reads no more. When its time is over, the reader listens.
        With ``None`` it does not sleep, as an event loop runs on it. An empty batch stands for
        events: it waits for them for a moment, unless something is under way.
        """
        awaited, number, goes_on = self.reading, self.fileno(), False
        if not batch:
            awaited = events = _Events()
            if self.reading is None:
                self._lend(events)
        lent = awaited is not None and awaited is self.reading and awaited.batch is batch
        if awaited is None or not lent or number < 0:
            return False
        self._reads_until, self._reads_by = clock() + LONGEST, threading.get_ident()
        try:
            poll = select.poll()
            poll.register(number, select.POLLIN)
            if seconds is None:
                come = self._glance(poll)
            else:
                come = self._wait(poll, seconds) if batch else _sleep(poll, seconds)
            more = self._take(awaited) if come else seconds is not None and seconds > LONGEST
            goes_on = more and not awaited.over
        finally:
            if self.reading is awaited:  # else another one reads
                self._reads_until = self._reads_by = 0
            if not goes_on:
                with self._receiving:
                    if self.reading is awaited:
                        self._listen()
        return True

    def _take(self, awaited: Awaited) -> bool:
        """Take the replies that have come, and the events before all else that is not awaited.

        Return whether more replies are to come. Nobody receives while events are told.
        """
        me = threading.get_ident()
        try:
            with self._receiving:
                if self.reading is not awaited:
                    return False
                self._orphans[awaited] = None
                come = self._receive_once()
                self._frames.sort(partial(self._is_for, awaited))
                more = come and self._frames.answers(awaited)
                told, self._frames.told = self._frames.told, []
            for tell in told:
                tell()
            self._orphans.pop(awaited, None)
        except BaseException:
            self._struck = True
            self.shut_down()
            raise
        finally:
            if self.teller == me:
                self.teller = 0
        if self._frames.inbox:
            self.state.wake_kazoo()
        if not (more or self._frames.sorted):
            self._wake_reader()
        return more

    def _is_for(self, awaited: Awaited) -> bool:
        """Whether the next frame is a reply to who reads, or an event, which it is to tell."""
        if self._frames.answers(awaited):
            return True
        if self._frames.has_event():
            self.teller = threading.get_ident()
            return True
        return False

    def _wait(self, poll: select.poll, seconds: float) -> bool:
        began = clock()
        come = self._brief and self._spun(poll, began + min(seconds, SPIN))
        come = come or _sleep(poll, seconds)
        self._brief = self._spins and clock() < began + SPIN
        return come

    def _glance(self, poll: select.poll) -> bool:
        """Ask again and again for a moment; after one in vain, do not for a while."""
        asks = self._spins and not self._vain
        come = self._spins and self._spun(poll, clock() + SPIN)
        if asks and not come:
            self._vain = VAIN
        return come

    def _spun(self, poll: select.poll, until: float) -> bool:
        """Ask again and again until then, or for a while not; return whether there is something."""
        if self._vain:
            self._vain -= 1
            return False
        come, now = False, clock()
        while not come and now < until:
            _let_others_run()
            come = bool(poll.poll(0))
            before, now = now, clock()
            if now - before > SPIN:
                self._vain = VAIN
        return come

    # For the reader, which has a thread of its own.

    def _begin_to_read(self) -> None:
        self._ear = _pair()
        self._poller = select.epoll() if READS else select.poll()
        for number in (self._ear[0].fileno(), self._sock.fileno()):
            self._poller.register(number, select.POLLIN)
        try:
            threads.start(self._read_on, "zklock-reader")
        except threads.NoThread as error:
            self._end_reading()
            raise OSError(errno.EAGAIN, f"no thread can be started: {error}") from error

    def _wake_reader(self) -> None:
        if self._ear is not None:
            try:
                self._ear[1].send(b"\0")
            except OSError as error:
                if not raised_by_the_call(error):
                    raise
                return  # full: it wakes up already; or over

    def _close_ear(self) -> None:
        ear, self._ear = self._ear, None
        for each in ear or ():
            each.close()
        if READS and self._poller is not None:
            self._poller.close()

    def _read_on(self) -> None:
        """Read until kazoo closes the connection."""
        try:
            self._read()
        except Exception:
            if not self.closed:
                log.exception("the connection is dropped after an error", extra=log_fields())
        finally:
            self._stop(True)
            while not self.closed:
                self._await_close()
            self._end_reading()

    def _read(self) -> None:
        while not (self.closed or self._end):
            self._await_wake()
            self._receive()

    def _end_reading(self) -> None:
        """Complete what is under way: nothing is read or written any more."""
        self._ended = True  # who queues something from now on drops it
        self._drop()
        for awaited in [*self._orphans]:
            awaited.complete()
        self._close_ear()

    def _drop(self) -> None:
        """Complete what nobody sends or answers any more."""
        these = (self._later, self._frames.due, self._queue) if self._ended else (self._later,)
        while any(these):
            with self._writing:  # the writer has its place in the queue
                dropped = self._take_dropped()
            for each in dropped:
                each.land(None, b"")

    def _take_dropped(self) -> Sequence[WireRequest]:
        if self._later:
            return self._later.popleft()[1]
        queued = (self._frames.due or self._queue) if self._ended else ()
        request = queued.popleft()[2] if queued else None
        return () if request is None else (request,)

    def _await_wake(self) -> None:
        """Wait until something has arrived, or somebody has woken this thread."""
        assert self._ear is not None
        happened = self._poller.poll()
        if self._ear[0].fileno() in [number for number, _ in happened]:
            _drain(self._ear[0])

    def _await_close(self) -> None:
        """Wait until somebody has woken this thread: what arrives is not read any more."""
        assert self._ear is not None
        poll = select.poll()
        poll.register(self._ear[0], select.POLLIN)
        poll.poll()
        _drain(self._ear[0])

    def _receive(self) -> None:
        """Take what has arrived, and send what the server did not take at once."""
        more = True
        while more:
            if self._blocked:
                self.flush()
            with self._receiving:
                self._telling = True
                more = False
                if not self.teller:
                    if self.reading is not None and clock() > self._reads_until:
                        self._listen()
                    self._frames.sort()  # a caller may have left something
                    more = self.reading is None and self._receive_once()
                    self._frames.sort()
                told, self._frames.told = self._frames.told, []
                if self._full is not self._blocked and not self.closed:
                    self._full = self._blocked
                    if self.reading is None:
                        self._listen()
            for tell in told:
                tell()
            self._telling = False
            if self._queue or (self._held and not self._blocked):
                self.flush()  # for who came while this thread received, over TLS
            if self._frames.broken:
                self._over(True)
            elif self._frames.inbox:
                self.state.wake_kazoo()
            more = more and not self.eager

    def _receive_once(self) -> bool:
        """Receive once; return whether something had come. The caller is who may receive.

        A signal handler may have forked while a caller waited: what comes is the parent's.
        """
        if self.closed or self._end or self._frames.broken or self.state.forked:
            return False
        try:
            if self.eager:
                chunk = self._sock.recv(_CHUNK)
            else:
                with self._writing:  # TLS does one thing at a time
                    chunk = self._sock.recv(_CHUNK)
        except OSError as error:
            if self.eager and not raised_by_the_call(error):
                raise
            if not isinstance(error, _LATER):
                self._frames.told.append(partial(self._over, error))
            return False
        if chunk:
            self._frames.feed(chunk)
        else:
            self._frames.told.append(partial(self._over, True))
        return bool(chunk)

    def _over(self, end: OSError | bool) -> None:
        """Note that nothing more is received."""
        self._closed_early(end if isinstance(end, OSError) else None)
        self._stop(end)

    def connected(self, milliseconds: int, read_only: bool) -> None:
        self._refuses = read_only
        self._may_open = milliseconds > 0 and not read_only
        super().connected(milliseconds, read_only)


def _pair() -> tuple[socket.socket, socket.socket]:
    """Return the reading and the writing end of what wakes a thread. Neither blocks."""
    pair = socket.socketpair()
    for each in pair:
        each.setblocking(False)
    return pair


def _drain(end: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        end.recv(_CHUNK)


def _sleep(poll: select.poll, seconds: float) -> bool:
    """Wait until something has come, for at most so long; return whether it has."""
    return bool(poll.poll(math.ceil(1000 * min(seconds, LONGEST))))


def _let_others_run() -> None:
    os.sched_yield()
