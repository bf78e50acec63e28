"""Processes of the release before this one share locks and elections with those of this one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import zklock
from tests.contract.support import gone, queued
from tests.interop.conftest import Players
from tests.interop.test_contention import EARLIER, elect

pytestmark = [pytest.mark.interop, EARLIER]


def test_the_earlier_release_is_another(earlier: Path) -> None:
    command = [sys.executable, "-c", "import zklock, tests; print(zklock.__file__, tests.__path__)"]
    said = subprocess.run(command, cwd=earlier, check=True, stdout=subprocess.PIPE, text=True)
    assert said.stdout.count(str(earlier)) == 2
    assert str(Path(zklock.__file__).parents[1]) not in said.stdout


def test_one_leads_at_a_time_in_the_order_of_the_queue(
    players: Players, zklock_client: Any, zklock_path: str, tmp_path: Path
) -> None:
    """Each hands over to one of the other release."""
    electors = [*players("elector", 2), *players("earlier elector", 2)]
    elect(electors, lambda at: f"member{at} member{(at + 2) % 4}", zklock_path, tmp_path)
    gone(zklock_client, zklock_path)


def test_a_kept_lock_goes_to_the_earlier_release_that_asks(
    players: Players, zklock_client: Any, zklock_path: str
) -> None:
    (asks,) = players("earlier python", 1)
    lock = zklock.Lock(zklock_client, zklock_path, keep=600.0)
    for kept in (False, True):
        with lock as first:
            assert first.kept is kept
    assert asks.ask(f"acquire it zklock.Lock {zklock_path} 60000").startswith("granted")
    assert lock.acquire(blocking=False) is None
    assert asks.ask("release it") == "released"
    with lock as again:
        assert again.token > first.token
        asks.tell(f"acquire it zklock.Lock {zklock_path} 60000")
        queued(zklock_client, zklock_path, 2)
    assert asks.hears().startswith("granted")
    assert asks.ask("release it") == "released"


def test_several_locks_at_once_wait_for_the_earlier_release(
    players: Players, zklock_client: Any, zklock_path: str
) -> None:
    (holds,) = players("earlier python", 1)
    paths = [f"{zklock_path}/{name}" for name in ("a", "b")]
    both = zklock.MultiLock([zklock.Lock(zklock_client, path) for path in paths])
    assert holds.ask(f"acquire it zklock.Lock {paths[1]} 60000").startswith("granted")
    assert both.acquire(blocking=False) is None
    assert holds.ask("release it") == "released"
    with both:
        assert holds.ask(f"acquire it zklock.Lock {paths[0]} 0") == "refused"
    assert holds.ask(f"acquire it zklock.Lock {paths[0]} 60000").startswith("granted")
    assert holds.ask("release it") == "released"
