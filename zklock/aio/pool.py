"""A pool of workers that share out shards of work, for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
from collections.abc import Callable
from concurrent.futures import Executor, Future
from types import TracebackType
from typing import Any

from zklock.aio.grant import Grant
from zklock.aio.waiting import ask, call_soon
from zklock.clock import clock
from zklock.connection import check_thread
from zklock.grant import Terms
from zklock.membership import (
    Ask,
    Await,
    Membership,
    PoolMember,
    Reporting,
    Script,
    ShardOwner,
    Slot,
    T,
)
from zklock.shards import Handler, Runner, on_loop

log = logging.getLogger("zklock")


class _ShardGrant(Reporting, Grant):
    """A grant that tells its slot of its loss, and others on the loop of the pool."""

    @staticmethod
    def _loop_of(terms: Terms) -> asyncio.AbstractEventLoop | None:
        assert isinstance(terms.owner, Slot)
        return terms.owner.home


class WorkerPool(Membership[Grant]):
    """One worker of a pool: it runs its share of the shards, as tasks of an event loop.

    Arguments as of :class:`zklock.WorkerPool`, with these differences. The pool belongs to the
    event loop that :meth:`start` is awaited on. ``handler``: a coroutine function is run there, as
    a task for each shard; its ``shard.should_stop`` is an ``asyncio.Event``, and the task is
    cancelled if the shard is lost. A cancellation that does not come from here counts as a
    failure. A plain function is run on threads, or as ``executor`` says, which must not be a loop.
    ``on_assigned`` and ``on_revoked``, functions or coroutine functions, are called on the loop,
    with an :class:`aio.Grant <Grant>`.

    What decides about shards, and asks ZooKeeper, are threads of the pool's own: a loop that is
    blocked keeps its own shards for too long, and holds up nobody else's.

    The constructor asks nothing of ZooKeeper. :meth:`start` and :meth:`stop`, or
    ``async with pool:``. A pool whose loop ends before it was stopped leaves by itself, in the
    background, once the handlers have; it calls nothing any more.

    Whatever asks ZooKeeper or waits is a coroutine; the rest may be used from anywhere. Cancelled,
    a coroutine leaves what it has begun to go on: see each.

    *Not guaranteed:* that two workers never act on a shard at one instant, nor that a handler
    is told in time by a loop that is blocked. What must not be written late has to be guarded by
    the token.
    """

    _GRANT = _ShardGrant

    def _set_up(self) -> None:
        self._news = asyncio.Event()
        self._waiting = 0
        self._ended = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._loop_ends = False

    async def start(self) -> None:
        """Join the pool; shards come soon.

        Raises what ``Lock.contenders()`` does; ``ZkLockError`` if it was started before.
        Cancelled, it has not joined, and may be started again.
        """
        loop = asyncio.get_running_loop()
        await self._play("start()", self._start(loop))
        self._keeper = asyncio.create_task(self._keep(), name="zklock-pool")

    async def stop(self, timeout: float | None = 30.0) -> None:
        """Leave the pool: hand over all shards, and return when that is done.

        Handlers are told to stop, ``on_revoked`` is called, and each shard is released when both
        have returned. If they have not within ``timeout`` seconds, raises ``PoolStuck``: what
        they work on stays owned until they do, and ``stop()`` may be awaited again. What
        ZooKeeper does not answer goes on in the background, and so does all of it if this is
        cancelled. A handler that awaits it waits for itself. ``RuntimeError`` on another loop than
        the pool's.
        """
        self._check_loop()
        await self._play("stop()", self._stop(timeout))
        if self._keeper is not None:
            await asyncio.wait([self._keeper])

    async def drain(self, timeout: float | None = None) -> bool:
        """Give up all shards, and take no others, while staying in the pool.

        Waits until none is owned any more; ``False`` if that was not within ``timeout`` seconds,
        while it goes on, as it does if this is cancelled; :meth:`resume` takes it back. If all
        workers of the pool drain, nobody owns the shards. ``RuntimeError`` on another loop than
        the pool's.
        """
        self._check_loop()
        return await self._play("drain()", self._drain(timeout))

    async def set_shards(self, shards: int, timeout: float | None = None) -> None:
        """Change the number of shards of the pool, for all workers and those to come.

        See :meth:`zklock.WorkerPool.set_shards`. Cancelled, it may or may not have been carried
        out; asking again is safe.
        """
        await self._play("set_shards()", self._set_shards(shards, timeout))

    async def assignment(self, timeout: float | None = None) -> list[ShardOwner]:
        """Return for each shard who is to have it and who has it, in the order of their numbers.

        See :meth:`zklock.WorkerPool.assignment`.
        """
        return await self._play("assignment()", self._assignment(timeout))

    async def members(self, timeout: float | None = None) -> list[PoolMember]:
        """Return the live workers, by identity. Costs and errors as of :meth:`assignment`."""
        return await self._play("members()", self._members(timeout))

    async def __aenter__(self) -> WorkerPool:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    # Inside, on whichever thread.

    def _runner_of(
        self, handler: Handler, executor: object
    ) -> Callable[[asyncio.AbstractEventLoop | None], Runner]:
        if isinstance(executor, asyncio.AbstractEventLoop):
            raise TypeError("executor must be no loop: coroutine functions run on that of start()")
        return super()._runner_of(handler, executor)

    def _new_callbacks(self) -> Executor:
        return _OnLoop(self)

    def _heard(self) -> None:
        loop = self._home
        if loop is not None and (self._waiting or self._closed):
            call_soon(loop, self._tell_those_who_wait)

    # Inside, on the loop.

    def _tell_those_who_wait(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
        if self._closed:
            self._ended.set()

    async def _keep(self) -> None:
        """Leave the pool if the loop ends: whoever ends it cancels its tasks."""
        try:
            await self._ended.wait()
        except asyncio.CancelledError:
            self._loop_ends = True
            self._depart()
            raise

    def _check_loop(self) -> None:
        if self._home not in {None, asyncio.get_running_loop()}:
            raise RuntimeError(
                f"{self._path}: this pool runs on another event loop: stop() and drain() it there"
            )

    async def _play(self, what: str, script: Script[T]) -> T:
        check_thread(what)
        try:
            step = next(script)
            while True:
                try:
                    told = await self._do(step)
                except BaseException as error:
                    step = script.throw(error)
                else:
                    step = script.send(told)
        except StopIteration as end:
            outcome: T = end.value
            return outcome

    async def _do(self, step: Ask | Await) -> object:
        if isinstance(step, Ask):
            return await ask(self._session, step.make, self._path, step.timeout)
        return await self._await(step.done, step.until)

    async def _await(self, done: Callable[[], bool], until: float) -> bool:
        self._waiting += 1  # before the first look, so that no news is missed after it
        try:
            while not done():
                left = until - clock()
                if left <= 0:
                    return False
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if left == math.inf else left):
                        await self._news.wait()
        finally:
            self._waiting -= 1
        return True


class _OnLoop(Executor):
    """Calls functions and coroutine functions on the loop of a pool, as tasks."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        """Call soon; not at all once the loop is over."""
        loop = self._pool._home
        if loop is not None and not self._pool._loop_ends:
            with contextlib.suppress(RuntimeError):
                return on_loop(loop, _called(call, *args, **options))
        log.warning("%s: a callback is not called: its event loop is over", self._pool)
        nothing: Future[Any] = Future()
        nothing.set_result(None)
        return nothing


async def _called(call: Callable[..., Any], *args: Any, **options: Any) -> None:
    outcome = call(*args, **options)
    if inspect.isawaitable(outcome):
        await outcome
