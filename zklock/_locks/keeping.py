"""Locks that may stay with their client after a release; see ``_engine/keep.py``."""

from __future__ import annotations

import math
import os
from functools import partial
from typing import Unpack, cast

from zklock._engine.attempt import Attempt
from zklock._engine.grant import GrantOptions
from zklock._engine.keep import Place, Waiter
from zklock._ground.numbers import check_number
from zklock._kazoo.client import AnyClient
from zklock._kazoo.loops import check_thread
from zklock._locks.base import G, LockBase, Options, default_identity, limit_of
from zklock._recipes import lock as lock_recipe
from zklock._recipes.nodedata import KEEPS, NodeData
from zklock._telemetry import emit, subscriptions


class Keeps(LockBase[G]):
    """A lock with the option ``keep``."""

    def __init__(
        self,
        client: AnyClient,
        path: str,
        *,
        keep: float | None = None,
        **options: Unpack[Options[G]],
    ) -> None:
        self._keep_for = check_number(
            "keep",
            0.0 if keep is None else keep,
            "seconds or None",
            lambda it: 0 <= it < math.inf,
            "seconds from 0 on",
        )
        super().__init__(client, path, **options)
        if self._keep_for and self._identity is None:
            # The process's, as a kept znode outlives the thread or task that has acquired it.
            self._identity = default_identity(os.getpid(), "")
        self._key = self._path, self._KIND, self._identity, self._naming, self._tidy

    def _take_kept(self, blocking: bool, timeout: float | None) -> G | None:
        if not self._keep_for:
            return None
        limit_of(blocking, timeout)
        check_thread("acquire()")
        place: Place | None = self._session.places.get(self._key)
        if place is None or not place.idle or self._again() is not None:
            return None
        self._session.check_usable()
        self._check_own(waits=False)
        terms = self._options()
        grant: G | None = None
        rebuild = partial(place.rebuild, terms)
        try:
            grant = cast("G | None", place.take(terms))
            if grant is not None:
                self._keep(grant)
            return grant
        except BaseException:
            if grant is not None:
                grant._kept = False
            self._session.post(rebuild)
            raise

    def _waiter(self, entry: lock_recipe.Entry, terms: GrantOptions) -> Attempt[G | None]:
        contend = partial(self._contend, terms.identity)
        waiter = Waiter(self._session, self._key, terms, contend, patient=entry.patient)
        return cast("Attempt[G | None]", waiter)  # it is used as one

    def _contend(self, identity: str, place: Place, patient: bool) -> Attempt[object]:
        """Return a contender for a place."""
        entry = self._entry(bytes(NodeData(identity.encode(), payload=KEEPS)), patient)
        terms = GrantOptions(self._path, identity, self._GRANT, kind=self._CALLED, place=place)
        if subscriptions.hooks:
            entry.queued = emit.queued(terms, self._session.now)
        return self._session.attempt(lock_recipe.acquire(entry), recover=entry.leave, terms=terms)
