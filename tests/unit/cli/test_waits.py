"""Who waits for whom: against a play of all that can happen, and case by case."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterator, Sequence

import pytest

from tests.unit.cli.views import World
from zklock.cli.view import draw
from zklock.cli.view.text import json_of
from zklock.cli.view.waits import Deadlock, Graph, Need, circles, graph, never


def thread(name: str) -> str:
    return f"host:17:{name}"


def stuck(found: Graph) -> list[tuple[bool, set[str]]]:
    """Return each deadlock: whether it is certain, and who waits in its chain."""
    return [
        (one.certain, {link.waiter.contender.identity for link in one.chain})
        for one in found.deadlocks
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
        found = graph(world.picture().locks)
        expected = play(state)
        assert bool(found.deadlocks) == bool(expected), state
        assert all(one.certain for one in found.deadlocks)
        behind = {
            (link.waiter.contender.identity, link.lock.path)
            for one in found.deadlocks
            for link in one.chain
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
    parent, _, name = deadlock.breaks[1].contender.path.rpartition("/")
    queues: list[tuple[int, ...]] = []
    for lock in range(3):
        folder = world.facts.folders.get(f"/locks/{lock}")
        nodes = [f"/locks/{lock}/{each}" for each in (folder.names if folder else ())]
        kept = [node for node in nodes if node != f"{parent}/{name}"]
        queues.append(tuple(int(world.facts.seen[node].data[-1:]) for node in kept))
    return len(play((tuple(queues), ()))) < len(before)


# Cases.


def crossed(first: str, second: str, one: int = 1, two: int = 2) -> World:
    """Two owners, each of which holds what the other waits for."""
    world = World()
    world.queue("/locks/a", one, first)
    world.queue("/locks/b", two, second)
    world.queue("/locks/b", one, first)
    world.queue("/locks/a", two, second)
    return world


def test_threads_that_wait_for_each_other() -> None:
    found = graph(crossed(thread("a"), thread("b")).picture().locks)
    assert stuck(found) == [(True, {thread("a"), thread("b")})]
    (one,) = found.deadlocks
    assert [link.lock.path for link in one.chain] == ["/locks/b", "/locks/a"]
    assert one.breaks is not None
    assert one.breaks[0].path == "/locks/b", "the youngest holder loses the least"


def test_processes_that_may_wait_for_each_other() -> None:
    assert stuck(graph(crossed("host-7", "host-8").picture().locks)) == [
        (False, {"host-7", "host-8"})
    ]
    assert stuck(graph(crossed("", "").picture().locks)) == [(False, {""})]


def test_threads_of_one_process_are_told_apart() -> None:
    world = World()
    world.queue("/a", 1, thread("one"))
    world.queue("/b", 2, thread("three"))
    world.queue("/b", 1, thread("two"))
    world.queue("/a", 2, thread("three"))
    assert graph(world.picture().locks).deadlocks == []


def test_a_name_of_a_process_may_be_that_of_a_named_thread() -> None:
    world = World()
    world.queue("/a", 1, "worker")
    world.queue("/b", 2, thread("three"))
    world.queue("/b", 1, thread("two"))
    world.queue("/a", 2, thread("three"))
    assert stuck(graph(world.picture().locks)) == [(False, {thread("two"), thread("three")})]


def test_threads_of_one_process_may_queue_for_one_lock() -> None:
    world = World()
    for identity in ("host-7", "host-8", "host-7"):
        world.queue("/a", int(identity[-1]), identity)
    world.semaphore("/permits", 1, [(9, "host-9")], [(9, "host-9")])
    assert graph(world.picture().locks).deadlocks == []
    world.queue("/b", 8, "host-8")
    world.queue("/c", 8, "host-8")
    world.queue("/b", 7, "host-7")
    assert stuck(graph(world.picture().locks)) == [(False, {"host-7", "host-8"})]


def test_a_process_that_waits_for_many_locks() -> None:
    world = World()
    for at in range(50):
        world.queue(f"/{at:02}", 1, "one")
    for at in range(50):
        world.queue(f"/{at:02}", 1, "one")
    assert graph(world.picture().locks).deadlocks != [], "each of them may wait for the next"
    world = World()
    world.queue("/99", 2, "two")
    for at in range(50):
        world.queue(f"/{at:02}", 1, "one")
        world.queue(f"/{at:02}", 3, "three")
    assert graph(world.picture().locks).deadlocks == []
    world.queue("/99", 1, "one")
    assert graph(world.picture().locks).deadlocks == []
    world.queue("/25", 2, "two")
    ((sure, who),) = stuck(graph(world.picture().locks))
    assert not sure
    assert who >= {"one", "two"}


def test_equal_names_in_different_sessions_are_different_owners() -> None:
    world = World()
    world.queue("/a", 1, "worker")
    world.queue("/b", 2, "worker")
    world.queue("/b", 3, "worker")
    world.queue("/a", 4, "worker")
    assert graph(world.picture().locks).deadlocks == []


def test_who_waits_behind_a_deadlock_is_not_in_it() -> None:
    world = crossed(thread("a"), thread("b"))
    behind = world.queue("/locks/a", 3, thread("c"))
    (one,) = graph(world.picture().locks).deadlocks
    assert behind not in one.involved


def test_readers_do_not_block_readers() -> None:
    world = World()
    world.queue("/a", 1, thread("one"), "read")
    world.queue("/b", 2, thread("two"), "read")
    world.queue("/b", 1, thread("one"), "read")
    world.queue("/a", 2, thread("two"), "read")
    assert graph(world.picture().locks).deadlocks == []


def test_a_writer_needs_all_readers_to_go() -> None:
    world = World()
    for reader in ("one", "two", "three"):
        world.queue("/a", 1, thread(reader), "read")
    world.queue("/b", 2, thread("writer"))
    world.queue("/a", 2, thread("writer"), "write")
    assert graph(world.picture().locks).deadlocks == []
    world.queue("/b", 1, thread("one"))
    assert stuck(graph(world.picture().locks)) == [(True, {thread("one"), thread("writer")})]


def test_readers_wait_behind_a_writer_that_waits() -> None:
    world = World()
    world.queue("/a", 1, thread("first"), "read")
    world.queue("/b", 3, thread("late"))
    world.queue("/a", 2, thread("writer"), "write")
    world.queue("/a", 3, thread("late"), "read")
    world.queue("/b", 1, thread("first"))
    assert stuck(graph(world.picture().locks)) == [
        (True, {thread("first"), thread("writer"), thread("late")})
    ]


def test_one_permit_of_several_is_enough() -> None:
    world = World()
    holders = [(1, thread("one")), (2, thread("two"))]
    world.semaphore("/permits", 2, holders, [(3, thread("three"))])
    world.queue("/b", 3, thread("three"))
    world.queue("/b", 1, thread("one"))
    assert graph(world.picture().locks).deadlocks == [], "the second permit will be given back"
    world.queue("/b", 2, thread("two"))
    assert stuck(graph(world.picture().locks))[0][0]


def test_all_permits_that_are_wanted_must_be_given_back() -> None:
    """The first waiter has gathered two leases; so both holders must go."""
    world = World()
    me = (3, thread("three"))
    world.semaphore("/permits", 2, [(1, thread("one")), (2, thread("two")), me, me], [me])
    world.queue("/b", 3, thread("three"))
    world.queue("/b", 1, thread("one"))
    assert stuck(graph(world.picture().locks)) == [(True, {thread("one"), thread("three")})]


def test_who_stands_for_election_keeps_no_lock_by_that() -> None:
    world = World()
    world.queue("/election", 1, "leader", "latch")
    world.queue("/a", 2, "member")
    world.queue("/election", 2, "member", "latch")
    world.queue("/a", 1, "leader")
    assert graph(world.picture().locks).deadlocks == []


def test_what_belongs_to_no_session_waits_for_nothing() -> None:
    assert graph(crossed("left", "over", 0, 0).picture().locks).deadlocks == []


def test_a_possible_deadlock_that_shares_nothing_with_a_certain_one_is_told_too() -> None:
    world = crossed(thread("a"), thread("b"))
    for path, session, identity in (
        ("/x", 8, "p"), ("/y", 9, "q"), ("/y", 8, "p"), ("/x", 9, "q"),
    ):  # fmt: skip
        world.queue(path, session, identity)
    found = graph(world.picture().locks)
    assert [one.certain for one in found.deadlocks] == [True, False]
    assert graph(world.picture().locks).without(found.deadlocks[:1]).deadlocks == [
        found.deadlocks[1]
    ]


# How it is shown.


def test_text_of_a_deadlock() -> None:
    found = graph(crossed(thread("a"), thread("b")).picture().locks)
    lines = list(draw.text(found, "/locks", draw.ASCII))
    assert [line.partition("  held")[0].partition("  waits")[0] for line in lines[:5]] == [
        "host:17:a",
        "`- /locks/a",
        "   `- host:17:b",
        "      `- /locks/b",
        "         `- host:17:a",
    ]
    assert lines[5:9] == [
        "",
        "DEADLOCK (certain), 4 contenders:",
        "  host:17:a waits for /locks/b: host:17:b holds it",
        "  host:17:b waits for /locks/a: host:17:a holds it",
    ]
    command = lines[9].partition(": ")[2]
    assert shlex.split(command) == [
        "zklock", "break", "/locks/b", "0000000000000007-0000000000"
    ]  # fmt: skip


def test_text_of_a_queue() -> None:
    world = World()
    for name in ("a", "b", "c"):
        world.queue("/locks/x", 1, thread(name))
    lines = list(draw.text(graph(world.picture().locks), "/locks"))
    assert [line.split("  ")[0] for line in lines] == [
        "host:17:a",
        "└─ /locks/x",
        "",
        "",
        "no deadlock: 2 wait",
    ]
    assert lines[2].lstrip().startswith("├─ host:17:b  waits ")
    assert lines[3].lstrip().startswith("└─ host:17:c  waits ")


def test_what_would_steer_a_terminal_is_escaped() -> None:
    world = World()
    world.queue("/x", 1, "a\x1b[31m")
    world.queue("/x", 2, 'b"<\n')
    found = graph(world.picture().locks)
    for shown in (draw.text(found, "/"), draw.dot(found), draw.mermaid(found)):
        text = "".join(shown)
        assert not set(text) & {"\x1b", "\n"}
    (label,) = (line for line in draw.dot(found) if "n0 [label" in line)
    assert label == r'  n0 [label="b\"<\\x0a"];'


def test_a_graph_for_graphviz_and_mermaid() -> None:
    found = graph(crossed(thread("a"), thread("b")).picture().locks)
    dot = list(draw.dot(found))
    assert '  n0 -> n1 [label="/locks/a", color=red, penwidth=2];' in dot
    assert '  n1 -> n0 [label="/locks/b", color=red, penwidth=2];' in dot
    mermaid = list(draw.mermaid(found))
    assert mermaid[0] == "graph LR"
    assert '  n0 -->|"/locks/a"| n1' in mermaid
    assert mermaid[-1] == "  linkStyle 0,1 stroke:#c00,stroke-width:3px"


def test_json() -> None:
    world = crossed(thread("a"), thread("b"))
    told = json.loads(json_of(**draw.to_json(graph(world.picture().locks))))
    assert told["version"] == 1
    assert [one["holds"] for one in told["contenders"]] == [True, False, True, False]
    (first, second) = told["waits"]
    assert first["behind"] == [told["contenders"][0]["node"]]
    assert (first["until_gone"], second["lock"]) == (1, "/locks/b")
    (dead,) = told["deadlocks"]
    assert dead["certain"] is True
    assert [step["waiter"]["identity"] for step in dead["chain"]] == [thread("a"), thread("b")]
    assert len(dead["nodes"]) == 4
    assert dead["command"] == "zklock break /locks/b 0000000000000007-0000000000"


@pytest.mark.parametrize("count", [1000])
def test_a_long_queue_is_drawn_in_a_blink(count: int) -> None:
    world = World()
    for at in range(count):
        world.queue(f"/locks/{at}", 1, thread(f"t{at}"))
        world.queue(f"/locks/{at}", 1, thread(f"t{at + 1}"))
    lines = list(draw.text(graph(world.picture().locks), "/"))
    assert len(lines) > count
