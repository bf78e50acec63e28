"""Which process this is, to tell a forked child from its parent."""

from __future__ import annotations

import os
from typing import TypeAlias

Process: TypeAlias = tuple[int, int]

_forks = 0


def this_process() -> Process:
    """Return what tells this process from its parent and its children.

    A fork into another PID namespace may have the pid of its parent, as both are the first there.
    So the forks behind it count, too. C code may fork without Python's hooks: the pid tells then.
    """
    return os.getpid(), _forks


def _after_fork() -> None:
    global _forks  # noqa: PLW0603
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
