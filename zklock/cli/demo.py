"""``zklock demo``: its arguments. The demo itself is in ``zklock.testing.demo``."""

from __future__ import annotations

import argparse

import zklock
from zklock.cli import settings
from zklock.cli.ending import Ended, ends_on_signals
from zklock.cli.saying import say as say_for
from zklock.cli.status import Status

SHORTEST, LONGEST = 0.5, 20.0
"""The allowed session timeouts, in seconds."""

DESCRIPTION = """\
Play four scenes with real worker processes against a real ZooKeeper: the holder of a lock is
killed; paused past its session; cut off from ZooKeeper; and a worker of a pool is killed. Check
after each what locks promise. Exit status 0: all checks passed; 1: a check failed, and the last
line names it; 69: the given ZooKeeper does not answer, or cannot be run here. Where neither a
container engine nor Java can run ZooKeeper, and none can be installed, the demo plays with the
embedded server, and says so."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hosts",
        type=_hosts,
        help="play on this ZooKeeper (host:port,...[/chroot]) instead of one made for it",
    )
    parser.add_argument(
        "--session-timeout",
        type=_timeout,
        default=2.0,
        metavar="SECONDS",
        help=f"session timeout of the workers, {SHORTEST:g} to {LONGEST:g}; default 2",
    )


def run(options: argparse.Namespace) -> int:
    """Play the demo; return the exit status."""
    # Imported here, so that the other commands do not load servers and proxies.
    from zklock.testing import BackendUnavailable  # noqa: PLC0415
    from zklock.testing.demo import play  # noqa: PLC0415
    from zklock.testing.demo.checks import Failed  # noqa: PLC0415

    try:
        with ends_on_signals():
            play.play(options.hosts, options.session_timeout, _tell, _say)
    except Ended as ended:
        _say(f"ended by {ended}; all that it started is gone")
        raise
    except BackendUnavailable as error:
        _say(str(error))
        return Status.UNAVAILABLE
    except BrokenPipeError:
        raise
    except (Failed, zklock.ZkLockError, ValueError, OSError) as error:
        _say(str(error))
        return Status.FAILED
    _tell("\nAll of it held.")
    return Status.OK


def _tell(line: str) -> None:
    print(line, flush=True)


def _say(text: str) -> None:
    for line in text.splitlines():
        say_for("demo", line)


def _hosts(text: str) -> str:
    from zklock.testing.external import parse_hosts  # noqa: PLC0415 - as in run()

    try:
        parse_hosts(text.partition("/")[0])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _timeout(text: str) -> float:
    seconds = settings.seconds(text)
    if not SHORTEST <= seconds <= LONGEST:
        raise argparse.ArgumentTypeError(f"{text}: not {SHORTEST:g} to {LONGEST:g} seconds")
    return seconds
