"""The leader of a pool: it follows the workers, and assigns the shards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from logging import ERROR, INFO, WARNING
from queue import Empty, SimpleQueue
from typing import Any

from zklock._core.attempt import Attempt
from zklock._core.blocking import BLOCKING, run
from zklock._core.session import Session
from zklock._election.membership import MembershipFollower, Present
from zklock._election.threads import LeaderElection, Leadership
from zklock._ground.events import Event
from zklock._ground.records import Fields, Logs, log_fields
from zklock._pool import nodes
from zklock._pool.assignment import Assigned, rebalance
from zklock._pool.keys import Keys, alike, parse_shards, told
from zklock._pool.newcomers import Newcomers
from zklock._pool.nodes import PoolPaths, WorkerRecord
from zklock._pool.trouble import Trouble
from zklock._recipes import follow
from zklock._recipes.effects import Node, Recipe
from zklock.errors import AcquireCancelled, LockLost, NoAnswer, NotHeld, ZkLockError

log = logging.getLogger("zklock")

_TURN = 0.1
_PATIENCE = 5.0
"""Seconds that the leader waits for an answer before it checks whether it still leads."""

_ASK_AGAIN = 5.0
"""Seconds after which a worker's node that could not be read or written is tried again."""


@dataclass(eq=False)
class Campaign(Logs):
    """A worker's turns as the leader, and what it remembers from one of them to the next.

    ``shards``: those that it was told last. ``trouble``: why it could not lead. ``settle``: seconds
    without news before it plans, so that workers that come together are planned for together. It
    waits at most five times as long in all.
    """

    session: Session
    places: PoolPaths
    election: LeaderElection
    shards: Keys
    trouble: Trouble
    settle: float
    newcomers: Newcomers = field(default_factory=Newcomers)
    _ending: Event = field(default_factory=Event)

    def run(self, ready: Callable[[], object], over: Callable[[Exception], bool]) -> None:
        """Lead whenever it is elected, until ``stop()``.

        ``ready()`` is called before each turn. ``over(error)``: whether the worker leaves for good.
        """
        while not self._ending.is_set():
            try:
                ready()
                self._lead()
            except (AcquireCancelled, LockLost):
                continue  # it leaves; or another one may lead
            except Exception as error:
                if over(error):
                    return  # the pool's thread says so
                if self.trouble.strikes(error):
                    unexpected = None if isinstance(error, ZkLockError) else error
                    self._say(ERROR, "this worker cannot lead: %s", error, error=unexpected)
                self._ending.wait(self.trouble.pause())

    def stop(self) -> None:
        """Lead no more. From any thread."""
        self._ending.set()
        self.election.stop()

    def _lead(self) -> None:
        leadership = self.election.acquire()
        try:
            Rebalancer(self, leadership).run()
        finally:
            with suppress(LockLost, NotHeld):
                leadership.release()

    def _fields(self) -> Fields:
        return log_fields(path=self.places.root, identity=self.election.identity)


class Rebalancer(Logs):
    """Plans for one term of one leader, on the thread that leads."""

    def __init__(self, campaign: Campaign, leadership: Leadership) -> None:
        self._campaign = campaign
        self._session = campaign.session
        self._places = campaign.places
        self._leadership = leadership
        self._news: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._follower = MembershipFollower(
            self._session,
            self._places.members,
            list,
            lambda: self._later(self._take_present, self._follower.present),
            gone=partial(self._later, self._take_end),
            again=_ASK_AGAIN,
        )
        self._following: list[Attempt[None]] = []
        self._shards: Keys | None = None
        # By the names of the members:
        self._present: Mapping[str, Node | None] | None = None
        self._records: dict[str, WorkerRecord] = {}
        self._assigned: dict[str, Assigned] = {}
        self._barred: dict[str, float] = {}  # when to try again what ACLs have forbidden
        self._left_out: Set[str] = frozenset()
        self._broken: dict[str, bytes] = {}  # data that was complained about, by path
        self._due: float | None = None  # when to plan even if nothing has happened

    def run(self) -> None:
        """Plan until the leadership ends."""
        token = self._leadership.token
        self._say(INFO, "%s assigns the shards, token %s", self._leadership.identity, token)
        self._campaign.newcomers.begin()
        try:
            self._begin(self._follower.attempt)
            self._follow_shards()
            while self._gather():
                if not self._plan():
                    self._later(lambda: None)  # look again, after a while
                elif self._campaign.trouble.ends():
                    self._say(INFO, "this worker can lead again")
        finally:
            for attempt in self._following:
                attempt.cancel()

    # Events, on whichever thread brings them.

    def _begin(self, attempt: Attempt[None]) -> None:
        self._following.append(attempt)
        attempt.when_done(partial(self._later, self._over, attempt))
        attempt.start()

    def _follow_shards(self) -> None:
        tell = partial(self._later, self._take_shards)
        self._begin(self._session.attempt(partial(follow.follow, self._places.shards, tell)))

    def _later(self, call: Callable[..., object], *what: object) -> None:
        self._news.put(partial(call, *what))

    # On the thread that leads.

    def _over(self, attempt: Attempt[None]) -> None:
        with self._unless_lost():
            attempt.result()

    def _take_present(self, present: Present) -> None:
        """Take in who is there, and what each says now."""
        before, self._present = self._present or {}, present.nodes
        for name in sorted(before.keys() - self._present.keys()):
            self._take_end(name, False)
            for known in (self._records, self._assigned, self._barred):
                known.pop(name, None)
        for name, node in self._present.items():
            if name not in before or before[name] is not node:
                self._take_node(name, node)

    def _take_end(self, name: str, at_once: bool) -> None:
        record = self._records.get(name)
        crashed = at_once and record is not None and not record.leaving
        newcomers = self._campaign.newcomers
        newcomers.left(name, crashed, self._session.now(), self._session.timeout)

    def _take_node(self, name: str, node: Node | None) -> None:
        path = f"{self._places.members}/{name}"
        record = None if node is None else WorkerRecord.parse(node.data)
        if record is not None:
            self._records[name] = record
            group, now = record.kin or record.identity, self._session.now()
            self._campaign.newcomers.came(name, group, now, self._session.timeout)
            return
        self._records.pop(name, None)
        if node is None:
            self._say(
                ERROR,
                "a worker gets no shards because its node cannot be read: ACLs forbid it: %s",
                path,
            )
        else:
            self._complain(
                path,
                node.data,
                "its worker gets no shards: it is of a release that cannot be read, or was written "
                "by others; delete the node",
            )

    def _take_shards(self, node: Node | None, _: bool) -> None:
        campaign = self._campaign
        shards = None if node is None else parse_shards(node.data)
        if shards is not None and alike(shards, campaign.shards):
            self._shards = campaign.shards = shards
        elif node is not None and node.data:
            self._complain(
                self._places.shards,
                node.data,
                "these are no shards of this pool: "
                + ("nothing is planned" if self._shards is None else f"{told(self._shards)} stay")
                + "; correct it with set_shards()",
            )
        else:
            log.error(
                "%s: the list of shards was deleted and is written again: %s; if that is wrong, "
                "correct it with set_shards()",
                self._places.shards,
                told(campaign.shards),
                extra=self._fields(),
            )
            self._rebuild(node is None)

    def _rebuild(self, gone: bool) -> None:
        try:
            self._ask(lambda: nodes.prepare(self._places, self._campaign.shards))
        except NoAnswer:
            self._later(self._rebuild, gone)
        else:
            if gone:
                self._follow_shards()

    def _complain(self, path: str, data: bytes, what: str) -> None:
        """Log data that cannot be read, once for the same data."""
        if self._broken.get(path) != data:
            self._broken[path] = data
            log.error("%s says %r: %s", path, data[:100], what, extra=self._fields())

    def _bar(self, name: str, path: str) -> None:
        """Plan without a worker for a while. It keeps what it has, and that is logged once."""
        if name not in self._barred:
            self._say(
                ERROR,
                "a worker's assignment cannot change because ACLs forbid the leader to "
                "read or write it: %s",
                path,
            )
        self._barred[name] = self._session.now() + _ASK_AGAIN

    def _fields(self) -> Fields:
        return log_fields(self._leadership, path=self._places.root)

    def _gather(self) -> bool:
        """Take the news until there is none for a while. Return whether to plan then."""
        settle = self._campaign.settle
        quiet: float | None = None
        latest: float | None = None
        while not self._leadership.should_stop.is_set():
            now = self._session.now()
            due: float | None = None
            if self._shards is not None and self._present is not None:
                due = min((at for at in (quiet, latest, self._due) if at is not None), default=None)
                if due is not None and due <= now:
                    self._due = None
                    return True
            news = self._next(None if due is None else due - now)
            if news is not None:
                news()
                now = self._session.now()
                quiet, latest = now + settle, latest or now + 5 * settle
        return False

    def _next(self, pause: float | None) -> Callable[[], object] | None:
        """Return the next news; ``None`` after a pause, or a turn."""
        limit = self._session.limit(pause, lambda: self._news.put(None))
        with suppress(Empty):
            return self._news.get(timeout=_TURN if limit is None else min(limit, _TURN))
        return None

    def _plan(self) -> bool:
        """Assign the shards. Return whether that is done."""
        try:
            self._read()
            writes = self._writes()
            if not writes:
                return True
            # Those that were forbidden come first: if they still are, nothing has been written.
            writes.sort(key=lambda write: write[0] not in self._barred)
            changed = [(path, data, version) for _, path, data, version in writes]
            forbidden: list[str] = []
            refused = self._ask(lambda: nodes.hand_out(self._leadership.path, changed, forbidden))
        except NoAnswer as error:
            self._say(INFO, "the plan is late: %s", error)
            self._assigned.clear()
            return False
        if refused is None:
            for name, _, data, version in writes:
                self._assigned[name] = Assigned(version + 1, nodes.parse_assigned(data))
                self._barred.pop(name, None)
            return True
        for name, path, _, _ in writes:
            if path in forbidden:
                self._bar(name, path)
        self._say(INFO, "the plan was refused (%s); making a new one", refused.value)
        self._assigned.clear()
        return False

    def _path(self, name: str) -> str:
        return f"{self._places.assigned}/{self._records[name].assigned}"

    def _read(self) -> None:
        """Read the assignments that are not known yet."""
        unread = {name: self._path(name) for name in self._records if name not in self._assigned}
        unreadable: list[str] = []
        found = self._ask(lambda: nodes.read([*unread.values()], unreadable))
        for (name, path), node in zip(unread.items(), found, strict=True):
            if path in unreadable:
                self._bar(name, path)
            if node is not None:
                shards = nodes.parse_assigned(node.data)
                self._assigned[name] = Assigned(node.version, shards)
                if shards is None:
                    self._complain(path, node.data, "these are no shards, and it is written anew")

    def _writes(self) -> list[tuple[str, str, bytes, int]]:
        """Return the changes: member, path, data, and the version that each replaces."""
        now, newcomers = self._session.now(), self._campaign.newcomers
        barred = {name: until for name, until in self._barred.items() if until > now}
        waiting = newcomers.waiting(now) & self._records.keys() & self._assigned.keys()
        plan = rebalance(self._shards or (), self._records, self._assigned, barred, waiting)
        if not plan.left_out:
            newcomers.admit(waiting)
        for name in sorted(plan.left_out - self._left_out):
            self._say(
                WARNING,
                "a worker has returned after crashes and gets no shards for a while: %s",
                name,
            )
        self._left_out = plan.left_out
        dues = (newcomers.next_due(now), *barred.values())
        self._due = min((due for due in dues if due is not None), default=None)
        token = self._leadership.token
        return [
            (
                name,
                self._path(name),
                nodes.assigned_data(token, shards),
                self._assigned[name].version,
            )
            for name, shards in plan.changes.items()
        ]

    def _ask(self, make: Callable[[], Recipe[Any]]) -> Any:
        self._leadership.check()
        limit = min(_PATIENCE, self._session.timeout)
        with self._unless_lost():
            return run(BLOCKING.ask, self._session, make, self._places.root, limit)

    @contextmanager
    def _unless_lost(self) -> Iterator[None]:
        """Let an error through, unless the leadership is lost: then that is the reason."""
        try:
            yield
        except ZkLockError:
            self._leadership.check()
            raise
