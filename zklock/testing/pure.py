"""Runs the embedded server as a test server: no Java, no container, no disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, TypeVar

from zklock.testing.backend import Backend, Capability, Group, Node
from zklock.testing.errors import BackendUnavailable, NotSupported, StartFailed
from zklock.testing.settings import Settings
from zklock.testing.zookeeper.server import MAX_FRAME, NOTICE, EmbeddedServer

N = TypeVar("N")

_CONFIG = {"tickTime", "minSessionTimeout", "maxSessionTimeout", "maxClientCnxns"}
_MAX_FRAME, _CONTAINERS = "jute.maxbuffer", "znode.container.checkIntervalMs"


class EmbeddedBackend(Backend):
    """Servers in this process. They have what a lock needs of ZooKeeper 3.8, and no ensembles."""

    name: ClassVar[str] = "embedded"

    capabilities = frozenset({Capability.CONTROL, Capability.CONFIGURE, Capability.DATA})

    def describe(self) -> str:
        return f"embedded ({NOTICE})"

    def single(self, settings: Settings) -> EmbeddedNode:
        """Prepare one server; `NotSupported` for a setting that it does not know."""
        return EmbeddedNode(settings)

    def ensemble(self, settings: Settings, size: int) -> Group:
        raise BackendUnavailable(
            "the embedded server stands alone: an ensemble needs a container engine or Java"
        )


class EmbeddedNode(Node):
    """An embedded server. Its data outlive ``stop`` and ``kill``, in memory."""

    def __init__(self, settings: Settings) -> None:
        _refuse("setting", set(settings.config) - _CONFIG)
        _refuse("system property", set(settings.system_properties) - {_MAX_FRAME, _CONTAINERS})
        _refuse("option of Java's", settings.java_options)
        if settings.data_dir is not None:
            raise NotSupported("the embedded server keeps nothing on disk: leave out data_dir")
        config, properties = settings.config, settings.system_properties
        self._server = EmbeddedServer(
            tick_time=_number(config, "tickTime", settings.tick_time),
            min_session_timeout=_number(config, "minSessionTimeout", settings.min_session_timeout),
            max_session_timeout=_number(config, "maxSessionTimeout", settings.max_session_timeout),
            max_frame=_number(properties, _MAX_FRAME, MAX_FRAME),
            container_check=_number(properties, _CONTAINERS, 60_000),
        )
        self.host = self._server.host
        self.port = self._server.port

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def pause(self) -> None:
        if not self.running():
            raise StartFailed("a server that is down cannot be paused")
        self._server.pause()

    def resume(self) -> None:
        self._server.resume()

    def running(self) -> bool:
        return self._server.running

    def set_child_counter(self, path: str, value: int) -> bool:
        self._server.set_child_counter(path, value)
        return True

    kill = close = stop


def _number(given: Mapping[str, str], name: str, otherwise: N) -> int | N:
    return int(given[name]) if name in given else otherwise


def _refuse(what: str, names: Iterable[str]) -> None:
    if listed := ", ".join(sorted(names)):
        raise NotSupported(
            f"the embedded server has no {what} {listed}: "
            "take a real one, by a container engine or Java"
        )
