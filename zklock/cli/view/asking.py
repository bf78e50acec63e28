"""Asks ZooKeeper again while it is too busy to answer: a command need not end by that."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

import zklock
from zklock._core.failures import MEANINGS
from zklock._ground.clock import clock
from zklock._recipes.effects import backoff

_WINDOW = 256
"""The most requests that are under way at a time."""

_K = TypeVar("_K")


def answer(client: KazooClient, ask: Callable[[], Any], path: str) -> Any:
    """Return the answer about a node, or raise kazoo's error. ``NoAnswer`` if it does not come."""
    ((_, got),) = answers(client, [path], lambda _: ask())
    if isinstance(got, KazooException):
        raise got
    return got


def answers(
    client: KazooClient,
    keys: Iterable[_K],
    ask: Callable[[_K], Any],
    path_of: Callable[[_K], str] = str,
) -> Iterator[tuple[_K, Any]]:
    """Ask about each key, and yield it with its answer, or with kazoo's error.

    Ask again while ZooKeeper is too busy. ``NoAnswer`` if nothing comes for a session timeout.
    """
    timeout = client.handler.session_timeout
    left, since, tries = [*keys], clock(), 0
    while left:
        batch = [(key, ask(key)) for key in left[:_WINDOW]]
        del left[:_WINDOW]
        refused = []
        for key, reply in batch:
            try:
                got = reply.get(timeout=timeout)
            except client.handler.timeout_exception as error:
                raise _no_answer(path_of(key), timeout) from error
            except KazooException as error:
                meaning = MEANINGS.get(getattr(error, "code", 0))
                if meaning is not None and meaning.busy:
                    if clock() - since >= timeout:
                        raise _no_answer(path_of(key), timeout) from error
                    refused.append(key)
                    continue
                got = error
            since, tries = clock(), 0
            yield key, got
        if refused:
            left += refused
            time.sleep(backoff(tries))
            tries += 1


def _no_answer(path: str, timeout: float) -> zklock.NoAnswer:
    return zklock.NoAnswer(
        f"{path}: no answer within {timeout:g} s: check that a quorum is up, and try again"
    )
