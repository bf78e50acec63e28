"""Workers of one pool that share a client, for tests in which their sessions are not the matter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from tests.contract.fronts import Loop, Threads
from tests.contract.support import SOON
from zklock.testing import wait_for

Front: TypeAlias = Threads | Loop
Join: TypeAlias = Callable[..., Any]


@contextmanager
def joining(front: Front, client: Any, path: str, shards: Any) -> Iterator[Join]:
    """Yield ``join(identity, **options)``: a started worker; all are stopped at the end."""
    pools: list[Any] = []

    def start(identity: str, **options: Any) -> Any:
        settings = {"shards": shards, "settle": 0.0, **options}
        pool = front.pool(client, path, identity=identity, **settings)
        pool.start()
        pools.append(pool)
        return pool

    yield start
    for pool in pools:
        pool.stop()


def numbers(text: str) -> set[int]:
    """Return the shards that a text of a pool's nodes lists, such as ``0-3,7``."""
    spans = (span.split("-") for span in text.split(",") if span)
    return {number for span in spans for number in range(int(span[0]), int(span[-1]) + 1)}


def owns(pool: Any, *shards: Any) -> None:
    """Wait until the worker owns these shards, and no others."""
    wait_for(lambda: set(pool.owned()) == set(shards), SOON, lambda: f"{pool.owned()}")
