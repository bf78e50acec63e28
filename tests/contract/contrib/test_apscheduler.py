"""APScheduler: the jobs run in one process of many."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apscheduler.events import EVENT_SCHEDULER_SHUTDOWN
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import STATE_PAUSED

import zklock
from tests.contract.contrib.conftest import Start
from tests.contract.contrib.records import terms
from tests.contract.support import SOON, gone, queued, run
from zklock.contrib.apscheduler import LeaderJobs
from zklock.testing import wait_for

EVER = {"trigger": "interval", "seconds": 0.02}


def test_another_process_runs_the_jobs_when_the_first_is_killed(
    start_process: Start, zklock_hosts: str, zklock_client: Any, zklock_path: str, tmp_path: Path
) -> None:
    record = tmp_path / "record"
    words = ["tests.contract.contrib.scheduled", zklock_hosts, zklock_path, str(record)]
    processes = {process.pid: process for process in (start_process(*words) for _ in range(2))}
    queued(zklock_client, zklock_path, 2, 3 * SOON)

    def ran(count: int) -> list[tuple[int, str]]:
        return wait_for(
            lambda: found if len(found := terms(record)) >= count else None,
            3 * SOON,
            lambda: f"{count} terms, but {terms(record)}",
        )

    first, _ = ran(1)[0]
    processes.pop(first).kill()
    ((second, last),) = processes.items()
    assert ran(2)[1][0] == second
    last.terminate()
    assert last.wait(SOON) == 0
    gone(zklock_client, zklock_path)
    tokens = [token for _, token in terms(record)]
    assert tokens == sorted(set(tokens)), "no job runs in a term that is over"


@pytest.fixture
def scheduler(zklock_path: str) -> Iterator[BackgroundScheduler]:
    """A scheduler that is shut down before the path of the test is removed."""
    made = BackgroundScheduler(timezone="UTC")
    yield made
    if made.running:
        run(made.shutdown).result(SOON)


def test_without_the_lease_a_job_is_left_out(
    scheduler: BackgroundScheduler, zklock_hosts: str, zklock_client: Any, zklock_path: str
) -> None:
    jobs = LeaderJobs(scheduler, zklock_hosts, zklock_path, timeout=30)
    tokens: list[Any] = []

    @jobs.only
    def job() -> None:
        assert jobs.leadership is not None
        tokens.append(jobs.leadership.token)

    job()
    assert tokens == []
    scheduler.add_job(job, **EVER)
    scheduler.start()
    with pytest.raises(ValueError, match="before its start"):
        LeaderJobs(scheduler, zklock_hosts, zklock_path)
    wait_for(lambda: tokens, SOON, "a job")
    first = tokens[0]
    zklock.Lock(zklock_client, zklock_path).break_lock()
    wait_for(lambda: tokens[-1] > first, SOON, "a job of the next term")
    assert jobs.health.leads


def test_a_hand_over_waits_for_jobs_that_run(
    scheduler: BackgroundScheduler, zklock_hosts: str, zklock_client: Any, zklock_path: str
) -> None:
    jobs = LeaderJobs(scheduler, zklock_hosts, zklock_path, timeout=30, grace=SOON)
    began, end = threading.Event(), threading.Event()

    @jobs.only
    def job() -> None:
        began.set()
        end.wait(3 * SOON)

    scheduler.add_job(job, max_instances=1, **EVER)
    scheduler.start()
    assert began.wait(SOON)
    other = zklock.Lock(zklock_client, zklock_path)
    waiting = run(other.acquire)
    queued(zklock_client, zklock_path, 2)
    stopping = run(scheduler.shutdown, wait=False)
    wait_for(lambda: not scheduler.running, SOON, "the shutdown")
    assert jobs.health.leads
    assert not waiting.done()
    end.set()
    grant = waiting.result(SOON)
    assert grant is not None
    grant.release()
    stopping.result(SOON)


def test_a_job_may_shut_its_scheduler_down(
    scheduler: BackgroundScheduler, zklock_hosts: str, zklock_client: Any, zklock_path: str
) -> None:
    jobs = LeaderJobs(scheduler, zklock_hosts, zklock_path, timeout=30, grace=SOON)
    began = threading.Event()

    @jobs.only
    def job() -> None:
        scheduler.shutdown(wait=False)
        began.set()

    scheduler.add_job(job, **EVER)
    scheduler.start()
    assert began.wait(SOON)
    with zklock.Lock(zklock_client, zklock_path, timeout=SOON / 2):
        assert jobs.health.live
        assert not scheduler.running


def test_a_shutdown_that_is_crossed_by_a_pause_ends(
    scheduler: BackgroundScheduler, zklock_hosts: str, zklock_path: str
) -> None:
    def cross(event: Any) -> None:
        scheduler.remove_listener(cross)
        scheduler.state = STATE_PAUSED  # what a pause() writes that has looked at the state before

    scheduler.add_listener(cross, EVENT_SCHEDULER_SHUTDOWN)
    LeaderJobs(scheduler, zklock_hosts, zklock_path, timeout=30)
    scheduler.start()
    run(scheduler.shutdown).result(SOON)
    assert not scheduler.running


async def test_coroutines_on_an_event_loop(zklock_hosts: str, zklock_path: str) -> None:
    scheduler = AsyncIOScheduler(timezone="UTC")
    jobs = LeaderJobs(scheduler, zklock_hosts, zklock_path, timeout=30)
    ran = asyncio.Event()

    @jobs.only
    async def job() -> str:
        ran.set()
        return "ran"

    assert await job() is None
    scheduler.add_job(job, **EVER)
    scheduler.start()
    await asyncio.wait_for(ran.wait(), SOON)
    assert await job() == "ran"
    scheduler.shutdown()


def test_a_shutdown_on_an_event_loop_lets_coroutines_end(
    zklock_hosts: str, zklock_client: Any, zklock_path: str
) -> None:
    async def main() -> LeaderJobs:
        scheduler = AsyncIOScheduler(timezone="UTC")
        jobs = LeaderJobs(scheduler, zklock_hosts, zklock_path, timeout=30, grace=SOON)
        began, ended = asyncio.Event(), asyncio.Event()

        @jobs.only
        async def job() -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:  # APScheduler cancels it
                ended.set()

        scheduler.add_job(job, **EVER)
        scheduler.start()
        await asyncio.wait_for(began.wait(), SOON)
        scheduler.shutdown()
        await asyncio.wait_for(ended.wait(), SOON)
        return jobs

    jobs = asyncio.run(main())
    with zklock.Lock(zklock_client, zklock_path, timeout=SOON / 2):
        assert jobs.health.live
