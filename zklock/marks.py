"""Locks that know whether the holder before them left without a release.

ZooKeeper tells nobody why a node went. So a holder of such a lock writes its token into the data of
the lock's own znode before it is granted, and takes it back in the transaction that releases: a
token that is found there is of somebody who did not. That is one round trip more to acquire (read)
and a second one (write); the release stays one request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zklock import recipe, steps
from zklock.effects import Delete, Depart, Failed, Failure, Mark, Pause, Read, Recipe
from zklock.errors import ZkLockError
from zklock.token import FencingToken

_HELD = b"held by "
FREE = b""


@dataclass(slots=True)
class Entry(recipe.Entry):
    """A contender that leaves a mark while it holds; ``delay`` seconds after one that was left."""

    delay: float = 0.0
    _rested: bool = False
    _mark: bytes | None = None
    _found: bytes = FREE

    def turn(self, token: FencingToken) -> Recipe[Any]:
        """Look for a mark, wait if one was left, leave one's own, and claim."""
        mark = _HELD + str(token).encode()
        (parent,) = yield (Read(self.path),)
        steps.check(parent, Failure.DROPPED, Failure.MISSING)
        if isinstance(parent, Failed):
            return recipe.AGAIN
        if parent.data not in (FREE, self._mark) and not parent.data.startswith(_HELD):
            raise ZkLockError(
                f"{self.path}: its data is not a lock's ({parent.data[:20]!r}): a lock that keeps "
                "track of abandoned grants needs its znode's data for itself, use another path",
                path=self.path,
            )
        if parent.data != self._mark:
            self._found = parent.data
        if self._found != FREE and self.delay and not self._rested:
            if not self.patient:
                return None
            yield Pause(self.delay)
            self._rested = True
            return recipe.AGAIN
        if parent.data != mark:
            self._mark = mark  # even if the answer is lost
            (marked,) = yield (Mark(self.node or "", mark),)
            steps.check(marked, Failure.DROPPED, Failure.MISSING)
            if marked is not None:
                return recipe.AGAIN
        return (yield from recipe.claim(self, token, abandoned=self._found != FREE))

    def departure(self, node: str) -> Delete | Depart:
        """Delete the node, and take the mark back; one that was found is left if not granted."""
        if self._mark is None:
            return Delete(node)
        return Depart(node, FREE if self.granted else self._found)
