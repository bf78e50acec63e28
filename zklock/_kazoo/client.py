"""Checks of a client that do not ask ZooKeeper."""

from __future__ import annotations

import inspect
import weakref
from typing import Any, Protocol, TypeAlias

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KeeperState

from zklock._kazoo.handler import Handler, another_client
from zklock.errors import ClientClosed, ClientUnusable, ForkedClient

Kazoo: TypeAlias = KazooClient
"""kazoo's client, as the rest of the library knows it. kazoo has no types."""


class AnyClient(Protocol):
    """A ``KazooClient``, from :func:`zklock.connect` or from kazoo, which has no types itself."""

    @property
    def handler(self) -> Any:
        """What runs its threads."""

    @property
    def client_state(self) -> Any:
        """The state of its connection."""

    def add_listener(self, listener: Any) -> Any:
        """Call back at every change of its state."""


def check_type(client: object) -> None:
    """Raise ``TypeError`` unless ``client`` is one of kazoo's."""
    if not isinstance(client, KazooClient):
        if inspect.isawaitable(client):
            raise TypeError(
                f"pass a started KazooClient, not {type(client).__name__}: await it first, as in "
                "client = await zklock.aio.connect(hosts)"
            )
        raise TypeError(
            f"pass a started KazooClient, such as zklock.connect() returns, "
            f"not {type(client).__name__}"
        )


def check_client(client: Any) -> None:
    """Raise a clear error unless ``client`` is a started client that can carry locks."""
    check_type(client)
    if not isinstance(client.handler, SequentialThreadingHandler):
        raise ClientUnusable(
            f"the client's handler is {type(client.handler).__name__}: zklock needs a threading "
            "handler (kazoo's SequentialThreadingHandler, or zklock.connect())"
        )
    check_process(client)
    error = closed_error(client)
    if error is not None:
        raise error
    if isinstance(client.handler, Handler):
        check_handler(client.handler, client)
        serve(client.handler, client)


def check_handler(handler: Handler, client: Kazoo | None = None) -> None:
    """Raise ``ClientUnusable`` if the handler serves another client, which is not closed.

    It would report to the one what happens on the connection of the other.
    """
    other = handler.served() if handler.served is not None else None
    if other not in {None, client} and closed_error(other) is None:
        raise another_client()


def serve(handler: Handler, client: Kazoo) -> None:
    """Note that the handler serves the client."""
    handler.served = weakref.ref(client)


def check_process(client: Kazoo) -> None:
    """Raise ``ForkedClient`` if the client is known to belong to the parent process."""
    if isinstance(client.handler, Handler) and client.handler.forked:
        raise forked_error()


def forked_error() -> ForkedClient:
    """Return the error to raise in a child process: the connection belongs to its parent."""
    return ForkedClient("this client belongs to the parent process: make a new one in the child")


def closed_error(client: Kazoo) -> ClientClosed | None:
    """Return the error to raise if the client was not started, was stopped, or was refused."""
    state = client.client_state
    if state is KeeperState.AUTH_FAILED:
        return ClientClosed("ZooKeeper refused the client's credentials: make a new client")
    if state is KeeperState.CLOSED:
        return ClientClosed("the client is not started, or was stopped: call its start() first")
    return None
