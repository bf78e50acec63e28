"""Errors that come in groups: what the tasks of an ``asyncio.TaskGroup`` raise."""

from __future__ import annotations

from zklock.errors import LockLost, StaleToken

OF_LOSS = LockLost, StaleToken
"""What tells work that its lock is lost: the lease, or the resource that it writes to."""


def says_only(
    error: BaseException, kind: type[BaseException] | tuple[type[BaseException], ...]
) -> bool:
    """Whether it is an error of this kind, or a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(says_only(each, kind) for each in error.exceptions)
    return isinstance(error, kind)
