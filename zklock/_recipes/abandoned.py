"""Locks that know whether the holder before them left without a release.

ZooKeeper does not say why a node was deleted. So a contender of such a lock writes its token into
the data of the lock's own znode before it is granted. The transaction that releases removes the
token. A token that is still there belongs to a holder that did not release. An acquire takes two
more round trips: a read and a write. A release is still one request.

Where the next grant is delayed, whoever finds such a token notes in the data that its holder is
gone. The leader's clock tells when. So a contender that comes later waits for what is left of the
delay: the lock is granted again, however short the contenders' own patience is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zklock._recipes import lock as lock_recipe, steps
from zklock._recipes.effects import (
    Check,
    Delete,
    Exists,
    Failed,
    Failure,
    Node,
    Pause,
    Read,
    Recipe,
    Transaction,
    Write,
)
from zklock.errors import ZkLockError
from zklock.token import FencingToken

_HELD = b"held by "
_GONE = b", who is gone"
FREE = b""


@dataclass(slots=True)
class MarkedEntry(lock_recipe.Entry):
    """A contender that leaves a mark while it holds.

    If it finds a mark of an earlier holder, it is granted ``delay`` seconds after that was noted.
    One that loses its node queues again at the end, and others may hold before its turn comes
    again. So it has waited for one mark only, and it puts nothing back unless it wrote its mark for
    the node that it leaves with: the mark that stands there may be a holder's.
    """

    delay: float = 0.0
    _waited: bytes = FREE  # for this mark
    _mark: bytes | None = None
    _marked: str | None = None  # its node when it wrote its mark
    _found: bytes = FREE

    def turn(self, token: FencingToken) -> Recipe[Any]:
        """Look for a mark, wait if there is one, write its own mark, and claim."""
        mark = _HELD + str(token).encode()
        (parent,) = yield (Read(self.path),)
        steps.check(parent, Failure.DROPPED, Failure.MISSING)
        if isinstance(parent, Failed):
            return lock_recipe.AGAIN
        if parent.data not in (FREE, self._mark) and not parent.data.startswith(_HELD):
            raise ZkLockError(
                f"{self.path}: its data is not a lock's ({parent.data[:20]!r}): a lock with "
                "track_abandoned=True needs its znode's data for itself; use another path",
                path=self.path,
            )
        if parent.data != self._mark:
            self._found = parent.data
        if self._found not in (FREE, self._waited) and self.delay:
            left = yield from self._delay(parent)
            if left is None:
                return lock_recipe.AGAIN
            if left > 0:
                if not self.patient:
                    return None
                yield Pause(left)
            self._waited = self._found
            return lock_recipe.AGAIN
        if parent.data != mark:
            self._mark, self._marked = mark, self.node  # even if the answer is lost
            (marked,) = yield (Transaction((Check(self.node or ""), Write(self.path, mark))),)
            steps.check(marked, Failure.DROPPED, Failure.MISSING)
            if marked is not None:
                return lock_recipe.AGAIN
        found = self._found != FREE
        return (yield from lock_recipe.claim(self, token, abandoned=found, undo=self._undo))

    def _delay(self, parent: Node) -> Recipe[float | None]:
        """Return how long to wait after an earlier holder, in seconds; ``None``: look again.

        Its own node, if it came after the note, tells how long ago that was, by the leader's clock.
        """
        assert self.node is not None
        if not self._found.endswith(_GONE):
            note = Write(self.path, self._found + _GONE, parent.version)
            (noted,) = yield (Transaction((Check(self.node), note)),)
            steps.check(noted, Failure.DROPPED, Failure.MISSING, Failure.CHANGED)
            if noted is not None:
                return None
            self._found += _GONE
            return self.delay
        (own,) = yield (Exists(self.node),)
        steps.check(own, Failure.DROPPED, Failure.MISSING)
        if isinstance(own, Failed):
            return None
        ago: float = max(0, own.made - parent.written) / 1000
        return self.delay - ago

    def _undo(self) -> Recipe[bool | None]:
        """Give back a grant that nobody has got: nobody has heard yet of what it found."""
        self.granted = False
        return self.leave()

    def departure(self, node: str) -> Delete | Transaction:
        """Delete the node, and remove its mark; if not granted, put back the mark it found."""
        if self._marked != node:
            return Delete(node)
        left = Write(self.path, FREE if self.granted else self._found)
        return Transaction((Delete(node), left))
