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
from zklock._ground import threads
from zklock._ground.records import Fields, Logs, log_fields
from zklock._pool import nodes
from zklock._pool.keys import Key, Keys, alike, parse_shards, told
from zklock._pool.newcomers import Newcomers
from zklock._pool.nodes import PoolPaths, WorkerRecord
from zklock._pool.planning import Asked, Assign, BadPlan, PlannedWorker
from zklock._pool.returning import Absences, Place, age, inherited, kept_back, replaced, share_out
from zklock._pool.trouble import Trouble
from zklock._recipes import follow
from zklock._recipes.effects import Node, Recipe
from zklock.errors import AccessDenied, NoAnswer, ZkLockError

log = logging.getLogger("zklock")

_TURN = 0.1
_PATIENCE = 5.0
"""Seconds that the leader waits for an answer before it checks whether it still leads."""

_ASK_AGAIN = 5.0
"""Seconds after which a user's function that made no plan is called again, even without news.

So is a worker's node read or written that could not be.
"""

_LATE = 5.0
"""Seconds after which the leader says that a user's function has not returned."""

_OVERDUE = 30.0
"""Seconds that the leader waits for a user's function before it lets another worker lead."""


@dataclass(eq=False)
class Planner:
    """How a worker plans when it leads, and what it remembers from one of its terms to the next.

    ``settle``: seconds without news before it plans, so that workers that come together are planned
    for together. It waits at most five times as long in all. ``assign``: the user's function that
    assigns the shards, if any. ``shards``: the shards that it was told last. ``asked``: the last
    call of the function; it may still be under way. ``trouble``: why it could not lead, or not
    assign the shards.
    """

    shards: Keys
    trouble: Trouble
    settle: float
    assign: Assign | None
    asked: Asked | None = None
    newcomers: Newcomers = field(default_factory=Newcomers)


class _NoPlan(Exception):
    """The term ends: the user's function has not returned."""


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
        self._absences = Absences()
        self._places_kept: dict[str, tuple[Node, Place]] = {}  # by identity
        self._due: float | None = None  # when to plan even if nothing has happened
        self._away: set[str] = set()  # the identities for which places are kept
        self._told: dict[str, Set[str]] = {}  # by text: of whom it was logged
        self._told_bad = ""  # what was logged of the user's function

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
        except _NoPlan:
            return  # another worker may lead; this one queues behind it
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
            self._drop_places()
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
        """Read the assignments that are not known yet, and what is kept for workers."""
        there, hidden = self._ask(partial(nodes.kept, self._places))
        self._say_of_new(
            ERROR,
            "no shards are reserved for a crashed worker because ACLs hide its place "
            "under returning/ from the leader: %s",
            {path: (path,) for path in hidden},
        )
        kept = ((node, Place.parse(node.data)) for node in there)
        self._places_kept = {place.identity: (node, place) for node, place in kept if place}
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
        heirs = replaced(by_name)
        due = {
            name: self._places_kept[profile.identity][1]
            for name, profile in by_name.items()
            if profile.rejoin_delay and profile.identity in self._places_kept
            # A node that was never written is that of a worker that has just come.
            if self._assigned[name][0] == 0 and name not in heirs
        }
        self._newcomers.admit({*due, *heirs.values()})
        weights = {name: 0.0 if name in heirs else it.weight for name, it in by_name.items()}
        left_out = self._left_out(weights)
        had = inherited({name: it or frozenset() for name, it in has.items()}, heirs, due)
        shares = {at: 0.0 if name in left_out else weights[name] for at, (_, name) in keys.items()}
        current = {at: had.get(name, frozenset()) for at, (_, name) in keys.items()}
        away = self._who_is_away()
        again = (until for until in self._barred.values() if until > now)
        self._due = min(filter(None, (self._due, *again)), default=None)
        free = [key for key in self._shards or () if key not in fixed]
        if self._planner.assign is None:
            plan = share_out(free, shares, current, away)
        else:
            profiles = {at: (key[1], known[key]) for at, key in keys.items()}
            wanted = frozenset(free) - kept_back(free, current, away)
            plan = self._asked(self._planner.assign, wanted, profiles, shares, current)
        writes = []
        for at, numbers in plan.items():
            _, name = keys[at]
            # Who comes back and gets nothing is told so, too: else it would be due for ever.
            if numbers != has[name] or name in due:
                path = f"{self._places.assigned}/{known[keys[at]].assigned}"
                data = nodes.assigned_data(self._leadership.token, numbers)
                writes.append((name, path, data, self._assigned[name][0]))
        return writes

    def _asked(
        self,
        assign: Assign,
        shards: frozenset[Key],
        profiles: Mapping[str, tuple[str, WorkerRecord]],
        shares: Mapping[str, float],
        current: Mapping[str, frozenset[Key]],
    ) -> dict[str, frozenset[Key]]:
        """Return what the user's function plans; nothing if it makes no plan: all stays as it is.

        ``profiles``: the members' names and records, by the names that the plan has for them.
        """
        takers = [at for at in profiles if shares[at]]
        # Of workers with one identity, the one that came last.
        takers.sort(key=lambda at: age(profiles[at][0]))
        newest = {profiles[at][1].identity: at for at in takers}
        workers = {
            at: PlannedWorker(
                identity, shares[at], profiles[at][1].payload_bytes, current[at] & shards
            )
            for identity, at in newest.items()
        }
        try:
            plan = self._planned(assign, shards, workers)
        except BadPlan as bad:
            self._refuse(bad)
            return {}
        self._told_bad = ""
        return {at: plan.get(at, frozenset()) for at in profiles}

    def _planned(
        self, assign: Assign, shards: frozenset[Key], workers: dict[str, PlannedWorker]
    ) -> dict[str, frozenset[Key]]:
        """Have the function called; wait for it as long as this worker leads, within limits.

        One call is under way at a time. One that an earlier term has left is waited for first.
        """
        if self._planner.asked is not None:
            self._wait_for(self._planner.asked)
        try:
            self._planner.asked = asked = Asked(assign, shards, workers)
        except threads.NoThread as error:
            raise BadPlan("no thread can be started for it") from error
        self._wait_for(asked)
        self._planner.asked = None
        return asked.result()

    def _wait_for(self, asked: Asked) -> None:
        """Wait until the user's function has returned; ``_NoPlan`` if this term ends before."""
        if self._returns(asked, _LATE):
            return
        self._say(WARNING, "assign= has not returned for %g s: no shard moves meanwhile", _LATE)
        if self._returns(asked, _OVERDUE - _LATE):
            return
        self._say(
            ERROR,
            "assign= has not returned for %g s: this worker gives up the lead and "
            "waits for its next turn",
            _OVERDUE,
        )
        raise _NoPlan

    def _returns(self, asked: Asked, seconds: float) -> bool:
        end = self._session.now() + seconds
        while not asked.done.is_set() and (left := end - self._session.now()) > 0:
            if self._over_now:
                raise _NoPlan
            limit = self._session.limit(left, asked.done.wake)
            asked.done.wait(_TURN if limit is None else min(limit, _TURN))
        return asked.done.is_set()

    def _refuse(self, bad: BadPlan) -> None:
        due = self._session.now() + _ASK_AGAIN
        self._due = due if self._due is None else min(self._due, due)
        if self._told_bad != str(bad):
            self._told_bad = str(bad)
            self._say(
                ERROR,
                "assign= returned no usable plan, and no shard moves: %s; zklock calls it "
                "again every %g s",
                bad,
                _ASK_AGAIN,
                error=bad.__cause__,
            )

    def _who_is_away(self) -> list[Place]:
        """Return the workers that have crashed, and for which their shards are still kept."""
        now = self._session.now()
        places = {identity: place for identity, (_, place) in self._places_kept.items()}
        # Who is seen to be there when its session has just ended has nothing to be assigned on.
        present = [
            profile.identity
            for name, profile in self._profiles.items()
            if profile is not None and name in self._assigned
        ]
        self._away = away = self._absences.look(places, present, now)
        dues = filter(None, (self._due, self._absences.next_due(now)))
        self._due = min(dues, default=None)
        self._say_of_new(
            WARNING,
            "%s disappeared; its shards are reserved for %g s",
            {identity: (identity, places[identity].delay) for identity in away},
        )
        return [places[identity] for identity in away]

    def _drop_places(self) -> None:
        """Delete the places of those who come back too late, or need none any more."""
        need = {
            profile.identity
            for profile in self._profiles.values()
            if profile is not None and profile.rejoin_delay
        }
        kept: dict[str, tuple[AccessDenied]] = {}
        for identity, (node, _) in self._places_kept.items():
            if identity not in need | self._away:
                try:
                    self._ask(partial(nodes.drop, node))
                except AccessDenied as error:
                    kept[node.path] = (error,)
        self._say_of_new(ERROR, "a worker's place under returning/ cannot be deleted: %s", kept)

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
