"""The leader of a pool: it follows the workers, and assigns the shards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from logging import ERROR, INFO, WARNING
from queue import Empty, SimpleQueue
from typing import Any

from zklock._core.attempt import Attempt
from zklock._core.blocking import BLOCKING, run
from zklock._core.session import Session
from zklock._election.threads import Leadership
from zklock._ground.records import Fields, Logs, log_fields
from zklock._pool import nodes
from zklock._pool.assignment import assign
from zklock._pool.keys import Key, Keys, alike, parse_shards, told
from zklock._pool.newcomers import Newcomers
from zklock._pool.nodes import PoolPaths, WorkerRecord
from zklock._pool.trouble import Trouble
from zklock._recipes import follow
from zklock._recipes.effects import Node, Recipe
from zklock.errors import AccessDenied, NoAnswer, ZkLockError

log = logging.getLogger("zklock")

_TURN = 0.1
_PATIENCE = 5.0
"""Seconds that the leader waits for an answer before it checks whether it still leads."""

_ASK_AGAIN = 5.0
"""Seconds after which a worker's node that could not be read or written is tried again."""


@dataclass(eq=False)
class Planner:
    """How a worker plans when it leads, and what it remembers from one of its terms to the next.

    ``settle``: seconds without news before it plans, so that workers that come together are planned
    for together. It waits at most five times as long in all. ``shards``: the shards that it was
    told last. ``trouble``: why it could not lead, or not assign the shards.
    """

    shards: Keys
    trouble: Trouble
    settle: float
    newcomers: Newcomers = field(default_factory=Newcomers)


class Rebalancer(Logs):
    """Plans for one term of one leader, on the thread that leads."""

    def __init__(
        self,
        session: Session,
        places: PoolPaths,
        leadership: Leadership,
        planner: Planner,
    ) -> None:
        self._session = session
        self._places = places
        self._leadership = leadership
        self._planner = planner
        self._newcomers = planner.newcomers
        self._news: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._following: dict[str, Attempt[None]] = {}
        self._names: set[str] | None = None
        self._shards: Keys | None = None
        self._profiles: dict[str, WorkerRecord | None] = {}
        # By the name of the member: the version, and the shards, ``None`` if unreadable.
        self._assigned: dict[str, tuple[int, frozenset[Key] | None]] = {}
        self._broken: dict[str, bytes] = {}  # data that was complained about
        self._hidden: set[str] = set()  # the workers whose nodes may not be read
        # Of the workers whose assignments ACLs forbid to read or write: when to try again.
        self._barred: dict[str, float] = {}
        self._due: float | None = None  # when to plan even if nothing has happened
        self._told: dict[str, Set[str]] = {}  # by text: of whom it was logged

    def run(self) -> None:
        """Plan until the leadership ends."""
        token = self._leadership.token
        self._say(INFO, "%s assigns the shards, token %s", self._leadership.identity, token)
        try:
            self._newcomers.begin()
            self._follow(
                "",
                partial(
                    follow.follow_children,
                    self._places.members,
                    lambda names: self._later(self._take_members, set(names)),
                ),
            )
            self._follow_shards()
            while self._gather():
                if not self._plan():
                    self._later(lambda: None)  # look again, after a while
                elif self._planner.trouble.ends():
                    self._say(INFO, "this worker can lead again")
        finally:
            for attempt in self._following.values():
                attempt.cancel()

    # Events, on whichever thread brings them.

    def _follow(self, key: str, make: Callable[[], Recipe[None]]) -> None:
        attempt = self._session.attempt(make)
        self._following[key] = attempt
        attempt.when_done(partial(self._later, self._over, key, attempt))
        attempt.start()

    def _later(self, call: Callable[..., object], *what: object) -> None:
        self._news.put(partial(call, *what))

    # On the thread that leads.

    def _over(self, key: str, attempt: Attempt[None]) -> None:
        try:
            with self._unless_lost():
                attempt.result()
        except AccessDenied as error:
            if key in {"", "/"}:
                raise
            self._profiles[key] = None
            if key not in self._hidden:
                self._say(
                    ERROR, "a worker gets no shards because its node cannot be read: %s", error
                )
            self._hidden.add(key)
            # It may be permitted later, and a change of an ACL is no event.
            self._session.pause(_ASK_AGAIN, partial(self._later, self._look_again, key, attempt))

    def _look_again(self, name: str, before: Attempt[None]) -> None:
        if self._following.get(name) is before:
            self._follow_worker(name)

    def _follow_worker(self, name: str) -> None:
        path = f"{self._places.members}/{name}"
        tell = partial(self._later, self._take_profile, name)
        self._follow(name, partial(follow.follow, path, tell))

    def _take_members(self, names: set[str]) -> None:
        self._names = names
        for name in sorted(self._following.keys() - names - {"", "/"}):
            self._following.pop(name).cancel()
            self._profiles.pop(name, None)
            self._assigned.pop(name, None)
            self._hidden.discard(name)
            self._barred.pop(name, None)
            self._broken.pop(f"{self._places.members}/{name}", None)
            self._newcomers.left(name, False, self._session.now(), self._session.timeout)
        for name in sorted(names - self._following.keys()):
            self._follow_worker(name)

    def _take_profile(self, name: str, node: Node | None, at_once: bool) -> None:
        before = self._profiles.get(name)
        now, unit = self._session.now(), self._session.timeout
        if node is None:
            crashed = at_once and before is not None and not before.leaving
            self._newcomers.left(name, crashed, now, unit)
        if name not in self._following:
            return
        self._hidden.discard(name)
        self._profiles[name] = profile = None if node is None else WorkerRecord.parse(node.data)
        if profile is not None:
            self._newcomers.came(name, profile.kin or profile.identity, now, unit)
        elif node is not None:
            self._complain(
                f"{self._places.members}/{name}",
                node.data,
                "its worker gets no shards: it is of a release that cannot be read, or was written "
                "by others; delete the node",
            )

    def _follow_shards(self) -> None:
        tell = partial(self._later, self._take_shards)
        self._follow("/", partial(follow.follow, self._places.shards, tell))

    def _take_shards(self, node: Node | None, at_once: bool) -> None:
        shards = None if node is None else parse_shards(node.data)
        if shards is not None and alike(shards, self._planner.shards):
            self._shards = self._planner.shards = shards
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
                told(self._planner.shards),
                extra=self._fields(),
            )
            self._rebuild(node is None)

    def _rebuild(self, gone: bool) -> None:
        try:
            self._ask(lambda: nodes.prepare(self._places, self._planner.shards))
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

    def _say_of_new(self, level: int, text: str, which: Mapping[str, tuple[object, ...]]) -> None:
        """Log this of those of which it was not logged since it became true of them.

        Each has what the text is filled in with.
        """
        for each in sorted(which.keys() - self._told.get(text, set())):
            self._say(level, text, *which[each])
        self._told[text] = which.keys()

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

    @property
    def _over_now(self) -> bool:
        return self._leadership.should_stop.is_set()

    def _gather(self) -> bool:
        """Take the news until there is none for a while. Return whether to plan then."""
        quiet, latest = None, None
        while not self._over_now:
            now = self._session.now()
            if quiet is not None and latest is not None and self._known:
                if now >= min(quiet, latest):
                    return True
                pause: float | None = min(quiet, latest) - now
            else:
                pause = None if self._due is None else max(0.0, self._due - now)
            limit = self._session.limit(pause, lambda: self._news.put(None))
            try:
                news = self._news.get(timeout=_TURN if limit is None else min(limit, _TURN))
            except Empty:
                news = None
            if news is None:
                due = self._due
                if due is not None and due <= self._session.now():
                    self._due = None
                    quiet = latest = self._session.now()
                continue
            news()
            quiet = self._session.now() + self._planner.settle
            latest = latest or self._session.now() + 5 * self._planner.settle
        return False

    @property
    def _known(self) -> bool:
        """Whether everything that a plan needs has been told."""
        return (
            self._shards is not None
            and self._names is not None
            and all(name in self._profiles for name in self._names)
        )

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
                self._assigned[name] = version + 1, nodes.parse_assigned(data)
                self._barred.pop(name, None)
            return True
        for name, path, _, _ in writes:
            if path in forbidden:
                self._bar(name, path)
        self._say(INFO, "the plan was refused (%s); making a new one", refused.value)
        self._assigned.clear()
        return False

    def _read(self) -> None:
        """Read the assignments that are not known yet."""
        profiles = {name: each for name, each in self._profiles.items() if each is not None}
        unread = [name for name in profiles if name not in self._assigned]
        paths = [f"{self._places.assigned}/{profiles[name].assigned}" for name in unread]
        unreadable: list[str] = []
        found = self._ask(lambda: nodes.read(paths, unreadable))
        for name, path, node in zip(unread, paths, found, strict=True):
            if path in unreadable:
                self._bar(name, path)
            if node is not None:
                numbers = nodes.parse_assigned(node.data)
                self._assigned[name] = node.version, numbers
                if numbers is None:
                    self._complain(path, node.data, "these are no shards, and it is written anew")

    def _writes(self) -> list[tuple[str, str, bytes, int]]:
        """Return the changes: member, path, data, and the version that each replaces."""
        known: dict[tuple[str, str], WorkerRecord] = {}
        taken: set[str] = set()
        fixed: frozenset[Key] = frozenset()  # shards of workers that cannot be told of a change
        now = self._session.now()
        for name, profile in sorted(self._profiles.items()):
            if profile is None or name not in self._assigned or profile.assigned in taken:
                continue
            taken.add(profile.assigned)  # for the first member that names this node
            if self._barred.get(name, 0.0) <= now:
                known[profile.identity, name] = profile
            elif profile.weight:
                fixed |= self._assigned[name][1] or frozenset()
        keys = {f"{at:08}": key for at, key in enumerate(sorted(known))}
        by_name = {name: profile for (_, name), profile in known.items()}
        has = {name: self._assigned[name][1] for name in by_name}
        weights = {name: it.weight for name, it in by_name.items()}
        left_out = self._left_out(weights)
        shares = {at: 0.0 if name in left_out else weights[name] for at, (_, name) in keys.items()}
        current = {at: has[name] or frozenset() for at, (_, name) in keys.items()}
        again = (until for until in self._barred.values() if until > now)
        self._due = min(filter(None, (self._due, *again)), default=None)
        free = [key for key in self._shards or () if key not in fixed]
        writes = []
        for at, numbers in assign(free, shares, current).items():
            _, name = keys[at]
            if numbers != has[name]:
                path = f"{self._places.assigned}/{known[keys[at]].assigned}"
                data = nodes.assigned_data(self._leadership.token, numbers)
                writes.append((name, path, data, self._assigned[name][0]))
        return writes

    def _left_out(self, weights: Mapping[str, float]) -> set[str]:
        """Return the newcomers that get no shards yet; none if nobody else can take shards."""
        now = self._session.now()
        waiting = self._newcomers.waiting(now) & weights.keys()
        if not any(weight for name, weight in weights.items() if name not in waiting):
            self._newcomers.admit(waiting)
            waiting = set()
        self._say_of_new(
            WARNING,
            "a worker has returned after crashes and gets no shards for a while: %s",
            {name: (name,) for name in waiting},
        )
        self._due = self._newcomers.next_due(now)
        return waiting

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
