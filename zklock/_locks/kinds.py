"""The kinds of locks, each declared once, for threads and for asyncio alike."""

from __future__ import annotations

import math
from typing import Any, Unpack

from zklock._core.grant import GrantBase
from zklock._ground.numbers import check_int, check_number
from zklock._locks.base import G, LockBase, Options
from zklock._locks.keeping import Keeps
from zklock._recipes import (
    abandoned,
    lock as lock_recipe,
    names,
    revoke,
    semaphore as semaphore_recipe,
)
from zklock._recipes.effects import Recipe
from zklock._recipes.queries import Contender
from zklock._shell.client import AnyClient
from zklock.errors import WouldDeadlock


class Exclusive(Keeps[G]):
    def __init__(
        self,
        client: AnyClient,
        path: str,
        *,
        track_abandoned: bool = False,
        lock_delay: float = 0.0,
        keep: float | None = None,
        **options: Unpack[Options[G]],
    ) -> None:
        self._delay = check_number(
            "lock_delay",
            lock_delay,
            "seconds",
            lambda it: 0 <= it < math.inf,
            "seconds from 0 on",
        )
        self._marks = bool(track_abandoned) or self._delay > 0
        if self._marks and keep:
            raise ValueError(
                "keep= does not go together with track_abandoned= or lock_delay=: a client that "
                "ends while nobody uses its kept lock would count as a holder that has crashed"
            )
        super().__init__(client, path, keep=keep, **options)

    def _entry(self, data: bytes, patient: bool, **wanted: Any) -> lock_recipe.Entry:
        if not self._marks:
            return super()._entry(data, patient)
        return abandoned.MarkedEntry(
            self._path,
            data,
            self._KIND,
            patient=patient,
            tidy=self._tidy,
            naming=self._naming,
            delay=self._delay,
        )


class Reentrant(Exclusive[G]):
    """One owner at a time, which may acquire again while it holds."""

    def _again(self) -> G | None:
        mine = self._holdings()
        mine.grants = tuple([grant for grant in mine.grants if not grant.released])
        if not mine.grants:
            return None
        mine.grants[-1].check()
        return mine.grants[-1]


class Read(LockBase[G]):
    """Many readers at a time, or one writer."""

    _KIND = names.Kind.READ
    _CALLED = "read"

    def _check_own(self, *, waits: bool) -> None:
        if any(_writes(grant) for grant in _own_grants(self)):
            raise WouldDeadlock(
                f"{self._path}: this {self._WHO} holds the write lock; a read lock would wait for "
                "it: release it, or downgrade() it",
                path=self._path,
            )


class Write(Keeps[G]):
    """One writer at a time, and no readers."""

    _KIND = names.Kind.WRITE
    _CALLED = "write"

    def _check_own(self, *, waits: bool) -> None:
        if any(not _writes(grant) for grant in _own_grants(self)):
            raise WouldDeadlock(
                f"{self._path}: this {self._WHO} holds a read lock, which cannot be upgraded: two "
                "readers that both want to write would deadlock; release it first",
                path=self._path,
            )
        super()._check_own(waits=waits)

    async def _downgrade(self, timeout: float | None) -> G:
        grant = self._newest()
        if grant._place is not None:  # nobody else uses its znode, whatever becomes of this call
            grant._place.ask(grant)
        grant.check()
        there = await self._ask("downgrade()", lambda: revoke.let_readers_in(grant.path), timeout)
        if there:
            grant._reads = True
        else:
            self._session.confirmed(grant, -math.inf, there)
        grant.check()
        return grant


class Permits(LockBase[G]):
    """A limited number of permits at a time: first come, first served."""

    _CALLED = "semaphore"

    def __init__(
        self,
        client: AnyClient,
        path: str,
        *,
        limit: int | None,
        **options: Unpack[Options[G]],
    ) -> None:
        self._permits = None if limit is None else check_permits("limit", limit)
        if options.get("tidy"):
            raise ValueError("a semaphore takes no tidy=True: its znode stores its limit")
        if options.get("naming", "curator") != "curator":
            raise ValueError("kazoo's semaphore does not work with this one: leave naming= out")
        super().__init__(client, path, **options)
        for below in (semaphore_recipe.locks(self._path), semaphore_recipe.leases(self._path)):
            names.check_path(below)

    @property
    def limit(self) -> int | None:
        """The limit that this object uses; ``None``: the limit that is kept in ZooKeeper."""
        return self._permits

    def _entry(self, data: bytes, patient: bool, *, wanted: int = 1, **_: Any) -> lock_recipe.Entry:
        return semaphore_recipe.PermitEntry(
            semaphore_recipe.locks(self._path),
            data,
            names.Kind.EXCLUSIVE,
            patient=patient,
            root=self._path,
            limit=self._permits,
            permits=wanted,
        )

    def _check_own(self, *, waits: bool) -> None:
        """Nothing: permits of its own do not block it for as long as there are others."""

    def _wanted(self, wanted: int) -> int:
        number = check_permits("permits", wanted)
        if self._permits is not None and number > self._permits:
            raise ValueError(f"{number} permits will never be free: the limit is {self._permits}")
        return number

    async def _set_limit(self, limit: int, timeout: float | None) -> None:
        number = check_permits("limit", limit)

        def change() -> Recipe[None]:
            yield from semaphore_recipe.set_limit(self._path, number)
            if self._permits is not None:
                self._permits = number

        await self._ask("set_limit()", change, timeout)

    def _contenders(self) -> Recipe[list[Contender]]:
        return semaphore_recipe.contenders(self._path)

    def _holder(self) -> Recipe[Contender | None]:
        return semaphore_recipe.holder(self._path)


def check_permits(name: str, value: Any) -> int:
    """Return a valid number of permits; ``TypeError`` or ``ValueError`` if it is not valid."""
    return check_int(name, value, 1, names.EXHAUSTED_AT - 1)


def _own_grants(lock: LockBase[Any]) -> list[GrantBase]:
    """Return the grants that the running thread or task has on this path, from any lock object."""
    owner, grants = lock._owner(), lock._session.grants(lock.path)
    return [grant for grant in grants if grant._kept and grant._terms.owner == owner]


def _writes(grant: GrantBase) -> bool:
    name = names.parse(grant.path.rpartition("/")[2])
    return name is not None and name.kind is not names.Kind.READ and not grant._reads
