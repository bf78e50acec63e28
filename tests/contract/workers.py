"""Workers of one pool, and what they own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeAlias

from tests.contract.fronts import Loop, Threads
from tests.contract.support import SOON
from zklock.testing import wait_for

Front: TypeAlias = Threads | Loop
Join: TypeAlias = Callable[..., Any]


@contextmanager
def joining(front: Front, path: str, connect: Callable[[], Any], **defaults: Any) -> Iterator[Join]:
    """Yield ``join(identity, **options)``: a started worker; all are stopped at the end.

    ``connect()`` returns the client of a worker for which the options have none.
    """
    pools: list[Any] = []

    def start(identity: str, **options: Any) -> Any:
        client = options.pop("client", None) or connect()
        pool = front.pool(client, path, identity=identity, **{**defaults, **options})
        pools.append(pool)
        pool.start()
        return pool

    yield start
    for pool in pools:
        pool.stop()


def shared(pools: Iterable[Any], shards: Iterable[Any]) -> None:
    """Wait until the workers own all shards, each one, in equal parts."""

    def done() -> bool:
        owned = [list(pool.owned()) for pool in pools]
        sizes = [len(each) for each in owned]
        return sorted(chain(*owned)) == sorted(shards) and max(sizes) - min(sizes) <= 1

    wait_for(done, SOON, lambda: f"{[sorted(pool.owned()) for pool in pools]}")


def numbers(text: str) -> set[int]:
    """Return the shards that a text of a pool's nodes lists, such as ``0-3,7``."""
    spans = (span.split("-") for span in text.split(",") if span)
    return {number for span in spans for number in range(int(span[0]), int(span[-1]) + 1)}


def owns(pool: Any, *shards: Any) -> None:
    """Wait until the worker owns these shards, and no others."""
    wait_for(lambda: set(pool.owned()) == set(shards), SOON, lambda: f"{pool.owned()}")
