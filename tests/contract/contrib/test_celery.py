"""Celery beat: several run, one sends."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import celery
import pytest
from celery.beat import BeatLazyFunc
from celery.exceptions import ImproperlyConfigured

import zklock
from tests.contract.contrib.conftest import Start
from tests.contract.support import SOON, children, freeze, gone, queued
from zklock.contrib.celery import LeaderScheduler
from zklock.testing import FaultProxy, wait_for
from zklock.testing.ports import free_ports


class Beats:
    """Processes of ``celery beat``, and the folder into which they send.

    Each reaches ZooKeeper through a proxy of its own.
    """

    def __init__(self, start: Start, hosts: str, path: str, folder: Path) -> None:
        self.hosts = hosts
        self.folder = folder / "sent"
        self.folder.mkdir()
        self.environment = {"BEATS_PATH": path, "BEATS_FOLDER": str(self.folder)}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.proxies: dict[int, FaultProxy] = {}
        self._start = start

    def start(self) -> None:
        words = ["celery", "-A", "tests.contract.contrib.beats", "-q", "beat", "--pidfile="]
        words += ["-S", "zklock.contrib.celery:LeaderScheduler", "-l", "WARNING"]
        proxy = FaultProxy(self.hosts)
        process = self._start(*words, **self.environment, BEATS_HOSTS=proxy.hosts)
        self.processes[process.pid] = process
        self.proxies[process.pid] = proxy

    def close(self) -> None:
        for proxy in self.proxies.values():
            proxy.close()

    def sent(self) -> list[tuple[int, str]]:
        """Return which process has sent which task, in order."""
        found = []
        for file in sorted(self.folder.glob("*.msg"), key=lambda file: file.stat().st_mtime_ns):
            with contextlib.suppress(ValueError, FileNotFoundError):  # it is being written
                headers = json.loads(file.read_text())["headers"]
                sender = int(headers["origin"].partition("@")[0].removeprefix("gen"))
                found.append((sender, headers["task"]))
        return found

    def senders(self, count: int) -> list[int]:
        """Wait until so many processes have sent; return them in order."""

        def look() -> list[int] | None:
            found = list(dict.fromkeys(sender for sender, _ in self.sent()))
            return found if len(found) >= count else None

        return wait_for(look, 3 * SOON, lambda: f"{count} senders: {self.sent()[-3:]}")


@pytest.fixture
def beats(
    start_process: Start, zklock_hosts: str, zklock_path: str, tmp_path: Path
) -> Iterator[Beats]:
    made = Beats(start_process, zklock_hosts, zklock_path, tmp_path)
    yield made
    made.close()


class Fault(NamedTuple):
    """What happens to a beat, and how it ends; a beat that is killed has no way back.

    A beat that is paused between the record of a run and its message sends this one late.
    """

    strike: Callable[[Beats, int], object]
    mend: Callable[[Beats, int], object] | None
    late: int = 0


def signalled(number: signal.Signals) -> Callable[[Beats, int], object]:
    return lambda beats, pid: beats.processes[pid].send_signal(number)


def healed(beats: Beats, pid: int) -> None:
    beats.proxies[pid].restore()


FAULTS = {
    "killed": Fault(signalled(signal.SIGKILL), None),
    "paused": Fault(lambda beats, pid: freeze(pid), signalled(signal.SIGCONT), late=1),
    "cut": Fault(lambda beats, pid: beats.proxies[pid].cut(), healed),
    "black hole": Fault(lambda beats, pid: beats.proxies[pid].blackhole(), healed),
}


OTHERS = pytest.mark.thorough(
    "beats that cannot send: whatever keeps one from it, its lease ends as that of a killed one"
)


@pytest.mark.slow("two processes of Celery are started")
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=name, marks=[OTHERS] * (name != "killed"))
        for name, fault in FAULTS.items()
    ],
)
def test_another_beat_sends_when_the_first_one_cannot(
    fault: Fault, beats: Beats, log: Path, zklock_client: Any, zklock_path: str
) -> None:
    for _ in range(2):
        beats.start()
    queued(zklock_client, f"{zklock_path}/beat", 2, 3 * SOON)
    (first,) = beats.senders(1)
    runs = f"{zklock_path}/beat-runs"
    wait_for(lambda: len(children(zklock_client, runs)) == 2, SOON, "the record")
    assert [task for _, task in beats.sent() if task == "daily"] == []
    # The second one takes over what is recorded: a run that is due is sent, and once.
    long_ago = datetime.now().astimezone() - timedelta(days=2)
    zklock_client.set(f"{runs}/daily", long_ago.isoformat().encode())

    fault.strike(beats, first)
    assert beats.senders(2)[0] == first
    wait_for(lambda: "daily" in {task for _, task in beats.sent()}, SOON, "the daily run")
    if fault.mend is None:
        beats.processes[first].wait()
    else:
        fault.mend(beats, first)
        queued(zklock_client, f"{zklock_path}/beat", 2, 3 * SOON)  # it stands again
    before = len(beats.sent())
    wait_for(lambda: len(beats.sent()) > before + 5, SOON, "more")

    senders = [sender for sender, _ in beats.sent()]
    turn = senders.index(next(sender for sender in senders if sender != first))
    assert senders[turn:].count(first) <= fault.late, "the one that leads no more begins no run"
    assert [task for _, task in beats.sent()].count("daily") == 1

    alive = [process for process in beats.processes.values() if process.poll() is None]
    for process in alive:
        process.terminate()
    for process in alive:
        assert process.wait(SOON) == 0, log.read_text()
    assert len(alive) == 2 - (fault.mend is None)
    gone(zklock_client, f"{zklock_path}/beat")


@pytest.fixture
def app(zklock_hosts: str, zklock_path: str, tmp_path: Path) -> Any:
    folder = str(tmp_path)
    made = celery.Celery("one", set_as_current=False)
    made.conf.update(
        broker_url="filesystem://",
        broker_transport_options={
            "data_folder_in": folder,
            "data_folder_out": folder,
            "control_folder": folder,
        },
        zklock_hosts=zklock_hosts,
        zklock_path=f"{zklock_path}/beat",
        zklock_timeout=30.0,
    )
    return made


def test_a_signal_in_the_middle_of_a_tick_leaves_the_closing_to_the_end(app: Any) -> None:
    """beat's handler of SIGTERM closes the scheduler; a tick that waits for itself would hang."""
    closed: list[bool] = []

    def close() -> str:
        scheduler.close()
        closed.append(scheduler._background.health.leads)
        return "sent"

    entry = {"task": "one", "schedule": 0.001, "args": [BeatLazyFunc(close)]}
    app.conf.beat_schedule = {"one": entry}
    scheduler = LeaderScheduler(app)
    try:
        wait_for(lambda: scheduler.tick() is not None and closed, SOON, "an entry that is sent")
        assert closed[0], "it leads until the tick is over"
    finally:
        scheduler.close()
    assert not scheduler._background.health.leads


def test_nothing_is_sent_that_cannot_be_recorded(
    app: Any, zklock_client: Any, zklock_path: str, tmp_path: Path
) -> None:
    """The leader's own znode is gone, and it does not know yet: ZooKeeper refuses the record."""
    app.conf.beat_schedule = {"one": {"task": "one", "schedule": 86400.0}}
    scheduler = LeaderScheduler(app)
    try:
        wait_for(lambda: scheduler.tick() is not None and scheduler._loaded, SOON, "the leadership")
        entry = scheduler.schedule["one"]
        over: Any = SimpleNamespace(
            path=f"{zklock_path}/beat/gone",
            held=True,
            lock_path=f"{zklock_path}/beat",
            token=zklock.FencingToken(7, 33),
            session_id=0x1000A,
            identity="host-7",
        )
        scheduler._loaded = over
        scheduler.apply_entry(entry)
        assert scheduler._loaded is None
        assert list(tmp_path.glob("*.msg")) == []
        wait_for(lambda: scheduler.tick() is not None and scheduler._loaded, SOON, "the next look")
        scheduler.apply_entry(entry, producer=scheduler.producer)
        assert len(list(tmp_path.glob("*.msg"))) == 1
    finally:
        scheduler.close()


def test_it_says_which_setting_is_missing() -> None:
    with pytest.raises(ImproperlyConfigured, match="zklock_hosts"):
        LeaderScheduler(celery.Celery("none", set_as_current=False), lazy=True)


@pytest.mark.parametrize("trouble", ["the folder is none", "nobody listens"])
def test_a_beat_whose_broker_takes_nothing_lets_another_one_lead(
    app: Any, zklock_client: Any, zklock_path: str, tmp_path: Path, trouble: str
) -> None:
    """What it could not send is sent by the next one: it is not recorded as sent."""
    (tmp_path / "none").touch()
    cut_off = celery.Celery("cut off", set_as_current=False)
    cut_off.conf.update(
        zklock_hosts=app.conf.zklock_hosts,
        zklock_path=app.conf.zklock_path,
        zklock_timeout=30.0,
        zklock_send_timeout=0.5,
        task_publish_retry=False,
    )
    if trouble == "nobody listens":
        cut_off.conf.broker_url = f"amqp://127.0.0.1:{free_ports(1)[0]}"
    else:
        cut_off.conf.broker_url = "filesystem://"
        cut_off.conf.broker_transport_options = {"data_folder_out": str(tmp_path / "none")}
    entry = {"one": {"task": "one", "schedule": 86400.0}}
    app.conf.beat_schedule = cut_off.conf.beat_schedule = entry
    first = LeaderScheduler(cut_off)
    second: LeaderScheduler | None = None
    node = f"{zklock_path}/beat-runs/one"
    try:
        wait_for(lambda: first.tick() is not None and first._loaded, SOON, "the leadership")
        long_ago = b"2001-01-01T00:00:00+00:00"
        zklock_client.set(node, long_ago)
        first._loaded = None
        second = LeaderScheduler(app)
        queued(zklock_client, f"{zklock_path}/beat", 2)
        wait_for(
            lambda: first.tick() is not None and not first._background.health.leads,
            SOON,
            "it gives up",
        )
        assert zklock_client.get(node)[0] == long_ago, "nothing was sent"
        wait_for(
            lambda: second.tick() is not None and [*tmp_path.glob("*.msg")], SOON, "it is sent"
        )
        assert zklock_client.get(node)[0] != long_ago
        for _ in range(3):
            second.tick()
        assert len([*tmp_path.glob("*.msg")]) == 1
    finally:
        first.close()
        if second is not None:
            second.close()
