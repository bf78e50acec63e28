"""Has a command run once this process has ended, however it ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
import weakref
from collections.abc import Mapping

# End of file without a word: the process with the other end of the pipe is gone.
_WAIT = 'read -r word || exec "$@"'


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
        assert self._shell.stdin is not None
        self._shell.stdin.close()


_watchdogs: weakref.WeakSet[Watchdog] = weakref.WeakSet()


def _after_fork() -> None:
    # A child of fork() that outlives this process would keep the shells waiting.
    for watchdog in list(_watchdogs):
        watchdog._forget()


os.register_at_fork(after_in_child=_after_fork)
