"""Workers that crash and come back: what is kept for whom, and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from zklock._pool.assignment import assign
from zklock._pool.nodes import PoolPaths, WorkerRecord
from zklock._pool.returning import Absences, Place, inherited, replaced, share_out


def place(identity: str, *shards: int, delay: float = 10.0, weight: float = 1.0) -> Place:
    return Place(identity, weight, delay, frozenset(shards))


@given(
    st.text(min_size=1),
    st.floats(0, 1e6),
    st.floats(1e-3, 1e6),
    st.frozensets(st.integers(0, 65535), max_size=50),
)
def test_a_place_is_read_as_it_was_written(
    identity: str, weight: float, delay: float, shards: frozenset[int]
) -> None:
    said = Place(identity, weight, delay, shards)
    assert Place.parse(bytes(said)) == said


GOOD = '"identity": "a", "weight": 1, "delay": 1'


@pytest.mark.parametrize(
    "data",
    [
        "",
        "7",
        "{}",
        "[]",
        f"{{{GOOD}}}",
        f'{{{GOOD}, "shards": 7}}',
        f'{{{GOOD}, "shards": "x"}}',
        f'{{{GOOD}, "shards": "99999999"}}',
        '{"identity": 7, "weight": 1, "delay": 1, "shards": ""}',
        '{"identity": "a", "weight": "1", "delay": 1, "shards": ""}',
        '{"identity": "a", "weight": -1, "delay": 1, "shards": ""}',
        '{"identity": "a", "weight": 1, "delay": NaN, "shards": ""}',
        '{"identity": "a", "weight": 1, "delay": Infinity, "shards": ""}',
        '{"identity": "a", "weight": 1, "delay": 0, "shards": ""}',
        "[" * 100_000,
    ],
)
def test_what_is_no_place(data: str) -> None:
    assert Place.parse(data.encode()) is None


def test_what_a_later_release_says_besides_is_passed_over() -> None:
    said = f'{{{GOOD}, "shards": "0-2", "later": [1]}}'
    assert Place.parse(said.encode()) == place("a", 0, 1, 2, delay=1)


@pytest.mark.parametrize("identity", ["a", ".", "..", "a/b", "ä\U0001f600", "_", "%"])
def test_every_identity_has_a_node_of_its_own(identity: str) -> None:
    paths = PoolPaths("/pool")
    parent, _, name = paths.place(identity).rpartition("/")
    assert parent == paths.returning
    assert name.startswith("_")
    assert paths.place(identity) != paths.place(identity + "x")


def test_a_worker_is_away_until_its_delay_is_over() -> None:
    absences = Absences()
    places = {"a": place("a", 1), "b": place("b", 2, delay=5.0)}
    assert absences.look(places, ["a", "b", "c"], 100.0) == set()
    assert absences.next_due(100.0) is None
    assert absences.look(places, ["b"], 101.0) == {"a"}
    assert absences.look(places, [], 104.0) == {"a", "b"}
    assert absences.next_due(104.0) == 109.0
    assert absences.look(places, [], 109.0) == {"a"}
    assert absences.next_due(109.0) == 111.0
    assert absences.look(places, [], 111.0) == set()
    assert absences.next_due(111.0) is None


def test_who_comes_back_and_goes_again_has_the_whole_delay() -> None:
    absences, places = Absences(), {"a": place("a", 1)}
    assert absences.look(places, [], 100.0) == {"a"}
    assert absences.look(places, ["a"], 109.0) == set()
    assert absences.look(places, [], 120.0) == {"a"}
    assert absences.next_due(120.0) == 130.0


def test_a_place_that_is_deleted_is_nobody_s() -> None:
    absences = Absences()
    assert absences.look({"a": place("a", 1)}, [], 100.0) == {"a"}
    assert absences.look({}, [], 101.0) == set()
    assert absences.look({"a": place("a", 1)}, [], 120.0) == {"a"}


def member(identity: str, delay: float = 10.0) -> WorkerRecord:
    return WorkerRecord(identity, 1.0, assigned="x", owned="y", rejoin_delay=delay)


def test_the_newest_of_one_identity_replaces_the_others() -> None:
    members = {
        "_c_z-member-0000000001": member("a"),
        "_c_y-member-0000000007": member("a"),
        "_c_x-member-0000000003": member("a"),
        "_c_w-member-0000000002": member("b"),
        "_c_v-member-0000000004": member("c", 0.0),
        "_c_u-member-0000000005": member("c", 0.0),
    }
    newest = "_c_y-member-0000000007"
    assert replaced(members) == {
        "_c_z-member-0000000001": newest,
        "_c_x-member-0000000003": newest,
    }


def test_heirs_and_those_who_come_back_have_what_was_theirs() -> None:
    has = {"old": frozenset({1, 2}), "new": frozenset[int](), "other": frozenset({3, 5})}
    had = inherited(has, {"old": "new"}, {"back": place("back", 4, 5)})
    assert had == {
        "new": frozenset({1, 2}),
        "other": frozenset({3, 5}),
        "back": frozenset({4}),  # somebody else has got the other meanwhile
    }
    assert inherited(has, {}, {}) == has


def test_who_is_away_gets_nothing_that_it_did_not_have() -> None:
    away = [place("a", 0, 1, 2, 3)]
    has = {"b": range(4, 8)}  # and somebody else had the others
    assert share_out(range(12), {"b": 1.0}, has, away) == {"b": frozenset(range(4, 12))}
    assert share_out(range(12), {"b": 1.0}, {}, []) == {"b": frozenset(range(12))}
    # Who joins meanwhile gets its share of what is kept, too.
    found = share_out(range(12), {"b": 1.0, "c": 1.0}, {"b": range(6)}, [place("a", *range(6, 12))])
    assert sorted(map(len, found.values())) == [4, 4]
    assert found["c"] & set(range(6, 12))
    assert share_out(range(4), {}, {}, away) == {}


def test_who_is_away_takes_nothing_from_others_who_are() -> None:
    has = {"c": (3, 4)}
    for mine in ((), (5,)):
        away = [place("a", *mine), place("b", 0, 1, 2)]
        assert share_out(range(5 + len(mine)), {"c": 1.0}, has, away) == {"c": {3, 4}}


@given(
    st.integers(0, 40),
    st.dictionaries(st.sampled_from("abcd"), st.floats(0, 4.0), max_size=4),
    st.lists(st.sampled_from("abcdXYZ-"), min_size=40, max_size=40),
    st.floats(0, 4.0),
)
def test_nothing_is_given_twice_and_nothing_is_kept_that_was_another_s(
    shards: int, weights: dict[str, float], owners: list[str], weight: float
) -> None:
    had: dict[str, set[int]] = {}
    for number, owner in enumerate(owners):
        had.setdefault(owner, set()).add(number)
    away = [place(name, *had.get(name, ()), weight=weight) for name in "XY"]
    found = share_out(range(shards), weights, {name: had.get(name, ()) for name in weights}, away)
    given = [number for numbers in found.values() for number in numbers]
    assert len(given) == len(set(given))
    assert found.keys() == weights.keys()
    if any(weights.values()):
        left = set(range(shards)) - set(given)
        assert left <= had.get("X", set()) | had.get("Y", set())


@given(
    st.integers(1, 40),
    st.lists(st.floats(0.5, 4.0), min_size=2, max_size=6),
    st.data(),
)
def test_whoever_comes_back_in_time_moves_nothing(
    shards: int, weights: list[float], data: st.DataObject
) -> None:
    names = {f"{at:08}": weight for at, weight in enumerate(weights)}
    before = assign(range(shards), names, {})
    lost = data.draw(st.sampled_from(sorted(names)))
    kept = Place("it", names[lost], 10.0, before[lost])
    others = {name: weight for name, weight in names.items() if name != lost}
    current = {name: before[name] for name in others}
    assert share_out(range(shards), others, current, [kept]) == current
    had = inherited({**current, "back": frozenset()}, {}, {"back": kept})
    after = assign(range(shards), {**others, "back": kept.weight}, had)
    assert after["back"] == before[lost]
    assert {name: after[name] for name in others} == current
