"""``zklock dev``: a ZooKeeper in pure Python, for a first try."""

from __future__ import annotations

import argparse
import contextlib
import os
import time

from zklock.cli import settings
from zklock.cli.ending import ends_on_signals
from zklock.cli.saying import say
from zklock.cli.status import Status

_STDOUT, _STDERR = 1, 2
_TURN_SECONDS = 0.2
"""How late a signal is heard that comes just before a wait begins: it does not end that."""

DESCRIPTION = """\
Run a ZooKeeper server in pure Python, until Ctrl-C. It needs neither Java nor containers, and
starts in milliseconds. It is for tests, demos and a first try, never for production: it is one
process, and keeps nothing on disk. In the background (zklock dev &) it prints nothing to the
terminal, and kill %1 ends it. Exit status 71: the port is taken."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port",
        type=settings.whole(0, 65535, "not 0 to 65535"),
        default=2181,
        help="port on 127.0.0.1; 0: any free port; default 2181",
    )


def run(options: argparse.Namespace) -> int:
    """Serve until a signal ends it; return the exit status."""
    # Imported here, so that the other commands do not load the server.
    from zklock.testing.errors import StartFailed  # noqa: PLC0415
    from zklock.testing.zookeeper.server import NOTICE, embedded  # noqa: PLC0415

    server = embedded(port=options.port or None)
    with ends_on_signals():
        try:
            server.start()
        except StartFailed as error:
            say("dev", f"{error}: use another --port")
            return Status.SYSTEM
        try:
            if not _has_prompt(_STDERR):
                end = f"Ctrl-C or kill {os.getpid()} ends it"
                say("dev", f"a ZooKeeper on {server.hosts}, {NOTICE}; {end}")
            if not _has_prompt(_STDOUT):
                print(server.hosts, flush=True)
            while True:
                time.sleep(_TURN_SECONDS)
        finally:
            server.stop()


def _has_prompt(descriptor: int) -> bool:
    """Return whether this is our terminal and a shell, or another program, has its foreground."""
    if not os.isatty(descriptor):
        return False
    with contextlib.suppress(OSError):  # ENOTTY: it is not our terminal
        return os.tcgetpgrp(descriptor) != os.getpgrp()
    return False
