"""Makes sure that something here can run ZooKeeper; installs it if that is permitted.

``python -m zklock.testing.provision`` does this and says what was found. If nothing helps, it
exits with 1 and says what to do.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from zklock.testing.backend import Backend
from zklock.testing.errors import BackendUnavailable
from zklock.testing.selection import BACKEND_VARIABLE, choose_backend
from zklock.testing.switches import switch

PERMIT_VARIABLE = "ZKLOCK_PROVISION"

_PACKAGES = ("default-jre-headless", "libzookeeper-java")


def provision(
    environ: Mapping[str, str] = os.environ, *, say: Callable[[str], object] = print
) -> Backend:
    """Return a backend that can run ZooKeeper; install Debian's packages if there is none.

    Installs only as root, on a machine with ``apt-get``, and only if neither
    ``ZKLOCK_TEST_BACKEND`` nor ``ZKLOCK_TEST_HOSTS`` asks for something else. Never installs with
    ``ZKLOCK_PROVISION=0``, and never uses ``sudo``. Calls ``say`` before it begins to install. If
    it does not install, ``BackendUnavailable`` says why, or exactly what to run.
    """
    try:
        return choose_backend(environ=environ)
    except BackendUnavailable as error:
        refusal = _refusal(environ)
        if refusal is not None:
            raise BackendUnavailable(f"{error}\n{refusal}") from error
    say("no ZooKeeper here, so apt-get is asked for one")
    say(f"installing {' and '.join(_PACKAGES)}")
    _apt("update")
    _apt("install", "-y", "--no-install-recommends", *_PACKAGES)
    backend = choose_backend(environ=environ)
    say(f"installed; ZooKeeper is served by {backend.describe()}")
    return backend


def _refusal(environ: Mapping[str, str]) -> str | None:
    """Return why not, or what to do by hand; ``None`` if the packages may be installed."""
    command = f"apt-get update && apt-get install {' '.join(_PACKAGES)}"
    if environ.get("ZKLOCK_TEST_HOSTS") or environ.get(BACKEND_VARIABLE, "java") != "java":
        return f"Nothing is installed where {BACKEND_VARIABLE} or ZKLOCK_TEST_HOSTS is set."
    if shutil.which("apt-get") is None:
        return (
            "Install a Java runtime (11 or later) with this system's package manager, unpack an "
            "Apache ZooKeeper release, set ZOOKEEPER_HOME to its folder, and try again."
        )
    if not switch(PERMIT_VARIABLE, environ, default=True):
        return f"Not installed, as {PERMIT_VARIABLE}=0. As root, run:  {command}"
    if os.geteuid() != 0:
        return f"As root, run:  {command}\nThen try again."
    return None


def _apt(*arguments: str) -> None:
    """Run apt-get; what it prints goes to standard error, and shows that it goes on."""
    command = [
        *("apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"),
        *arguments,
    ]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.__stderr__,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        check=False,
    )
    if done.returncode:
        raise BackendUnavailable(
            f"{' '.join(command)} failed with code {done.returncode}: it says above why"
        )


def main(arguments: Sequence[str] = ()) -> int:
    """Provision; print what serves, or what to do."""
    argparse.ArgumentParser(
        prog="python -m zklock.testing.provision",
        description="Find what can run ZooKeeper. If there is nothing, install Debian's packages:"
        f" as root, where there is apt-get, and not with {PERMIT_VARIABLE}=0.",
    ).parse_args(arguments)
    try:
        backend = provision()
    except (BackendUnavailable, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"ZooKeeper: {backend.describe()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
