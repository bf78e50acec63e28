"""The switch for ``riders``: the variable ``ZKLOCK_RIDER`` of the environment.

It is read whenever a client is made. The client has a handler that carries riders, and so has its
store. With ``off``, neither has, and no module of the riders is loaded. With ``gateway``, kazoo
rides on a connection of zklock's (see ``gateway``), which is to take the place of both.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager

from zklock._kazoo.client import Kazoo
from zklock._kazoo.handler import Handler
from zklock._kazoo.store import After, Store
from zklock.errors import ClientUnusable


def new_handler() -> Handler:
    """Return the handler of a new client, as the environment wants it."""
    wanted = os.environ.get("ZKLOCK_RIDER") or "on"
    if wanted not in {"on", "off", "gateway"}:
        raise ClientUnusable(f"ZKLOCK_RIDER is {wanted!r} in the environment: set it to on or off")
    if wanted == "gateway":
        from zklock._kazoo.gateway import GatewayHandler  # noqa: PLC0415

        return GatewayHandler()
    if wanted == "off":
        return Handler()
    from zklock._kazoo.riding import RidingHandler  # noqa: PLC0415

    return RidingHandler()


def open_store(
    client: Kazoo,
    on_event: Callable[[str, str | None], None],
    is_mine: Callable[[int], bool],
    lock: AbstractContextManager[object],
    after: After,
) -> Store:
    """Return the store of a client: one with riders if its handler carries them."""
    if isinstance(client.handler, Handler) and type(client.handler) is not Handler:
        from zklock._kazoo.gateway import GatewayHandler  # noqa: PLC0415
        from zklock._kazoo.riding import RidingHandler, RidingStore  # noqa: PLC0415

        if isinstance(client.handler, RidingHandler | GatewayHandler):
            return RidingStore(client, on_event, is_mine, lock, after, handler=client.handler)
    return Store(client, on_event, is_mine, lock, after)
