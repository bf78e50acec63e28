"""Clients of processes that a framework starts: made after the fork, and ended."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Hashable

import zklock


def end(client: zklock.Client) -> None:
    """Stop a client and close it; in a child of a fork, leave it to the parent."""
    with client:
        pass


class ProcessClients:
    """One client for each key in this process. A child of a fork makes its own."""

    def __init__(self) -> None:
        self._start_over()
        _all.append(self)

    def get(self, key: Hashable, make: Callable[[], zklock.Client]) -> zklock.Client:
        """Return the client of this key, made by the first who asks; raise what ``make`` raises."""
        with self._lock:
            client = self._clients.get(key)
            if client is None:
                client = self._clients[key] = make()
            return client

    def end(self) -> None:
        """Stop all clients."""
        with self._lock:
            self._end_all()

    def _end_all(self) -> None:
        while self._clients:
            end(self._clients.popitem()[1])

    def _start_over(self) -> None:
        """Begin without clients: a lock of the parent's may be taken for ever."""
        self._lock = threading.Lock()
        self._clients: dict[Hashable, zklock.Client] = {}


def _start_all_over() -> None:
    for each in _all:
        each._start_over()


def _end_all() -> None:
    for each in _all:
        each.end()


_all: list[ProcessClients] = []
os.register_at_fork(after_in_child=_start_all_over)
atexit.register(_end_all)
