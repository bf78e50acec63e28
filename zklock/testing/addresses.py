"""The address of one server."""

from __future__ import annotations

from zklock.testing.external import parse_hosts


def one_server(hosts: str) -> tuple[str, int, str]:
    """Return host, port and chroot (with its slash, or empty); ``ValueError`` if not just one."""
    if not isinstance(hosts, str):
        raise TypeError(f"a server is given as 'host:port', not {hosts!r}")
    address, slash, chroot = hosts.partition("/")
    servers = parse_hosts(address)
    if len(servers) != 1:
        raise ValueError(f"one server is wanted, 'host:port', not {hosts!r}")
    return *servers[0], slash + chroot
