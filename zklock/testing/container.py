"""ZooKeeper in containers of a local engine.

``python -m zklock.testing.container GROUP`` removes what one server or ensemble has left behind. A
watchdog runs it when the process of the test has ended.
"""

from __future__ import annotations

import contextlib
import io
import ipaddress
import os
import secrets
import socket
import sys
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.types import IPAMConfig, IPAMPool

from zklock.testing import snapshot
from zklock.testing.backend import Backend, Capability, Group, Node
from zklock.testing.errors import BackendUnavailable, NotSupported, StartFailed
from zklock.testing.java import CHEAP_DISK
from zklock.testing.ports import LOOPBACK, free_ports, is_free
from zklock.testing.settings import Settings
from zklock.testing.watchdog import Watchdog

IMAGE_VARIABLE = "ZOOKEEPER_IMAGE"
IMAGE, BUILT_IMAGE = "zookeeper:3.9", "zklock-zookeeper"
GROUP_LABEL = "zklock.testing.group"
HINT = (
    f"set {IMAGE_VARIABLE} to an image that is here, or build one from Debian's packages: "
    f"docker build -t {BUILT_IMAGE}:3.8 {Path(__file__).parent.resolve() / 'compose' / 'image'}"
)

_DEFAULT_ENGINE = "unix:///var/run/docker.sock"
_SNAPSHOTS = "/data/version-2"
_STOP_SECONDS = 10
_FREEZE_SECONDS = 30.0
_AGAIN_SECONDS = 0.05
_TRIES = 5


class ContainerBackend(Backend):
    """Servers in containers of a local engine, reached through ports published on loopback.

    The constructor connects to the engine, and finds or pulls the image.
    """

    name: ClassVar[str] = "container"

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self.environ = dict(environ)
        self.engine = _engine(environ)
        try:
            self.image = _image(self.engine, environ)
        finally:
            self.engine.api.close()  # its idle connections; it makes new ones on demand
        self.capabilities = frozenset(Capability)

    def describe(self) -> str:
        return f"container ({self.image})"

    def single(self, settings: Settings) -> ContainerNode:
        return ContainerGroup(self, settings, 1).nodes[0]

    def ensemble(self, settings: Settings, size: int) -> ContainerGroup:
        if settings.data_dir is not None:
            raise NotSupported("data_dir is for single servers in containers, not for ensembles")
        return ContainerGroup(self, settings, size)


class ContainerGroup(Group):
    """Containers with one label; those of an ensemble share a network for peers alone."""

    nodes: list[ContainerNode]

    def __init__(self, backend: ContainerBackend, settings: Settings, size: int) -> None:
        self.backend = backend
        self.name = f"zklock-{secrets.token_hex(6)}"
        self.labels = {GROUP_LABEL: self.name}
        self.peers: Any = None
        self._subnet: Any = None
        self._watchdog: Watchdog | None = None
        ports = free_ports(size)
        self.nodes = [ContainerNode(self, settings, n, port) for n, port in enumerate(ports)]

    def begin(self) -> None:
        """Start the watchdog, then make the network; do nothing if that was done."""
        if self._watchdog is not None:
            return
        root = str(Path(__file__).resolve().parents[2])
        environ = self.backend.environ
        paths = os.pathsep.join(filter(None, [root, environ.get("PYTHONPATH")]))
        command = (sys.executable, "-m", __name__, self.name)
        self._watchdog = Watchdog(*command, environ={**environ, "PYTHONPATH": paths})
        if len(self.nodes) > 1:
            self._make_network()

    def _make_network(self) -> None:
        """Make a network whose addresses can be chosen: the engine needs its subnet for that."""
        networks = self.backend.engine.networks
        options = {"driver": "bridge", "internal": True, "labels": self.labels}
        for _ in range(_TRIES):
            free = networks.create(self.name, **options)
            free.reload()
            subnet = free.attrs["IPAM"]["Config"][0]["Subnet"]
            free.remove()
            ipam = IPAMConfig(pool_configs=[IPAMPool(subnet=subnet)])
            with contextlib.suppress(APIError):  # somebody else took the subnet
                self.join(subnet, networks.create(self.name, ipam=ipam, **options))
                return
        raise StartFailed("the container engine has no subnet for a network of peers")

    def join(self, subnet: str, network: Any) -> None:
        """Have the members meet in this network."""
        self.peers, self._subnet = network, ipaddress.ip_network(subnet)

    def address(self, number: int) -> str:
        """Return the address of a member among its peers.

        It is fixed. The engine gives a free address to whoever starts next, and the other members
        do not look up a peer that came back with another one while somebody answers at the old.
        """
        return str(self._subnet[number + 2])  # after the gateway

    def cut(self, index: int) -> None:
        container = self.nodes[index].container
        if self._joined(container):
            self.peers.disconnect(container)

    def heal(self, index: int) -> None:
        container = self.nodes[index].container
        if not self._joined(container):
            self.peers.connect(container, ipv4_address=self.address(index))

    def _joined(self, container: Any) -> bool:
        container.reload()
        return self.name in container.attrs["NetworkSettings"]["Networks"]

    def close(self) -> None:
        for node in self.nodes:
            node.container = None
        if self._watchdog is not None:
            remove(self.backend.engine, self.name)
            self._watchdog.dismiss()
            self._watchdog = None
            self.backend.engine.api.close()


class ContainerNode(Node):
    """A ZooKeeper container."""

    def __init__(self, group: ContainerGroup, settings: Settings, number: int, port: int) -> None:
        self.host = LOOPBACK
        self.port = port
        self.container: Any = None
        self._group = group
        self._settings = settings
        self._number = number
        self._data = None if settings.data_dir is None else settings.data_dir.absolute()

    @property
    def data_dir(self) -> Path | None:
        """The given ``data_dir``; without one, the data are only in the container."""
        return self._data

    def start(self) -> None:
        """Launch; replace a port that is taken, if no client can know it yet."""
        if self.running():
            return
        self._group.begin()
        if self.container is None:
            if not is_free(self.port):
                self.port = free_ports()[0]
            self.container = self._create()
        try:
            self.container.start()
        except APIError as error:
            raise StartFailed(f"port {self.port}: {error.explanation or error}") from error

    def _create(self) -> Any:
        volumes = {}
        if self._data is not None:
            self._data.mkdir(parents=True, exist_ok=True)
            volumes[str(self._data)] = {"bind": "/data", "mode": "rw"}
        container = self._group.backend.engine.containers.create(
            self._group.backend.image,
            name=f"{self._group.name}-{self._number + 1}-{secrets.token_hex(2)}",
            environment=self.environment(),
            labels=self._group.labels,
            ports={"2181/tcp": (self.host, self.port)},
            volumes=volumes,
            healthcheck={"test": ["NONE"]},  # the tests find out from outside whether it serves
        )
        if self._group.peers is not None:
            address = self._group.address(self._number)
            self._group.peers.connect(container, ipv4_address=address)
        return container

    def environment(self) -> dict[str, str]:
        """Return the variables of the official image; ``compose/*.yml`` has the same ones."""
        settings = self._settings
        config = {"maxSessionTimeout": "60000", **settings.extra_config()}
        found = {
            "ZOO_TICK_TIME": str(settings.tick_time),
            "ZOO_INIT_LIMIT": str(settings.init_limit),
            "ZOO_SYNC_LIMIT": str(settings.sync_limit),
            "ZOO_MAX_CLIENT_CNXNS": "0",
            "ZOO_ADMINSERVER_ENABLED": "false",
            "ZOO_4LW_COMMANDS_WHITELIST": "*",
            "ZK_SERVER_HEAP": "256",
        }
        if self._data is not None:
            found["ZOO_DATA_LOG_DIR"] = "/data"
        if self._group.peers is not None:
            config = {"quorumListenOnAllIPs": "true", **config}
            found["ZOO_MY_ID"] = str(self._number + 1)
            found["ZOO_SERVERS"] = " ".join(
                f"server.{number + 1}={self._group.address(number)}:2888:3888;2181"
                for number in range(len(self._group.nodes))
            )
        quick = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *CHEAP_DISK)
        found["JVMFLAGS"] = " ".join([*quick, *settings.java_arguments()])
        found["ZOO_CFG_EXTRA"] = " ".join(f"{key}={value}" for key, value in config.items())
        return found

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL after ten seconds."""
        if self.running():
            self.resume()
            self.container.stop(timeout=_STOP_SECONDS)

    def kill(self) -> None:
        """Send SIGKILL, frozen or not."""
        if self.running():
            with contextlib.suppress(APIError):  # it has ended meanwhile
                self.container.kill()
            self.container.wait()

    def pause(self) -> None:
        if not self.running():
            raise StartFailed("a server that is down cannot be paused")
        if self.container.status != "paused":
            _freeze(self.container)

    def resume(self) -> None:
        if self.running() and self.container.status == "paused":
            self.container.unpause()

    def running(self) -> bool:
        if self.container is None:
            return False
        try:
            self.container.reload()
        except NotFound:
            return False
        return self.container.status in ("running", "paused", "restarting")

    def log_tail(self, lines: int) -> str:
        text: bytes = b"" if self.container is None else self.container.logs(tail=lines)
        return text.decode("utf-8", "replace").rstrip("\n")

    def read_snapshot(self) -> tuple[str, bytes]:
        with self._archive(_SNAPSHOTS) as archive:
            members = {Path(name).name: name for name in archive.getnames()}
            newest = snapshot.newest(members)
            file = archive.extractfile(members[newest])
            assert file is not None
            return newest, file.read()

    def write_snapshot(self, name: str, content: bytes) -> None:
        """Copy a snapshot into the stopped container; it keeps its owner and mode."""
        with self._archive(f"{_SNAPSHOTS}/{name}") as archive:
            entry = archive.getmember(name)
        entry.size = len(content)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.addfile(entry, io.BytesIO(content))
        self.container.put_archive(_SNAPSHOTS, buffer.getvalue())

    def _archive(self, path: str) -> tarfile.TarFile:
        stream, _ = self.container.get_archive(path)
        return tarfile.open(fileobj=io.BytesIO(b"".join(stream)))

    def close(self) -> None:
        """Remove the container with its volumes, but not a given ``data_dir``."""
        self._group.close()


def _freeze(container: Any) -> None:
    """Pause a container, with as many tries as a busy machine needs in ``_FREEZE_SECONDS``.

    runc gives up if the processes of the container are not all frozen within a moment of its own,
    and lets them go on: https://github.com/opencontainers/runc/pull/2791.
    """
    deadline = time.monotonic() + _FREEZE_SECONDS
    while True:
        try:
            container.pause()
        except APIError as error:
            if "unable to freeze" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN_SECONDS)
        else:
            return


def _engine(environ: Mapping[str, str]) -> Any:
    """Return a client for the engine that the environment names."""
    scheme, _, path = (environ.get("DOCKER_HOST") or _DEFAULT_ENGINE).partition("://")
    try:
        if scheme == "unix":  # a client that fails to connect does not close its socket
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(path)
        engine = docker.from_env(environment=dict(environ))
        engine.ping()
    except (DockerException, OSError) as error:
        raise BackendUnavailable(
            "no container engine answers; start one, or set DOCKER_HOST: "
            f"{path}: {str(error).splitlines()[0]}"
        ) from error
    url = urlsplit(engine.api.base_url)
    if url.scheme != "http+docker" and url.hostname not in ("localhost", LOOPBACK):
        raise BackendUnavailable(
            f"the container engine is on {url.hostname}; its published ports are not on loopback"
        )
    return engine


def _image(engine: Any, environ: Mapping[str, str]) -> str:
    """Return the image to use, one that was built if need be; pull it if there is none."""
    given = environ.get(IMAGE_VARIABLE)
    wanted = given or IMAGE
    built: list[str] = []
    if not given:
        built = [tag for image in engine.images.list(BUILT_IMAGE) for tag in image.tags]
    for name in (wanted, *sorted(built, reverse=True)):
        with contextlib.suppress(ImageNotFound):
            engine.images.get(name)
            return name
    if wanted not in _not_pulled:
        try:
            engine.images.pull(wanted)
        except (DockerException, OSError) as error:
            _not_pulled[wanted] = str(error)
        else:
            return wanted
    raise BackendUnavailable(
        f"image {wanted} is not here and cannot be pulled ({_not_pulled[wanted]}); {HINT}"
    )


_not_pulled: dict[str, str] = {}
"""Why images could not be pulled: this process does not try it again."""


def remove(engine: Any, group: str) -> None:
    """Remove everything with this group's label."""
    wanted = {"label": f"{GROUP_LABEL}={group}"}
    for container in engine.containers.list(all=True, filters=wanted, ignore_removed=True):
        with contextlib.suppress(APIError):  # another process removes it at the same time
            container.remove(force=True, v=True)
    for network in engine.networks.list(filters=wanted):
        with contextlib.suppress(APIError):
            network.remove()


if __name__ == "__main__":
    with contextlib.closing(docker.from_env()) as left:
        remove(left, sys.argv[1])
