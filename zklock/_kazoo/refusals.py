"""Why a server turns clients away: their connections are closed alike, so it is asked."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any, NamedTuple

_ANSWER, _PARTS = 4096, 8
"""The most bytes that are read in one go, and how often: a stranger may send without end."""


class Refusal(NamedTuple):
    """What a server does, and what to do about it; ``todo`` is empty where that is not known."""

    what: str
    todo: str = ""

    def __str__(self) -> str:
        return f"{self.what} ({self.todo})" if self.todo else self.what


NO_QUORUM = Refusal(
    "serves nobody now: it has no quorum, or elects a leader",
    "start the other servers of its ensemble, or mend the network between them",
)
READ_ONLY = Refusal(
    "has no quorum, and serves reads only: nobody gets a lock there",
    "start the other servers of its ensemble, or mend the network between them",
)
WANTS_TLS = Refusal(
    "wants TLS on this port",
    "connect over TLS: use_ssl=True, ca=…, in the command tls-ca; or name the other port",
)
NO_TLS = Refusal("speaks no TLS on this port", "name its secureClientPort, or have one configured")
FULL = Refusal(
    "closes every connection at once: it has as many clients as its maxClientCnxns (of one "
    "address) or its maxCnxns allows, or the port is not for clients",
    "share one client in each process, raise the limit; or correct the port",
)
SELECTIVE = Refusal(
    "serves, but has closed the connections of this client",
    "its log says why: a limit of clients, of new sessions (connection_throttle_…) or of the "
    "length of requests (jute.maxbuffer), or it was starting",
)
FOREIGN = Refusal("does not answer as ZooKeeper does", "correct the address and the port")
CLOSED = Refusal(
    "closes connections without an answer",
    "the log of the server says why, unless the port is not for clients",
)
NO_SASL = Refusal(
    "lets the client in, and answers no request",
    "look at its log; it may not be set up for SASL, if the client is",
)

CLOSING = frozenset({NO_QUORUM, READ_ONLY, WANTS_TLS, NO_TLS, FULL, SELECTIVE, FOREIGN, CLOSED})

NOT_SERVING = b"not currently serving"
_TLS = b"\x15", b"\x16"
"""First bytes of an answer over TLS: an alert, or a part of the handshake."""
_ENDS = {"UNEXPECTED_EOF_WHILE_READING", "WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"}


def of_tls(error: ssl.SSLError) -> Refusal | None:
    """Return what an error of TLS says; ``None`` if the server may not speak TLS at all."""
    reason = error.reason or ""
    if reason in _ENDS or isinstance(error, ssl.SSLEOFError):
        return None
    if isinstance(error, ssl.SSLCertVerificationError):
        todo = (
            "ca= has to name the authority of its certificate, and hosts the server as its "
            "certificate does"
        )
    elif "ALERT" in reason or "CERTIFICATE" in reason:
        todo = "it may want a certificate of the client that it trusts: certfile=, keyfile="
    else:
        todo = "compare the TLS settings of both sides"
    return Refusal(f"was refused by TLS: {error.reason or error}", todo)


def refusal(connect: Callable[[bool], Any], tls: bool) -> Refusal | None:
    """Ask a server that closes connections why; ``None`` if that cannot be learnt.

    ``connect(tls)`` returns another socket to it, with a timeout. ``tls``: whether the client
    connects over TLS.
    """
    closed = True
    for secure in (True, False) if tls else (False,):
        try:
            with connect(secure) as sock:
                said = answer(sock)
        except (ssl.SSLError, ConnectionError):
            continue
        except OSError:
            closed = False
            continue
        if said:
            return _meaning(said, without_tls=tls and not secure)
    if not tls and _answers_tls(connect):
        return WANTS_TLS
    return FULL if closed else None


def answer(sock: Any, until: bytes = b"") -> bytes:
    """Return the answer to ``srvr``; nothing if the connection is closed without one.

    ``until``: what comes behind this is not waited for.
    """
    said = b""
    sock.sendall(b"srvr")
    try:
        for _ in range(_PARTS):
            said += sock.recv(_ANSWER)
            if until and until in said:
                break
    except OSError:
        if not said:
            raise
    return said


def _meaning(said: bytes, *, without_tls: bool) -> Refusal:
    if NOT_SERVING in said:
        return NO_QUORUM
    if b"Mode: read-only" in said:
        return READ_ONLY
    if said.startswith(b"Zookeeper version") or b"not in the whitelist" in said:
        return NO_TLS if without_tls else SELECTIVE
    return WANTS_TLS if said[:1] in _TLS else FOREIGN


def _answers_tls(connect: Callable[[bool], socket.socket]) -> bool:
    """Whether the server answers the first message of TLS as one that speaks it."""
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = ssl.create_default_context().wrap_bio(received, sent, server_hostname="zookeeper")
    with contextlib.suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    try:
        with connect(False) as sock:
            sock.sendall(sent.read())
            return sock.recv(1) in _TLS
    except OSError:
        return False
