"""Processes of zklock, Curator and kazoo contend for one path: hundreds of holds, all in order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.contract.support import gone
from tests.interop.conftest import Players
from tests.interop.ledger import STILL, Hold, most_at_once, violations, written
from tests.modes import repeated
from tests.players import Player

pytestmark = [pytest.mark.interop, pytest.mark.hazard("H20")]

HOLDS = repeated(1000, 100)
TERMS = 40

Cast = list[tuple[str, str]]
"""For each process, the sort of player and the recipes that it holds in turn."""

OURS = ("python", "zklock.Lock")
KAZOO = ("python", "kazoo.Lock+")

EXCLUSIVE: dict[str, Cast] = {
    "Curator": [OURS, OURS, ("java", "mutex"), ("java", "mutex")],
    "kazoo": [OURS, OURS, KAZOO, KAZOO],
    "kazoo as it is": [*[("python", "zklock.Lock@kazoo")] * 2, *[("python", "kazoo.Lock")] * 2],
    "Curator and kazoo": [OURS, KAZOO, ("java", "mutex-every-name"), ("java", "mutex-every-name")],
}
OUR_SHARED = ("python", "zklock.ReadLock,zklock.ReadLock,zklock.WriteLock")
OUR_SHARED_AS_KAZOO = (
    "python",
    "zklock.ReadLock@kazoo,zklock.ReadLock@kazoo,zklock.WriteLock@kazoo",
)
KAZOO_SHARED_AS_IT_IS = ("python", "kazoo.ReadLock,kazoo.ReadLock,kazoo.WriteLock")
KAZOO_SHARED = ("python", "kazoo.ReadLock+,kazoo.ReadLock+,kazoo.WriteLock+")
CURATOR_SHARED = ("java", "read,read,write")

SHARED: dict[str, Cast] = {
    "Curator": [OUR_SHARED, OUR_SHARED, CURATOR_SHARED, CURATOR_SHARED],
    "kazoo": [OUR_SHARED, OUR_SHARED, KAZOO_SHARED, KAZOO_SHARED],
    "kazoo as it is": [*[OUR_SHARED_AS_KAZOO] * 2, *[KAZOO_SHARED_AS_IT_IS] * 2],
}
LEASES: Cast = [*[("python", "zklock.Semaphore=3")] * 3, *[("java", "semaphore=3")] * 2]


def held(folder: Path) -> list[Hold]:
    """Return all holds, in the order of the ledger."""
    return [Hold.parse(line) for line in (folder / "ledger").read_text().splitlines()]


def play(
    players: Players,
    cast: Cast,
    path: str,
    folder: Path,
    *,
    micros: int = 0,
    total: int = HOLDS,
    hosts: str | None = None,
) -> list[Hold]:
    """Have everybody contend at the same time; return all holds, in the order of the ledger."""
    (folder / "presence").mkdir()  # where 1.1.0 shows who holds
    each = total // len(cast)
    hired = {sort: players(sort, [s for s, _ in cast].count(sort), hosts) for sort in dict(cast)}
    free = {sort: list(those) for sort, those in hired.items()}
    playing = [(free[sort].pop(), recipes) for sort, recipes in cast]
    for player, recipes in playing:
        player.tell(f"contend {recipes} {path} {folder} {each} {micros}")
    for player, _ in playing:
        assert player.hears(STILL, written(folder)).split()[:2] == ["done", str(each)]
    holds = held(folder)
    assert len(holds) == total
    assert len({hold.who for hold in holds}) == len(cast)
    return holds


Contend = Callable[..., list[Hold]]


@pytest.fixture
def contend(
    players: Players,
    zklock_client: Any,
    zklock_path: str,
    tmp_path: Path,
) -> Contend:
    """Return ``contend(cast, micros=0)``: all holds, of which many follow one of another process.

    They are in the order of one queue, and nothing is left of it.
    """

    def run(cast: Cast, micros: int = 0, below: tuple[str, ...] = ("",)) -> list[Hold]:
        for folder in below:  # Curator would make a container, which comes and goes
            zklock_client.ensure_path(zklock_path + folder)
        holds = play(players, cast, zklock_path, tmp_path, micros=micros)
        changes_hands(holds)
        assert violations([hold for hold in holds if hold.kind != "lease"]) == []
        assert most_at_once(hold for hold in holds if hold.kind in ("exclusive", "write")) <= 1
        for folder in below:
            gone(zklock_client, zklock_path + folder)
        return holds

    return run


def changes_hands(holds: list[Hold]) -> None:
    """Look whether the next holder is often another process: else nothing is shown."""
    turns = sum(a.who != b.who for a, b in pairwise(sorted(holds, key=lambda each: each.entered)))
    assert turns > HOLDS / 10


@pytest.mark.parametrize("cast", EXCLUSIVE.values(), ids=EXCLUSIVE)
def test_one_at_a_time_in_the_order_of_the_numbers(contend: Contend, cast: Cast) -> None:
    holds = contend(cast)
    assert [hold.sequence for hold in holds] == sorted({hold.sequence for hold in holds})
    assert most_at_once(holds) == 1


@pytest.mark.parametrize("cast", SHARED.values(), ids=SHARED)
def test_readers_share_and_writers_do_not(contend: Contend, cast: Cast) -> None:
    holds = contend(cast, 500)
    assert most_at_once(hold for hold in holds if hold.kind == "read") > 1
    assert most_at_once(hold for hold in holds if hold.kind == "write") == 1


def test_programs_move_from_kazoo_one_by_one(
    players: Players,
    zklock_client: Any,
    zklock_path: str,
    tmp_path: Path,
) -> None:
    """Four processes with kazoo's lock, unchanged, become zklock's while all contend."""
    zklock_client.ensure_path(zklock_path)
    four, each = players("python", 4), HOLDS // 4
    before = [each * (number + 1) // 5 for number in range(4)]
    for player, count in zip(four, before, strict=True):
        player.tell(f"contend kazoo.Lock {zklock_path} {tmp_path} {count} 0")
        player.tell(f"contend zklock.Lock@kazoo {zklock_path} {tmp_path} {each - count} 0")
    for player in four:
        for _ in range(2):
            assert player.hears(STILL, written(tmp_path)).startswith("done ")
    holds = held(tmp_path)
    assert len(holds) == HOLDS
    changes_hands(holds)
    assert violations(holds) == []
    assert most_at_once(holds) == 1
    gone(zklock_client, zklock_path)


def test_no_more_leases_than_the_limit(contend: Contend) -> None:
    holds = contend(LEASES, 5000, ("/locks", "/leases"))
    # On a busy machine a hold may be over before the next one begins. That three are held at once
    # is shown by test_sharing.py, where each waits for the others.
    assert 1 < most_at_once(holds) <= 3
    assert len({hold.sequence for hold in holds}) == HOLDS


EARLIER = pytest.mark.thorough("an earlier release: it changes when this one is made")


@EARLIER
@pytest.mark.parametrize(
    ("recipes", "most", "micros", "below"),
    [
        ("zklock.Lock", 1, 0, ("",)),
        (OUR_SHARED[1], 4, 500, ("",)),
        ("zklock.Semaphore=3", 3, 5000, ("/locks", "/leases")),
    ],
    ids=["Lock", "ReadLock and WriteLock", "Semaphore"],
)
def test_the_earlier_release_holds_in_the_order_of_one_queue(
    contend: Contend, recipes: str, most: int, micros: int, below: tuple[str, ...]
) -> None:
    cast = [(sort, recipes) for sort in ("python", "earlier python") * 2]
    holds = contend(cast, micros, below)
    assert most_at_once(holds) <= most
    assert most != 3 or len({hold.sequence for hold in holds}) == HOLDS


def elect(players: list[Player], stand: Callable[[int], str], path: str, folder: Path) -> None:
    """Have all stand for election at once; many terms are handed over."""
    (folder / "presence").mkdir()
    for at, player in enumerate(players):
        player.tell(f"contend {stand(at)} {path} {folder} {TERMS} 2000")
    transfers = 0
    for player in players:
        done, count, *handed_over = player.hears(STILL, written(folder)).split()
        assert (done, int(count)) == ("done", TERMS)
        transfers += sum(map(int, handed_over))
    holds = held(folder)
    assert len(holds) == len(players) * TERMS
    assert len({hold.who for hold in holds}) == len(players)
    assert violations(holds) == []
    assert [hold.sequence for hold in holds] == sorted({hold.sequence for hold in holds})
    assert most_at_once(holds) == 1
    assert transfers > TERMS / 4
