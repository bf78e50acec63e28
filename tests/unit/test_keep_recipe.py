"""What a kept lock watches: see ``zklock/_recipes/keep.py``."""

from __future__ import annotations

import pytest

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
