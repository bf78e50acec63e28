"""Celery: a task that runs once at a time, in workers of all kinds, whatever ends it."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import celery
import kombu.pools
import pytest
from celery.exceptions import ImproperlyConfigured
from celery.signals import worker_process_shutdown

import zklock
from tests.contract.contrib.conftest import Start
from tests.contract.contrib.records import noted
from tests.contract.fencing import databases
from tests.contract.support import ROOT, SOON, gone, granted, queued
from zklock.contrib.celery import current_grant, singleton
from zklock.errors import AcquireTimeout, LockLost
from zklock.testing import FaultProxy, wait_for

POOLS = pytest.mark.thorough(
    "Celery's pools of threads and of one task: prefork's, which forks its clients, runs"
)


class Noted(NamedTuple):
    """A line of the record."""

    pid: int
    session: str
    token: str
    word: str


@pytest.fixture(scope="module")
def redis_port() -> Iterator[int]:
    try:
        server = databases.Redis()
    except databases.Unavailable as error:
        pytest.skip(str(error))
    with server:
        yield server.port


class Workers:
    """Processes of ``celery worker``, what they have noted, and a way to send them tasks."""

    def __init__(
        self, start: Start, log: Path, hosts: str, path: str, redis: str, folder: Path
    ) -> None:
        self.record = folder / "record"
        self.log = log
        self.environment = {
            "SINGLETONS_HOSTS": hosts,
            "SINGLETONS_PATH": path,
            "SINGLETONS_REDIS": redis,
            "SINGLETONS_RECORD": str(self.record),
            "SINGLETONS_TIMEOUT": "10",
            "C_FORCE_ROOT": "1",
        }
        self.app = celery.Celery("sender", broker=redis, backend=redis, set_as_current=False)
        self.processes: list[subprocess.Popen[bytes]] = []
        self._start = start

    def start(self, pool: str, *options: str) -> None:
        words = ["celery", "-A", "tests.contract.contrib.singletons", "worker"]
        words += ["-P", pool, "-n", f"{len(self.processes)}@here", "-l", "WARNING"]
        words += ["--without-gossip", "--without-mingle", "--without-heartbeat", *options]
        self.processes.append(self._start(*words, **self.environment))
        up = self.record.with_suffix(f".{self.processes[-1].pid}")
        self.wait(up.exists, "a worker is up")

    def noted(self) -> list[Noted]:
        return [Noted(*line) for line in noted(self.record)]  # type: ignore[call-arg]

    def wait(self, what: Callable[[], Any], message: str) -> Any:
        return wait_for(
            what, 3 * SOON, lambda: f"{message}: {self.noted()}\n{self.log.read_text()[-4000:]}"
        )

    def began(self, count: int) -> list[Noted]:
        """Wait until so many runs have begun."""

        def look() -> list[Noted] | None:
            found = [line for line in self.noted() if line.word == "began"]
            return found if len(found) >= count else None

        found: list[Noted] = self.wait(look, f"{count} runs")
        return found

    def end(self) -> None:
        """Tell the lasting task to end."""
        self.record.with_suffix(".end").touch()

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
        try:
            for process in self.processes:
                assert process.wait(SOON) == 0, self.log.read_text()
        finally:
            # A result that is collected later would ask a Redis that is gone (Celery < 5.7).
            gc.collect()
            self.app.backend.result_consumer.stop()
            self.app.backend.client.close()
            self.app.close()
            # The pools are everybody's, and keep their connections.
            kombu.pools.reset()  # type: ignore[no-untyped-call]


@pytest.fixture
def workers(
    start_process: Start,
    log: Path,
    redis_port: int,
    zklock_hosts: str,
    zklock_path: str,
    tmp_path: Path,
) -> Iterator[Workers]:
    import redis

    address = f"redis://127.0.0.1:{redis_port}/0"
    with redis.Redis(port=redis_port) as client:
        client.flushall()
    made = Workers(start_process, log, zklock_hosts, zklock_path, address, tmp_path)
    yield made
    made.close()


@pytest.mark.slow("workers of Celery are started")
@pytest.mark.parametrize(
    ("pool", "count"),
    [("prefork", 1), pytest.param("threads", 1, marks=POOLS), pytest.param("solo", 2, marks=POOLS)],
    ids=str,
)
def test_one_runs_at_a_time(
    pool: str, count: int, workers: Workers, zklock_client: Any, zklock_path: str
) -> None:
    for _ in range(count):
        workers.start(pool, "-c", "3")
    results = [workers.app.send_task("short") for _ in range(12)]
    workers.wait(lambda: all(each.state == "SUCCESS" for each in results), "all end well")
    noted = workers.noted()
    words = [line.word for line in noted]
    assert words == ["began", "ended"] * len(results)
    tokens = [line.token for line in noted[::2]]
    assert tokens == sorted(set(tokens))
    assert [line.token for line in noted[1::2]] == tokens
    assert {each.get(timeout=SOON) for each in results} == set(tokens)
    sessions = {line.pid: line.session for line in noted}
    assert {(line.pid, line.session) for line in noted} == set(sessions.items())
    assert len(set(sessions.values())) == len(sessions), "each process has a client of its own"
    assert workers.processes[0].pid not in sessions or pool != "prefork"
    gone(zklock_client, zklock_path)


@pytest.mark.slow("workers of Celery are started")
def test_a_child_that_is_killed_gives_way_to_the_next_run(
    workers: Workers, zklock_client: Any, zklock_path: str
) -> None:
    workers.start("prefork", "-c", "2")
    result = workers.app.send_task("lasting", ["one"])
    (first,) = workers.began(1)
    queued(zklock_client, f"{zklock_path}/one", 1)
    os.kill(first.pid, signal.SIGKILL)
    second = workers.began(2)[1]  # the broker has the message, and delivers it again
    assert second.pid != first.pid
    assert second.token > first.token
    assert [line.word for line in workers.noted()] == ["began", "began"]
    workers.end()
    workers.wait(lambda: result.state == "SUCCESS", "the second run ends well")
    gone(zklock_client, f"{zklock_path}/one")


@pytest.mark.slow("workers of Celery are started")
@pytest.mark.parametrize("how", ["soft time limit", "revoked"])
def test_an_exception_out_of_nowhere_leaves_nothing_held(
    how: str, workers: Workers, zklock_client: Any, zklock_path: str
) -> None:
    workers.start("prefork", "-c", "1")
    path = f"{zklock_path}/one"
    result = workers.app.send_task("lasting", ["one"])
    (first,) = workers.began(1)
    if how == "revoked":
        result.revoke(terminate=True)
    else:
        os.kill(first.pid, signal.SIGUSR1)  # what the pool sends when the time is over
    workers.wait(lambda: len(workers.noted()) == 2, "the end of the run")
    assert [line.word for line in workers.noted()] == ["began", "unwound"]
    gone(zklock_client, path)
    state = {"revoked": "REVOKED", "soft time limit": "FAILURE"}[how]
    workers.wait(lambda: result.state == state, state)
    workers.app.send_task("lasting", ["one"])
    second = workers.began(2)[1]
    assert (second.session == first.session) == (how == "soft time limit")
    workers.end()
    workers.wait(lambda: workers.noted()[-1].word == "unwound", "the end of the second run")
    gone(zklock_client, path)


def test_a_strike_at_every_moment_leaves_nothing_held(zklock_hosts: str, zklock_path: str) -> None:
    given = {"hosts": zklock_hosts, "path": zklock_path, "stride": 1}
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract.contrib.struck_task", json.dumps(given)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    tally = json.loads(done.stdout)
    assert tally["struck"] > tally["total"] / 2 > 20


@pytest.fixture
def app(zklock_hosts: str) -> Iterator[Any]:
    made = celery.Celery("one", set_as_current=False)
    made.conf.update(zklock_hosts=zklock_hosts, zklock_timeout=30.0)
    yield made
    worker_process_shutdown.send(sender="test")  # as at the end of a child: clients end
    made.close()


def ran() -> str:
    return "ran"


def test_what_happens_when_another_one_has_the_lock(
    app: Any, zklock_client: Any, zklock_path: str
) -> None:
    def task(busy: Any) -> Any:
        made = singleton(lock=zklock_path, busy=busy)(ran)
        return app.task(made, name=busy, default_retry_delay=0, max_retries=2)

    tasks = {busy: task(busy) for busy in ("retry", "reject", "skip")}
    assert [each() for each in tasks.values()] == ["ran"] * 3
    with zklock.Lock(zklock_client, zklock_path, identity="somebody"):
        assert tasks["skip"]() is None
        assert tasks["skip"].apply().state == "SUCCESS"
        assert tasks["reject"].apply().state == "REJECTED"
        retried = tasks["retry"].apply()
        assert retried.state == "FAILURE"
        assert isinstance(retried.result, AcquireTimeout)
        with pytest.raises(AcquireTimeout, match="one contender before it"):
            tasks["retry"]()
    assert tasks["retry"].apply().get() == "ran"
    with pytest.raises(ValueError, match="not 'wait'"):
        singleton(lock=zklock_path, busy="wait")  # type: ignore[arg-type]


def test_a_run_is_skipped_only_if_another_one_is_known_to_run(
    app: Any, zklock_proxy: FaultProxy, zklock_path: str
) -> None:
    app.conf.zklock_hosts = zklock_proxy.hosts
    app.conf.zklock_options = {"start_timeout": 1.0}
    task = app.task(singleton(lock=zklock_path, busy="skip")(ran), name="cut off")
    zklock_proxy.cut()
    with pytest.raises(zklock.NoAnswer):
        task()
    zklock_proxy.restore()
    app.conf.update(zklock_options={}, zklock_timeout=6.0)
    assert task() == "ran"
    zklock_proxy.blackhole()
    with pytest.raises(zklock.NoAnswer, match="send the task again"):
        task()
    zklock_proxy.restore()
    wait_for(lambda: task.apply().state == "SUCCESS", SOON, "the connection")


class Late(Exception):
    """What a time limit raises, in the middle of a wait."""


@pytest.fixture
def limit() -> Iterator[Callable[[float], None]]:
    """Sets a time limit for the main thread, in seconds."""

    def strike(number: int, frame: FrameType | None) -> None:
        raise Late

    def limit(seconds: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)

    before = signal.signal(signal.SIGALRM, strike)
    yield limit
    limit(0)
    signal.signal(signal.SIGALRM, before)


def test_a_time_limit_ends_the_wait_for_the_lock(
    app: Any, zklock_client: Any, zklock_path: str, limit: Callable[[float], None]
) -> None:
    task = app.task(singleton(lock=zklock_path, wait=3600.0)(ran), name="late")
    with zklock.Lock(zklock_client, zklock_path):
        limit(0.1)
        with pytest.raises(Late):
            task()
        queued(zklock_client, zklock_path, 1)
    assert task() == "ran"


def test_a_task_that_has_lost_its_lock_fails(
    app: Any, zklock_client: Any, zklock_path: str
) -> None:
    lock = zklock.Lock(zklock_client, zklock_path)

    @app.task(name="lost")  # type: ignore[untyped-decorator]
    @singleton(lock=zklock_path)
    def task(error: bool) -> None:
        grant = current_grant()
        assert f":lost:{task.request.id}" in grant.identity
        lock.break_lock()
        assert grant.lost.wait(SOON)
        with pytest.raises(LockLost):
            grant.check()
        if error:
            raise OSError("its own")

    assert isinstance(task.apply([False]).result, LockLost)
    own = task.apply([True]).result
    assert isinstance(own, OSError)
    assert any("was also lost" in each for each in own.__notes__)
    granted(lock).release()


def test_a_task_may_call_another_one(app: Any, zklock_path: str) -> None:
    @app.task(name="inner", bind=True)  # type: ignore[untyped-decorator]
    @singleton(lock=lambda name, end="": f"{zklock_path}/{name}{end}")
    def inner(self: Any, name: str, end: str = "") -> str:
        return str(self.request.zklock.lock_path)

    @app.task(name="outer")  # type: ignore[untyped-decorator]
    @singleton(lock=f"{zklock_path}/outer")
    def outer() -> list[str]:
        grant = current_grant()
        found = [inner("a"), inner.run("b", end="c")]
        assert current_grant() is grant
        return found

    assert outer() == [f"{zklock_path}/a", f"{zklock_path}/bc"]
    with pytest.raises(TypeError, match="missing"):
        inner.delay()  # Celery looks at the arguments of the function itself


def test_it_says_what_is_wrong(zklock_path: str) -> None:
    plain = singleton(lock=zklock_path)(ran)
    with pytest.raises(RuntimeError, match=r"outside of a task.*@app\.task above"):
        plain()
    with pytest.raises(RuntimeError, match="no grant"):
        current_grant()
    task = celery.Celery("none", set_as_current=False).task(plain, name="nowhere")
    with pytest.raises(ImproperlyConfigured, match="zklock_hosts"):
        task()
