"""``zklock demo``: arguments, set-up and clearing away."""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

import zklock
from zklock.cli.demo import pool_checks, pool_worker
from zklock.cli.demo.checks import Verdict, judge
from zklock.cli.demo.director import Director
from zklock.cli.demo.events import Event
from zklock.cli.demo.ledger import Ledger
from zklock.cli.demo.log import Log
from zklock.cli.demo.pool_director import BEHIND_PROXY as POOL_PROXY
from zklock.cli.demo.pool_director import ON_A_LOOP, PoolDirector
from zklock.cli.demo.pool_table import PoolTable
from zklock.cli.demo.tell import Teller, ToPerson, ToProgram
from zklock.cli.demo.troupe import Player
from zklock.cli.ending import Ended, ends_on_signals, ignore_signals
from zklock.cli.status import Status
from zklock.testing import BackendUnavailable, NotServing, ServerError, ZooKeeperServer, srvr
from zklock.testing.external import parse_hosts
from zklock.testing.provision import provision
from zklock.testing.proxy import FaultProxy

NAMES = ("w1", "w2", "w3", "w4", "w5", "w6")
BEHIND_PROXY = "w5"
SHORTEST, LONGEST = 0.5, 20.0
"""Seconds of session timeout that can be asked for."""

FEWEST, MOST = 12, 1000
"""Shards that can be asked for."""

Check: TypeAlias = Callable[[Iterable[Event]], list[Verdict]]

_DESCRIPTION = """\
Play four acts with real worker processes against a real ZooKeeper: six workers queue for one lock
and write under its tokens; the holder is killed; paused past its session; cut from ZooKeeper.
Then check what happened. Exit status 0: all of it held; 1: something did not, and the summary
names it; 69: there is no ZooKeeper, and the message says what to install."""


def add(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "demo", help="watch holders being killed, paused and cut off", description=_DESCRIPTION
    )
    parser.add_argument("--json", action="store_true", help="print events as JSON, one a line")
    parser.add_argument(
        "--hosts",
        type=_hosts,
        help="play on this ZooKeeper (host:port,…[/chroot]) instead of one made for it",
    )
    parser.add_argument(
        "--session-timeout",
        type=_timeout,
        default=2.0,
        metavar="SECONDS",
        help=f"of the workers, {SHORTEST:g} to {LONGEST:g}; default 2",
    )
    parser.add_argument(
        "--keep-ledger", type=_new_file, metavar="FILE", help="leave the SQLite ledger there"
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
        "--shards", type=_shards, default=24, metavar="N", help="of the pool; default 24"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Play, or replay, and say what came of it."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if options.pool and options.keep_ledger is not None:
        return _fail(Status.USAGE, ValueError("--pool has no ledger to keep"))
    person = PoolTable if options.pool else ToPerson
    teller: Teller = ToProgram(sys.stdout) if options.json else person(sys.stdout)
    check = pool_checks.judge if options.pool else judge
    try:
        if options.replay is not None:
            return _replay(options.replay, teller, check)
        with ends_on_signals():
            return _play_pool(options, teller) if options.pool else _play(options, teller)
    except Ended as ended:
        _say(f"ended by {ended}; all that it started is gone")
        raise
    except BackendUnavailable as error:
        return _fail(Status.UNAVAILABLE, error)
    except (zklock.NoAnswer, ServerError, ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        return _fail(Status.FAILED, error)


def read(lines: Iterable[bytes]) -> list[Event]:
    """Return the events that a demo printed, in order of time; ``ValueError`` for other lines."""
    events = []
    for number, line in enumerate(lines, 1):
        try:
            data = json.loads(line)
            if not isinstance(data, dict) or data.get("event") != "summary":
                events.append(Event.from_json(line))
        except ValueError as error:
            raise ValueError(f"line {number} is no event of a demo: {error}") from None
    return sorted(events, key=lambda event: event.at)


@dataclass(frozen=True, slots=True)
class _ZooKeeper:
    """Where it is: all ``hosts``, and ``one`` that serves, for the proxy; and what to call it."""

    hosts: str
    one: str
    name: str


def _replay(file: Path, teller: Teller, check: Check) -> int:
    with file.open("rb") as lines:
        events = read(lines)
    try:
        for event in events:
            teller.tell(event)
        return _judge(events, teller, check)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file}: an event is not as a demo prints it: {error!r}") from error


def _play(options: argparse.Namespace, teller: Teller) -> int:
    timeout = options.session_timeout
    with contextlib.ExitStack() as stack:
        try:
            zookeeper = _zookeeper(stack, options.hosts, min(0.5, timeout / 4))
            client = zklock.connect(zookeeper.hosts, timeout)
            stack.callback(_leave, client)
            path = f"/zklock-demo-{secrets.token_hex(4)}/report"
            client.ensure_path(path)
            stack.callback(_remove, client, path.rpartition("/")[0])
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="zklock-demo-"))
            file = options.keep_ledger or Path(folder, "ledger.sqlite")
            ledger = Ledger(file)
            ledger.create()
            proxy = stack.enter_context(FaultProxy(zookeeper.one))
            log = Log(teller.tell)
            players = []
            for name in NAMES:
                at = proxy.hosts if name == BEHIND_PROXY else zookeeper.hosts
                player = Player(log, name, [at, str(timeout), path, str(file)])
                stack.callback(player.close)
                players.append(player)
            Director(log, client, path, ledger=ledger, players=players, proxy=proxy).play(
                zookeeper.name
            )
            log.flush()
            return _judge(log.events(), teller, judge)
        finally:
            ignore_signals()


def _play_pool(options: argparse.Namespace, teller: Teller) -> int:
    timeout = options.session_timeout
    with contextlib.ExitStack() as stack:
        try:
            zookeeper = _zookeeper(stack, options.hosts, min(0.5, timeout / 4))
            client = zklock.connect(zookeeper.hosts, timeout)
            stack.callback(_leave, client)
            path = f"/zklock-demo-{secrets.token_hex(4)}/pool"
            stack.callback(_remove, client, path.rpartition("/")[0])
            proxy = stack.enter_context(FaultProxy(zookeeper.one))
            log = Log(teller.tell)

            def hire(name: str) -> Player:
                at = proxy.hosts if name == POOL_PROXY else zookeeper.hosts
                front = "asyncio" if name in ON_A_LOOP else "threads"
                arguments = [front, at, str(timeout), path, str(options.shards)]
                player = Player(log, name, arguments, pool_worker.__name__)
                stack.callback(player.close)
                return player

            PoolDirector(log, client, path, shards=options.shards, hire=hire, proxy=proxy).play(
                zookeeper.name
            )
            log.flush()
            return _judge(log.events(), teller, pool_checks.judge)
        finally:
            ignore_signals()


def _judge(events: list[Event], teller: Teller, check: Check) -> int:
    verdicts = check(events)
    times = [event.at for event in events]
    teller.summary(verdicts, max(times, default=0.0) - min(times, default=0.0))
    return Status.OK if all(verdict.held for verdict in verdicts) else Status.FAILED


def _zookeeper(stack: contextlib.ExitStack, hosts: str | None, tick: float) -> _ZooKeeper:
    """Find the ZooKeeper at these hosts, or make one with a tick of so many seconds."""
    if hosts is None:
        backend = provision(say=_say)
        server = stack.enter_context(ZooKeeperServer(tick_time=int(tick * 1000), backend=backend))
        name = f"{server.status().version} ({server.backend})"
        return _ZooKeeper(server.hosts, server.hosts, name)
    servers, slash, chroot = hosts.partition("/")
    reasons = []
    for host, port in parse_hosts(servers):
        one = f"{f'[{host}]' if ':' in host else host}:{port}{slash}{chroot}"
        try:
            return _ZooKeeper(hosts, one, srvr(host, port).version)
        except NotServing:
            return _ZooKeeper(hosts, one, "of unknown version")
        except OSError as error:
            reasons.append(f"{host}:{port}: {error}")
    raise BackendUnavailable("no ZooKeeper answers at " + "; ".join(reasons))


def _say(text: str) -> None:
    print(f"zklock demo: {text}", file=sys.stderr, flush=True)


def _remove(client: KazooClient, path: str) -> None:
    if client.connected:
        with contextlib.suppress(KazooException):
            client.delete(path, recursive=True)


def _leave(client: KazooClient) -> None:
    client.stop()
    client.close()


def _fail(status: Status, error: Exception) -> int:
    _say(str(error))
    return status


def _hosts(text: str) -> str:
    try:
        parse_hosts(text.partition("/")[0])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _timeout(text: str) -> float:
    seconds = float(text)
    if not SHORTEST <= seconds <= LONGEST:
        raise argparse.ArgumentTypeError(f"{text}: not {SHORTEST:g} to {LONGEST:g} seconds")
    return seconds


def _shards(text: str) -> int:
    number = int(text)
    if not FEWEST <= number <= MOST:
        raise argparse.ArgumentTypeError(f"{text}: not {FEWEST} to {MOST} shards")
    return number


def _new_file(text: str) -> Path:
    file = Path(text)
    if file.exists() or not file.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: exists, or is in no folder")
    return file
