"""Drives a session on a socket: the mutex, the client's own thread, and who reads.

``step()`` is the only way in. Three rules do the work of most mechanisms:

1. *An interrupt is a lost connection.* ``_torn`` is set for the length of a step. Whoever comes
   next and finds it set has met a step that an exception has struck. It drops the connection, and
   every attempt looks again, as after any cut. So no step has to survive an exception.
2. *Who is struck says so by one call in C*: it posts a job. The client's own thread, which no
   interrupt strikes, ends what was struck, and takes the reading back from who had it.
3. *Replies come in order, and a cut drops all that are due.*

A caller that waits may read what comes, if no other one does: then no thread has to wake another.
So may an event loop, for its tasks, until anybody else waits. Both do so for a moment (``LONGEST``)
and leave the rest to the client's own thread.
"""

from __future__ import annotations

import logging
import math
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from zklock._core.attempt import Pending
from zklock._core.link import Broken
from zklock._core.ports import LONGEST, Reader
from zklock._core.session import Session
from zklock._core.timers import Job
from zklock._ground.clock import clock
from zklock._ground.events import TURN, Event
from zklock._ground.interrupts import raised_by_the_call
from zklock._ground.mutexes import ReentrantMutex, owned_by_me
from zklock._ground.records import log_fields
from zklock._shell.callback_executor import CallbackExecutor
from zklock._shell.client_state import nothing
from zklock._shell.socket import Sock

log = logging.getLogger("zklock")

IDLE = 0.5
"""Seconds. The longest sleep while somebody may wait: a job may have been posted without a ring."""

AFTER_ERROR = 0.05
"""Seconds. The pause of the client's own thread after an error: it may come again."""

_CHUNK = 65536
"""Bytes of one read. For 128 KiB and more, glibc's malloc maps fresh pages, whatever has come."""
_FOR_EVER = 1e6  # seconds
_LATER = BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError
READS = hasattr(select, "epoll")
"""Whether callers can read: a thread that polls must hear of it that it is to poll no more."""


class Driver:
    """Drives one session. What it is on, kazoo's handler, says when its client is closed."""

    now: Callable[[], float] = staticmethod(clock)
    session: Session
    new_executor: Callable[[], Any] = CallbackExecutor
    limit: Callable[[float | None, Callable[[], object]], float | None]
    _end_if_closed: Callable[[], None]
    """Ends the session, and drives no more, if the client is closed."""

    def __init__(self) -> None:
        super().__init__()
        self._jobs: deque[Job] = deque()
        self.post: Callable[[Job], object] = self._jobs.append
        self._due = math.inf  # when the client's own thread wakes up
        self._bell = Event()  # of kazoo's connection thread
        self._driving = False  # the client's own thread is to go on
        self._driver: object = None  # what that thread was started for; ``None``: it ends
        self._stopping = False
        self._executor = self.new_executor()
        self._make_mutex()

    def _make_mutex(self) -> None:
        self._mutex = ReentrantMutex()
        self.inside = owned_by_me(self._mutex)
        self._torn = False
        self._sock: Sock | None = None
        self.reader: Reader | None = None  # who reads, instead of the client's own thread
        self._reads_until = 0.0
        self._poller: Any = None
        self._pipe: tuple[socket.socket, ...] = ()  # of what wakes the client's own thread
        self._ring: Callable[[], object] = nothing

    # The way in.

    def step(self, call: Callable[..., Any], *what: Any) -> Any:
        """Call in a step, and return what it returns: no other thread is in one.

        In a step of this thread, it is part of that.
        """
        if self._torn and self.inside():
            return call(*what)
        with self._mutex:
            if self._torn:
                self._mend()
            self._torn = True
            result = call(*what)
            if self.reader is not None and self.reader.outcome is not None:
                self._listen(self.reader)
            if self.session.link.out:
                self._flush()
            if self._due > -math.inf and (
                self._jobs or (self._due == math.inf and (self.session.in_use or self.reader))
            ):
                self.wake()
            self._torn = False
        return result

    def _mend(self) -> None:
        """Go on after a step that was struck: as after a cut. Repeatable."""
        self.reader = None
        self.session.mend()
        self.drop()

    def wake(self) -> None:
        """Have the client's own thread look what is due."""
        self._due = -math.inf
        try:
            self._ring()
        except OSError as error:
            if not raised_by_the_call(error):
                raise
            return  # full: it wakes up already; or over

    def later(self, job: Job) -> None:
        """Run a job soon, on the client's own thread. From any thread."""
        self.post(job)
        if self._due > -math.inf:
            self.wake()

    def due(self, when: float) -> None:
        """Have ``Session.tick()`` called at that time, or before. From any thread."""
        if when < self._due:
            self.wake()

    # The client's own thread.

    def _run(self, me: object) -> None:
        while (self._driving and self._driver is me) or self.step(self._goes_on, me):
            try:
                self._turn()
            except Exception:
                log.exception("the connection is dropped after an error", extra=log_fields())
                time.sleep(AFTER_ERROR)

    def _goes_on(self, me: object) -> bool:
        if self._driver is not me:
            return False
        goes_on = self._driving or bool(self._jobs) or self._sock is not None
        if not goes_on:
            self._end_driver()
        return goes_on

    def _turn(self) -> None:
        self._due = -math.inf
        while self._jobs:
            job = self._jobs.popleft()
            job()
            del job  # it may refer to what nobody else needs
        due = self.step(self._tick)
        if self._jobs or not (self._driving or self._sock is not None):
            return
        for number, what in self._poll(due - self.now()):
            if number == self._pipe[0].fileno():
                _drain(self._pipe[0])
            elif self.reader is None or what & ~select.POLLIN:
                self.step(self._pump)

    def _poll(self, seconds: float) -> list[tuple[int, int]]:
        """Wait until there is something to see to, for at most so long."""
        found: list[tuple[int, int]] = self._poller.poll(
            max(0.0, seconds) if seconds < _FOR_EVER else None
        )
        return found

    def _tick(self) -> float:
        due = self.session.tick()
        if self.reader is not None:
            if self.now() >= self._reads_until:
                self._listen(self.reader)
            due = min(due, self._reads_until)
        if self._stopping:
            self._end_if_closed()
        if self._stopping or self.session.in_use:
            due = min(due, self.now() + IDLE)
        self._due = due
        return due

    # The socket, in steps.

    def opened(self, sock: Sock, handshake: bytes) -> None:
        """Begin with a socket: kazoo shakes hands."""
        self.session.opened()
        self._sock, self.reader = sock, None
        self._poller.register(sock.fileno(), select.POLLIN)
        self.session.link.out.append(handshake)

    def pass_on(self, sock: Sock, frame: bytes) -> None:
        if sock is self._sock:
            if self.reader is not None and not isinstance(self.reader, Pending):
                self._listen(self.reader)
            self.session.link.pass_on(frame)

    def _flush(self) -> None:
        link, sock = self.session.link, self._sock
        data = b"".join(link.out)
        link.out.clear()
        if sock is None:
            return
        try:
            sent = sock.real.send(data)
        except _LATER as error:
            if not raised_by_the_call(error):
                raise
            sent = 0
        except OSError as error:
            if not raised_by_the_call(error):
                raise
            self.end_of(sock, error)
            return
        if sent < len(data):
            link.out.append(data[sent:])
            self._poll_for(select.POLLOUT | (0 if self.reader else select.POLLIN))
        elif sock.blocked:
            self._poll_for(0 if self.reader else select.POLLIN)
        sock.blocked = sent < len(data)

    def _poll_for(self, events: int) -> None:
        if self._sock is not None:
            self._poller.modify(self._sock.fileno(), events)

    def _pump(self, reader: Reader | None = None) -> None:
        """Take what has come; send what the server did not take before. ``reader``: for whom."""
        sock, link = self._sock, self.session.link
        if reader is not None and reader is not self.reader:
            return
        while sock is not None and sock is self._sock:
            try:
                chunk = sock.real.recv(_CHUNK)
            except _LATER as error:
                if not raised_by_the_call(error):
                    raise
                break
            except OSError as error:
                if not raised_by_the_call(error):
                    raise
                self.end_of(sock, error)
                break
            if not chunk:
                self.end_of(sock, True)
                break
            try:
                link.receive(self.session.codec, chunk)
            except Broken as broken:
                self.session.warn("%s: connection dropped", broken)
                self.end_of(sock, True)
                break
            if not sock.tls:  # one read empties it, or it is heard of again
                break
        if link.inbox or sock is not self._sock:
            self._bell.set()

    def end_of(self, sock: Sock, end: OSError | bool) -> None:
        """Note that nothing more comes; kazoo still gets what has arrived before.

        Repeatable after an interrupt: the socket is the present one until all is done.
        """
        sock.end = sock.end or end
        self._bell.set()
        if sock is self._sock:
            self.reader = None
            try:
                self._poller.unregister(sock.fileno())
            except (OSError, KeyError, ValueError) as error:
                if not raised_by_the_call(error):
                    raise
                sock.end = sock.end or True  # closed already
            sock.shut_down()
            self.session.cut()
            self.wake()
            self._sock = None

    def drop(self) -> None:
        """Break the present connection; kazoo then connects to the next server."""
        if self.inside():
            if self._sock is not None:
                self.end_of(self._sock, True)
        else:
            self.step(self.drop)

    # Others may read.

    def read_for(self, reader: Reader) -> None:
        """Let this one read what comes, unless a thread does that waits. In a step."""
        if READS and not isinstance(self.reader, Pending) and self.session.connected:
            assert self._sock is not None
            self.reader, self._reads_until = reader, self.now() + 2 * LONGEST
            self._poll_for(select.POLLOUT if self._sock.blocked else 0)

    def _listen(self, reader: Reader) -> None:
        """Let the client's own thread read again, if this one does. Repeatable."""
        if self.reader is reader:
            self._poll_for(
                select.POLLIN | (select.POLLOUT if self._sock and self._sock.blocked else 0)
            )
            self.reader = None

    def listen(self, reader: Reader) -> None:
        """Let the client's own thread read again, if this one does. From any thread."""
        if self.reader is reader:
            self.step(self._listen, reader)

    def lend(self, reader: Reader) -> Any:
        """Let a loop read; see ``ports.Shell``."""
        return self.step(self._lend, reader)

    def _lend(self, reader: Reader) -> Any:
        self.read_for(reader)
        if self.reader is not reader or self._sock is None:
            return None
        try:
            ear = select.epoll()
            ear.register(self._sock.fileno(), select.POLLIN)
        except OSError as error:  # no more can be open
            if not raised_by_the_call(error):
                raise
            self._listen(reader)
            return None
        return ear

    def hear(self, reader: Reader) -> bool:
        """Read, if it is for this one to do; return whether it still is."""
        self._reads_until = self.now() + 2 * LONGEST
        self.step(self._pump, reader)
        return self.reader is reader

    def wait(self, pending: Pending[Any], timeout: float | None) -> bool:
        """Wait for an outcome, first by reading; return whether there is one."""
        try:
            left = timeout
            if self.reader is pending:
                began = clock()
                self._read(pending, LONGEST if timeout is None else min(LONGEST, timeout))
                self.listen(pending)
                left = None if timeout is None else timeout - (clock() - began)
            if not pending.done and (left is None or left > 0):
                self._sleep(pending, left)
        except BaseException:
            self.post(partial(self.listen, pending))
            self.wake()
            raise
        return pending.done

    def _read(self, pending: Pending[Any], seconds: float) -> None:
        sock = self._sock
        if sock is None or (number := sock.fileno()) < 0:
            return
        until = clock() + seconds
        poll = select.poll()
        poll.register(number, select.POLLIN)
        while self.reader is pending and (left := until - clock()) > 0:
            if (sock.tls and sock.real.pending()) or poll.poll(math.ceil(1000 * left)):
                self.step(self._pump, pending)

    def _sleep(self, pending: Pending[Any], left: float | None) -> None:
        come = Event()
        pending.wake_when_done(come.set)
        limit = self.limit(left, come.set)
        end = math.inf if limit is None else clock() + limit
        # In turns: an interrupt may have struck the thread that was about to set the event.
        while not (pending.done or come.is_set()) and (rest := end - clock()) > 0:
            come.wait(min(rest, TURN))

    # Its beginning and its end.

    def _drive(self) -> bool:
        """Have the client's own thread go on; return whether it must be started."""
        self._stopping, self._driving, self.session.final = False, True, None
        if self._driver is not None:
            return False
        self._driver, self._executor = object(), self.new_executor()
        self._poller = select.epoll() if READS else select.poll()
        self._pipe = ear, mouth = _pair()
        self._ring = partial(mouth.send, b"\0")
        self._poller.register(ear.fileno(), select.POLLIN)
        return True

    def _end_driver(self) -> None:
        self._driver, self._ring = None, nothing
        self._executor.end()
        for each in self._pipe:
            each.close()
        self._pipe = ()
        if READS:
            self._poller.close()


def _pair() -> tuple[socket.socket, socket.socket]:
    """Return the reading and the writing end of what wakes a thread. Neither blocks."""
    pair = socket.socketpair()
    for each in pair:
        each.setblocking(False)
    return pair


def _drain(end: socket.socket) -> None:
    try:
        end.recv(_CHUNK)
    except BlockingIOError:
        return
