"""The kazoo handler that lets zklock see the wire.

``Handler`` implements kazoo's public handler interface (``kazoo.interfaces.IHandler``). To kazoo's
threading handler it adds:

- What it gives to kazoo for a socket is a ``GatewaySocket``: zklock's requests go past kazoo (see
  ``gateway``). It reports the handshake of each connection, the negotiated session timeout (in the
  first frame of every connection), and the client's pings. Sockets that kazoo opens for other
  things (four-letter words) are left alone.
- If a server accepts a connection and says nothing, it is given up after a share of the lease. Then
  the next server is tried. kazoo alone waits for a whole session timeout.
- ``drop()`` breaks the connection, so that kazoo tries the next server.
- Completions and watches that are marked for it run in place, on the connection thread.
- Its wake-ups are no sockets, and never block the sender.
- A server whose data is older than what the client has seen is noticed: see ``Handler.goes_back``
  and ``Handler.not_resumed``.
- Request numbers that are not used twice in a session. kazoo starts from 1 on every connection. A
  request of an earlier connection may be committed late. The server then confuses it with the
  waiting request of the same number, and answers that one with the result of the other.
- A reply out of order ends the connection. A server that finds that the session has moved sends
  such replies before it closes; kazoo's connection thread would end because of them.
- What a signal handler raises while a request is handed over reaches the caller. kazoo takes it for
  the end of the connection.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import socket
import ssl
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import AsyncResult, KazooTimeoutError, SequentialThreadingHandler

from zklock._ground import threads
from zklock._ground.addresses import server_name
from zklock._ground.clock import clock
from zklock._ground.events import Event
from zklock._ground.mutexes import Mutex, ReentrantMutex, owned_by_me
from zklock._ground.records import log_fields
from zklock._ground.strikes import may_strike
from zklock._kazoo.gateway import GatewaySocket
from zklock._kazoo.handshake import unanswered
from zklock._kazoo.refusals import CLOSED, CLOSING, NO_SASL, Refusal, of_tls, refusal
from zklock._kazoo.socket import _SILENT
from zklock._kazoo.wake import Wakes, WakeWriter
from zklock._kazoo.wire_request import Awaited, WireRequest
from zklock._recipes.effects import Batch
from zklock.errors import ClientUnusable

log = logging.getLogger("zklock")
T = TypeVar("T")
_UNHEARD = "does not answer"
_ASKING = 1.0
"""Seconds. The most that a server has to answer why it turns the client away."""
_MAX_XID = 2**31 - 1
_EQUAL = 0.001
"""kazoo asks in whole milliseconds."""
TICKS = 2.15
"""How many ticks the session timeout needs for the arithmetic of the lease (see ``lease``)."""
_DEAD = 1.5
"""After how many session timeouts without a server a leader has ended the session.

The leader needs the timeout and at most one tick more. A timeout has two ticks or more, by default.
"""


class WireObserver:
    """Hears what happens on the wire; the methods run on the connection thread."""

    def at_stake(self) -> bool:
        """Return whether anything is held on the session."""
        return False

    def on_ask(self, sent: float) -> None:
        """Note a handshake that is about to ask a server to resume the session, at ``sent``."""

    def on_connect(self, sent: float, timeout: float) -> None:
        """Note a connection: its handshake was sent at ``sent``, and answered with a timeout.

        ``timeout`` is the shortest one negotiated in the life of the session, in seconds.
        """

    def on_ping(self, sent: float, answered: float) -> None:
        """Note a ping that was answered."""

    def on_close(self) -> None:
        """Note that the client is about to end its session."""

    def on_give_up(self) -> None:
        """Note that the client gives up its session, which ZooKeeper may know no more."""


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threading handler, with a view of the wire. One handler serves one client.

    ``session_timeout`` is the shortest timeout negotiated in this session's life, in seconds:
    ZooKeeper negotiates it again at every connection. ``None`` before the first connection.
    ``servers`` is the number of servers to try: a name may have several addresses. ``served`` is
    the client.
    """

    _connection: type[GatewaySocket] = GatewaySocket
    _wakes: Wakes | None = None
    completion_queue: Any
    callback_queue: Any

    def __init__(self) -> None:
        super().__init__()
        self.session_timeout: float | None = None
        self._addresses: dict[str, set[str]] = {}  # by server, as they were looked up last
        self._looked_up: set[str] = set()  # since the last connection
        self.served: weakref.ref[Any] | None = None
        self._start_by: float | None = None
        self._met: dict[str, str | Refusal] = {}  # by server: how far it came while starting
        self._wanted = 0.0  # the session timeout that kazoo asks for
        self._granted: float | None = None  # the newest one that a session began with
        self._silent = 0  # silent servers since the last answer
        self._asked = clock()
        self._pings: list[tuple[float, float]] = []
        self._observer = WireObserver()
        self._observing = Mutex()
        self._socket: GatewaySocket | None = None
        self._xid = 0
        self._seen = 0  # the highest zxid of this session's replies
        self._back_at: float | None = None  # the session is given up; until another is asked for
        self._not_resumed_at: float | None = None  # since the last answer
        self._refused = False  # by a server that serves, when the session must be dead
        self._inline = threading.local()
        if not hasattr(select, "poll"):
            raise ClientUnusable(
                "zklock needs select.poll() and system threads: eventlet's monkey_patch() "
                "removes them (run zklock in an unpatched process), and Windows has no "
                "select.poll()"
            )
        self._process = os.getpid()
        self.mutex = ReentrantMutex()
        self._has_mutex: Callable[[], bool] = owned_by_me(self.mutex)
        self._bell = Event()
        self._open: set[weakref.ref[Any]] = set()  # results of kazoo's that may not be there yet

    @property
    def server(self) -> str:
        """The server of the newest connection, as ``host:port``; empty before the first."""
        return "" if self._socket is None else self._socket.server

    @property
    def forked(self) -> bool:
        """Whether its threads run in the parent of this process."""
        return self._process != os.getpid()

    def start(self) -> None:
        """Start the threads; all or none, also if an interrupt strikes."""
        self._process = os.getpid()
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

    @property
    def servers(self) -> int:
        """How many servers there are to try, by address; a name that was not looked up counts one.

        What is held must outlive the tries of all but the last: each gets a share of the time.
        """
        return sum(len(each) or 1 for each in [*self._addresses.values()]) or 1

    def serve_hosts(self, hosts: Sequence[tuple[str, int]]) -> None:
        """Note which servers are tried from now on."""
        known = self._addresses
        names = [server_name(host.strip(), port) for host, port in hosts]
        self._addresses = {name: known.get(name, set()) for name in names}
        self._looked_up.clear()

    def _count(self, server: str, host: str, address: tuple[Any, ...]) -> None:
        """Look up how many addresses this server has, if they may have changed."""
        if server in self._looked_up and address[0] in self._addresses.get(server, ()):
            return
        found = {address[0]}
        with contextlib.suppress(OSError):
            looked_up = socket.getaddrinfo(host, address[1], 0, 0, socket.IPPROTO_TCP)
            found |= {str(each[4][0]) for each in looked_up}
        self._addresses[server] = found
        self._looked_up.add(server)

    def observe(self, observer: WireObserver) -> None:
        """Report to ``observer`` from now on; first, report the present connection.

        `repeat_pings` reports its pings: a new session takes them when it knows its lease.
        """
        with self._observing:
            self._observer = observer
            if self.session_timeout is not None:
                observer.on_connect(self._asked, self.session_timeout)

    def repeat_pings(self) -> None:
        """Report the last pings of the present connection once more."""
        with self._observing:
            for ping in self._pings:
                self._observer.on_ping(*ping)

    def drop(self) -> None:
        """Break the present connection; kazoo then connects to the next server."""
        connection = self._socket
        if connection is not None:
            connection.shut_down()

    def starting(self, seconds: float) -> None:
        """Let no try last beyond ``seconds`` from now, until one server answers."""
        self._met = {}
        self._start_by = clock() + seconds

    def met(self, server: str) -> str | Refusal | None:
        """Return how far the connection to this server came while starting; ``None``: not tried."""
        return self._met.get(server)

    def note(self, server: str, what: str | Refusal) -> None:
        """Note how far the connection to a server came; called by its socket."""
        if self._start_by is not None:
            self._met[server] = what

    def turned_away(
        self, server: str, another: Callable[..., Any] | None, error: OSError | None = None
    ) -> None:
        """Note that a server has ended a connection before it answered.

        While the client starts, the server is asked why, for a second at most.
        """
        if self._start_by is None or not isinstance(another, partial):
            return
        if self.met(server) not in CLOSING:
            self.note(server, CLOSED)
        why = of_tls(error) if isinstance(error, ssl.SSLError) else None
        seconds = min(_ASKING, self._start_by - clock())

        def connect(tls: bool) -> Any:
            sock = another(timeout=seconds, use_ssl=tls)
            sock.settimeout(seconds)
            return sock

        if why is None and seconds > 0:
            why = refusal(connect, bool(another.keywords.get("use_ssl")))
        if why is not None:
            self.note(server, why)

    @property
    def at_stake(self) -> bool:
        """Whether anything is held on the session; used by its socket."""
        return self._observer.at_stake()

    def asking(self, connection: GatewaySocket, sent: float, resumes: bool) -> float:
        """Note a handshake that is about to be sent; return until when to wait for its answer."""
        self._socket = connection
        if resumes:
            self._observer.on_ask(sent)
        until = sent + self.turn()
        return until if self._start_by is None else min(until, self._start_by)

    def was_silent(self) -> None:
        """Note that a server did not answer in its time; called by its socket."""
        self._silent += 1

    def turn(self) -> float:
        """Return how long to wait for the server that is tried now, in seconds.

        The first wait is so short that a second server finds the lease alive. If all servers are
        silent, each further round waits twice as long. In the end a wait is longer than a session
        timeout: if requests arrive and answers do not, the session must be able to expire.
        """
        rounds = self._silent // self.servers
        timeout = self.session_timeout or self._wanted
        first = unanswered(timeout) / (self.servers + 1)
        return min(1.5 * timeout, first * 2.0 ** min(rounds, 32))

    def connected(self, sent: float, timeout: float, resumed: bool) -> None:
        """Note a connection; called by its socket."""
        self.note(self.server, NO_SASL)
        self._silent, self._start_by = 0, None
        self._looked_up.clear()
        self._not_resumed_at, self._refused = None, False
        with self._observing:
            known = self.session_timeout
            least = timeout if known is None or not resumed else min(known, timeout)
            self.session_timeout, self._asked, self._pings = least, sent, []
            self._observer.on_connect(sent, least)
        if not resumed and timeout != self._granted:
            self._granted = timeout
            self._compare(timeout)

    def _compare(self, granted: float) -> None:
        """Say if a new session has another timeout than was asked for, and what that means."""
        if abs(granted - self._wanted) < _EQUAL:
            return
        if granted < self._wanted:
            log.warning(
                "ZooKeeper grants a session timeout of %g s instead of %g s: leases are shorter; "
                "pass this timeout, or raise maxSessionTimeout on all servers",
                granted,
                self._wanted,
                extra=log_fields(),
            )
        else:
            log.warning(
                "ZooKeeper grants a session timeout of %g s instead of %g s: it is the servers' "
                "minimum, by default 2 ticks, but a lease needs %.2f ticks: pass %g s or more",
                granted,
                self._wanted,
                TICKS,
                2 * granted,
                extra=log_fields(),
            )

    def pinged(self, sent: float, answered: float) -> None:
        """Note an answered ping; called by the socket."""
        with self._observing:
            self._pings = [*self._pings[-1:], (sent, answered)]
            self._observer.on_ping(sent, answered)

    def seen(self, zxid: int) -> int:
        """Note the zxid of a reply; return the highest one of this session.

        The connection thread alone calls this, and so with the methods below.
        """
        self._seen = max(self._seen, zxid)
        return self._seen

    def goes_back(self, zxid: int) -> bool:
        """Return whether an answer names an older transaction than a reply on this session did.

        A server takes up a session only if it knows what the client has seen, and it only goes on
        from there. So its data was replaced by older ones under it (3.9 can do that). Nodes and
        watches of this session may be gone, and numbers be given again: the session is given up.
        """
        if not 0 < zxid < self._seen:
            return False
        if self._back_at is None:
            self._back_at = clock()
            log.warning(
                "ZooKeeper is at transaction %#x, but this client has seen %#x: its locks are "
                "lost, and it starts a new session in %.3g s; a backup was restored under "
                "running clients: stop them, and raise the epoch of the tokens",
                zxid,
                self._seen,
                self.session_timeout or self._wanted,
                extra=log_fields(),
            )
            self._observer.on_give_up()
        return True

    @property
    def gives_up(self) -> bool:
        """Whether the session is given up, and not to be resumed."""
        return self._back_at is not None

    def new_session(self) -> bool:
        """Note that a session is about to be asked for, which has seen nothing yet.

        Return whether it may be. After ZooKeeper has gone back, other holders have a whole timeout
        to notice it, too.
        """
        timeout = self.session_timeout or self._wanted
        if self._back_at is not None and clock() < self._back_at + timeout:
            return False
        self._back_at, self._seen = None, 0
        return True

    def not_resumed(self, was_dead: bool) -> None:
        """Note that a server has not taken up the session, and gave no answer.

        ``was_dead``: the session must have been dead by then, and the server serves.
        """
        if self._not_resumed_at is None:
            self._not_resumed_at = clock()
        self._refused |= was_dead

    @property
    def is_dead(self) -> bool:
        """Whether the session must be dead, as servers turn it away for so long."""
        timeout = self.session_timeout or self._wanted
        since = self._not_resumed_at
        return since is not None and clock() >= since + _DEAD * timeout

    def asks_anew(self) -> bool:
        """Return whether a session that must be dead is asked for as if nothing had been seen.

        A server that has less data than the client has seen turns it away for ever. If it is asked
        for as by a client that has seen nothing, the server says whether it is there.
        """
        if not self._refused:
            return False
        since = self._not_resumed_at
        log.warning(
            "servers have refused this client for %.3g s; it now connects as if it had not seen "
            "transaction %#x; if data was lost, tokens may repeat: recreate the guards' marks, "
            "or raise the epoch",
            0.0 if since is None else clock() - since,
            self._seen,
            extra=log_fields(),
        )
        return True

    def next_xid(self) -> int:
        """Return a number for the next request; called by the socket, on the connection thread."""
        self._xid = self._xid % _MAX_XID + 1
        return self._xid

    @property
    def waiting(self) -> int:
        """How many requests wait to be sent, with the one that is being sent."""
        return self._wakes.pending() if self._wakes is not None else 0

    def closing(self) -> None:
        """Note that the client is about to end the session; called by the socket."""
        self._observer.on_close()

    def run_inline(self, call: Callable[[T], Any], what: T) -> Any:
        """Call; every asynchronous result that kazoo makes during the call completes in place."""
        before = getattr(self._inline, "on", False)  # true in a signal handler that interrupts this
        self._inline.on = True
        try:
            return call(what)
        finally:
            self._inline.on = before

    def dispatch_callback(self, callback: Any) -> None:
        """Run a watch callback: in place if it is ``Inline``, else on the callback thread."""
        if isinstance(callback.func, Inline):
            callback.func(*callback.args)
        else:
            super().dispatch_callback(callback)

    def create_connection(self, *args: Any, **kwargs: Any) -> GatewaySocket:
        """Connect to a server; watch the connection if a session uses it."""
        address = kwargs["address"] if "address" in kwargs else args[0]
        host = str(kwargs.get("hostname") or address[0])
        server = server_name(host, address[1])
        if kwargs.get("timeout") is not None:
            self._count(server, host, address)
            self._wanted = kwargs["timeout"]
            kwargs["timeout"] = self._within(kwargs["timeout"])
        another = partial(super().create_connection, *args, **kwargs)
        if self.met(server) is None:  # else what the last try met counts until this one is over
            self.note(server, _UNHEARD)
        try:
            sock = another()
        except (TimeoutError, BlockingIOError):
            self.note(server, _UNHEARD)
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

    def _within(self, seconds: float) -> float:
        """Return how long a server may take to accept a connection, in seconds."""
        seconds = min(seconds, self.session_timeout or seconds) / (self.servers + 1)
        if self._start_by is not None:
            seconds = min(seconds, self._start_by - clock())
            if seconds <= 0:
                raise TimeoutError("the time to connect is over")
        return seconds

    @property
    def open_connection(self) -> GatewaySocket | None:
        """The connection that takes our requests now; ``None``: they go through kazoo."""
        connection = self._socket
        if connection is None or not connection.open or self.forked:
            return None
        return connection

    def interrupted(self) -> bool:
        """Whether this is a signal handler that has interrupted its own thread in here."""
        connection = self._socket
        return self._has_mutex() or (
            connection is not None and connection.taking == threading.get_ident()
        )

    def enqueue(self, request: WireRequest) -> None:
        """Put a request in line, behind what was asked of kazoo before; ``rouse()`` must follow.

        The line may have been closed since the caller looked. Then whoever closed it may not have
        seen this request.
        """
        wakes = self._wakes
        if wakes is not None:
            wakes.enqueue(request)
        if wakes is None or not request.connection.open:
            request.drop()

    def rouse(self) -> None:
        """Have sent what was put in line: on this thread, unless kazoo may have a queue."""
        wake = self._wakes
        if wake is not None and wake.pending() and not self._sent(wake):
            self.wake_kazoo()

    def depart(self, requests: Sequence[WireRequest], landing: Awaited) -> None:
        """Send requests whose replies the caller waits for; it may ``hear`` them itself."""
        if self._wakes is None or not self._sent(self._wakes, requests, landing):
            for request in requests:
                self.enqueue(request)
            self.wake_kazoo()

    def _sent(
        self, wake: Wakes, requests: Sequence[WireRequest] = (), landing: Awaited | None = None
    ) -> bool:
        """Send what stands in line and these, and return ``True``, unless kazoo goes first."""
        line = self.open_connection
        queued = self.interrupted() or (self._open and self._is_asked())
        return line is not None and not queued and line.write(wake, requests, landing)

    def hear(self, batch: Batch, seconds: float | None) -> bool:
        """Wait for replies to a batch, at most so long; ``False`` at once if the reader hears."""
        connection = self._socket
        awaited = None if connection is None else connection.reading
        if connection is None or awaited is None or awaited.batch is not batch:
            return False
        return connection.hear(awaited, seconds)

    def wake_kazoo(self) -> None:
        """Have kazoo's connection thread look whether there is something for it."""
        self._bell.set()

    def ended(self, connection: GatewaySocket) -> None:
        """Drop the requests of a closed connection that are still in line."""
        if self._wakes is not None:
            self._wakes.strand(connection)

    def sent(self) -> None:
        """Note that kazoo has sent a request of its queue."""
        if self._wakes is not None:
            self._wakes.sent()

    def async_result(self) -> Any:
        """Return an asynchronous result (``IAsyncResult``), and note it until it is there."""
        result = _InlineResult() if getattr(self._inline, "on", False) else _Result(self)
        self._open.add(weakref.ref(result, self._open.discard))
        return result

    def _is_asked(self) -> bool:
        """Whether kazoo may have a request in its queue."""
        try:
            while self._open:
                each = next(iter(self._open))
                result = each()
                if result is not None and not result.ready():
                    return True
                self._open.discard(each)
        except (RuntimeError, StopIteration):  # another thread asks
            return True
        return False

    def create_socket_pair(self) -> tuple[Wakes, WakeWriter]:
        """Return the (reader, writer) with which kazoo wakes its connection thread."""
        self._wakes = Wakes(self._write, self.wake_kazoo)
        return self._wakes, WakeWriter(self._wakes)

    def _write(self, wake: Wakes) -> None:
        """Write the requests that stand first in line; on the connection thread."""
        if self._socket is not None:
            self._socket.write(wake)
        else:
            wake.hand_over(_drop)

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

    def nudge(self) -> None:
        """Wake the connection thread once more, for a wake-up that may have been missed.

        kazoo sends one request for each wake-up. An interrupt may strike after it has queued a
        request and before it wakes the thread. Then every later request would wait until the next
        one comes.
        """
        if self._wakes is not None:
            self._wakes.wake()


def _drop(request: WireRequest) -> bool:
    request.drop()
    return True


class _End(BaseException):
    """Ends a thread of kazoo's that waits for work."""


def _end() -> None:
    raise _End


def _run(call: Callable[[], object]) -> None:
    with contextlib.suppress(_End):
        call()


class Inline:
    """A watch callback that never blocks; it runs in place on the connection thread."""

    def __init__(self, func: Callable[[Any], None]) -> None:
        self._func = func

    def __call__(self, event: Any) -> None:
        """Take kazoo's event."""
        self._func(event)


def _mistaken() -> BaseException | None:
    """Return what a signal handler raised, if kazoo is about to take it for a closed connection.

    ``KazooClient._call()`` does so with all that is raised while it wakes the connection thread.
    """
    error = sys.exception()
    if error is None or error.__traceback__ is None or not may_strike():
        return None
    caught = error.__traceback__.tb_frame
    if (caught.f_globals.get("__name__"), caught.f_code.co_name) != ("kazoo.client", "_call"):
        return None
    if isinstance(error, AttributeError) and error.obj is None:  # kazoo has no socket any more
        return None
    return error


def _is_foreign(error: BaseException) -> bool:
    """Whether a signal handler may have raised it: it is caught now, and none of kazoo's."""
    return error is sys.exception() and not isinstance(error, KazooException) and may_strike()


class _Result(AsyncResult):  # type: ignore[misc]
    """kazoo's asynchronous result, which lets pass what kazoo mistakes for its own error."""

    def set_exception(self, exception: BaseException) -> None:
        mistaken = _mistaken()
        if mistaken is not None:
            self._handler.nudge()  # the wake-up may not have happened
            raise mistaken
        super().set_exception(exception)


class _InlineResult:
    """An ``IAsyncResult`` whose callbacks run in the thread that completes it.

    It takes no lock. With a lock, a signal handler could interrupt the thread that has it, and the
    connection thread would wait as long as the handler runs.
    """

    def __init__(self) -> None:
        self._result: dict[None, tuple[Any, BaseException | None]] = {}  # set once
        self._callbacks: deque[Callable[[Any], Any]] = deque()

    @property
    def value(self) -> Any:
        return self._result.get(None, (None, None))[0]

    @property
    def exception(self) -> BaseException | None:
        return self._result.get(None, (None, None))[1]

    def ready(self) -> bool:
        return bool(self._result)

    def successful(self) -> bool:
        return self.ready() and self.exception is None

    def set(self, value: Any = None) -> None:
        self._complete(value, None)

    def set_exception(self, exception: BaseException) -> None:
        mistaken = _mistaken()
        if mistaken is not None:
            raise mistaken
        if _is_foreign(exception):  # kazoo takes every error for an answer; one may be there before
            raise exception
        self._complete(None, exception)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not (self.wait(timeout) if block else self.ready()):
            raise KazooTimeoutError
        if self.exception is not None:
            raise self.exception
        return self.value

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def wait(self, timeout: float | None = None) -> bool:
        if not self.ready():
            done = Event()
            self.rawlink(lambda _: done.set())
            done.wait(timeout)
        return self.ready()

    def rawlink(self, callback: Callable[[Any], Any]) -> None:
        self._callbacks.append(callback)
        if self._result:
            self._call()

    def unlink(self, callback: Callable[[Any], Any]) -> None:
        with contextlib.suppress(ValueError):
            self._callbacks.remove(callback)

    def _complete(self, value: Any, exception: BaseException | None) -> None:
        self._result.setdefault(None, (value, exception))
        self._call()

    def _call(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.popleft()
            except IndexError:
                return  # another thread makes the last call
            callback(self)
