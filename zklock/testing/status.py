"""ZooKeeper's four-letter words: what a server says about itself without a session.

Source: ZooKeeper Administrator's Guide, "The Four Letter Words".
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zklock.testing.errors import NotServing

if TYPE_CHECKING:
    from ssl import SSLContext

_WORD = re.compile(r"[a-z]{4}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The answer to ``srvr``.

    ``version`` is the release alone (``"3.8.0"``). ``mode`` is ``"standalone"``, ``"leader"``,
    ``"follower"``, ``"observer"`` or ``"read-only"``. ``zxid`` is the last transaction that this
    server has applied. ``connections`` includes the one that asks.
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
        """Read the answer; ``NotServing`` if it says so, ``ValueError`` for any other text."""
        found = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        fields = {key.strip().lower(): value.strip() for key, value in found.items()}
        if "mode" not in fields:
            if "not currently serving" in text:
                raise NotServing(text.strip())
            raise ValueError(f"not the answer to srvr: {text[:200]!r}")
        release = re.match(r"\d+(\.\d+)*", fields.get("zookeeper version", ""))
        counts = ("connections", "outstanding", "node count", "received", "sent")
        return cls(
            release[0] if release else "unknown",
            fields["mode"],
            int(fields.get("zxid", "0"), 16),
            *(int(fields.get(count, "0")) for count in counts),
        )


def four_letter(
    host: str, port: int, word: str, *, timeout: float = 3.0, tls: SSLContext | None = None
) -> str:
    """Send a four-letter word and return the whole answer.

    ``timeout`` (seconds) covers the call from connecting to the end of the answer. ``OSError``
    (``TimeoutError`` is one) if the server is not there or silent. If a word is not on the server's
    whitelist, the answer is a sentence that says so. ``tls``: ask over TLS, which is the only way
    on a server's secure port.
    """
    if not _WORD.fullmatch(word):
        raise ValueError(f"a four-letter word has four small letters, not {word!r}")
    deadline = time.monotonic() + timeout
    with connected(host, port, timeout, tls) as connection:
        connection.sendall(word.encode())
        answer = bytearray()
        while (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            with contextlib.suppress(TimeoutError):
                chunk = connection.recv(65536)
                if not chunk:
                    return answer.decode("utf-8", "replace")
                answer += chunk
    raise TimeoutError(f"{host}:{port} did not finish its answer to {word!r}")


@contextlib.contextmanager
def connected(
    host: str, port: int, timeout: float, tls: SSLContext | None = None
) -> Iterator[socket.socket]:
    """Connect to a server, over TLS if that is given; ``timeout`` is also that of the socket."""
    with socket.create_connection((host, port), timeout) as plain:
        if tls is None:
            yield plain
            return
        with tls.wrap_socket(plain, server_hostname=host) as wrapped:
            yield wrapped


def srvr(host: str, port: int, *, timeout: float = 3.0) -> ServerStatus:
    """Ask a server for its status.

    ``OSError`` if it is not there, is silent for ``timeout`` seconds, or hangs up. ``NotServing``
    if it serves no requests now.
    """
    text = four_letter(host, port, "srvr", timeout=timeout)
    if not text:
        raise ConnectionResetError(f"{host}:{port} hung up without an answer")
    return ServerStatus.parse(text)
