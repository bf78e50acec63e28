"""The kazoo handler that lets zklock see the wire.

``Handler`` implements kazoo's public handler interface (``kazoo.interfaces.IHandler``). To kazoo's
threading handler it adds:

- What it gives to kazoo for a socket is a ``GatewaySocket``: zklock's requests go past kazoo (see
  ``gateway``), and what is learnt of servers and sessions is kept (see ``client_state``). Sockets
  that kazoo opens for other things (four-letter words) are left alone.
- Its wake-ups are no sockets, and never block the sender.
- What a signal handler raises while a request is handed over reaches the caller. kazoo takes it for
  the end of the connection.
"""

from __future__ import annotations

import contextlib
import errno
import math
import select
import ssl
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler

from zklock._ground import threads
from zklock._ground.addresses import server_name
from zklock._ground.clock import clock
from zklock._ground.interrupts import may_be_interrupted
from zklock._ground.process import this_process
from zklock._kazoo.client_state import ClientState
from zklock._kazoo.gateway import GatewaySocket
from zklock._kazoo.refusals import CLOSING, MUTE_TLS, NO_KDC, no_ticket
from zklock._kazoo.socket import _SILENT
from zklock._kazoo.tls import SilentTls, make_context, secured
from zklock._kazoo.wake import Wakes
from zklock._kazoo.wire_request import Awaited, WireRequest
from zklock._recipes.effects import Batch
from zklock.errors import ClientUnusable

_UNHEARD = "does not answer"


def another_client() -> ClientUnusable:
    """Return the error for a handler that is given to a second client."""
    return ClientUnusable("this handler serves another client: make a zklock.Handler for each")


class Handler(ClientState, SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threading handler, with a view of the wire. One handler serves one client.

    ``served`` is the client. ``open_results`` are kazoo's that are not there yet. ``obtain_ticket``
    gets the Kerberos ticket for a host, if the client uses Kerberos. See ``ClientState`` for other
    attributes.
    """

    _connection: type[GatewaySocket] = GatewaySocket
    _socket: GatewaySocket | None
    completion_queue: Any
    callback_queue: Any

    def __init__(self) -> None:
        super().__init__()
        self.served: weakref.ref[Any] | None = None
        if not hasattr(select, "poll"):
            raise ClientUnusable(
                "zklock needs select.poll() and system threads: eventlet's monkey_patch() "
                "removes them (run zklock in an unpatched process), and Windows has no "
                "select.poll()"
            )
        self.open_results: set[weakref.ref[Any]] = set()
        self.obtain_ticket: Callable[[str], object] | None = None

    def start(self) -> None:
        """Start the threads; all or none, also if an interrupt strikes."""
        self._process = this_process()
        try:
            super().start()
        except BaseException:
            try:
                self._end_workers()
            except BaseException:  # a second interrupt
                self._end_workers()
                raise
            raise

    def _end_workers(self) -> None:
        """End the threads that kazoo has started: it stops those of a whole start alone."""
        for work in (self.completion_queue, self.callback_queue):
            work.put(_end)
        self.completion_queue, self.callback_queue = self.queue_impl(), self.queue_impl()

    def spawn(self, func: Any, *args: Any, **kwargs: Any) -> threading.Thread:
        """Call on a new daemon thread, and return that."""
        call = partial(func, *args, **kwargs)
        thread = threading.Thread(target=_run, args=(call,), daemon=True)
        threads.begin(thread)
        return thread

    def create_connection(
        self,
        address: tuple[Any, ...],
        hostname: Any = None,
        timeout: float | None = None,
        use_ssl: bool = False,
        **files: Any,
    ) -> GatewaySocket:
        """Connect to a server; watch the connection if a session uses it.

        Raises ``ConnectionRefusedError`` at once if others are to be tried first.
        """
        host = str(hostname or address[0])
        server = server_name(host, address[1])
        # kazoo has one for the session at a time: what it makes meanwhile is for something else.
        begins = timeout is not None and (self._socket is None or self._socket.closed)
        answer_within = math.inf
        if timeout is not None and begins:
            self._count(server, host, address)
            self._wanted = timeout
            if not self._sweep.takes((server, address[0]), self.servers):
                raise ConnectionRefusedError(errno.EAGAIN, "it has just failed: others are tried")
            timeout, answer_within = self._within(timeout), self.turn()
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
            self.note(server, _SILENT)
        return self._connection(sock, self, server, another)

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
                raise TimeoutError("the time to connect is over")
        return seconds

    def interrupted(self) -> bool:
        """Whether this is a signal handler that has interrupted its own thread in here."""
        connection = self._socket
        if connection is None:
            return False
        tells = connection.teller == threading.get_ident()
        return tells or connection.writes() or connection.receives()

    def write(self, requests: Sequence[WireRequest], landing: Awaited | None = None) -> None:
        """Send our requests, or drop them; those that the user has queued in kazoo go before.

        ``landing``: what the caller reads the replies to: it may ``hear`` them itself.
        """
        connection = self._socket
        if connection is None or self.forked:
            for each in requests:
                each.land(None, b"")
        else:
            connection.write(requests, landing)

    def repeat_wake_up(self) -> None:
        """Wake kazoo for a request that it has queued, perhaps without a wake-up."""
        self._wakes.send(b"\0")

    def hear(self, batch: Batch, seconds: float | None) -> bool:
        """Wait for replies to a batch, at most so long; ``False`` at once if the reader hears."""
        return self._socket is not None and self._socket.hear(batch, seconds)

    def async_result(self) -> Any:
        """Return an asynchronous result, which is noted until it is there."""
        return _Result(self)

    def queued(self) -> int:
        """Return how many requests kazoo may have in its queue, at most."""
        return len(self.open_results) + len(self._wakes.ready)

    def create_socket_pair(self) -> tuple[Wakes, Wakes]:
        """Return the (reader, writer) with which kazoo wakes its connection thread."""
        if not self._wakes.closed:
            raise another_client()
        self._wakes = Wakes(self.wake_kazoo)
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
        connection, wakes = rlist[0], rlist[1:]
        if wakes:
            connection.in_main_loop()
        else:
            timeout = connection.patience(timeout)
        until = math.inf if timeout is None else clock() + timeout
        connection.flush()
        while True:
            self._bell.clear()
            ready = [connection] if connection.pending() else []
            if wakes and (wakes[0].ready or connection.wants_a_look()):
                ready += wakes
                connection.looks()
            left = until - clock()
            if ready or left <= 0:
                break
            self._bell.wait(left)
        if not (wakes or ready):
            connection.waited()
        return ready, [], []


class _End(BaseException):
    """Ends a thread of kazoo's that waits for work."""


def _end() -> None:
    raise _End


def _run(call: Callable[[], object]) -> None:
    with contextlib.suppress(_End):
        call()


def _mistaken() -> BaseException | None:
    """Return what a signal handler raised, if kazoo is about to take it for a closed connection.

    ``KazooClient._call()`` does so with all that is raised while it wakes the connection thread.
    """
    error = sys.exception()
    if error is None or error.__traceback__ is None or not may_be_interrupted():
        return None
    caught = error.__traceback__.tb_frame
    if (caught.f_globals.get("__name__"), caught.f_code.co_name) != ("kazoo.client", "_call"):
        return None
    if isinstance(error, AttributeError) and error.obj is None:  # kazoo has no socket any more
        return None
    return error


class _Result(AsyncResult):  # type: ignore[misc]
    """kazoo's asynchronous result; the handler notes it until it is there.

    It lets pass what kazoo mistakes for its own error.
    """

    def __init__(self, handler: Handler) -> None:
        super().__init__(handler)
        self._open = handler.open_results
        self._noted = weakref.ref(self, self._open.discard)
        self._open.add(self._noted)

    def set(self, value: Any = None) -> None:
        self._open.discard(self._noted)
        super().set(value)

    def set_exception(self, exception: BaseException) -> None:
        mistaken = _mistaken()
        if mistaken is not None:
            self._handler.repeat_wake_up()
            raise mistaken
        self._open.discard(self._noted)
        super().set_exception(exception)
