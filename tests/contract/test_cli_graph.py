"""``zklock graph`` as operators run it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

import zklock
from tests.contract.support import queued, run
from tests.contract.test_cli import PATIENCE, Commands
from zklock.testing import wait_for


@pytest.fixture
def two(zklock_connect: Callable[..., Any]) -> tuple[KazooClient, KazooClient]:
    """Two clients whose sessions outlive commands that are slow to start."""
    return zklock_connect(timeout=30.0), zklock_connect(timeout=30.0)


def test_a_deadlock_is_found_and_broken(
    two: tuple[KazooClient, KazooClient], zk: Commands, zklock_path: str
) -> None:
    """Two threads, with the identities that locks have by default."""
    paths = [f"{zklock_path}/a", f"{zklock_path}/b"]

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
    before = two[0].get(zklock_path)[1]
    code, text, errors = zk.run("graph", zklock_path)
    assert (code, errors) == (2, "")
    assert text.count("DEADLOCK (certain), 4 contenders") == 1
    code, out, _ = zk.run("graph", "--json", zklock_path)
    told = json.loads(out)
    assert (code, told["version"], told["path"]) == (2, 1, zklock_path)
    (dead,) = told["deadlocks"]
    assert {step["lock"] for step in dead["chain"]} == set(paths)
    assert two[0].get(zklock_path)[1] == before, "nothing was changed"

    program, *arguments = dead["command"].split()
    assert program == "zklock"
    assert zk.run(*arguments)[0] == 0
    assert sorted(each.result(PATIENCE) for each in crossing) == [False, True]
    assert zk.run("graph", zklock_path) == (
        0,
        f"nobody waits for a lock at or below {zklock_path}\n",
        "",
    )


def test_kazoos_own_locks_may_be_in_a_deadlock(
    two: tuple[KazooClient, KazooClient], zk: Commands, zklock_path: str
) -> None:
    a, b = f"{zklock_path}/a", f"{zklock_path}/b"
    held = [two[0].Lock(a, "one"), two[1].Lock(b, "two")]
    for lock in held:
        assert lock.acquire(timeout=PATIENCE)
    waiting = [two[0].Lock(b, "one"), two[1].Lock(a, "two")]
    acquiring = [run(lock.acquire) for lock in waiting]
    for path in (a, b):
        queued(two[0], path, 2)
    code, out, _ = zk.run("graph", zklock_path)
    assert code == 1
    assert "DEADLOCK (possible), 4 contenders" in out
    held[0].release()
    assert acquiring[1].result(PATIENCE)
    held[1].release()
    assert acquiring[0].result(PATIENCE)
    for lock in waiting:
        lock.release()


def test_permits_and_pools_are_looked_at(
    two: tuple[KazooClient, KazooClient], zk: Commands, zklock_path: str
) -> None:
    semaphore = zklock.Semaphore(two[0], f"{zklock_path}/permits", limit=1, identity="one")
    grant = semaphore.acquire()
    assert grant is not None
    with zklock.WorkerPool(two[1], f"{zklock_path}/pool", shards=2, identity="w1") as pool:
        wait_for(lambda: [one.owned for one in pool.members()] == [2], PATIENCE)
        waiting = run(semaphore.acquire)
        queued(two[0], f"{zklock_path}/permits/locks", 1)
        code, out, _ = zk.run("graph", "--json", zklock_path)
        told = json.loads(out)
        grant.release()
        granted = waiting.result(PATIENCE)
    assert granted is not None
    granted.release()
    assert code == 0
    (wait,) = told["waits"]
    assert (wait["lock"], wait["behind"], wait["until_gone"]) == (
        f"{zklock_path}/permits",
        [grant.path],
        1,
    )
    locks = {one["lock"] for one in told["contenders"]}
    inside = ("permits", "pool/leader", "pool/shards/0", "pool/shards/1")
    assert locks == {f"{zklock_path}/{each}" for each in inside}


def test_what_is_not_there_or_hidden_is_said(
    two: tuple[KazooClient, KazooClient], zk: Commands, zklock_path: str
) -> None:
    assert zk.run("graph", zklock_path) == (66, "", f"zklock graph: {zklock_path} does not exist\n")
    owner, closed = two[0], f"{zklock_path}/closed"
    owner.add_auth("digest", "owner:secret")
    owner.ensure_path(zklock_path)
    owner.create(closed, acl=[make_digest_acl("owner", "secret", all=True)])
    try:
        code, out, errors = zk.run("graph", zklock_path)
        assert (code, errors) == (0, f"zklock graph: ACLs forbid reading {closed}\n")
        assert out == f"nobody waits for a lock at or below {zklock_path}\n"
    finally:
        owner.delete(closed)


@pytest.mark.parametrize(
    ("encoding", "drawn"), [("utf-8", "└─ host-8  waits"), ("ascii", "`- host-8  waits")]
)
def test_lines_that_the_output_can_show(
    encoding: str,
    drawn: str,
    two: tuple[KazooClient, KazooClient],
    zk: Commands,
    zklock_path: str,
) -> None:
    zk.environ["PYTHONIOENCODING"] = encoding
    lock = zklock.Lock(two[0], zklock_path, identity="host-7")
    second = zklock.Lock(two[1], zklock_path, identity="host-8")
    grant = lock.acquire()
    assert grant is not None
    waiting = run(second.acquire)
    queued(two[0], zklock_path, 2)
    code, out, _ = zk.run("graph", zklock_path)
    grant.release()
    granted = waiting.result(PATIENCE)
    assert granted is not None
    granted.release()
    assert code == 0
    assert drawn in out
