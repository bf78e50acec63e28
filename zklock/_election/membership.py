"""Who is below a node, and what each says, followed for one observer.

States are compared, not events counted: whatever an observer has missed, the next change tells the
difference between what it was told last and what is there now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from zklock._core.attempt import Attempt
from zklock._core.session import Session
from zklock._election.changes import Watched
from zklock._ground.interrupts import raised_by_zklock
from zklock._recipes.effects import Node
from zklock._recipes.follow import Folder, follow, follow_folder
from zklock.errors import AccessDenied, ZkLockError

M = TypeVar("M")

_BEGUN = 64
"""How many nodes are begun to be followed at a time. Heartbeats wait behind them."""


@dataclass(frozen=True, slots=True)
class MembershipChange(Generic[M]):
    """What has changed among the members since the previous change.

    ``members``: all that are there now, in order. ``joined`` and ``left``: those that have come or
    gone. ``changed``: those that say something else than before; this is what they say now.
    """

    members: tuple[M, ...]
    joined: tuple[M, ...]
    left: tuple[M, ...]
    changed: tuple[M, ...]


@dataclass(frozen=True, slots=True)
class Present:
    """What is there: the folder, and the nodes in it, ``None`` for one that may not be read."""

    folder: Folder
    nodes: Mapping[str, Node | None]


class Differences(Generic[M]):
    """Compares what is there with what was told last. Pure, but for its memory.

    ``describe`` returns the members by the names of their nodes, in order.
    """

    def __init__(self, describe: Callable[[Present], Mapping[str, M]]) -> None:
        self._describe = describe
        self._before: Mapping[str, M] | None = None
        self._looked_at: Present | None = None

    def since(self, present: Present | None) -> MembershipChange[M] | None:
        """Return what has changed, and remember it; ``None``: nothing. The first is told always."""
        if present is None or present is self._looked_at:
            return None
        self._looked_at = present
        now, before = self._describe(present), self._before
        self._before = now
        known = before or {}
        joined = [each for name, each in now.items() if name not in known]
        left = [each for name, each in known.items() if name not in now]
        changed = [each for name, each in now.items() if known.get(name, each) != each]
        if before is not None and not (joined or left or changed):
            return None
        return MembershipChange(*map(tuple, (now.values(), joined, left, changed)))


class MembershipFollower:
    """Follows the children of a node, of which ``members`` chooses, and what each of them says.

    ``present`` is what is there, ``None`` before the first look is complete. ``wake()`` is called
    when there is another one. ``gone(name, at_once)`` is called before that when a node is gone;
    for ``at_once`` see ``follow``. Neither must block. A node that ACLs hide is tried again
    ``again`` seconds later, if that is given. One attempt follows the names, and one follows each
    member, so that a change costs one read. They change the roster on the session's own thread
    only.
    """

    def __init__(
        self,
        session: Session,
        path: str,
        members: Callable[[Iterable[str]], list[str]],
        wake: Callable[[], object],
        *,
        gone: Callable[[str, bool], object] = lambda name, at_once: None,
        again: float | None = None,
    ) -> None:
        self._session = session
        self._path = path
        self._members = members
        self._wake = wake
        self._gone = gone
        self._again = again
        self.attempt: Attempt[None] = session.attempt(
            partial(
                follow_folder,
                path,
                lambda folder: session.later(partial(self._take_folder, folder)),
            )
        )
        self.attempt.when_done(lambda: session.later(self._close))
        self.present: Present | None = None
        # Only the session's own thread uses the following.
        self._over = False
        self._folder = Folder((), -1, b"")
        self._to_begin: deque[str] = deque()
        self._following: dict[str, Attempt[None]] = {}
        self._nodes: dict[str, Node | None] = {}
        self._first: set[str] | None = None  # those of the first look that are not known yet

    # On the session's own thread.

    def _take_folder(self, folder: Folder) -> None:
        if self._over:
            return
        self._folder = folder
        there = self._members(folder.names)
        if self._first is None:
            self._first = set(there)
        for name in sorted(self._following.keys() - set(there)):
            self._following.pop(name).cancel()
            self._forget(name)
        self._first.intersection_update(there)
        self._to_begin.clear()
        self._to_begin.extend(name for name in there if name not in self._following)
        self._begin_some()
        self._publish()

    def _begin_some(self) -> None:
        for _ in range(min(_BEGUN, 0 if self._over else len(self._to_begin))):
            self._begin(self._to_begin.popleft())
        if self._to_begin and not self._over:
            self._session.later(self._begin_some)

    def _begin(self, name: str) -> None:
        attempt: Attempt[None] = self._session.attempt(
            partial(follow, f"{self._path}/{name}", partial(self._on_node, name))
        )
        self._following[name] = attempt
        attempt.when_done(partial(self._session.later, partial(self._ended, name, attempt)))
        attempt.start()

    def _on_node(self, name: str, node: Node | None, at_once: bool) -> None:
        self._session.later(partial(self._take_node, name, node, at_once))

    def _take_node(self, name: str, node: Node | None, at_once: bool) -> None:
        if name not in self._following:
            return
        if node is None:
            self._gone(name, at_once)
            self._forget(name)
        else:
            self._know(name, node)
        self._publish()

    def _ended(self, name: str, attempt: Attempt[None]) -> None:
        if self._following.get(name) is not attempt:
            return
        try:
            attempt.result()
        except raised_by_zklock(AccessDenied):
            self._know(name, None)
            self._publish()
            if self._again is not None:
                # It may be permitted later, and a change of an ACL is no event.
                self._session.pause(self._again, partial(self._look_again, name, attempt))
        except raised_by_zklock(ZkLockError):
            return  # the client is over: the attempt that follows the names says so

    def _look_again(self, name: str, before: Attempt[None]) -> None:
        if self._following.get(name) is before:
            self._begin(name)

    def _know(self, name: str, node: Node | None) -> None:
        self._nodes[name] = node
        if self._first is not None:
            self._first.discard(name)

    def _forget(self, name: str) -> None:
        self._nodes.pop(name, None)
        if self._first is not None:
            self._first.discard(name)

    def _publish(self) -> None:
        if not self._over and not self._first:
            self.present = Present(self._folder, self._nodes.copy())
            self._wake()

    def _close(self) -> None:
        self._over = True
        for attempt in self._following.values():
            attempt.cancel()
        self._following.clear()


def watched(
    session: Session,
    path: str,
    members: Callable[[Iterable[str]], list[str]],
    describe: Callable[[Present], Mapping[str, M]],
    wake: Callable[[], object],
) -> Watched[MembershipChange[M]]:
    """Begin to observe the members; see ``MembershipFollower`` and ``Differences``."""
    follower = MembershipFollower(session, path, members, wake)
    differences = Differences(describe)
    return Watched(path, follower.attempt, lambda: differences.since(follower.present))
