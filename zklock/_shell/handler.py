"""What kazoo rides on: its public handler interface (``kazoo.interfaces.IHandler``).

kazoo rides on our connection, which a ``Driver`` drives: what it takes for its socket is a
``Sock``, what it takes for a pair of sockets that wakes it counts wake-ups, and ``select`` waits
until there is something for it.
"""

from __future__ import annotations

import atexit
import errno
import math
import os
import select
import ssl
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler
from kazoo.protocol.states import KeeperState

from zklock._core.session import Session
from zklock._core.timers import Job
from zklock._ground import threads
from zklock._ground.addresses import server_name
from zklock._ground.clock import clock
from zklock._ground.interrupts import may_be_interrupted
from zklock._ground.loss import LossReason
from zklock._ground.mutexes import ReentrantMutex, owned_by_me
from zklock._ground.process import this_process
from zklock._shell.callback_executor import Calls
from zklock._shell.client_state import ClientState, nothing
from zklock._shell.driver import Driver
from zklock._shell.refusals import CLOSING, MUTE_TLS, NO_KDC, no_ticket
from zklock._shell.socket import SILENT, Sock
from zklock._shell.timed_thread import TimedThread
from zklock._shell.tls import SilentTls, make_context, secured
from zklock._shell.wake import Wakes
from zklock.errors import ClientClosed, ClientUnusable, ForkedClient, ZkLockError

_UNHEARD = "does not answer"
_handlers: weakref.WeakSet[Handler] = weakref.WeakSet()


def another_client() -> ClientUnusable:
    """Return the error for a handler that is given to a second client."""
    return ClientUnusable("this handler serves another client: make a zklock.Handler for each")


def forked_error() -> ForkedClient:
    """Return the error to raise in a child process: the connection belongs to its parent."""
    return ForkedClient("this client belongs to the parent process: make a new one in the child")


def closed_error(client: Any) -> ClientClosed | None:
    """Return the error to raise if the client was not started, was stopped, or was refused."""
    state = client.client_state
    if state is KeeperState.AUTH_FAILED:
        return ClientClosed("ZooKeeper refused the client's credentials: make a new client")
    return not_running() if state is KeeperState.CLOSED else None


def not_running() -> ClientClosed:
    """Return the error for a client that has no session, and gets none by itself."""
    return ClientClosed("the client is not started, or was stopped: call its start() first")


class Handler(Driver, ClientState, SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threading handler, with zklock's connection. One handler serves one client.

    ``served`` is the client. ``obtain_ticket`` gets the Kerberos ticket for a host, if the client
    uses Kerberos. See ``ClientState`` for other attributes.
    """

    on_real_clock = True
    thread: Callable[..., Any] = TimedThread
    closed_error = staticmethod(not_running)
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
        self._wakes = Wakes(self._bell.set)
        self._wakes.close()  # no client has them
        self._process = this_process()
        self.session = Session(self)
        self.session.final = not_running()
        _handlers.add(self)

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

    def _end_if_closed(self) -> None:
        client = self.client
        error = not_running() if client is None else closed_error(client)
        if error is not None:
            self._end_session(error)
            self._driving = False

    def limit(self, seconds: float | None, wake: Callable[[], object]) -> float | None:
        """Let the system limit a wait; see ``ports.Shell.limit``."""
        return seconds

    # Threads.

    def start(self) -> None:
        """Start the threads; all or none, also if an interrupt strikes."""
        if self.forked:
            self._process = this_process()
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
