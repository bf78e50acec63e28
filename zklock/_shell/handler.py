"""Drives a session on a kazoo client: the mutex, the client's own thread, the socket, kazoo itself.

``Handler`` implements kazoo's public handler interface (``kazoo.interfaces.IHandler``). kazoo rides
on our connection: what it takes for its socket is a ``Sock``, what it takes for a pair of sockets
that wakes it counts wake-ups, and ``select`` waits until there is something for it.

``step()`` is the only way in. Three rules do the work of most mechanisms:

1. *An interrupt is a lost connection.* ``_torn`` is set for the length of a step. Whoever comes
   next and finds it set has met a step that an exception has struck. It drops the connection, and
   every attempt looks again, as after any cut. So no step has to survive an exception.
2. *Who is struck says so by one call in C*: it posts a job. The client's own thread, which no
   interrupt strikes, ends what was struck, and takes the reading back from who had it.
3. *Replies come in order, and a cut drops all that are due.*

A caller that waits may read what comes, if nobody else does: then no thread has to wake another.
It does so for a moment (``LONGEST``) and leaves the rest to the client's own thread.
"""

from __future__ import annotations

import atexit
import errno
import logging
import math
import os
import select
import socket
import ssl
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler
from kazoo.protocol.states import KeeperState

from zklock._core.attempt import Pending
from zklock._core.link import Broken
from zklock._core.ports import LONGEST, Reader
from zklock._core.session import Session
from zklock._core.timers import Job
from zklock._ground import threads
from zklock._ground.addresses import server_name
from zklock._ground.clock import clock
from zklock._ground.events import TURN, Event
from zklock._ground.interrupts import may_be_interrupted, raised_by_the_call
from zklock._ground.loss import LossReason
from zklock._ground.mutexes import ReentrantMutex, owned_by_me
from zklock._ground.process import this_process
from zklock._ground.records import log_fields
from zklock._shell.callback_executor import CallbackExecutor, Calls
from zklock._shell.client_state import ClientState, nothing
from zklock._shell.refusals import CLOSING, MUTE_TLS, NO_KDC, no_ticket
from zklock._shell.socket import SILENT, Sock
from zklock._shell.timed_thread import TimedThread
from zklock._shell.tls import SilentTls, make_context, secured
from zklock._shell.wake import Wakes
from zklock.errors import ClientClosed, ClientUnusable, ForkedClient, ZkLockError

log = logging.getLogger("zklock")

IDLE = 0.5
"""Seconds. The longest sleep while somebody may wait: a job may have been posted without a ring."""

AFTER_ERROR = 0.05
"""Seconds. The pause of the client's own thread after an error: it may come again."""

_CHUNK = 65536
"""Bytes of one read. For 128 KiB and more, glibc's malloc maps fresh pages, whatever has come."""
_FOR_EVER = 1e6  # seconds
_LATER = BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError
_UNHEARD = "does not answer"
READS = hasattr(select, "epoll")
"""Whether callers can read: a thread that polls must hear of it that it is to poll no more."""

_handlers: weakref.WeakSet[Handler] = weakref.WeakSet()


def another_client() -> ClientUnusable:
    """Return the error for a handler that is given to a second client."""
    return ClientUnusable("this handler serves another client: make a zklock.Handler for each")


def forked_error() -> ForkedClient:
    """Return the error to raise in a child process: the connection belongs to its parent."""
    return ForkedClient("this client belongs to the parent process: make a new one in the child")


class Handler(ClientState, SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threading handler, with zklock's connection. One handler serves one client.

    ``served`` is the client. ``obtain_ticket`` gets the Kerberos ticket for a host, if the client
    uses Kerberos. See ``ClientState`` for other attributes.
    """

    now: Callable[[], float] = staticmethod(clock)
    on_real_clock = True
    completion_queue: Any
    callback_queue: Any

    def __init__(self) -> None:
        if not hasattr(select, "poll"):
            raise ClientUnusable(
                "zklock needs select.poll() and system threads: eventlet's monkey_patch() "
                "removes them (run zklock in an unpatched process), and Windows has no "
                "select.poll()"
            )
        super().__init__()
        self.served: weakref.ref[Any] | None = None
        self.obtain_ticket: Callable[[str], object] | None = None
        self._open_results: set[weakref.ref[Any]] = set()  # of kazoo's, which are not there yet
        self._jobs: deque[Job] = deque()
        self.post: Callable[[Job], object] = self._jobs.append
        self._due = math.inf  # when the client's own thread wakes up
        self._bell = Event()
        self._wakes = Wakes(self._bell.set)
        self._wakes.close()  # no client has them
        self._driving = False  # the client's own thread is to go on
        self._driver: object = None  # what that thread was started for; ``None``: it ends
        self._stopping = False
        self._executor = self.new_executor()
        self._make_mutex()
        self.session = Session(self)
        self.session.final = self.closed_error()
        _handlers.add(self)

    def _make_mutex(self) -> None:
        self._process = this_process()
        self._mutex = ReentrantMutex()
        self.inside = owned_by_me(self._mutex)
        self._torn = False
        self._sock: Sock | None = None
        self.reader: Reader | None = None  # who reads, instead of the client's own thread
        self._reads_until = 0.0
        self._poller: Any = None
        self._pipe: tuple[socket.socket, ...] = ()  # of what wakes the client's own thread
        self._ring: Callable[[], object] = nothing

    def _after_fork(self) -> None:
        """Leave the connection alone in a child, where any mutex may be taken for ever."""
        self._executor = self.new_executor()
        self._mutex = ReentrantMutex()
        self.inside = owned_by_me(self._mutex)
        self._torn, self._sock, self.reader, self._ring = False, None, None, nothing
        self.session.after_fork()

    @property
    def forked(self) -> bool:
        """Whether its threads run in the parent of this process."""
        return self._process != this_process()

    @property
    def client(self) -> Any:
        return self.served() if self.served is not None else None

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
                self._jobs or (self._due == math.inf and self.session.in_use)
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

    def _end_if_closed(self) -> None:
        client = self.client
        error = self.closed_error() if client is None else closed_error(client)
        if error is not None:
            self._end_session(error)
            self._driving = False

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

    # A thread that waits may read.

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

    def listen(self, reader: Reader) -> None:
        """Let the client's own thread read again, if this one does. From any thread."""
        if self.reader is reader:
            self.step(self._listen, reader)

    def lend(self, reader: Reader) -> int | None:
        """Let a loop read; see ``ports.Shell``."""
        return self.step(self._lend, reader)  # type: ignore[no-any-return]

    def _lend(self, reader: Reader) -> int | None:
        if self._sock is None:
            return None
        try:
            ear = os.dup(self._sock.fileno())
        except OSError as error:  # no more can be open
            if not raised_by_the_call(error):
                raise
            return None
        self.read_for(reader)
        if self.reader is reader:
            return ear
        os.close(ear)
        return None

    def hear(self, reader: Reader) -> bool:
        """Read, if it is for this one to do; return whether it still is."""
        self._reads_until = self.now() + 2 * LONGEST
        self.step(self._pump, reader)
        return self.reader is reader

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

    def limit(self, seconds: float | None, wake: Callable[[], object]) -> float | None:
        """Let the system limit a wait; see ``ports.Shell.limit``."""
        return seconds

    # Threads.

    def start(self) -> None:
        """Start the threads; all or none, also if an interrupt strikes."""
        if self.forked:
            self._make_mutex()
        try:
            super().start()
            if self.step(self._drive):
                self._executor.start()
                threads.start(self._run, "zklock", self._driver)
        except BaseException:
            try:
                self._undo_start()
            except BaseException:  # a second interrupt
                self._undo_start()
                raise
            raise

    def _undo_start(self) -> None:
        self.step(self._give_up_driving)
        self._end_workers()

    def _give_up_driving(self) -> None:
        self._driving = False
        if self._driver is not None:
            self._end_driver()

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

    def stop(self) -> None:
        """Stop kazoo's threads. Ours ends once the client is closed: kazoo closes it after this."""
        self._stopping = True
        self.wake()
        super().stop()

    def _end_workers(self) -> None:
        """End the threads that kazoo has started: it stops those of a whole start alone."""
        for work in (self.completion_queue, self.callback_queue):
            work.put(_end)
        self.completion_queue, self.callback_queue = self.queue_impl(), self.queue_impl()

    def spawn(self, func: Any, *args: Any, **kwargs: Any) -> threading.Thread:
        """Call on a new daemon thread, named after the function; return the thread."""
        thread = threading.Thread(
            target=_run,
            args=(partial(func, *args, **kwargs),),
            name=f"kazoo-{getattr(func, '__name__', 'call')}",
            daemon=True,
        )
        threads.begin(thread)
        return thread

    def thread(self, name: str, turn: Callable[[], float | None]) -> Any:
        """Return a thread for timed work."""
        return TimedThread(name, turn)

    def new_executor(self) -> Any:
        return CallbackExecutor()

    def notify(self, calls: Calls) -> None:
        """Run users' callbacks, in order, on threads that exist for them. Takes no lock."""
        self._executor.run(calls)
        if self.forked:
            self._executor.end()  # a child forked on another thread ends with its threads

    def check_process(self) -> None:
        """Raise ``ForkedClient`` in a forked child, ``ZkLockError`` while Python shuts down."""
        if self.forked:
            raise forked_error()
        if sys.is_finalizing():
            raise ZkLockError(
                "the interpreter is shutting down, and zklock's threads have ended: do this "
                "earlier, not in a finalizer"
            )

    def closed_error(self) -> ClientClosed:
        """Return the error to raise when the client is closed."""
        return not_running()

    # kazoo's handler.

    def create_connection(
        self,
        address: tuple[Any, ...],
        hostname: Any = None,
        timeout: float | None = None,
        use_ssl: bool = False,
        **files: Any,
    ) -> Any:
        """Connect to a server; watch the connection if a session uses it.

        Raises ``ConnectionRefusedError`` at once if others are to be tried first.
        """
        if timeout is None:  # for a four-letter word
            return super().create_connection(
                address=address, hostname=hostname, use_ssl=use_ssl, **files
            )
        host = str(hostname or address[0])
        server = server_name(host, address[1])
        begins = self.begins
        answer_within = math.inf
        if begins:
            self._count(server, host, address)
            self._wanted = timeout
            if not self._sweep.takes((server, address[0]), self.servers):
                raise ConnectionRefusedError(errno.EAGAIN, "it has just failed: others are tried")
            timeout, answer_within = self._within(timeout), self.per_server_timeout()
            if self.obtain_ticket is not None:
                self._obtain_ticket(self.obtain_ticket, server, host)
        another = partial(
            self._open, address, server, hostname, timeout=timeout, use_ssl=use_ssl, **files
        )
        if self.met(server) is None:  # else what the last try met counts until this one is over
            self.note(server, _UNHEARD)
        try:
            sock = another(answer_within=answer_within)
        except (TimeoutError, BlockingIOError) as error:
            self.note(server, MUTE_TLS if isinstance(error, SilentTls) else _UNHEARD)
            if begins:
                self.was_silent()
            raise
        except (ssl.SSLError, BrokenPipeError, ConnectionResetError) as error:  # it has accepted
            self.turned_away(server, another, error)
            raise
        except OSError as error:
            if error.strerror:
                self.note(server, error.strerror.lower())
            raise
        if self.met(server) not in CLOSING:  # else it may be about to close this one, too
            self.note(server, SILENT)
        return Sock(sock, self, server, another) if begins else sock

    def _open(
        self,
        address: tuple[Any, ...],
        server: str,
        hostname: Any,
        *,
        timeout: float | None,
        use_ssl: bool,
        answer_within: float = math.inf,
        **files: Any,
    ) -> Any:
        """Connect within ``timeout`` seconds, with TLS, which is waited for no longer than said."""
        context = make_context(**files) if use_ssl else None
        began = clock()
        sock = super().create_connection(address=address, hostname=hostname, timeout=timeout)
        if context is None:
            return sock
        if self.met(server) == _UNHEARD:
            self.note(server, MUTE_TLS)
        if timeout is not None:
            timeout = min(answer_within, began + timeout - clock())
        return secured(sock, context, hostname, timeout)

    def _obtain_ticket(self, obtain: Callable[[str], object], server: str, host: str) -> None:
        """Get the Kerberos ticket for a server; without one, it is not asked, and tried again."""
        if self.met(server) is None:
            self.note(server, NO_KDC)
        try:
            obtain(host)
        except Exception as error:
            missing = no_ticket(error)
            self.note(server, missing)
            raise ConnectionRefusedError(errno.EACCES, str(missing)) from error
        if self.met(server) is NO_KDC:
            self.note(server, _UNHEARD)

    def _within(self, wanted: float) -> float:
        """Return how long a server may take to accept a connection, in seconds.

        ``wanted`` is the session timeout that kazoo asks for.
        """
        least = min(wanted, self.session_timeout or wanted)
        seconds = self._sweep.to_accept(least, self.servers)
        if self._start_by is not None:
            seconds = min(seconds, self._start_by - clock())
            if seconds <= 0:
                self._too_late()
                raise TimeoutError("the time to connect is over")
        return seconds

    def create_socket_pair(self) -> tuple[Wakes, Wakes]:
        """Return the (reader, writer) with which kazoo wakes its connection thread."""
        if not self._wakes.closed:
            raise another_client()
        self._wakes = Wakes(self._bell.set)
        return self._wakes, self._wakes

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
        sock, wakes = rlist[0], rlist[1:]
        if not wakes:
            timeout = sock.patience(timeout)
        elif sock.may_serve:
            sock.may_serve = False
            self.step(self._serve, sock)
        until = math.inf if timeout is None else clock() + timeout
        while True:
            self._bell.clear()
            ready = [sock] if sock.pending() else []
            if wakes and wakes[0].ready:
                ready += wakes
            left = until - clock()
            if ready or left <= 0:
                break
            self._bell.wait(left)
        if not (wakes or ready):
            sock.waited()
        return ready, [], []

    def _serve(self, sock: Sock) -> None:
        if sock is self._sock:
            self.session.serve()

    def async_result(self) -> Any:
        """Return an asynchronous result, which is noted until it is there."""
        return _Result(self, self._open_results)

    def is_behind(self) -> bool:
        """Whether the user may have queued requests in kazoo that are not sent yet."""
        return bool(self._open_results)

    def when_sent(self, call: Job) -> None:
        """Call once all that the user has queued in kazoo so far is answered."""
        client = self.client
        if client is None:
            self.later(call)
        else:
            client.exists_async("/").rawlink(lambda _: self.later(call))

    # What the session is told by the wire, in steps.

    def shaken(self, milliseconds: int, session_id: int, *, read_only: bool) -> None:
        """Take the answer to a handshake."""
        sock = self._sock
        if sock is None:
            return
        resumed = sock.resumes
        sock.answered(serves=milliseconds > 0 and not read_only)
        if milliseconds <= 0:
            self.session.end(LossReason.SESSION_EXPIRED)
            return
        self.connected_in(milliseconds / 1000, resumed)
        if not read_only:
            self.session.connected_as(self.session_timeout or milliseconds / 1000, session_id)

    def pinged_back(self) -> None:
        """Take the answer to a ping of kazoo's."""
        if self._sock is not None and self._sock.pinged is not None:
            self.session.touched(self._sock.pinged)
            self._sock.pinged = None

    def went_back(self, zxid: int) -> None:
        """Give the session up: the server is at an older transaction than was seen."""
        if self.cancel(zxid):
            self.session.end(LossReason.SESSION_EXPIRED)

    def over(self, error: ClientClosed) -> None:
        """Note that the client was stopped, or refused for good."""
        self._end_session(error)
        self.wake()

    def _end_session(self, error: ClientClosed) -> None:
        if self.session.final is None:
            client = self.client
            refused = client is not None and client.client_state is KeeperState.AUTH_FAILED
            end = partial(self.session.end, refused=refused)
            self.step(end, LossReason.CLIENT_CLOSED, error)


def closed_error(client: Any) -> ClientClosed | None:
    """Return the error to raise if the client was not started, was stopped, or was refused."""
    state = client.client_state
    if state is KeeperState.AUTH_FAILED:
        return ClientClosed("ZooKeeper refused the client's credentials: make a new client")
    return not_running() if state is KeeperState.CLOSED else None


def not_running() -> ClientClosed:
    """Return the error for a client that has no session, and gets none by itself."""
    return ClientClosed("the client is not started, or was stopped: call its start() first")


class _Result(AsyncResult):  # type: ignore[misc]
    """kazoo's asynchronous result; it is noted until it is there."""

    def __init__(self, handler: Handler, noted: set[weakref.ref[Any]]) -> None:
        super().__init__(handler)
        self._noted = weakref.ref(self, noted.discard)
        self._among = noted
        noted.add(self._noted)

    def set(self, value: Any = None) -> None:
        self._among.discard(self._noted)
        super().set(value)

    def set_exception(self, exception: BaseException) -> None:
        """Set the error; raise what a signal handler raised, if the caller has caught that.

        kazoo takes whatever strikes as it wakes its connection thread for a closed connection. So
        it swallows even ``KeyboardInterrupt``.
        """
        self._among.discard(self._noted)
        super().set_exception(exception)
        caught = sys.exc_info()[1]
        if caught is None or caught is exception or not may_be_interrupted():
            return
        trace = caught.__traceback__
        by_the_caller = trace is not None and trace.tb_frame is sys._getframe(1)
        if by_the_caller and not isinstance(caught, AttributeError):  # it has no socket any more
            raise caught


class _End(BaseException):
    """Ends a thread of kazoo's that waits for work."""


def _end() -> None:
    raise _End


def _run(call: Callable[[], object]) -> None:
    try:
        call()
    except _End:
        return


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


def _warn_of_held() -> None:
    """Say which locks are still held as the interpreter ends."""
    for handler in list(_handlers):
        held = [] if handler.forked else handler.session.held()
        for grant in held:
            warnings.warn(
                f"{grant.lock_path}: still held, token {grant.token}, as the interpreter ends: "
                "release it, or stop its client, before",
                ResourceWarning,
                stacklevel=1,
            )


atexit.register(_warn_of_held)


def _after_fork() -> None:
    for handler in list(_handlers):
        handler._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
