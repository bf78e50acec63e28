"""ZooKeeper writes nothing for contenders that wait, and they are granted in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import zklock
from tests.contract.support import SOON, delete, now_of, passes_on, queued, run
from zklock.testing import wait_for

TIMEOUT = 4.0
WINDOW = 0.3 * TIMEOUT  # each of the clients would write two times or more


def written(client: Any, other: Any, stone: str, seconds: float) -> int:
    """Return how many transactions there were in so long a while, on the clock of a client."""
    first = other.set(stone, b"")
    until = now_of(client) + seconds
    wait_for(lambda: now_of(client) >= until, SOON)
    last = other.set(stone, b"")
    return int(last.mzxid - first.mzxid - 1)


def test_waiters_write_nothing(
    zklock_connect: Callable[..., Any], other: Any, zklock_path: str
) -> None:
    path, elsewhere = f"{zklock_path}/lock", f"{zklock_path}/elsewhere"
    other.ensure_path(path)
    other.ensure_path(elsewhere)
    prefix = f"{path}/_c_{uuid4()}-lock-"
    before = other.create(prefix, ephemeral=True, sequence=True)
    waiting = []
    for _ in range(3):
        client = zklock_connect(timeout=TIMEOUT)
        lock = zklock.Lock(client, path)
        waiting.append(run(lock.acquire))
        queued(other, path, 1 + len(waiting))

    def writes() -> int:
        return written(client, other, elsewhere, WINDOW)

    wait_for(lambda: writes() == 0, SOON, "a while without a write")
    delete(other, before)
    for grant in waiting:
        held = grant.result(SOON)
        assert held is not None
        assert held.held
        assert writes() >= 2  # its holder proves its lease again
        assert held.held
        held.release()
    passes_on(other, path)


def test_holders_write_ten_times_in_a_session_timeout(
    zklock_connect: Callable[..., Any], other: Any, zklock_path: str
) -> None:
    """Where answers are prompt: on a busy machine, that may take a while."""
    elsewhere = f"{zklock_path}/elsewhere"
    other.ensure_path(elsewhere)
    client = zklock_connect(timeout=TIMEOUT)
    with zklock.Lock(client, f"{zklock_path}/lock") as grant:
        seen: list[int] = []

        def enough() -> bool:
            seen.append(written(client, other, elsewhere, TIMEOUT))
            return 8 <= seen[-1] <= 11

        wait_for(enough, 3 * SOON, lambda: f"writes in a session timeout: {seen}")
        grant.check()
