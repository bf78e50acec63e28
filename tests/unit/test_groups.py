"""Errors that come in groups."""

from __future__ import annotations

import pytest

from zklock._ground.groups import says_only
from zklock.errors import LockLost, NotHeld, ZkLockError

LOST, OTHER = LockLost("lost"), NotHeld("not held")


@pytest.mark.parametrize(
    ("error", "kind", "only"),
    [
        (LOST, LockLost, True),
        (LOST, ZkLockError, True),
        (OTHER, LockLost, False),
        (ExceptionGroup("", [LOST, LOST]), LockLost, True),
        (ExceptionGroup("", [LOST, ExceptionGroup("", [LOST])]), LockLost, True),
        (ExceptionGroup("", [LOST, OTHER]), LockLost, False),
        (BaseExceptionGroup("", [LOST, SystemExit()]), LockLost, False),
        (ExceptionGroup("", [LOST, ExceptionGroup("", [OTHER])]), LockLost, False),
    ],
)
def test_says_only(error: BaseException, kind: type[BaseException], only: bool) -> None:
    assert says_only(error, kind) is only
