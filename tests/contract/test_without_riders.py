"""Some of the other tests, without riders: all requests go through kazoo's queue.

``ZKLOCK_RIDER=off`` in the environment runs all tests so. ``test_riders.py`` tries what only riders
have.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract import test_drops, test_struck
from tests.contract.support import SOON, children
from tests.contract.test_drops import Cast, Scenario, cast, free_lock, hand_over, release
from tests.contract.test_fifo import test_grants_come_in_sequence_order
from tests.contract.test_flights import (
    test_a_create_anywhere_in_a_flight_proves_that_the_session_lives as test_proofs,
    test_every_node_that_a_flight_creates_can_be_claimed as test_claims,
)
from tests.contract.test_giving_up import (
    test_a_client_that_is_stopped_while_disconnected as test_stopped_while_disconnected,
)
from zklock import aio
from zklock.testing import wait_for

__all__ = [
    "cast",
    "test_claims",
    "test_grants_come_in_sequence_order",
    "test_proofs",
    "test_stopped_while_disconnected",
]


@pytest.fixture(autouse=True)
def no_riders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZKLOCK_RIDER", "off")


@pytest.mark.parametrize(
    "scenario",
    [
        free_lock,
        pytest.param(
            hand_over,
            marks=pytest.mark.thorough(
                "a hand-over without riders, each frame lost: what it sends, the others send, too"
            ),
        ),
        release,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_every_frame_is_lost_once(cast: Cast, scenario: Scenario) -> None:
    test_drops.test_every_frame_is_lost_once(cast, scenario)


@pytest.mark.parametrize("strike", ["interrupt", pytest.param("limit", marks=test_struck.OTHER)])
@pytest.mark.parametrize(("how", "stride"), [("with", 2), ("multi with acquire", 4)])
def test_an_interrupt_leaves_nothing(
    zklock_hosts: str,
    zklock_path: str,
    how: str,
    stride: int,
    strike: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    test_struck.test_an_interrupt_at_every_moment_leaves_nothing(
        zklock_hosts, zklock_path, how, stride, hooked=False, strike=strike, capsys=capsys
    )


def test_tasks_take_turns(zklock_hosts: str, zklock_path: str, other: Any) -> None:
    order: list[int] = []
    held = 0

    async def one(client: Any, number: int) -> None:
        nonlocal held
        for _ in range(5):
            async with aio.Lock(client, zklock_path):
                held += 1
                await asyncio.sleep(0)
                assert held == 1
                order.append(number)
                held -= 1

    async def all_of_them() -> None:
        async with aio.connect(zklock_hosts, timeout=30.0) as client, asyncio.timeout(SOON):
            await asyncio.gather(*(one(client, number) for number in range(20)))

    asyncio.run(all_of_them())
    assert sorted(order) == sorted(list(range(20)) * 5)
    wait_for(lambda: not children(other, zklock_path), SOON)
