"""The interface between test servers and the backend that runs ZooKeeper."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import ClassVar

from zklock.testing.errors import NotSupported
from zklock.testing.settings import Settings


class Capability(Enum):
    """A capability of a server; a call without its capability raises ``NotSupported``."""

    CONTROL = "start, stop, kill, restart, pause and resume"
    CONFIGURE = "settings such as tick_time take effect"
    CUT = "cut_from_peers and heal, for ensembles"
    DATA = "data_dir and set_child_counter"


class Node(ABC):
    """One server as its backend sees it. Not thread-safe; no call waits until it serves."""

    host: str
    port: int

    @abstractmethod
    def start(self) -> None:
        """Launch on the kept data; do nothing if it runs."""

    @abstractmethod
    def stop(self) -> None:
        """End it in order, keeping port and data; do nothing if it is down."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once (SIGKILL), keeping port and data."""

    @abstractmethod
    def pause(self) -> None:
        """Freeze the process: its connections stay open and silent."""

    @abstractmethod
    def resume(self) -> None:
        """Let a frozen process go on."""

    @abstractmethod
    def running(self) -> bool:
        """Whether the process exists, frozen or not."""

    def log_tail(self, lines: int) -> str:
        """Return the last lines of its log, if this backend can see one."""
        del lines
        return ""

    @abstractmethod
    def close(self) -> None:
        """End it and remove everything that was made for it. May be called twice."""

    @property
    def data_dir(self) -> Path | None:
        """The folder that contains ``version-2``, if that is a local folder."""
        return None

    def set_child_counter(self, path: str, value: int) -> bool:
        """Move the create counter of a znode of a stopped server.

        ``False``: this backend cannot; the caller edits the snapshot.
        """
        return False

    def read_snapshot(self) -> tuple[str, bytes]:
        """Return the name and the content of the newest snapshot of a stopped server."""
        raise NotSupported("this backend does not show the server's data")

    def write_snapshot(self, name: str, content: bytes) -> None:
        """Replace a snapshot of a stopped server."""
        raise NotSupported("this backend does not show the server's data")


class Group(ABC):
    """The servers of one ensemble and the links between them."""

    nodes: Sequence[Node]

    @abstractmethod
    def cut(self, index: int) -> None:
        """Drop all packets between this node and the others."""

    @abstractmethod
    def heal(self, index: int) -> None:
        """Undo ``cut``; do nothing if the node is not cut."""

    @abstractmethod
    def close(self) -> None:
        """End all nodes and remove everything. May be called twice."""


class Backend(ABC):
    """A way to run ZooKeeper servers."""

    name: ClassVar[str]
    capabilities: frozenset[Capability]

    @abstractmethod
    def describe(self) -> str:
        """Say in a few words what runs the servers."""

    @abstractmethod
    def single(self, settings: Settings) -> Node:
        """Prepare one standalone server; it is not started."""

    @abstractmethod
    def ensemble(self, settings: Settings, size: int) -> Group:
        """Prepare an ensemble of ``size`` servers."""
