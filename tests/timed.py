"""Grants that know when the library made them: not later than ``acquire`` returned."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import zklock._locks.threads
import zklock.aio
import zklock.aio.lock
from zklock._ground.clock import clock

_numbers = itertools.count(1)


class _Timed:
    """``began``: seconds since boot, when it was made; ``number``: its own in this process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.began = clock()
        self.number = next(_numbers)


class TimedGrant(_Timed, zklock.Grant):
    """A grant of a thread."""


class TimedAioGrant(_Timed, zklock.aio.Grant):
    """A grant of a task."""


class TimedLeadership(_Timed, zklock.Leadership):
    """A leadership of a thread."""


class TimedAioLeadership(_Timed, zklock.aio.Leadership):
    """A leadership of a task."""


@contextlib.contextmanager
def timed_grants() -> Iterator[None]:
    """Have every grant of this process timed."""
    with (
        mock.patch.object(zklock._locks.threads.ThreadLock, "_GRANT", TimedGrant),
        mock.patch.object(zklock.aio.lock.TaskLock, "_GRANT", TimedAioGrant),
        mock.patch.object(zklock.LeaderElection, "_LEADERSHIP", TimedLeadership),
        mock.patch.object(zklock.aio.LeaderElection, "_LEADERSHIP", TimedAioLeadership),
    ):
        yield
