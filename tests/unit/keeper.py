"""A keeper in the explorer: every order of what happens to one client that keeps a lock.

What is played is the real `Place` with the real attempts and recipes; see `tests.unit.explorer`.
The client's users acquire, give up and release; a stranger queues and goes; znodes that are idle
get old; messages come late, and faults strike. So a *state* is all of that, and ``spelled()`` says
which states are the same.

What must hold, whatever the order:

- nobody believes to hold the lock while somebody else stands before them, or two of the client do;
- nobody is let in on a znode that was kept before the watch on the queue is answered, after
  somebody else was seen there, after its release was requested, or after it was lost;
- each grant is told once to one user, and its end once to telemetry;
- at rest, nobody waits, but for those behind a stranger: a stranger waits for one body of the
  client, and a user for nobody who is not there;
- at rest, what is left is one idle znode whose time is not over yet, with its watch and its alarm;
  or nothing at all.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from unittest import mock

from tests.fakes import Client, FakeGrant, Server, uuids
from tests.unit.explorer import EVERYTHING, PATH, Covered, Step, search
from tests.unit.spelling import Merging, Spelling, digest
from zklock import telemetry
from zklock._engine import keep
from zklock._engine.attempt import Attempt
from zklock._engine.deferred import Deferred
from zklock._engine.grant import End, GrantBase, GrantOptions
from zklock._engine.keep import Kept, Place, Waiter
from zklock._ground.loss import LossReason
from zklock._locks.base import undo
from zklock._recipes import lock as lock_recipe, names
from zklock._recipes.effects import (
    Batch,
    Claim,
    Create,
    Delete,
    Exists,
    Listing,
    Node,
    Recipe,
    WatchList,
)
from zklock._telemetry import emit, subscriptions
from zklock.errors import LockLost, NotHeld

KEEPS = (10.0, 3.0)
"""For how many seconds each user keeps the lock."""

FAULTS = (
    "connection", "late state", "late", "session", "lease", "node", "give up", "request",
    "rebuild", "signal", "strike",
)  # fmt: skip
"""The kinds of faults; the first six as in `tests.unit.explorer`. "request": somebody asks for the
release. "rebuild": a place begins anew, as after an interrupt. "signal": a handler releases or
gives up while it interrupts the session. "strike": an interrupt strikes a user at the edge of a
guarded section."""

EDGES = 8
"""At so many edges of guarded sections an interrupt strikes a call."""


@dataclass(frozen=True)
class Bounds:
    """How much happens at most.

    ``asks``: acquires; ``tries``: those of them that may be without patience. ``strangers``: how
    often somebody else queues. ``ages``: how often an alarm goes off. ``lags``: whether servers
    tell late of what has happened. ``main``: whether users call on a thread that interrupts may
    strike, so that steps of the place run on the session's own thread.
    """

    asks: int = 2
    tries: int = 0
    strangers: int = 0
    ages: int = 0
    faults: int = 0
    kinds: tuple[str, ...] = FAULTS
    users: int = 2
    lags: bool = False
    main: bool = False
    depth: int = 400


class Guard:
    """The guard of a session; an interrupt may strike where it is taken or let go."""

    def __init__(self) -> None:
        self.strikes = math.inf
        """At so many edges from now on."""

    def __enter__(self) -> None:
        self._edge()

    def __exit__(self, *error: object) -> Literal[False]:
        if error[0] is None:
            self._edge()
        return False

    def _edge(self) -> None:
        self.strikes -= 1
        if self.strikes < 0:
            self.strikes = math.inf
            raise KeyboardInterrupt


class Grant(GrantBase):
    """A grant that nobody waits for."""

    def _set_lost(self) -> None:
        pass

    def _notify(self, calls: list[Callable[[], object]]) -> None:
        assert not calls


@dataclass(eq=False)
class Alarm:
    """A call that is due at some time."""

    at: float
    call: Callable[[], object]


class Keeper(Client):
    """A client whose session keeps znodes: what a `Place` needs of it is that of ``Session``."""

    _forked = False

    def __init__(self, world: World, server: Server) -> None:
        super().__init__(server)
        self.world = world
        self.guard = Guard()
        self.place = Place(self)  # type: ignore[arg-type]
        self.nodes: dict[str, GrantBase | None] = {}
        self.dead: set[str] = set()
        """Nodes that are deleted, and not by the client: it does not know of that yet."""
        self.alarms: list[Alarm] = []
        self.time = 0.0
        self.deferred = Deferred()
        self.epochs = emit.Epochs()

    # For places and grants.

    def has_guard(self) -> bool:
        return self.interrupted

    def now(self) -> float:
        return self.time

    def remaining(self) -> float:
        return 1.0  # a lease that is over ends all grants at once

    def pause(self, seconds: float, done: Callable[[], object]) -> Callable[[], object]:
        if not (isinstance(done, partial) and done.func.__qualname__ == Place._alarm.__qualname__):
            return super().pause(seconds, done)
        alarm = Alarm(self.time + seconds, done)
        self.alarms.append(alarm)
        return partial(self._call_off, alarm)

    def _call_off(self, alarm: Alarm) -> None:
        if alarm in self.alarms:
            self.alarms.remove(alarm)

    def ready(self, terms: GrantOptions) -> None:
        """There are no threads to start."""

    def may_grant(self, paths: Iterable[str]) -> bool:
        return self.alive and not self.refusals and all(path in self.nodes for path in paths)

    def give(
        self, claim: Claim, terms: GrantOptions, asked: Any = None, kept: Any = None
    ) -> GrantBase:
        grant = terms.grant(self, claim=claim, session_id=self.session, terms=terms)
        kept.use(grant)
        self.nodes[grant.path] = grant
        self.world.given(grant)
        if asked is not None:
            asked.made = (*asked.made, grant)
            emit.granted(asked, grant, self.epochs, self.time)
        return grant

    def forget(self, path: str) -> None:
        self.nodes.pop(path, None)

    def attempt(
        self,
        what: Recipe[Any],
        *,
        recover: Callable[[], Recipe[None]] | None = None,
        terms: GrantOptions | None = None,
    ) -> Attempt[Any]:
        return Attempt(self, what, recover=recover, terms=terms)

    def release_grant(self, grant: GrantBase, *, awaited: bool = False) -> Attempt[None]:
        emit.released(grant, self.time)
        attempt: Attempt[None] = self.attempt(grant._give_back(), recover=grant._give_back)
        if self.interrupted:
            self.later(partial(self._begin_release, attempt, grant))
        else:
            self._begin_release(attempt, grant)
        return attempt

    def _begin_release(self, attempt: Attempt[None], grant: GrantBase) -> None:
        self.forget(grant.path)
        attempt.start()
        grant._release_begun = True

    def finish(self, grant: GrantBase, end: End) -> None:
        if grant.released and not grant._release_begun:
            self.release_grant(grant)

    # For attempts.

    def claim(self, attempt: Attempt[Any], claim: Claim) -> Any:
        if not self.may_grant((claim.path,)):
            self._awaiting.append(attempt)
            return None
        assert attempt.terms is not None
        return attempt.terms.place.granted(claim) if attempt.accept() else None

    def send_batch(
        self, batch: Batch, done: Callable[[tuple[Any, ...]], None], awaited: bool = False
    ) -> None:
        for request in batch:
            if isinstance(request, Delete) and self.nodes.get(request.path) is None:
                self.forget(request.path)
        super().send_batch(batch, done, awaited)

    def _answered(self, request: Any, put: Callable[[Any], None], result: Any) -> None:
        if isinstance(request, Create | Exists) and isinstance(result, Node) and result.mine:
            self.nodes.setdefault(result.path, None)
        if isinstance(request, WatchList) and isinstance(result, Listing):
            self.world.looked(result)
        put(result)

    # What happens to it.

    def lose(self, paths: Iterable[str], reason: LossReason) -> None:
        """Lose the grants on these nodes; nodes that may be left are deleted."""
        for path in list(paths):
            grant = self.nodes.pop(path, None)
            self.world.lost.add(path)
            if grant is None:
                continue
            grant._note_loss(reason, noticed=self.time, lease_end=self.time)
            self.deferred.add(grant._tell_loss)
            self.deferred.add(partial(grant._place.lose, grant))
            self.deferred.add(partial(emit.lost, grant))
            if reason is LossReason.LEASE_LAPSED:
                self.deferred.add(partial(self.delete_orphan, path))
        self.deferred.run()

    def lapse(self) -> None:
        """Have the lease end."""
        self.refusals = 1
        self.lose(
            [path for path, grant in self.nodes.items() if grant is not None],
            LossReason.LEASE_LAPSED,
        )

    def learn(self) -> None:
        """Hear that a node with a grant is gone."""
        self.lose([path for path in self.nodes if path in self.dead], LossReason.NODE_DELETED)

    def _lose(self, which: Callable[[FakeGrant], bool]) -> None:
        self.lose(self.nodes, LossReason.SESSION_EXPIRED)

    def _happened(self, path: str, deleted: bool) -> None:
        own = deleted and path in self.nodes
        if own:
            self.lose([path], LossReason.NODE_DELETED)
        for attempt, paths in list(self._watching.items()):
            if path in paths:
                attempt.watched(path, deleted, held=False, taken=own)


class User:
    """Somebody who acquires on the client, one grant at a time."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.waiter: Waiter | None = None
        self.grant: GrantBase | None = None
        self.left = False  # whether it has given up

    @property
    def idle(self) -> bool:
        return self.waiter is None and self.grant is None


class World:
    """One client, its users, and a stranger."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.path = PATH
        self.server = Server()
        self.server.make_path(PATH)
        self.left = bounds.faults
        self.asks, self.tries = bounds.asks, bounds.tries
        self.comes, self.ages = bounds.strangers, bounds.ages
        self.client = Keeper(self, self.server)
        self.clients = [self.client]
        self.acting = 0
        self.users = [User(number) for number in range(bounds.users)]
        self.uuids = uuids("1")
        self.stranger: str | None = None
        self._stranger_session = self.server.open_session()
        self._stranger_uuids = uuids("2")
        self.grants: list[GrantBase] = []
        self.until: dict[str, float] = {}  # by path: how long an idle node may stay
        self.alone: set[str] = set()  # nodes that an answered look has shown alone
        self.others: set[str] = set()  # nodes beside which an answered look has shown others
        self.requested: set[str] = set()
        self.lost: set[str] = set()
        self.order: list[int] = []  # who waits, in the order of their acquires
        self.told: list[GrantBase] = []
        self.wrong = ""
        self.rebuilt = False  # a place that begins anew gives its node up
        self.struck = False  # an interrupt may leave an alarm until it goes off
        TOLD.begin()

    # Which steps there are.

    def steps(self) -> list[Step]:
        found = [*self._free(), *self._chances()]
        if self.left:
            found += self._faults()
        return found

    def at_rest(self, steps: list[Step]) -> bool:
        return not any(what in _FREE for what, _ in steps)

    def _free(self) -> Iterator[Step]:
        """Yield what happens by itself."""
        client = self.client
        yield from self._messages()
        if client.jobs:
            yield "job", 0
        if client.deferred:
            yield "turn", 0
        if (client.refusals or client.awaiting) and client.alive and client.connected:
            yield "renew", 0
        if self.server.dying:
            yield "bury", 0
        for user in self.users:
            if user.grant is not None:
                yield "release", user.number
        if self.stranger is not None and self._is_first(self.stranger):
            yield "go", 0

    def _messages(self) -> Iterator[Step]:
        """Yield what becomes of requests, answers and events."""
        client, link = self.client, self.client.link
        if link is None:
            yield "reconnect", 0
        else:
            if link.asked and not link.closed:
                yield "serve", 0
            if link.lag:
                yield "advance", 0
            if link.inbox:
                yield "deliver", 0
            elif any(path in client.dead for path in client.nodes):
                yield "learn", 0  # behind all that was sent before
            if link.closed or not client.alive:
                yield "hang_up", 0
        if client.late:
            yield "land", 0

    def _chances(self) -> Iterator[Step]:
        """Yield what may happen, or not."""
        if self.asks:
            for user in self.users:
                if user.idle:
                    yield "ask", user.number
                    if self.tries:
                        yield "try", user.number
        if self.comes and self.stranger is None:
            yield "come", 0
        if self.stranger is not None and not self._is_first(self.stranger):
            yield "quit", 0
        if self.client.alarms and self.ages and not self.client.jobs:  # those take no seconds
            yield "alarm", 0

    def _faults(self) -> Iterator[Step]:
        """Yield what goes wrong, of the kinds that are played."""
        for kind, step in [*self._troubles(), *self._asked(), *self._strikes()]:
            if kind in self.bounds.kinds:
                yield step

    def _troubles(self) -> Iterator[tuple[str, Step]]:
        client = self.client
        if client.link is not None and client.alive and not client.link.closed:
            yield "connection", ("lose", 0)
            if client.unanswered:
                yield "late state", ("lose_late", 0)
            if client.link.writes:
                yield "late", ("lose_slow", 0)
        if client.alive:
            yield "session", ("expire", 0)
        if not client.refusals:
            yield "lease", ("refuse", 0)
            yield "lease", ("lapse", 0)
        for number in range(len(self._ours())):
            yield "node", ("chop", number)

    def _asked(self) -> Iterator[tuple[str, Step]]:
        if any(self.client.nodes.values()):
            yield "request", ("request", 0)
        if _used(self.client.place):
            yield "rebuild", ("rebuild", 0)
        for user in self.users:
            if user.waiter is not None:
                yield "give up", ("cancel", user.number)
            if not user.idle:
                yield "signal", ("signal", user.number)

    def _strikes(self) -> Iterator[tuple[str, Step]]:
        for user in self.users:
            for edge in range(user.number * EDGES, (user.number + 1) * EDGES):
                if user.grant is not None:
                    yield "strike", ("strike_release", edge)
                if user.idle and self.asks:
                    yield "strike", ("strike_ask", edge)

    # What they do.

    def take(self, step: Step) -> None:
        self._do(step)
        self.judge()

    def repeat(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self._do(step)

    def _do(self, step: Step) -> None:
        what, number = step
        self.left -= what in _FAULTS
        self.struck |= what.startswith("strike")
        self.rebuilt |= self.struck or what == "rebuild"
        THREAD.is_main = self.bounds.main and what in _USERS
        _STEPS[what](self, number)
        link = self.client.link
        if link is not None and not self.bounds.lags:
            link.advance(link.lag)
        for grant in {grant.path: grant for grant in self.grants}.values():
            if grant._ended:
                self.until.setdefault(grant.path, self.client.time + grant._terms.keep)
            else:
                self.until.pop(grant.path, None)

    def ask(self, number: int, *, patient: bool = True) -> None:
        """Have a user acquire, as a lock does that is kept."""
        self.asks -= 1
        user, client = self.users[number], self.client
        terms = GrantOptions(PATH, "", Grant, owner=number, keep=KEEPS[number % len(KEEPS)])
        place = client.place
        if place.idle:
            try:
                grant = place.take(terms)
            except KeyboardInterrupt:
                client.post(partial(place.rebuild, terms))
                raise
            if grant is not None:
                grant._kept = True
                self._got(user, grant)
                return
        waiter = Waiter(place, terms, self._contend, patient=patient)
        try:
            user.waiter, user.left = waiter, not patient
            self.order.append(number)
            waiter.when_done(partial(self._heard, user, waiter))
            waiter.start()
        except KeyboardInterrupt:
            user.waiter = None
            if number in self.order:
                self.order.remove(number)
            client.post(partial(self._undo, waiter))
            raise

    def _undo(self, waiter: Waiter) -> None:
        for grant in waiter.made:
            grant._kept = False
        undo(waiter)  # type: ignore[arg-type]

    def _contend(self, place: Place, patient: bool) -> Attempt[Any]:
        entry = lock_recipe.Entry(
            PATH,
            b"",
            names.Kind.EXCLUSIVE,
            patient=patient,
            alone=True,
            new_uuid=partial(next, self.uuids),
            asked=0,
        )
        terms = GrantOptions(PATH, "", Grant, place=place)
        return self.client.attempt(lock_recipe.acquire(entry), recover=entry.leave, terms=terms)

    def _heard(self, user: User, waiter: Waiter) -> None:
        grant, error = waiter.settled()
        assert error is None, f"an error: {error!r}"
        if user.waiter is not waiter:
            return  # it was struck, and has gone away
        user.waiter = None
        if grant is None:
            self.order.remove(user.number)
            assert user.left, f"user {user.number} got nothing"
        else:
            grant._kept = True
            self._got(user, grant)

    def _got(self, user: User, grant: GrantBase) -> None:
        assert grant._terms.owner == user.number, "a grant is given to another user"
        assert user.grant is None
        assert grant not in self.told, "a grant is told twice"
        self.told.append(grant)
        user.grant = grant

    def release(self, number: int) -> None:
        user = self.users[number]
        grant = user.grant
        assert grant is not None
        try:
            if not grant._place.give_back(grant):
                grant._end()
        except (LockLost, NotHeld):
            pass
        finally:
            if grant._ended:
                user.grant = None

    # What must hold.

    def given(self, grant: GrantBase) -> None:
        """Look at a grant that is given."""
        try:
            self._look_at(grant)
        except AssertionError as error:
            self.wrong = self.wrong or str(error)  # who gives it takes that for an error of its own

    def _look_at(self, grant: GrantBase) -> None:
        path, client, grants = grant.path, self.client, self.grants
        self.grants = [*grants, grant]
        before = [each for each in grants if each.path == path]
        if grant._terms.owner in self.order:
            first = self.order.pop(0)
            assert grant._terms.owner == first, f"user {first} has waited for longer"
        else:
            assert self.struck or not self.order, f"user {self.order[0]} waits already"
        assert client.alive, f"{path} is granted, and its session is over"
        assert not client.refusals, f"{path} is granted, and the lease is not live"
        assert path in client.dead or self._is_first(path), f"{path} is granted, and is not first"
        assert all(each._ended for each in grants), f"{path} is granted, and is in use"
        assert path not in self.lost, f"{path} is granted, and was lost"
        assert grant.kept == bool(before), f"{path} says that kept is {grant.kept}"
        if before:
            assert path in self.alone, f"{path} is used before the watch is answered"
            assert path not in self.others, f"{path} is used after somebody else was seen"
            assert path not in self.requested, f"{path} is used after its release was requested"
            assert grant.token == before[-1].token
        elif grants:
            assert grant.token > grants[-1].token, f"{grant.token} after {grants[-1].token}"

    def looked(self, listing: Listing) -> None:
        """Look at what the client is told of the queue, behind its watch."""
        shown = [f"{PATH}/{each.text}" for each in listing.queue.contenders]
        ours = [path for path in shown if path in self.client.nodes]
        if len(shown) == 1:
            self.alone.update(ours)
        else:
            self.others.update(ours)

    def judge(self) -> None:
        """Fail if a promise is broken in this state."""
        client = self.client
        assert not self.wrong, self.wrong
        for grant in self.grants:
            if not grant._ended and client.session == grant.session_id and client.alive:
                right = grant.path in client.dead or self._is_first(grant.path)
                assert right, f"{grant.path} is believed in, and is not first"
        TOLD.judge(self.grants)
        if not any(what in _FREE and what not in _BODIES for what, _ in self.steps()):
            self._judge_queue()

    def _judge_queue(self) -> None:
        """Fail if who waits does not queue, or who queues does not wait, and all is heard."""
        ours = self._ours()
        waiting = [user for user in self.users if user.waiter is not None]
        granted = {grant.path for grant in self.grants}
        queued = [path for path in ours if path not in granted]
        given_up = self.others | self.requested | self.lost | self.client.dead
        used = [path for path in ours if path in granted and path not in given_up]
        assert not [user for user in waiting if user.left], "who has no patience waits"
        assert len(queued) <= 1, "several nodes queue"
        assert self.rebuilt or not (queued and used), "a node queues behind one of its client's"
        assert bool(queued) <= bool(waiting), "a node queues for nobody"
        assert bool(waiting) <= bool(queued or used or self.struck), "who waits does not queue"

    def rest(self) -> None:
        """Fail if something is left where nothing happens any more by itself."""
        client = self.client
        for user in self.users:
            assert user.waiter is None, f"user {user.number} is left waiting"
        assert self.stranger is None, "a stranger is left waiting"
        assert not self.goes_early, "a node goes before its time is over"
        assert all(grant._ended for grant in self.grants), "a grant is left that nobody has"
        ours = self._ours()
        if not ours:
            assert not _used(client.place), "a place has something left"
            assert not client.nodes, "a node is left in mind"
            assert not client.attempts, "an attempt goes on"
            assert self.struck or not client.alarms, "an alarm is left"
            TOLD.judge_rest(self.grants)
            return
        (path,) = ours[:1]
        assert len(ours) == 1, "several nodes are left behind"
        assert path in self.until, "a node was left behind"
        assert path not in self.requested, "a node is left after its release was requested"
        assert client.alarms, "an idle node stays for ever"
        latest = self.until[path]
        assert client.time < latest, "an idle node stays too long"
        assert min(alarm.at for alarm in client.alarms) <= latest, "an idle node stays too long"
        assert client.link is not None
        assert PATH in client.link.child_watches, "an idle node is not watched"
        assert len(client.alarms) == client.attempts == 1, "more is left than the idle node needs"

    def _is_first(self, path: str) -> bool:
        there = self.server.tree.names(PATH)
        return bool(there) and path.endswith(min(there, key=_sequence))

    def _ours(self) -> list[str]:
        """Return the nodes of the client's sessions."""
        tree = self.server.tree
        paths = [f"{PATH}/{name}" for name in tree.names(PATH)]
        return [path for path in paths if tree.nodes[path].owner != self._stranger_session]

    @property
    def goes_early(self) -> bool:
        """Whether the newest node is gone without a reason, and its time is not over yet."""
        if self.bounds.strangers or self.bounds.faults or not self.grants:
            return False
        newest = self.grants[-1]
        is_gone = newest.path not in self.server.tree.nodes
        return is_gone and self.client.time < self.until.get(newest.path, 0.0)

    def come(self) -> None:
        """Have a stranger queue."""
        self.comes -= 1
        name = names.prefix(names.Kind.EXCLUSIVE, next(self._stranger_uuids))
        path = self.server.create(f"{PATH}/{name}", b"", self._stranger_session)
        assert isinstance(path, str)
        self.stranger = path

    def go(self) -> None:
        """Have the stranger leave the queue."""
        assert self.stranger is not None
        self.server.delete(self.stranger)
        self.stranger = None


def _sequence(name: str) -> int:
    return int(name[-10:])


class Told:
    """What telemetry is told, in the world that was made last."""

    def begin(self) -> None:
        self._given: Counter[str] = Counter()
        self._over: Counter[str] = Counter()

    def _put(self, event: telemetry.Event, over: Any) -> None:
        if isinstance(event, telemetry.Granted):
            self._given[event.node] += 1
        if isinstance(event, telemetry.Released | telemetry.Lost) and self not in over:
            over[self] = None
            self._over[event.node] += 1

    def judge(self, grants: list[GrantBase]) -> None:
        """Fail if more is told than there was, or an end before its grant."""
        given = Counter(grant.path for grant in grants)
        assert self._given == given, "a grant is not told once"
        assert self._over <= given, "an end is told twice"

    def judge_rest(self, grants: list[GrantBase]) -> None:
        """Fail if an end is not told."""
        assert self._over == Counter(grant.path for grant in grants), "an end is not told"

    @property
    def untold(self) -> dict[str, int]:
        """How many ends are still to be told, by path."""
        return dict(sorted((self._given - self._over).items()))


TOLD = Told()


class Thread:
    """On which thread a step is taken."""

    is_main = False

    def may_be_interrupted(self) -> bool:
        """Stand in for ``zklock._ground.interrupts``."""
        return self.is_main


THREAD = Thread()


# Steps.


def _ask_without_patience(world: World, number: int) -> None:
    world.tries -= 1
    world.ask(number, patient=False)


def _cancel(world: World, number: int) -> None:
    user = world.users[number]
    assert user.waiter is not None
    user.left = True
    user.waiter.cancel()


def _advance(world: World, number: int) -> None:
    link = world.client.link
    assert link is not None
    link.advance(1)


def _renew(world: World, number: int) -> None:
    world.client.refusals = 0
    world.client.renew_lease()


def _alarm(world: World, number: int) -> None:
    world.ages -= 1
    client = world.client
    alarm = min(client.alarms, key=lambda it: it.at)
    client.alarms.remove(alarm)
    client.time = alarm.at
    alarm.call()


def _refuse(world: World, number: int) -> None:
    world.client.refusals = 1


def _chop(world: World, number: int) -> None:
    path = world._ours()[number]
    world.client.dead.add(path)
    world.server.delete(path)


def _expire(world: World, number: int) -> None:
    world.server.expire(world.client.session, lingering=True)


def _used(place: Place) -> bool:
    return bool(place._kept or place._waiters or place._contender)


def _request(world: World, number: int) -> None:
    for path, grant in list(world.client.nodes.items()):
        if grant is not None:
            world.requested.add(path)
            grant._place.ask(grant)


def _rebuild(world: World, number: int) -> None:
    world.client.place.rebuild()


def _signal(world: World, number: int) -> None:
    world.client.interrupted = True
    if world.users[number].grant is None:
        _cancel(world, number)
    else:
        world.release(number)
    world.client.interrupted = False


def _struck(call: Callable[[World, int], object]) -> Callable[[World, int], object]:
    def strike(world: World, number: int) -> None:
        guard = world.client.guard
        guard.strikes = number % EDGES
        try:
            call(world, number // EDGES)
        except KeyboardInterrupt:
            pass
        finally:
            guard.strikes = math.inf

    return strike


_FREE: dict[str, Callable[[World, int], object]] = {
    "serve": lambda world, number: world.client.serve(),
    "deliver": lambda world, number: world.client.deliver(),
    "advance": _advance,
    "reconnect": lambda world, number: world.client.reconnect(
        lag=EVERYTHING if world.bounds.lags else 0
    ),
    "hang_up": lambda world, number: world.client.lose_connection(),
    "job": lambda world, number: world.client.run_job(),
    "turn": lambda world, number: world.client.deferred.run(),
    "renew": _renew,
    "land": lambda world, number: world.client.land(),
    "bury": lambda world, number: world.server.bury(),
    "learn": lambda world, number: world.client.learn(),
    "release": World.release,
    "go": lambda world, number: world.go(),
}
_CHANCES: dict[str, Callable[[World, int], object]] = {
    "ask": World.ask,
    "try": _ask_without_patience,
    "come": lambda world, number: world.come(),
    "quit": lambda world, number: world.go(),
    "alarm": _alarm,
}
_FAULTS: dict[str, Callable[[World, int], object]] = {
    "lose": lambda world, number: world.client.lose_connection(),
    "lose_late": lambda world, number: world.client.lose_connection(state_first=False),
    "lose_slow": lambda world, number: world.client.lose_connection(late=True),
    "expire": _expire,
    "refuse": _refuse,
    "lapse": lambda world, number: world.client.lapse(),
    "chop": _chop,
    "request": _request,
    "rebuild": _rebuild,
    "cancel": _cancel,
    "signal": _signal,
    "strike_ask": _struck(World.ask),
    "strike_release": _struck(World.release),
}
_STEPS = _FREE | _CHANCES | _FAULTS
_BODIES = {"release", "go"}
"""What ends a body: it takes as long as it takes."""
_USERS = {"ask", "try", "release", "cancel", "strike_ask", "strike_release"}
"""What users do on threads of their own."""


# Which states are the same.


class _Spelling(Merging):
    """The words for one world."""

    def _claims_what_is_gone(self, number: int) -> bool:
        return False

    def result(self) -> list[Any]:
        world, client = self._world, self._world.client
        self.words += (world.left, world.asks, world.tries, world.comes, world.ages)
        self.words += (world.struck, world.rebuilt, world.goes_early)
        self.add(client)
        self.add((client.place, client.interrupted, client.deferred._calls))
        self.all(
            "nodes", [each for path in sorted(client.nodes) for each in (path, client.nodes[path])]
        )
        self.all("alarms", client.alarms)
        for user in world.users:
            self.add((user.waiter, user.grant, user.left))
        self.words += (world.stranger is not None, *world.order)
        for session in world.server.dying:
            self.session(session)
        self._nodes()
        self._log()
        for grant in world.grants:
            if not grant._ended:
                self.add(grant)
        for paths in (world.alone, world.others, world.requested, world.lost, client.dead):
            self._met_of(paths)
        self.add(TOLD.untold)
        for path in sorted(path for path in world.until if path in self._paths):
            self.text(path)
            self.words.append(self.time(world.until[path]))
        return self._numbered()

    def time(self, at: float) -> float:
        now: float = self._world.client.time
        return at - now

    def user_waits(self, waiter: Waiter) -> None:
        decided = waiter._decided
        fate = "open" if decided is None else "accepted" if decided is waiter else "cancelled"
        self.words += ("waiter", waiter.terms.owner, waiter.patient, waiter.done, fate)
        self.add((waiter.settled()[0] if waiter.done else None, waiter.contender, waiter.made))

    def kept(self, kept: Kept) -> None:
        idle = None if kept.idle is None else self.time(kept.idle)
        self.words += ("kept", kept.watched, kept.asked, idle, self.time(kept.timed))
        self.text(kept.claim.path)
        self.add((kept.grant, kept.looks, kept.call_off, kept.claim.release))

    def given(self, grant: GrantBase) -> None:
        end = grant._ended
        self.words += ("grant", end is None or end.state.value, grant.kept, grant._kept)
        self.words += (grant._terms.keep, grant._release_begun, bool(grant._end_told))
        self.text(grant.path)

    def alarm(self, alarm: Alarm) -> None:
        self.words += ("alarm", self.time(alarm.at))
        self.add(alarm.call)


_Spelling.MERGED = Merging.MERGED | {
    Keeper: (Merging.client, True),
    Waiter: (_Spelling.user_waits, True),
    Kept: (_Spelling.kept, True),
    Grant: (_Spelling.given, True),
    Alarm: (_Spelling.alarm, True),
    World: (lambda to, one: to.words.append("world"), False),
    Guard: (lambda to, one: to.words.append("guard"), False),
}


def exact(world: World) -> bytes:
    """Return what is the same for two worlds if they are equal but for what nobody reads."""
    spelling, server = Spelling(), world.server
    spelling.add((server.log, sorted(server.sessions), server.dying, world.client, TOLD.untold))
    link = world.client.link
    spelling.add(None if link is None else link.tree.zxid)
    spelling.add({name: value for name, value in vars(world).items() if name not in _ELSEWHERE})
    return digest(spelling.words)


_ELSEWHERE = {"bounds", "server", "client", "clients"}


def spelled(world: World) -> bytes:
    """Return what is the same for two worlds only if they go on in the same way."""
    return digest(_Spelling(world, alike=False).result())


@contextmanager
def playing() -> Iterator[None]:
    """Put in what decides on which thread a place's steps run, and what telemetry is told."""
    with (
        mock.patch.object(keep, "may_be_interrupted", THREAD.may_be_interrupted),
        mock.patch.object(subscriptions, "hooks", {TOLD: None}),
    ):
        yield


def explore(bounds: Bounds, *, tell: Callable[[Covered], object] = lambda covered: None) -> Covered:
    """Take every step from every state, once; raise ``Found`` if a promise is broken."""
    with playing():
        return search(partial(World, bounds), spelled, tell=tell, depth=bounds.depth)


def main(arguments: list[str]) -> None:
    """Explore: ``python -m tests.unit.keeper asks=2 strangers=1 faults=1 kinds=session,lease``."""
    given = dict(each.split("=") for each in arguments)
    kinds = tuple(given.pop("kinds", ",".join(FAULTS)).split(","))
    numbers: dict[str, Any] = {name: int(value) for name, value in given.items()}
    bounds = Bounds(kinds=kinds, **numbers)
    began = time.process_time()
    covered = explore(bounds)
    spent = time.process_time() - began
    print(f"{covered.steps} steps, {covered.states} states, {covered.ends} ends, {spent:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
