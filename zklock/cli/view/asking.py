"""Asks ZooKeeper again while it is too busy to answer: a command need not end by that."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

import zklock
from zklock._ground.clock import clock
from zklock._kazoo.store import MEANINGS
from zklock._recipes.effects import backoff


def answer(client: KazooClient, ask: Callable[[], Any], path: str) -> Any:
    """Return the answer about a node, or raise kazoo's error. ``NoAnswer`` if it does not come."""
    patience = Patience(client)
    while True:
        try:
            return wait(client, ask(), path)
        except KazooException as error:
            patience.refused(error, path)
        patience.rest()


def wait(client: KazooClient, asked: Any, path: str) -> Any:
    """Wait for the answer to what was asked, for a session timeout at most."""
    timeout = client.handler.session_timeout
    try:
        return asked.get(timeout=timeout)
    except client.handler.timeout_exception as error:
        raise _no_answer(path, timeout) from error


class Patience:
    """Rests while ZooKeeper is too busy; ``NoAnswer`` if it was that for a session timeout."""

    def __init__(self, client: KazooClient) -> None:
        self._timeout = client.handler.session_timeout
        self._since = clock()
        self._tries = 0
        self._refused = False

    def answered(self) -> None:
        """Begin anew: something was answered."""
        self._since = clock()
        self._tries = 0

    def refused(self, error: KazooException, path: str) -> None:
        """Take an error by which ZooKeeper asks to wait; raise any other one."""
        meaning = MEANINGS.get(getattr(error, "code", 0))
        if meaning is None or not meaning.busy:
            raise error
        if clock() - self._since >= self._timeout:
            raise _no_answer(path, self._timeout) from error
        self._refused = True

    def rest(self) -> None:
        """Pause if something was refused since the last call; longer each time."""
        if self._refused:
            self._refused = False
            time.sleep(backoff(self._tries))
            self._tries += 1


def _no_answer(path: str, timeout: float) -> zklock.NoAnswer:
    return zklock.NoAnswer(
        f"{path}: no answer within {timeout:g} s: check that a quorum is up, and try again"
    )
