"""What Curator does that others do not, and what zklock makes of it."""

from __future__ import annotations

import re
from typing import Any

import pytest

import zklock
from tests.contract.support import SOON, children, granted, queued, run
from tests.interop.conftest import Players
from tests.interop.curator import Curator

pytestmark = [pytest.mark.interop, pytest.mark.hazard("H20")]


def release(curator: Curator) -> tuple[int, ...]:
    return tuple(map(int, curator.version.split(".")))


@pytest.mark.parametrize("waiter", ["Lock", "WriteLock"])
def test_a_writer_that_becomes_a_reader_is_waited_for(
    curator: Curator,
    players: Players,
    zklock_client: Any,
    other: Any,
    zklock_path: str,
    waiter: str,
) -> None:
    (player,) = players("java", 1)
    assert player.ask(f"acquire it write {zklock_path} 20000").startswith("granted")
    waiting = run(granted, getattr(zklock, waiter)(zklock_client, zklock_path))
    queued(other, zklock_path, 2)
    node = player.ask("downgrade it").removeprefix("granted ")
    if release(curator) < (5, 5):
        # The reader's number is a new one, behind the waiter: CURATOR-621.
        assert node.endswith("0000000002")
        waiting.result(SOON).release()
    else:
        # The reader's number is the writer's, before the waiter although it came later.
        assert node.endswith("0000000000")
        with pytest.raises(TimeoutError):
            waiting.result(0.5)
        assert player.ask("release it") == "released"
        waiting.result(SOON).release()


def test_a_writer_that_becomes_a_reader_lets_readers_in(
    players: Players, zklock_client: Any, other: Any, zklock_path: str
) -> None:
    (player,) = players("java", 1)
    assert player.ask(f"acquire it write {zklock_path} 20000").startswith("granted")
    waiting = run(granted, zklock.ReadLock(zklock_client, zklock_path))
    queued(other, zklock_path, 2)
    assert player.ask("downgrade it").startswith("granted")
    waiting.result(SOON).release()
    assert player.ask("release it") == "released"


def test_the_tokens_grow_across_a_path_that_was_removed(
    players: Players, zklock_client: Any, zklock_path: str
) -> None:
    """Curator makes the path as a container, which the server removes when it stays empty."""
    (player,) = players("java", 1)
    lock = zklock.Lock(zklock_client, zklock_path)
    tokens: list[zklock.FencingToken] = []
    for _ in range(2):
        assert player.ask(f"acquire it mutex {zklock_path} 20000").startswith("granted")
        holder = lock.holder()
        assert holder is not None
        tokens.append(zklock.FencingToken.parse(player.ask("token it")))
        assert tokens[-1] == holder.token
        assert player.ask("release it") == "released"
        with lock as grant:
            tokens.append(grant.token)
        assert children(zklock_client, zklock_path) == []
        zklock_client.delete(zklock_path)
    assert tokens == sorted(set(tokens))
    assert [token.sequence for token in tokens] == [0, 1, 0, 1]


def test_a_holder_is_shown_with_its_address(
    players: Players, zklock_client: Any, zklock_path: str
) -> None:
    (player,) = players("java", 1)
    node = player.ask(f"acquire it mutex {zklock_path} 20000").removeprefix("granted ")
    (holder,) = zklock.Lock(zklock_client, zklock_path).contenders()
    assert holder.path == node
    assert re.fullmatch(r"[0-9]+(\.[0-9]+){3}", holder.identity)
    assert player.ask("release it") == "released"
