"""Clients of processes that a framework starts: made after the fork, and ended.

There is one for each key in this process. A child of a fork makes its own. No lock is taken. A time
limit of a task's may strike at any moment, and on Python 3.14 it could leave the lock taken: later
tasks, and the end of the process, would wait for ever.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Hashable

from kazoo.protocol.states import KeeperState

import zklock

_OVER = {KeeperState.CLOSED, KeeperState.AUTH_FAILED}

_clients: dict[Hashable, zklock.Client] = {}


def end(client: zklock.Client) -> None:
    """Stop a client and close it; in a child of a fork, leave it to the parent."""
    with client:
        pass


def client_for(key: Hashable, make: Callable[[], zklock.Client]) -> zklock.Client:
    """Return the client of this key, and make it if there is none; raise what ``make`` raises.

    If several threads make it at the same time, all get the first, and the others are ended. A
    client that was stopped, or whose credentials were refused, is followed by another one.
    """
    client = _clients.get(key)
    while client is not None and client.client_state in _OVER:
        key = key, client  # the place of its successor
        client = _clients.get(key)
    if client is None:
        made = make()
        client = _clients.setdefault(key, made)
        if client is not made:
            end(made)
    return client


def end_all() -> None:
    while _clients:
        try:
            _, client = _clients.popitem()
        except KeyError:
            return  # another thread ends the last one
        end(client)


os.register_at_fork(after_in_child=_clients.clear)
atexit.register(end_all)
