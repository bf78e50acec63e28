"""Sets up a demo, has it played, and clears everything away."""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

import zklock
from zklock._ground.addresses import server_name
from zklock.testing import Backend, BackendUnavailable, NotServing, ZooKeeperServer, srvr
from zklock.testing.demo import pool_checks, pool_worker
from zklock.testing.demo.checks import Verdict, judge
from zklock.testing.demo.director import Director
from zklock.testing.demo.events import Event
from zklock.testing.demo.ledger import Ledger
from zklock.testing.demo.log import Log
from zklock.testing.demo.output import Teller
from zklock.testing.demo.pool_director import BEHIND_PROXY as POOL_PROXY, ON_A_LOOP, PoolDirector
from zklock.testing.demo.processes import Player
from zklock.testing.external import parse_hosts
from zklock.testing.provision import provision
from zklock.testing.proxy import FaultProxy
from zklock.testing.selection import choose_or_embed

NAMES = ("w1", "w2", "w3", "w4", "w5", "w6")
BEHIND_PROXY = "w5"

Check: TypeAlias = Callable[[Iterable[Event]], list[Verdict]]


def say(text: str) -> None:
    """Tell the person who waits what is going on."""
    with contextlib.suppress(OSError):  # nobody reads it any more
        print(f"zklock demo: {text}", file=sys.stderr, flush=True)


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


def replay(file: Path, teller: Teller, check: Check) -> bool:
    """Tell and judge what a demo printed earlier; return whether all checks held."""
    with file.open("rb") as lines:
        events = read(lines)
    try:
        for event in events:
            teller.tell(event)
        return _judge(events, teller, check)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file}: an event is not as a demo prints it: {error!r}") from error


def play(
    hosts: str | None,
    timeout: float,
    keep_ledger: Path | None,
    teller: Teller,
    last: Callable[[], object],
) -> bool:
    """Play the demo of the lock; return whether all checks held.

    ``hosts``: the ZooKeeper to play on; with ``None`` the demo starts its own. ``timeout``: the
    workers' session timeout in seconds. ``last()`` is called before everything is cleared away.
    """
    with contextlib.ExitStack() as stack:
        try:
            zookeeper = _zookeeper(stack, hosts, min(0.5, timeout / 4))
            client = zklock.connect(zookeeper.hosts, timeout)
            stack.callback(_leave, client)
            path = f"/zklock-demo-{secrets.token_hex(4)}/report"
            client.ensure_path(path)
            stack.callback(_remove, client, path.rpartition("/")[0])
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="zklock-demo-"))
            file = keep_ledger or Path(folder, "ledger.sqlite")
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
            last()


def play_pool(
    hosts: str | None,
    timeout: float,
    shards: int,
    teller: Teller,
    last: Callable[[], object],
) -> bool:
    """Play the demo of the pool; arguments and result are those of :func:`play`."""
    with contextlib.ExitStack() as stack:
        try:
            zookeeper = _zookeeper(stack, hosts, min(0.5, timeout / 4))
            client = zklock.connect(zookeeper.hosts, timeout)
            stack.callback(_leave, client)
            path = f"/zklock-demo-{secrets.token_hex(4)}/pool"
            stack.callback(_remove, client, path.rpartition("/")[0])
            proxy = stack.enter_context(FaultProxy(zookeeper.one))
            log = Log(teller.tell)

            def hire(name: str) -> Player:
                at = proxy.hosts if name == POOL_PROXY else zookeeper.hosts
                front = "asyncio" if name in ON_A_LOOP else "threads"
                arguments = [front, at, str(timeout), path, str(shards)]
                player = Player(log, name, arguments, pool_worker.__name__)
                stack.callback(player.close)
                return player

            PoolDirector(log, client, path, shards=shards, hire=hire, proxy=proxy).play(
                zookeeper.name
            )
            log.flush()
            return _judge(log.events(), teller, pool_checks.judge)
        finally:
            last()


@dataclass(frozen=True, slots=True)
class _ZooKeeper:
    """A ZooKeeper: all ``hosts``; ``one`` that serves, for the proxy; and its ``name``."""

    hosts: str
    one: str
    name: str


def _judge(events: list[Event], teller: Teller, check: Check) -> bool:
    verdicts = check(events)
    times = [event.at for event in events]
    teller.summary(verdicts, max(times, default=0.0) - min(times, default=0.0))
    return all(verdict.held for verdict in verdicts)


def _zookeeper(stack: contextlib.ExitStack, hosts: str | None, tick: float) -> _ZooKeeper:
    """Use the ZooKeeper at these hosts, or start one; ``tick`` is then its tick in seconds."""
    if hosts is None:
        backend = backend_here()
        server = stack.enter_context(ZooKeeperServer(tick_time=int(tick * 1000), backend=backend))
        name = f"{server.status().version} ({server.backend})"
        return _ZooKeeper(server.hosts, server.hosts, name)
    servers, slash, chroot = hosts.partition("/")
    reasons = []
    for host, port in parse_hosts(servers):
        one = f"{server_name(host, port)}{slash}{chroot}"
        try:
            return _ZooKeeper(hosts, one, srvr(host, port).version)
        except NotServing:
            return _ZooKeeper(hosts, one, "of unknown version")
        except OSError as error:
            reasons.append(f"{host}:{port}: {error}")
    raise BackendUnavailable("no ZooKeeper answers at " + "; ".join(reasons))


def backend_here() -> Backend:
    """Return a backend that can run ZooKeeper here, or else the embedded server."""
    try:
        return provision(say=say)
    except BackendUnavailable:
        return choose_or_embed(say)


def _remove(client: KazooClient, path: str) -> None:
    if client.connected:
        with contextlib.suppress(KazooException):
            client.delete(path, recursive=True)


def _leave(client: KazooClient) -> None:
    client.stop()
    client.close()
