"""A session on a clock of the test's, with a fake shell, and a server without sockets.

Nothing happens by itself, and nothing waits: ``World.run(seconds)`` moves the clock from one event
to the next. All goes through the bytes of the wire, in one thread. What is posted runs outside of
steps, as on the client's own thread.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import zklock
from zklock._core.attempt import Attempt
from zklock._core.grant import GrantOptions
from zklock._core.link import Broken, Flight, Link
from zklock._core.session import Session
from zklock._core.wire import Codec
from zklock._election.candidate import Candidacy
from zklock._ground.loss import LossReason
from zklock._recipes import lock as lock_recipe, names
from zklock._recipes.effects import Request
from zklock.errors import ClientClosed
from zklock.testing.zookeeper import messages
from zklock.testing.zookeeper.codec import Acl
from zklock.testing.zookeeper.machine import Machine, Rules
from zklock.testing.zookeeper.messages import Answer, Connected, HangUp

PATH = "/lock"
TIMEOUT = 12.0
CLOSED = ClientClosed("the client is closed")


class Shell:
    """Drives a session by hand; see ``zklock._core.ports.Shell``. Steps are as in ``Handler``."""

    on_real_clock = False
    thread: Any = None
    pinged_back: Any = None
    went_back: Any = None

    def __init__(self, world: World) -> None:
        self._world = world
        self._jobs: deque[Callable[[], object]] = deque()
        self.post: Callable[[Callable[[], object]], object] = self._jobs.append
        self.client = world.client
        self.forked = False
        self.behind = False  # whether the user has queued requests in kazoo
        self.torn = False
        self._inside = False

    def now(self) -> float:
        return self._world.now

    def later(self, job: Callable[[], object]) -> None:
        self.post(job)

    def wake(self) -> None:
        """``World.run`` looks what is due."""

    def step(self, call: Callable[..., Any], *what: Any) -> Any:
        if self._inside:
            return call(*what)
        self._inside = True
        try:
            if self.torn:
                self._world.session.mend()
                self.drop()
            self.torn = True
            result = call(*what)
            self._world.flush()
            self.torn = False
        finally:
            self._inside = False
        return result

    def inside(self) -> bool:
        return self._inside

    def due(self, when: float) -> None:
        """``World.run`` asks for it."""

    def drop(self) -> None:
        self._world.lose()

    def is_behind(self) -> bool:
        return self.behind

    def when_sent(self, call: Callable[[], object]) -> None:
        self._world.at(self._world.now + 1, call)

    def notify(self, calls: Any) -> None:
        for call in calls:
            self._world.callbacks.append((self._world.now, call))
            self.post(call)

    def limit(self, seconds: float | None, wake: Callable[[], object]) -> float | None:
        return seconds

    reader: Any = None

    def read_for(self, reader: Any) -> None:
        """Nothing comes by itself."""

    def lend(self, reader: Any) -> None:
        """Nothing comes by itself."""

    def hear(self, reader: Any) -> bool:
        raise NotImplementedError

    def listen(self, reader: Any) -> None:
        raise NotImplementedError

    def wait(self, pending: Any, timeout: float | None) -> bool:
        self._world.run(timeout or 0.0)
        return bool(pending.done)

    def check_process(self) -> None:
        """It is no fork."""

    def closed_error(self) -> ClientClosed:
        return CLOSED

    def shaken(self, milliseconds: int, session_id: int, *, read_only: bool) -> None:
        if milliseconds == 0:
            self._world.session.end(LossReason.SESSION_EXPIRED)
        elif not read_only:
            self._world.session.connected_as(milliseconds / 1000, session_id)

    def work(self) -> bool:
        """Run what was posted; return whether there was something."""
        some = bool(self._jobs)
        while self._jobs:
            self._jobs.popleft()()
        return some


class Noting(Link):
    """A link that notes what is asked."""

    def __init__(self, world: World) -> None:
        super().__init__(world.session, world.session.shell)
        self._world = world

    def ask(self, codec: Codec, flight: Flight, most: int) -> None:
        world = self._world
        world.sent += [(world.now, request) for request in flight.requests[:most]]
        super().ask(codec, flight, most)


class Server:
    """A server, and others that use it. Sessions do not end by themselves."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._others = count(1)
        rules = Rules(tick_time=500, min_session_timeout=1, max_session_timeout=10**6)
        self.machine: Machine[int] = Machine(rules, self._now)

    @property
    def _now(self) -> int:
        return round(1000 * self._world.now)

    def names(self, path: str = PATH) -> list[str]:
        """Return the children of a node."""
        nodes = self.machine.tree.nodes
        return sorted(nodes[path].children) if path in nodes else []

    def open_session(self) -> int:
        """Return another session, which lives for long."""
        other = -next(self._others)
        request = messages.Connect(0, 10**6, 0, b"", None)
        self.machine.connect(other, request, self._now, "10.0.0.1")
        return other

    def create(self, prefix: str, data: bytes, other: int, flags: int = 3) -> str:
        """Have another session create a node; return its path."""
        acl = [Acl(31, "world", "anyone")]
        body = self._ask(other, messages.Create(prefix, data, acl, flags))
        return str(body.body[0])

    def make_path(self, path: str) -> None:
        """Make a node that stays."""
        if path not in self.machine.tree.nodes:
            self.create(path, b"", self.open_session(), flags=0)

    def write(self, path: str, data: bytes) -> None:
        """Have another session write."""
        self._ask(self.open_session(), messages.SetData(path, data, -1))

    def deny(self, path: str) -> None:
        """Let nobody do anything with a node any more."""
        acl = [Acl(0, "world", "anyone")]
        self._ask(self.open_session(), messages.SetAcl(path, acl, -1))

    def delete(self, path: str) -> None:
        """Delete a node."""
        self.machine.remove(path, self._now)

    def expire(self, session: int) -> None:
        """End a session."""
        self.machine.expire(session, self._now)

    def _ask(self, other: int, request: messages.Request) -> Answer:
        self.machine.request(other, 1, request, self._now)
        (answer,) = (it for to, it in self.machine.outbox if to == other and isinstance(it, Answer))
        self.machine.outbox = deque(each for each in self.machine.outbox if each[0] != other)
        assert answer.code == 0, answer
        return answer


class World:
    """One session and all that it runs on. ``latency``: how long an answer takes, in seconds."""

    def __init__(self, *, timeout: float = TIMEOUT, acl: Any = None, chroot: str = "") -> None:
        self.now = 1000.0
        self.latency = 0.0
        self.timeout = timeout
        self.sent: list[tuple[float, Request]] = []
        self.callbacks: list[tuple[float, Callable[[], object]]] = []
        self._numbers = count(1)
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._connection = 0  # 0: none
        self.client = SimpleNamespace(client_id=None)  # as much as grants look at
        self.server = Server(self)
        self.shell = Shell(self)
        self.session = Session(self.shell)
        self.session.link = Noting(self)
        self.session.codec = Codec(chroot, lambda: acl, lambda: self.session._id or 0)
        self.session.readable(not acl)

    # The clock.

    def at(self, when: float, call: Callable[[], object]) -> None:
        """Call at a time."""
        heapq.heappush(self._events, (when, next(self._numbers), call))

    def run(self, seconds: float = 0.0) -> None:
        """Let so much time pass, with all that happens in it."""
        end = self.now + seconds
        while True:
            self._hear()
            due = self.shell.step(self.session.tick)
            if self.shell.work():
                continue
            first = self._events[0][0] if self._events else math.inf
            if min(first, due) > end:
                break
            self.now = max(self.now, min(first, due))
            if first <= self.now:
                heapq.heappop(self._events)[2]()
            elif due < self.now:
                raise AssertionError("it turns without an end")
        self.now = end

    def arrive(self) -> None:
        """Have arrive what was under way, before anybody looks at the clock."""
        while self._events and self._events[0][0] <= self.now:
            heapq.heappop(self._events)[2]()

    # The connection.

    def connect(self, timeout: float | None = None, *, read_only: bool = False) -> None:
        """Make a connection, to a new session if there is none that lives."""
        self.timeout = timeout or self.timeout
        known, password = self.client.client_id or (0, b"")
        connection = next(self._numbers)
        step = self.shell.step
        step(self.session.opened)
        self._connection = connection
        step(self.session.asked, self.now, known != 0)
        machine = self.server.machine
        machine.read_only = read_only
        request = messages.Connect(0, round(1000 * self.timeout), known, password, True)
        machine.connect(connection, request, round(1000 * self.now), "10.0.0.2")
        message = next(it for to, it in machine.outbox if to == connection)
        assert isinstance(message, Connected)
        if message.session == 0:
            self.client.client_id = None
            self._hear()
            self.connect()
            return
        self.client.client_id = message.session, message.password
        self._hear()
        if not read_only:
            self.session.final = None
            step(self.session.serve)
        self.run()

    def disconnect(self) -> None:
        """Lose the connection, and the requests under way."""
        self.shell.step(self.lose)
        self.run()

    def lose(self) -> None:
        """Lose the connection, in a step."""
        if self._connection:
            self.server.machine.lost(self._connection)
            self._connection = 0
            self.session.cut()

    def stop(self) -> None:
        """Stop the client: it asks the server to end the session."""
        self.shell.step(self.session.link.pass_on, b"\0\0\0\x08\0\0\0\x01\xff\xff\xff\xf5")
        self.disconnect()

    def flush(self) -> None:
        """Send what the session has to send: it arrives after the latency."""
        data, frames = b"".join(self.session.link.out), []
        self.session.link.out.clear()
        at = 0
        while at < len(data):
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            frames.append(data[at + 4 : end])
            at = end
        if frames and self.latency < math.inf:
            self.at(self.now + self.latency, partial(self._arrive, self._connection, frames))

    def _arrive(self, connection: int, frames: list[bytes]) -> None:
        for frame in frames:
            if connection == self._connection:
                xid, request = messages.read_request(frame)
                self.server.machine.request(connection, xid, request, round(1000 * self.now))
        self._hear()

    def _hear(self) -> None:
        """Hear what the server has to say."""
        outbox = self.server.machine.outbox
        data, ended = b"", False
        while outbox:
            to, message = outbox.popleft()
            if to == self._connection:
                data += messages.frame(message)
                ended |= isinstance(message, HangUp)
        if data:
            self.shell.step(self._receive, data)
        if ended:
            self.shell.step(self.lose)

    def _receive(self, data: bytes) -> None:
        try:
            self.session.link.receive(self.session.codec, data)
        except Broken:
            self.lose()

    def deliver(self) -> None:
        """Have the client hear what its server has to say."""
        self.run()

    def forget_watches(self) -> None:
        """Have the server tell of nothing that is watched now."""
        self.server.machine.watches.forget(self._connection)

    def requests(self, kind: type[Request]) -> list[float]:
        """Return when requests of this kind were sent."""
        return [when for when, request in self.sent if isinstance(request, kind)]

    # What a user does.

    def ask_for(
        self,
        path: str = PATH,
        *,
        kind: names.Kind = names.Kind.EXCLUSIVE,
        patient: bool = True,
        **options: Any,
    ) -> Attempt[Any]:
        """Ask for a lock; return the attempt."""
        entry = lock_recipe.Entry(path, b"me", kind, patient)
        return self._stand(entry, GrantOptions(path, "me", zklock.Grant, **options))

    def stand(self, path: str = PATH, **options: Any) -> Attempt[Any]:
        """Stand for an election; return the attempt."""
        entry = Candidacy(path, b"me", names.Kind.LATCH)
        options["asked_by"] = entry.asked_by
        return self._stand(entry, GrantOptions(path, "me", zklock.Leadership, **options))

    def _stand(self, entry: lock_recipe.Entry, terms: GrantOptions) -> Attempt[Any]:
        """Begin with an attempt; return it."""
        return self.session.attempt(
            partial(lock_recipe.acquire, entry),
            recover=partial(lock_recipe.leave, entry),
            terms=terms,
        ).start()

    def acquire(self, path: str = PATH, **options: Any) -> zklock.Grant:
        """Return a grant of a lock that is free."""
        attempt = self.ask_for(path, **options)
        self.run()
        assert attempt.done
        grant: zklock.Grant = attempt.result()
        return grant


# How contenders come to a stage.


def connected(*, made: bool = False) -> World:
    """Return a world with a connection; ``made``: the path is there."""
    world = World()
    world.connect()
    if made:
        world.server.make_path(PATH)
    return world


def behind_another(world: World, path: str = PATH) -> str:
    """Have another stand in a queue; return its node."""
    world.server.make_path(path)
    return world.server.create(f"{path}/_c_{'0' * 8}-lock-", b"", world.server.open_session())


def unsent(world: World) -> Attempt[Any]:
    world.disconnect()
    return world.ask_for()


def sent(world: World) -> Attempt[Any]:
    world.latency = 0.1
    return world.ask_for()


def waits(world: World) -> Attempt[Any]:
    behind_another(world)
    attempt = world.ask_for()
    world.run(TIMEOUT / 10)
    return attempt


def claims(world: World) -> Attempt[Any]:
    """The lease is nearly over when the contender is there."""
    world.run(TIMEOUT)
    world.server.make_path(PATH)
    world.session._rested_at = world.now  # as after a touch that proves nothing
    world.latency = 0.05
    attempt = world.ask_for()
    world.session._proved = lambda sent: None  # type: ignore[method-assign]
    world.run(0.12)
    del world.session._proved
    return attempt


def throttle(world: World, count: int) -> None:
    """Have the server ask for patience so often."""
    machine, busy = world.server.machine, [None] * count

    def throttled(connection: int, xid: int, request: Any, now: int) -> None:
        if busy:
            busy.pop()
            machine.throttle(connection, xid, now)
        else:
            type(machine).request(machine, connection, xid, request, now)

    machine.request = throttled  # type: ignore[method-assign]


def expire(world: World) -> None:
    """Have the session end; its client hears of it as it connects anew."""
    world.server.expire(world.client.client_id[0])
    world.disconnect()
    world.connect()


@contextmanager
def nothing_logged_in_a_step(world: World) -> Iterator[None]:
    """Fail if a message is logged in a step."""

    def emit(record: logging.LogRecord) -> None:
        assert not world.shell.inside(), f"logged in a step: {record}"

    handler = logging.Handler()
    handler.emit = emit  # type: ignore[method-assign]
    log = logging.getLogger("zklock")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
