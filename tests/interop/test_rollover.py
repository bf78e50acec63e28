"""Curator beside zklock, and alone, on paths whose sequence numbers are about to run out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.contract.support import EXHAUSTED_AT, RENEW_AT, kazoo_client
from tests.interop.conftest import Players
from tests.interop.ledger import most_at_once
from tests.interop.test_contention import EXCLUSIVE, play
from tests.modes import repeated
from zklock.testing import Capability, ZooKeeperServer

pytestmark = [pytest.mark.interop, pytest.mark.hazard("H2")]

LAST = 2**31 - 1
TRIES = 60
HOLDS = repeated(400, 80)
COUNTERS = {"/renewed": RENEW_AT, "/exhausted": EXHAUSTED_AT - HOLDS // 4, "/worn": LAST}


@pytest.fixture(scope="module")
def worn_server() -> Iterator[ZooKeeperServer]:
    """A server on which the next child of these paths gets these numbers."""
    with ZooKeeperServer() as server:
        if Capability.DATA not in server.capabilities:
            pytest.skip("these servers do not show their data")
        with kazoo_client(server.hosts) as client:
            for path in COUNTERS:
                client.create(path)
        server.stop()
        for path, value in COUNTERS.items():
            server.set_child_counter(path, value)
        server.start()
        yield server


def test_curator_comes_along_when_the_path_is_replaced(
    worn_server: ZooKeeperServer, players: Players
) -> None:
    (ours,) = players("python", 1, worn_server.hosts)
    (theirs,) = players("java", 1, worn_server.hosts)
    numbers = []
    for _ in range(2):
        for player, recipe in ((theirs, "mutex"), (ours, "zklock.Lock")):
            numbers.append(int(player.ask(f"acquire it {recipe} /renewed 20000")[-10:]))
            assert player.ask("release it") == "released"
    assert numbers == [RENEW_AT, RENEW_AT + 1, 0, 1]


def test_one_at_a_time_across_the_end(
    worn_server: ZooKeeperServer, players: Players, tmp_path: Path
) -> None:
    cast = EXCLUSIVE["Curator"]
    holds = play(players, cast, "/exhausted", tmp_path, total=HOLDS, hosts=worn_server.hosts)
    assert most_at_once(holds) == 1
    assert [hold.entered for hold in holds] == sorted(hold.entered for hold in holds)
    starts = [b.sequence for a, b in pairwise(holds) if b.sequence <= a.sequence]
    assert starts == [0]  # in order, but for the beginning of the new epoch
    ours = [hold.sequence for hold in holds if hold.who.startswith("python")]
    assert max(ours) < EXHAUSTED_AT


def test_curator_alone_has_two_holders_in_the_end(
    worn_server: ZooKeeperServer, players: Players
) -> None:
    """All get the last number; who is first among those depends on the rest of the name."""
    one, two = players("java", 2, worn_server.hosts)
    for _ in range(TRIES):
        assert one.ask("acquire it mutex /worn 20000").endswith(str(LAST))
        entered = two.ask("acquire it mutex /worn 0") != "refused"
        assert one.ask("release it") == "released"
        if entered:
            assert two.ask("release it") == "released"
            return
    pytest.fail("they took turns")
