"""Large snapshots: a server writes one, and a new follower gets one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

import zklock
from tests.backends import backend_or_skip
from tests.contract.support import SOON, Losses, granted
from zklock.testing import Ensemble, wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow("many megabytes are written"),
    pytest.mark.thorough("many megabytes are written"),
]

NODES, SIZE, AT_ONCE = 10_000, 4000, 200
SNAP_COUNT = "4000"


def test_a_large_snapshot_costs_no_lock(zklock_connect: Callable[..., Any]) -> None:
    with Ensemble(
        3, backend=backend_or_skip("java"), system_properties={"zookeeper.snapCount": SNAP_COUNT}
    ) as ensemble:
        writer, holder = (zklock_connect(ensemble.hosts, timeout=12.0) for _ in range(2))
        losses = Losses()
        grant = granted(zklock.Lock(holder, "/lock", on_lost=losses))
        writer.create("/data")
        for first in range(0, NODES, AT_ONCE):
            under_way = [
                writer.create_async(f"/data/{number}", bytes(SIZE))
                for number in range(first, first + AT_ONCE)
            ]
            for answer in under_way:
                answer.get(timeout=SOON)
        leader = ensemble.leader()
        assert leader.data_dir is not None
        snapshots = leader.data_dir / "version-2"

        def written() -> bool:
            writer.set("/data", b"")
            return any(
                each.stat().st_size > NODES * SIZE / 4 for each in snapshots.glob("snapshot.*")
            )

        wait_for(written, SOON, "a large snapshot")
        follower = ensemble.followers()[0]
        assert follower.data_dir is not None
        follower.kill()
        shutil.rmtree(follower.data_dir / "version-2")
        follower.start()
        ensemble.wait_until_serving()
        grant.verify(SOON)
        assert grant.held
        assert not losses.losses
        grant.release()
