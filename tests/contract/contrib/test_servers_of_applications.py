"""One of the worker processes of gunicorn and uvicorn does the background work."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import zklock
from tests.contract.contrib.conftest import Start
from tests.contract.contrib.records import terms
from tests.contract.support import SOON, gone, queued
from zklock import aio
from zklock.contrib import asgi, wsgi
from zklock.testing import FaultProxy, wait_for
from zklock.testing.ports import free_ports

WORKERS = 3
COMMANDS = {
    "gunicorn": [
        *("gunicorn", "-c", "python:tests.contract.contrib.served_conf"),
        *("-b", "127.0.0.1:{port}", "tests.contract.contrib.served:plain"),
    ],
    "uvicorn": [
        *("uvicorn", "--host", "127.0.0.1", "--port", "{port}", "--workers", str(WORKERS)),
        *("--log-level", "warning", "tests.contract.contrib.served:fast"),
    ],
}


class Service:
    """A server with its worker processes."""

    def __init__(self, start: Start, command: list[str], record: Path, **environment: str) -> None:
        (self.port,) = free_ports()
        self.record = record
        words = (word.format(port=self.port) for word in command)
        self.process = start(*words, SERVED_RECORD=str(record), **environment)

    def new_term(self, count: int) -> int:
        """Wait for this many terms; return the process of the last one."""
        found = wait_for(
            lambda: found if len(found := terms(self.record)) >= count else None,
            3 * SOON,
            lambda: f"{count} terms, but {terms(self.record)}",
        )
        return found[-1][0]

    def get(self, path: str) -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=SOON) as got:
                return got.status, json.load(got)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, json.load(refused)


@pytest.fixture(
    params=[
        pytest.param(
            "gunicorn",
            marks=pytest.mark.thorough("gunicorn's workers: the same service as uvicorn's"),
        ),
        "uvicorn",
    ]
)
def serve(
    request: pytest.FixtureRequest, start_process: Start, zklock_path: str, tmp_path: Path
) -> Callable[[str], Service]:
    return lambda hosts: Service(
        start_process,
        COMMANDS[request.param],
        tmp_path / "record",
        SERVED_HOSTS=hosts,
        SERVED_PATH=zklock_path,
    )


@pytest.mark.slow("servers of applications are started")
def test_one_worker_works_and_another_one_when_it_is_killed(
    serve: Callable[[str], Service],
    log: Path,
    zklock_hosts: str,
    zklock_client: Any,
    zklock_path: str,
) -> None:
    service = serve(zklock_hosts)
    first = service.new_term(1)
    queued(zklock_client, zklock_path, WORKERS, 3 * SOON)

    assert service.get("/zklock/live")[0] == 200
    assert service.get("/zklock/elsewhere")[0] == 404

    def leader_known() -> Any:
        status, told = service.get("/zklock/leader")  # of any worker: it may not know yet
        assert status == 200
        return told if told["leader"] is not None else None

    told = wait_for(leader_known, SOON, log.read_text)
    assert f":{first}:" in told["leader"]
    assert told["leads"] == (told["identity"] == told["leader"])
    assert (told["token"] is not None) == told["leads"]

    os.kill(first, signal.SIGKILL)
    second = service.new_term(2)
    assert second != first

    service.process.terminate()
    assert service.process.wait(3 * SOON) is not None
    gone(zklock_client, zklock_path)  # given back, not expired: the sessions outlast this wait
    tokens = [token for _, token in terms(service.record)]
    assert tokens == sorted(set(tokens)), "nobody works in another's term"


@pytest.mark.slow("servers of applications are started")
def test_a_service_is_up_before_zookeeper_is(
    serve: Callable[[str], Service], log: Path, zklock_hosts: str
) -> None:
    with FaultProxy(zklock_hosts) as proxy:
        proxy.cut()
        service = serve(proxy.hosts)

        def answers(path: str, wanted: int) -> bool:
            try:
                return service.get(path)[0] == wanted
            except OSError:
                return False

        wait_for(lambda: answers("/zklock/ready", 503), SOON, log.read_text)
        assert service.get("/zklock/live")[0] == 200
        proxy.restore()
        service.new_term(1)
        wait_for(lambda: answers("/zklock/ready", 200), SOON, log.read_text)
        service.process.terminate()
        service.process.wait(3 * SOON)


def told_failure(background: wsgi.Background) -> str:
    answer = background({"REQUEST_METHOD": "GET", "PATH_INFO": "/live"}, lambda *_: None)
    return str(json.loads(b"".join(answer))["failure"])


def test_work_that_outlives_its_lease_is_not_live(
    zklock_proxy: FaultProxy,
    zklock_path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, clients = zklock.connect, list[Any]()

    def connect(hosts: str, timeout: float, **options: Any) -> Any:
        clients.append(real(hosts, timeout, **options))
        return clients[-1]

    monkeypatch.setattr(zklock, "connect", connect)  # nobody else stops the client of stuck work
    began, end = threading.Event(), threading.Event()

    def work(leadership: zklock.Leadership) -> None:
        began.set()
        end.wait(3 * SOON)  # deaf: it does not look at should_stop

    background = wsgi.Background(zklock_proxy.hosts, zklock_path, work, timeout=2.0, grace=0.2)
    background.start()
    try:
        assert began.wait(SOON)
        good = background.health
        assert (good.live, good.leads, good.token is None) == (True, True, False)
        with pytest.raises(RuntimeError, match="already runs"):
            background.start()
        zklock_proxy.blackhole()
        wait_for(lambda: not background.health.live, SOON, "the end of the lease")
        bad = background.health
        assert (bad.live, bad.leads, bad.token) == (False, False, None)
        wait_for(lambda: "did not end" in told_failure(background), SOON, "LeaderStuck")
        assert not background.health.live, "the work still runs: the process must be replaced"
        assert not background.stop()
    finally:
        end.set()
        zklock_proxy.restore()
    wait_for(background.stop, SOON, "the end of the work")
    for client in clients:
        client.stop()
        client.close()


def test_work_that_exits_is_not_live(zklock_hosts: str, zklock_path: str) -> None:
    """``sys.exit()`` ends a thread, not the process: nobody else would notice."""

    def work(leadership: zklock.Leadership) -> None:
        sys.exit("there is no configuration")

    background = wsgi.Background(zklock_hosts, zklock_path, work, timeout=10.0, grace=SOON)
    background.start()
    try:
        wait_for(lambda: not background.health.live, SOON, "the end of the work")
        assert told_failure(background) == "there is no configuration"
    finally:
        assert background.stop()


def test_work_that_only_an_event_loop_can_run_is_refused(
    zklock_hosts: str, zklock_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(*_: object) -> None:
        raise AssertionError("nothing runs it")

    def generates(*_: object) -> Iterator[None]:
        yield

    plain: Any = print
    no_work: Any = (
        (wsgi.Background, work, "work is a coroutine function"),
        (wsgi.Background, generates, "work is a generator function"),
        (asgi.Background, generates, "work is a generator function"),
        (asgi.Background, plain, "work must be a coroutine function"),
        (wsgi.Background, None, "work must be callable, not NoneType"),
    )
    for make, given, said in no_work:
        with pytest.raises(TypeError, match=said):
            make(zklock_hosts, zklock_path, given)
    background = wsgi.Background(
        zklock_hosts, zklock_path, lambda leadership: work("", leadership), grace=SOON
    )
    background.start()
    try:
        wait_for(lambda: "lead returned a coroutine" in caplog.text, SOON, "the refusal")
    finally:
        assert background.stop()


def test_the_same_for_asyncio(zklock_proxy: FaultProxy, zklock_path: str) -> None:
    async def main() -> None:
        began = asyncio.Event()

        async def work(leadership: aio.Leadership) -> None:
            began.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3 * SOON)
            raise OSError("cancelled")

        background = asgi.Background(zklock_proxy.hosts, zklock_path, work, timeout=2, grace=0.5)
        async with background:
            await asyncio.wait_for(began.wait(), SOON)
            assert background.health.live
            with pytest.raises(RuntimeError, match="already runs"):
                await background.__aenter__()
            zklock_proxy.blackhole()
            while background.health.leads:
                await asyncio.sleep(0.02)
            while background.health.token is not None or not background.health.live:
                await asyncio.sleep(0.02)  # until the work is cancelled
            zklock_proxy.restore()
            began.clear()
            await asyncio.wait_for(began.wait(), 3 * SOON)  # it leads again
        assert not background.health.ready

    asyncio.run(asyncio.wait_for(main(), 5 * SOON))
