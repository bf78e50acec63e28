"""What belongs to this process: a command that runs once it has ended, and nothing of a child's."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")

# End of file without a word: the process with the other end of the pipe is gone.
_WAIT = 'read -r word || exec "$@"'


def forgotten_by_children(forget: Callable[[T], object]) -> set[T]:
    """Return a set for what belongs to this process alone: a forked child calls ``forget``."""
    mine: set[T] = set()

    def after_fork() -> None:
        for each in mine:
            forget(each)
        mine.clear()

    os.register_at_fork(after_in_child=after_fork)
    return mine


class Watchdog:
    """A shell that runs a command if this process ends without ``dismiss``, even by SIGKILL."""

    def __init__(self, *command: str, environ: Mapping[str, str] = os.environ) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _WAIT, "zklock", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=dict(environ),
        )
        _watchdogs.add(self)

    def dismiss(self) -> None:
        """End the watch. May be called twice."""
        if self._shell.poll() is None:
            assert self._shell.stdin is not None
            with contextlib.suppress(BrokenPipeError), self._shell.stdin as pipe:
                pipe.write(b"dismissed\n")
            self._shell.wait()
        _watchdogs.discard(self)

    def _forget(self) -> None:
        """In a child that outlives this process: else it would keep the shell waiting."""
        assert self._shell.stdin is not None
        self._shell.stdin.close()


_watchdogs = forgotten_by_children(Watchdog._forget)
