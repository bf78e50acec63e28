"""Locks that may stay with their client after a release; see ``_core/keep.py``."""

from __future__ import annotations

import math
import os
from functools import partial
from typing import Any, Unpack

from zklock._core.attempt import Attempt
from zklock._core.grant import GrantOptions
from zklock._core.keep import Place, Waiter, place_of
from zklock._ground.numbers import check_number
from zklock._locks.base import G, LockBase, Options, default_identity
from zklock._recipes import lock as lock_recipe
from zklock._recipes.nodedata import KEEPS, NodeData
from zklock._shell.client import AnyClient
from zklock.errors import AcquireTimeout


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
        self._place: Place | None = None
        if self._keep_for:
            if self._identity is None:
                # The process's, as a kept znode outlives the thread or task that has acquired it.
                self._identity = default_identity(os.getpid(), "")
            key = self._path, self._KIND, self._identity, self._naming, self._tidy
            self._place = place_of(self._session, key)

    def _take_kept(self, terms: GrantOptions) -> G | None:
        place = self._place
        if place is None or not place.idle:
            return None
        grant: G | None = None
        take_back = partial(place.take_back, terms)
        try:
            grant = place.take(terms)
            if grant is not None:
                self._keep(grant)
            return grant
        except BaseException:
            if grant is not None:
                grant._kept = False
            self._session.post(take_back)
            self._session.shell.wake()
            raise

    def _timed_out(self) -> AcquireTimeout:
        if self._place is not None:
            self._holdings().asked = self._place.asked
        return super()._timed_out()

    def _attempt(
        self, terms: GrantOptions, patient: bool, **wanted: Any
    ) -> tuple[lock_recipe.Entry | None, Attempt[G | None]]:
        if self._place is None:
            return super()._attempt(terms, patient, **wanted)
        waiter: Any = Waiter(self._place, terms, self._contend_for, patient=patient)
        return None, waiter  # it is used as an attempt

    def _contend_for(self, place: Place, patient: bool) -> Attempt[object]:
        """Return a contender for a place."""
        identity = self._identity or ""
        entry = self._entry(bytes(NodeData(identity.encode(), payload=KEEPS)), patient)
        place.asked = entry
        terms = GrantOptions(self._path, identity, self._GRANT, kind=self._CALLED, place=place)
        return self._contend(entry, terms)
