"""Grants that know when the library made them: not later than ``acquire`` returned."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import zklock._locks.threads
import zklock.aio
import zklock.aio.lock
from zklock._ground.clock import clock


class TimedGrant(zklock.Grant):
    """``began``: seconds since boot, when it was made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.began = clock()


class TimedAioGrant(zklock.aio.Grant):
    """The same for asyncio."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.began = clock()


class TimedLeadership(zklock.Leadership):
    """A leadership, the same."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.began = clock()


class TimedAioLeadership(zklock.aio.Leadership):
    """A leadership of asyncio, the same."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.began = clock()


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
