"""How the address of a server and the id of a session are written."""

from __future__ import annotations


def server_name(host: str, port: int) -> str:
    """Return the name of a server as it is written in ``hosts``: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def session_text(number: int) -> str:
    """Return a session's id as ZooKeeper writes it; kazoo's number has a sign."""
    return f"{number & (2**64 - 1):#x}"
