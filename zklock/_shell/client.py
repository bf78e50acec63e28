"""Checks of a client that do not ask ZooKeeper."""

from __future__ import annotations

import inspect
import weakref
from functools import partial
from typing import Any, Protocol, TypeAlias

from kazoo.client import KazooClient

from zklock._core.wire import Codec
from zklock._shell.handler import Handler, another_client, closed_error, forked_error
from zklock.errors import ClientUnusable

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
    if not isinstance(client.handler, Handler):
        raise ClientUnusable(
            f"the client's handler is {type(client.handler).__name__}: make the client by "
            "zklock.connect(hosts), or by KazooClient(hosts, handler=zklock.Handler())"
        )
    check_process(client)
    error = closed_error(client)
    if error is not None:
        raise error
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
    if handler.served is not None and handler.served() is client:
        return
    handler.served = weakref.ref(client)
    session = handler.session
    session.codec = Codec(client.chroot, partial(_acl, handler.served), session.codec.id)
    session.readable(not client.default_acl)
    client.add_listener(partial(_on_state, handler.served))


def _acl(served: weakref.ref[Any]) -> Any:
    """Return the ACL of new nodes: it may be changed while the client runs."""
    client = served()
    return None if client is None else client.default_acl


def _on_state(served: weakref.ref[Any], state: str) -> None:
    """Note that the client is over: kazoo says so, unless the session was lost before."""
    client = served()
    error = None if client is None else closed_error(client)
    if client is not None and error is not None:
        client.handler.over(error)


def check_process(client: Kazoo) -> None:
    """Raise ``ForkedClient`` if the client is known to belong to the parent process."""
    if isinstance(client.handler, Handler) and client.handler.forked:
        raise forked_error()
