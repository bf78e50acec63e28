"""Exit statuses: those of sysexits.h, timeout(1) and shells, if these have one for the case."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """What the exit status of a command means."""

    OK = 0
    FAILED = 1
    CRITICAL = 2  # of 'graph': a certain deadlock; of 'doctor': a problem
    USAGE = 64
    MISSING = 66  # no such node
    UNAVAILABLE = 69  # no ZooKeeper answers
    SOFTWARE = 70  # an internal error
    SYSTEM = 71  # no thread, no memory, no descriptor
    NOT_OBTAINED = 75  # sysexits: temporary failure, try again
    DENIED = 77
    LOST = 79
    ITSELF = 125  # 'zklock run' has failed: neither 70 nor 71, which may be the command's
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143
