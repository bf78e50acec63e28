"""One connection through the fault proxy: two sockets, two links, and the faults on them.

Everything here runs on the proxy's event loop. A `Link` carries one direction. It cuts what its
source sends into frames, queues them, and delivers them as the direction's `Rule` says. The end of
a stream, and a fault's last act, go through the same queue, so that nothing overtakes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zklock.testing.frames import Dialogue, Direction, FrameKind, Header
from zklock.testing.ports import shut
from zklock.testing.zookeeper.codec import Splitter, framed

if TYPE_CHECKING:
    from zklock.testing.proxy import Fault, _Hub

TO_SERVER, TO_CLIENT = Direction.TO_SERVER, Direction.TO_CLIENT

_OPAQUE = Header(FrameKind.OPAQUE, "opaque")


@dataclass(slots=True)
class Rule:
    """The standing faults of one direction; ``delay`` in seconds."""

    delay: float = 0.0
    held: bool = False
    blackhole: bool = False


class End(asyncio.Protocol):
    """One of the two sockets; ``link`` gets what it receives."""

    def __init__(self, pair: Pair, link: ProxiedStream) -> None:
        self._pair = pair
        self._link = link
        self._transport: asyncio.Transport | None = None
        self._shut = False
        self.ready = False
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.ready = True
        self._pair.made(self)

    def data_received(self, data: bytes) -> None:
        self._link.receive(data)

    def eof_received(self) -> bool:
        """Keep the other direction: clients of four-letter words shut theirs, then read."""
        if self._pair.over:
            return False
        self._link.receive_end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._link.receive_end()
        self._pair.ended()

    def fail(self) -> None:
        """Act like a socket that was connected and lost at once."""
        self.ready = True
        self.connection_lost(None)

    def write(self, data: bytes) -> None:
        """Send, or discard if nobody reads any more."""
        if self._transport is not None and not self._shut and not self._transport.is_closing():
            self._transport.write(data)

    def shut(self) -> None:
        """End the outgoing stream after all that was written; go on receiving."""
        if self._transport is not None and not self._shut and not self._transport.is_closing():
            self._shut = True
            with contextlib.suppress(OSError):  # the far end has reset it and need not be told
                self._transport.write_eof()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            shut(self._transport.get_extra_info("socket"))
            self._transport.abort()


class ProxiedStream:
    """One direction of a connection: a queue of bytes and acts, delivered in order."""

    def __init__(self, pair: Pair, direction: Direction, rule: Rule) -> None:
        self._pair = pair
        self._direction = direction
        self._rule = rule
        self._loop = asyncio.get_running_loop()
        self.queue: deque[tuple[float, bytes | Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.source_ended = False
        self.muted = False  # what comes from now on is discarded; what is queued is delivered
        self.splitter = Splitter()
        self.sink: End
        self.ended = False

    def receive(self, data: bytes) -> None:
        bodies, opaque = ([], b"") if self.muted else self.splitter.feed(data)
        for body in bodies:
            if not self.muted:
                self._pair.arrived(self._direction, body)
        if opaque and not self.muted:
            self._pair.arrived_opaque(self._direction, opaque)

    def receive_end(self) -> None:
        """Take the end of the source's stream; only the first one counts."""
        if self.source_ended:
            return
        self.source_ended = True
        rest = self.splitter.rest()
        if not self.muted:
            if rest:
                self.put(rest)
            self.put(self._end)
        self._pair.hub.changed(self._pair)

    def put(self, item: bytes | Callable[[], None]) -> None:
        """Queue bytes, or an act for later in the queue; then deliver what may be delivered."""
        self.queue.append((self._loop.time() + self._rule.delay, item))
        self.pump()

    def pump(self) -> None:
        while self.queue and not self._rule.held and self.sink.ready:
            due, item = self.queue[0]
            if due > self._loop.time():
                if self._timer is None:
                    self._timer = self._loop.call_at(due, self._wake)
                return
            self.queue.popleft()
            if callable(item):
                item()
            elif self._rule.blackhole:
                self._pair.gap = True
            else:
                self.sink.write(item)

    def shut(self) -> None:
        """End the sink's stream, if the rule lets that through."""
        if self._rule.blackhole:
            self._pair.gap = True
        else:
            self.sink.shut()

    def _wake(self) -> None:
        self._timer = None
        self.pump()

    def _end(self) -> None:
        self.shut()
        if not self._rule.blackhole:
            self.ended = True
            self._pair.delivered_end(self._direction)


class Pair:
    """A client's socket, and the proxy's socket to the server that belongs to it.

    ``gap`` is set once a black hole has swallowed part of its stream, ``over`` once a fault has
    ended it. If a one-shot fault ends a connection, both sides are half-closed and read to their
    end. So a reset never destroys what was delivered before.
    """

    def __init__(self, hub: _Hub, number: int) -> None:
        self.hub = hub
        self.number = number
        self.dialogue = Dialogue()
        self.tally: Counter[tuple[Direction, FrameKind]] = Counter()
        self.gap = False
        self.over = False
        self.gone = asyncio.Event()
        self._links = {d: ProxiedStream(self, d, hub.rules[d]) for d in (TO_SERVER, TO_CLIENT)}
        self.client = End(self, self._links[TO_SERVER])
        self._server = End(self, self._links[TO_CLIENT])
        self._links[TO_SERVER].sink = self._server
        self._links[TO_CLIENT].sink = self.client
        self._aborted = False
        self._dialling: asyncio.Task[None] | None = None
        self._strikes: list[Fault] = []
        #: The xid of the answer at which a fault ends the connection; whether the client gets that
        #: answer; the fault.
        self._last_answer: tuple[int | None, bool, Fault] | None = None

    @property
    def open(self) -> bool:
        """Whether it is connected, and neither an end nor a fault has ended it."""
        ended = self.over or any(link.source_ended for link in self._links.values())
        return self.client.ready and not ended

    def made(self, end: End) -> None:
        if self._aborted:
            end.abort()
            if self._dialling is None:
                self._server.fail()
        elif end is self.client:
            self._dialling = asyncio.get_running_loop().create_task(self.hub.dial(self._server))
            self._dialling.add_done_callback(self._dialled)
            self.hub.changed(self)
        else:
            self.pump()

    def ended(self) -> None:
        if self.client.lost and self._server.lost:
            self._give_up()
            self.gone.set()
            self.hub.changed(self)

    def pump(self) -> None:
        for link in self._links.values():
            link.pump()

    def delivered_end(self, direction: Direction) -> None:
        """Close both sockets if nothing is left to deliver."""
        to_server = self._links[TO_SERVER]
        # A fault has muted the direction to the server, so the server will not answer any more.
        orphaned = direction is TO_CLIENT and to_server.muted
        if orphaned or all(link.ended for link in self._links.values()):
            self.over = True
            self.client.close()
            self._server.close()

    async def abort(self) -> None:
        """Close both sockets now; return when they are closed."""
        self._aborted = self.over = True
        for link in self._links.values():
            link.muted = True
            link.queue.clear()
        self.client.abort()
        self._server.abort()
        if self._dialling is not None:
            self._dialling.cancel()
        await self.gone.wait()

    def arrived_opaque(self, direction: Direction, data: bytes) -> None:
        """Take bytes that are not ZooKeeper's; the answer will not be ZooKeeper's, either."""
        for link in self._links.values():
            link.splitter.opaque = True
        self.hub.saw(self, direction, _OPAQUE, len(data))
        self._links[direction].put(data)

    def arrived(self, direction: Direction, body: bytes) -> None:
        """Take a frame: record it, then queue it or let a fault strike."""
        header, chunk = self.dialogue.read(direction, body), framed(body)
        strike = self.hub.saw(self, direction, header, len(body))
        if strike is not None:
            strike.act(self, chunk, header)
        elif not self._is_last_answer(direction, header, chunk):
            self._links[direction].put(chunk)

    # The acts of one-shot faults, with the frame that they strike at.

    def drop_before_request(self, strike: Fault, chunk: bytes, header: Header) -> None:
        """Let the server answer earlier requests, then end the connection."""
        self._strikes.append(strike)
        self._links[TO_SERVER].muted = True
        if header.kind is not FrameKind.HANDSHAKE:
            self.dialogue.retract()
        pending = self.dialogue.unanswered()
        if pending is None or self.gap:
            self._finish_in_turn()
        else:
            self._last_answer = (pending.xid, True, strike)

    def drop_after_request(self, strike: Fault, chunk: bytes, header: Header) -> None:
        """Forward the request; end the connection instead of delivering its answer."""
        self._strikes.append(strike)
        self._last_answer = (header.xid, False, strike)
        self._links[TO_SERVER].put(chunk)
        self._links[TO_SERVER].muted = True

    def drop_before_reply(self, strike: Fault, chunk: bytes, header: Header) -> None:
        """End the connection instead of delivering the reply."""
        self._strikes.append(strike)
        strike.answered = True
        self._finish_in_turn()

    def drop_after_reply(self, strike: Fault, chunk: bytes, header: Header) -> None:
        """Deliver the reply, then end the connection."""
        self._links[TO_CLIENT].put(chunk)
        self.drop_before_reply(strike, chunk, header)

    def hold_before_request(self, strike: Fault, chunk: bytes, header: Header) -> None:
        self._hold(TO_SERVER, strike, chunk)

    def hold_before_reply(self, strike: Fault, chunk: bytes, header: Header) -> None:
        strike.answered = True
        self._hold(TO_CLIENT, strike, chunk)

    def _hold(self, direction: Direction, strike: Fault, chunk: bytes) -> None:
        """Hold the direction, beginning with this frame."""
        self.hub.hold_all(direction)
        self._links[direction].put(chunk)
        strike.done()

    def _is_last_answer(self, direction: Direction, header: Header, chunk: bytes) -> bool:
        if self._last_answer is None or direction is TO_SERVER or header.kind is FrameKind.EVENT:
            return False
        xid, deliver, strike = self._last_answer
        if header.xid != xid:
            return False
        if deliver:
            self._links[TO_CLIENT].put(chunk)
        strike.answered = not deliver
        self._finish_in_turn()
        return True

    def _finish_in_turn(self) -> None:
        self._links[TO_CLIENT].muted = True
        self._links[TO_CLIENT].put(self._finish)

    def _finish(self) -> None:
        self.over = True
        for link in self._links.values():
            link.muted = True
            link.queue.clear()
            link.shut()
        for end, direction in ((self.client, TO_SERVER), (self._server, TO_CLIENT)):
            if self._links[direction].source_ended:
                end.close()
        self._give_up()
        self.hub.changed(self)

    def _give_up(self) -> None:
        while self._strikes:
            self._strikes.pop().done()

    def _dialled(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._server.fail()
