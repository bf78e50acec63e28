"""kazoo's client states and event kinds, in zklock's terms."""

from __future__ import annotations

from enum import Enum

from kazoo.client import KazooClient
from kazoo.protocol.states import EventType, KazooState, KeeperState

DELETED: str = EventType.DELETED
"""The kind of the event that reports a node's deletion."""

CHANGED: str = EventType.CHANGED
"""The kind of the event that reports that a node's data were written."""


class Change(Enum):
    """A change of a client's state, as reported to a listener."""

    CONNECTED = "connected, perhaps to a server that only reads"
    SUSPENDED = "the connection is lost, the session may live"
    EXPIRED = "the session is over"
    CLOSED = "the client was stopped, or its credentials were refused"


def told(client: KazooClient, state: str) -> Change:
    """Return the change that kazoo means when it calls a listener with this state."""
    if state == KazooState.CONNECTED:
        return Change.CONNECTED
    if state == KazooState.SUSPENDED:
        return Change.SUSPENDED
    if client.client_state is KeeperState.EXPIRED_SESSION:
        return Change.EXPIRED
    return Change.CLOSED


def serves(client: KazooClient) -> bool:
    """Whether requests go out at once: the client is connected, and not to a read-only server."""
    return bool(client.client_state is KeeperState.CONNECTED)


def over(client: KazooClient) -> bool:
    """Whether the client is stopped, or its credentials were refused."""
    return client.client_state in {KeeperState.CLOSED, KeeperState.AUTH_FAILED}


def refused(client: KazooClient) -> bool:
    """Whether the client's credentials were refused."""
    return bool(client.client_state is KeeperState.AUTH_FAILED)


def session_id(client: KazooClient) -> int | None:
    """Return the session's id, or ``None`` without a session."""
    known = client.client_id
    return None if known is None else int(known[0])
