"""A worker of a pool, for threads and for asyncio alike: what it owns, takes on and gives up.

One thread decides, in both fronts. A blocked loop therefore delays only its own handlers. A front
adds where callbacks run, and how it waits.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import math
import socket
import sys
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from logging import ERROR, INFO, WARNING
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from zklock._core.attempt import Attempt, Once
from zklock._core.callbacks import check_callbacks
from zklock._core.lease import HEARTBEATS
from zklock._core.loops import check_thread
from zklock._election.base import check_payload, check_retry, member_identity
from zklock._election.changes import Observed, Watched
from zklock._election.membership import MembershipChange, MembershipFollower, Present
from zklock._election.threads import LeaderElection
from zklock._ground import threads
from zklock._ground.async_event import LOOK
from zklock._ground.clock import check_timeout
from zklock._ground.events import Event
from zklock._ground.mutexes import ReentrantMutex
from zklock._ground.not_copyable import NotCopyable
from zklock._ground.numbers import check_number
from zklock._ground.records import Fields, Logs, log_fields
from zklock._locks.base import G
from zklock._pool import nodes
from zklock._pool.executors import runner
from zklock._pool.keys import Key, Keys, check_shards, encode, in_order, parse_shards
from zklock._pool.member_states import (
    DONE,
    HAS_JOINED,
    STOPPING,
    TABLE,
    MemberEvent,
    MemberState,
)
from zklock._pool.nodes import Found, PoolPaths, Registration, WorkerRecord
from zklock._pool.own_threads import Calling
from zklock._pool.processes import InProcesses, is_being_spawned
from zklock._pool.publication import Publication
from zklock._pool.rebalancer import Planner, Rebalancer
from zklock._pool.runners import OnLoop, Runner, ShardHandler
from zklock._pool.slot import Callbacks, ShardLock, Slot, Slots
from zklock._pool.task_queue import TaskQueue
from zklock._pool.trouble import Trouble
from zklock._recipes import names, queries
from zklock._shell.client import AnyClient
from zklock._shell.sessions import session_of
from zklock.errors import (
    AcquireCancelled,
    ClientClosed,
    ForkedClient,
    LockLost,
    NotHeld,
    PoolStuck,
    ZkLockError,
)
from zklock.token import FencingToken

if TYPE_CHECKING:
    from zklock._pool.slot import Reporting

log = logging.getLogger("zklock")

_AFTER = 0.1
"""How long a worker collects changes of what it owns before it writes them, in seconds."""


@dataclass(frozen=True, slots=True)
class ShardOwner:
    """The worker that should have a shard, and the worker that has it.

    ``shard`` is its number or name. ``wanted`` is the identity of the worker that the leader has
    assigned it to. ``owner`` is the identity of the worker that said last that it owns the shard,
    and ``token`` is that worker's token. All but the shard may be ``None``: nobody. A token that is
    no longer the newest says nothing.
    """

    shard: Any
    wanted: str | None
    owner: str | None
    token: FencingToken | None


@dataclass(frozen=True, slots=True)
class PoolMember:
    """A live worker: what it says of itself, and how many shards it should have and has."""

    identity: str
    capacity: float
    draining: bool
    assigned: int
    owned: int
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class PoolWorker:
    """A live worker, and what it says of itself."""

    identity: str
    capacity: float
    draining: bool
    payload: bytes


class StartCall:
    """One call of ``start()``."""

    error: Exception | None = None  # why it could not join
    nodes: Registration | None = None  # what it makes in ZooKeeper before it joins


class Membership(NotCopyable, Observed, Logs, Generic[G]):
    """The part of a pool's worker that does not wait; see ``WorkerPool`` for the arguments."""

    _INSTEAD = "make another worker, in another process with a client of its own"

    _AWAITS: ClassVar[bool] = False
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
        self._retry = check_retry(retry)
        settle = _check_finite("settle", settle, zero=True)
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
        self._registration = Registration(self._places, said)
        self._planner = Planner(self._initial, Trouble(self._retry), settle)
        self._election = LeaderElection(
            client, self._places.leader, identity=self._identity, **self._session_options
        )
        self._lock = ReentrantMutex()
        self._state = MemberState.NEW
        self._starter: StartCall | None = None  # the call that starts it, or has started it
        self._campaign: object = None  # what its thread has to show, else that ends at once
        self._departing = Event()
        self._work_over = Event()
        self._task_queue = TaskQueue(self._session, self._turn)
        self._owned: dict[Key, G] = {}
        publish = partial(
            Publication,
            self._session,
            self._task_queue,
            stopping=lambda: self._stopping,
            _fields=self._fields,
        )
        self._says_profile = publish(
            lambda: (self._registration.member, nodes.profile_data(self._registration))
        )
        self._says_owned = publish(self._said_owned, pause=_AFTER)
        self._slots = Slots(
            self._path,
            self._identity,
            self._owned,
            Callbacks(on_assigned, on_revoked, on_error == "retry", self._retry),
            self._task_queue,
            lock=self._lock_of,
            usable=self._usable,
            stopping=lambda: self._stopping,
            changed=self._says_owned.soon,
            unfit=self._unfit,
            answered=self._answered,
        )
        # Only the pool's own thread writes the following.
        self._attending: Attempt[None] | None = None
        self._absent = Trouble(self._retry)
        self._seen: tuple[str | None, int] = None, -1
        self._left = False  # no node of the registration is left in ZooKeeper
        self._set_up()

    def _set_up(self) -> None:
        """Make what the front needs in addition."""
        raise NotImplementedError

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
        return self._registration.profile.capacity

    @property
    def draining(self) -> bool:
        """Whether this worker should have no shards."""
        return self._registration.profile.draining

    @property
    def is_leader(self) -> bool:
        """Whether this worker may be believed to assign the shards."""
        return self._election.is_leader

    def owned(self) -> dict[Any, G]:
        """Return the shards that this worker owns, with their grants. Asks nobody.

        The keys are the shards' numbers, or their names.
        """
        return {shard: grant for shard, grant in self._owned.copy().items() if grant.held}

    def resume(self) -> None:
        """Take shards again after :meth:`drain`. Does not wait."""
        self._change(draining=False)

    def set_capacity(self, capacity: float) -> None:
        """Change the weight of this worker. Shards move as soon as the leader hears of it."""
        self._change(capacity=_check_capacity(capacity))

    @property
    def payload(self) -> bytes:
        """This worker's payload, for others to read."""
        return self._registration.profile.payload_bytes

    def set_payload(self, payload: bytes | str) -> None:
        """Change this worker's payload. Does not wait. No shard moves."""
        self._change(payload=_coded(payload))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._path} {self._identity} owns {len(self._owned)}>"

    # For the fronts.

    @property
    def _stopping(self) -> bool:
        """Whether it was told to leave."""
        return self._state in STOPPING

    @property
    def _closed(self) -> bool:
        """Whether all has ended that was started for the work."""
        return self._state is MemberState.CLOSED

    def _runner_of(
        self, handler: ShardHandler, executor: object
    ) -> Callable[[asyncio.AbstractEventLoop | None], Runner]:
        """Return a factory of the runner; its argument is the loop of ``start()``, if any."""
        return runner(handler, executor)

    def _new_callbacks(self) -> Calling:
        """Return what calls the callbacks."""
        raise NotImplementedError

    def _heard(self) -> None:
        """Wake those who wait for a condition. From any thread."""
        raise NotImplementedError

    async def _until(self, done: Callable[[], bool], until: float) -> bool:
        """Wait until ``done()`` is true, or the time ``until``; return whether it is true."""
        raise NotImplementedError

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
        with self._lock:
            if (self._state, MemberEvent.START) not in TABLE:
                raise ZkLockError(
                    f"{self._path}: this pool was started before: make another object",
                    path=self._path,
                )
            self._starter = call
            self._happens(MemberEvent.START)
        said = await self._ask("start()", lambda: nodes.prepare(self._places, self._initial), None)
        kept = parse_shards(said)
        if kept is None:
            raise ZkLockError(
                f"{self._places.shards} says {said[:100]!r}, which is neither a number of shards "
                "nor a list of their names: correct it with set_shards(), which needs no start()",
                path=self._path,
            )
        nodes.check_kind(self._path, kept, self._initial)
        self._planner.shards = kept
        with self._lock:
            call.nodes = entered = self._registration = Registration(
                self._places, self._registration.profile
            )
        await self._ask("start()", lambda: nodes.enter(entered), None)
        if home is not None:
            self._join(call, home)
        else:
            # On another thread: an interrupt in the middle would leave half of a worker.
            self._task_queue.later(partial(self._join, call, None))
            try:
                self._task_queue.ready()
            except threads.NoThread as error:
                raise ZkLockError(
                    f"{self._path}: the pool's threads cannot be started ({error}): call start() "
                    "again when threads can be started",
                    path=self._path,
                ) from error
            await self._until(lambda: self._joins_no_more(call), math.inf)
        if call.error is None and self._state is MemberState.REFUSED:
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
            self._tell_shards(kept)

    def _tell_shards(self, kept: Keys) -> None:
        if isinstance(kept, range):
            log.info(
                "%s has %s shards, not %s: set_shards() changes the number",
                self._path,
                len(kept),
                len(self._initial),
                extra=self._fields(),
            )
            return
        self._say(
            WARNING,
            "the pool's shards differ from shards=: it lacks %s, and it also has %s; "
            "set_shards() changes them",
            encode({*self._initial} - {*kept})[:100] or "none",
            encode({*kept} - {*self._initial})[:100] or "none",
        )

    def _joins_no_more(self, call: StartCall) -> bool:
        """Whether it has joined, or this call cannot have it join any more."""
        with self._lock:
            return call.error is not None or self._state is not MemberState.STARTING

    def _join(self, call: StartCall, home: asyncio.AbstractEventLoop | None) -> None:
        with self._lock:
            if self._starter is not call or self._joins_no_more(call):
                return  # it was given up, or the pool was stopped
            try:
                self._begin_work(home)
            except Exception as error:
                call.error = error

    def _begin_work(self, home: asyncio.AbstractEventLoop | None) -> None:
        slots = self._slots
        slots.home = home
        slots.taking = not self._registration.profile.draining
        if self._make_runner is not None:
            slots.runner = self._make_runner(home)
        if any((slots.callbacks.on_assigned, slots.callbacks.on_revoked)):
            slots.caller = self._new_callbacks()
        self._happens(MemberEvent.JOIN)  # else the pool's thread ends when the campaign starts it
        campaign = self._campaign = object()
        try:
            threads.start(self._serve, "zklock-campaign", campaign)
        except BaseException:  # maybe it runs all the same
            self._campaign = None
            self._happens(MemberEvent.FAIL)
            if slots.runner is not None:
                slots.runner.close()
            raise
        self._task_queue.later(self._attend)

    def _give_up_start(self, call: StartCall) -> None:
        """Undo a start that has failed or was interrupted, as far as it got."""
        with self._lock:
            mine = self._starter is call
            joined = mine and self._state in HAS_JOINED
            if mine and not joined:
                self._happens(MemberEvent.FAIL)
                self._starter = None
        if joined:
            self._depart()
        elif call.nodes is not None:
            leaving = self._session.attempt(partial(nodes.leave, call.nodes))
            with contextlib.suppress(Exception):  # it is the outcome of the attempt
                leaving.start()
            call.nodes = None

    async def _stop(self, timeout: float | None) -> None:
        check_thread("stop()")
        limit = check_timeout(timeout)
        if sys.is_finalizing():
            return  # no thread runs any more, and the session ends with the process
        self._check_process()
        until = self._end_of(limit)
        if not self._depart():
            return
        ended = await self._until(self._done, until)
        if not ended and not self._slots.worked_on():
            # Nothing is stuck: the pool's thread needs a moment to hear that it is to leave.
            ended = await self._until(self._done, self._end_of(self._session.moment))
        if not ended:
            running = encode(self._slots.worked_on())
            raise PoolStuck(
                f"{self._path}: the work on shards {running} did not stop within {limit:g} s: "
                "this worker owns them until it stops",
                path=self._path,
            )
        patience = self._session.timeout if self._session.connected else self._session.moment
        left = await self._until(lambda: self._left and self._slots.empty, self._end_of(patience))
        if not left:
            self._say(
                INFO,
                "ZooKeeper has not confirmed the departure yet: it continues in the background",
            )
        await self._until(lambda: self._closed, math.inf)

    def _depart_here(self) -> None:
        """Leave without waiting, unless this is a child of the worker's process."""
        with contextlib.suppress(ForkedClient):
            self._check_process()
            self._depart()

    def _depart(self) -> bool:
        """Begin to leave, which goes on by itself. Return whether there is anything to leave."""
        with self._lock:
            self._happens(MemberEvent.STOP)
            joined = self._state in HAS_JOINED
        if joined:
            self._departing.set()
            self._election.stop()
            self._task_queue.later(self._leave)
        return joined

    async def _drain(self, timeout: float | None) -> bool:
        check_thread("drain()")
        until = self._end_of(check_timeout(timeout))
        self._check_process()
        self._change(draining=True)
        return await self._until(self._drained, until)

    async def _set_shards(self, shards: int | Collection[str], timeout: float | None) -> None:
        wanted = check_shards(shards)
        await self._ask("set_shards()", lambda: nodes.set_shards(self._places, wanted), timeout)

    async def _assignment(self, timeout: float | None) -> list[ShardOwner]:
        shards, workers = await self._survey("assignment()", timeout)
        wanted = {n: it.profile.identity for it in workers for n in it.assigned}
        said = [(token, it.profile.identity, n) for it in workers for n, token in it.owned.items()]
        owners: dict[Key, tuple[FencingToken | None, str | None]]
        owners = {
            shard: (token, owner) for token, owner, shard in sorted(said, key=itemgetter(0, 1))
        }
        found = []
        for shard in in_order({*shards, *owners}):
            token, owner = owners.get(shard, (None, None))
            found.append(ShardOwner(shard, wanted.get(shard), owner, token))
        return found

    async def _members(self, timeout: float | None) -> list[PoolMember]:
        _, workers = await self._survey("members()", timeout)
        return [
            PoolMember(
                it.profile.identity,
                it.profile.capacity,
                it.profile.draining,
                len(it.assigned),
                len(it.owned),
                it.profile.payload_bytes,
            )
            for it in workers
        ]

    async def _survey(self, what: str, timeout: float | None) -> tuple[Keys, list[Found]]:
        return await self._ask(what, lambda: nodes.survey(self._places), timeout)

    # Inside, on any thread.

    def _happens(self, event: MemberEvent) -> bool:
        """Go where the event leads; return whether that is another state."""
        with self._lock:
            before = self._state
            self._state = TABLE[before, event]
            return self._state is not before

    def _done(self) -> bool:
        return self._state in DONE

    def _check_process(self) -> None:
        """Raise ``ForkedClient`` if this is a child of the worker's process.

        Raise ``ZkLockError`` while the interpreter shuts down.
        """
        if self._state in HAS_JOINED:
            self._session.check_process()

    def _membership(self, wake: Callable[[], object]) -> Watched[MembershipChange[PoolWorker]]:
        """Begin to observe who is in the pool."""
        roster = MembershipFollower(self._session, self._places.members, list, _workers, wake)
        return Watched(self._path, roster.attempt, roster.take)

    def _change(self, **what: Any) -> None:
        """Change what this worker says of itself, now or when it joins."""
        with self._lock:
            self._registration.profile = replace(self._registration.profile, **what)
            joined = self._state in HAS_JOINED
        if joined:
            self._task_queue.later(self._take_profile)

    def _drained(self) -> bool:
        # This worker takes no more shards, even if the leader does not know yet that it drains.
        taking = self._state is MemberState.JOINED and self._slots.taking
        return self._closed or (not taking and self._slots.empty)

    def _serve(self, campaign: object) -> None:
        """Lead in turn; then end what was started for the work, when no work is left."""
        with self._lock:  # whoever starts this has it
            if campaign is not self._campaign:
                return
        self._lead_in_turn()
        self._work_over.wait()
        try:
            if self._slots.runner is not None:
                self._slots.runner.close()
            if self._slots.caller is not None:
                self._slots.caller.shutdown()
        finally:
            self._happens(MemberEvent.CLOSE)
            self._heard()

    def _lead_in_turn(self) -> None:
        trouble = self._planner.trouble
        while not self._stopping:
            try:
                self._task_queue.ready()  # it has jobs; nobody else tries again to start its thread
                self._lead()
            except (AcquireCancelled, LockLost):
                continue  # it leaves; or another one may lead
            except Exception as error:
                if self._over(error):
                    return  # the pool's thread says so
                if trouble.strikes(error):
                    unexpected = None if isinstance(error, ZkLockError) else error
                    self._say(ERROR, "this worker cannot lead: %s", error, error=unexpected)
                self._departing.wait(trouble.pause())

    def _lead(self) -> None:
        leadership = self._election.acquire()
        try:
            Rebalancer(self._session, self._places, leadership, self._planner).run()
        finally:
            with contextlib.suppress(LockLost, NotHeld):
                leadership.release()

    def _told(self, data: bytes, version: int, current: bool) -> None:
        """Hear what the leader has written, on the thread that brings it."""
        self._task_queue.later(
            partial(self._heed, self._registration.assigned, data, version, current)
        )

    def _end_of(self, limit: float | None) -> float:
        """Return when so many seconds are over, by the session's clock."""
        return math.inf if limit is None else self._session.now() + limit

    # Inside, on the pool's own thread.

    def _turn(self) -> bool:
        runner = self._slots.runner
        if isinstance(runner, InProcesses) and self._owned:
            now = self._session.now()
            end = now + self._session.remaining()
            # If a grant was lost with its session, this lease may be that of the next session. So
            # the lease is not noted before the loss is told.
            if all(grant._loss is None for grant in self._owned.values()):
                runner.lease(end)
            self._task_queue.wake_by(now + self._session.timeout / HEARTBEATS / 2)
        elsewhere: tuple[object, ...] = (runner, self._slots.caller)
        for each in elsewhere:
            if isinstance(each, OnLoop) and each.look():
                self._look_again()
        if self._state is MemberState.LEAVING and not self._slots.running:
            self._happens(MemberEvent.WORK_OVER)
            self._work_over.set()
        self._heard()
        over = self._done() and self._slots.empty and self._left
        return self._state in HAS_JOINED and not over

    def _look_again(self) -> None:
        """Look soon whether an event loop is closed: nothing tells of it."""
        self._task_queue.wake_by(self._task_queue.now() + LOOK)

    def _attend(self) -> None:
        if self._stopping and self._registration.member is None:
            self._gone()
            return
        self._left = False
        attempt = self._session.attempt(
            partial(
                nodes.attend,
                self._registration,
                self._told,
                lambda: self._task_queue.later(self._gone),
            )
        )
        self._attending = attempt
        attempt.when_done(partial(self._task_queue.later, Once(partial(self._attended, attempt))))
        attempt.start()

    def _attended(self, attempt: Attempt[None]) -> None:
        try:
            attempt.result()
        except Exception as error:
            if self._over(error):
                self._say(INFO, "this worker leaves the pool for good: its client was stopped")
                return
            if self._absent.strikes(error):
                self._say(ERROR, "this worker cannot be in the pool: %s", error)
            self._task_queue.at(self._task_queue.now() + self._absent.pause(), self._attend)

    def _over(self, error: Exception) -> bool:
        """Whether the client is of no use any more. Then all of the worker leaves, for good.

        A client that was stopped may have been started again by now. Others have seen that it was
        stopped, and have ended.
        """
        over = isinstance(error, ClientClosed) or not self._usable()
        if over:
            self._depart()
        return over

    def _usable(self) -> bool:
        try:
            self._session.check_usable()
        except ZkLockError:
            return False
        return True

    def _gone(self) -> None:
        self._left = True

    def _leave(self) -> None:
        if not self._happens(MemberEvent.LEAVE):
            return  # it has heard before
        attending = self._attending
        if attending is None or (not attending.cancel() and attending.done):
            self._left = True
        self._slots.want(frozenset())

    def _take_profile(self) -> None:
        self._says_profile.soon()
        self._slots.take(not self._registration.profile.draining)

    def _said_owned(self) -> tuple[str | None, bytes]:
        tokens = {shard: grant.token for shard, grant in self._owned.items()}
        return self._registration.owned, nodes.owned_data(tokens)

    def _heed(self, node: str | None, data: bytes, version: int, current: bool) -> None:
        if node is not None and self._absent.ends():
            self._say(INFO, "this worker is in the pool again")
        if self._stopping:
            return
        if not current:
            self._says_profile.forget()
            self._says_profile.soon()
        seen, latest = self._seen
        if node == seen and version < latest:
            return  # from another server, which is behind the one before
        news = self._seen != (node, version)
        self._seen = node, version
        if node != seen:
            self._says_owned.soon()
        wanted = nodes.parse_assigned(data)
        if wanted is None:
            if news:
                log.error(
                    "%s says %r: not a list of shards; ignored",
                    node,
                    data[:100],
                    extra=self._fields(),
                )
            return
        self._slots.want(wanted)

    def _lock_of(self, slot: Slot) -> ShardLock:
        return ShardLock(
            slot,
            self._GRANT,
            self._client,
            self._places.shard(slot.shard),
            identity=self._identity,
            **self._session_options,
        )

    def _answered(self, call: Callable[[], object]) -> None:
        attempt = self._session.attempt(
            partial(queries.retry_on_new_session, partial(nodes.read, [self._places.shards], []))
        )
        attempt.when_done(call)
        attempt.start()

    def _unfit(self) -> None:
        if not self._registration.profile.draining and not self._stopping:
            self._say(
                ERROR,
                "%s gives up its shards and takes no others: its executor or event loop is "
                "gone; stop this pool, and make another",
                self._identity,
            )
            self._change(draining=True)

    def _fields(self) -> Fields:
        return log_fields(path=self._path, identity=self._identity)


def _workers(present: Present) -> dict[str, PoolWorker]:
    said = {
        name: WorkerRecord.parse(node.data)
        for name, node in present.nodes.items()
        if node is not None
    }
    found = {
        name: PoolWorker(it.identity, it.capacity, it.draining, it.payload_bytes)
        for name, it in said.items()
        if it is not None
    }
    return dict(sorted(found.items(), key=lambda each: (each[1].identity, each[0])))


def _coded(payload: bytes | str) -> str:
    return base64.b64encode(check_payload(payload)).decode()


def _check_finite(
    name: str, value: Any, kind: str = "a number of seconds", *, zero: bool = False
) -> float:
    """Return a finite number above 0, or 0 where that is allowed."""
    return check_number(
        name,
        value,
        kind,
        lambda it: (it > 0 or (zero and it == 0)) and it < math.inf,
        "0 or more, and finite" if zero else "above 0 and finite",
    )


def _check_capacity(capacity: Any) -> float:
    return _check_finite("capacity", capacity, "a number")
