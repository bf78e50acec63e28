"""Grants that know when the library made them: not later than ``acquire`` returned."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from zklock import Grant
from zklock.clock import clock
from zklock.lock import Acquiring


class TimedGrant(Grant):
    """``began``: seconds since boot, when it was made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.began = clock()


@contextlib.contextmanager
def timed_grants() -> Iterator[None]:
    """Have every grant of this process timed."""
    with mock.patch.object(Acquiring, "_GRANT", TimedGrant):
        yield
