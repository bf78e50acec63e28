"""Who waits for whom: against a play of all that can happen, and case by case."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.cli.views import World
from zklock.cli import graph as draw
from zklock.cli.view.model import Look
from zklock.cli.view.text import json_of
from zklock.cli.view.waits import Deadlock, Need, circles, never, stands


def thread(name: str) -> str:
    return f"host:17:{name}"


def stuck(found: Look) -> list[tuple[bool, set[str]]]:
    """Return each deadlock: whether it is certain, and who waits in its chain."""
    return [
        (one.certain, {waiter.place.identity for waiter, _ in one.chain}) for one in found.deadlocks
    ]


# What never goes.


def test_who_needs_nothing_goes_and_lets_others_go() -> None:
    needs = [Need(), Need([0], 1), Need([1, 3], 2), Need([2], 1), Need([3, 0], 1)]
    assert never(needs) == {2, 3}
    assert circles(needs, {2, 3}) == [[2, 3]]


def test_a_long_chain_needs_no_deep_stack() -> None:
    length = 20_000
    needs = [Need([at + 1], 1) for at in range(length)] + [Need([length], 1)]
    needs[length] = Need([0], 1)
    among = never(needs)
    assert len(among) == length + 1
    assert [len(group) for group in circles(needs, among)] == [length + 1]


State = tuple[tuple[tuple[int, ...], ...], tuple[frozenset[int], ...]]


def queues_of(threads: Sequence[tuple[frozenset[int], int | None]], order: Sequence[int]) -> State:
    """Return for each lock its queue of threads: the holder first."""
    locks = range(3)
    queues = []
    for lock in locks:
        holder = [at for at, (held, _) in enumerate(threads) if lock in held]
        waiting = [at for at in order if threads[at][1] == lock]
        queues.append((*holder, *waiting))
    return tuple(queues), tuple(held for held, _ in threads)


def worlds() -> Iterator[tuple[list[tuple[frozenset[int], int | None]], tuple[int, ...]]]:
    """Yield every world of three locks and three threads that a history can lead to.

    Each lock is held by one thread or by none; each thread waits for one lock or for none.
    """
    for owners in itertools.product((None, 0, 1, 2), repeat=3):
        held = [
            frozenset(lock for lock, owner in enumerate(owners) if owner == at) for at in range(3)
        ]
        for waits in itertools.product((None, 0, 1, 2), repeat=3):
            if any(lock is not None and owners[lock] is None for lock in waits):
                continue  # nobody waits for a free lock
            for order in itertools.permutations(range(3)):
                yield list(zip(held, waits, strict=True)), order


def play(state: State) -> set[tuple[int, int]]:
    """Return which (thread, lock) never is granted, however long threads that can go on go on.

    A thread that waits for nothing gives back one of its locks after the other. To give back, and
    to be granted, disables nobody else's step: so one order of the steps stands for all.
    """
    queues, _ = state
    live = [list(queue) for queue in queues]
    while True:
        waiting = {at for queue in live for at in queue[1:]}
        able = [queue for queue in live if queue and queue[0] not in waiting]
        if not able:
            return {(at, lock) for lock, queue in enumerate(live) for at in queue[1:]}
        able[0].pop(0)


def test_deadlocks_are_those_that_a_play_of_all_steps_ends_in() -> None:
    seen: set[State] = set()
    dead = 0
    for threads, order in worlds():
        state = queues_of(threads, order)
        if state in seen:
            continue
        seen.add(state)
        world = World()
        for lock, queue in enumerate(state[0]):
            for at in queue:
                world.queue(f"/locks/{lock}", 1, thread(f"t{at}"))
        found = world.look()
        expected = play(state)
        assert bool(found.deadlocks) == bool(expected), state
        assert all(one.certain for one in found.deadlocks)
        behind = {
            (waiter.place.identity, waiter.lock.path)
            for one in found.deadlocks
            for waiter, _ in one.chain
        }
        assert behind <= {(thread(f"t{at}"), f"/locks/{lock}") for at, lock in expected}
        for one in found.deadlocks:
            assert broken(world, one, expected), state
            dead += 1
    assert len(seen) > 1000
    assert dead > 100


def broken(world: World, deadlock: Deadlock, before: set[tuple[int, int]]) -> bool:
    """Whether fewer are stuck once the holder that is named is gone."""
    assert deadlock.breaks is not None
    parent, _, name = deadlock.breaks.place.path.rpartition("/")
    queues: list[tuple[int, ...]] = []
    for lock in range(3):
        nodes = [f"/locks/{lock}/{it}" for it in world.facts.children(f"/locks/{lock}") or ()]
        data = [world.facts.data(node) or b"" for node in nodes if node != f"{parent}/{name}"]
        queues.append(tuple(int(it[-1:]) for it in data))
    return len(play((tuple(queues), ()))) < len(before)


# Cases.


def crossed(first: str, second: str, one: int = 1, two: int = 2) -> list[Any]:
    """Two owners, each of which holds what the other waits for."""
    return [("/a", one, first), ("/b", two, second), ("/b", one, first), ("/a", two, second)]


def played(*steps: Any) -> World:
    """Return a world of contenders, and of semaphores: these have who holds and who waits."""
    world = World()
    for path, *how in steps:
        (world.semaphore if isinstance(how[1], list) else world.queue)(path, *how)
    return world


ONE, TWO, THREE = map(thread, ("one", "two", "three"))
READERS = [("/a", 1, name, "read") for name in (ONE, TWO, THREE)]
WRITER = [("/b", 2, "h:2:w"), ("/a", 2, "h:2:w", "write")]
LATE = [("/a", 1, ONE, "read"), ("/b", 3, THREE), ("/a", 2, TWO, "write"), ("/a", 3, THREE, "read")]
PERMITS = [("/s", 2, [(1, ONE), (2, TWO)], [(3, THREE)]), ("/b", 3, THREE), ("/b", 1, ONE)]
GATHERED = ("/s", 2, [(1, ONE), (2, TWO), (3, THREE), (3, THREE)], [(3, THREE)])
QUEUE = [
    ("/q", 7, "h-7"),
    ("/q", 8, "h-8"),
    ("/q", 7, "h-7"),
    ("/s", 1, [(9, "h-9")], [(9, "h-9")]),
]
CASES: dict[str, tuple[list[Any], list[tuple[bool, set[str]]]]] = {
    "threads that wait for each other": (crossed(ONE, TWO), [(True, {ONE, TWO})]),
    "processes that may wait for each other": (crossed("p", "q"), [(False, {"p", "q"})]),
    "they have no names": (crossed("", ""), [(False, {""})]),
    "what belongs to no session waits for nothing": (crossed("left", "over", 0, 0), []),
    "threads of one process are told apart": (
        [("/a", 1, ONE), ("/b", 2, THREE), ("/b", 1, TWO), ("/a", 2, THREE)],
        [],
    ),
    "a name of a process may be that of a named thread": (
        [("/a", 1, "worker"), ("/b", 2, THREE), ("/b", 1, TWO), ("/a", 2, THREE)],
        [(False, {TWO, THREE})],
    ),
    "threads of one process may queue for one lock": (QUEUE, []),
    "and may be stuck by others": (
        [*QUEUE, ("/b", 8, "h-8"), ("/c", 8, "h-8"), ("/b", 7, "h-7")],
        [(False, {"h-7", "h-8"})],
    ),
    "equal names in different sessions are different owners": (
        [("/a", 1, "it"), ("/b", 2, "it"), ("/b", 3, "it"), ("/a", 4, "it")],
        [],
    ),
    "readers do not block readers": ([(*it, "read") for it in crossed(ONE, TWO)], []),
    "a writer needs all readers to go, and none waits": ([*READERS, *WRITER], []),
    "one of them waits": ([*READERS, *WRITER, ("/b", 1, ONE)], [(True, {ONE, "h:2:w"})]),
    "readers wait behind a writer that waits": (
        [*LATE, ("/b", 1, ONE)],
        [(True, {ONE, TWO, THREE})],
    ),
    "one permit of several is enough": (PERMITS, []),
    "none will be given back": ([*PERMITS, ("/b", 2, TWO)], [(True, {ONE, THREE})]),
    "all permits that are wanted must be given back": (
        [GATHERED, ("/b", 3, THREE), ("/b", 1, ONE)],
        [(True, {ONE, THREE})],
    ),
    "who stands for election keeps no lock by that": (
        [("/e", 1, "x", "latch"), ("/a", 2, "y"), ("/e", 2, "y", "latch"), ("/a", 1, "x")],
        [],
    ),
    "a possible deadlock that shares nothing with a certain one": (
        [*crossed(ONE, TWO), ("/x", 8, "p"), ("/y", 9, "q"), ("/y", 8, "p"), ("/x", 9, "q")],
        [(True, {ONE, TWO}), (False, {"p", "q"})],
    ),
}


@pytest.mark.parametrize(("steps", "expected"), CASES.values(), ids=CASES)
def test_deadlocks(steps: list[Any], expected: list[tuple[bool, set[str]]]) -> None:
    assert stuck(played(*steps).look()) == expected


def test_the_chain_and_what_breaks_it() -> None:
    world = played(*crossed(ONE, TWO))
    behind = world.queue("/a", 3, THREE)
    (one,) = world.look().deadlocks
    assert [waiter.lock.path for waiter, _ in one.chain] == ["/b", "/a"]
    assert one.breaks is not None
    assert one.breaks.lock.path == "/b", "the youngest holder loses the least"
    assert behind not in one.involved, "who waits behind a deadlock is not in it"


def test_a_process_that_waits_for_many_locks() -> None:
    paths = [f"/{at:02}" for at in range(50)]
    world = played(*((path, 1, "one") for path in [*paths, *paths]))
    assert world.look().deadlocks != [], "each of them may wait for the next"
    held = [(path, session, name) for path in paths for session, name in ((1, "one"), (3, "three"))]
    world = played(("/99", 2, "two"), *held)
    assert world.look().deadlocks == []
    world.queue("/99", 1, "one")
    assert world.look().deadlocks == []
    world.queue("/25", 2, "two")
    ((sure, who),) = stuck(world.look())
    assert not sure
    assert who >= {"one", "two"}


# How it is shown.


def drawn(found: Look) -> list[str]:
    """Return the lines of the text, without ages."""
    return [re.sub(r" \(\d\w*\)", "", line) for line in draw.text(found, "/locks")]


def test_text_of_a_deadlock() -> None:
    lines = drawn(played(*crossed(ONE, TWO)).look())
    assert lines[:-1] == [
        "host:17:one holds /a",
        "  host:17:two waits for /a",
        "    host:17:two holds /b",
        "      host:17:one waits for /b",
        "        host:17:one holds /a: see above",
        "",
        "DEADLOCK (certain), 4 contenders:",
        "  host:17:one waits for /b: host:17:two holds it",
        "  host:17:two waits for /a: host:17:one holds it",
    ]
    command = lines[-1].partition(": ")[2]
    assert shlex.split(command) == [
        "zklock", "break", "/b", "0000000000000007-0000000000"
    ]  # fmt: skip


def test_who_is_waited_for_comes_first_and_each_queue_once() -> None:
    world = played(
        ("/b", 2, TWO), ("/b", 3, THREE), ("/s", 2, [(1, ONE), (4, "h:4:x")], [(2, TWO)])
    )
    lines = drawn(world.look())
    assert lines == [
        "host:17:one holds /s",
        "  host:17:two waits for /s",
        "    host:17:two holds /b",
        "      host:17:three waits for /b",
        "h:4:x holds /s: see above",
        "no deadlock: 2 wait",
    ]


def test_a_queue_whose_holder_is_not_known() -> None:
    world = World()
    paths = [world.queue("/x", 1, name) for name in (ONE, TWO)]
    look = world.look()
    (lock,) = look.locks
    waiter = replace(lock, places=[it for it in lock.places if it.path == paths[1]])
    assert drawn(replace(look, locks=[waiter], stands=stands([waiter]))) == [
        "host:17:two waits for /x",
        "no deadlock: 1 waits",
    ]


def test_what_would_steer_a_terminal_is_escaped() -> None:
    world = World()
    world.queue("/x", 1, "a\x1b[31m")
    world.queue("/x", 2, 'b"<\n')
    found = world.look()
    for shown in (draw.text(found, "/"), draw.dot(found), draw.mermaid(found)):
        text = "".join(shown)
        assert not set(text) & {"\x1b", "\n"}
    (edge,) = (line for line in draw.dot(found) if "->" in line)
    assert edge == r"""  "b\"<\\x0a 0x2" -> "a\\x1b[31m 0x1" [label="/x"];"""


def test_a_graph_for_graphviz_and_mermaid() -> None:
    found = played(*crossed(ONE, TWO), ("/a", 3, THREE)).look()
    dot = list(draw.dot(found))
    one, two, three = ('"host:17:one 0x1"', '"host:17:two 0x2"', '"host:17:three 0x3"')
    assert f'  {one} -> {two} [label="/b", color=red, penwidth=2];' in dot
    assert f'  {two} -> {one} [label="/a", color=red, penwidth=2];' in dot
    assert f'  {three} -> {two} [label="/a"];' in dot
    assert list(draw.mermaid(found)) == [
        "graph LR",
        '  n0["host:17:two 0x2"] ==>|"/a"| n1["host:17:one 0x1"]',
        '  n2["host:17:three 0x3"] -->|"/a"| n0["host:17:two 0x2"]',
        '  n1["host:17:one 0x1"] ==>|"/b"| n0["host:17:two 0x2"]',
    ]


def test_json() -> None:
    world = played(*crossed(ONE, TWO))
    told = json.loads(json_of(**draw.to_json(world.look())))
    assert told["version"] == 1
    assert [one["holds"] for one in told["contenders"]] == [True, False, True, False]
    (first, second) = told["waits"]
    assert first["behind"] == [told["contenders"][0]["node"]]
    assert (first["until_gone"], second["lock"]) == (1, "/b")
    (dead,) = told["deadlocks"]
    assert dead["certain"] is True
    assert [step["waiter"]["identity"] for step in dead["chain"]] == [ONE, TWO]
    assert len(dead["nodes"]) == 4
    assert dead["command"] == "zklock break /b 0000000000000007-0000000000"


@pytest.mark.parametrize("count", [1000])
def test_a_long_queue_is_drawn_in_a_blink(count: int) -> None:
    world = World()
    for at in range(count):
        world.queue(f"/locks/{at}", 1, thread(f"t{at}"))
        world.queue(f"/locks/{at}", 1, thread(f"t{at + 1}"))
    lines = list(draw.text(world.look(), "/"))
    assert len(lines) > count
