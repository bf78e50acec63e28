"""Readers and writers, and leases, of several libraries on one path: cases that are no race."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.contract.support import SOON, children, gone, queued
from tests.interop.conftest import Players

pytestmark = [pytest.mark.interop, pytest.mark.hazard("H20")]

MILLIS = int(SOON * 1000)
READERS = {
    "zklock": ("python", "zklock.ReadLock"),
    "Curator": ("java", "read"),
    "kazoo": ("python", "kazoo.ReadLock+"),
}
WRITERS = {
    "zklock": ("python", "zklock.WriteLock"),
    "Curator": ("java", "write"),
    "kazoo": ("python", "kazoo.WriteLock+"),
}
SAFE = [
    (holder, writer, newcomer)
    for holder in READERS
    for writer in WRITERS
    for newcomer in READERS
    if "zklock" in (holder, writer, newcomer) and {"kazoo", "Curator"} - {holder, writer, newcomer}
]
"""Readers that hold, writers that wait, readers that come: Curator does not see kazoo's."""


@pytest.mark.parametrize(("holder", "writer", "newcomer"), SAFE)
def test_readers_queue_behind_a_writer_that_waits(
    players: Players, zklock_client: Any, zklock_path: str, holder: str, writer: str, newcomer: str
) -> None:
    sort, recipe = READERS[holder]
    (first,) = players(sort, 1)
    assert first.ask(f"acquire it {recipe} {zklock_path} {MILLIS}").startswith("granted")
    sort, recipe = WRITERS[writer]
    (waiter,) = players(sort, 1)
    waiter.tell(f"acquire it {recipe} {zklock_path} {MILLIS}")
    queued(zklock_client, zklock_path, 2)
    sort, recipe = READERS[newcomer]
    (last,) = players(sort, 1)
    assert last.ask(f"acquire it {recipe} {zklock_path} 0") == "refused"
    assert first.ask("release it") == "released"
    assert waiter.hears().startswith("granted")
    assert waiter.ask("release it") == "released"
    assert last.ask(f"acquire it {recipe} {zklock_path} {MILLIS}").startswith("granted")
    assert last.ask("release it") == "released"
    gone(zklock_client, zklock_path)


def test_leases_of_both_are_counted(players: Players, zklock_client: Any, zklock_path: str) -> None:
    (python,), (java,) = players("python", 1), players("java", 1)
    ours, theirs = f"zklock.Semaphore=3 {zklock_path}", f"semaphore=3 {zklock_path}"
    assert python.ask(f"acquire a {ours} {MILLIS}").startswith("granted")
    assert java.ask(f"acquire b {theirs} {MILLIS}").startswith("granted")
    assert python.ask(f"acquire c {ours} {MILLIS}").startswith("granted")
    assert sorted(children(zklock_client, zklock_path)) == ["leases", "locks"]
    for release, name in ((java, "b"), (python, "a")):
        assert python.ask(f"acquire d {ours} 0") == "refused"
        assert java.ask(f"acquire d {theirs} 0") == "refused"
        gone(zklock_client, f"{zklock_path}/locks")
        assert release.ask(f"release {name}") == "released"
        free, taken = (python, ours) if release is java else (java, theirs)
        assert free.ask(f"acquire {name} {taken} {MILLIS}").startswith("granted")
    assert python.ask("release c") == "released"
    assert python.ask("release b") == "released"
    assert java.ask("release a") == "released"
    gone(zklock_client, f"{zklock_path}/leases")


def test_leases_of_kazoo_are_not(
    players: Players, zklock_path: str, zklock_client: KazooClient
) -> None:
    (player,) = players("python", 1)
    for name in "abc":
        answer = player.ask(f"acquire {name} zklock.Semaphore=3 {zklock_path} {MILLIS}")
        assert answer.startswith("granted")
    assert player.ask(f"acquire d kazoo.Semaphore=3 {zklock_path} 0").startswith("granted")
    for name in "abcd":
        assert player.ask(f"release {name}") == "released"
    zklock_client.delete(f"{zklock_path}-__lock__", recursive=True)  # the lock beside it is kazoo's
