"""What is at a path: made of listings and nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.unit.cli.views import World
from zklock._ground.addresses import session_text
from zklock._pool.nodes import WorkerRecord
from zklock.cli.view import model
from zklock.cli.view.model import What, Znode, find


def pool(world: World, path: str) -> None:
    for part in model.POOL:
        world.folder(f"{path}/{part}")
    world.node(f"{path}/members/m", bytes(WorkerRecord("w1", 2.5, assigned="a", owned="o")))


def used(world: World) -> None:
    world.facts.nodes["/a"] = Znode((), changes=2)


def node_of_a_contender(world: World) -> None:
    world.folder("/locks")
    world.folder("/locks/_c_0-lock-0000000001")


CASES: list[tuple[str, Callable[[World], object], What]] = [
    ("/a", lambda world: world.folder("/b"), What.MISSING),
    ("/a", lambda world: world.folder("/a"), What.EMPTY),
    ("/a", used, What.FREE),
    ("/a", lambda world: world.folder("/a/b"), What.FOLDER),
    ("/a", lambda world: world.queue("/a", 1, "x"), What.LOCK),
    ("/a", lambda world: world.queue("/a", 1, "x", "read"), What.READ_WRITE),
    ("/a", lambda world: world.queue("/a", 1, "x", "latch"), What.ELECTION),
    ("/a", lambda world: world.semaphore("/a", 1, [], []), What.SEMAPHORE),
    ("/a/locks", lambda world: world.semaphore("/a", 1, [], []), What.PART),
    ("/a/leases", lambda world: world.semaphore("/a", 1, [(1, "x")], []), What.PART),
    ("/a/locks", lambda world: world.folder("/a/locks/b"), What.FOLDER),
    ("/p", lambda world: pool(world, "/p"), What.POOL),
    ("/p/members", lambda world: pool(world, "/p"), What.POOL_PART),
    ("/p/shards", lambda world: pool(world, "/p"), What.POOL_PART),
    ("/p/leader", lambda world: pool(world, "/p"), What.EMPTY),
    ("/", lambda world: pool(world, ""), What.FOLDER),
    ("/members", lambda world: pool(world, ""), What.FOLDER),
    ("/members", lambda world: world.folder("/members"), What.EMPTY),
    ("/locks/_c_0-lock-0000000001", node_of_a_contender, What.CONTENDER),
]


@pytest.mark.parametrize(
    ("path", "play", "what"),
    CASES,
    ids=[f"{what.value}-{at}" for at, (_, _, what) in enumerate(CASES)],
)
def test_what_is_at_a_path(path: str, play: Callable[[World], object], what: What) -> None:
    world = World()
    play(world)
    found = find(path, world.facts)
    assert found.what is what
    assert (found.lock is not None) is (what in {
        What.LOCK, What.READ_WRITE, What.ELECTION, What.SEMAPHORE
    })  # fmt: skip
    assert (found.pool is not None) is (what is What.POOL)
    in_picture = {lock.path: lock.what for lock in world.look().locks}
    assert in_picture.get(path, what) is what, "the look at all agrees with the look at one"


def test_a_pool_and_its_workers() -> None:
    world = World()
    pool(world, "/p")
    found = find("/p", world.facts).pool
    assert found is not None
    assert found.to_json()["workers"] == [
        {"identity": "w1", "capacity": 2.5, "draining": False, "assigned": 0, "owned": 0}
    ]


def test_a_client_whose_root_is_a_pool_sees_no_pool() -> None:
    world = World()
    pool(world, "")
    world.queue("/leader", 1, "w1", "latch")
    assert world.look().pools == []
    assert [lock.path for lock in world.look().locks] == ["/leader"]
    assert "/members" not in model.garbage(world.facts, "/")


def test_places_are_counted_among_those_who_wait() -> None:
    world = World()
    world.semaphore("/s", 2, [(1, "a"), (2, "b")], [(3, "c"), (4, "d")])
    lock = find("/s", world.facts).lock
    assert lock is not None
    assert lock.name == "semaphore of 2"
    assert [(one["identity"], one["place"]) for one in lock.queue_to_json()] == [
        ("a", None), ("b", None), ("c", 1), ("d", 2)
    ]  # fmt: skip


def test_an_age_is_never_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "time", SimpleNamespace(time=lambda: 1000.0))
    world = World()
    world.queue("/a", 1, "x")
    (place,) = world.look().locks[0].places
    assert replace(place, created=990.0).age == 10.0
    assert replace(place, created=1010.0).age == 0.0
    assert replace(place, created=1010.0, behind=12.0).age == 2.0
    assert replace(place, created=None).age is None
    world.facts.behind = 60.0
    look = world.look()
    assert (look.behind, look.locks[0].places[0].behind) == (60.0, 60.0)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0x100000C5A8A0001, "0x100000c5a8a0001"), (0xFF0000C5A8A0001 - 2**60, "0xfff0000c5a8a0001")],
)
def test_a_session_is_written_as_zookeeper_writes_it(number: int, text: str) -> None:
    """kazoo's number is negative where the server's id is 128 or more."""
    assert session_text(number) == text
    assert model.signed(int(text, 16)) == number
    assert model.signed(number) == number


def test_a_number_that_is_far_too_long_hides_nothing_else() -> None:
    world = World()
    world.semaphore("/s", 1, [(1, "a")], [])
    world.folder("/s", b"9" * 5000)
    world.queue("/t", 1, "b")
    assert [(it.path, it.limit) for it in world.look().locks] == [("/s", None), ("/t", None)]
