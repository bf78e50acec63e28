"""Who holds the lock that this process waits for, and where in the queue it stands itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

import zklock
from zklock.cli.view.asking import wait
from zklock.cli.view.model import Place
from zklock.cli.view.text import named, plain, short

_BATCH = 256

Lock: TypeAlias = zklock.Lock | zklock.ReadLock | zklock.Semaphore


@dataclass(frozen=True, slots=True)
class Standing:
    """Who holds a lock, and where in the queue this client stands; ``str()`` tells it."""

    path: str
    holders: Sequence[Place]
    waiting: Sequence[zklock.Contender]
    place: int | None
    """The sequence number of this client's contender; ``None`` if it had none."""

    @classmethod
    def of(cls, lock: Lock, client: KazooClient, place: int | None) -> Standing:
        """Look. ``place`` is what an earlier look found: the contender may have left since."""
        queue = lock.contenders()
        waiting = [one for one in queue if not one.holds]
        session, _ = client.client_id
        mine = (one.sequence for one in waiting if one.session_id == session)
        holders = _dated(client, [one for one in queue if one.holds])
        return cls(lock.path, holders, waiting, next(mine, place))

    def __str__(self) -> str:
        holders = ", ".join(map(_told, self.holders))
        count, where = len(self.waiting), ""
        if self.place is not None:
            before = sum(one.sequence < self.place for one in self.waiting)
            count += all(one.sequence != self.place for one in self.waiting)
            where = f"number {before + 1} of "
        return f"{plain(self.path)} is held by {holders or 'nobody'}; {where}{count} waiting"


def _told(holder: Place) -> str:
    came = "" if holder.age is None else f", came {short(holder.age)} ago"
    return f"{named(holder.contender.identity)} ({holder.contender.token}{came})"


def _dated(client: KazooClient, queue: Iterable[zklock.Contender]) -> list[Place]:
    """Return the contenders with the times of their creation. ``NoAnswer`` if ZooKeeper is mute."""
    found, left = [], list(queue)
    while left:
        batch, left = left[:_BATCH], left[_BATCH:]
        asked = [client.exists_async(one.path) for one in batch]
        for one, reply in zip(batch, asked, strict=True):
            stat = None
            with suppress(NoAuthError):  # of one that this client may not read, from 3.8.4 on
                stat = wait(client, reply, one.path)
            found.append(Place(one, None if stat is None else stat.created))
    return found
