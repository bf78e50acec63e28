"""The assignment of shards: balance, weights, and the fewest moves that there can be."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from math import ceil, floor

import pytest
from hypothesis import given, settings, strategies as st

from tests.modes import examples
from zklock._pool.assignment import Assigned, assign, rebalance
from zklock._pool.keys import Key, decode, encode
from zklock._pool.nodes import WorkerRecord

Has = dict[str, frozenset[int]]


def moves(before: Mapping[str, Collection[Key]], after: Mapping[str, frozenset[Key]]) -> int:
    """Return how many shards of ``after`` have another owner than in ``before``, or had none."""
    return sum(len(mine.difference(before.get(name, ()))) for name, mine in after.items())


WEIGHTS = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.one_of(
        st.just(1.0),
        st.just(0.0),
        st.floats(0.01, 100.0),
        st.integers(1, 5).map(float),
    ),
    max_size=8,
)


@st.composite
def situations(draw: st.DrawFn) -> tuple[int, dict[str, float], dict[str, set[int]]]:
    """Draw a number of shards, members, and what members of now and before have."""
    shards = draw(st.integers(0, 60))
    owners = draw(st.lists(st.sampled_from([*"abcdefghxyz", ""]), min_size=70, max_size=70))
    has: dict[str, set[int]] = {}
    for number, owner in enumerate(owners):
        has.setdefault(owner, set()).add(number)
    has.pop("", None)
    return shards, draw(WEIGHTS), has


def shares(shards: int, weights: Mapping[str, float]) -> dict[str, Fraction]:
    whole = sum(map(Fraction, weights.values()))
    return {name: shards * Fraction(weight) / whole for name, weight in weights.items()}


def fewest(shards: int, weights: Mapping[str, float], has: Mapping[str, set[int]]) -> int:
    """Return the fewest moves of all balanced assignments, by trying all their sizes.

    With sizes given, a member can keep no more than it has and no more than its size; and it can
    keep that much, as no shard has two owners.
    """
    each = shares(shards, weights)
    counts = {name: len({it for it in has.get(name, ()) if it < shards}) for name in weights}
    least = {name: floor(share) for name, share in each.items()}
    broken = [name for name, share in each.items() if share != floor(share)]
    best = shards
    for chosen in combinations(broken, shards - sum(least.values())):
        kept = sum(min(counts[name], least[name] + (name in chosen)) for name in weights)
        best = min(best, shards - kept)
    return best


@given(situations())
@settings(max_examples=examples(600), deadline=None)
def test_all_are_assigned_once_within_one_of_the_share(
    situation: tuple[int, dict[str, float], dict[str, set[int]]],
) -> None:
    shards, weights, has = situation
    found = assign(range(shards), weights, has)
    assert set(found) == set(weights)
    if not any(weights.values()):
        assert not any(found.values())
        return
    assert sorted(number for mine in found.values() for number in mine) == list(range(shards))
    for name, share in shares(shards, weights).items():
        assert floor(share) <= len(found[name]) <= ceil(share)


@given(situations())
@settings(max_examples=examples(600), deadline=None)
def test_no_balanced_assignment_moves_fewer(
    situation: tuple[int, dict[str, float], dict[str, set[int]]],
) -> None:
    shards, weights, has = situation
    if any(weights.values()):
        assert moves(has, assign(range(shards), weights, has)) == fewest(shards, weights, has)


@given(situations(), st.randoms(use_true_random=False))
@settings(max_examples=examples(200), deadline=None)
def test_it_depends_on_nothing_else_and_is_settled(
    situation: tuple[int, dict[str, float], dict[str, set[int]]], shuffle: random.Random
) -> None:
    shards, weights, has = situation
    found = assign(range(shards), weights, has)
    names, others = list(weights), list(has)
    shuffle.shuffle(names)
    shuffle.shuffle(others)
    assert found == assign(
        range(shards), {name: weights[name] for name in names}, {name: has[name] for name in others}
    )
    assert assign(range(shards), weights, found) == found


def test_what_two_have_is_given_to_one() -> None:
    found = assign(range(2), {"a": 1.0, "b": 1.0}, {"a": {0, 1}, "b": {0, 1}})
    assert sorted([*found["a"], *found["b"]]) == [0, 1]


class Members:
    """Members of a pool of four shards, and what the leader knows of them."""

    def __init__(self, **has: str | None) -> None:
        self.workers = {name: WorkerRecord(name, 1.0, assigned=f"_c_{name}") for name in has}
        self.assigned = {
            name: Assigned(1, None if text is None else decode(text)) for name, text in has.items()
        }

    def changes(
        self, barred: Collection[str] = (), waiting: Collection[str] = ()
    ) -> dict[str, str]:
        """Return what changes, and that only newcomers are left out."""
        plan = rebalance(range(4), self.workers, self.assigned, barred, waiting)
        assert plan.left_out <= {*waiting}
        return {name: encode(mine) for name, mine in plan.changes.items()}


def test_only_what_changes_is_planned() -> None:
    assert Members(a="0-1", b="2-3").changes() == {}
    assert Members(a="0-3", b="").changes() == {"a": "0-1", "b": "2-3"}
    assert Members(a="0-2", b="3", c="").changes() == {"a": "0-1", "c": "2"}


def test_what_cannot_be_read_is_written_anew_even_if_it_is_nothing() -> None:
    members = Members(a="0-3", b=None)
    members.workers["b"] = replace(members.workers["b"], draining=True)
    assert members.changes() == {"b": ""}


def test_who_has_no_node_gets_nothing() -> None:
    members = Members(a="0-3", b="")
    del members.assigned["b"]
    assert members.changes() == {}


def test_a_node_that_two_members_name_is_the_first_ones() -> None:
    members = Members(a="0-3", b="")
    members.workers["b"] = replace(members.workers["b"], assigned="_c_a")
    assert members.changes() == {}


def test_who_cannot_be_told_of_a_change_keeps_what_it_has() -> None:
    members = Members(a="0-2", b="3", c="")
    assert members.changes(barred={"a"}) == {}
    members = Members(a="0-1", b="2-3", c="")
    assert members.changes(barred={"a"}) == {"b": "2", "c": "3"}
    members.workers["a"] = replace(members.workers["a"], leaving=True)
    assert members.changes(barred={"a"}) == {"c": "0-1"}


def test_newcomers_are_left_out_unless_nobody_else_takes_shards() -> None:
    members = Members(a="0-3", b="")
    assert members.changes(waiting={"b"}) == {}
    assert members.changes() != {}
    members.workers["a"] = replace(members.workers["a"], draining=True)
    assert members.changes(waiting={"b"}) == {"a": "", "b": "0-3"}
    plan = rebalance(range(4), members.workers, members.assigned, (), {"b"})
    assert plan.left_out == frozenset()


def test_equal_members_are_ordered_by_their_identities() -> None:
    members = Members(a="", b="")
    members.workers["a"] = replace(members.workers["a"], identity="z")
    assert members.changes() == {"b": "0-1", "a": "2-3"}


def test_text_is_short() -> None:
    assert encode([3, 1, 2, 7, 9, 10]) == "1-3,7,9-10"
    assert encode([]) == ""
    with pytest.raises(ValueError, match="'x' is not a number below 65536"):
        decode("1-x")
    with pytest.raises(ValueError, match="'65536' is not a number below 65536"):
        decode("3,1-65536")
    with pytest.raises(ValueError, match="'5-2' is not a range"):
        decode("5-2")
