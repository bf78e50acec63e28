"""The commands that look, at a server that is too busy for some requests."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import zklock
from tests.contract.support import SOON
from tests.contract.test_cli import PATIENCE, Commands
from tests.contract.test_cli_exporter import scrape, serves
from zklock.testing import EmbeddedServer, embedded, wait_for

pytestmark = pytest.mark.hazard("H30")

PATH = "/locks/a"
OPS = ("sync", "getChildren2", "getData", "exists", "delete")


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with embedded() as server:
        yield server


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[zklock.Client]:
    with zklock.connect(server.hosts, timeout=30.0) as client:
        yield client


@pytest.fixture
def zk(server: EmbeddedServer) -> Iterator[Commands]:
    commands = Commands(server.hosts)
    yield commands
    commands.close()


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["ls", "/locks"], 0),
        (["show", PATH], 0),
        (["graph", "/locks"], 0),
        (["top", "--once", "/locks"], 0),
        (["check", PATH, "0000000000000001-0000000000"], 1),
        (["doctor", PATH], 0),
        (["gc", "--yes", "/"], 0),
    ],
    ids=lambda it: it[0] if isinstance(it, list) else "",
)
def test_what_was_refused_is_asked_again(
    server: EmbeddedServer, client: zklock.Client, zk: Commands, command: list[str], status: int
) -> None:
    with zklock.Lock(client, "/free/a"):
        pass
    with zklock.Lock(client, PATH):
        process = zk.start(*command)
        faults = [server.throttle(op, 2) for op in OPS]
        out, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, "ZooKeeper refused" in errors) == (status, False), (out, errors)
    assert faults[1].fired.is_set()


def test_what_the_doctor_may_do_is_tried_again(
    server: EmbeddedServer, client: zklock.Client, zk: Commands
) -> None:
    """A server that is busy forbids nothing, and hides nothing."""
    with zklock.Lock(client, PATH):
        pass
    _, calm, _ = zk.run("doctor", "--json", PATH)
    process = zk.start("doctor", "--json", PATH)
    faults = [server.throttle(op, 2) for op in ("getACL", "multi", "getChildren")]
    out, errors = process.communicate(timeout=PATIENCE)

    def rights(said: str) -> list[str]:
        findings = json.loads(said)["findings"]
        return [it["what"] for it in findings if it["about"] == "acl"]

    assert rights(out) == rights(calm), errors
    assert all(fault.fired.is_set() for fault in faults)


def test_a_run_that_gives_up_may_not_know_who_holds(
    server: EmbeddedServer, client: zklock.Client, zk: Commands
) -> None:
    with zklock.Lock(client, PATH):
        fault = server.throttle("getData", 1000)
        process = zk.start("run", "-n", "-v", PATH, "true")
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 75
    assert fault.struck


def test_a_server_that_stays_busy_is_told_of(server: EmbeddedServer, zk: Commands) -> None:
    server.throttle("sync", 1000)
    code, out, errors = zk.run("ls", "--session-timeout", "1")
    assert (code, out) == (69, "")
    assert errors == "zklock: /: no answer within 1 s: check that a quorum is up, and try again\n"


def test_those_that_follow_go_on(
    server: EmbeddedServer, client: zklock.Client, zk: Commands
) -> None:
    with zklock.Lock(client, PATH, identity="a"):
        exporter = zk.start("exporter", "--listen", "127.0.0.1:0", "--interval", "0.1", "/locks")
        watch = zk.start("watch", "--json", PATH)
        wait = zk.start("wait", PATH)
        address = serves(exporter)
        assert watch.stdout is not None
        assert json.loads(watch.stdout.readline())["event"] == "holds"
        wait_for(lambda: len(server.sessions) == 4, SOON)
        listings = server.throttle("getChildren2", 6)
        second = zklock.Lock(client, PATH, identity="b")
        with second.attempt(blocking=False) as grant:
            assert grant is None
        listings.wait(SOON)
        assert [one.poll() for one in (exporter, watch, wait)] == [None] * 3
        assert scrape(address)["zklock_holders"] == {PATH: 1}
    assert wait.wait(PATIENCE) == 0
    wait_for(lambda: "zklock_holders" not in scrape(address), SOON)
