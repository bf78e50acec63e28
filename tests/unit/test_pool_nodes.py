"""What the nodes of a pool say, and that it fits; how plans are cut into transactions."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import ANY

import pytest
from hypothesis import given, strategies as st

from tests.fakes import failure
from tests.unit.exchange import Returns, Said, exchanged
from zklock._pool import nodes
from zklock._pool.keys import MAX_SHARDS, Key
from zklock._pool.nodes import WorkerRecord
from zklock._recipes.effects import (
    AbandonCreate,
    Cancelled,
    Check,
    Create,
    Delete,
    Failed,
    Failure,
    List,
    Node,
    Read,
    SessionReplaced,
    Sync,
    Write,
)
from zklock.errors import AccessDenied, ZkLockError
from zklock.token import FencingToken

LIMIT = 1024 * 1024 - 1
"""Bytes of ZooKeeper's jute.maxbuffer."""


@given(st.text(), st.floats(0, exclude_min=True, allow_infinity=False), st.booleans())
def test_profiles(identity: str, capacity: float, draining: bool) -> None:
    profile = WorkerRecord(identity, capacity, draining, "_c_1-assigned-1", "_c_2-owned-1")
    assert WorkerRecord.parse(bytes(profile)) == profile
    assert profile.weight == (0 if draining else capacity)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"identity": "a"}',
        b'{"identity": "a", "capacity": "1"}',
        b'{"identity": "a", "capacity": -1}',
        b'{"identity": "a", "capacity": NaN}',
        b'{"identity": 1, "capacity": 1}',
        b'{"identity": "a", "capacity": 1, "assigned": "b"}',
        b'{"identity": "a", "capacity": 1, "assigned": "b", "owned": ""}',
        b'{"identity": "a", "capacity": 1, "assigned": "b", "owned": "../c"}',
        b'{"identity": "a", "capacity": 1, "assigned": "..", "owned": "c"}',
        b'{"identity": "a", "capacity": 1, "assigned": "b", "owned": "c", "kin": 1}',
        b'{"identity": "a", "capacity": 1' + b"0" * 400 + b', "assigned": "b", "owned": "c"}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_profile(data: bytes) -> None:
    assert WorkerRecord.parse(data) is None


@pytest.mark.parametrize("missing", ["kin", "leaving", "draining"])
def test_what_another_release_says_otherwise(missing: str) -> None:
    """A later one says more, which is passed over. What an earlier one lacks has its default."""
    profile = WorkerRecord("a", 1.0, False, "_c_1-assigned-1", "_c_2-owned-1")
    said = json.loads(bytes(profile)) | {"colour": "blue", "zones": ["a", "b"]}
    del said[missing]
    assert WorkerRecord.parse(json.dumps(said).encode()) == profile


@pytest.mark.parametrize(
    "data",
    [b"\xff", b"1 x", b"1 5-", b"1 5-2", b"1 -5", b"1 65536", b"1 0-99999999999", b"1 1,,x"],
)
def test_what_is_no_assignment(data: bytes) -> None:
    assert nodes.parse_assigned(data) is None


def test_the_longest_identity_fits() -> None:
    profile = WorkerRecord("\x01" * 4096, 1.0)
    assert len(bytes(profile)) < LIMIT / 10
    assert json.loads(bytes(profile))["identity"] == profile.identity


def test_what_one_worker_has_fits_into_its_nodes() -> None:
    """The most shards, with tokens as far apart as can be; every other shard is the longest."""
    chance = random.Random(1)
    tokens: dict[Key, FencingToken] = {
        number: FencingToken(chance.randrange(2**63), chance.randrange(2**31))
        for number in range(MAX_SHARDS)
    }
    assert len(nodes.owned_data(tokens)) < LIMIT
    every_other = nodes.assigned_data(FencingToken(1, 2), range(0, MAX_SHARDS, 2))
    assert len(every_other) < LIMIT / 2


def test_many_nodes_are_read_some_at_a_time() -> None:
    """ZooKeeper answers in order: a heartbeat waits behind what was asked for before it."""
    found = [Node(f"/p/{number}", b"", 1, False) for number in range(600)]
    paths = [node.path for node in found]
    said: Said = []
    for part in (slice(256), slice(256, 512), slice(512, 600)):
        said += [tuple(map(Read, paths[part])), tuple(found[part])]
    exchanged(nodes.read(paths), [*said, Returns(found)])


def handed_out(sizes: list[int]) -> list[list[Any]]:
    """Return the writes of each transaction, for writes of these sizes."""
    writes = [(f"/p/{at}", b"x" * size, 7) for at, size in enumerate(sizes)]
    sent = []

    def plan() -> Iterator[Any]:
        assert (yield from nodes.hand_out("/p/leader/x", writes, [])) is None

    recipe: Any = plan()
    answer = None
    with contextlib.suppress(StopIteration):
        while True:
            (request,) = recipe.send(answer)
            first, *parts = request.operations
            assert first == Check("/p/leader/x")
            sent.append(parts)
            answer = (None,)
    return sent


@given(st.lists(st.one_of(st.integers(0, 300), st.integers(100_000, 350_000)), max_size=30))
def test_a_plan_is_written_in_parts_that_fit(sizes: list[int]) -> None:
    sent = handed_out(sizes)
    assert [each.path for it in sent for each in it] == [f"/p/{at}" for at in range(len(sizes))]
    for request in sent:
        assert all(each.version == 7 for each in request)
        assert sum(len(each.data) + len(each.path) + 64 for each in request) < LIMIT / 2
    joined = [sum(len(each.data) for each in it) for it in sent]
    for one, other in itertools.pairwise(joined):
        assert one + other > 350_000  # two in a row could not have been one


def test_a_usual_plan_is_one_transaction() -> None:
    assert len(handed_out([200] * 500)) == 1
    assert handed_out([]) == []


@pytest.mark.parametrize("why", [Failure.MISSING, Failure.CHANGED, Failure.DROPPED])
def test_a_refused_plan_stops(why: Failure) -> None:
    writes = [("/p/1", b"x" * 300_000, 7), ("/p/2", b"y" * 300_000, 7)]
    plan = nodes.hand_out("/p/leader/x", writes, [])
    exchanged(plan, [ANY, (failure(why, "/p/1"),), Returns(why)])


def test_what_is_forbidden_of_a_plan_is_told() -> None:
    forbidden: list[str] = []
    plan = partial(nodes.hand_out, "/p/leader/x", [("/p/1", b"x", 7), ("/p/2", b"y", 7)], forbidden)
    of_one = Failed(Failure.DENIED, AccessDenied("/p/2: forbidden"), node="/p/2")
    exchanged(plan(), [ANY, (of_one,), Returns(Failure.DENIED)])
    assert forbidden == ["/p/2"]
    exchanged(plan(), [ANY, (failure(Failure.DENIED, "/p/leader/x"),), AccessDenied])


PLACES = nodes.PoolPaths("/p")


def deleted(recipe: Any, batch: Any) -> list[str]:
    """Have all that it asks for done, until it ends by an error; return what it has deleted."""
    paths: list[str] = []
    while True:
        paths += [each.path for each in batch if isinstance(each, Delete)]
        try:
            batch = recipe.send((None,) * len(batch))
        except AccessDenied:
            return paths


def test_one_that_may_not_make_all_of_its_nodes_takes_the_others_along() -> None:
    denied = Failed(Failure.DENIED, AccessDenied("a node"))
    worker = nodes.Registration(PLACES, WorkerRecord("me", 1.0))
    recipe: Any = nodes.keep_registered(worker, lambda *_: None, lambda: None)
    (create,) = next(recipe)
    recipe.send((Node(f"{create.prefix}0000000000", b"", 0, True),))
    assert recipe.send((denied,)) == (Sync(PLACES.owned), List(PLACES.owned))
    assert isinstance(recipe.send((None, denied)), AbandonCreate)
    gone = deleted(recipe, recipe.send(None))
    assert [path.split("/")[2] for path in gone] == ["assigned"]


class Attending:
    """A worker whose nodes are there, up to the moment at which one of them is found deleted."""

    def __init__(self) -> None:
        self.left: list[None] = []
        worker = nodes.Registration(PLACES, WorkerRecord("me", 1.0))
        leaves = partial(self.left.append, None)
        self.recipe: Any = nodes.keep_registered(worker, lambda *_: None, leaves)
        batch: Any = next(self.recipe)
        for number in range(3):
            (create,) = batch
            batch = self.recipe.send((Node(f"{create.prefix}{number:010d}", b"", 0, True),))
        gone = Failed(Failure.MISSING, ZkLockError("gone"))
        self.first = self.recipe.send((gone,) * 3)

    def clears(self, batch: Any) -> Any:
        """Have all that it deletes deleted; return what ends it, or what it asks for then."""
        while all(isinstance(each, Write | Delete) for each in batch):
            batch = self.recipe.send((None,) * len(batch))
        return batch


def test_a_worker_whose_node_was_deleted_begins_anew() -> None:
    worker = Attending()
    (again,) = worker.clears(worker.first)
    assert isinstance(again, Create)
    assert worker.left == []


@pytest.mark.parametrize("session_ends", [False, True])
def test_one_that_leaves_as_it_clears_up_does_not_begin_anew(session_ends: bool) -> None:
    """It is told to give up once. A worker that went on would be handed shards for ever."""
    worker = Attending()
    batch = worker.recipe.throw(Cancelled())
    assert batch == worker.first
    if session_ends:
        batch = worker.recipe.throw(SessionReplaced(None))
    with pytest.raises(Cancelled):
        worker.clears(batch)
    assert worker.left == [None]
