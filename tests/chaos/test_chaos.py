"""The nemesis for ``ZKLOCK_CHAOS_SECONDS`` (30), with ``ZKLOCK_CHAOS_SEED`` or a new seed."""

from __future__ import annotations

import os
import secrets
import sys
from collections import Counter
from pathlib import Path

import pytest

import zklock
from tests.backends import backend_to_cut
from tests.chaos import stores
from tests.chaos.__main__ import text
from tests.chaos.history import History, load
from tests.chaos.plan import Settings
from tests.chaos.run import run
from tests.chaos.server_log import decide
from tests.chaos.witness import witness
from tests.chaos.workers import POOL
from zklock._pool.nodes import PoolPaths
from zklock.testing import wait_for

SECONDS = float(os.environ.get("ZKLOCK_CHAOS_SECONDS") or 30)
AFTERWARDS = 240
TRIES = 2
"""Where the servers have lost what they had confirmed, as 3.8.0 may, nothing is decided."""


@pytest.mark.cluster
@pytest.mark.slow("minutes of chaos")
@pytest.mark.timeout(TRIES * (SECONDS + AFTERWARDS))
def test_nothing_is_lost_and_nobody_holds_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = backend_to_cut().name
    for number in range(TRIES):
        seed = os.environ.get("ZKLOCK_CHAOS_SEED") or secrets.token_hex(4)
        folder = tmp_path / str(number)
        with capsys.disabled():
            print(f"\nchaos seed {seed}, {SECONDS:g} s, histories in {folder}", file=sys.stderr)
        settings = Settings(
            seed=seed, seconds=SECONDS, backend=backend, actors=4, locks=8, elections=2
        )
        decision = run(settings, folder)
        with capsys.disabled():
            print(text(decision), file=sys.stderr)
        if not decision.forgotten:
            break
    assert not decision.forgotten, "the servers lost what they had confirmed, each time"
    verdict = decision.verdict
    assert decision.violations == []
    assert verdict.grants > SECONDS
    assert verdict.faults.total() > SECONDS / 10
    granted = Counter(
        event["lock"].rpartition("/")[0] for event in load(folder) if event.kind == "grant"
    )
    assert set(granted) == {
        f"{stores.ROOT}/locks",
        stores.ELECTIONS,
        PoolPaths(POOL).shards,
    }
    for store in (stores.SqliteStore, stores.ZooKeeperStore, stores.GuardedStore):
        assert verdict.writes[f"{store.name} accepted"]


@pytest.mark.parametrize("lost", ["the last writes", "the creation"])
def test_a_witness_finds_that_servers_forgot(
    lost: str, zklock_hosts: str, zklock_path: str, tmp_path: Path
) -> None:
    path = f"{zklock_path}/witness"
    with (
        zklock.connect(zklock_hosts) as operator,
        History(tmp_path, "witness") as history,
        witness(zklock_hosts, path, history),
    ):
        wait_for(lambda: operator.get(path)[1].version > 5, 10.0, "some writes")
        assert load(tmp_path) == []
        forgetting = operator.transaction()
        forgetting.delete(path)
        if lost == "the last writes":
            forgetting.create(path)
        forgetting.commit()
        wait_for(lambda: load(tmp_path), 10.0, "the witness notices")
    (noted,) = load(tmp_path)
    assert noted.kind == "forgotten"
    assert noted["given"] < 5 <= noted["confirmed"]
    assert decide([noted]).forgotten == 1
