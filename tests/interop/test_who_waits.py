"""Who waits for whom: every cell of the table in docs/interop.md, with real locks of each kind."""

from __future__ import annotations

import re
from typing import Any

import pytest

import zklock
from tests.contract.support import ROOT, SOON, children, gone
from tests.interop.conftest import Players

pytestmark = [pytest.mark.interop, pytest.mark.hazard("H20")]

PLAYED_BY = {
    "zklock.Lock": ("python", "zklock.Lock"),
    "zklock.ReadLock": ("python", "zklock.ReadLock"),
    "zklock.WriteLock": ("python", "zklock.WriteLock"),
    "InterProcessMutex": ("java", "mutex"),
    "InterProcessMutex+": ("java", "mutex-every-name"),
    "readLock()": ("java", "read"),
    "writeLock()": ("java", "write"),
    "LeaderLatch": ("java", "latch"),
    "kazoo Lock": ("python", "kazoo.Lock"),
    "kazoo Lock+": ("python", "kazoo.Lock+"),
    "kazoo ReadLock": ("python", "kazoo.ReadLock"),
    "kazoo ReadLock+": ("python", "kazoo.ReadLock+"),
    "kazoo WriteLock": ("python", "kazoo.WriteLock"),
    "kazoo WriteLock+": ("python", "kazoo.WriteLock+"),
}
READERS = {name for name, (_, recipe) in PLAYED_BY.items() if "read" in recipe.lower()}
ROW = re.compile(r"^\| (?P<number>[0-9]+) `(?P<name>[^`]+)` \|(?P<cells>[ ●·|]+)\|$", re.MULTILINE)
PAIR = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \| (yes|\*\*no\*\*) \|", re.MULTILINE)
PAGE = (ROOT / "docs" / "interop.md").read_text()


def table() -> dict[str, dict[str, bool]]:
    """Return for each newcomer whether it waits for each holder."""
    rows = {row["name"]: row["cells"].split("|") for row in ROW.finditer(PAGE)}
    return {
        name: {holder: cell.strip() == "●" for holder, cell in zip(rows, cells, strict=True)}
        for name, cells in rows.items()
    }


WAITS = table()


def test_the_table_is_complete() -> None:
    assert list(WAITS) == list(PLAYED_BY)
    assert [row["number"] for row in ROW.finditer(PAGE)] == [str(n + 1) for n in range(len(WAITS))]


@pytest.mark.parametrize("newcomer", PLAYED_BY)
def test_who_comes_to_a_held_lock(
    players: Players, zklock_client: Any, zklock_path: str, newcomer: str
) -> None:
    sort, our_recipe = PLAYED_BY[newcomer]
    (us,) = players(sort, 1)  # not the holder's process: a lock may treat its own thread otherwise
    holders = {sort: players(sort, 1)[0] for sort in ("python", "java")}
    found = {}
    for holder, waits in WAITS[newcomer].items():
        sort, their_recipe = PLAYED_BY[holder]
        answer = holders[sort].ask(f"acquire holder {their_recipe} {zklock_path} 10000")
        assert answer.startswith("granted")
        # A latch finds out in the background; the others, at once.
        patience = 0 if newcomer != "LeaderLatch" else 300 if waits else 10000
        answer = us.ask(f"acquire newcomer {our_recipe} {zklock_path} {patience}")
        found[holder] = answer == "refused"
        if not found[holder]:
            assert us.ask("release newcomer") == "released"
        assert holders[sort].ask("release holder") == "released"
        gone(zklock_client, zklock_path)
    assert found == WAITS[newcomer]


def test_pairs_are_safe_if_each_waits_for_the_other() -> None:
    told = {(one, other): verdict == "yes" for one, other, verdict in PAIR.findall(PAGE)}
    told = {pair: safe for pair, safe in told.items() if "@kazoo" not in pair[0]}
    assert len(told) > 8
    assert told == {
        (one, other): (WAITS[one][other] and WAITS[other][one]) or {one, other} <= READERS
        for one, other in told
    }


AS_KAZOO = [
    (one, other)
    for one, other, verdict in PAIR.findall(PAGE)
    if "@kazoo" in one and verdict == "yes"
]


@pytest.mark.parametrize(("one", "other"), AS_KAZOO)
def test_kazoo_as_it_is_and_names_for_kazoo(
    players: Players, zklock_client: Any, zklock_path: str, one: str, other: str
) -> None:
    held_by, comes = players("python", 2)
    shared = "ReadLock" in one and "ReadLock" in other
    recipes = [one, other.replace(" ", ".")]
    for holder, newcomer in (recipes, recipes[::-1]):
        assert held_by.ask(f"acquire a {holder} {zklock_path} 10000").startswith("granted")
        answer = comes.ask(f"acquire b {newcomer} {zklock_path} 0")
        assert answer.startswith("granted") if shared else answer == "refused"
        if shared:
            assert comes.ask("release b") == "released"
        assert held_by.ask("release a") == "released"
        gone(zklock_client, zklock_path)
    assert len(AS_KAZOO) == 4


@pytest.mark.parametrize("holder", [("java", "mutex"), ("python", "zklock.Lock")])
def test_a_mix_that_is_seen_is_refused(
    players: Players, zklock_client: Any, zklock_path: str, holder: tuple[str, str]
) -> None:
    sort, recipe = holder
    (player,) = players(sort, 1)
    node = player.ask(f"acquire a {recipe} {zklock_path} 10000").split()[1]
    lock = zklock.Lock(zklock_client, zklock_path, naming="kazoo", timeout=SOON)
    with pytest.raises(zklock.MixedNames, match=node.rpartition("/")[2]):
        lock.acquire()
    assert children(zklock_client, zklock_path) == [node.rpartition("/")[2]]
    assert player.ask("release a") == "released"
    with lock as grant:  # nobody refuses, so nobody can know
        assert player.ask(f"acquire a {recipe} {zklock_path} 0").startswith("granted") == (
            sort == "java"
        )
        assert grant.held
    if sort == "java":
        assert player.ask("release a") == "released"
    gone(zklock_client, zklock_path)
