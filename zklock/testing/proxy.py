"""A TCP proxy in front of one ZooKeeper server that can fail the way networks fail.

There are two kinds of faults. *Standing* faults (`~FaultProxy.cut`, `~FaultProxy.blackhole`,
`~FaultProxy.delay`, `~FaultProxy.hold`) last until `~FaultProxy.restore`. They apply to every
connection, present and new. *One-shot* faults (``drop_…``, ``hold_before_…``) wait for the n-th
matching frame and strike once. The call returns a `Fault`.

These rules say what counts, to enumerate faults, and to repeat them in every run:

- a *request* is a frame from the client after its handshake. Not requests: pings, and the frames
  that carry no work (``auth``, ``sasl``, ``setWatches``). ``closeSession`` is a request.
- a *reply* is the server's answer to a request, an *event* is a watch notification.
- pings and their answers, handshakes and the frames without work are recorded. They count neither
  as requests nor as replies.
- a frame counts when the proxy has read all of it, whatever happens to it then. Once a one-shot
  fault has ended a direction, nothing is read there any more.

The proxy passes TLS on without reading it. It does the same with anything else that does not begin
with ZooKeeper's handshake (``srvr`` and the other four-letter words). All this is recorded as
opaque chunks and counts as nothing. Standing faults and `~FaultProxy.drop` work on such
connections; one-shot faults never match. A proxy buffers without limit whatever it delays, holds,
or cannot write yet.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from zklock._ground import threads
from zklock._ground.clock import clock
from zklock._ground.numbers import check_int
from zklock.testing.external import one_server
from zklock.testing.frames import Direction, Frame, FrameKind, Header, known_ops
from zklock.testing.ports import shut
from zklock.testing.proxied import End, Pair, Rule
from zklock.testing.settings import check_seconds
from zklock.testing.watchdog import forgotten_by_children

__all__ = ["Connection", "Counts", "Direction", "Fault", "FaultProxy", "Frame", "FrameKind"]

TO_SERVER, TO_CLIENT = Direction.TO_SERVER, Direction.TO_CLIENT

_COUNTED = {TO_SERVER: FrameKind.REQUEST, TO_CLIENT: FrameKind.REPLY}


class HasHosts(Protocol):
    """Anything with an address, such as a `ZooKeeperServer`; read again at every connection."""

    @property
    def hosts(self) -> str:
        """``host:port``, with a chroot or without."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Frames read so far; ``pings`` are the client's, ``pongs`` the server's answers."""

    requests: int = 0
    replies: int = 0
    events: int = 0
    pings: int = 0
    pongs: int = 0


@dataclass(frozen=True, slots=True)
class Connection:
    """One client connection, as it was at the moment of the call.

    ``session_id`` and ``session_timeout`` (negotiated, seconds) are ``None`` until the server
    has granted a session. ``open`` is false once either end, or a fault, has ended it.
    """

    number: int
    open: bool
    session_id: int | None
    session_timeout: float | None
    counts: Counts


class Fault:
    """A one-shot fault: ``fired`` is set when it has struck and done all of its work.

    Then ``frame`` is the frame that it struck at, and ``answered`` says whether the server's answer
    to that request was seen. If the connection ends by other means in the middle of that work,
    ``fired`` is set, too.
    """

    def __init__(
        self,
        proxy: FaultProxy,
        *,
        direction: Direction,
        n: int,
        match: _Match,
        act: _Act,
        name: str,
    ) -> None:
        self.fired = threading.Event()
        self.frame: Frame | None = None
        self.answered = False
        self._act = act
        self._proxy = proxy
        self._name = name
        self._direction = direction
        self._left = n
        self._match = match
        self._error: Exception | None = None

    def wait(self, timeout: float) -> Frame:
        """Return the frame it struck at, once `fired`; `TimeoutError` after ``timeout`` seconds.

        An exception that ``where`` raised disarms the fault and is raised here.
        """
        if not self.fired.wait(timeout):
            raise TimeoutError(f"{self!r} has not fired in {timeout} s; {self._proxy.tail()}")
        if self._error is not None:
            raise self._error
        assert self.frame is not None
        return self.frame

    def cancel(self) -> None:
        """Disarm the fault; if it has struck already, that is not undone."""
        self._proxy._do(lambda: self._proxy._disarm(self))

    def __repr__(self) -> str:
        state = "fired" if self.fired.is_set() else "struck" if self.frame else "armed"
        return f"<Fault {self._name}: {state}>"

    def strikes(self, frame: Frame) -> bool:
        """Count the frame; the proxy asks once for each frame, on its own thread."""
        try:
            if frame.direction is not self._direction or not self._match(frame):
                return False
        except Exception as error:
            self._error = error
            self.fired.set()
            return False
        self._left -= 1
        if self._left == 0:
            self.frame = frame
        return self._left == 0

    def act(self, pair: Pair, chunk: bytes, header: Header) -> None:
        """Do the work on the connection; only the proxy calls this."""
        self._act(pair, self, chunk, header)

    def done(self) -> None:
        """Receive the news that the work is done; only the proxy calls this."""
        self.fired.set()


_Match = Callable[[Frame], bool]


class _Act(Protocol):
    __name__: str

    def __call__(self, pair: Pair, strike: Fault, chunk: bytes, header: Header, /) -> None: ...


class _Hub:
    """The connections of a proxy, on its thread; ``_do`` is for others."""

    def __init__(self, server: str | HasHosts, record: int) -> None:
        self._server = server
        self.rules = {TO_SERVER: Rule(), TO_CLIENT: Rule()}
        self._armed: list[Fault] = []
        self._news = threading.Condition()
        self._frames: deque[Frame] = deque(maxlen=record)
        self._number = 0
        self._tally: Counter[tuple[Direction, FrameKind]] = Counter()
        self._open: dict[int, Pair] = {}
        self._ended: deque[Connection] = deque(maxlen=record)
        self._closed = False
        self._accepted = 0
        self._listening: socket.socket | None = None
        self._greetings: set[asyncio.Task[object]] = set()
        self._reserved = _socket()
        self._reserved.bind(("127.0.0.1", 0))
        self.port: int = self._reserved.getsockname()[1]
        self._loop = asyncio.SelectorEventLoop()  # whatever loops the program under test has
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"zklock-fault-proxy-{self.port}", daemon=True
        )
        threads.begin(self._thread)
        self._do(self._listen)

    def _do(self, step: Callable[[], Awaitable[None] | None]) -> None:
        """Take a step on the proxy's thread."""
        if self._closed:
            raise RuntimeError("the proxy is closed")
        if threading.current_thread() is self._thread:
            raise RuntimeError("a predicate must not call the proxy")

        async def run() -> None:
            left = step()
            if left is not None:
                await left

        asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def _set_rule(self, name: str, values: Mapping[Direction, object]) -> None:
        """Set a part of the rules of these directions."""

        def change() -> None:
            for direction, value in values.items():
                setattr(self.rules[direction], name, value)
            self._pump()

        self._do(change)

    def _pump(self) -> None:
        for pair in [*self._open.values()]:
            pair.pump()

    def _listen(self) -> None:
        if self._listening is None:
            listener = _socket()
            listener.bind(("127.0.0.1", self.port))
            listener.listen(100)
            listener.setblocking(False)
            self._loop.add_reader(listener, self._accept, listener)
            self._listening = listener

    async def _end_all(self) -> None:
        if self._listening is not None:
            self._loop.remove_reader(self._listening)
            shut(self._listening)
            self._listening.close()
            self._listening = None
        await self._drop_all()

    async def _drop_all(self) -> None:
        while self._listening is not None and self._accept(self._listening):
            pass
        await asyncio.gather(*(pair.abort() for pair in [*self._open.values()]))

    async def _mend(self) -> None:
        await asyncio.gather(*(pair.abort() for pair in [*self._open.values()] if pair.gap))
        for rule in self.rules.values():
            rule.blackhole, rule.held, rule.delay = False, False, 0.0
        self._pump()
        self._listen()

    def _accept(self, listener: socket.socket) -> bool:
        # asyncio's own server loses connections that it accepts while it closes.
        try:
            accepted, _ = listener.accept()
        except OSError:  # there is no connection, or it has gone again
            return False
        self._accepted += 1
        pair = Pair(self, self._accepted)
        self._open[pair.number] = pair
        greeting = self._loop.create_task(
            self._loop.connect_accepted_socket(lambda: pair.client, accepted)
        )
        self._greetings.add(greeting)
        greeting.add_done_callback(self._greetings.discard)
        return True

    def _disarm(self, fault: Fault) -> None:
        self._armed = [each for each in self._armed if each is not fault]

    async def dial(self, end: End) -> None:
        """Connect this end to the server; only connections call this."""
        host, port, _ = one_server(_text(self._server))
        await self._loop.create_connection(lambda: end, host, port)

    def saw(self, pair: Pair, direction: Direction, header: Header, size: int) -> Fault | None:
        """Record a frame and return the fault that strikes at it; only connections call this."""
        with self._news:
            self._number += 1
            frame = Frame(
                self._number, clock(), pair.number, direction,
                header.kind, header.op, size, header.xid, header.path, header.error,
            )  # fmt: skip
            self._frames.append(frame)
            self._tally[direction, header.kind] += 1
            pair.tally[direction, header.kind] += 1
            self._news.notify_all()
        struck = next((fault for fault in self._armed if fault.strikes(frame)), None)
        self._armed = [
            fault for fault in self._armed if fault is not struck and not fault.fired.is_set()
        ]
        return struck

    def hold_all(self, direction: Direction) -> None:
        """Hold a direction; only connections call this."""
        self.rules[direction].held = True

    def changed(self, pair: Pair) -> None:
        """Receive the news that a connection has changed; only connections call this."""
        with self._news:
            if pair.gone.is_set() and self._open.pop(pair.number, None) is not None:
                self._ended.append(_snapshot(pair))
            self._news.notify_all()


class FaultProxy(_Hub):
    """Stands in front of one server, on its own loopback port, which survives every fault.

    ``server`` is ``"host:port"`` or an object with such a ``hosts``. Connect clients to
    ``proxy.hosts``. Use the proxy as a context manager, or call `close`. ``record`` limits how many
    frames and how many ended connections are remembered; the counts go on. All methods may be
    called from any thread, and have taken effect when they return. Do not call them from a
    ``where`` predicate: it runs on the proxy's own thread.
    """

    def __init__(self, server: str | HasHosts, *, record: int = 10_000) -> None:
        _, _, chroot = one_server(_text(server))
        super().__init__(server, record)
        self.hosts = f"127.0.0.1:{self.port}{chroot}"
        _running.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<FaultProxy {self.hosts} of {_text(self._server)}>"

    def close(self) -> None:
        """End everything, including the port. Further calls of `close` do nothing."""
        if self._closed:
            return
        self._do(self._end_all)
        self._closed = True
        _running.discard(self)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._reserved.close()

    # Standing faults

    def cut(self) -> None:
        """Close every connection and refuse new ones, like a machine whose server has died."""
        self._do(self._end_all)

    def blackhole(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Drop everything in these directions; deliver as usual in the other.

        Connections stay open, even when the far end closes its own. New connections are accepted
        and hang. Each call sets both directions anew.
        """
        self._set_rule("blackhole", {TO_SERVER: to_server, TO_CLIENT: to_client})

    def delay(self, seconds: float, *, to_server: bool = True, to_client: bool = True) -> None:
        """Deliver what is read from now on so many seconds later, in order; 0 ends the delay."""
        check_seconds(seconds)
        self._set_rule("delay", dict.fromkeys(_chosen(to_server, to_client), seconds))

    def hold(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Keep back everything in these directions, even closing, until `release`.

        New connections are accepted and hang. This is like a partition that heals in time.
        """
        self._set_rule("held", dict.fromkeys(_chosen(to_server, to_client), True))

    def release(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Deliver what `hold` kept back, in order, and hold no more."""
        self._set_rule("held", dict.fromkeys(_chosen(to_server, to_client), False))

    def restore(self) -> None:
        """End every standing fault; one-shot faults stay armed.

        Connections that lost something in a black hole are closed, because their stream has a gap.
        The others go on, and deliver what was held or delayed.
        """
        self._do(self._mend)

    # One-shot faults

    def drop(self) -> None:
        """Close the present connections at once, without delivering anything more."""
        self._do(self._drop_all)

    def drop_before_request(
        self, n: int = 1, *, op: str | Collection[str] = (), where: _Match | None = None
    ) -> Fault:
        """Arm: close the connection instead of forwarding its client's n-th matching request.

        The requests before it are answered first: all of them have happened, and the client knows
        it. The requests after it reach nobody.

        ``n`` counts from now, over all connections. ``op`` (a name, or several) and ``where``
        narrow the match. Without ``op``, only requests match. A named op matches every kind of
        frame: ``"connect"`` is the handshake; ``"ping"`` and ``"auth"`` match, too. If several
        faults wait for the same frame, they strike one at a time, the oldest first. When one has
        struck at a frame, the younger ones do not count that frame.
        """
        return self._arm(Pair.drop_before_request, TO_SERVER, n, op, where)

    def drop_after_request(
        self, n: int = 1, *, op: str | Collection[str] = (), where: _Match | None = None
    ) -> Fault:
        """Arm: forward the n-th matching request, and close before its client hears of it.

        The connection is closed when the server has answered, so the request has happened (unless
        the server went away: see `Fault.answered`). Replies to the requests before it reach the
        client. Requests after it reach nobody. Arguments as in `drop_before_request`.
        """
        return self._arm(Pair.drop_after_request, TO_SERVER, n, op, where)

    def drop_before_reply(
        self, n: int = 1, *, op: str | Collection[str] = (), where: _Match | None = None
    ) -> Fault:
        """Arm: swallow the n-th matching reply and close its connection.

        Everything before it reaches the client. The client may have sent requests after the one
        that this reply answers; these may have reached the server. `drop_after_request` excludes
        that.

        Arguments as in `drop_before_request`. A named op also matches an event of that type
        (``op="NodeDeleted"``); ``"connect"`` matches the server's side of the handshake.
        """
        return self._arm(Pair.drop_before_reply, TO_CLIENT, n, op, where)

    def drop_after_reply(
        self, n: int = 1, *, op: str | Collection[str] = (), where: _Match | None = None
    ) -> Fault:
        """Arm: deliver the n-th matching reply, then close. Otherwise as `drop_before_reply`."""
        return self._arm(Pair.drop_after_reply, TO_CLIENT, n, op, where)

    def hold_before_request(
        self, n: int = 1, *, op: str | Collection[str] = (), where: _Match | None = None
    ) -> Fault:
        """Arm: `hold` the direction to the server, from the n-th matching request on.

        Arguments as in `drop_before_request`.
        """
        return self._arm(Pair.hold_before_request, TO_SERVER, n, op, where)

    def hold_before_reply(
        self, n: int = 1, *, op: str | Collection[str] = (), where: _Match | None = None
    ) -> Fault:
        """Arm: `hold` the direction to the client, from the n-th matching reply on.

        Arguments as in `drop_before_reply`.
        """
        return self._arm(Pair.hold_before_reply, TO_CLIENT, n, op, where)

    # What has passed through

    @property
    def counts(self) -> Counts:
        """Frames counted since the proxy began, over all connections."""
        with self._news:
            return _counts(self._tally)

    @property
    def connections(self) -> tuple[Connection, ...]:
        """Every connection, ended ones included, oldest first."""
        with self._news:
            known = [*self._ended, *(_snapshot(pair) for pair in self._open.values())]
        return tuple(sorted(known, key=lambda connection: connection.number))

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The recorded frames, oldest first: at most the last ``record``."""
        with self._news:
            return tuple(self._frames)

    def mark(self) -> int:
        """Return the number of the latest frame, for ``since``; 0 if there was none."""
        with self._news:
            return self._number

    def tail(self, count: int = 10) -> str:
        """Return the last frames as text, for a failure message."""
        lines = [
            f"  {f.number} #{f.connection} {f.direction.value}: {f.kind.value} {f.op}"
            f" xid={f.xid} path={f.path} error={f.error} size={f.size}"
            for f in self.frames[-count:]
        ]
        return "\n".join(["last frames:", *(lines or ["  none"])])

    def wait_for_frame(self, where: _Match, timeout: float, *, since: int = 0) -> Frame:
        """Return the first recorded frame after number ``since`` for which ``where`` is true.

        Frames from before the call count, too. Take a `mark` before the action whose frame you
        await. `TimeoutError` after ``timeout`` seconds.
        """
        seen = since
        found: list[Frame] = []

        def look() -> bool:
            nonlocal seen
            new = [frame for frame in self._frames if frame.number > seen]
            seen = max(seen, self._number)
            found.extend(filter(where, new))
            return bool(found)

        self.wait_until(look, timeout)
        return found[0]

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> None:
        """Return when ``condition()`` is true; it is checked after every frame and connection.

        For example ``proxy.wait_until(lambda: proxy.counts.events == 2, 5.0)``. `TimeoutError`
        after ``timeout`` seconds.
        """
        with self._news:
            met = self._news.wait_for(condition, timeout)
        if not met:
            raise TimeoutError(f"nothing of the kind in {timeout} s; {self.tail()}")

    def _arm(
        self,
        act: _Act,
        direction: Direction,
        n: int,
        op: str | Collection[str],
        where: _Match | None,
    ) -> Fault:
        check_int("n", n, 1)
        ops = frozenset([op] if isinstance(op, str) else op)
        known = known_ops(direction)
        if unknown := ops - known:
            raise ValueError(
                f"no operation {', '.join(sorted(unknown))} {direction.value}: use "
                f"{', '.join(sorted(known))}"
            )

        def match(frame: Frame) -> bool:
            fits = frame.op in ops if ops else frame.kind is _COUNTED[direction]
            return fits and (where is None or where(frame))

        which = f"{n} of {', '.join(sorted(ops))}" if ops else str(n)
        name = act.__name__.replace("_", " ")
        fault = Fault(self, direction=direction, n=n, match=match, act=act, name=f"{name} {which}")
        self._do(lambda: self._armed.append(fault))
        return fault


# The thread and the connections belong to the parent.
_running: set[_Hub] = forgotten_by_children(lambda hub: setattr(hub, "_closed", True))


def _snapshot(pair: Pair) -> Connection:
    return Connection(
        pair.number,
        pair.open,
        pair.dialogue.session_id,
        pair.dialogue.session_timeout,
        _counts(pair.tally),
    )


def _counts(tally: Counter[tuple[Direction, FrameKind]]) -> Counts:
    return Counts(
        requests=tally[TO_SERVER, FrameKind.REQUEST],
        replies=tally[TO_CLIENT, FrameKind.REPLY],
        events=tally[TO_CLIENT, FrameKind.EVENT],
        pings=tally[TO_SERVER, FrameKind.PING],
        pongs=tally[TO_CLIENT, FrameKind.PING],
    )


def _chosen(to_server: bool, to_client: bool) -> list[Direction]:
    return [TO_SERVER] * to_server + [TO_CLIENT] * to_client


def _text(server: str | HasHosts) -> str:
    return server if isinstance(server, str) else server.hosts


def _socket() -> socket.socket:
    # A socket that is bound and never listens reserves the port. While the proxy is cut, the
    # kernel refuses connections to the port and gives it to nobody else. Linux lets another
    # socket bind and listen beside it if both set SO_REUSEADDR.
    # asyncio sends small segments at once, but only for sockets whose protocol is given as TCP.
    endpoint = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return endpoint
