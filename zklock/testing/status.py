"""ZooKeeper's four-letter words: what a server says about itself without a session.

Source: ZooKeeper Administrator's Guide, "The Four Letter Words".
"""

from __future__ import annotations

import re
import socket
import time
from dataclasses import dataclass

from zklock.testing.errors import NotServing

_WORD = re.compile(r"[a-z]{4}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The answer to ``srvr``.

    ``version`` is the release alone (``"3.8.0"``), ``mode`` is ``"standalone"``, ``"leader"``,
    ``"follower"``, ``"observer"`` or ``"read-only"``, ``zxid`` the last transaction that this
    server has applied, ``connections`` counts the asking one too.
    """

    version: str
    mode: str
    zxid: int
    connections: int
    outstanding: int
    node_count: int
    received: int
    sent: int

    @classmethod
    def parse(cls, text: str) -> ServerStatus:
        """Read the answer; ``NotServing`` if it says so, ``ValueError`` for foreign text."""
        found = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        fields = {key.strip().lower(): value.strip() for key, value in found.items()}
        if "mode" not in fields:
            if "not currently serving" in text:
                raise NotServing(text.strip())
            raise ValueError(f"not the answer to srvr: {text[:200]!r}")
        release = re.match(r"\d+(\.\d+)*", fields.get("zookeeper version", ""))
        return cls(
            version=release[0] if release else "unknown",
            mode=fields["mode"],
            zxid=int(fields.get("zxid", "0"), 16),
            connections=int(fields.get("connections", "0")),
            outstanding=int(fields.get("outstanding", "0")),
            node_count=int(fields.get("node count", "0")),
            received=int(fields.get("received", "0")),
            sent=int(fields.get("sent", "0")),
        )


def four_letter(host: str, port: int, word: str, *, timeout: float = 3.0) -> str:
    """Send a four-letter word and return the whole answer.

    ``timeout`` (seconds) covers the call from connecting to the end of the answer. ``OSError``
    (``TimeoutError`` is one) when the server is not there or silent. A word that is not on the
    server's whitelist is answered with a sentence that says so.
    """
    if not _WORD.fullmatch(word):
        raise ValueError(f"a four-letter word has four small letters, not {word!r}")
    deadline = time.monotonic() + timeout
    with socket.create_connection((host, port), timeout) as connection:
        connection.sendall(word.encode())
        answer = bytearray()
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{host}:{port} did not finish its answer to {word!r}")
            connection.settimeout(left)
            chunk = connection.recv(65536)
            if not chunk:
                return answer.decode("utf-8", "replace")
            answer += chunk


def srvr(host: str, port: int, *, timeout: float = 3.0) -> ServerStatus:
    """Ask a server for its status.

    ``OSError`` when it is not there, silent for ``timeout`` seconds or hangs up; ``NotServing``
    when it serves no requests now.
    """
    text = four_letter(host, port, "srvr", timeout=timeout)
    if not text:
        raise ConnectionResetError(f"{host}:{port} hung up without an answer")
    return ServerStatus.parse(text)
