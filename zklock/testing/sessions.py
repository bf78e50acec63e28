"""Ends sessions on the server, in the same way as a timeout would."""

from __future__ import annotations

import socket
import time
from typing import Protocol

from zklock.testing.errors import ServerError
from zklock.testing.external import one_server
from zklock.testing.zookeeper.codec import ASKED, CONNECT, CONNECTED, INT, Malformed, Op, framed

CLOSE = framed(ASKED.pack((1, Op.CLOSE_SESSION)))
_TIMEOUT_MS = 10_000
_LONGEST_ANSWER = 2**26  # bytes


class HasSession(Protocol):
    """The part of a started ``KazooClient`` that this module needs."""

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        """Session id and password."""

    @property
    def hosts(self) -> list[tuple[str, int]]:
        """The servers."""


def expire_session(
    session: HasSession | tuple[int, bytes], hosts: str | None = None, timeout: float = 10.0
) -> int:
    """End a client's session on the server, without the client's help; return the session's id.

    ``session`` is the client, which must be connected (otherwise kazoo does not tell its session).
    Or it is a ``client_id`` of the client that was noted before.

    A second connection takes over the session by its id and password, and closes it. When this
    returns, the session's ephemeral nodes are gone on the server that was asked. For the client
    this is like any expiry: its connection drops, it connects again, and it is told (LOST). Wait
    for that if it matters.

    ``hosts`` is ``"host:port"`` of one server; by default, the client's own first host.
    ``timeout`` is in seconds; after it, ``TimeoutError``. ``ServerError`` if the client has no
    session that the server knows. Plain TCP only, no TLS.
    """
    if isinstance(session, tuple):
        client_id = session
        if hosts is None:
            raise ValueError("a session given by its id needs hosts as well")
    else:
        if session.client_id is None:
            raise ServerError("the client is not connected: start it, or note its client_id before")
        client_id = session.client_id
        hosts = hosts or "{}:{}".format(*session.hosts[0])
    session_id, password = client_id
    deadline = time.monotonic() + timeout
    tried = False
    while True:
        left = max(0.001, deadline - time.monotonic())
        granted, closed = _take_and_close(session_id, password, hosts, left)
        if granted != session_id and not tried:
            raise ServerError(f"the server knows no session 0x{session_id:x}: it is over already")
        if closed or granted != session_id:
            return session_id
        # The client took its session back in between.
        tried = True
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"session 0x{session_id:x} did not end in {timeout:g} s: its client takes it "
                f"back, or {hosts} does not serve"
            )


def serves_sessions(hosts: str, timeout: float = 3.0) -> bool:
    """Say whether this one server begins and ends a session, within ``timeout`` seconds for each.

    Both are writes. So the server is a member of a working quorum, whatever it calls itself.
    """
    try:
        return _take_and_close(0, bytes(16), hosts, timeout)[1]
    except (OSError, Malformed):
        return False


def _take_and_close(
    session_id: int, password: bytes, hosts: str, timeout: float
) -> tuple[int, bool]:
    """Connect to this session (0: a new one), and close it.

    Return its id (0: the server does not know it), and whether the server confirmed the close. The
    server may close the connection before: another connection may take the session at any moment.
    """
    with socket.create_connection(one_server(hosts)[:2], timeout) as link:
        link.sendall(connecting(session_id, password, _TIMEOUT_MS) + CLOSE)
        granted = session_id
        try:
            granted = CONNECTED.unpack(received(link))[0][2]
            return granted, bool(granted and received(link))
        except ConnectionError:
            return granted, False


def connecting(session_id: int, password: bytes, milliseconds: int) -> bytes:
    """Return the first frame of a connection to this session (0: a new one)."""
    return framed(CONNECT.pack((0, 0, milliseconds, session_id, password, False)))


def received(link: socket.socket) -> bytes:
    """Receive the body of a frame."""
    length, _ = INT.read(_exactly(link, 4), 0)
    return _exactly(link, min(length, _LONGEST_ANSWER))


def _exactly(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = link.recv(size - len(data))
        if not chunk:
            raise ConnectionResetError("the server closed the connection")
        data += chunk
    return data
