"""A first use of an installed zklock, on a ZooKeeper in pure Python. Run it outside of a checkout.

``python -I smoke.py VERSION``: the version that must be installed.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import zklock
from zklock import aio, fencing, telemetry, testing
from zklock.contrib import asgi, wsgi


def names() -> None:
    """Load every public name, and the files that are no code."""
    for module in (zklock, aio, fencing, telemetry, testing, asgi, wsgi):
        for name in module.__all__:
            assert getattr(module, name) is not None, name
    folder = Path(zklock.__file__).parent
    assert (folder / "py.typed").is_file()
    assert list(folder.glob("testing/compose/*")), "the Compose files"


def command(*arguments: str) -> str:
    """Run the installed command."""
    program = Path(sys.executable).with_name("zklock")
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=60, check=True
    ).stdout


def threads(hosts: str) -> zklock.FencingToken:
    """Hold a lock; another client waits in vain, then is next."""
    with zklock.connect(hosts) as client, zklock.connect(hosts) as other:
        lock, behind = zklock.Lock(client, "/smoke"), zklock.Lock(other, "/smoke")
        with lock as grant:
            grant.verify()
            with behind.attempt(timeout=0.2) as nothing:
                assert nothing is None
        with behind as later:
            assert later.token > grant.token
            return later.token


async def tasks(hosts: str) -> zklock.FencingToken:
    """Hold the same lock in a task."""
    async with aio.connect(hosts) as client, aio.Lock(client, "/smoke") as grant:
        await grant.verify()
        return grant.token


def main(version: str) -> None:
    """Use all of it once."""
    assert "site-packages" in zklock.__file__, f"not the installed one: {zklock.__file__}"
    assert zklock.__version__ == importlib.metadata.version("zklock-recipes") == version
    names()
    assert version in command("--version")
    with testing.embedded() as server:
        first = threads(server.hosts)
        assert asyncio.run(tasks(server.hosts)) > first
        assert "mine" in command("run", f"--hosts={server.hosts}", "/smoke", "--", "echo", "mine")
    python = ".".join(map(str, sys.version_info[:3]))
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled")  # noqa: B009 - from 3.13 on
        assert not enabled(), "something that was loaded has put the global lock back"
        python += ", free-threaded"
    print(f"ok: Python {python}, kazoo {importlib.metadata.version('kazoo')}, zklock {version}")


if __name__ == "__main__":
    main(sys.argv[1])
