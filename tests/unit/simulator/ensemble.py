"""A leader and two followers, made of the embedded server's state machine.

Each follower notes whom it has heard of. The leader asks for that every half tick, counts a whole
timeout from then, and ends sessions at its ticks. A follower that is cut off from the leader
answers pings, and nothing else. It keeps requests and handshakes, also those of connections that
have ended since. When it hears of the leader again, the leader gets them in order. After one of
``SYNC_LIMITS``, in ticks, it gives up, and closes its connections.

The leader carries out a write only if the session lives, and *belongs* to the follower that sends
the write: this follower was the last whose handshake of the session has reached the leader. Any
other write is refused, and ends its connection without an answer. A handshake whose connection is
over counts, too. A thread of the leader's takes handshakes, and another one checks writes. So a
handshake can let writes pass that stand before it: the seed decides from which one on. Whoever
closes a session need not own it. A follower's ``sync`` is not checked.

Source: ``LearnerHandler``, ``LeaderZooKeeperServer``, ``SessionTrackerImpl``,
``PrepRequestProcessor``, ``ProposalRequestProcessor`` and ``FinalRequestProcessor`` of Apache
ZooKeeper 3.9.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from tests.unit.simulator.network import Network, SimulatedLink
from tests.unit.simulator.system import System
from zklock.testing.zookeeper import messages, words
from zklock.testing.zookeeper.codec import Acl, Op, Splitter
from zklock.testing.zookeeper.machine import WRITES, Body, Machine, Rules, Write, _Link
from zklock.testing.zookeeper.messages import (
    Answer,
    Close,
    Code,
    EventKind,
    HangUp,
    Message,
    Multi,
    Ping,
    Request,
)
from zklock.testing.zookeeper.sessions import ServerSession, Sessions
from zklock.testing.zookeeper.tree import Refused, Transaction

ADDRESSES = ("10.0.0.1", "10.0.0.2")
HOSTS = ",".join(f"{address}:2181" for address in ADDRESSES)
SYNC_LIMITS = (5, 12)
"""For how many ticks a follower waits for the leader; one of them for each seed."""


class Touches(Sessions[SimulatedLink]):
    """The leader's sessions. While ``noting`` is a follower's table, touches go there."""

    noting: dict[int, int] | None = None

    def touch(self, session: ServerSession[SimulatedLink], timeout: int, now: int) -> None:
        if self.noting is None:
            super().touch(session, timeout, now)
        else:
            self.noting[session.id] = timeout


class Hears(Protocol):
    """Who hears what becomes of nodes."""

    def gone(self, node: str, *, asked: bool) -> None:
        """Hear that a node has gone; ``asked``: a client has asked for that."""

    def written(self, path: str, session: int) -> bool:
        """Hear that data were written; return whether the writer's session ends, unanswered."""


class Refuses(Protocol):
    """Who hears what clients may not do."""

    def refused(self, request: Request, part: Request) -> None:
        """Hear that a client may not do this; ``part``: what is refused, of a transaction."""


class Leader(Machine[SimulatedLink]):
    """The state machine of the leader. It tells of what becomes of nodes."""

    hears: Hears | None = None
    rights: Refuses | None = None
    _ends = False  # the session whose request is carried out

    def request_late(
        self, connection: SimulatedLink, session_id: int, request: Request, now: int
    ) -> None:
        """Carry out a request that was under way when its connection ended.

        The session lives on, on another connection. The answer goes to the one that has ended.
        """
        session = self.sessions.find(session_id)
        if isinstance(request, Close):
            self.expire(session_id, now)
        elif session is not None:
            self._serve(connection, _Link(session, session.timeout), 0, request, now)

    def _serve(
        self, connection: SimulatedLink, link: Any, xid: int, request: Request, now: int
    ) -> None:
        super()._serve(connection, link, xid, request, now)
        if self._ends:
            self._ends = False
            self.outbox.pop()
            self.expire(link.session.id, now)

    def _write(self, txn: Transaction, link: Any, request: Write) -> Body:
        try:
            body = super()._write(txn, link, request)
        except Refused as refused:
            if self.rights is not None and refused.code is Code.NO_AUTH:
                self.rights.refused(request, request)
            raise
        denied = (Op.ERROR, (Code.NO_AUTH,))
        if self.rights is not None and isinstance(request, Multi) and denied in body[0]:
            self.rights.refused(request, request.parts[body[0].index(denied)])
        hears = self.hears
        if hears is None:
            return body
        for kind, path, _ in txn.changes:
            if kind is EventKind.DELETED:
                hears.gone(path, asked=True)
            elif kind is EventKind.DATA_CHANGED:
                self._ends |= hears.written(path, link.session.id)
        return body

    def _close(self, session: ServerSession[SimulatedLink], now: int) -> None:
        nodes = list(self.tree.ephemerals.get(session.id, ()))
        super()._close(session, now)
        self._tell_gone(nodes)

    def protect(self, path: str, acl: tuple[Acl, ...], now: int) -> None:
        """Give a node another ACL, as one whom no ACL stops."""
        node = self.tree.nodes[path]
        self._transact(now, lambda txn: txn.protect(node, acl, -1))

    def remove(self, path: str, now: int) -> None:
        super().remove(path, now)
        self._tell_gone([path])

    def _tell_gone(self, nodes: list[str]) -> None:
        if self.hears is not None:
            for node in nodes:
                self.hears.gone(node, asked=False)


class Follower:
    """A server that clients connect to."""

    def __init__(self, ensemble: Ensemble, address: str) -> None:
        self._ensemble = ensemble
        self.address = address
        self.up = True
        self.mute = False
        self.isolated: float | None = None  # since when it is cut off from the leader
        self.given_up = False
        self.touched: dict[int, int] = {}
        self.waiting: list[Callable[[], object]] = []  # what it does when it hears of the leader
        self._unread: list[tuple[SimulatedLink, bytes | None]] = []  # while it is mute
        self._splitters: dict[SimulatedLink, Splitter] = {}
        self.known: dict[SimulatedLink, int] = {}  # the session of each connection

    @property
    def accepts(self) -> bool | None:
        if self.mute:
            return None
        return self.up

    def take(self, link: SimulatedLink, data: bytes | None) -> None:
        if self.mute:
            self._unread.append((link, data))
            return
        if link.over:
            return
        if not self.up:
            link.down.send(None)
            return
        if data is None:
            self.end(link)
            return
        frames, opaque = self._splitters.setdefault(link, Splitter()).feed(data)
        for frame in frames:
            if not link.over:
                self._take(link, frame)
        if opaque and words.is_word(opaque[:4]):
            view = words.View(self._ensemble.machine, 2181, 0, 0, [("", 0)] * len(self.known))
            answer = words.answer(opaque[:4], view)
            link.down.send(b"not currently serving\n" if self.given_up else answer)
            link.down.send(None)

    def _take(self, link: SimulatedLink, frame: bytes) -> None:
        if link not in self.known:
            self.known[link] = 0
            self._ensemble.race(self, frame)
            self._ask(partial(self._ensemble.connect, self, link, frame))
            return
        xid, request = messages.read_request(frame)
        if isinstance(request, Ping) and self.known[link] and self.isolated is not None:
            self.touched[self.known[link]] = self._ensemble.timeout_of(link)
            link.down.send(messages.frame(Answer(-2, self._ensemble.machine.zxid, 0)))
        else:
            session = self.known[link]
            self._ask(partial(self._ensemble.request, self, link, session, xid, request))

    def _ask(self, call: Callable[[], object]) -> None:
        if self.isolated is None:
            call()
        else:
            self.waiting.append(call)

    def pause(self) -> None:
        """Stop this server's process."""
        self.mute = True

    def resume(self) -> None:
        """Let it go on: it reads what has come meanwhile."""
        self.mute = False
        unread, self._unread = self._unread, []
        for each in unread:
            self.take(*each)

    def end(self, link: SimulatedLink) -> None:
        """Note that a connection has ended."""
        link.over = True
        self._splitters.pop(link, None)
        if self.known.pop(link, None) is not None:
            self._ensemble.lost(link)

    def close_all(self) -> None:
        """Close all connections, and forget what was to be done."""
        for link in list(self.known):
            link.down.send(None)
            self.end(link)
        self._splitters.clear()
        self.waiting.clear()
        self.touched.clear()


class Ensemble:
    """The leader, and its followers."""

    def __init__(self, system: System, network: Network, rules: Rules) -> None:
        self._system = system
        self._rng = random.Random(f"ensemble {system.seed}")
        self.rules = rules
        self.machine = Leader(rules, self._now(), since_epoch=1_000_000)
        self._sessions = Touches(rules.tick_time, 1 << 56)
        self.machine.sessions = self._sessions
        self.followers = [Follower(self, address) for address in ADDRESSES]
        self._home: dict[SimulatedLink, Follower] = {}
        self._timeouts: dict[SimulatedLink, int] = {}
        self._owners: dict[int, Follower] = {}  # whose writes of a session pass
        self.sync_limit = random.Random(f"sync limit {system.seed}").choice(SYNC_LIMITS)
        self.throttles = 0.0  # how often a request is throttled
        self.loses = 0.0  # how often a request, or its reply, is lost with the connection
        for follower in self.followers:
            network.listeners[follower.address] = follower
        system.after(rules.tick_time / 2000, self._tick)

    def _now(self) -> int:
        return round(self._system.now * 1000)

    def timeout_of(self, link: SimulatedLink) -> int:
        return self._timeouts[link]

    # What arrives.

    def connect(self, follower: Follower, link: SimulatedLink, frame: bytes) -> None:
        self.own(follower, frame)
        if link not in follower.known:
            return
        request = messages.read_connect(frame)
        self._home[link] = follower
        self._timeouts[link] = self.machine.rules.timeout(request.timeout)
        self.machine.connect(link, request, self._now(), "10.0.0.9")
        follower.known[link] = self.machine.linked(link)
        self._post()

    def own(self, follower: Follower, frame: bytes) -> None:
        """Make a follower the owner of the session of a handshake, if it lives."""
        request = messages.read_connect(frame)
        session = self._sessions.find(request.session)
        if session is not None and session.password == request.password:
            self._owners[session.id] = follower
            timeout = self.machine.rules.timeout(request.timeout)
            self._sessions.touch(session, timeout, self._now())

    def race(self, follower: Follower, frame: bytes) -> None:
        """Let a handshake that has to wait make its follower the owner before some requests."""
        if follower.isolated is not None:
            index = self._rng.choice((0, self._rng.randint(0, len(follower.waiting))))
            follower.waiting.insert(index, partial(self.own, follower, frame))

    def request(
        self, follower: Follower, link: SimulatedLink, session: int, xid: int, request: Request
    ) -> None:
        owned = self._owners.setdefault(session, follower) is follower
        if not self.machine.linked(link):
            if isinstance(request, Close) or (isinstance(request, WRITES) and owned):
                self.machine.request_late(link, session, request, self._now())
                self._post(silent=link)
            return
        if isinstance(request, WRITES) and not owned:
            link.down.send(None)
            follower.end(link)
            return
        rolled = self._rng.random()
        self._sessions.noting = follower.touched
        try:
            if rolled < self.throttles:
                self.machine.throttle(link, xid, self._now())
            elif rolled < self.throttles + self.loses:
                carried_out = self._rng.random() < 0.7
                if carried_out:
                    self.machine.request(link, xid, request, self._now())
                self._post(silent=link)
                link.down.send(None)
                follower.end(link)
            else:
                self.machine.request(link, xid, request, self._now())
        finally:
            self._sessions.noting = None
        self._post()

    def lost(self, link: SimulatedLink) -> None:
        self.machine.lost(link)
        self._home.pop(link, None)
        self._timeouts.pop(link, None)

    def _post(self, silent: SimulatedLink | None = None) -> None:
        while self.machine.outbox:
            link, message = self.machine.outbox.popleft()
            follower = self._home.get(link)
            if follower is None or link is silent:
                continue
            if follower.isolated is None:
                self._say(follower, link, message)
            else:
                follower.waiting.append(partial(self._say, follower, link, message))

    def _say(self, follower: Follower, link: SimulatedLink, message: Message) -> None:
        if isinstance(message, HangUp):
            link.down.send(None)
            follower.end(link)
        else:
            link.down.send(messages.frame(message))

    # Time.

    def _tick(self) -> None:
        now = self._now()
        for follower in self.followers:
            if follower.isolated is None:
                self._learn(follower, now)
            elif not follower.mute and self._waits_too_long(follower):
                follower.given_up = True
                follower.close_all()
        if now >= self.machine.due():
            self.machine.advance(now)
            self._post()
        self._system.after(self.machine.rules.tick_time / 2000, self._tick)

    def _waits_too_long(self, follower: Follower) -> bool:
        since = follower.isolated
        limit = self.sync_limit * self.machine.rules.tick_time
        return since is not None and self._now() - since >= limit

    def _learn(self, follower: Follower, now: int) -> None:
        for session_id, timeout in follower.touched.items():
            session = self._sessions.find(session_id)
            if session is not None:
                self._sessions.touch(session, timeout, now)
        follower.touched.clear()

    # Faults.

    def isolate(self, follower: Follower) -> None:
        """Cut a follower off from the leader."""
        if follower.isolated is None:
            follower.isolated = self._now()

    def rejoin(self, follower: Follower) -> None:
        """Let it hear of the leader again."""
        if self._waits_too_long(follower):
            follower.close_all()
        follower.isolated = None
        follower.given_up = False
        waiting, follower.waiting = follower.waiting, []
        for call in waiting:
            call()

    def pause(self, follower: Follower) -> None:
        """Stop the process of a follower."""
        self.isolate(follower)
        follower.pause()

    def resume(self, follower: Follower) -> None:
        """Let it go on. The leader has dropped it if it was away for long."""
        self.rejoin(follower)
        follower.resume()

    def restart(self, rules: Rules, seconds: float) -> None:
        """Restart all servers, with other settings."""
        for follower in self.followers:
            follower.up = False
            follower.close_all()

        def begin() -> None:
            self.machine.restart(rules, self._now())
            self._owners.clear()
            for follower in self.followers:
                follower.close_all()  # another restart may have ended meanwhile
                follower.up = True

        self._system.after(seconds, begin)

    def expire(self, session_id: int) -> None:
        """End a session at once."""
        self.machine.expire(session_id, self._now())
        self._post()

    def delete(self, path: str) -> None:
        """Delete a node, as an operator does."""
        self.machine.remove(path, self._now())
        self._post()

    def protect(self, path: str, acl: tuple[Acl, ...]) -> None:
        """Give a node another ACL, as an operator does."""
        self.machine.protect(path, acl, self._now())
        self._post()

    def epoch(self, path: str) -> int:
        """Return the number of the transaction that has made a node that is there."""
        return self.machine.tree.nodes[path].czxid

    def names(self, path: str) -> list[str]:
        """Return the children of a node."""
        node = self.machine.tree.nodes.get(path)
        return [] if node is None else list(node.children)

    def data(self, path: str) -> bytes:
        """Return the data of a node."""
        node = self.machine.tree.nodes.get(path)
        return b"" if node is None or node.data is None else node.data

    def ephemerals(self) -> list[str]:
        """Return the nodes that belong to sessions."""
        return [path for mine in self.machine.tree.ephemerals.values() for path in mine]
