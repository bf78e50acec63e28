"""Who is told of which watch events; and the watches of those who hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Set
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import Any

from zklock._engine.attempt import Attempt
from zklock._engine.grant import GrantBase
from zklock._engine.nodes import OwnNode, OwnNodes
from zklock._ground.multimap import Multimap
from zklock._kazoo.store import Results
from zklock._recipes import nodedata
from zklock._recipes.effects import Batch, Node, Watch

LOOK_AGAIN = 60.0
"""Who waits for an event looks again after about so many seconds.

Since 3.8.4 and 3.9.2, ZooKeeper does not tell a client what becomes of a node that this client may
not read at that moment, even if it could when it began to watch. A change of an ACL is no event.
"""

_UNDER_WAY = 65536  # limit of bytes of watches under way: heartbeats wait behind them
_WATCH_BYTES = 200  # bytes of a request and its answer, besides path and data


class Watchers:
    """The attempts that wait for events, and their paths. The caller has the guard."""

    def __init__(self) -> None:
        self._paths: dict[Attempt[Any], tuple[str, ...]] = {}
        self._far: dict[str, None] = {}
        self._attempts: Multimap[str, Attempt[Any]] = Multimap()
        self._due = 0.0  # how many are to look again now

    def put(self, attempt: Attempt[Any], paths: Iterable[str]) -> None:
        """Tell the attempt of these paths, and of no others."""
        self.drop(attempt)
        self._paths[attempt] = tuple(paths)
        for path in self._paths[attempt]:
            self._attempts.add(path, attempt)

    def drop(self, attempt: Attempt[Any]) -> None:
        """Tell the attempt of nothing any more."""
        if attempt in self._paths:
            self.near_head(attempt)
            for path in self._paths.pop(attempt, ()):
                self._attempts.discard(path, attempt)

    def far_from_head(self, attempt: Attempt[Any], own: str) -> None:
        """Note that the turn of the node ``own``, which the attempt watches, is far."""
        if own in self._paths.get(attempt, ()):
            self._far[own] = None

    def near_head(self, attempt: Attempt[Any]) -> bool:
        """Note that its turn may be near; return whether that is news."""
        paths = self._paths.get(attempt)
        if paths is None or not self._far:
            return False
        far = [path for path in paths if path in self._far]
        for path in far:
            del self._far[path]
        return bool(far)

    @property
    def far(self) -> Set[str]:
        """The nodes whose turns are far."""
        return self._far.keys()

    def of(self, path: str) -> list[Attempt[Any]]:
        """Return the attempts to tell of an event on ``path``."""
        return self._attempts.of(path)

    def take_turns(self, seconds: float) -> list[Attempt[Any]]:
        """Return who is to look again, as so many seconds have passed: those who waited longest.

        ``LOOK_AGAIN`` has room for a turn of each. So they do not all look at the same time.
        """
        self._due += len(self._paths) * seconds / LOOK_AGAIN
        due = list(islice(self._paths, int(self._due)))
        self._due -= int(self._due)
        for attempt in due:
            self._paths[attempt] = self._paths.pop(attempt)
        return due

    def everyone(self) -> list[Attempt[Any]]:
        """Return all attempts that wait for an event."""
        return list(self._paths)


class HeldWatches:
    """Places the watches of grants behind a heartbeat, a limited number of bytes at a time.

    So the next heartbeat does not wait long behind them, and a short grant costs no watch. A grant
    watches its own node; a leader's also watches the data of the election's path. ``tell`` is
    called with the answers, without the guard: with the path, the node of this session that the
    watches were for, and the results.
    """

    def __init__(
        self,
        nodes: OwnNodes,
        guard: Callable[[], AbstractContextManager[object]],
        send_batch: Callable[[Batch, Callable[[Results], None]], None],
        tell: Callable[[str, OwnNode, Results], object],
    ) -> None:
        self._nodes = nodes
        self._guard = guard
        self._send_batch = send_batch
        self._tell = tell
        self._to_place: deque[str] = deque()
        self._bytes = 0  # under way
        self._placing = False  # a thread is sending watches

    def place(self) -> None:
        """Watch the held nodes that are not watched yet."""
        with self._guard():
            self._to_place = deque(self._nodes.unwatched())
        self._go_on()

    def _go_on(self) -> None:
        with self._guard():
            if self._placing:
                return
            self._placing = True
        try:
            while (watch := self._next()) is not None:
                path, own, batch, size = watch
                self._send_batch(batch, partial(self._placed, path, own, size))
        except BaseException:
            self._placing = False
            raise

    def _next(self) -> tuple[str, OwnNode, Batch, int] | None:
        """Return the next watches to send; ``None``: the next answer goes on with the rest."""
        with self._guard():
            while self._to_place and self._bytes < _UNDER_WAY:
                path = self._to_place.popleft()
                own = self._nodes.get(path)
                if own is None or own.grant is None or own.watched or own.placing:
                    continue
                own.placing, own.fired = True, False
                batch = _watches(path, own.grant)
                size = len(own.grant.identity) + own.size
                size += sum(_WATCH_BYTES + 2 * len(watch.path) for watch in batch)
                self._bytes += size
                return path, own, batch, size
            self._placing = False  # under the guard: the next answer goes on with the rest
            return None

    def _placed(self, path: str, own: OwnNode, size: int, results: Results) -> None:
        found = [each for each in results if isinstance(each, Node)]
        with self._guard():
            self._bytes -= size
            own.placing = False
            present = self._nodes.get(path) is own
            # One that fired before the last answer came may have fired after its own answer.
            if present and len(found) == len(results) and not own.fired:
                self._nodes.watch(path, own)
            own.size = sum(len(node.data) for node in found)
        if present:
            self._tell(path, own, results)
        self._go_on()


def _watches(path: str, grant: GrantBase) -> tuple[Watch, ...]:
    beside = () if grant._terms.asked_by is None else (Watch(grant.lock_path),)
    return Watch(path), *beside


def asked_of(grant: GrantBase, results: Results) -> str | None:
    """Return the request to release that was read for a grant, if there is one."""
    node, *beside = results
    asked = nodedata.parse(node.data).asked if isinstance(node, Node) else None
    asked_by = grant._terms.asked_by
    for each in beside:
        if asked_by is not None and isinstance(each, Node):
            asked = asked_by(each.data) or asked
    return asked
