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
    "serves no client now: it has no quorum, or is electing a leader",
    "start the other servers of its ensemble, or repair the network between them",
)
READ_ONLY = Refusal(
    "has no quorum and serves only reads: it grants no lock",
    "start the other servers of its ensemble, or repair the network between them",
)
WANTS_TLS = Refusal(
    "requires TLS on this port",
    "connect over TLS: use_ssl=True, ca=…, in the command tls-ca; or use the other port",
)
NO_TLS = Refusal("speaks no TLS on this port", "use its secureClientPort, or configure one")
FULL = Refusal(
    "closes every connection at once: it has reached its maxClientCnxns (for one address) or its "
    "maxCnxns, or the port is not for clients",
    "share one client in each process, raise the limit, or correct the port",
)
SELECTIVE = Refusal(
    "serves, but closed this client's connections",
    "its log says why: a limit on clients, on new sessions (connection_throttle_…) or on the "
    "length of requests (jute.maxbuffer), or a start-up",
)
FOREIGN = Refusal("does not answer like ZooKeeper", "correct the address and the port")
CLOSED = Refusal(
    "closes connections without an answer",
    "the server's log says why, unless the port is not for clients",
)
NO_SASL = Refusal(
    "accepts the client, but answers no request",
    "read its log; if the client uses SASL, the server may not be set up for it",
)
MUTE_TLS = Refusal(
    "accepts connections, and does not answer TLS",
    "look whether the server stands still; if its port speaks no TLS, use the secureClientPort",
)

NO_KDC = Refusal(
    "was not asked yet: the KDC has not answered", "repair the network to it, or the KDC"
)

CLOSING = frozenset({NO_QUORUM, READ_ONLY, WANTS_TLS, NO_TLS, FULL, SELECTIVE, FOREIGN, CLOSED})

NOT_SERVING, ONLY_READS = b"not currently serving", b"Mode: read-only"
_TLS = b"\x15", b"\x16"
"""First bytes of an answer over TLS: an alert, or a part of the handshake."""
_NOT_NOW = {9, 10}
"""OpenSSL's codes for a certificate that is not valid yet, or has expired."""
_ENDS = {"UNEXPECTED_EOF_WHILE_READING", "WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"}


def of_tls(error: ssl.SSLError) -> Refusal | None:
    """Return what an error of TLS says; ``None`` if the server may not speak TLS at all."""
    reason = error.reason or ""
    if reason in _ENDS or isinstance(error, ssl.SSLEOFError):
        return None
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = f"{reason}: {error.verify_message}"
        todo = (
            "renew its certificate, or correct the clock of this machine"
            if error.verify_code in _NOT_NOW
            else "ca= must name the authority of its certificate, and hosts must name the server "
            "as its certificate does"
        )
    elif "ALERT" in reason or "CERTIFICATE" in reason:
        todo = "it may require a client certificate that it trusts: certfile=, keyfile="
    else:
        todo = "compare the TLS settings of both sides"
    return Refusal(f"was refused by TLS: {reason or error}", todo)


def no_ticket(error: Exception) -> Refusal:
    """Return what an error of Kerberos's library says: it ends with a text and a number."""
    last = error.args[-1] if error.args else type(error).__name__
    cause = last[0] if isinstance(last, tuple) else last
    return Refusal(
        f"was not asked, as there is no Kerberos ticket for it: {cause}",
        "renew the tickets, such as by kinit; check the KDC and the names of the servers",
    )


def refusal(connect: Callable[[bool], Any], tls: bool) -> Refusal | None:
    """Ask a server that closes connections why; ``None`` if that cannot be learnt.

    ``connect(tls)`` returns another socket to it, with a timeout. ``tls``: whether the client
    connects over TLS.

    TLS is asked for first: to ``srvr``, a port for TLS alone says nothing for ten seconds.
    """
    if not tls and _answers_tls(connect):
        return WANTS_TLS
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
    if ONLY_READS in said:
        return READ_ONLY
    if said.startswith(b"Zookeeper version") or b"not in the whitelist" in said:
        return NO_TLS if without_tls else SELECTIVE
    return WANTS_TLS if said[:1] in _TLS else FOREIGN


def _answers_tls(connect: Callable[[bool], socket.socket]) -> bool:
    """Whether the server answers the first message of TLS as one that speaks it."""
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # to load authorities takes long
    hello = context.wrap_bio(received, sent, server_hostname="zookeeper")
    with contextlib.suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    try:
        with connect(False) as sock:
            sock.sendall(sent.read())
            return sock.recv(1) in _TLS
    except OSError:
        return False
