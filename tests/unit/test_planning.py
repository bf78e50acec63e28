"""A pool's assignment by a function of the user's: what it is told, and what it may not say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import zklock
from zklock import PlannedWorker
from zklock._pool.assignment import assign
from zklock._pool.keys import Key
from zklock._pool.planning import BadPlan, planned


def worker(identity: str, *shards: Key, capacity: float = 1.0) -> PlannedWorker:
    return PlannedWorker(identity, capacity, identity.encode(), frozenset(shards))


WORKERS = {"1": worker("b", 0), "2": worker("a", 1)}


def test_it_is_told_of_all_and_its_word_counts() -> None:
    told: list[Any] = []

    def last_one(shards: Sequence[Key], workers: Sequence[PlannedWorker]) -> Mapping[Key, str]:
        told.append((shards, workers))
        return MappingProxyType(dict.fromkeys(shards, workers[-1].identity))

    found = planned(last_one, {2, 0, 1}, WORKERS)
    assert found == {"1": {0, 1, 2}, "2": frozenset()}
    assert told == [((0, 1, 2), (WORKERS["2"], WORKERS["1"]))]  # both in order


@pytest.mark.parametrize(("shards", "workers"), [((), WORKERS), (range(3), {})])
def test_nothing_to_decide(shards: Any, workers: Any) -> None:
    def never(*_: object) -> Any:
        pytest.fail("it is called")

    assert planned(never, shards, workers) == {name: frozenset() for name in workers}


class Hostile(dict[Any, Any]):
    """Raises when it is looked at."""

    def get(self, key: Any, default: Any = None) -> Any:
        raise LookupError(key)


class Nameless:
    """Has no text."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


async def later() -> dict[Any, Any]:
    return {}


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (None, "returned NoneType, not a mapping"),
        ([(0, "a"), (1, "a"), (2, "a")], "returned list, not a mapping"),
        ({}, "assigned nobody to the shards 0-2"),
        ({0: "a", 1: None, 2: "b"}, "assigned nobody to the shards 1"),
        ({0: "a", 1: "c", 2: "b"}, "assigned 1 to 'c', which may not get shards"),
        ({0: "a", 1: 7, 2: "b"}, "assigned 1 to 7, which may not get shards"),
        ({0: "a", 1: ["a"], 2: "b"}, "which may not get shards"),
        ({0: "a", 1: "a", 2: "b", 3: "b"}, "assigned 3, which it was not asked to assign"),
        ({0: "a", 1: "a", 2: "b", Nameless(): "b"}, "raised RuntimeError"),
        (Hostile(), "raised LookupError"),
    ],
)
def test_what_is_no_plan(said: Any, text: str) -> None:
    with pytest.raises(BadPlan, match=text):
        planned(lambda *_: said, range(3), WORKERS)


def test_a_coroutine_is_no_plan() -> None:
    with pytest.raises(BadPlan, match="raised TypeError"):
        planned(lambda *_: later(), range(3), WORKERS)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_one_that_raises(error: type[BaseException]) -> None:
    def fails(*_: object) -> Any:
        raise error("no")

    with pytest.raises(BadPlan, match=f"raised {error.__name__}") as bad:
        planned(fails, range(3), WORKERS)
    assert isinstance(bad.value.__cause__, error)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 40), st.lists(st.floats(0.1, 9.0), min_size=1, max_size=5))
def test_balanced_is_the_assignment_of_a_pool_without_a_function(
    number: int, weights: list[float]
) -> None:
    names = "abcde"[: len(weights)]
    workers = [
        worker(name, *range(at, number, 7), capacity=weight)
        for at, (name, weight) in enumerate(zip(names, weights, strict=True))
    ]
    found = planned(zklock.balanced, range(number), {it.identity: it for it in workers})
    plain = assign(
        range(number),
        {it.identity: it.capacity for it in workers},
        {it.identity: it.shards for it in workers},
    )
    assert found == plain


def test_balanced_has_somebody_to_give_to() -> None:
    assert zklock.balanced([], []) == {}
    with pytest.raises(ValueError, match="no worker"):
        zklock.balanced(["eu"], [])
