"""``zklock demo`` as a user runs it: a process of its own, with a real ZooKeeper."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from kazoo.client import KazooClient

from zklock.cli.demo import pool_checks
from zklock.cli.demo.checks import CHECKS
from zklock.cli.demo.events import Event
from zklock.cli.demo.ledger import Ledger
from zklock.testing import wait_for

pytestmark = pytest.mark.slow

WORKERS = {"w1", "w2", "w3", "w4", "w5", "w6"}
BOUND = 60.0
"""Seconds within which a demo is over."""


class Demo:
    """A running ``zklock demo --json``, with the events that it has printed so far."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.events: list[dict[str, Any]] = []
        self.descendants: set[int] = set()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "zklock.cli", "demo", "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(folder)},
        )
        self._errors: list[bytes] = []
        self._threads = [
            threading.Thread(target=self._read, args=(self.process.stdout,)),
            threading.Thread(target=self._read_errors, args=(self.process.stderr,)),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            self.events.append(json.loads(line))

    def _read_errors(self, stream: IO[bytes]) -> None:
        self._errors.extend(stream)

    @property
    def errors(self) -> str:
        return b"".join(self._errors).decode()

    def of(self, what: str, who: str | None = None) -> list[dict[str, Any]]:
        return [it for it in self.events if it["event"] == what and who in (None, it.get("who"))]

    def await_event(self, what: str, who: str | None = None) -> dict[str, Any]:
        """Wait for an event, and note which processes there are by then."""
        found = wait_for(lambda: self.of(what, who), BOUND, lambda: f"no {what}: {self.errors}")
        self.descendants |= descendants(self.process.pid)
        return found[0]

    def finish(self) -> int:
        try:
            code = self.process.wait(BOUND)
        finally:
            self.process.kill()
            self.process.wait()
            for thread in self._threads:
                thread.join()
            for stream in (self.process.stdout, self.process.stderr):
                assert stream is not None
                stream.close()
        return code

    def verdicts(self) -> dict[str, dict[str, Any]]:
        (summary,) = self.of("summary")
        return {check["name"]: check for check in summary["checks"]}

    def pids(self) -> set[int]:
        return {event["pid"] for event in self.of("ready")}


def descendants(pid: int) -> set[int]:
    """Return the processes below this one, Java and shells included."""
    children: dict[int, set[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := parent_of(int(entry.name))) is not None:
            children.setdefault(parent, set()).add(int(entry.name))
    found: set[int] = set()
    todo = {pid}
    while todo:
        todo = {child for it in todo for child in children.get(it, ())} - found
        found |= todo
    return found


def parent_of(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, parent, *_ = stat.rpartition(")")[2].split()
    return None if state == "Z" else int(parent)


def assert_gone(demo: Demo) -> None:
    known = demo.descendants | demo.pids()
    assert len(known) >= len(WORKERS)
    wait_for(
        lambda: all(parent_of(pid) is None for pid in known),
        10.0,
        lambda: f"still there: {[pid for pid in known if parent_of(pid) is not None]}",
    )


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    demos: list[Demo] = []

    def begin(*arguments: str) -> Demo:
        folder = tmp_path / f"tmp-{len(demos)}"
        folder.mkdir()
        demos.append(Demo(folder, *arguments))
        return demos[-1]

    yield begin
    for demo in demos:
        if demo.process.poll() is None:
            demo.process.kill()
            demo.finish()


def test_the_demo(start: Any, tmp_path: Path) -> None:
    demo = start("--keep-ledger", str(tmp_path / "ledger"))
    demo.await_event("killed")
    assert demo.finish() == 0, demo.errors
    assert demo.errors == ""
    verdicts = demo.verdicts()
    assert {name: check["violations"] for name, check in verdicts.items()} == {
        name: [] for name in CHECKS
    }
    (summary,) = demo.of("summary")
    assert summary["seconds"] < BOUND
    assert verdicts["cut"]["figures"]["margin"] > 0
    assert verdicts["paused"]["figures"]["paused"] > 2.0
    assert [event["title"] for event in demo.of("act")] != []
    assert {event["who"] for event in demo.of("granted")} == WORKERS
    entries = Ledger(tmp_path / "ledger").entries()
    assert [entry.number for entry in entries] == list(range(1, 25))
    tokens = [entry.token for entry in entries]
    assert tokens == sorted(set(tokens))
    assert_gone(demo)
    assert list(demo.folder.iterdir()) == []


def test_a_given_zookeeper_is_left_as_it_was(
    start: Any, zklock_hosts: str, zklock_client: KazooClient
) -> None:
    before = sorted(zklock_client.get_children("/"))
    demo = start("--hosts", zklock_hosts)
    assert demo.finish() == 0, demo.errors
    assert sorted(zklock_client.get_children("/")) == before


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_it_and_all_it_started(
    start: Any, number: signal.Signals, status: int
) -> None:
    demo = start()
    demo.await_event("paused")  # a stopped worker is the hardest to get rid of
    demo.process.send_signal(number)
    assert demo.finish() == status
    assert demo.of("summary") == []
    assert number.name in demo.errors
    assert_gone(demo)
    assert list(demo.folder.iterdir()) == []


def test_interrupted_while_it_sets_up(start: Any) -> None:
    demo = start()
    demo.await_event("ready")
    demo.process.send_signal(signal.SIGINT)
    assert demo.finish() == 130
    assert_gone(demo)
    assert list(demo.folder.iterdir()) == []


def test_nothing_outlives_a_killed_demo(start: Any) -> None:
    demo = start()
    demo.await_event("paused")
    demo.process.kill()
    assert demo.finish() == -signal.SIGKILL
    assert_gone(demo)


def test_a_worker_that_dies_fails_it(start: Any) -> None:
    demo = start()
    demo.await_event("opening")
    (ready,) = demo.of("ready", "w4")
    os.kill(ready["pid"], signal.SIGKILL)
    assert demo.finish() == 1
    violations = demo.verdicts()["complete"]["violations"]
    assert any("w4 ended, with SIGKILL" in violation for violation in violations)
    assert_gone(demo)
    assert list(demo.folder.iterdir()) == []


def test_a_doctored_record_fails(start: Any, tmp_path: Path) -> None:
    demo = start("--session-timeout", "1")
    assert demo.finish() == 0
    record = tmp_path / "events.jsonl"
    assert replay(demo.events, record).returncode == 0
    for event in demo.events:
        if event["event"] == "lost" and event["who"] == "w5":
            event["at"] += 10
    done = replay(demo.events, record)
    assert done.returncode == 1
    summary = json.loads(done.stdout.splitlines()[-1])
    assert [check["name"] for check in summary["checks"] if not check["held"]] == ["cut"]


def test_the_pool(start: Any, zklock_hosts: str, zklock_client: KazooClient) -> None:
    before = sorted(zklock_client.get_children("/"))
    arguments = ("--pool", "--shards", "14", "--session-timeout", "2", "--hosts", zklock_hosts)
    demo = start(*arguments)
    assert demo.finish() == 0, demo.errors
    assert demo.errors == ""
    assert {name: check["violations"] for name, check in demo.verdicts().items()} == {
        name: [] for name in pool_checks.CHECKS
    }
    times = {each.cause: each for each in pool_checks.failovers(recorded(demo))}
    assert set(times) == {"stop", "drain", "crash", "pause", "partition"}
    assert all(each.seconds and max(each.seconds) < BOUND for each in times.values())
    assert min(times["crash"].seconds) > 1.0
    assert sorted(zklock_client.get_children("/")) == before
    assert list(demo.folder.iterdir()) == []


def test_a_signal_ends_the_pool_and_all_it_started(start: Any) -> None:
    demo = start("--pool", "--shards", "14")
    demo.await_event("paused")
    demo.process.send_signal(signal.SIGTERM)
    assert demo.finish() == 143
    assert demo.of("summary") == []
    assert_gone(demo)
    assert list(demo.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("doctor", "failing"),
    [
        ("two owners", "exclusive"),
        ("an old token", "tokens"),
        ("a lost shard", "balanced"),
        ("a silent loss", "told"),
        ("a node left", "left_over"),
    ],
)
def test_a_doctored_record_of_the_pool_fails(
    pool_record: list[dict[str, Any]], tmp_path: Path, doctor: str, failing: str
) -> None:
    events = [it for it in json.loads(json.dumps(pool_record)) if it["event"] != "summary"]

    def of(what: str) -> list[dict[str, Any]]:
        return [event for event in events if event["event"] == what]

    match doctor:
        case "two owners":
            look = next(it for it in of("look") if it["who"] == "w1" and it["held"])
            look["at"] = max(event["at"] for event in events)
        case "an old token":
            last = max(of("granted"), key=lambda it: it["at"])
            for event in events:
                if event.get("token") == last["token"] and event["who"] == last["who"]:
                    event["token"] = "0" * 16 + "-" + "0" * 10
        case "a lost shard":
            of("settled")[0]["owned"]["w1"].pop()
        case "a silent loss":
            events.remove(next(it for it in of("lost") if it["who"] == "w5"))
        case "a node left":
            of("left")[0]["nodes"].append("/x/members/m")
    record = tmp_path / "events.jsonl"
    done = replay(events, record, "--pool")
    assert done.returncode == 1
    summary = json.loads(done.stdout.splitlines()[-1])
    assert failing in [check["name"] for check in summary["checks"] if not check["held"]]


@pytest.fixture(scope="module")
def pool_record(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    demo = Demo(tmp_path_factory.mktemp("pool"), "--pool", "--shards", "14")
    assert demo.finish() == 0, demo.errors
    record = tmp_path_factory.mktemp("record") / "events.jsonl"
    assert replay(demo.events, record, "--pool").returncode == 0
    return demo.events


def recorded(demo: Demo) -> list[Event]:
    return [Event.from_json(json.dumps(it)) for it in demo.events if it["event"] != "summary"]


def replay(
    events: list[dict[str, Any]], record: Path, *arguments: str
) -> subprocess.CompletedProcess[bytes]:
    record.write_text("".join(json.dumps(event) + "\n" for event in events))
    return subprocess.run(
        [sys.executable, "-m", "zklock.cli", "demo", "--json", "--replay", str(record), *arguments],
        capture_output=True,
        check=False,
    )
