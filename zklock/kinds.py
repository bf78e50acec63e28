"""The kinds of locks, each declared once, for threads and for asyncio alike."""

from __future__ import annotations

import math
from typing import Any, Unpack

from zklock import interventions, marks, names, permits, recipe
from zklock.base import Acquirable, G, Options
from zklock.connection import Client
from zklock.effects import Recipe
from zklock.errors import WouldDeadlock
from zklock.grant import GrantBase
from zklock.queries import Contender


class Exclusive(Acquirable[G]):
    """One grant at a time."""

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        track_abandoned: bool = False,
        lock_delay: float = 0.0,
        **options: Unpack[Options[G]],
    ) -> None:
        if isinstance(lock_delay, bool) or not isinstance(lock_delay, int | float):
            raise TypeError(f"lock_delay must be seconds, not {type(lock_delay).__name__}")
        if not 0 <= lock_delay < math.inf:
            raise ValueError(f"lock_delay must be seconds from 0 on, not {lock_delay}")
        self._marks = bool(track_abandoned) or lock_delay > 0
        self._delay = float(lock_delay)
        super().__init__(client, path, **options)

    def _entry(self, data: bytes, patient: bool, **wanted: Any) -> recipe.Entry:
        if not self._marks:
            return super()._entry(data, patient)
        return marks.Entry(
            self._path, data, self._KIND, patient=patient, tidy=self._tidy, delay=self._delay
        )


class Reentrant(Exclusive[G]):
    """One owner at a time, which may acquire again what it holds."""

    def _again(self) -> G | None:
        grants = self._holdings().grants
        grants[:] = [grant for grant in grants if not grant.released]
        if not grants:
            return None
        grants[-1].check()
        return grants[-1]


class Read(Acquirable[G]):
    """Many readers at a time, or one writer."""

    _KIND = names.Kind.READ

    def _check_acquire(self) -> None:
        super()._check_acquire()
        if any(_writes(grant) for grant in _own_grants(self)):
            raise WouldDeadlock(
                f"{self._path}: this {self._WHO} holds the write lock, so that a reader would "
                "wait for it: release it, or downgrade() it",
                path=self._path,
            )


class Write(Acquirable[G]):
    """One writer at a time, and no readers."""

    _KIND = names.Kind.WRITE

    def _check_acquire(self) -> None:
        super()._check_acquire()
        if any(not _writes(grant) for grant in _own_grants(self)):
            raise WouldDeadlock(
                f"{self._path}: this {self._WHO} holds a read lock, which cannot be upgraded: two "
                "readers that both wait to write would wait for each other; release it first",
                path=self._path,
            )

    def _downgrade(self, grant: G) -> Recipe[bool]:
        return interventions.let_readers_in(grant.path)

    def _downgraded(self, grant: G, there: bool) -> None:
        if there:
            grant._reads = True
        else:
            self._session.confirmed(grant, -math.inf, there)
        grant.check()


class Permits(Acquirable[G]):
    """So many permits at a time, in the order of asking."""

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        limit: int | None,
        **options: Unpack[Options[G]],
    ) -> None:
        self._permits = None if limit is None else check_permits("limit", limit)
        if options.get("tidy"):
            raise ValueError("a semaphore's znode keeps its limit: it cannot be tidied away")
        super().__init__(client, path, **options)
        for below in (permits.locks(self._path), permits.leases(self._path)):
            names.check_path(below)

    @property
    def limit(self) -> int | None:
        """The limit that this object goes by; ``None``: whatever is kept in ZooKeeper."""
        return self._permits

    def _entry(self, data: bytes, patient: bool, *, wanted: int = 1, **_: Any) -> recipe.Entry:
        return permits.Entry(
            permits.locks(self._path),
            data,
            names.Kind.EXCLUSIVE,
            patient=patient,
            root=self._path,
            limit=self._permits,
            permits=wanted,
        )

    def _wanted(self, wanted: int) -> int:
        number = check_permits("permits", wanted)
        if self._permits is not None and number > self._permits:
            raise ValueError(f"{number} permits will never be free: the limit is {self._permits}")
        return number

    def _set_limit(self, limit: int) -> Recipe[None]:
        number = check_permits("limit", limit)
        yield from permits.set_limit(self._path, number)
        self._permits = number

    def _contenders(self) -> Recipe[list[Contender]]:
        return permits.contenders(self._path)

    def _holder(self) -> Recipe[Contender | None]:
        return permits.holder(self._path)


def check_permits(name: str, value: Any) -> int:
    """Return a number of permits; ``TypeError`` or ``ValueError`` if it is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not 0 < value < names.EXHAUSTED_AT:
        raise ValueError(f"{name} must be 1 or more, not {value}")
    return value


def _own_grants(lock: Acquirable[Any]) -> list[GrantBase]:
    """Return what the running thread or task holds of this path, by whichever object."""
    owner = lock._owner()
    return [grant for grant in lock._session.grants(lock.path) if grant._terms.owner == owner]


def _writes(grant: GrantBase) -> bool:
    name = names.parse(grant.path.rpartition("/")[2])
    return name is not None and name.kind is not names.Kind.READ and not grant._reads
