"""Servers that somebody else runs, named in ``ZKLOCK_TEST_HOSTS``."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from zklock.testing.backend import Backend, Group, Node
from zklock.testing.errors import BackendUnavailable, NotSupported
from zklock.testing.settings import Settings

HOSTS_VARIABLE = "ZKLOCK_TEST_HOSTS"
_DEFAULT_PORT = 2181


def parse_hosts(text: str) -> list[tuple[str, int]]:
    """Read ``"host[:port],…"``; ``ValueError`` for anything else.

    A chroot is refused: name it in the client, so that tests cannot leave it by accident.
    """
    found = []
    for entry in text.split(","):
        host, colon, port = entry.strip().rpartition(":")
        if not colon or port.endswith("]"):
            host, port = entry.strip(), str(_DEFAULT_PORT)
        host = host.removeprefix("[").removesuffix("]")
        if not host or "/" in entry or not port.isascii() or not port.isdigit():
            raise ValueError(f"not host:port[,host:port…]: {text!r}")
        if not 0 < int(port) < 65536:
            raise ValueError(f"no such port: {entry.strip()!r}")
        found.append((host, int(port)))
    return found


def one_server(hosts: str) -> tuple[str, int, str]:
    """Return host, port and chroot (with its slash, or empty); ``ValueError`` if not just one."""
    if not isinstance(hosts, str):
        raise TypeError(f"a server is given as 'host:port', not {hosts!r}")
    address, slash, chroot = hosts.partition("/")
    servers = parse_hosts(address)
    if len(servers) != 1:
        raise ValueError(f"one server is wanted, 'host:port', not {hosts!r}")
    return *servers[0], slash + chroot


class ExternalBackend(Backend):
    """Given addresses. They can be used, but not started, stopped, configured or cut."""

    name: ClassVar[str] = "hosts"

    def __init__(self, hosts: str) -> None:
        try:
            self.addresses = parse_hosts(hosts)
        except ValueError as error:
            raise BackendUnavailable(f"{HOSTS_VARIABLE}: {error}") from error
        self.capabilities = frozenset()

    def describe(self) -> str:
        return f"given by {HOSTS_VARIABLE}"

    def single(self, settings: Settings) -> ExternalNode:
        return ExternalNode(*self.addresses[0])

    def ensemble(self, settings: Settings, size: int) -> ExternalGroup:
        if len(self.addresses) < size:
            raise BackendUnavailable(
                f"an ensemble of {size} is wanted, {HOSTS_VARIABLE} names {len(self.addresses)}"
            )
        return ExternalGroup(self.addresses[:size])


class ExternalNode(Node):
    """A server at an address; ``start`` only checks that it serves."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def start(self) -> None:
        """Do nothing: the server runs already."""

    def stop(self) -> NoReturn:
        """Refuse that, as whatever else would end the server."""
        raise NotSupported(
            f"{self.host}:{self.port} is given by {HOSTS_VARIABLE} and cannot be stopped, killed, "
            "paused or resumed from here; unset it to let the tests run servers of their own"
        )

    kill = pause = resume = stop

    def running(self) -> bool:
        return True

    def close(self) -> None:
        """Leave the server as it is."""


class ExternalGroup(Group):
    """Given addresses of one ensemble."""

    def __init__(self, addresses: list[tuple[str, int]]) -> None:
        self.nodes = [ExternalNode(host, port) for host, port in addresses]

    def cut(self, index: int) -> NoReturn:
        raise NotSupported(f"the peers given by {HOSTS_VARIABLE} cannot be cut from here")

    heal = cut

    def close(self) -> None:
        """Leave the servers as they are."""
