"""Removes the containers and networks of a server or an ensemble.

``python -m zklock.testing.reaper GROUP`` removes those of one group. A shell runs it: the shell
waits for the end of the test process.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError

from zklock.testing.watchdog import Watchdog

GROUP_LABEL = "zklock.testing.group"


def remove_group(engine: Any, group: str) -> None:
    """Remove everything with this group's label."""
    wanted = {"label": f"{GROUP_LABEL}={group}"}
    for container in engine.containers.list(all=True, filters=wanted, ignore_removed=True):
        with contextlib.suppress(APIError):  # another process removes it at the same time
            container.remove(force=True, v=True)
    for network in engine.networks.list(filters=wanted):
        with contextlib.suppress(APIError):
            network.remove()


def watch(group: str, environ: Mapping[str, str] = os.environ) -> Watchdog:
    """Have a group removed once this process has ended."""
    root = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join([root, *filter(None, [environ.get("PYTHONPATH")])])
    command = sys.executable, "-m", __name__, group
    return Watchdog(*command, environ={**environ, "PYTHONPATH": paths})


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
