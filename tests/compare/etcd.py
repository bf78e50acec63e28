"""A server of etcd from Debian's package."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

from tests.contract.fencing.databases import Server, program
from zklock.testing.ports import LOOPBACK, free_ports


class Etcd(Server):
    """One member, on loopback. It forces its log to disk: memory is a ``root`` in memory."""

    def __init__(self, root: Path | None = None) -> None:
        self._server = program("etcd", "etcd-server")
        super().__init__(root)
        self._peer_port = free_ports()[0]

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return f"http://{LOOPBACK}:{self.port}"

    def prepare(self) -> None:
        pass

    def command(self) -> list[str]:
        peers = f"http://{LOOPBACK}:{self._peer_port}"
        return [
            *(self._server, "--data-dir", str(self.folder / "data")),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"default={peers}"),
        ]

    def ping(self) -> str:
        if self._asked("/health")["health"] != "true":
            raise OSError("etcd has no leader yet")
        return str(self._asked("/version")["etcdserver"])

    def _asked(self, path: str) -> dict[str, str]:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=5.0)
        try:
            connection.request("GET", path)
            found: dict[str, str] = json.loads(connection.getresponse().read())
            return found
        finally:
            connection.close()
