"""What happened in a queue between two looks, and which nodes nobody uses."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

from tests.unit.cli.views import World
from zklock.cli.view.model import LockView, garbage
from zklock.cli.watch import between


def view(world: World) -> LockView | None:
    return next(iter(world.look().locks), None)


def happens(world: World, play: Callable[[World], object]) -> list[tuple[str, str]]:
    """Return what happens, and to whom, when the world changes."""
    before = view(deepcopy(world))
    play(world)
    return [(what, place.identity) for what, place in between(before, view(world))]


def test_all_leave() -> None:
    world = World()
    holder, waiter = world.queue("/x", 1, "a"), world.queue("/x", 1, "b")

    def end(it: World) -> None:
        it.gone(holder)
        it.gone(waiter)

    assert happens(world, end) == [("released", "a"), ("withdrawn", "b")]


def test_permits() -> None:
    world = World()
    world.semaphore("/p", 1, [(1, "a")], [])
    waiter = ""

    def asks(it: World) -> None:
        nonlocal waiter
        waiter = it.queue("/p/locks", 2, "b")
        it.queue("/p/leases", 2, "b", "lease")

    assert happens(world, asks) == [("queued", "b")]
    (holder,) = (path for path, node in world.facts.nodes.items() if node.data == b"a")

    def passes(it: World) -> None:
        it.gone(holder)
        it.gone(waiter)

    assert happens(world, passes) == [("released", "a"), ("granted", "b")]


def test_readers_come_in_together() -> None:
    world = World()
    writer = world.queue("/x", 1, "w", "write")
    for name in "ab":
        world.queue("/x", 1, name, "read")
    assert happens(world, lambda it: it.gone(writer)) == [
        ("released", "w"), ("granted", "a"), ("granted", "b")
    ]  # fmt: skip


# What may be removed.


def used(world: World, path: str, *, owner: int = 0, size: int = 0) -> None:
    """Add a node that had children before, and has none now."""
    world.folder(path)
    world.change(path, changes=2, owner=owner, size=size)


def test_what_nobody_uses_goes_children_first() -> None:
    world = World()
    used(world, "/locks")
    used(world, "/locks/deep")
    used(world, "/locks/deep/er")
    used(world, "/locks/free")
    for path in ("/locks", "/locks/deep"):
        world.change(path, changes=2)
    assert garbage(world.facts, "/locks") == ["/locks/deep/er", "/locks/deep", "/locks/free"]
    assert garbage(world.facts, "/locks/deep/er") == ["/locks/free"]


def test_what_stays() -> None:
    world = World()
    used(world, "/locks/owned", owner=5)
    used(world, "/locks/data", size=1)
    world.folder("/locks/never-used")
    world.queue("/locks/held", 1, "a")
    world.semaphore("/locks/permits", 3, [], [])
    for part in ("", "/locks", "/leases"):
        world.change(f"/locks/permits{part}", changes=4)
    for part in ("leader", "members", "assigned", "owned", "shards", "shards/0"):
        used(world, f"/locks/pool/{part}")
    assert garbage(world.facts, "/locks") == []
