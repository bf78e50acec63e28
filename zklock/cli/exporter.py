"""``zklock exporter``: metrics of what is below a path, for Prometheus."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from zklock._ground.addresses import server_name
from zklock.cli import connection
from zklock.cli.ending import ends_on_signals
from zklock.cli.saying import say
from zklock.cli.status import Status
from zklock.cli.view.live import looks
from zklock.cli.view.model import Look
from zklock.cli.view.reader import Reader

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily

_DEFAULT = "127.0.0.1:9642"

DESCRIPTION = """\
Serve metrics of all locks, semaphores, elections and pools at and below a node, for Prometheus. It
follows them by watches, and reads only after a change, at most once every --interval. It needs
prometheus-client."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    connection.add_root(parser)
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        type=_address,
        default=_address(_DEFAULT),
        help="where to serve /metrics; without HOST: on all addresses of this machine; port 0: any "
        f"free port; default {_DEFAULT}",
    )
    connection.add_interval(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415
    except ImportError:
        say("exporter", "needs prometheus-client: pip install prometheus-client")
        return Status.USAGE
    collector = _Collector()
    with ends_on_signals(), connection.connected(options) as client:
        seen = looks(Reader(client, options.root, follow=True), options.interval)
        collector.look = next(seen)
        registry = CollectorRegistry()
        registry.register(collector)
        host, port = options.listen
        try:
            server, thread = start_http_server(port, host, registry)
        except (OSError, UnicodeError) as error:  # UnicodeError: it is no name of a host
            place = server_name(host, port)
            say("exporter", f"cannot listen on {place} ({error}): use another --listen")
            return Status.SYSTEM
        try:
            address = f"http://{server_name(host, server.server_port)}/metrics"
            say("exporter", f"serves {address}")
            for collector.look in seen:
                pass
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
    return Status.OK


class _Collector:
    """Hands the newest look to whoever asks for metrics, on the server's threads."""

    def __init__(self) -> None:
        self.look = Look()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        return metrics(self.look)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    try:
        number = connection.port(port if colon else "")  # alone it says not who may connect
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text}: not HOST:PORT") from None
    return host.strip("[]") or "0.0.0.0", number


def metrics(look: Look) -> Iterator[GaugeMetricFamily]:
    """Yield what an exporter serves.

    Without a connection nothing but that is told: old numbers would look like new ones.
    """
    up = "Whether ZooKeeper is connected: then the other metrics are present and up to date."
    yield _gauge("zklock_up", up, (), [((), look.connected)])
    if not look.connected:
        return
    locks, pools = look.locks, look.pools
    for name, text, numbers in (
        ("zklock_holders", "How many hold.", [len(it.holders) for it in locks]),
        ("zklock_waiting", "How many wait.", [len(it.waiting) for it in locks]),
        (
            "zklock_oldest_holder_age_seconds",
            "Seconds since the oldest holder queued; by the clocks of the server and the exporter.",
            [it.held or 0.0 for it in locks],
        ),
        (
            "zklock_longest_wait_seconds",
            "Seconds since the first waiter queued, 0 if nobody waits; by the same clocks.",
            [it.wait or 0.0 for it in locks],
        ),
    ):
        of = [(it.path, it.what.value) for it in locks]
        yield _gauge(name, text, ("path", "kind"), zip(of, numbers, strict=True))
    sessions = {place.session_id for it in locks for place in it.places} - {0, None}
    yield _gauge("zklock_sessions", "Sessions that hold or wait.", (), [((), len(sessions))])
    found = [((name,), number) for name, number in look.count_deadlocks().items()]
    yield _gauge("zklock_deadlocks", "Deadlocks; see zklock graph.", ("certainty",), found)
    for name, text, numbers in (
        ("zklock_pool_shards", "How many shards a pool has.", [it.shards for it in pools]),
        ("zklock_pool_workers", "How many workers a pool has.", [len(it.workers) for it in pools]),
        (
            "zklock_pool_shards_without_owner",
            "Shards that no worker says it owns.",
            [it.orphans for it in pools],
        ),
    ):
        yield _gauge(name, text, ("pool",), zip([(it.path,) for it in pools], numbers, strict=True))
    yield _gauge("zklock_hidden_nodes", "Nodes that ACLs hide.", (), [((), len(look.denied))])


def _gauge(
    name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], float]]
) -> GaugeMetricFamily:
    from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - an extra

    family = GaugeMetricFamily(name, text, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family
