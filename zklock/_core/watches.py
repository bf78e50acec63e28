"""The attempts to tell of each watch event."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from zklock._core.attempt import Attempt
from zklock._ground.multimap import Multimap

LOOK_AGAIN = 60.0
"""An attempt that waits looks again after about so many seconds.

Since 3.8.4 and 3.9.2, ZooKeeper does not tell a client what becomes of a node that this client may
not read at that moment, even if it could when it began to watch. A change of an ACL is no event.
"""


class Watchers:
    """The attempts that wait for events, and their paths."""

    def __init__(self) -> None:
        self._paths: dict[Attempt[Any], tuple[str, ...]] = {}
        self._attempts: Multimap[str, Attempt[Any]] = Multimap()
        self._due = 0.0  # how many are to look again now

    def put(self, attempt: Attempt[Any], paths: Iterable[str]) -> None:
        """Tell the attempt of these paths, and of no others."""
        if attempt in self._paths:
            self.drop(attempt)
        self._paths[attempt] = tuple(paths)
        for path in self._paths[attempt]:
            self._attempts.add(path, attempt)

    def drop(self, attempt: Attempt[Any]) -> None:
        """Tell the attempt of nothing any more."""
        if attempt in self._paths:
            for path in self._paths.pop(attempt, ()):
                self._attempts.discard(path, attempt)

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
