"""A session on a clock of the test's, with a fake client, wire, thread, callers and store.

Nothing happens by itself, and nothing waits: ``World.run(seconds)`` moves the clock from one event
to the next. The ensemble is that of ``tests.fakes``. Whatever the session sends, logs, runs or
hands to another thread is refused while the session's guard is taken.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

from kazoo.protocol.states import KazooState, KeeperState

import zklock
from tests.fakes import Link, Server, failure
from zklock._election.candidate import Candidacy
from zklock._engine.attempt import Attempt
from zklock._engine.grant import GrantOptions
from zklock._engine.lease import LeaseSettings
from zklock._engine.runtime import Runtime
from zklock._engine.session import Session
from zklock._kazoo import states
from zklock._kazoo.store import Results
from zklock._recipes import lock as lock_recipe, names
from zklock._recipes.effects import Batch, Failure, Request

PATH = "/lock"
TIMEOUT = 12.0


class Wire(zklock.Handler):
    """The handler of a client without sockets."""

    def __init__(self) -> None:
        super().__init__()
        self.drops = 0

    def drop(self) -> None:
        self.drops += 1


class FakeClient:
    """As much of a kazoo client as a session looks at."""

    def __init__(self, handler: object, default_acl: object) -> None:
        self.handler = handler
        self.default_acl = default_acl
        self.chroot = ""
        self.client_state = KeeperState.CONNECTING
        self.client_id: tuple[int, bytes] | None = None
        self.listeners: list[Callable[[str], object]] = []

    @property
    def connected(self) -> bool:
        return self.client_state is KeeperState.CONNECTED

    def add_listener(self, listener: Callable[[str], object]) -> None:
        self.listeners.append(listener)


class World:
    """One session and all that it runs on. ``latency`` is how long an answer takes, in seconds."""

    def __init__(
        self,
        *,
        timeout: float = TIMEOUT,
        settings: LeaseSettings | None = None,
        wired: bool = True,
        default_acl: object = None,
    ) -> None:
        self.now = 1000.0
        self.latency = 0.0
        self.timeout = timeout
        self.server = Server()
        self.sent: list[tuple[float, Request]] = []
        self.callbacks: list[tuple[float, Callable[[], object]]] = []
        self.free = True  # whether the guard must be free when something is handed over
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._puts: list[Callable[[Any], None]] = []
        self._link: Link | None = None
        self._turns: Callable[[], float | None] | None = None
        self._due: float | None = None
        self.turns = 0
        self.wire = Wire()
        self.client = FakeClient(self.wire if wired else object(), default_acl)
        self.begin(settings or LeaseSettings())

    def begin(self, settings: LeaseSettings) -> None:
        """Begin to look after the client's session, as its first lock does."""
        self.client.listeners.clear()
        runtime = Runtime(lambda: self.now, self._thread, self._executor, self._open_store)
        self.session = Session(self.client, settings, runtime)

    def check_free(self) -> None:
        assert not (self.free and self.session.interrupted), "the guard is taken"

    # The clock.

    def at(self, when: float, call: Callable[[], object]) -> Callable[[], object]:
        """Call at a time; return what cancels it."""
        event = when, next(self._numbers), call
        heapq.heappush(self._events, event)

        def cancel() -> None:
            if event in self._events:
                self._events.remove(event)

        return cancel

    def run(self, seconds: float = 0.0) -> None:
        """Let so much time pass, with all that happens in it."""
        end = self.now + seconds
        while True:
            heapq.heapify(self._events)
            first = self._events[0][0] if self._events else math.inf
            due = math.inf if self._due is None else self._due
            if min(first, due) > end:
                break
            self.now = max(self.now, min(first, due))
            if first <= self.now:
                heapq.heappop(self._events)[2]()
            else:
                assert self._turns is not None
                self.turns += 1
                began = self.now
                self._due = self._turns()
                assert self._due is None or self._due > began, "it turns without an end"
        self.now = end

    # What the session runs on.

    def _thread(self, name: str, turn: Callable[[], float | None]) -> Any:
        self._turns = turn
        return FakeThread(self)

    def wake(self) -> None:
        self._due = -math.inf

    def _executor(self) -> Any:
        return FakeExecutor(self)

    def _open_store(self, client: Any, on_event: Any, is_mine: Any, *_: Any) -> FakeStore:
        self.on_event, self.is_mine = on_event, is_mine
        self.store = FakeStore(self)
        return self.store

    # The client and the server.

    def connect(
        self, timeout: float | None = None, took: float = 0.0, *, read_only: bool = False
    ) -> None:
        """Make a connection, to a new session if there is none that lives."""
        self.timeout = timeout or self.timeout
        known = self.client.client_id
        resumed = known is not None and known[0] in self.server.sessions
        if known is not None and not resumed:
            self.client.client_state = KeeperState.EXPIRED_SESSION
            self._tell(KazooState.LOST)
        if not resumed:
            self.client.client_id = self.server.open_session(), b"password"
        assert self.client.client_id is not None
        self._link = Link(self.server, self.client.client_id[0], len(self.server.log))
        if self.client.handler is self.wire:
            self.wire.connected(self.now - took, self.timeout, resumed)
        self.client.client_state = KeeperState.CONNECTED_RO if read_only else KeeperState.CONNECTED
        self._tell(KazooState.CONNECTED)
        self.run()

    def disconnect(self) -> None:
        """Lose the connection, and the requests under way."""
        self._link = None
        puts, self._puts = self._puts, []
        self.client.client_state = KeeperState.CONNECTING
        for put in puts:
            put(failure(Failure.DROPPED, "connection"))
        self._tell(KazooState.SUSPENDED)
        self.run()

    def stop(self) -> None:
        """Stop the client: it asks the server to end the session."""
        self.session.on_close()
        self._link = None
        self.client.client_state = KeeperState.CLOSED
        self._tell(KazooState.LOST)
        self.run()

    def _tell(self, state: str) -> None:
        for listener in self.client.listeners:
            listener(state)

    def ask(self, request: Request, put: Callable[[Any], None]) -> None:
        """Send one request; its answer comes after ``latency``, and after those before it."""
        self.sent.append((self.now, request))
        link = self._link
        self._puts.append(put)
        if link is not None and self.latency < math.inf:
            self.at(self.now + self.latency, partial(self._serve, link, request))

    def _serve(self, link: Link, request: Request) -> None:
        if link is self._link:
            link.asked.append(request)
            link.serve()
            self.deliver()

    def deliver(self) -> None:
        """Have the client hear what its server has to say."""
        link = self._link
        assert link is not None
        link.advance(link.lag)
        while link is self._link and link.inbox:
            kind, what, _ = link.inbox.popleft()
            if kind == "answer":
                self._puts.pop(0)(what)
            else:
                path, deleted = what
                self.on_event(states.DELETED if deleted else "CHANGED", path)

    def forget_watches(self) -> None:
        """Have the server tell of nothing that is watched now."""
        assert self._link is not None
        self._link.watches.clear()

    def requests(self, kind: type[Request]) -> list[float]:
        """Return when requests of this kind were sent."""
        return [when for when, request in self.sent if isinstance(request, kind)]

    # What a user does.

    def ask_for(
        self, path: str = PATH, *, kind: names.Kind = names.Kind.EXCLUSIVE, **options: Any
    ) -> Attempt[Any]:
        """Ask for a lock; return the attempt."""
        entry = lock_recipe.Entry(path, b"me", kind)
        return self._stand(entry, GrantOptions(path, "me", zklock.Grant, **options))

    def stand(self, path: str = PATH, **options: Any) -> Attempt[Any]:
        """Stand for an election; return the attempt."""
        entry = Candidacy(path, b"me", names.Kind.LATCH)
        options["asked_by"] = entry.asked_by
        return self._stand(entry, GrantOptions(path, "me", zklock.Leadership, **options))

    def _stand(self, entry: lock_recipe.Entry, terms: GrantOptions) -> Attempt[Any]:
        return self.session.attempt(
            lock_recipe.acquire(entry), recover=lambda: lock_recipe.leave(entry), terms=terms
        ).start()

    def acquire(self, path: str = PATH, **options: Any) -> zklock.Grant:
        """Return a grant of a lock that is free."""
        attempt = self.ask_for(path, **options)
        self.run()
        assert attempt.done
        grant: zklock.Grant = attempt.result()
        return grant


class FakeThread:
    """A thread of the session's that runs when the world runs."""

    def __init__(self, world: World) -> None:
        self._world = world

    def later(self, job: Callable[[], object]) -> None:
        self.after(0.0, job)

    post = later

    def after(self, seconds: float, job: Callable[[], object]) -> Callable[[], object]:
        self._world.check_free()
        return self._world.at(self._world.now + seconds, job)

    def wake(self) -> None:
        self._world.check_free()
        self._world.wake()

    def ready(self) -> None:
        self._world.check_free()


class FakeExecutor:
    """Keeps the callbacks, with the time at which they were handed over, and runs them soon."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.ends = 0

    def ready(self) -> None:
        self._world.check_free()

    def run(self, calls: Any) -> None:
        self._world.check_free()
        for call in calls:
            self._world.callbacks.append((self._world.now, call))
            self._world.at(self._world.now, call)

    def end(self) -> None:
        """They end in the background."""
        self.ends += 1


class FakeStore:
    """Sends to the world's server."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.awaited: list[Batch] = []

    def hear(self, batch: Batch, seconds: float | None) -> bool:
        return False

    def send_batch(
        self, batch: Batch, done: Callable[[Results], None], awaited: bool = False
    ) -> None:
        self._world.check_free()
        if awaited:
            self.awaited.append(batch)
        results: list[Any] = [None] * len(batch)
        left = set(range(len(batch)))

        def put(slot: int, result: Any) -> None:
            results[slot] = result
            left.discard(slot)
            if not left:
                done(tuple(results))

        for slot, request in enumerate(batch):
            self._world.ask(request, partial(put, slot))


class _Watchful(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.check_free()


@contextmanager
def nothing_logged_under_the_guard(world: World) -> Iterator[None]:
    """Fail if a message is logged while the guard is taken."""
    handler = _Watchful(world)
    log = logging.getLogger("zklock")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
