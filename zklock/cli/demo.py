"""``zklock demo``: its arguments. The demo itself is in ``zklock.testing.demo``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import zklock
from zklock.cli import settings
from zklock.cli.ending import Ended, ends_on_signals, ignore_signals
from zklock.cli.status import Status

if TYPE_CHECKING:
    from zklock.testing.demo.output import Teller

SHORTEST, LONGEST = 0.5, 20.0
"""The allowed session timeouts, in seconds."""

FEWEST, MOST = 12, 1000
"""The allowed numbers of shards."""

DESCRIPTION = """\
Play four acts with real worker processes against a real ZooKeeper: six workers queue for one lock
and write under its tokens; the holder is killed; paused past its session; cut from ZooKeeper.
Then check what happened. Exit status 0: all checks passed; 1: a check failed, and the summary
names it; 69: the given ZooKeeper does not answer, or cannot be run here. Where neither a container
engine nor Java can run ZooKeeper, and none can be installed, the demo plays with the embedded
server, and says so."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print events as JSON, one a line")
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
    parser.add_argument(
        "--keep-ledger", type=_new_file, metavar="FILE", help="keep the SQLite ledger in FILE"
    )
    parser.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="show and check what an earlier demo printed with --json, instead of playing",
    )
    parser.add_argument(
        "--pool",
        action="store_true",
        help="play with a worker pool instead: shards, and workers that come, go and fail",
    )
    parser.add_argument(
        "--shards",
        type=settings.whole(FEWEST, MOST, f"not {FEWEST} to {MOST} shards"),
        default=24,
        metavar="N",
        help="number of shards of the pool; default 24",
    )


def run(options: argparse.Namespace) -> int:
    """Play or replay the demo; return the exit status."""
    # Imported here, so that the other commands do not load servers, proxies and checkers.
    from zklock.testing import BackendUnavailable, ServerError  # noqa: PLC0415
    from zklock.testing.demo import checks, pool_checks, stage  # noqa: PLC0415
    from zklock.testing.demo.output import ToPerson, ToProgram  # noqa: PLC0415
    from zklock.testing.demo.pool_table import PoolTable  # noqa: PLC0415

    def fail(status: Status, error: Exception) -> int:
        stage.say(str(error))
        return status

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if options.pool and options.keep_ledger is not None:
        return fail(Status.USAGE, ValueError("--pool has no ledger to keep"))
    person = PoolTable if options.pool else ToPerson
    teller: Teller = ToProgram(sys.stdout) if options.json else person(sys.stdout)
    try:
        if options.replay is not None:
            check = pool_checks.judge if options.pool else checks.judge
            held = stage.replay(options.replay, teller, check)
        else:
            hosts, timeout = options.hosts, options.session_timeout
            with ends_on_signals():
                if options.pool:
                    held = stage.play_pool(hosts, timeout, options.shards, teller, ignore_signals)
                else:
                    ledger = options.keep_ledger
                    held = stage.play(hosts, timeout, ledger, teller, ignore_signals)
        return Status.OK if held else Status.FAILED
    except Ended as ended:
        stage.say(f"ended by {ended}; all that it started is gone")
        raise
    except BackendUnavailable as error:
        return fail(Status.UNAVAILABLE, error)
    except (zklock.NoAnswer, ServerError, ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        return fail(Status.FAILED, error)


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


def _new_file(text: str) -> Path:
    file = Path(text)
    try:
        free = not file.exists() and file.absolute().parent.is_dir()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}") from None
    if not free:
        raise argparse.ArgumentTypeError(f"{text}: exists, or is in no folder")
    return file
