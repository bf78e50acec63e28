"""ZooKeeper in containers, as the Compose files of this project describe it."""

from __future__ import annotations

import atexit
import contextlib
import io
import ipaddress
import os
import secrets
import socket
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.types import IPAMConfig, IPAMPool
from docker.utils import parse_repository_tag

from zklock.testing import composefile, reaper, snapshot
from zklock.testing.backend import Backend, Capability, Group, Node
from zklock.testing.errors import BackendUnavailable, NotSupported, StartFailed
from zklock.testing.ports import LOOPBACK, free_ports
from zklock.testing.settings import Settings
from zklock.testing.waiting import wait_for
from zklock.testing.watchdog import Watchdog

IMAGE_VARIABLE = "ZOOKEEPER_IMAGE"
BUILT_IMAGE = "zklock-zookeeper"
HINT = (
    f"set {IMAGE_VARIABLE} to an image that is here, or build one from Debian's packages: "
    f"docker build -t {BUILT_IMAGE}:3.8 {composefile.FOLDER.resolve() / 'image'}"
)

_DEFAULT_ENGINE = "unix:///var/run/docker.sock"
_CLIENT_PORT = 2181
_PEERS = "peers"
_SNAPSHOTS = "/data/version-2"
_PULL_SECONDS = 180.0
_STOP_SECONDS = 10
_FREEZE_SECONDS = 30.0
_SUBNET_TRIES = 5
_RUNNING = ("running", "paused", "restarting")


class ContainerBackend(Backend):
    """Servers in containers of a local engine, reached through ports published on loopback.

    The constructor connects to the engine, finds or pulls the image, and removes containers that
    an ended test process left behind.
    """

    name: ClassVar[str] = "container"

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = dict(environ)
        self.engine = _engine(environ)
        self.image = _image(self.engine, environ)
        self.capabilities = frozenset(Capability)

    def describe(self) -> str:
        return f"container ({self.image})"

    def single(self, settings: Settings) -> ContainerNode:
        (service,) = self._load("single.yml", settings).services
        return ContainerNode(
            self.engine, service, settings, free_ports()[0], scope=_Scope(self._environ)
        )

    def ensemble(self, settings: Settings, size: int) -> ContainerGroup:
        """Prepare the servers of ``ensemble.yml``; it must have ``size`` servers."""
        project = self._load("ensemble.yml", settings)
        if len(project.services) != size:
            raise NotSupported(
                f"compose/ensemble.yml has {len(project.services)} servers, not {size}; "
                "the java backend can run any number"
            )
        return ContainerGroup(self.engine, project, settings, _Scope(self._environ))

    def _load(self, file: str, settings: Settings) -> composefile.Project:
        extra = " ".join(f"{key}={value}" for key, value in settings.extra_config().items())
        variables = {
            **self._environ,
            IMAGE_VARIABLE: self.image,
            "ZOO_TICK_TIME": str(settings.tick_time),
            "ZOO_INIT_LIMIT": str(settings.init_limit),
            "ZOO_SYNC_LIMIT": str(settings.sync_limit),
            "ZOO_CFG_EXTRA": extra,
            "JVMFLAGS": " ".join(settings.java_arguments()),
        }
        return composefile.load(composefile.FOLDER / file, variables)


class _Scope:
    """The labels of one server or ensemble, and the watchdog that removes what has the labels."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.id = secrets.token_hex(6)
        self.labels = {reaper.GROUP_LABEL: self.id}
        self._environ = environ
        self._watchdog: Watchdog | None = None

    def begin(self) -> None:
        """Start the watchdog; call this before anything with the labels is made."""
        if self._watchdog is None:
            self._watchdog = reaper.watch(self.id, self._environ)

    def end(self, engine: Any) -> None:
        """Remove everything that has the labels."""
        if self._watchdog is not None:
            reaper.remove_group(engine, self.id)
            self._watchdog.dismiss()
            self._watchdog = None
            engine.api.close()  # closes its idle connections; it makes new ones on demand


class _Networks:
    """The networks of one ensemble, made when the first node needs one."""

    def __init__(self, engine: Any, internal: Mapping[str, bool], scope: _Scope) -> None:
        self._engine = engine
        self._internal = internal
        self._scope = scope
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._scope.begin()
            self._made[name] = self._make_fixed(name) if name == _PEERS else self._make(name)
        return self._made[name]

    def address(self, name: str, number: int) -> str | None:
        """Return the fixed address of a member in this network; ``None``: any address will do.

        The engine gives a free address to whoever starts next. So a peer that was cut off would
        come back with another address. The other members do not look that up while they still
        reach somebody at the old address.
        """
        if name != _PEERS:
            return None
        return str(ipaddress.ip_network(_subnet(self[name]))[number + 2])  # after the gateway

    def _make(self, name: str, **options: Any) -> Any:
        return self._engine.networks.create(
            f"zklock-{self._scope.id}-{name}",
            driver="bridge",
            internal=self._internal[name],
            labels=self._scope.labels,
            **options,
        )

    def _make_fixed(self, name: str) -> Any:
        """Make a network whose addresses can be chosen: the engine needs its subnet for that."""
        for attempt in range(_SUBNET_TRIES):
            free = self._make(name)
            subnet = _subnet(free)
            free.remove()
            try:
                return self._make(name, ipam=IPAMConfig(pool_configs=[IPAMPool(subnet=subnet)]))
            except APIError:  # somebody else took the subnet
                if attempt == _SUBNET_TRIES - 1:
                    raise
        raise AssertionError


class ContainerNode(Node):
    """A ZooKeeper container."""

    def __init__(
        self,
        engine: Any,
        service: composefile.Service,
        settings: Settings,
        port: int,
        *,
        scope: _Scope,
        networks: _Networks | None = None,
        number: int = 0,
    ) -> None:
        self.host = LOOPBACK
        self.port = port
        self._engine = engine
        self._service = service
        self._data = None if settings.data_dir is None else settings.data_dir.absolute()
        self._scope = scope
        self._networks = networks
        self._number = number
        self._container: Any = None

    @property
    def data_dir(self) -> Path | None:
        """The given ``data_dir``; without one, the data are only in the container."""
        return self._data

    def start(self) -> None:
        if self._container is None:
            self._scope.begin()
            self._create()
        elif not self.running():
            self._launch()

    def _create(self) -> None:
        for attempt in range(5):
            self._container = self._new_container()
            try:
                self._launch()
            except StartFailed:
                self._container.remove(force=True, v=True)
                self._container = None
                if attempt == 4:
                    raise
                self.port = free_ports()[0]
            else:
                return

    def _launch(self) -> None:
        try:
            self._container.start()
        except APIError as error:
            raise StartFailed(f"port {self.port}: {error.explanation or error}") from error

    def _new_container(self) -> Any:
        api = self._engine.api
        environment = dict(self._service.environment)
        binds = None
        if self._data is not None:
            self._data.mkdir(parents=True, exist_ok=True)
            binds = {str(self._data): {"bind": "/data", "mode": "rw"}}
            environment["ZOO_DATA_LOG_DIR"] = "/data"
        # The external network comes first: the published port belongs to it.
        order = sorted(self._service.networks, key=lambda name: name == _PEERS)
        first = self._networks[order[0]].name if self._networks and order else None
        made = api.create_container(
            self._service.image,
            list(self._service.command) if self._service.command else None,
            name=f"zklock-{self._scope.id}-{self._service.name}-{secrets.token_hex(2)}",
            environment=environment,
            labels=self._scope.labels,
            ports=[_CLIENT_PORT],
            # The tests find out from outside whether it serves.
            healthcheck={"test": ["NONE"]},
            host_config=api.create_host_config(
                port_bindings={_CLIENT_PORT: (self.host, self.port)},
                binds=binds,
                network_mode=first,
            ),
        )
        container = self._engine.containers.get(made["Id"])
        for name in order[1:]:
            self.connect(name, container)
        return container

    def connect(self, network: str, container: Any = None) -> None:
        """Join a network of the Compose file, with this service's aliases there."""
        assert self._networks is not None
        self._networks[network].connect(
            container or self._container,
            aliases=list(self._service.networks[network]),
            ipv4_address=self._networks.address(network, self._number),
        )

    def disconnect(self, network: str) -> None:
        """Leave a network: packets to and from it vanish, connections stay as they are."""
        assert self._networks is not None
        self._networks[network].disconnect(self._container)

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL after ten seconds."""
        if self.running():
            self.resume()
            self._container.stop(timeout=_STOP_SECONDS)

    def kill(self) -> None:
        """Send SIGKILL, frozen or not."""
        if self.running():
            with contextlib.suppress(APIError):  # it has ended meanwhile
                self._container.kill()
            self._container.wait()

    def pause(self) -> None:
        if not self.running():
            raise StartFailed("a server that is down cannot be paused")
        if self._container.status != "paused":
            _freeze(self._container)

    def resume(self) -> None:
        """Undo ``pause``."""
        if self.running() and self._container.status == "paused":
            self._container.unpause()

    def running(self) -> bool:
        if self._container is None:
            return False
        try:
            self._container.reload()
        except NotFound:
            return False
        return self._container.status in _RUNNING

    def log_tail(self, lines: int) -> str:
        if self._container is None:
            return ""
        text: bytes = self._container.logs(tail=lines)
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
        path = f"{_SNAPSHOTS}/{name}"
        with self._archive(path) as archive:
            entry = archive.getmember(name)
        entry.size = len(content)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.addfile(entry, io.BytesIO(content))
        self._container.put_archive(_SNAPSHOTS, buffer.getvalue())

    def _archive(self, path: str) -> tarfile.TarFile:
        stream, _ = self._container.get_archive(path)
        return tarfile.open(fileobj=io.BytesIO(b"".join(stream)))

    def close(self) -> None:
        """Remove the container with its volumes, but not a given ``data_dir``."""
        self._container = None
        self._scope.end(self._engine)


class ContainerGroup(Group):
    """The containers of ``ensemble.yml`` on two networks of their own."""

    nodes: list[ContainerNode]

    def __init__(
        self, engine: Any, project: composefile.Project, settings: Settings, scope: _Scope
    ) -> None:
        if settings.data_dir is not None:
            raise NotSupported("data_dir is for single servers in containers, not for ensembles")
        self._engine = engine
        self._scope = scope
        self._cut: set[int] = set()
        networks = _Networks(engine, project.networks, scope)
        ports = free_ports(len(project.services))
        self.nodes = [
            ContainerNode(
                engine, service, settings, port, scope=scope, networks=networks, number=number
            )
            for number, (service, port) in enumerate(zip(project.services, ports, strict=True))
        ]

    def cut(self, index: int) -> None:
        if index not in self._cut:
            self.nodes[index].disconnect(_PEERS)
            self._cut.add(index)

    def heal(self, index: int) -> None:
        if index in self._cut:
            self.nodes[index].connect(_PEERS)
            self._cut.discard(index)

    def close(self) -> None:
        self._scope.end(self._engine)


def _freeze(container: Any) -> None:
    """Pause a container, with as many tries as a busy machine needs in ``_FREEZE_SECONDS``.

    runc gives up if the processes of the container are not all frozen within a moment of its own,
    and lets them go on: https://github.com/opencontainers/runc/pull/2791.
    """

    def frozen() -> bool:
        try:
            container.pause()
        except APIError as error:
            if "unable to freeze" not in str(error):
                raise
            refused.append(error)
            return False
        return True

    refused: list[APIError] = []
    wait_for(frozen, _FREEZE_SECONDS, lambda: str(refused[-1]))


def _subnet(network: Any) -> str:
    network.reload()
    return str(network.attrs["IPAM"]["Config"][0]["Subnet"])


_engines: dict[tuple[str | None, ...], Any] = {}
_not_pulled: dict[str, str] = {}


def _engine(environ: Mapping[str, str]) -> Any:
    """Return the client for the engine that the environment names; one for each process."""
    key = tuple(
        environ.get(name) for name in ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
    )
    if key not in _engines:
        try:
            _probe(environ.get("DOCKER_HOST") or _DEFAULT_ENGINE)
            engine = docker.from_env(environment=dict(environ))
            engine.ping()
        except (DockerException, requests.RequestException, OSError) as error:
            raise BackendUnavailable(
                "no container engine answers; start one, or set DOCKER_HOST: "
                f"{str(error).splitlines()[0]}"
            ) from error
        _engines[key] = engine
    engine = _engines[key]
    url = urlsplit(engine.api.base_url)
    if url.scheme != "http+docker" and url.hostname not in ("localhost", LOOPBACK):
        raise BackendUnavailable(
            f"the container engine is on {url.hostname}; its published ports are not on loopback"
        )
    return engine


def _probe(host: str) -> None:
    """Connect once by hand: a client that fails to connect does not close its socket."""
    scheme, _, path = host.partition("://")
    if scheme == "unix":
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(5)
            try:
                probe.connect(path)
            except OSError as error:
                raise OSError(f"{path}: {error.strerror or error}") from error


def _image(engine: Any, environ: Mapping[str, str]) -> str:
    (service,) = composefile.load(composefile.FOLDER / "single.yml", environ).services
    candidates = [service.image]
    if not environ.get(IMAGE_VARIABLE):
        tags = [tag for image in engine.images.list(BUILT_IMAGE) for tag in image.tags]
        candidates += sorted((tag for tag in tags if tag.startswith(BUILT_IMAGE)), reverse=True)
    for image in candidates:
        if _present(engine, image):
            return image
    _pull(environ, service.image)
    return service.image


def _present(engine: Any, image: str) -> bool:
    try:
        engine.images.get(image)
    except ImageNotFound:
        return False
    return True


def _pull(environ: Mapping[str, str], image: str) -> None:
    """Pull within three minutes; this process does not try a failed image again."""
    if image not in _not_pulled:
        engine = docker.from_env(environment=dict(environ), timeout=30)
        try:
            problem = _pull_problem(engine, image)
        except (DockerException, requests.RequestException) as error:
            problem = str(error)
        finally:
            engine.close()
        if problem is None:
            return
        _not_pulled[image] = problem
    raise BackendUnavailable(
        f"image {image} is not here and cannot be pulled ({_not_pulled[image]}); {HINT}"
    )


def _pull_problem(engine: Any, image: str) -> str | None:
    deadline = time.monotonic() + _PULL_SECONDS
    repository, tag = parse_repository_tag(image)
    for step in engine.api.pull(repository, tag or "latest", stream=True, decode=True):
        if "error" in step:
            return str(step["error"])
        if time.monotonic() > deadline:
            return f"not within {_PULL_SECONDS:g} s"
    return None


@atexit.register
def _close_engines() -> None:
    for engine in _engines.values():
        engine.close()
    _engines.clear()


# A connection cannot be shared with a child of fork().
os.register_at_fork(after_in_child=_engines.clear)
