"""The machine behind a socket: one thread, which starts in a moment.

``embedded()`` is the way in. The thread owns the machine and all sockets; a call from another
thread is handed to it and waited for.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeVar

from zklock._ground import threads
from zklock._ground.addresses import server_name
from zklock._ground.numbers import check_int
from zklock.testing.errors import ServerError, StartFailed
from zklock.testing.ports import LOOPBACK, free_ports, shut
from zklock.testing.sessions import HasSession
from zklock.testing.settings import check_seconds
from zklock.testing.watchdog import forgotten_by_children
from zklock.testing.zookeeper import messages, words
from zklock.testing.zookeeper.codec import Malformed, Splitter
from zklock.testing.zookeeper.faults import Scripted, ScriptedFault, Trouble
from zklock.testing.zookeeper.machine import Machine, Rules
from zklock.testing.zookeeper.messages import Request

T = TypeVar("T")

log = logging.getLogger("zklock.testing")

NOTICE = "for tests, demos and a first try, never for production: one process, nothing on disk"
"""What every start says."""

MAX_FRAME = 0xFFFFF
"""ZooKeeper's default of ``jute.maxbuffer``, in bytes."""

_CHUNK = 65536
_ENOUGH_UNSENT = 4 * 1024 * 1024
_CALL_SECONDS = 30.0
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


@dataclass(slots=True, eq=False)
class Connection:
    """A client's socket, with what is not yet read or written."""

    socket: socket.socket
    address: str
    splitter: Splitter
    outbox: bytearray = field(default_factory=bytearray)
    later: deque[tuple[float, bytes | None]] = field(default_factory=deque)
    """When to send what; ``None``: the end."""
    greeted: bool = False
    ends: bool = False  # once the outbox is empty
    mask: int = _READ

    def say(self, data: bytes | None, due: float | None = None) -> None:
        """Queue bytes, or the end; at once, or at this time."""
        if due is not None:
            self.later.append((due, data))
        elif data is None:
            self.ends = True
        elif not self.ends:
            self.outbox += data

    def mature(self, now: float) -> None:
        """Move what is due to the outbox."""
        while self.later and self.later[0][0] <= now:
            self.say(self.later.popleft()[1])


def _peer(link: socket.socket) -> str:
    """Return the other end's address, as ``cons`` shows it."""
    try:
        host, port, *_ = link.getpeername()
    except OSError:  # it has gone
        return "unknown"
    return server_name(host, port)


class _Sockets:
    """The machine, and the thread that owns it and all sockets."""

    _machine: Machine[Connection]
    _waker: tuple[socket.socket, socket.socket]
    _selector: selectors.BaseSelector
    _deaf: selectors.BaseSelector

    def __init__(self, host: str, port: int, max_frame: int) -> None:
        self.host = host
        self.port = port
        self._max_frame = max_frame
        self._thread: threading.Thread | None = None
        self._commands: deque[tuple[Callable[[], object], Future[object]]] = deque()
        self._connections: dict[Connection, None] = {}
        self._listener: socket.socket | None = None
        self._dirty: dict[Connection, None] = {}  # those with something to send
        self._late: dict[Connection, None] = {}  # those with something to send later
        self._faults: list[ScriptedFault] = []
        self._delay = 0.0
        self._muted = self._frozen = self._ending = False
        self._received = self._sent = 0

    @property
    def hosts(self) -> str:
        """``"host:port"``, as clients take it; the same after every restart."""
        return server_name(self.host, self.port)

    def _now(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def _call(self, command: Callable[[], T]) -> T:
        """Have the server's thread do something, and wait for it."""
        if self._thread is None or not self._thread.is_alive():
            raise ServerError(f"{self.hosts} is down: start it first")
        done: Future[object] = Future()
        self._commands.append((command, done))
        with contextlib.suppress(OSError):  # full: it is awake already
            self._waker[0].send(b"!")
        return done.result(_CALL_SECONDS)  # type: ignore[return-value]

    def _run(self) -> None:
        try:
            while not self._ending:
                self._turn()
        finally:
            self._close_all()

    def _turn(self) -> None:
        silent = self._muted or self._frozen
        selector = self._deaf if silent else self._selector
        for key, mask in selector.select(self._patience()):
            if key.data is None:
                self._obey()
                return  # what else was ready may be gone now
            if key.data is self:
                self._accept()
            else:
                self._ready(key.data, mask)
        if not self._frozen:
            self._advance()

    def _patience(self) -> float | None:
        """Return how long to wait for news."""
        if self._frozen:
            return None
        wait = (self._machine.due() - self._now()) / 1000
        if self._late and not self._muted:
            first = min(each.later[0][0] for each in self._late)
            wait = min(wait, first - time.monotonic())
        return max(0.0, wait)

    def _advance(self) -> None:
        now = self._now()
        if now >= self._machine.due():
            self._machine.advance(now)
            self._deliver()
        if not self._muted:
            moment = time.monotonic()
            for connection in list(self._late):
                connection.mature(moment)
                if not connection.later:
                    del self._late[connection]
                self._flush(connection)

    def _obey(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._waker[1].recv(_CHUNK):
                pass
        while self._commands:
            command, done = self._commands.popleft()
            try:
                done.set_result(command())
            except BaseException as error:
                done.set_exception(error)

    def _listen(self) -> None:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self.host, self.port))
            listener.listen(1024)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        self._listener = listener
        self._selector.register(listener, _READ, self)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            shut(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            link, address = self._listener.accept()
        except OSError:  # it has gone, or no descriptor is left
            return
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(link, address[0].partition("%")[0], Splitter(self._max_frame))
        self._connections[connection] = None
        self._selector.register(link, _READ, connection)

    def _ready(self, connection: Connection, mask: int) -> None:
        if connection not in self._connections:
            return
        if mask & _READ:
            try:
                data: bytes | None = connection.socket.recv(_CHUNK)
            except BlockingIOError:
                data = None
            except OSError:
                data = b""
            if data:
                self._read(connection, data)
            elif data is not None:
                self._lose(connection)
        if mask & _WRITE:
            self._flush(connection)

    def _read(self, connection: Connection, data: bytes) -> None:
        """Take all frames that are complete."""
        frames, opaque = connection.splitter.feed(data)
        for frame in frames:
            if not connection.ends:
                self._received += 1
                try:
                    self._take(connection, frame)
                except Malformed:
                    self._lose(connection)
                    return
        if opaque and not (connection.ends or connection.later):
            if connection.greeted or not words.is_word(opaque[:4]):
                self._lose(connection)
                return
            self._received += 1
            self._say(connection, words.answer(opaque[:4], self._view()))
            self._say(connection, None)
        self._deliver()

    def _take(self, connection: Connection, frame: bytes) -> None:
        if not connection.greeted:
            connection.greeted = True
            request = messages.read_connect(frame)
            self._machine.connect(connection, request, self._now(), connection.address)
            self._post()
            return
        xid, wish = messages.read_request(frame)
        fault = self._fault(wish) if self._faults else None
        if fault is None:
            self._machine.request(connection, xid, wish, self._now())
        elif fault.trouble is Trouble.THROTTLED:
            self._machine.throttle(connection, xid, self._now())
        elif fault.trouble is Trouble.REPLY_LOST:
            self._say(connection, None)
            self._machine.request(connection, xid, wish, self._now())
            self._machine.lost(connection)
        else:
            self._say(connection, None)
            self._machine.lost(connection)
        self._post()
        if fault is not None:
            fault.done()

    def _fault(self, request: Request) -> ScriptedFault | None:
        self._faults = [each for each in self._faults if each.armed]
        return next((each for each in self._faults if each.strikes(request)), None)

    def _say(self, connection: Connection, data: bytes | None) -> None:
        """Queue bytes, or the end of the connection after them."""
        if self._delay or connection.later:
            connection.say(data, time.monotonic() + self._delay)
            self._late[connection] = None
        else:
            connection.say(data)
            self._dirty[connection] = None

    def _post(self) -> None:
        """Put what the machine says into the outboxes."""
        outbox = self._machine.outbox
        while outbox:
            connection, message = outbox.popleft()
            self._say(connection, messages.frame(message) or None)
            self._sent += 1

    def _deliver(self) -> None:
        self._post()
        while self._dirty:
            connection, _ = self._dirty.popitem()
            self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        if connection.outbox:
            try:
                del connection.outbox[: connection.socket.send(connection.outbox)]
            except BlockingIOError:
                pass
            except OSError:
                self._lose(connection)
                return
        if connection.ends and not connection.outbox:
            self._lose(connection)
            return
        reads = _READ if len(connection.outbox) < _ENOUGH_UNSENT else 0
        mask = reads | (_WRITE if connection.outbox else 0)
        if mask != connection.mask:
            self._selector.modify(connection.socket, mask, connection)
            connection.mask = mask

    def _lose(self, connection: Connection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self._late.pop(connection, None)
            self._machine.lost(connection)
            self._selector.unregister(connection.socket)
            shut(connection.socket)
            connection.socket.close()

    def _drop_all(self) -> None:
        for connection in list(self._connections):
            self._lose(connection)

    def _close_all(self) -> None:
        self._drop_all()
        self._close_listener()
        for each in (self._selector, self._deaf, *self._waker):
            each.close()
        while self._commands:
            self._commands.popleft()[1].set_exception(ServerError(f"{self.hosts} was stopped"))

    def _view(self) -> words.View:
        return words.View(
            machine=self._machine,
            port=self.port,
            received=self._received,
            sent=self._sent,
            clients=[
                (_peer(each.socket), self._machine.linked(each)) for each in self._connections
            ],
        )

    def _forget(self) -> None:
        """In a forked child: close this end of everything, and leave the rest to the parent."""
        links = [each.socket for each in self._connections]
        for each in [*links, self._listener, self._selector, self._deaf, *self._waker]:
            if each is not None:
                each.close()
        self._connections.clear()
        self._listener = self._thread = None


class EmbeddedServer(_Sockets, Scripted):
    """A ZooKeeper in this process, in pure Python. For tests and demos, never for production.

    ::

        with zklock.testing.embedded() as server:
            client = zklock.connect(server.hosts)

    Faults: `throttle`, `lose_request`, `lose_reply`, `delay`, `mute`, `refuse`, `read_only`,
    `expire`, `restart` with other timeouts. `FaultProxy` may stand in front of it for the faults of
    a network. Methods may be called from any thread but the server's own, one at a time.
    """

    _MACHINE: ClassVar[type[Machine[Any]]] = Machine

    def __init__(
        self,
        *,
        port: int | None = None,
        host: str = LOOPBACK,
        tick_time: int = 500,
        min_session_timeout: int | None = None,
        max_session_timeout: int | None = 60_000,
        max_frame: int = MAX_FRAME,
        container_check: int = 60_000,
    ) -> None:
        if port is not None:
            check_int("port", port, 0, 65535)
        super().__init__(host, port or free_ports()[0], check_int("max_frame", max_frame, 1))
        self._rules = Rules(
            tick_time=tick_time,
            min_session_timeout=min_session_timeout,
            max_session_timeout=max_session_timeout,
            container_check=container_check,
        )
        wall = time.time_ns() // 1_000_000
        self._machine = self._MACHINE(
            self._rules,
            self._now(),
            since_epoch=wall - self._now(),
            # As a real server: no id is used twice by servers that follow each other.
            first_session=(wall << 16) & (2**56 - 1),
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<EmbeddedServer {self.hosts}: {'runs' if self.running else 'is down'}>"

    @property
    def sessions(self) -> frozenset[int]:
        """The ids of the sessions that live."""
        return self._call(lambda: frozenset(each.id for each in self._machine.sessions.all()))

    # Start and stop.

    @property
    def running(self) -> bool:
        """Whether it runs; frozen or mute, it does."""
        return self._thread is not None

    def start(self) -> None:
        """Serve; do nothing if it runs. `StartFailed` if the port is taken."""
        if self._thread is not None:
            return
        self._muted = self._frozen = self._ending = False
        self._waker = ours, theirs = socket.socketpair()
        self._selector, self._deaf = selectors.DefaultSelector(), selectors.DefaultSelector()
        for link in (ours, theirs):
            link.setblocking(False)
        for selector in (self._selector, self._deaf):
            selector.register(theirs, _READ, None)
        thread = threading.Thread(target=self._run, name="embedded-zookeeper", daemon=True)
        try:
            self._listen()
            self._machine.restart(self._rules, self._now())
            threads.begin(thread)
        except BaseException as error:
            self._close_all()
            if isinstance(error, OSError):
                raise StartFailed(f"{self.hosts} cannot be listened on ({error})") from error
            raise
        self._thread = thread
        _running.add(self)
        log.warning("embedded ZooKeeper on %s, %s", self.hosts, NOTICE)

    def stop(self) -> None:
        """End all connections and stop listening; data and sessions are kept in memory."""
        thread = self._thread
        if thread is None:
            return
        self._call(lambda: setattr(self, "_ending", True))
        thread.join()
        self._thread = None
        _running.discard(self)

    def restart(
        self,
        *,
        tick_time: int | None = None,
        min_session_timeout: int | None = None,
        max_session_timeout: int | None = None,
    ) -> None:
        """Stop and start; what is given replaces the setting, in milliseconds.

        Every session begins a whole timeout anew, as with a real server. It negotiates when its
        client connects again.
        """
        given = {
            "tick_time": tick_time,
            "min_session_timeout": min_session_timeout,
            "max_session_timeout": max_session_timeout,
        }
        rules = replace(
            self._rules, **{name: value for name, value in given.items() if value is not None}
        )
        self.stop()
        self._rules = rules
        self.start()

    # Faults.

    def delay(self, seconds: float) -> None:
        """Send everything later by this time, in order; 0 ends that."""
        check_seconds(seconds)
        self._call(lambda: setattr(self, "_delay", seconds))

    def mute(self, on: bool = True) -> None:
        """Read and answer nothing, accept nothing; sessions expire all the same."""
        self._call(lambda: setattr(self, "_muted", on))

    def pause(self) -> None:
        """Freeze, as a process that is stopped: nothing happens but that time goes on."""
        self._call(lambda: setattr(self, "_frozen", True))

    def resume(self) -> None:
        """Go on after `pause`. What has expired meanwhile ends first."""

        def go_on() -> None:
            self._frozen = False
            self._advance()

        if self.running:
            self._call(go_on)

    def refuse(self, on: bool = True) -> None:
        """Refuse new connections; the present ones stay."""

        def change() -> None:
            if on:
                self._close_listener()
            elif self._listener is None:
                self._listen()

        self._call(change)

    def drop(self) -> None:
        """Close all present connections at once. Sessions stay, and clients may connect again."""
        self._call(self._drop_all)

    def read_only(self, on: bool = True) -> None:
        """Be a read-only server, or be none any more; the present connections are closed."""

        def change() -> None:
            self._machine.read_only = on
            self._drop_all()

        self._call(change)

    def expire(self, session: HasSession | tuple[int, bytes] | int) -> None:
        """End a session now, as its expiry would: of this client, ``client_id``, or session id.

        When it returns, the session's ephemeral nodes are gone and its connection is closed.
        `ServerError` if there is no such session.
        """
        if not isinstance(session, int):
            client_id = session if isinstance(session, tuple) else session.client_id
            if client_id is None:
                raise ServerError("the client is not connected: note its client_id before")
            session = client_id[0]
        number = session

        def end() -> bool:
            lived = self._machine.expire(number, self._now())
            self._deliver()
            return lived

        if not self._call(end):
            raise ServerError(f"no session {number:#x}: it is over already")

    def set_child_counter(self, path: str, value: int) -> None:
        """Make the next sequential child of ``path`` get the number ``value``.

        ``value`` is a signed 32-bit number. `KeyError` if the znode does not exist.
        """
        if not -(2**31) <= value < 2**31:
            raise ValueError(f"a child counter is a signed 32-bit number, not {value}")
        if self.running:
            self._call(lambda: self._machine.set_child_counter(path, value))
        else:
            self._machine.set_child_counter(path, value)

    def _script(self, fault: ScriptedFault) -> ScriptedFault:
        self._call(lambda: self._faults.append(fault))
        return fault


def embedded(
    *,
    port: int | None = None,
    host: str = LOOPBACK,
    tick_time: int = 500,
    min_session_timeout: int | None = None,
    max_session_timeout: int | None = 60_000,
    max_frame: int = MAX_FRAME,
) -> EmbeddedServer:
    """Return a ZooKeeper in pure Python; ``with`` starts and stops it, in milliseconds.

    It needs neither Java nor containers. It is for tests, demos and a first try, and never for
    production: it is one process without a disk, and its data end with it.

    ``port`` is a free one by default. ``tick_time`` and the session timeouts are milliseconds.
    ``max_frame`` is the largest request in bytes; a larger one ends its connection.
    """
    return EmbeddedServer(
        port=port,
        host=host,
        tick_time=tick_time,
        min_session_timeout=min_session_timeout,
        max_session_timeout=max_session_timeout,
        max_frame=max_frame,
    )


_running = forgotten_by_children(_Sockets._forget)
