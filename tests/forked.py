"""A forked child that has a copy of all that is open, and does nothing with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def copied_by_a_child() -> Iterator[None]:
    """Have such a child meanwhile."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(reads, 1)
        os._exit(0)
    try:
        yield
    finally:
        os.write(writes, b"!")
        os.waitpid(pid, 0)
        os.close(reads)
        os.close(writes)
