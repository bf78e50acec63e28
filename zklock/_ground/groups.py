"""Errors that come in groups: what the tasks of an ``asyncio.TaskGroup`` raise."""

from __future__ import annotations


def says_only(error: BaseException, kind: type[BaseException]) -> bool:
    """Whether it is an error of this kind, or a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(says_only(each, kind) for each in error.exceptions)
    return isinstance(error, kind)
