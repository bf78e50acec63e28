"""Sees to it that something here can run ZooKeeper, installing it where that is permitted.

``python -m zklock.testing.provision`` does so and says what there is; it exits 1, with what to
do, if nothing helps.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from zklock.testing.backend import Backend
from zklock.testing.errors import BackendUnavailable
from zklock.testing.selection import BACKEND_VARIABLE, choose_backend

PERMIT_VARIABLE = "ZKLOCK_PROVISION"

_PACKAGES = ("default-jre-headless", "libzookeeper-java")
_TRIES = 3
_PAUSE_SECONDS = 5.0


def provision(
    environ: Mapping[str, str] = os.environ, *, say: Callable[[str], None] = print
) -> Backend:
    """Return a backend that can run ZooKeeper; install Debian's packages if there is none.

    Installs only as root on a machine with ``apt-get``, only where neither
    ``ZKLOCK_TEST_BACKEND`` nor ``ZKLOCK_TEST_HOSTS`` asks for something else, and never with
    ``ZKLOCK_PROVISION=0``; ``say`` hears of it before it begins. Never uses ``sudo``.
    ``BackendUnavailable`` says exactly what to run instead.
    """
    try:
        return choose_backend(environ=environ)
    except BackendUnavailable as error:
        refusal = _refusal(environ)
        if refusal is not None:
            raise BackendUnavailable(f"{error}\n{refusal}") from error
    say(f"no ZooKeeper here: installing {' and '.join(_PACKAGES)} with apt-get")
    _install()
    backend = choose_backend(environ=environ)
    say(f"installed; ZooKeeper is served by {backend.describe()}")
    return backend


def _refusal(environ: Mapping[str, str]) -> str | None:
    """Return what to do by hand, or ``None`` if the packages may be installed."""
    command = f"apt-get update && apt-get install {' '.join(_PACKAGES)}"
    if environ.get("ZKLOCK_TEST_HOSTS") or environ.get(BACKEND_VARIABLE, "java") != "java":
        return f"Nothing is installed where {BACKEND_VARIABLE} or ZKLOCK_TEST_HOSTS is set."
    if shutil.which("apt-get") is None:
        return (
            "Install a Java runtime (11 or later) with this system's package manager, unpack an "
            "Apache ZooKeeper release, set ZOOKEEPER_HOME to its folder, and try again."
        )
    if environ.get(PERMIT_VARIABLE) == "0":
        return f"Not installed, as {PERMIT_VARIABLE}=0. As root, run:  {command}"
    if os.geteuid() != 0:
        return f"As root, run:  {command}\nThen try again."
    return None


def _install() -> None:
    for last in [False] * (_TRIES - 1) + [True]:
        try:
            _apt(["update"])
            _apt(["install", "-y", "--no-install-recommends", *_PACKAGES])
        except subprocess.CalledProcessError as error:
            if last:
                output = (error.stdout or "").strip()
                raise BackendUnavailable(
                    f"{' '.join(error.cmd)} failed with code {error.returncode}:\n{output}"
                ) from error
            time.sleep(_PAUSE_SECONDS)
        else:
            return


def _apt(arguments: list[str]) -> None:
    subprocess.run(
        ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", *arguments],
        check=True,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )


def main() -> int:
    """Provision, and print what serves or what to do."""
    try:
        backend = provision()
    except BackendUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    print(f"ZooKeeper: {backend.describe()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
