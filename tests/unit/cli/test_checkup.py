"""What the doctor finds, case by case: the facts are made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.cli.views import World
from zklock._recipes import names
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
    Server(f"zk{at}:2181", mode, "3.8.4", ahead=(-1.0, 1.0))
    for at, mode in enumerate(["leader", *["follower"] * 2])
]


def examined(world: World | None = None, **changes: Any) -> Examined:
    """Return what a healthy ensemble shows, but for the changes."""
    world = world or World()
    seen = world.look()
    healthy = Examined(
        path="/locks",
        asked=10.0,
        granted=10.0,
        servers=VOTERS,
        limits=Limits("from its configuration", 2.0, 4.0, 40.0, 5, 3),
        reads=[0.001, 0.002],
        writes=[0.004, 0.009],
        boottime=True,
        chroot="",
        chroot_exists=True,
        rights=Rights("/locks", False, False, True),
        own=Rights("/locks", True, True, True),
        exists=True,
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
    assert bad(examined()) == []
    assert [finding.about for finding in found if finding.level is Level.NOTE] == ["cut off"]
    lease = next(finding for finding in found if finding.about == "lease")
    assert "at least 1.33 s before the next grant" in lease.what  # (0.9 - 2/3) * 10 - 1


CASES: list[tuple[dict[str, Any], Level, str, str]] = [
    ({"servers": [*VOTERS[:2], Server("zk3:1", trouble="is silent")]}, Level.WARNING, "server",
     "zk3:1 is silent"),
    ({"servers": [Server("zk1:1", "read-only", "3.8.4")]}, Level.PROBLEM, "server", "no quorum"),
    ({"servers": [Server("zk1:1", "leader", "3.8.4", outstanding=900)]}, Level.WARNING, "server",
     "900 outstanding requests"),
    ({"servers": [Server("zk1:1", "leader", "3.4.14")]}, Level.WARNING, "version", "3.4.14"),
    ({"asked": 60.0, "granted": 40.0, "limits": Limits("x", 2.0, 4.0, 40.0)}, Level.WARNING,
     "session", "60 s, and ZooKeeper granted 40 s (it grants 4 to 40 s)"),
    ({"asked": 4.0, "granted": 4.0}, Level.PROBLEM, "lease", "before its holder knows"),
    ({"asked": 5.0, "granted": 5.0}, Level.WARNING, "lease", "only 0.17 s before"),
    ({"asked": 0.5, "granted": 0.5, "limits": Limits("x", 0.13, 0.26, 2.6, 5, 3)}, Level.WARNING,
     "lease", "only 0.05 s before"),
    ({"servers": [Server("zk1:1", "leader", "3.6.4")]}, Level.WARNING, "version", "3.6.4"),
    ({"alike": 49, "limits": Limits("x", 2.0, 4.0, 40.0, 5, 3, per_address=60)}, Level.WARNING,
     "connections", "49 of the 60 connections"),
    ({"local": True}, Level.WARNING, "sessions", "local to a server"),
    ({"own": Rights("/", False, None, True, refusal="its quota is used up")}, Level.PROBLEM,
     "refused", "no lock can be acquired at /locks"),
    ({"writes": [0.004, 1.1]}, Level.WARNING, "speed", "a write took 1100.0 ms"),
    ({"writes": [0.004, 3.4]}, Level.PROBLEM, "speed", "costs the connection"),
    ({"boottime": False}, Level.WARNING, "clock", "CLOCK_BOOTTIME"),
    ({"chroot": "/apps", "chroot_exists": False}, Level.PROBLEM, "chroot", "/apps does not exist"),
    ({"own": Rights("/locks", True, False, False)}, Level.WARNING, "acl",
     "there is no delete and read permission on /locks"),
    ({"own": Rights("/locks", False, None, True)}, Level.WARNING, "acl",
     "there is no create permission on /locks"),
    ({"own": Rights("/", False, None, True), "exists": False}, Level.WARNING,
     "acl", "there is no create permission on /"),
    ({"seen": Look(denied=["/locks/x"])}, Level.WARNING, "acl", "such as /locks/x"),
]  # fmt: skip


NOTES: list[tuple[dict[str, Any], str, str]] = [
    ({"servers": [Server("zk1:1", "standalone", "3.8.4")]}, "ensemble", "only one server"),
    ({"servers": VOTERS[:2], "limits": Limits("x", 2.0, 4.0, 40.0, 5)}, "ensemble",
     "names 2 voters: if these are all, they tolerate no more failures than 1"),
    ({"limits": Limits("x", 2.0, 4.0, 40.0, 5, 4)}, "ensemble",
     "4 voters tolerate no more failures than 3"),
    ({"servers": VOTERS[:1]}, "ensemble", "has 3 voters, but --hosts names only 1 of its servers"),
    ({"servers": [replace(VOTERS[0], ahead=(7.2, 9.2))]}, "clocks",
     "the clock of zk0:2181 is 7 s ahead of this machine's"),
    ({"servers": [replace(VOTERS[0], ahead=(-70.0, -68.0))]}, "clocks",
     "the clock of zk0:2181 is 68 s behind this machine's"),
    ({"servers": [VOTERS[0], Server("zk9:1", "follower", "3.9.3"), VOTERS[1]]}, "version",
     "different versions: 3.8.4, 3.9.3"),
    ({"servers": [*VOTERS, Server("zk9:1", "observer", "3.8.4")]}, "server", "an observer"),
    ({"exists": False}, "path", "does not exist yet"),
    ({"rights": Rights("/locks", True, True, True)}, "acl", "may delete"),
]  # fmt: skip


MUTE = [replace(one, ahead=None) for one in VOTERS]

UNKNOWN: list[tuple[dict[str, Any], str, str]] = [
    ({"servers": [*VOTERS[:2], Server("zk3:1", ahead=(0.0, 2.0))]}, "server",
     "zk3:1 serves, but does not report its version"),
    ({"limits": None}, "lease", "tickTime is not known"),
    ({"limits": Limits("x", 2.0, 4.0, 40.0)}, "cut off", "syncLimit is not known"),
    ({"servers": VOTERS[:1], "limits": Limits("x", 2.0, 4.0, 40.0, voters=3)}, "cut off",
     "syncLimit is not known"),
    ({"servers": MUTE}, "clocks", "clock agrees with the servers'"),
    ({"rights": None}, "acl", "may not read the ACL of /locks"),
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


def test_of_a_server_that_stands_alone_there_is_no_sync_limit_to_learn() -> None:
    it = examined(
        servers=[Server("zk1:1", "standalone", "3.8.4", ahead=(0.0, 2.0))],
        limits=Limits("x", 2.0, 4.0, 40.0, voters=0),
    )
    assert "cut off" not in {finding.about for finding in findings(it)}


def test_one_voter_is_one_server() -> None:
    it = examined(servers=VOTERS[:1], limits=Limits("x", 2.0, 4.0, 40.0, 5, 1))
    (one,) = (finding for finding in findings(it) if finding.about == "ensemble")
    assert "only one server" in one.what


def test_who_may_take_locks() -> None:
    fine = [finding.what for finding in findings(examined()) if finding.about == "acl"]
    assert fine == ["only clients with credentials can take locks on /locks, and this command can"]
    silent = examined(own=None, rights=None)
    assert "acl" not in {finding.about for finding in findings(silent)}


def test_nodes_that_seem_to_come_from_the_future() -> None:
    it = examined(servers=MUTE, seen=Look(behind=60.0))
    (one,) = (found for found in findings(it) if found.about == "clocks")
    assert one.level is Level.NOTE
    assert "60 s behind that of ZooKeeper's leader, or more" in one.what


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
