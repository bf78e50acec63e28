"""A pool of workers that share shards of work, for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future
from typing import Any

from zklock._core.grant import GrantOptions
from zklock._election.membership import MembershipChange
from zklock._ground.context_exit import entered
from zklock._ground.public import public
from zklock._ground.records import log_fields
from zklock._pool.member import Membership
from zklock._pool.member_states import MemberState
from zklock._pool.own_threads import Calling
from zklock._pool.runners import OnLoop, Runner, ShardHandler
from zklock._pool.slot import Reporting, Slot
from zklock._pool.views import PoolMember, PoolWorker, ShardOwner
from zklock._pool.worker import StartCall
from zklock.aio.grant import Grant
from zklock.aio.leaving import TaskEntersContext, held_from
from zklock.aio.observers import Mail, MembershipChanges, Observer
from zklock.aio.waiting import AWAITING, call_soon

log = logging.getLogger("zklock")


class _ShardGrant(Reporting, Grant):
    """A grant that tells its slot of its loss, and tells others on the loop of the pool."""

    @staticmethod
    def _loop_of(terms: GrantOptions) -> asyncio.AbstractEventLoop | None:
        assert isinstance(terms.owner, Slot)
        return terms.owner.home


@public
class WorkerPool(TaskEntersContext, Membership[Grant]):
    """One worker of a pool: it runs its share of the shards, as tasks of an event loop.

    The arguments are those of :class:`zklock.WorkerPool`, with these differences. The pool belongs
    to the event loop that :meth:`start` is awaited on.

    ``handler``: a coroutine function runs on that loop, as a task for each shard. Its
    ``shard.should_stop`` is an ``asyncio.Event``, and the task is cancelled if the shard is lost. A
    cancellation that the pool did not ask for counts as a failure. A plain function runs on
    threads, or where ``executor`` says, which must not be a loop. ``on_assigned`` and
    ``on_revoked``, functions or coroutine functions, are called on the loop, with an
    :class:`aio.Grant <Grant>`.

    Threads of the pool's own decide about shards and ask ZooKeeper. A blocked loop keeps its own
    shards for too long, but holds up nobody else's.

    The constructor sends no request. Use :meth:`start` and :meth:`stop`, or ``async with pool:``.
    If the loop ends before the pool was stopped, the pool leaves by itself, in the background, once
    the handlers have ended. It calls no callback any more.

    Methods that ask ZooKeeper or wait are coroutines. The rest may be used from anywhere. If a
    coroutine is cancelled, its action may go on: see each.

    *Not guaranteed:* that two workers never act on a shard at the same instant. Nor is it
    guaranteed that a blocked loop tells a handler in time. Use the token to fence every write that
    must not come late.
    """

    _AWAITS = True
    _FRONT = AWAITING
    _GRANT = _ShardGrant
    _MAIL = Mail

    _ended: asyncio.Event | None = None
    _keeper: asyncio.Task[None] | None = None
    _loop_ends = False
    _waiting = 0

    async def start(self) -> None:
        """Join the pool: see :meth:`zklock.WorkerPool.start`.

        If this is cancelled, the worker has not joined, and may be started again.
        """
        loop = asyncio.get_running_loop()
        call = StartCall()
        try:
            await self._start(call, loop)
            self._keeper = asyncio.create_task(self._keep(), name="zklock-pool")
        except BaseException:
            self._worker.give_up(call)
            raise

    async def stop(self, timeout: float | None = 30.0) -> None:
        """Leave the pool: see :meth:`zklock.WorkerPool.stop`.

        If this is cancelled, the rest continues in the background. Raises ``RuntimeError`` on
        another loop than the pool's.
        """
        self._check_loop()
        await self._stop(timeout)
        if self._keeper is not None:
            await asyncio.wait([self._keeper])

    async def drain(self, timeout: float | None = None) -> bool:
        """Give up all shards: see :meth:`zklock.WorkerPool.drain`.

        If this is cancelled, the draining goes on; :meth:`resume` takes it back. Raises
        ``RuntimeError`` on another loop than the pool's.
        """
        self._check_loop()
        return await self._drain(timeout)

    async def set_shards(self, shards: int | Collection[str], timeout: float | None = None) -> None:
        """Change which shards the pool has: see :meth:`zklock.WorkerPool.set_shards`.

        If this is cancelled, they may or may not have changed; a repeated call is safe.
        """
        await self._set_shards(shards, timeout)

    async def assignment(self, timeout: float | None = None) -> list[ShardOwner]:
        """Return who has each shard: see :meth:`zklock.WorkerPool.assignment`."""
        return await self._assignment(timeout)

    async def members(self, timeout: float | None = None) -> list[PoolMember]:
        """Return the live workers: see :meth:`zklock.WorkerPool.members`."""
        return await self._members(timeout)

    def observe_membership(
        self, callback: Callable[[MembershipChange[PoolWorker]], object]
    ) -> Observer:
        """Observe the workers: see :meth:`zklock.WorkerPool.observe_membership`.

        The calls come on the running loop. A coroutine function is awaited.
        """
        self._observing(callback=callback)
        return Observer(self.membership_changes(), callback)

    def membership_changes(self, timeout: float | None = None) -> MembershipChanges[PoolWorker]:
        """Return an asynchronous iterator: see :meth:`zklock.WorkerPool.membership_changes`.

        Call it on the loop that iterates.
        """
        return MembershipChanges(self._session, self._membership, self._observing(timeout))

    def __aenter__(self) -> Coroutine[Any, Any, WorkerPool]:
        return held_from(entered(self), self._started_here)

    async def _started_here(self) -> WorkerPool:
        await self.start()
        return self

    async def _end_body(self, error: BaseException | None) -> None:
        await self.stop()

    def _abandon_body(self) -> None:
        self._worker.abandon()

    # Inside, on any thread.

    def _runner_of(
        self, handler: ShardHandler, executor: object
    ) -> Callable[[asyncio.AbstractEventLoop | None], Runner]:
        if isinstance(executor, asyncio.AbstractEventLoop):
            raise TypeError(
                "executor must not be a loop: coroutine functions run on the loop of start()"
            )
        return super()._runner_of(handler, executor)

    def _new_callbacks(self) -> Calling:
        assert self._home is not None
        return _Callbacks(self, self._home)

    @property
    def _home(self) -> asyncio.AbstractEventLoop | None:
        return self._worker.slots.home

    @property
    def _closed(self) -> bool:
        return self._worker.state is MemberState.CLOSED

    def _look(self) -> bool:
        if self._home is None or self._worker.stopping:
            return False
        if self._home.is_closed():  # and has cancelled nothing
            self._loop_ends = True
            self._worker.depart()
        return not self._loop_ends

    def _wake_waiters(self) -> None:
        if self._waiting:
            self._mail.put()
        if self._closed and self._ended is not None and self._home is not None:
            call_soon(self._home, self._ended.set)

    # Inside, on the loop.

    async def _keep(self) -> None:
        """Leave the pool if the loop ends. The code that ends a loop cancels its tasks."""
        self._ended = asyncio.Event()
        try:
            if not self._closed:
                await self._ended.wait()
        except asyncio.CancelledError:
            self._loop_ends = True
            self._worker.depart()
            raise

    def _check_loop(self) -> None:
        if self._home not in {None, asyncio.get_running_loop()}:
            raise RuntimeError(
                f"{self._path}: this pool runs on another event loop: stop() and drain() it there"
            )

    async def _until(self, done: Callable[[], bool], until: float) -> bool:
        self._waiting += 1  # before the first look, so that no news is missed after it
        try:
            return await super()._until(done, until)
        finally:
            self._waiting -= 1


class _Callbacks(OnLoop):
    """Calls functions and coroutine functions on the loop of a pool, as tasks."""

    def __init__(self, pool: WorkerPool, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._pool = pool

    def submit(self, call: Callable[..., Any], /, *what: Any) -> Future[Any]:
        """Call soon. Once the loop is over, do not call at all."""
        if not self._pool._loop_ends:
            with contextlib.suppress(RuntimeError):
                return self.begin(_called(call, *what))
        log.warning(
            "%s: a callback is not called: its event loop is closed",
            self._pool,
            extra=log_fields(path=self._pool.path, identity=self._pool.identity),
        )
        nothing: Future[Any] = Future()
        nothing.set_result(None)
        return nothing

    def shutdown(self) -> None:
        """Do nothing: the loop is the user's."""


async def _called(call: Callable[..., Any], *what: Any) -> None:
    outcome = call(*what)
    if inspect.isawaitable(outcome):
        await outcome
