"""``zklock exporter``: metrics of what is below a path, for Prometheus."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from zklock._ground.addresses import server_name
from zklock.cli import connection
from zklock.cli.ending import ends_on_signals
from zklock.cli.saying import say
from zklock.cli.status import Status
from zklock.cli.view.live import Look, looks
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
        from zklock.cli.view.metrics import metrics  # noqa: PLC0415 - an extra

        return metrics(self.look)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    try:
        number = connection.port(port if colon else "")  # alone it says not who may connect
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text}: not HOST:PORT") from None
    return host.strip("[]") or "0.0.0.0", number
