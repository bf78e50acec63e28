"""Free TCP ports that stay free while a server is down; and sockets that end for certain."""

from __future__ import annotations

import contextlib
import random
import re
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
_LOWEST = 10240
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_given: set[int] = set()


def free_ports(count: int = 1) -> list[int]:
    """Return distinct ports of the loopback interface on which nothing listens now.

    This process was given none of them before: they may be those of servers that are down. (Once it
    was given half of all, it may get them again.)
    They are below the range for outgoing connections. Any client could take a port from that range
    while its server is down. Even a client that reconnects to that server could take it, by a TCP
    simultaneous open with itself.
    """
    found: list[int] = []
    candidates = random.SystemRandom()
    highest = _ephemeral_start() - 1
    if len(_given) > (highest - _LOWEST) // 2:
        _given.clear()
    for _ in range(1000 * count):
        port = candidates.randint(_LOWEST, highest)
        if port not in _given and is_free(port):
            _given.add(port)
            found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"no {count} free ports from {_LOWEST} to {highest}")


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            return True
        return False


def _ephemeral_start() -> int:
    try:
        first = int(re.split(r"\s+", _EPHEMERAL.read_text().strip())[0])
    except (OSError, ValueError):
        first = 32768
    return first if first > _LOWEST + 2000 else 32768


def shut(link: socket.socket) -> None:
    """End a connection, or listening: closing does not, while a forked child has a copy."""
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
