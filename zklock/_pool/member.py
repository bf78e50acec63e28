"""A worker of a pool, for threads and for asyncio alike: what its users call.

A front adds where callbacks run, and how it waits. What is called acts through ``worker``.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import math
import pickle
import socket
import sys
from collections.abc import Callable, Collection
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from logging import INFO, WARNING
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from zklock._core.callbacks import check_callback, check_callbacks, is_coroutine_function
from zklock._core.loops import check_thread
from zklock._election.changes import Mailbox, Observed, Watched
from zklock._election.membership import MembershipChange, watched
from zklock._election.options import check_payload, check_retry, member_identity
from zklock._election.threads import LeaderElection
from zklock._ground import threads
from zklock._ground.clock import check_timeout
from zklock._ground.not_copyable import NotCopyable
from zklock._ground.numbers import check_number
from zklock._ground.records import Fields, Logs, log_fields
from zklock._locks.base import G
from zklock._pool import nodes, views
from zklock._pool.keys import Keys, check_shards, encode, parse_shards
from zklock._pool.member_states import DONE, MemberState
from zklock._pool.nodes import PoolPaths, Registration, WorkerRecord
from zklock._pool.own_threads import Calling
from zklock._pool.processes import InProcesses, is_being_spawned
from zklock._pool.rebalancer import Campaign
from zklock._pool.runners import InTasks, InThreads, Runner, ShardHandler
from zklock._pool.slot import Callbacks, ShardLock, Slot
from zklock._pool.trouble import Trouble
from zklock._pool.views import PoolMember, PoolWorker, ShardOwner
from zklock._pool.worker import StartCall, Worker
from zklock._recipes import names
from zklock._shell.client import AnyClient
from zklock._shell.sessions import session_of
from zklock.errors import PoolStuck, ZkLockError

if TYPE_CHECKING:
    from zklock._pool.slot import Reporting

log = logging.getLogger("zklock")


class Membership(NotCopyable, Observed, Logs, Generic[G]):
    """The part of a pool's worker that does not wait; see ``WorkerPool`` for the arguments."""

    _INSTEAD = "make another worker, in another process with a client of its own"

    _AWAITS: ClassVar[bool] = False
    _MAIL: ClassVar[type[Mailbox]]
    _GRANT: ClassVar[type[Reporting]]

    def __init__(
        self,
        client: AnyClient,
        path: str,
        *,
        shards: int | Collection[str] = 64,
        identity: str | None = None,
        payload: bytes | str = b"",
        capacity: float = 1.0,
        on_assigned: Callable[[Any, G], object] | None = None,
        on_revoked: Callable[[Any, G], object] | None = None,
        handler: ShardHandler | None = None,
        executor: str | Executor | asyncio.AbstractEventLoop | None = None,
        on_error: str = "retry",
        retry: tuple[float, float] = (0.5, 30.0),
        settle: float = 0.2,
        session_timeout: float | None = None,
        lease_fraction: float | None = None,
    ) -> None:
        self._path = names.check_path(path)
        self._initial = check_shards(shards)
        self._identity = member_identity(identity)
        capacity = _check_capacity(capacity)
        check_callbacks(self._AWAITS, 2, on_assigned=on_assigned, on_revoked=on_revoked)
        if handler is None and executor is not None:
            raise ValueError("executor= needs a handler")
        if on_error not in {"retry", "stop"}:
            raise ValueError(f"on_error must be 'retry' or 'stop', not {on_error!r}")
        self._make_runner = None if handler is None else self._runner_of(handler, executor)
        pauses = check_retry(retry)
        seconds = "a number of seconds"
        settle = check_number(
            "settle", settle, seconds, lambda it: 0 <= it < math.inf, "0 or more, and finite"
        )
        self._client = client
        self._session_options: dict[str, Any] = {
            "session_timeout": session_timeout,
            "lease_fraction": lease_fraction,
        }
        self._session = session_of(client, session_timeout, lease_fraction)
        if not self._session.shell.on_real_clock and executor == "processes":
            raise ValueError(
                "handlers in processes use the real clock, but this client has another: use "
                "executor='threads' or 'asyncio'"
            )
        self._places = PoolPaths(self._path)
        said = WorkerRecord(
            self._identity,
            capacity,
            kin=socket.gethostname() if identity is None else "",
            payload=_coded(payload),
        )
        campaign = Campaign(
            self._session,
            self._places,
            LeaderElection(
                client, self._places.leader, identity=self._identity, **self._session_options
            ),
            self._initial,
            Trouble(pauses),
            settle,
        )
        self._worker = Worker(
            self,
            Registration(self._places, said),
            Callbacks(on_assigned, on_revoked, on_error == "retry", pauses),
            campaign,
        )

    @property
    def path(self) -> str:
        """The pool's znode: all workers have the same."""
        return self._path

    @property
    def identity(self) -> str:
        """The name of this worker in the pool."""
        return self._identity

    @property
    def capacity(self) -> float:
        """The weight of this worker: with twice another's, it gets twice as many shards."""
        return self._worker.registration.profile.capacity

    @property
    def draining(self) -> bool:
        """Whether this worker should have no shards."""
        return self._worker.registration.profile.draining

    @property
    def is_leader(self) -> bool:
        """Whether this worker may be believed to assign the shards."""
        return self._worker.campaign.election.is_leader

    def owned(self) -> dict[Any, G]:
        """Return the shards that this worker owns, with their grants. Asks nobody.

        The keys are the shards' numbers, or their names.
        """
        owned = self._worker.slots.owned.copy()
        return {shard: grant for shard, grant in owned.items() if grant.held}

    def resume(self) -> None:
        """Take shards again after :meth:`drain`. Does not wait."""
        self._worker.change(draining=False)

    def set_capacity(self, capacity: float) -> None:
        """Change the weight of this worker. Shards move as soon as the leader hears of it."""
        self._worker.change(capacity=_check_capacity(capacity))

    @property
    def payload(self) -> bytes:
        """This worker's payload, for others to read."""
        return self._worker.registration.profile.payload_bytes

    def set_payload(self, payload: bytes | str) -> None:
        """Change this worker's payload. Does not wait. No shard moves."""
        self._worker.change(payload=_coded(payload))

    def __repr__(self) -> str:
        owned = len(self._worker.slots.owned)
        return f"<{type(self).__name__} {self._path} {self._identity} owns {owned}>"

    # For the fronts.

    def _runner_of(
        self, handler: ShardHandler, executor: object
    ) -> Callable[[asyncio.AbstractEventLoop | None], Runner]:
        """Return a factory of the handler's runner; ``TypeError``, ``ValueError`` if none fits.

        The factory's argument is the loop of ``start()``, for coroutine functions, if the executor
        is no loop. ``None`` means a loop on a thread of its own.
        """
        check_callback(True, "handler", handler)
        awaits = is_coroutine_function(handler)
        if executor is None:
            executor = "asyncio" if awaits else "threads"
        if isinstance(executor, str) and executor not in {"threads", "processes", "asyncio"}:
            raise ValueError(
                "executor must be 'threads', 'processes', 'asyncio', an executor or a loop, not "
                f"{executor!r}"
            )
        if isinstance(executor, ProcessPoolExecutor) or not isinstance(
            executor, str | Executor | asyncio.AbstractEventLoop
        ):
            raise TypeError(
                f"executor must not be a {type(executor).__name__}; for processes, pass "
                "executor='processes'"
            )
        tasks = executor == "asyncio" or isinstance(executor, asyncio.AbstractEventLoop)
        if tasks != awaits:
            raise TypeError(
                "executor='asyncio' or a loop needs a coroutine function, and no other "
                "executor takes one"
            )
        if isinstance(executor, asyncio.AbstractEventLoop):
            loop = executor
            return lambda home: InTasks(handler, loop)
        if tasks:
            return partial(InTasks, handler)
        if executor == "processes":
            try:
                pickle.dumps(handler)
            except Exception as error:
                raise TypeError(
                    f"a handler for processes must be a module's function: {error}"
                ) from None
            return lambda home: InProcesses(handler)
        threads = executor if isinstance(executor, Executor) else None
        return lambda home: InThreads(handler, threads)

    def _new_callbacks(self) -> Calling:
        raise NotImplementedError

    def _look(self) -> bool:
        """Leave if the loop of ``start()`` is closed: nothing tells of it. On the pool's thread.

        Return whether to look again soon.
        """
        return False

    def _wake_waiters(self) -> None:
        """Wake those who wait for a condition. From any thread."""
        raise NotImplementedError

    async def _until(self, done: Callable[[], bool], until: float) -> bool:
        """Wait until ``done()`` is true, or the time ``until``; return whether it is true."""
        while not done():
            left = until - self._session.now()
            if left <= 0:
                return False
            await self._mail.wait(self._session, None if left == math.inf else left)
        return True

    # Scripts: what the fronts' methods do.

    async def _start(self, call: StartCall, home: asyncio.AbstractEventLoop | None) -> None:
        check_thread("start()")
        if is_being_spawned():
            raise RuntimeError(
                f"{self._path}: this process is being spawned and imports the main module: guard "
                "the script's code with 'if __name__ == \"__main__\":', or each process of a "
                "handler becomes a worker, too"
            )
        self._session.check_usable()
        worker = self._worker
        entered = worker.begin(call)
        self._mail = self._MAIL()
        kept = worker.campaign.shards = await self._prepare()
        await self._ask("start()", lambda: nodes.enter(entered), None)
        # On another thread: an interrupt in the middle would leave half of a worker.
        worker.task_queue.later(partial(worker.join, call, home))
        try:
            worker.task_queue.ready()
        except threads.NoThread as error:
            raise ZkLockError(
                f"{self._path}: the pool's threads cannot be started ({error}): call start() again "
                "when threads can be started",
                path=self._path,
            ) from error
        await self._until(lambda: worker.joins_no_more(call), math.inf)
        if call.error is None and worker.state is MemberState.REFUSED:
            call.error = ZkLockError(
                f"{self._path}: this pool was stopped before it had joined: make another object",
                path=self._path,
            )
        if call.error is not None:
            with contextlib.suppress(ZkLockError):
                await self._ask("start()", lambda: nodes.leave(entered), None)
            call.nodes = None
            raise call.error
        if kept != self._initial:
            self._say(
                # The default of shards= is a number that may say nothing.
                INFO if isinstance(kept, range) else WARNING,
                "the pool's shards differ from shards=: it lacks %s, and it also has %s; "
                "set_shards() changes them",
                encode({*self._initial} - {*kept})[:100] or "none",
                encode({*kept} - {*self._initial})[:100] or "none",
            )

    async def _prepare(self) -> Keys:
        """Make the pool's persistent nodes; return the shards that there are."""
        said = await self._ask("start()", lambda: nodes.prepare(self._places, self._initial), None)
        kept = parse_shards(said)
        if kept is None:
            raise ZkLockError(
                f"{self._places.shards} says {said[:100]!r}, which is neither a number of shards "
                "nor a list of their names: correct it with set_shards(), which needs no start()",
                path=self._path,
            )
        nodes.check_kind(self._path, kept, self._initial)
        return kept

    async def _stop(self, timeout: float | None) -> None:
        check_thread("stop()")
        limit = check_timeout(timeout)
        if sys.is_finalizing():
            return  # no thread runs any more, and the session ends with the process
        self._worker.check_process()
        until = self._end_of(limit)
        worker = self._worker
        if not worker.depart():
            return
        ended = await self._until(lambda: worker.state in DONE, until)
        if not ended and not worker.slots.worked_on():
            # Nothing is stuck: the pool's thread needs a moment to hear that it is to leave.
            ended = await self._until(
                lambda: worker.state in DONE, self._end_of(self._session.moment)
            )
        if not ended:
            running = encode(worker.slots.worked_on())
            raise PoolStuck(
                f"{self._path}: the work on shards {running} did not stop within {limit:g} s: "
                "this worker owns them until it stops",
                path=self._path,
            )
        patience = self._session.timeout if self._session.connected else self._session.moment
        if not await self._until(
            lambda: worker.left and worker.slots.empty, self._end_of(patience)
        ):
            self._say(
                INFO,
                "ZooKeeper has not confirmed the departure yet: it continues in the background",
            )
        await self._until(lambda: worker.state is MemberState.CLOSED, math.inf)

    async def _drain(self, timeout: float | None) -> bool:
        check_thread("drain()")
        until = self._end_of(check_timeout(timeout))
        self._worker.check_process()
        self._worker.change(draining=True)
        return await self._until(lambda: self._worker.drained, until)

    async def _set_shards(self, shards: int | Collection[str], timeout: float | None) -> None:
        wanted = check_shards(shards)
        change = partial(nodes.prepare, self._places, wanted, change=True)
        await self._ask("set_shards()", change, timeout)

    async def _assignment(self, timeout: float | None) -> list[ShardOwner]:
        survey = partial(nodes.survey, self._places)
        return views.owners(*await self._ask("assignment()", survey, timeout))

    async def _members(self, timeout: float | None) -> list[PoolMember]:
        _, workers = await self._ask("members()", partial(nodes.survey, self._places), timeout)
        return views.members(workers)

    # Inside.

    def _end_of(self, limit: float | None) -> float:
        """Return when so many seconds are over, by the session's clock."""
        return math.inf if limit is None else self._session.now() + limit

    def _membership(self, wake: Callable[[], object]) -> Watched[MembershipChange[PoolWorker]]:
        """Begin to observe who is in the pool."""
        return watched(self._session, self._places.members, list, views.workers_of, wake)

    def _lock_of(self, slot: Slot) -> ShardLock:
        return ShardLock(
            slot,
            self._GRANT,
            self._client,
            self._places.shard(slot.shard),
            identity=self._identity,
            **self._session_options,
        )

    def _fields(self) -> Fields:
        return log_fields(path=self._path, identity=self._identity)


def _coded(payload: bytes | str) -> str:
    return base64.b64encode(check_payload(payload)).decode()


def _check_capacity(capacity: Any) -> float:
    return check_number(
        "capacity", capacity, "a number", lambda it: 0 < it < math.inf, "above 0 and finite"
    )
