"""How the address of a server is written."""

from __future__ import annotations


def server_name(host: str, port: int) -> str:
    """Return the name of a server as it is written in ``hosts``: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
