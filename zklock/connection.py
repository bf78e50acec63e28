"""``connect()``, and the kazoo handler that lets zklock see the wire.

``Handler`` implements kazoo's public handler interface (``kazoo.interfaces.IHandler``). Over
kazoo's threading handler it adds:

- The socket it hands to kazoo reads ahead, and reports the negotiated session timeout (the first
  frame of every connection carries it), when the connection was asked for, and the client's pings.
- ``drop()`` breaks the connection, so that kazoo tries the next server.
- Completions and watches that are marked for it run in place, on the connection thread.
- A wake-up socket pair that never blocks the sender.
- Numbers of requests that never come twice in a session. kazoo numbers them from 1 on every
  connection, and a server takes a request of an earlier connection, committed late, for the one of
  the same number that waits now, and answers it with what became of the other.
- A reply that is not the next one due ends the connection. A server that finds the session moved
  sends such replies before it closes; kazoo's connection thread would die of them.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionClosedError
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import KazooState, KeeperState

from zklock.clock import clock
from zklock.errors import ClientClosed, ClientUnusable, ForkedClient, NoAnswer, WouldDeadlock

log = logging.getLogger("zklock")

Client: TypeAlias = KazooClient
T = TypeVar("T")

_CHUNK = 65536
_UNPOLLED = 16
_PING_XID = -2
_MAX_XID = 2**31 - 1
_PING, _CLOSE = 11, -11  # opcodes of the requests that are nothing but a header
_NUMBER = struct.Struct(">ii")  # length; xid
_HEAD = struct.Struct(">iii")  # length; xid, opcode or error … or protocol version, timeout …


class Observer:
    """Told what the wire shows; the methods run on the connection thread."""

    def on_connect(self, sent: float, timeout: float) -> None:
        """Note a connection: asked for at ``sent``, given with this session timeout in seconds."""

    def on_ping(self, sent: float, answered: float) -> None:
        """Note a ping that was answered."""

    def on_close(self) -> None:
        """Note that the client is about to ask for the end of its session."""


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threading handler, with a view of the wire. One handler serves one client.

    ``session_timeout`` is the negotiated timeout in seconds, ``None`` before the first
    connection. ``connect_timeout``, if set, bounds the seconds spent on one server's answer to
    a TCP connect.
    """

    def __init__(self) -> None:
        super().__init__()
        self.session_timeout: float | None = None
        self.connect_timeout: float | None = None
        self._asked = clock()
        self._pings: list[tuple[float, float]] = []
        self._observer = Observer()
        self._observing = threading.Lock()
        self._socket: _Socket | None = None
        self._xid = 0
        self._inline = threading.local()
        self._unpolled = 0
        self._polled: tuple[Any, ...] = ()
        self._poller = select.poll()
        self._process = os.getpid()
        self._wake: _WakeReader | None = None

    @property
    def forked(self) -> bool:
        """Whether its threads run in the parent of this process."""
        return self._process != os.getpid()

    def start(self) -> None:
        """Start the threads."""
        self._process = os.getpid()
        super().start()

    def observe(self, observer: Observer) -> None:
        """Report to ``observer`` from now on, beginning with the present connection."""
        with self._observing:
            self._observer = observer
            if self.session_timeout is not None:
                observer.on_connect(self._asked, self.session_timeout)
            for ping in self._pings:
                observer.on_ping(*ping)

    def drop(self) -> None:
        """Break the present connection; kazoo then connects to the next server."""
        connection = self._socket
        if connection is not None:
            connection.shut_down()

    def connected(self, sent: float, timeout: float) -> None:
        """Note a connection; called by its socket."""
        with self._observing:
            self.session_timeout, self._asked, self._pings = timeout, sent, []
            self._observer.on_connect(sent, timeout)

    def pinged(self, sent: float, answered: float) -> None:
        """Note an answered ping; called by the socket."""
        with self._observing:
            self._pings = [*self._pings[-1:], (sent, answered)]
            self._observer.on_ping(sent, answered)

    def next_xid(self) -> int:
        """Return a number for a request; called by the socket, on the connection thread."""
        self._xid = self._xid % _MAX_XID + 1
        return self._xid

    @property
    def waiting(self) -> int:
        """How many requests are to be sent, the one that is being sent included."""
        return self._wake.pending() if self._wake is not None else 0

    def closing(self) -> None:
        """Note that the session is about to be closed; called by the socket."""
        self._observer.on_close()

    def run_inline(self, call: Callable[[T], Any], what: T) -> Any:
        """Call, with every result that kazoo asks for meanwhile completing in place."""
        self._inline.on = True
        try:
            return call(what)
        finally:
            self._inline.on = False

    def async_result(self) -> Any:
        """Return an asynchronous result (``IAsyncResult``)."""
        if getattr(self._inline, "on", False):
            return _InlineResult()
        return super().async_result()

    def dispatch_callback(self, callback: Any) -> None:
        """Run a watch callback: in place if it is ``Inline``, else on the callback thread."""
        if isinstance(callback.func, Inline):
            callback.func(*callback.args)
        else:
            super().dispatch_callback(callback)

    def create_connection(self, *args: Any, **kwargs: Any) -> _Socket:
        """Connect to a server, and watch over the connection."""
        if self.connect_timeout is not None and kwargs.get("timeout") is not None:
            kwargs["timeout"] = min(kwargs["timeout"], self.connect_timeout)
        self._socket = _Socket(super().create_connection(*args, **kwargs), self)
        return self._socket

    def create_socket_pair(self) -> tuple[_WakeReader, _WakeWriter]:
        """Return the (reader, writer) with which kazoo wakes its connection thread."""
        self._wake = _WakeReader()
        return self._wake, _WakeWriter(self._wake)

    def nudge(self) -> None:
        """Wake the connection thread once more, for a wake-up that may have been missed.

        kazoo sends one request for each wake-up. An interrupt between its queueing a request and
        waking the thread would leave every later request waiting for the one after it.
        """
        if self._wake is not None:
            with contextlib.suppress(OSError):  # closed meanwhile
                self._wake.wake()

    def select(
        self,
        rlist: Sequence[Any],
        wlist: Sequence[Any],
        xlist: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """``select.select`` for what this handler made, without its limit on descriptors.

        Buffered data counts as readable. Exceptional conditions are not watched for.
        """
        if wlist and all(each.eager for each in wlist):
            return [], list(wlist), []  # their send() waits by itself, if it has to
        # What is buffered is known without asking the system; only a socket's arrivals are not,
        # and those can wait for a few requests to be sent.
        ready = [each for each in rlist if each.pending()]
        if ready and not wlist:
            self._unpolled = (self._unpolled + 1) % _UNPOLLED
            if self._unpolled:
                return ready, [], []
        for each in rlist:
            each.flush()
        milliseconds = 0.0 if ready else None if timeout is None else max(0.0, timeout * 1000)
        happened = [descriptor for descriptor, _ in self._poll(rlist, wlist).poll(milliseconds)]
        for each in rlist:
            if each.fileno() in happened:
                each.arrived()
        return (
            [each for each in rlist if each.pending()],
            [each for each in wlist if each.fileno() in happened],
            [],
        )

    def _poll(self, rlist: Sequence[Any], wlist: Sequence[Any]) -> Any:
        """Return a poll object for these, the same as long as they are the same."""
        wanted = (*rlist, None, *wlist)
        if wanted != self._polled:
            self._poller = select.poll()
            for each in rlist:
                self._poller.register(each, select.POLLIN)
            for each in wlist:
                self._poller.register(each, select.POLLOUT)
            self._polled = wanted
        return self._poller


class Inline:
    """A watch callback that never blocks, to be run in place on the connection thread."""

    def __init__(self, func: Callable[[Any], None]) -> None:
        self._func = func

    def __call__(self, event: Any) -> None:
        """Take kazoo's event."""
        self._func(event)


class _InlineResult:
    """An ``IAsyncResult`` whose callbacks run in the thread that completes it."""

    def __init__(self) -> None:
        self.value: Any = None
        self.exception: BaseException | None = None
        self._ready = False
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Any], Any]] = []

    def ready(self) -> bool:
        return self._ready

    def successful(self) -> bool:
        return self._ready and self.exception is None

    def set(self, value: Any = None) -> None:
        self._complete(value, None)

    def set_exception(self, exception: BaseException) -> None:
        self._complete(None, exception)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not (self.wait(timeout) if block else self._ready):
            raise KazooTimeoutError
        if self.exception is not None:
            raise self.exception
        return self.value

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def wait(self, timeout: float | None = None) -> bool:
        if not self._ready:
            done = threading.Event()
            self.rawlink(lambda _: done.set())
            done.wait(timeout)
        return self._ready

    def rawlink(self, callback: Callable[[Any], Any]) -> None:
        with self._lock:
            if not self._ready:
                self._callbacks.append(callback)
                return
        callback(self)

    def unlink(self, callback: Callable[[Any], Any]) -> None:
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

    def _complete(self, value: Any, exception: BaseException | None) -> None:
        with self._lock:
            if self._ready:
                return
            self.value, self.exception = value, exception
            self._ready = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


class _Socket:
    """A connected socket with read-ahead, which reports what its frames show to the handler.

    Requests go out under numbers of the handler's; replies come back under kazoo's.
    """

    def __init__(self, sock: Any, handler: Handler) -> None:
        self._sock = sock
        self._handler = handler
        self.fileno = sock.fileno
        self._below = getattr(sock, "pending", None)
        # TLS may have to read before it can write: kazoo sees to that, given a true select.
        self.eager = self._below is None
        self._held = bytearray()
        self._unsent = memoryview(b"")
        self._buffer = memoryview(b"")
        self._arrived = False
        self._frames = _Frames(self._connected, self._pinged_back, self._reply)
        self._xids: deque[tuple[int, int]] = deque()  # of requests: as sent, and kazoo's
        self._asked: float | None = None
        self._pinged: float | None = None

    def send(self, data: Any) -> int:
        # kazoo sends a frame at a time, and the rest of one that was not taken whole.
        if not self.eager:
            if not self._unsent:
                self._unsent = memoryview(self._request(bytes(data)))
            sent = int(self._sock.send(self._unsent))
            self._unsent = self._unsent[sent:]
            return sent
        self._held += self._request(data)
        if self._handler.waiting < 2 or len(self._held) > _CHUNK:
            self.flush()  # else with the next one
        return len(data)

    def flush(self) -> None:
        """Send what was held back."""
        while self._held:
            try:
                sent = int(self._sock.send(self._held))
            except BlockingIOError:
                if not self._ready(select.POLLOUT):
                    raise TimeoutError("the server takes no more requests") from None
            else:
                del self._held[:sent]

    def recv(self, size: int) -> bytes:
        self._arrived = False
        while not self._buffer and not self._frames.broken:
            chunk = self._sock.recv(max(size, _CHUNK))
            if not chunk:
                return b""
            self._buffer = memoryview(self._frames.feed(chunk))
            if not self._buffer and not self._frames.broken and not self._ready(select.POLLIN):
                raise TimeoutError("the server stopped in the middle of a reply")
        data = bytes(self._buffer[:size])
        self._buffer = self._buffer[size:]
        return data

    def arrived(self) -> None:
        """Note that there is something to receive."""
        self._arrived = True

    def pending(self) -> int:
        left = len(self._buffer) or int(self._arrived or self._frames.broken)
        return left + int(self._below()) if self._below is not None else left

    def _ready(self, event: int) -> bool:
        if event == select.POLLIN and self._below is not None and self._below():
            return True
        poll = select.poll()
        poll.register(self._sock, event)
        limit = self._handler.session_timeout
        return bool(poll.poll(None if limit is None else limit * 1000 / 3))

    def _request(self, frame: bytes) -> bytes:
        """Look at a whole request; return it under a number of its own."""
        if self._asked is None:  # the handshake
            self._asked = clock()
            return frame
        length, xid = _NUMBER.unpack_from(frame)
        if len(frame) == _HEAD.size:
            opcode = _HEAD.unpack(frame)[2]
            if (length, opcode) == (8, _PING):
                self._pinged = clock()
            elif (length, opcode) == (8, _CLOSE):
                self._handler.closing()
        if xid <= 0:
            return frame
        self._xids.append((self._handler.next_xid(), xid))
        return _NUMBER.pack(length, self._xids[-1][0]) + frame[_NUMBER.size :]

    def _reply(self, xid: int) -> int | None:
        """Return kazoo's number of the request that is answered; ``None``: out of turn."""
        if self._xids and self._xids[0][0] == xid:
            return self._xids.popleft()[1]
        due = self._xids[0][0] if self._xids else "none"
        log.warning("reply to request %s where %s was due: connection dropped", xid, due)
        return None

    def shut_down(self) -> None:
        try:
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            return  # closed already

    def _connected(self, milliseconds: int) -> None:
        if milliseconds > 0 and self._asked is not None:  # 0: the session has expired
            self._handler.connected(self._asked, milliseconds / 1000)

    def _pinged_back(self) -> None:
        if self._pinged is not None:
            self._handler.pinged(self._pinged, clock())
            self._pinged = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class _Frames:
    """Finds, in a stream of length-prefixed frames, the first, the answers to pings, and replies.

    ``reply(xid)`` returns the number to put in the place of a reply's, or ``None`` to end the
    stream before it; it is ``broken`` then.
    """

    def __init__(
        self,
        first: Callable[[int], None],
        ping: Callable[[], None],
        reply: Callable[[int], int | None],
    ) -> None:
        self.broken = False
        self._first: Callable[[int], None] | None = first
        self._ping = ping
        self._reply = reply
        self._partial = b""
        self._skip = 0

    def feed(self, chunk: bytes) -> bytes | bytearray:
        """Take what was received; return what to pass on, which is no part of a header."""
        data = bytearray(self._partial + chunk) if self._partial else bytearray(chunk)
        at = self._skip
        while len(data) - at >= _HEAD.size:
            length, xid, second = _HEAD.unpack_from(data, at)
            if self._first is not None:
                first, self._first = self._first, None
                first(second)
            elif xid == _PING_XID:
                self._ping()
            elif xid > 0:
                number = self._reply(xid)
                if number is None:
                    self.broken = True
                    return data[:at]
                _NUMBER.pack_into(data, at, length, number)
            at += 4 + length
        self._skip = max(0, at - len(data))
        self._partial = bytes(data[at:])
        return data if not self._partial else data[:at]


class _WakeReader:
    """The reading end of a wake-up counter; readable while the count is not zero."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._count = 0
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._read

    def pending(self) -> int:
        return self._count

    def arrived(self) -> None:
        """Nothing to note: the count says it."""

    def flush(self) -> None:
        """Nothing to send: it is for reading."""

    def recv(self, size: int) -> bytes:
        """Take one wake-up; the pipe is drained with the last one."""
        with self._lock:
            self._count -= min(1, self._count)
            if not self._count:
                os.read(self._read, _CHUNK)
        return b"\0"

    def wake(self) -> None:
        with self._lock:
            self._count += 1
            if self._count == 1:
                os.write(self._write, b"\0")

    def __del__(self) -> None:
        self.close()  # a client may be stopped without being closed

    def close(self) -> None:
        with self._lock:
            for descriptor in (self._read, self._write):
                if descriptor >= 0:
                    os.close(descriptor)
            self._read = self._write = -1


class _WakeWriter:
    """The writing end: never blocks, as kazoo's own would after some 280 unsent requests."""

    def __init__(self, reader: _WakeReader) -> None:
        self._reader = reader

    def send(self, data: bytes) -> int:
        self._reader.wake()
        return len(data)

    def close(self) -> None:
        self._reader.close()


def connect(
    hosts: str = "127.0.0.1:2181",
    timeout: float = 10.0,
    *,
    start_timeout: float = 15.0,
    **kazoo_options: Any,
) -> Client:
    """Return a started ``KazooClient`` with zklock's handler.

    ``hosts``: ``"host:port,host:port…"``, with an optional chroot behind the last. ``timeout``:
    the session timeout to ask for, in seconds; the server may grant another, within 2 to 20 of
    its ticks by default. ``start_timeout``: seconds to wait for the first connection; ``NoAnswer``
    is raised when it has not come by then, and nothing is left running. Everything else goes to
    ``kazoo.client.KazooClient``: TLS (``use_ssl=True, ca=…``), SASL, ACLs, a logger.
    ``ClientClosed`` if the servers refuse ``sasl_options``.

    While disconnected it tries again at least every second (kazoo's default waits longer and
    longer); pass ``connection_retry`` for something else.
    """
    client = new_client(hosts, timeout, start_timeout=start_timeout, **kazoo_options)
    sasl = bool(kazoo_options.get("sasl_options"))
    deadline = clock() + start_timeout
    try:
        client.start(start_timeout)
        if sasl:
            # kazoo calls itself connected before the servers have agreed.
            _await_agreement(client, deadline)
    except client.handler.timeout_exception as error:
        if sasl and clock() < deadline:
            raise _refused() from error  # connected, and closed again before start() looked
        raise no_server(hosts, start_timeout) from error
    return client


def new_client(
    hosts: str, timeout: float, *, start_timeout: float = 15.0, **kazoo_options: Any
) -> Client:
    """Return the client of :func:`connect`, not started; all arguments are checked here."""
    for name, seconds in (("timeout", timeout), ("start_timeout", start_timeout)):
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError(f"{name} must be seconds, not {type(seconds).__name__}")
        if not seconds > 0:
            raise ValueError(f"{name} must be more than 0 seconds, not {seconds}")
    handler = kazoo_options.setdefault("handler", Handler())
    if not isinstance(handler, Handler):
        raise ClientUnusable("connect() needs a zklock.Handler; make other clients with kazoo")
    kazoo_options.setdefault(
        "connection_retry", {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}
    )
    client = KazooClient(hosts, timeout, **kazoo_options)
    handler.connect_timeout = timeout / (len(client.hosts) + 1)
    return client


def begin(client: Client, sasl: bool, done: Callable[[Exception | None], object]) -> None:
    """Start a client and return; ``done(error)`` once it is connected, or refused."""

    def on_state(state: str) -> bool:
        if state != KazooState.CONNECTED:
            return False
        if sasl:  # kazoo calls itself connected before the servers have agreed
            client.exists_async("/").rawlink(lambda answer: done(_verdict(answer.exception)))
        else:
            done(None)
        return True  # kazoo then forgets this listener

    client.add_listener(on_state)
    client.start_async()


def no_server(hosts: str, start_timeout: float) -> NoAnswer:
    """Return the error to raise when no server has answered."""
    return NoAnswer(
        f"no ZooKeeper server of {hosts} answered within {start_timeout} s: "
        "check the addresses, and that a quorum is up"
    )


def end(client: Client) -> None:
    """Stop a client and free what it has open; blocks until its threads have ended."""
    client.stop()
    client.close()


def _await_agreement(client: Client, deadline: float) -> None:
    try:
        client.exists_async("/").get(timeout=max(0.0, deadline - clock()))
    except BaseException as error:
        end(client)
        if isinstance(error, AuthFailedError | ConnectionClosedError):
            raise _refused() from error
        raise


def _verdict(error: Exception | None) -> Exception | None:
    """Return the error to raise for the outcome of a client's first request."""
    return _refused() if isinstance(error, AuthFailedError | ConnectionClosedError) else error


def _refused() -> ClientClosed:
    return ClientClosed("ZooKeeper refused the client's credentials (SASL)")


def check_client(client: object) -> None:
    """Raise a clear error unless ``client`` is a started client that can carry locks."""
    if not isinstance(client, KazooClient):
        raise TypeError(
            f"pass a started KazooClient, such as zklock.connect() returns, "
            f"not {type(client).__name__}"
        )
    if not isinstance(client.handler, SequentialThreadingHandler):
        raise ClientUnusable(
            f"the client's handler is {type(client.handler).__name__}: zklock needs one on "
            "threads (kazoo's SequentialThreadingHandler, or zklock.connect())"
        )
    if isinstance(client.handler, Handler) and client.handler.forked:
        raise forked_error()
    error = closed_error(client)
    if error is not None:
        raise error


def forked_error() -> ForkedClient:
    """Return the error to raise in a child process: the connection is its parent's."""
    return ForkedClient("this client belongs to the parent process: make a new one in the child")


def closed_error(client: Client) -> ClientClosed | None:
    """Return the error to raise if the client was not started, was stopped, or was refused."""
    if client.client_state is KeeperState.AUTH_FAILED:
        return ClientClosed("ZooKeeper refused the client's credentials: make a new client")
    if client.client_state is KeeperState.CLOSED:
        return ClientClosed("the client is not started, or was stopped: call its start() first")
    return None


def check_thread(what: str) -> None:
    """Raise ``WouldDeadlock`` on a thread on which kazoo delivers answers, watches or states."""
    if getattr(_checked, "fine", False):
        return
    frame = inspect.currentframe()
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) in _KAZOO_LOOPS:
            raise WouldDeadlock(
                f"{what} was called on a thread of kazoo's (a watch, listener or completion), "
                "and would wait for an answer that only this thread can deliver: call it on "
                "another thread, such as one started with client.handler.spawn()"
            )
        frame = frame.f_back
    _checked.fine = True  # kazoo's loops are at the bottom of their threads: once fine, always fine


_checked = threading.local()
_KAZOO_LOOPS = {
    ("kazoo.protocol.connection", "zk_loop"),
    ("kazoo.handlers.threading", "_thread_worker"),
}
