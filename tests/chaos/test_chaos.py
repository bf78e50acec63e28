"""The nemesis for ``ZKLOCK_CHAOS_SECONDS`` (30), with ``ZKLOCK_CHAOS_SEED`` or a new seed."""

from __future__ import annotations

import os
import secrets
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.backends import backend_or_skip, backend_to_cut
from tests.chaos import pool_run, stores
from tests.chaos.__main__ import text
from tests.chaos.run import Settings, run
from zklock._pool.nodes import PoolPaths
from zklock.testing.history import load

SECONDS = float(os.environ.get("ZKLOCK_CHAOS_SECONDS") or 30)
POOL_SECONDS = min(SECONDS, 40.0)
AFTERWARDS = 240


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(SECONDS + AFTERWARDS)
def test_nothing_is_lost_and_nobody_holds_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = backend_to_cut().name
    seed = os.environ.get("ZKLOCK_CHAOS_SEED") or secrets.token_hex(4)
    with capsys.disabled():
        print(f"\nchaos seed {seed}, {SECONDS:g} s, histories in {tmp_path}", file=sys.stderr)
    settings = Settings(seed=seed, seconds=SECONDS, backend=backend, actors=4, locks=8, elections=2)
    decision = run(settings, tmp_path)
    verdict = decision.verdict
    with capsys.disabled():
        print(text(decision), file=sys.stderr)
    assert decision.violations == []
    assert verdict.grants > SECONDS
    assert verdict.faults.total() > SECONDS / 10
    granted = Counter(
        event["lock"].rpartition("/")[0] for event in load(tmp_path) if event.kind == "grant"
    )
    assert set(granted) == {
        f"{stores.ROOT}/locks",
        stores.ELECTIONS,
        PoolPaths(pool_run.PATH).shards,
    }
    for store in (stores.SqliteStore, stores.ZooKeeperStore, stores.GuardedStore):
        assert verdict.writes[f"{store.name} accepted"]


@pytest.mark.slow
@pytest.mark.timeout(POOL_SECONDS + AFTERWARDS)
def test_no_shard_of_a_pool_has_two_owners(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backend_or_skip("java")
    seed = int(os.environ.get("ZKLOCK_CHAOS_SEED") or secrets.token_hex(4), 16)
    with capsys.disabled():
        print(
            f"\nchaos seed {seed:x}, {POOL_SECONDS:g} s, histories in {tmp_path}", file=sys.stderr
        )
    decision = pool_run.play(tmp_path, POOL_SECONDS, seed)
    verdict = decision.verdict
    assert decision.violations == []
    assert decision.agreement.nodes >= verdict.grants
    assert verdict.grants > pool_run.SHARDS
    assert set(verdict.ends) >= {"RELEASED"}
