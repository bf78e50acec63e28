"""Removes containers and networks that a test process has left behind.

``python -m zklock.testing.reaper GROUP`` removes those of one group. A shell runs it: the shell
waits for the end of the test process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError

from zklock.testing.owner import Owner

OWNER_LABEL = "zklock.testing.owner"
GROUP_LABEL = "zklock.testing.group"

# End of file without a word: the process with the other end of the pipe is gone.
_WAIT = 'read -r word || exec "$@"'


def remove_group(engine: Any, group: str) -> None:
    """Remove everything with this group's label."""
    _remove(engine, GROUP_LABEL, lambda label: label == group)


def remove_orphans(engine: Any) -> None:
    """Remove what belongs to processes that have ended."""
    _remove(engine, OWNER_LABEL, _orphaned)


def _orphaned(label: str) -> bool:
    try:
        return Owner.parse(label).gone()
    except ValueError:
        return False


def _remove(engine: Any, label: str, chosen: Callable[[str], bool]) -> None:
    wanted = {"label": label}
    for container in engine.containers.list(all=True, filters=wanted, ignore_removed=True):
        if chosen(container.labels.get(label, "")):
            with contextlib.suppress(APIError):  # another process removes it at the same time
                container.remove(force=True, v=True)
    for network in engine.networks.list(filters=wanted):
        if chosen((network.attrs.get("Labels") or {}).get(label, "")):
            with contextlib.suppress(APIError):
                network.remove()


class Watchdog:
    """Has a group removed if this process ends without ``dismiss``, even by SIGKILL."""

    def __init__(self, group: str, environ: Mapping[str, str] = os.environ) -> None:
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, [environ.get("PYTHONPATH")])]
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _WAIT, "zklock", sys.executable, "-m", __name__, group],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**environ, "PYTHONPATH": os.pathsep.join(paths)},
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


def main(arguments: list[str]) -> int:
    """Remove one group."""
    (group,) = arguments
    engine = docker.from_env()
    try:
        remove_group(engine, group)
    finally:
        engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
