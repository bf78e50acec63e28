"""What the leader of a pool does: it follows the workers, and hands out the shards."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from zklock import desks
from zklock.assignment import assign
from zklock.attempt import Attempt
from zklock.clock import clock
from zklock.desks import Places, Profile
from zklock.effects import Node, Recipe
from zklock.election import Leadership
from zklock.errors import NoAnswer, ZkLockError
from zklock.session import Session

log = logging.getLogger("zklock")

_TURN = 0.1
_PATIENCE = 5.0
"""Seconds that the leader waits for an answer before it looks whether it still leads."""


class Planner:
    """Plans for one term of one leader, on the thread that leads.

    ``settle``: seconds without news after which it plans, so that workers that come together are
    planned for together; at most five times as long.
    """

    def __init__(
        self, session: Session, places: Places, leadership: Leadership, settle: float
    ) -> None:
        self._session = session
        self._places = places
        self._leadership = leadership
        self._settle = settle
        self._news: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._following: dict[str, Attempt[None]] = {}
        self._names: set[str] | None = None
        self._shards: int | None = None
        self._profiles: dict[str, Profile | None] = {}
        self._assigned: dict[str, tuple[int, frozenset[int]]] = {}  # by the name of the member

    def run(self) -> None:
        """Plan until the leadership is over."""
        try:
            self._follow("", desks.follow_children(self._places.members, self._on_members))
            self._follow("/", desks.follow(self._places.shards, self._on_shards))
            while self._gather():
                if not self._plan():
                    self._later(lambda: None)  # look again, after a while
        finally:
            for attempt in self._following.values():
                attempt.give_up()

    # What happens, on whichever thread brings the news.

    def _follow(self, key: str, what: Recipe[None]) -> None:
        attempt = self._session.attempt(what)
        self._following[key] = attempt
        attempt.when_done(lambda: self._later(partial(self._over, attempt)))
        attempt.start()

    def _later(self, news: Callable[[], None]) -> None:
        self._news.put(news)

    def _on_members(self, names: list[str]) -> None:
        self._later(partial(self._take_members, set(names)))

    def _on_shards(self, node: Node | None) -> None:
        self._later(
            partial(setattr, self, "_shards", desks.parse_shards(node.data if node else b""))
        )

    def _on_profile(self, name: str, node: Node | None) -> None:
        self._later(partial(self._take_profile, name, node))

    # On the thread that leads.

    def _over(self, attempt: Attempt[None]) -> None:
        try:
            attempt.result()
        except ZkLockError:
            self._leadership.check()  # the loss of the leadership is the reason, if it is lost
            raise

    def _take_members(self, names: set[str]) -> None:
        self._names = names
        for name in self._following.keys() - names - {"", "/"}:
            self._following.pop(name).give_up()
            self._profiles.pop(name, None)
            self._assigned.pop(name, None)
        for name in names - self._following.keys():
            path = f"{self._places.members}/{name}"
            self._follow(name, desks.follow(path, partial(self._on_profile, name)))

    def _take_profile(self, name: str, node: Node | None) -> None:
        if name in self._following:
            self._profiles[name] = None if node is None else Profile.parse(node.data)

    @property
    def _over_now(self) -> bool:
        return self._leadership.should_stop.is_set()

    def _gather(self) -> bool:
        """Take the news until there is no more of it for a while; whether to plan then."""
        quiet, latest = None, None
        while not self._over_now:
            now = clock()
            if quiet is not None and latest is not None and self._known:
                if now >= min(quiet, latest):
                    return True
                pause = min(quiet, latest) - now
            else:
                pause = _TURN
            try:
                news = self._news.get(timeout=min(pause, _TURN))
            except Empty:
                continue
            news()
            quiet = clock() + self._settle
            latest = latest or clock() + 5 * self._settle
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
        """Hand out the shards; whether that is done."""
        try:
            self._read()
            writes = self._writes()
            if not writes:
                return True
            changed = [(path, data, version) for _, path, data, version in writes]
            refused = self._ask(lambda: desks.hand_out(self._leadership.path, changed))
        except NoAnswer as error:
            log.info("%s: the plan is late: %s", self._places.root, error)
            self._assigned.clear()
            return False
        if refused is None:
            for name, _, data, version in writes:
                self._assigned[name] = version + 1, desks.parse_assigned(data)
            return True
        log.info(
            "%s: the plan was refused (%s), and is made anew", self._places.root, refused.value
        )
        self._assigned.clear()
        return False

    def _read(self) -> None:
        """Read what those have been assigned of whom that is not known."""
        profiles = {name: each for name, each in self._profiles.items() if each is not None}
        unread = [name for name in profiles if name not in self._assigned]
        paths = [f"{self._places.assigned}/{profiles[name].assigned}" for name in unread]
        for name, node in zip(unread, self._ask(lambda: desks.read(paths)), strict=True):
            if node is not None:
                self._assigned[name] = node.version, desks.parse_assigned(node.data)

    def _writes(self) -> list[tuple[str, str, bytes, int]]:
        """Return what has to change: member, path, data, and the version that it replaces."""
        known = {
            (profile.identity, name): profile
            for name, profile in self._profiles.items()
            if profile is not None and name in self._assigned
        }
        keys = {f"{at:08}": key for at, key in enumerate(sorted(known))}
        has = {at: self._assigned[name][1] for at, (_, name) in keys.items()}
        weights = {at: known[key].weight for at, key in keys.items()}
        writes = []
        for at, numbers in assign(self._shards or 0, weights, has).items():
            if numbers != has[at]:
                _, name = keys[at]
                path = f"{self._places.assigned}/{known[keys[at]].assigned}"
                data = desks.assigned_data(self._leadership.token, numbers)
                writes.append((name, path, data, self._assigned[name][0]))
        return writes

    def _ask(self, make: Callable[[], Recipe[Any]]) -> Any:
        self._leadership.check()
        return self._session.ask(make, self._places.root, min(_PATIENCE, self._session.timeout))
