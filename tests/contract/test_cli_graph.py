"""``zklock graph`` as operators run it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.client import KazooClient

import zklock
from tests.contract.support import queued, run
from tests.contract.test_cli import PATIENCE, Commands


@pytest.fixture
def two(zklock_connect: Callable[..., Any]) -> tuple[KazooClient, KazooClient]:
    """Two clients whose sessions outlive commands that are slow to start."""
    return zklock_connect(timeout=30.0), zklock_connect(timeout=30.0)


def test_a_deadlock_is_found_and_broken(two: tuple[KazooClient, KazooClient], zk: Commands) -> None:
    """Two threads, with the identities that locks have by default."""
    paths = [f"{zk.path}/a", f"{zk.path}/b"]

    def cross(client: KazooClient, first: str, second: str) -> bool:
        try:
            with zklock.Lock(client, first) as grant:
                queued(client, second, 1)
                with zklock.Lock(client, second):
                    grant.verify()
        except zklock.LockLost:
            return False
        return True

    crossing = [run(cross, two[0], *paths), run(cross, two[1], *reversed(paths))]
    for path in paths:
        queued(two[0], path, 2)
    before = two[0].get(zk.path)[1]
    code, text, errors = zk.run("graph", zk.path)
    assert (code, errors) == (2, "")
    assert text.count("DEADLOCK (certain), 4 contenders") == 1
    code, out, _ = zk.run("graph", "--json", zk.path)
    told = json.loads(out)
    assert (code, told["version"], told["path"]) == (2, 1, zk.path)
    (dead,) = told["deadlocks"]
    assert {step["lock"] for step in dead["chain"]} == set(paths)
    assert two[0].get(zk.path)[1] == before, "nothing was changed"

    program, *arguments = dead["command"].split()
    assert program == "zklock"
    assert zk.run(*arguments)[0] == 0
    assert sorted(each.result(PATIENCE) for each in crossing) == [False, True]
    assert zk.run("graph", zk.path)[0] == 0


def test_kazoos_own_locks_may_be_in_a_deadlock(
    two: tuple[KazooClient, KazooClient], zk: Commands
) -> None:
    a, b = f"{zk.path}/a", f"{zk.path}/b"
    held = [two[0].Lock(a, "one"), two[1].Lock(b, "two")]
    for lock in held:
        assert lock.acquire(timeout=PATIENCE)
    waiting = [two[0].Lock(b, "one"), two[1].Lock(a, "two")]
    acquiring = [run(lock.acquire) for lock in waiting]
    for path in (a, b):
        queued(two[0], path, 2)
    code, out, _ = zk.run("graph", zk.path)
    assert code == 1
    assert "DEADLOCK (possible), 4 contenders" in out
    held[0].release()
    assert acquiring[1].result(PATIENCE)
    held[1].release()
    assert acquiring[0].result(PATIENCE)
    for lock in waiting:
        lock.release()
