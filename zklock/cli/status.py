"""Exit statuses: those of sysexits.h, of timeout(1) and of shells, where they have one."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """What a command says by its exit status."""

    OK = 0
    FAILED = 1
    USAGE = 64
    UNAVAILABLE = 69  # no ZooKeeper answers
    LOST = 75  # sysexits: temporary failure, try again
    DENIED = 77
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143
