"""Handlers in threads and tasks: how they begin, how they are told, and how they end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.fakes import no_thread
from zklock import aio
from zklock._locks.grant import Grant
from zklock._pool import runners
from zklock._pool.runners import CannotRun, InTasks, InThreads
from zklock.token import FencingToken

SOON = 60.0


class Work:
    """A handler that notes that it has begun, and ends when told."""

    def __init__(self) -> None:
        self.began = threading.Event()

    async def __call__(self, shard: aio.Shard) -> None:
        self.began.set()
        await shard.should_stop.wait()


@pytest.fixture
def work() -> Work:
    return Work()


def held() -> Grant:
    return cast(Grant, SimpleNamespace(token=FencingToken(1, 2), lock_path="/p/shards/7"))


def test_a_task_whose_shard_is_lost_before_it_begins_does_not(work: Work) -> None:
    loop = asyncio.new_event_loop()
    tasks = InTasks(work, loop)
    task = tasks.submit(7, held())
    assert tasks.look(), "once more, as the loop may be closed"
    task.lose()
    loop.run_until_complete(asyncio.wrap_future(task.future, loop=loop))
    loop.close()
    assert not work.began.is_set()
    assert not tasks.look()


def test_a_loop_whose_thread_cannot_be_started_is_closed(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[asyncio.AbstractEventLoop] = []
    new = asyncio.new_event_loop

    def new_event_loop() -> asyncio.AbstractEventLoop:
        made.append(new())
        return made[-1]

    monkeypatch.setattr(asyncio, "new_event_loop", new_event_loop)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(RuntimeError, match="can't start"):
        InTasks(work, None)
    assert [loop.is_closed() for loop in made] == [True]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_task_that_exits_ends_no_other(error: type[BaseException]) -> None:
    """A loop that runs on stops at such an error of a task. Here, other handlers are on it."""
    began = threading.Event()

    async def handler(shard: aio.Shard) -> None:
        if shard.number == 7:
            raise error
        began.set()
        await shard.should_stop.wait()

    runner = InTasks(handler, None)
    assert isinstance(runner.submit(7, held()).future.exception(SOON), error)
    other = runner.submit(8, held())
    assert began.wait(SOON)
    assert isinstance(runner.submit(7, held()).future.exception(SOON), error)
    other.tell()
    assert other.future.result(SOON) is None
    runner.close()


@pytest.mark.parametrize("stubborn", [False, True])
def test_what_a_handler_has_left_ends_with_the_loop(
    monkeypatch: pytest.MonkeyPatch, stubborn: bool
) -> None:
    monkeypatch.setattr(runners, "_LEFT", 0.2)
    began, ends = asyncio.Event(), list[str]()
    kept: list[Any] = []

    async def stays() -> None:
        began.set()
        while True:
            try:
                await asyncio.sleep(SOON)
            except asyncio.CancelledError:
                if stubborn:
                    continue
                await asyncio.sleep(0)
                ends.append("task")
                raise

    async def counts() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(0)
            ends.append("generator")

    async def handler(shard: aio.Shard) -> None:
        kept.extend([asyncio.create_task(stays()), counts()])
        await began.wait()
        async for _ in kept[1]:
            return

    runner = InTasks(handler, None)
    runner.submit(7, held()).future.result(SOON)
    assert not ends
    runner.close()
    assert ends == (["generator"] if stubborn else ["task", "generator"])
    if stubborn:
        kept[0]._log_destroy_pending = False


def test_a_call_that_the_executor_cancels_cannot_run() -> None:
    """Nobody has called it off: its shard would be owned, and nobody would work on it."""
    go_on = threading.Event()
    executor = ThreadPoolExecutor(1)
    runner = InThreads(print, executor)
    busy = executor.submit(go_on.wait, SOON)
    waiting, called_off, told = (runner.submit(shard, held()) for shard in (7, 8, 9))
    called_off.call_off()
    told.tell()
    executor.shutdown(wait=False, cancel_futures=True)
    error = waiting.future.exception(SOON)
    assert isinstance(error, CannotRun)
    assert not error.for_good
    assert called_off.future.result(SOON) is None
    assert told.future.result(SOON) is None
    go_on.set()
    busy.result(SOON)
    executor.shutdown()


def test_a_call_that_was_refused_does_not_run_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor has put it into its queue when it finds that no thread can be started."""
    calls: list[str] = []
    go_on = threading.Event()
    with ThreadPoolExecutor(2) as executor:
        runner = InThreads(lambda shard: calls.append(shard.name), executor)
        busy = executor.submit(go_on.wait, SOON)
        with monkeypatch.context() as patched, pytest.raises(CannotRun):
            patched.setattr(threading.Thread, "start", no_thread)
            runner.submit(7, held())
        go_on.set()
        busy.result(SOON)
    assert calls == []


def test_a_call_that_began_before_it_was_refused_is_known() -> None:
    class Late(ThreadPoolExecutor):
        def submit(self, call: Any, /, *args: Any, **options: Any) -> Any:
            super().submit(call, *args, **options).result(SOON)
            raise RuntimeError("can't start new thread")

    calls: list[str] = []
    with Late(1) as executor:
        task = InThreads(lambda shard: calls.append(shard.name), executor).submit(7, held())
        assert task.future.result(SOON) is None
    assert calls == ["7"]
