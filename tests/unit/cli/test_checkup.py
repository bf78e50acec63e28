"""What the doctor finds, case by case: the facts are made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.cli.views import World
from zklock._recipes import names
from zklock._shell.refusals import READ_ONLY, Refusal
from zklock.cli.view.checkup import (
    Examined,
    Finding,
    Level,
    Limits,
    Rights,
    Server,
    findings,
    worst,
)
from zklock.cli.view.model import Look, Znode

VOTERS = [
    Server(f"zk{at}:2181", mode, "3.8.4") for at, mode in enumerate(["leader", *["follower"] * 2])
]


def examined(world: World | None = None, **changes: Any) -> Examined:
    """Return what a healthy ensemble shows, but for the changes."""
    world = world or World()
    seen = world.look()
    healthy = Examined(
        path="/locks",
        nearest="/locks",
        asked=10.0,
        granted=10.0,
        servers=VOTERS,
        limits=Limits("from its configuration", 2.0, 4.0, 40.0, 3),
        reads=[0.001, 0.002],
        writes=[0.004, 0.009],
        boottime=True,
        chroot="",
        chroot_exists=True,
        exposed=False,
        own=Rights(),
        seen=seen,
        facts=world.facts,
    )
    return replace(healthy, **changes)


def bad(it: Examined) -> list[Finding]:
    """Return the findings that are neither fine nor a note."""
    return [finding for finding in findings(it) if finding.level >= Level.WARNING]


def test_a_healthy_ensemble() -> None:
    found = findings(examined())
    assert worst(found) == 0
    assert {finding.level for finding in found} == {Level.OK}
    lease = next(finding for finding in found if finding.about == "lease")
    assert "at least 1.33 s before the next grant" in lease.what  # (0.9 - 2/3) * 10 - 1


CASES: list[tuple[dict[str, Any], Level, str, str]] = [
    ({"servers": [*VOTERS[:2], Server("zk3:1", trouble=Refusal("is silent"))]}, Level.WARNING,
     "server", "zk3:1 is silent"),
    ({"servers": [*VOTERS[:2], Server("zk3:1", "read-only", "3.8.4", READ_ONLY)]}, Level.WARNING,
     "server", "no quorum"),
    ({"asked": 60.0, "granted": 40.0}, Level.WARNING, "session",
     "60 s, and ZooKeeper granted 40 s (it grants 4 to 40 s)"),
    ({"asked": 60.0, "granted": 40.0, "limits": None}, Level.WARNING, "session",
     "ZooKeeper granted 40 s"),
    ({"asked": 4.0, "granted": 4.0}, Level.PROBLEM, "lease", "before its holder knows"),
    ({"asked": 5.0, "granted": 5.0}, Level.WARNING, "lease", "at least 0.17 s before"),
    ({"asked": 0.5, "granted": 0.5, "limits": Limits("x", 0.13, 0.26, 2.6, 3)}, Level.WARNING,
     "lease", "at least 0.05 s before"),
    ({"own": Rights(refusal="its quota is used up")}, Level.PROBLEM, "refused",
     "no lock can be acquired at /locks"),
    ({"writes": [0.004, 1.1]}, Level.WARNING, "speed", "a write took 1100.0 ms"),
    ({"writes": [0.004, 3.4]}, Level.PROBLEM, "speed", "costs the connection"),
    ({"boottime": False}, Level.WARNING, "clock", "CLOCK_BOOTTIME"),
    ({"chroot": "/apps", "chroot_exists": False}, Level.PROBLEM, "chroot", "/apps does not exist"),
    ({"own": Rights(["delete", "read"])}, Level.WARNING, "acl",
     "there is no delete and read permission on /locks"),
    ({"own": Rights(["create"]), "nearest": "/"}, Level.WARNING, "acl",
     "there is no create permission on /:"),
    ({"seen": Look(denied=["/locks/x"])}, Level.WARNING, "acl", "reading /locks/x"),
]  # fmt: skip


NOTES: list[tuple[dict[str, Any], str, str]] = [
    ({"servers": [Server("zk1:1", "standalone", "3.8.4")], "limits": Limits("x", 2.0, 4.0, 40.0)},
     "ensemble", "only one server"),
    ({"servers": VOTERS[:1], "limits": Limits("x", 2.0, 4.0, 40.0, 1)}, "ensemble",
     "only one server"),
    ({"servers": [*VOTERS, Server("zk3:1")], "limits": Limits("x", 2.0, 4.0, 40.0, 4)}, "ensemble",
     "4 voters tolerate no more failures than 3"),
    ({"servers": VOTERS[:1]}, "ensemble", "has 3 voters, but --hosts names only 1 of its servers"),
    ({"seen": Look(behind=60.0)}, "clocks", "60 s or more behind that of ZooKeeper's leader"),
    ({"nearest": "/"}, "path", "does not exist yet"),
    ({"exposed": True}, "acl", "may delete"),
]  # fmt: skip


UNKNOWN: list[tuple[dict[str, Any], str, str]] = [
    ({"servers": [*VOTERS[:2], Server("zk3:1")]}, "server",
     "zk3:1 serves, but does not tell its version"),
    ({"limits": None}, "lease", "tickTime is not known"),
    ({"exposed": None}, "acl", "may not read the ACL of /locks"),
]  # fmt: skip


ALL = [
    *CASES,
    *((changes, Level.NOTE, about, what) for changes, about, what in NOTES),
    *((changes, Level.UNKNOWN, about, what) for changes, about, what in UNKNOWN),
]


@pytest.mark.parametrize(("changes", "level", "about", "what"), ALL, ids=lambda it: str(it)[:30])
def test_what_is_found(changes: dict[str, Any], level: Level, about: str, what: str) -> None:
    it = examined(**changes)
    found = findings(it)
    (one,) = (f for f in found if f.level is level and f.about == about and what in f.what)
    assert one.to_json()["level"] == level.name.lower()
    assert one.todo, "each says what to do"
    assert worst(found) == max(level, 0)
    assert [each.about for each in bad(it)].count(about) == (level > Level.NOTE)
    if level is Level.UNKNOWN:
        assert [each for each in found if each.level is level] == [one]


def test_nothing_is_said_of_an_acl_where_nothing_could_be_tried() -> None:
    silent = examined(own=None, exposed=None)
    assert "acl" not in {finding.about for finding in findings(silent)}


def orphaned(world: World) -> None:
    world.queue("/locks/a", 0, "left behind")
    world.queue("/locks/a", 5, "waits for ever")


def kazoos(world: World) -> None:
    world.queue("/locks/a", 1, "ours")
    world.node(f"/locks/a/{'0' * 32}__lock__0000000001", b"kazoo", 2)


def crossed(world: World) -> None:
    for path, session in (("/a", 1), ("/b", 2), ("/b", 1), ("/a", 2)):
        world.queue(path, session, f"h:1:t{session}")


def perhaps_crossed(world: World) -> None:
    for path, session in (("/a", 1), ("/b", 2), ("/b", 1), ("/a", 2)):
        world.queue(path, session, f"p{session}")


@pytest.mark.parametrize(
    ("play", "level", "about", "todo"),
    [
        (orphaned, Level.PROBLEM, "orphan", "zklock break /locks/a 0000000000000007-0000000000"),
        (kazoos, Level.WARNING, "kazoo", "extra_lock_patterns"),
        (crossed, Level.PROBLEM, "deadlock", "zklock break /b 0000000000000007-0000000000"),
        (perhaps_crossed, Level.WARNING, "deadlock", "zklock break /b"),
    ],
)
def test_contenders(play: Callable[[World], None], level: Level, about: str, todo: str) -> None:
    world = World()
    play(world)
    (found,) = bad(examined(world))
    assert (found.level, found.about) == (level, about)
    assert todo in found.what + found.todo


@pytest.mark.parametrize(
    ("number", "level"),
    [
        (names.RENEW_AT - 1, None),
        (names.RENEW_AT, Level.WARNING),
        (names.EXHAUSTED_AT, Level.PROBLEM),
        (-5, Level.PROBLEM),
    ],
)
def test_numbers_that_run_out(number: int, level: Level | None) -> None:
    world = World()
    world.node(f"/locks/a/_c_{'0' * 32}-lock-{number:010d}", b"x")
    assert [finding.level for finding in bad(examined(world))] == ([level] if level else [])


def test_numbers_of_a_lock_that_is_free() -> None:
    """Each child that came and went counts two changes, in a signed number of 32 bits."""
    for made, count in ((names.RENEW_AT - 1, 0), (names.RENEW_AT, 1)):
        world = World()
        changes = (2 * made + 2**31) % 2**32 - 2**31
        world.facts.nodes["/locks/a"] = Znode((), changes=changes)
        assert len(bad(examined(world))) == count


def test_the_root_has_no_numbers_to_run_out() -> None:
    """No lock is there, and ZooKeeper counts its changes from -1."""
    world = World()
    world.facts.nodes["/"] = Znode(["zookeeper"], changes=-1)
    assert bad(examined(world)) == []
