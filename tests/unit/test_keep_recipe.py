"""What a kept lock watches and tells: ``zklock/_recipes/keep.py``, ``zklock/_core/keep.py``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.test_struck_for_others import Kept
from zklock._ground.loss import LossReason
from zklock._recipes.effects import Listing, Wakeup
from zklock._recipes.keep import watch_queue

MINE, OTHER = "_c_1-lock-0000000001", "_c_2-lock-0000000002"


@pytest.mark.parametrize(
    ("names", "changes", "goes_on"),
    [([MINE], 1, True), ([MINE, OTHER], 2, False), ([MINE], 3, False)],
    ids=["nobody has come", "somebody queues", "somebody has come and gone"],
)
def test_it_ends_once_somebody_else_has_come(names: list[str], changes: int, goes_on: bool) -> None:
    looks: list[bool] = []
    recipe = watch_queue(f"/lock/{MINE}", looks.append)
    next(recipe)
    recipe.send((Listing([MINE], 7, 1),))
    recipe.send(Wakeup.UNWATCHED)
    try:
        recipe.send((Listing(names, 7, changes),))
    except StopIteration:
        assert not goes_on
    assert looks == [True, False, *[True] * goes_on]


@pytest.mark.parametrize("looked", [False, True])
@pytest.mark.parametrize("reason", [LossReason.NODE_DELETED, LossReason.LEASE_LAPSED])
def test_a_heartbeat_finds_its_znode_gone_after_the_release(
    reason: LossReason, looked: bool
) -> None:
    """Until the queue was looked at, it may have gone while the lock was in use."""
    kept, told = Kept(1), list[Any]()
    kept.grant.add_lost_callback(told.append)
    kept.grant.abandon()
    if looked:
        kept.world.run()
    kept.world.session.step(kept.world.session._lose, [kept.grant.path], reason)
    kept.world.run()
    tells = reason is LossReason.NODE_DELETED and not looked
    assert [loss.reason for loss in told] == [LossReason.NODE_DELETED] * tells
    assert kept.grant.released is not tells
