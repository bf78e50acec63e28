"""``zklock demo`` as a user runs it: a process of its own, with a real ZooKeeper."""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from kazoo.client import KazooClient

from tests.contract import demo_page
from tests.contract.support import ROOT, kazoo_client
from tests.terminal import COLUMNS, Terminal
from zklock.cli.parser import build
from zklock.testing import wait_for
from zklock.testing.demo import pool_checks
from zklock.testing.demo.checks import CHECKS
from zklock.testing.demo.events import Event
from zklock.testing.demo.ledger import Ledger
from zklock.testing.ports import free_ports

pytestmark = pytest.mark.slow("whole demos are played")

Events = list[dict[str, Any]]

MAKEFILE = ROOT / "Makefile"
WORKERS = {"w1", "w2", "w3", "w4", "w5", "w6"}
BOUND = 240.0
"""Seconds within which a demo is over."""
STEADY = ("--session-timeout", "6")
"""For a demo that must end well on a machine that stalls for a second or two."""


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

        def found() -> list[dict[str, Any]]:
            over = self.process.poll()
            events = self.of(what, who)
            assert events or over is None, f"no {what}, and exit status {over}: {self.why()}"
            return events

        events = wait_for(found, BOUND, lambda: f"no {what}: {self.why()}")
        self.descendants |= descendants(self.process.pid)
        return events[0]

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

    def why(self) -> str:
        """Return what went wrong, for the message of an assertion."""
        failed = [it for story in self.of("summary") for it in story["checks"] if not it["held"]]
        return f"{failed}\n{self.errors}"

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


def test_the_demo(lock_demo: tuple[Demo, Path]) -> None:
    demo, ledger = lock_demo
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
    entries = Ledger(ledger).entries()
    assert [entry.number for entry in entries] == list(range(1, 25))
    tokens = [entry.token for entry in entries]
    assert tokens == sorted(set(tokens))
    assert_gone(demo)
    assert list(demo.folder.iterdir()) == []


def test_where_nothing_runs_zookeeper_it_is_played_on_the_embedded_server_and_says_so(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No Java on the path, an engine that does not answer, and nothing may be installed."""
    for name in [name for name in os.environ if name.startswith(("ZKLOCK", "ZOO", "JAVA"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{free_ports()[0]}")
    monkeypatch.setenv("ZKLOCK_PROVISION", "0")
    demo = start(*STEADY)
    assert demo.finish() == 0, demo.why()
    assert "no real ZooKeeper: embedded (for tests, demos and a first try, never" in demo.errors
    for reason in ("container: no container engine answers", "java: no java command"):
        assert reason in demo.errors
    (opening,) = demo.of("opening")
    assert opening["zookeeper"].endswith("(embedded)")
    assert {check for check, it in demo.verdicts().items() if it["held"]} == set(CHECKS)


@pytest.mark.thorough("whole demos: that of the locks is played once")
def test_a_given_zookeeper_is_left_as_it_was(
    start: Any, zklock_hosts: str, zklock_client: KazooClient
) -> None:
    before = sorted(zklock_client.get_children("/"))
    demo = start(*STEADY, "--hosts", zklock_hosts)
    assert demo.finish() == 0, demo.why()
    assert sorted(zklock_client.get_children("/")) == before


POOL = pytest.mark.thorough(
    "the demo of the pool: it changes with the demo; that of the locks, and pools, are tried"
)
ONE_IS_ENOUGH = pytest.mark.thorough(
    "the ends of a demo that has begun: each plays half of one; that it ends while it sets up runs"
)


@ONE_IS_ENOUGH
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_it_and_all_it_started(
    start: Any, number: signal.Signals, status: int
) -> None:
    demo = start(*STEADY)
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


@ONE_IS_ENOUGH
def test_nothing_outlives_a_killed_demo(start: Any) -> None:
    demo = start(*STEADY)
    demo.await_event("paused")
    demo.process.kill()
    assert demo.finish() == -signal.SIGKILL
    assert_gone(demo)


@ONE_IS_ENOUGH
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


def test_a_doctored_record_fails(lock_record: Events, tmp_path: Path) -> None:
    record = tmp_path / "events.jsonl"
    assert replay(lock_record, record).returncode == 0
    assert_fits_a_terminal("All of it held. 10 checks", "--replay", str(record))
    events = copy.deepcopy(lock_record)
    for event in events:
        if event["event"] == "lost" and event["who"] == "w5":
            event["at"] += 10
    done = replay(events, record)
    assert done.returncode == 1
    summary = json.loads(done.stdout.splitlines()[-1])
    assert [check["name"] for check in summary["checks"] if not check["held"]] == [
        "callbacks",
        "cut",
    ]


def assert_fits_a_terminal(end: str, *arguments: str) -> None:
    with Terminal([sys.executable, "-m", "zklock.cli", "demo", *arguments]) as terminal:
        assert terminal.finish(BOUND) == 0, terminal.shown
    assert any(line.startswith(end) for line in terminal.lines), terminal.shown
    assert [line for line in terminal.lines if len(line) >= COLUMNS] == []


@POOL
def test_the_pool_fits_a_terminal(pool_record: Events, tmp_path: Path) -> None:
    record = tmp_path / "events.jsonl"
    assert replay(pool_record, record, "--pool").returncode == 0
    assert_fits_a_terminal("All of it held. 7 checks", "--pool", "--replay", str(record))


@POOL
def test_the_pool(pool_demo: Demo) -> None:
    demo = pool_demo
    assert demo.errors == ""
    assert {name: check["violations"] for name, check in demo.verdicts().items()} == {
        name: [] for name in pool_checks.CHECKS
    }
    times = {each.cause: each for each in pool_checks.failovers(recorded(demo))}
    assert set(times) == {"stop", "drain", "crash", "pause", "partition"}
    assert all(each.seconds and max(each.seconds) < BOUND for each in times.values())
    assert min(times["crash"].seconds) > 1.0
    assert list(demo.folder.iterdir()) == []


@pytest.mark.thorough("whole demos: that of the locks is played once")
def test_the_pool_on_a_zookeeper_of_its_own(start: Any) -> None:
    demo = start("--pool", "--shards", "14", *STEADY)
    demo.await_event("killed")
    assert demo.finish() == 0, demo.why()
    assert_gone(demo)
    assert list(demo.folder.iterdir()) == []


@ONE_IS_ENOUGH
def test_a_signal_ends_the_pool_and_all_it_started(start: Any) -> None:
    demo = start("--pool", "--shards", "14", *STEADY)
    demo.await_event("paused")
    demo.process.send_signal(signal.SIGTERM)
    assert demo.finish() == 143
    assert demo.of("summary") == []
    assert_gone(demo)
    assert list(demo.folder.iterdir()) == []


@POOL
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
    pool_record: Events, tmp_path: Path, doctor: str, failing: str
) -> None:
    events = [it for it in copy.deepcopy(pool_record) if it["event"] != "summary"]

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


def played(demo: Demo) -> Demo:
    """Play a demo to its end."""
    try:
        demo.await_event("killed")
        assert demo.finish() == 0, demo.why()
    except BaseException:
        demo.process.kill()
        demo.finish()
        raise
    return demo


@pytest.fixture(scope="module")
def lock_demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Demo, Path]:
    """A demo that is over, and the ledger that it kept."""
    ledger = tmp_path_factory.mktemp("kept") / "ledger"
    demo = Demo(tmp_path_factory.mktemp("lock"), *STEADY, "--keep-ledger", str(ledger))
    return played(demo), ledger


@pytest.fixture(scope="module")
def lock_record(lock_demo: tuple[Demo, Path]) -> Events:
    return lock_demo[0].events


@pytest.fixture(scope="module")
def pool_demo(tmp_path_factory: pytest.TempPathFactory, zklock_hosts: str) -> Demo:
    """A demo of the pool that is over; it left the ZooKeeper that was given as it was."""
    arguments = ("--pool", "--shards", "14", *STEADY, "--hosts", zklock_hosts)
    with kazoo_client(zklock_hosts) as client:
        before = sorted(client.get_children("/"))
        demo = played(Demo(tmp_path_factory.mktemp("pool"), *arguments))
        assert sorted(client.get_children("/")) == before
    return demo


@pytest.fixture(scope="module")
def pool_record(tmp_path_factory: pytest.TempPathFactory, pool_demo: Demo) -> Events:
    record = tmp_path_factory.mktemp("record") / "events.jsonl"
    assert replay(pool_demo.events, record, "--pool").returncode == 0
    return pool_demo.events


def recorded(demo: Demo) -> list[Event]:
    return [Event.from_json(json.dumps(it)) for it in demo.events if it["event"] != "summary"]


def replay(
    events: Events, record: Path, *arguments: str, form: tuple[str, ...] = ("--json",)
) -> subprocess.CompletedProcess[bytes]:
    record.write_text("".join(json.dumps(event) + "\n" for event in events))
    return subprocess.run(
        [sys.executable, "-m", "zklock.cli", "demo", *form, "--replay", str(record), *arguments],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )


# The page of the demo.


def shown(events: Events, record: Path, *arguments: str) -> dict[str, set[str]]:
    """Return the forms of the lines that a person sees of a demo, by its parts."""
    done = replay(events, record, *arguments, form=())
    assert done.returncode == 0, done.stderr
    return demo_page.forms(done.stdout.decode())


def test_the_page_shows_what_the_demo_prints(lock_record: Events, tmp_path: Path) -> None:
    """The page shows whole acts, and some of the checks."""
    page, printed = demo_page.forms(demo_page.SHOWN[0]), shown(lock_record, tmp_path / "record")
    assert not page.pop(demo_page.HEAD)
    *acts, checked = page
    assert acts
    for act in acts:
        assert page[act] == printed[act]
    assert page[checked] < printed[checked]
    assert len(page[checked]) >= 3


@POOL
def test_the_page_shows_what_the_demo_of_the_pool_prints(
    pool_record: Events, tmp_path: Path
) -> None:
    page = demo_page.forms(demo_page.SHOWN[1])
    printed = shown(pool_record, tmp_path / "record", "--pool")
    assert not page.pop(demo_page.HEAD)
    (failover,) = page
    assert page[failover] == printed[failover]


def test_the_page_tells_of_the_summary(lock_record: Events) -> None:
    summary = lock_record[-1]
    frame = demo_page.PAGE.partition("The last line is the summary:")[2].partition(".")[0]
    assert summary.keys() <= set(re.findall(r"\w+", frame))
    assert summary["checks"][0].keys() <= set(re.findall(r"\w+", frame))


def test_the_page_has_the_commands_and_their_options() -> None:
    known = vars(build("demo").parse_args(["demo"]))
    options = {f"--{name.replace('_', '-')}" for name in known} - {"--parser", "--run", "--verbose"}
    assert options == set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", demo_page.PAGE))
    assert demo_page.COMMANDS[0] == ["make", "demo"]
    assert re.search(r"^demo: .*\n\t\$\(BIN\)/zklock demo ", MAKEFILE.read_text(), re.MULTILINE)
    for name, *arguments in demo_page.COMMANDS[1:]:
        assert name == "zklock"
        assert build("demo").parse_args(arguments).shards == 24
