"""How the shards of a pool are known: what users may ask for, and what nodes say of it."""

from __future__ import annotations

import random
import zlib
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from zklock._pool import keys, nodes
from zklock._pool.keys import Key, check_shards, decode, encode, node_of, parse_shards, shards_data
from zklock.token import FencingToken

LIMIT = 1024 * 1024 - 1
"""Bytes of ZooKeeper's jute.maxbuffer."""

NAMES = st.sets(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1)
EVERY_KIND: list[Key] = ["eu/west", "7", ".", "..", "é ü", "a,b-c", "[", '"', "\0", "%2F", "_"]


@settings(max_examples=50, deadline=None)
@given(st.one_of(st.integers(1, keys.MAX_SHARDS), NAMES))
def test_what_was_asked_for_is_read_again(shards: Any) -> None:
    checked = check_shards(shards)
    assert parse_shards(shards_data(checked)) == checked
    assert set(checked) == (set(range(shards)) if isinstance(shards, int) else shards)


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.sets(st.integers(0, keys.MAX_SHARDS - 1)), NAMES), st.integers(0, 2**31 - 1))
def test_keys_go_through_every_node(some: set[Key], sequence: int) -> None:
    token = FencingToken(2**40, sequence)
    mine = frozenset(some)
    assert decode(encode(mine)) == mine
    assert nodes.parse_assigned(nodes.assigned_data(token, mine)) == mine
    tokens = dict.fromkeys(mine, token)
    assert nodes.parse_owned(nodes.owned_data(tokens)) == tokens


def test_what_was_not_written_yet_has_no_keys() -> None:
    assert nodes.parse_assigned(b"") == frozenset()
    assert nodes.parse_owned(b"") == {}


def test_no_two_shards_have_one_lock() -> None:
    """A path has no part that ZooKeeper refuses, and none that another shard has, too."""
    paths = [node_of(key) for key in [*EVERY_KIND, 7, 8]]
    assert len(set(paths)) == len(paths)
    for path in paths:
        assert "/" not in path
        assert "\0" not in path
        assert path not in {".", ".."}


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ("eu", TypeError),
        (b"eu", TypeError),
        (True, TypeError),
        (2.5, TypeError),
        (None, TypeError),
        ((name for name in "ab"), TypeError),
        (["a", 7], TypeError),
        ([], ValueError),
        (["a", "b", "a"], ValueError),
        (["a", ""], ValueError),
        (["\ud800"], ValueError),
        (0, ValueError),
        ([str(number) for number in range(keys.MAX_NAMED + 1)], ValueError),
        (["x" * keys.MAX_NAMES_SIZE], ValueError),
    ],
)
def test_what_cannot_be_asked_for(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="shard"):
        check_shards(wrong)


@pytest.mark.parametrize(
    "data",
    [b"[", b"[]", b"[7]", b'["a", 7]', b'[""]', b'["\\ud800"]', b"[" * 100_000, b'["\xff"]'],
)
def test_what_is_no_list_of_names(data: bytes) -> None:
    assert parse_shards(data) is None
    assert nodes.parse_assigned(b"1 " + data) in {None, frozenset()}


@pytest.mark.parametrize(
    "data", [b"\xff", b"many", b"0", b"-5", b"65537", b"9" * 5000, b"", b"1.0"]
)
def test_what_is_no_number_of_shards(data: bytes) -> None:
    assert parse_shards(data) is None


@settings(max_examples=50, deadline=None)
@given(st.binary())
def test_whatever_a_worker_says_that_it_has_is_read(data: bytes) -> None:
    assert nodes.parse_owned(b"N" + data) == {}
    assert nodes.parse_owned(data) == {}
    assert nodes.parse_owned(zlib.compress(data[: len(data) // 14 * 14] + b"\0")) == {}


def test_the_most_names_fit_into_every_node() -> None:
    """The most names, as long as they may be together, with tokens as far apart as can be."""
    chance = random.Random(1)
    size = keys.MAX_NAMES_SIZE // keys.MAX_NAMED - 3
    names = check_shards([f"{number:0{size}}" for number in range(keys.MAX_NAMED - 1)])
    tokens: dict[Key, FencingToken] = {
        name: FencingToken(chance.randrange(2**63), chance.randrange(2**31)) for name in names
    }
    data = nodes.owned_data(tokens)
    assert len(data) < LIMIT * 0.7
    assert nodes.parse_owned(data) == tokens
    assert len(nodes.assigned_data(FencingToken(1, 2), names)) < 400_000


def test_a_message_has_all_kinds() -> None:
    assert keys.in_order(["b", 3, "a", 1]) == [1, 3, "a", "b"]
    assert keys.told(range(3)) == "3 shards"
    assert keys.told(("a", "b")) == "2 shards with names"
