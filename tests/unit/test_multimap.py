"""Sets by key: small ones and large ones behave alike."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, strategies as st

from zklock._ground.multimap import Multimap

CHANGES = st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), st.integers(0, 9)), max_size=60)


@given(CHANGES)
def test_it_is_a_set_for_each_key_in_the_order_of_coming(
    changes: list[tuple[bool, str, int]],
) -> None:
    several: Multimap[str, int] = Multimap()
    sets: dict[str, dict[int, None]] = defaultdict(dict)
    for adds, key, member in changes:
        if adds:
            several.add(key, member)
            sets[key].setdefault(member)
        else:
            several.discard(key, member)
            sets[key].pop(member, None)
        assert several.of(key) == list(sets[key])
        assert bool(several) == any(sets.values())
        assert sorted(several) == sorted(each for members in sets.values() for each in members)


@pytest.mark.parametrize("size", [1, 2, 4, 5, 100])
def test_nothing_is_left_of_an_empty_set(size: int) -> None:
    several: Multimap[str, int] = Multimap()
    for _ in range(2):  # a change may be repeated
        for member in range(size):
            several.add("a", member)
    for _ in range(2):
        for member in range(size):
            several.discard("a", member)
    assert not several
    assert several.of("a") == []


def test_another_thread_may_change_it_while_one_iterates() -> None:
    them: Multimap[str, int] = Multimap()
    for number in range(3):
        them.add(str(number), number)
    members = iter(them)
    assert next(members) == 0
    them.add("other", 3)
    them.discard("1", 1)
    assert list(members) == [2]
