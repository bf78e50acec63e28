"""A server whose answers take long: shorter than a hung one's, longer than between heartbeats."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

import zklock
from tests.contract.support import Losses, granted
from zklock.testing import FaultProxy

TIMEOUT = 12.0
LATE = 0.21 * TIMEOUT
"""Beyond 0.18, one heartbeat at a time is not enough; the rest up to 0.30 is for a busy machine."""


def test_a_holder_keeps_its_lock_while_answers_are_late(
    zklock_proxy: FaultProxy,
    zklock_connect: Callable[..., Any],
    zklock_path: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every lease from before ends meanwhile."""
    losses = Losses()
    client = zklock_connect(zklock_proxy.hosts, timeout=TIMEOUT)
    lock = zklock.Lock(client, zklock_path, on_lost=losses)
    grant = granted(lock)
    zklock_proxy.delay(LATE, to_server=False)
    assert not grant.lost.wait(1.25 * TIMEOUT)
    assert grant.held
    warned = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == 1
    assert "no answer to a heartbeat for 2.4 s" in warned[0]
    zklock_proxy.restore()
    lock.release()
    assert losses.losses == []
    assert len(zklock_proxy.connections) == 1
