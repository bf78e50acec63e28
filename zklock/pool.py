"""A pool of workers that share out shards of work, each shard under a lock of its own."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import math
import os
import socket
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, Future
from concurrent.futures import ThreadPoolExecutor as Threads
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

from zklock import desks, names, queries
from zklock.assignment import encode
from zklock.attempt import Attempt
from zklock.base import check_identity
from zklock.campaign import check_retry, pause_after
from zklock.clock import check_timeout, clock
from zklock.connection import Client, check_thread
from zklock.desks import MAX_SHARDS, Desk, Places, Profile
from zklock.effects import Recipe
from zklock.election import LeaderElection, Leadership
from zklock.errors import LockLost, NotHeld, PoolStuck, ZkLockError
from zklock.grant import Answer, Grant
from zklock.lease import HEARTBEATS
from zklock.lock import Lock
from zklock.planner import Planner
from zklock.session import session_of
from zklock.shards import Handler, InProcesses, Runner, Task, runner
from zklock.token import FencingToken
from zklock.worker import Worker

log = logging.getLogger("zklock")

ShardCallback = Callable[[int, Grant], object]

_PUBLISH_AFTER = 0.1
"""Seconds for which what a worker owns is gathered before it is written."""

_CALLBACKS = 64  # run at a time

_TURN = 0.2


@dataclass(frozen=True, slots=True)
class ShardOwner:
    """Who is to have a shard, and who has it.

    ``shard`` is its number; ``wanted`` the identity of the worker that the leader has assigned it
    to; ``owner`` and ``token`` are those of the worker that has said last that it owns it. All
    but the number may be ``None``: nobody. A token that is no longer the newest says nothing.
    """

    shard: int
    wanted: str | None
    owner: str | None
    token: FencingToken | None


@dataclass(frozen=True, slots=True)
class PoolMember:
    """A live worker: what it says of itself, and how many shards it is to have and has."""

    identity: str
    capacity: float
    draining: bool
    assigned: int
    owned: int


class _ShardGrant(Grant):
    """A grant that tells its slot of its loss, without a thread for it."""

    def _set_lost(self) -> None:
        super()._set_lost()
        slot = self._terms.owner
        assert isinstance(slot, _Slot)
        slot.lost(self)


class _ShardLock(Lock):
    """A shard's lock, on behalf of a slot."""

    _GRANT = _ShardGrant

    def __init__(self, slot: _Slot, client: Client, path: str, **options: Any) -> None:
        super().__init__(client, path, **options)
        self._slot = slot

    def _owner(self) -> object:
        return self._slot


class _Slot:
    """What this worker has to do with one shard. For the pool's thread, but for ``lost``."""

    def __init__(self, number: int, lose: Callable[[_Slot, Grant], object]) -> None:
        self.number = number
        self.wanted = True
        self.begun = False
        self.lock: _ShardLock | None = None
        self.attempt: Attempt[Grant | None] | None = None
        self.run: _Run | None = None
        self.answer: Answer | None = None
        self.failures = 0
        self._lose = lose

    def lost(self, grant: Grant) -> None:
        """Hear of the loss of a grant, on any thread."""
        self._lose(self, grant)


class _Run:
    """One ownership of a shard: from its grant until all who work under it have ended."""

    def __init__(self, grant: Grant) -> None:
        self.grant = grant
        self.told = False  # to stop
        self.busy: set[str] = set()
        self.task: Task | None = None
        self.failures = 0


class WorkerPool:
    """One worker of a pool: it runs its share of the shards.

    ``client``: a started ``KazooClient``, best from :func:`zklock.connect`. ``path``: the pool's
    own znode, created where missing. ``shards``: how many there are, 1 to 65536, if the pool is
    new; else the number that is kept in ZooKeeper holds, see :meth:`set_shards`. ``identity``: text
    by which others know this worker, by default ``host:pid:`` and a random part; workers should
    differ in it. ``capacity``: this worker's weight, above 0; its share of the shards is in
    proportion.

    ``on_assigned(shard, grant)``: called with the number of a shard and its grant once this worker
    owns it. ``on_revoked(shard, grant)``: called once it is to be handed over; the shard is
    released when this has returned, and the handler has. It is called, too, when the grant is lost
    (``grant.held`` is then false): another worker may own the shard already. Both run on threads
    of zklock's own, at most 64 at a time; an exception in one is logged.

    ``handler(shard)``: called with a :class:`Shard` once this worker owns it, after
    ``on_assigned``. It is to return soon after ``shard.should_stop`` is set; if it returns earlier,
    the shard stays owned, and is not handled again until it is owned anew. ``executor``: where it
    runs: ``"threads"``, ``"processes"`` (one for each shard that runs, spawned), ``"asyncio"`` (a
    loop on a thread of its own), any executor of ``concurrent.futures``, or a running event loop;
    by default ``"asyncio"`` for coroutine functions, else ``"threads"``. With an executor that runs
    fewer at a time than there are shards, the others wait for their handler, owned. ``on_error``:
    after an exception in the handler, which is logged, ``"retry"`` calls it again after a pause
    that grows with every failure in a row, ``"stop"`` does not, and the shard stays owned.
    ``retry``: the first and the longest pause, in seconds. ``LockLost`` of a shard that is lost
    counts as a return.

    ``settle``: seconds that the leader waits for further news before it assigns shards anew.
    ``session_timeout`` and ``lease_fraction`` as for ``Lock``.

    The constructor asks nothing of ZooKeeper. :meth:`start` and :meth:`stop`, or ``with pool:``.

    *Not guaranteed:* that two workers never act on a shard at one instant. A worker that is paused
    acts on when it goes on, until it looks. What must not be written late has to be guarded by
    the token.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        shards: int = 64,
        identity: str | None = None,
        capacity: float = 1.0,
        on_assigned: ShardCallback | None = None,
        on_revoked: ShardCallback | None = None,
        handler: Handler | None = None,
        executor: str | Executor | asyncio.AbstractEventLoop | None = None,
        on_error: str = "retry",
        retry: tuple[float, float] = (0.5, 30.0),
        settle: float = 0.2,
        session_timeout: float | None = None,
        lease_fraction: float | None = None,
    ) -> None:
        self._path = names.check_path(path)
        self._initial = _check_shards(shards)
        self._identity = (
            check_identity(identity)
            or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        )
        capacity = _check_capacity(capacity)
        for name, callback in (("on_assigned", on_assigned), ("on_revoked", on_revoked)):
            if callback is not None and not callable(callback):
                raise TypeError(f"{name} must be callable, not {type(callback).__name__}")
        if handler is None and executor is not None:
            raise ValueError("an executor makes no sense without a handler")
        if on_error not in {"retry", "stop"}:
            raise ValueError(f"on_error must be 'retry' or 'stop', not {on_error!r}")
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._make_runner = None if handler is None else runner(handler, executor)
        self._on_error = on_error
        self._retry = check_retry(retry)
        self._settle = check_timeout(settle) or 0.0
        self._client = client
        self._terms = {"session_timeout": session_timeout, "lease_fraction": lease_fraction}
        self._session = session_of(client, session_timeout, lease_fraction)
        self._places = Places(self._path)
        self._desk = Desk(self._places, Profile(self._identity, capacity))
        self._election = LeaderElection(
            client,
            self._places.leader,
            identity=self._identity,
            session_timeout=session_timeout,
            lease_fraction=lease_fraction,
        )
        self._guard = threading.Lock()
        self._started = False
        self._stopping = False
        self._news: SimpleQueue[None] = SimpleQueue()  # wakes who waits in a method
        self._campaign: threading.Thread | None = None
        self._runner: Runner | None = None
        self._callbacks: Threads | None = None
        # What follows is for the pool's own thread.
        self._worker = Worker("zklock-pool", self._turn)
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()
        self._slots: dict[int, _Slot] = {}
        self._owned: dict[int, Grant] = {}
        self._attending: Attempt[None] | None = None
        self._seen: tuple[str | None, int] = None, -1
        self._wanted: frozenset[int] | None = None  # as last read
        self._publication: tuple[str | None, bytes] | None = None  # to which node, and what
        self._publishing = False
        self._left = False  # nothing of the desk is left in ZooKeeper

    @property
    def path(self) -> str:
        """The pool's path."""
        return self._path

    @property
    def identity(self) -> str:
        """What this worker is called in the pool."""
        return self._identity

    @property
    def capacity(self) -> float:
        """The weight of this worker."""
        return self._desk.profile.capacity

    @property
    def draining(self) -> bool:
        """Whether this worker is to have no shards."""
        return self._desk.profile.draining

    @property
    def is_leader(self) -> bool:
        """Whether this worker assigns the shards, as far as may be believed."""
        return self._election.is_leader

    def start(self) -> None:
        """Join the pool; shards come soon.

        Raises what ``Lock.contenders()`` does; ``ZkLockError`` if it was started before.
        """
        check_thread("start()")
        self._session.check_usable()
        with self._guard:
            if self._started:
                raise ZkLockError(
                    f"{self._path}: this pool was started before: make another object",
                    path=self._path,
                )
            self._started = True
        try:
            kept = self._ask(lambda: desks.prepare(self._places, self._initial), None)
        except BaseException:
            self._started = False
            raise
        if kept != self._initial:
            log.info(
                "%s has %s shards, not %s: set_shards() changes it", self._path, kept, self._initial
            )
        if self._make_runner is not None:
            self._runner = self._make_runner()
        if self._on_assigned is not None or self._on_revoked is not None:
            self._callbacks = Threads(_CALLBACKS, "zklock-shard-callback")
        self._worker.later(self._attend)
        self._campaign = threading.Thread(
            target=self._lead_in_turn, name="zklock-campaign", daemon=True
        )
        self._campaign.start()

    def stop(self, timeout: float | None = 30.0) -> None:
        """Leave the pool: hand over all shards, and return when that is done.

        Handlers are told to stop, ``on_revoked`` is called, and each shard is released when both
        have returned. If they have not within ``timeout`` seconds, raises ``PoolStuck``: what
        they work on stays owned until they do, and ``stop()`` may be called again. What
        ZooKeeper does not answer goes on in the background. A handler that calls it waits for
        itself.
        """
        limit = check_timeout(timeout)
        check_thread("stop()")
        if not self._started:
            return
        until = math.inf if limit is None else clock() + limit
        self._stopping = True
        self._election.stop()
        self._worker.later(self._leave)
        if not self._await(lambda: not self._running, until):
            running = sorted(number for number, slot in self._slots.items() if slot.run)
            raise PoolStuck(
                f"{self._path}: the work on shards {encode(running)} has not ended within "
                f"{limit:g} s of being told to: they stay owned until it does",
                path=self._path,
            )
        patience = self._session.timeout if self._session.connected else self._session.moment
        if not self._await(lambda: self._left and not self._slots, clock() + patience):
            log.info("%s: no answer to the departure yet: it goes on in the background", self._path)
        if self._campaign is not None:
            self._campaign.join()
        if self._runner is not None:
            self._runner.close()
            self._runner = None
        if self._callbacks is not None:
            self._callbacks.shutdown()

    def owned(self) -> dict[int, Grant]:
        """Return the shards that this worker owns, with their grants; asks nobody."""
        return {number: grant for number, grant in self._owned.copy().items() if grant.held}

    def drain(self, timeout: float | None = None) -> bool:
        """Give up all shards, and take no others, while staying in the pool.

        Waits until none is owned any more; ``False`` if that was not within ``timeout`` seconds,
        while it goes on. If all workers of the pool drain, nobody owns the shards.
        """
        limit = check_timeout(timeout)
        check_thread("drain()")
        self._change(draining=True)
        until = math.inf if limit is None else clock() + limit
        return self._await(self._drained, until)

    def resume(self) -> None:
        """Take shards again after :meth:`drain`."""
        self._change(draining=False)

    def set_capacity(self, capacity: float) -> None:
        """Change the weight of this worker; shards move as soon as the leader has heard of it."""
        self._change(capacity=_check_capacity(capacity))

    def set_shards(self, shards: int, timeout: float | None = None) -> None:
        """Change the number of shards of the pool, for all workers and those to come.

        Those that are there stay where they are, as far as the balance allows; with a lower number
        the last ones are given up. Raises ``NoAnswer`` after ``timeout`` seconds, by default the
        session timeout; asking again is safe.
        """
        number = _check_shards(shards)
        limit = check_timeout(timeout)
        self._ask(lambda: desks.prepare(self._places, number), limit)
        self._ask(lambda: desks.set_shards(self._places, number), limit)

    def assignment(self, timeout: float | None = None) -> list[ShardOwner]:
        """Return for each shard who is to have it and who has it, in the order of their numbers.

        What is owned is as the workers have said last; they do so a tenth of a second after a
        change. Costs three reads for each worker, whatever the number of shards, and
        ``NoAnswer`` after ``timeout`` seconds, by default the session timeout. Asks through the
        leader of ZooKeeper. Needs no :meth:`start`.
        """
        shards, workers = self._survey(timeout)
        wanted = {n: it.profile.identity for it in workers for n in it.assigned}
        said = [(n, token, it.profile.identity) for it in workers for n, token in it.owned.items()]
        owners: dict[int, tuple[FencingToken | None, str | None]]
        owners = {number: (token, owner) for number, token, owner in sorted(said)}
        found = []
        for number in sorted({*range(shards), *owners}):
            token, owner = owners.get(number, (None, None))
            found.append(ShardOwner(number, wanted.get(number), owner, token))
        return found

    def members(self, timeout: float | None = None) -> list[PoolMember]:
        """Return the live workers, by identity. Costs and errors as of :meth:`assignment`."""
        _, workers = self._survey(timeout)
        return [
            PoolMember(
                it.profile.identity,
                it.profile.capacity,
                it.profile.draining,
                len(it.assigned),
                len(it.owned),
            )
            for it in workers
        ]

    def __enter__(self) -> WorkerPool:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._path} {self._identity} owns {len(self._owned)}>"

    # Inside, on whichever thread.

    def _ask(self, make: Callable[[], Recipe[Any]], timeout: float | None) -> Any:
        check_thread("a question to the pool")
        return self._session.ask(make, self._path, timeout)

    def _survey(self, timeout: float | None) -> tuple[int, list[desks.Found]]:
        limit = check_timeout(timeout)
        found: tuple[int, list[desks.Found]] = self._ask(lambda: desks.survey(self._places), limit)
        return found

    def _change(self, **what: Any) -> None:
        """Change what this worker says of itself, now or when it joins."""
        with self._guard:
            self._desk.profile = replace(self._desk.profile, **what)
        if self._started:
            self._worker.later(self._tell_profile)

    def _drained(self) -> bool:
        wanted = self._started and not self._stopping and self._wanted != frozenset()
        return not wanted and not self._slots

    @property
    def _running(self) -> bool:
        return any(slot.run or slot.attempt for slot in self._slots.copy().values())

    def _await(self, done: Callable[[], bool], until: float) -> bool:
        # Not an Event: an interrupt in the middle of waiting for one leaves it locked.
        while not done():
            left = until - clock()
            if left <= 0:
                return False
            with contextlib.suppress(Empty):
                self._news.get(timeout=min(left, _TURN))
        return True

    def _lead_in_turn(self) -> None:
        failures = 0
        while not self._stopping:
            try:
                self._election.run(self._lead)
            except ZkLockError as error:
                try:
                    self._session.check_usable()
                except ZkLockError:
                    log.info("%s: this worker leads no more: %s", self._path, error)
                    return
                failures += 1
                log.error("%s: this worker cannot lead: %s", self._path, error)
                until = clock() + pause_after(failures, self._retry)
                self._await(lambda: self._stopping, until)

    def _lead(self, leadership: Leadership) -> None:
        log.info(
            "%s: %s assigns the shards, token %s", self._path, self._identity, leadership.token
        )
        Planner(self._session, self._places, leadership, self._settle).run()

    def _told(self, data: bytes, version: int) -> None:
        """Hear what the leader has written, on the thread that brings it."""
        self._worker.later(partial(self._heed, self._desk.assigned, data, version))

    def _lost(self, slot: _Slot, grant: Grant) -> None:
        self._worker.later(partial(self._take_loss, slot, grant))

    # Inside, on the pool's own thread.

    def _turn(self) -> float | None:
        now = clock()
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()
        if isinstance(self._runner, InProcesses) and self._owned:
            self._runner.lease(clock() + self._session.remaining())
            self._wake_by(now + self._session.timeout / HEARTBEATS / 2)
        if self._stopping and not self._slots and self._left:
            return None
        return self._due[0][0] if self._due else math.inf

    def _wake_by(self, due: float) -> None:
        if not self._due or self._due[0][0] > due:
            self._at(due, lambda: None)

    def _at(self, due: float, job: Callable[[], object]) -> None:
        heapq.heappush(self._due, (due, next(self._numbers), job))

    def _attend(self) -> None:
        if self._stopping:
            self._gone()
            return
        attempt = self._session.attempt(
            desks.attend(self._desk, self._told, lambda: self._worker.later(self._gone))
        )
        self._attending = attempt
        attempt.when_done(lambda: self._worker.later(partial(self._attended, attempt)))
        attempt.start()

    def _attended(self, attempt: Attempt[None]) -> None:
        try:
            attempt.result()
        except Exception as error:
            log.error("%s: this worker cannot be in the pool: %s", self._path, error)
            if self._usable:
                self._at(clock() + pause_after(1, self._retry), self._attend)

    @property
    def _usable(self) -> bool:
        try:
            self._session.check_usable()
        except ZkLockError:
            return False
        return True

    def _gone(self) -> None:
        self._left = self._stopping
        self._news.put(None)

    def _leave(self) -> None:
        if self._attending is None or not self._attending.give_up():
            self._left = self._attending is None or self._attending.done
        self._want(frozenset())

    def _tell_profile(self) -> None:
        node = self._desk.member
        if node is not None and not self._stopping:
            data = desks.profile_data(self._desk)
            self._session.attempt(queries.steadfast(lambda: desks.write(node, data))).start()

    def _heed(self, node: str | None, data: bytes, version: int) -> None:
        if self._stopping:
            return
        seen, latest = self._seen
        if node == seen and version < latest:
            return  # another server, which is behind the one before
        self._seen = node, version
        if node != seen:
            self._publish_soon()
        self._wanted = desks.parse_assigned(data)
        self._want(self._wanted)
        self._news.put(None)

    def _want(self, wanted: frozenset[int]) -> None:
        for number, slot in list(self._slots.items()):
            if slot.wanted and number not in wanted:
                slot.wanted = False
                self._revoke(slot)
        for number in sorted(wanted):
            slot = self._slots.setdefault(number, _Slot(number, self._lost))
            slot.wanted = True
            if not slot.begun:
                self._begin(slot)

    def _begin(self, slot: _Slot) -> None:
        """Queue for the shard."""
        slot.begun = True
        try:
            if slot.lock is None:
                slot.lock = _ShardLock(
                    slot,
                    self._client,
                    self._places.shard(slot.number),
                    identity=self._identity,
                    **self._terms,
                )
            slot.attempt = slot.lock._begin(
                lambda attempt: self._worker.later(partial(self._answered, slot, attempt))
            )
        except Exception as error:
            self._failed(slot, error)

    def _failed(self, slot: _Slot, error: Exception) -> None:
        slot.attempt = None
        if not slot.wanted or not self._usable:
            self._settled(slot)
            return
        slot.failures += 1
        log.error("%s: shard %s cannot be had: %s", self._path, slot.number, error)
        self._at(clock() + pause_after(slot.failures, self._retry), partial(self._again, slot))

    def _again(self, slot: _Slot) -> None:
        """Queue once more, unless something else has become of the slot."""
        if self._slots.get(slot.number) is slot and not (slot.attempt or slot.run or slot.answer):
            if slot.wanted:
                self._begin(slot)
            else:
                self._settled(slot)

    def _answered(self, slot: _Slot, attempt: Attempt[Grant | None]) -> None:
        try:
            grant = attempt.result()
        except Exception as error:
            self._failed(slot, error)
            return
        slot.attempt = None
        if grant is None:
            self._finish(slot)
            return
        slot.failures = 0
        self._own(slot, grant)

    def _own(self, slot: _Slot, grant: Grant) -> None:
        slot.run = run = _Run(grant)
        if not slot.wanted or grant.lost.is_set():
            self._over(slot)
            return
        self._owned[slot.number] = grant
        self._publish_soon()
        self._news.put(None)
        if self._on_assigned is not None:
            self._call(slot, "on_assigned", self._on_assigned)
        else:
            self._handle(slot, run)

    def _call(self, slot: _Slot, what: str, callback: ShardCallback) -> None:
        run, pool = slot.run, self._callbacks
        assert run is not None
        assert pool is not None
        run.busy.add(what)
        future = pool.submit(callback, slot.number, run.grant)
        future.add_done_callback(
            lambda future: self._worker.later(partial(self._called, slot, run, what, future))
        )

    def _called(self, slot: _Slot, run: _Run, what: str, future: Future[object]) -> None:
        if (error := future.exception()) is not None:
            log.error("%s: %s of shard %s raised", self._path, what, slot.number, exc_info=error)
        run.busy.discard(what)
        if what == "on_assigned":
            if not run.told:
                self._handle(slot, run)
                return
            if self._on_revoked is not None:
                self._call(slot, "on_revoked", self._on_revoked)
        self._look(slot, run)

    def _handle(self, slot: _Slot, run: _Run) -> None:
        if run.told or self._runner is None:
            return
        run.busy.add("handler")
        try:
            run.task = self._runner.submit(slot.number, run.grant)
        except Exception as error:
            failed: Future[Any] = Future()
            failed.set_exception(error)
            self._handled(slot, run, failed)
            return
        run.task.future.add_done_callback(
            lambda future: self._worker.later(partial(self._handled, slot, run, future))
        )

    def _handled(self, slot: _Slot, run: _Run, future: Future[Any]) -> None:
        run.busy.discard("handler")
        run.task = None
        error = None if future.cancelled() else future.exception()
        if error is None:
            run.failures = 0
        elif not (isinstance(error, LockLost) and not run.grant.held):
            log.error("%s: the handler of shard %s raised", self._path, slot.number, exc_info=error)
            if self._on_error == "retry" and not run.told:
                run.failures += 1
                due = clock() + pause_after(run.failures, self._retry)
                self._at(due, lambda: self._handle(slot, run))
        self._look(slot, run)

    def _look(self, slot: _Slot, run: _Run) -> None:
        if run.told and not run.busy and slot.run is run:
            self._over(slot)

    def _revoke(self, slot: _Slot) -> None:
        """Have the shard given up: it is to go to another."""
        if slot.attempt is not None:
            slot.attempt.give_up()  # or a grant is on its way, and is given back
        elif slot.run is not None:
            self._tell(slot, slot.run)
        elif slot.answer is None:
            self._settled(slot)

    def _take_loss(self, slot: _Slot, grant: Grant) -> None:
        if slot.run is not None and slot.run.grant is grant:
            self._tell(slot, slot.run)
            if slot.run is not None and slot.run.task is not None:
                slot.run.task.lose()
            self._owned.pop(slot.number, None)
            self._publish_soon()

    def _tell(self, slot: _Slot, run: _Run) -> None:
        """Have the work on the shard end."""
        if run.told:
            return
        run.told = True
        if run.task is not None:
            run.task.tell()
        if self._on_revoked is not None and "on_assigned" not in run.busy:
            self._call(slot, "on_revoked", self._on_revoked)
        self._look(slot, run)

    def _over(self, slot: _Slot) -> None:
        """Give the shard back: nobody works on it any more."""
        run, slot.run = slot.run, None
        assert run is not None
        self._owned.pop(slot.number, None)
        self._publish_soon()
        try:
            slot.answer = answer = run.grant._end()
        except (LockLost, NotHeld):
            self._finish(slot)
        else:
            answer.when_done(lambda: self._worker.later(partial(self._released, slot)))

    def _released(self, slot: _Slot) -> None:
        slot.answer = None
        self._finish(slot)

    def _finish(self, slot: _Slot) -> None:
        """Go on with a slot that has nothing: it may be wanted again by now."""
        if slot.wanted and self._usable:
            self._begin(slot)
        else:
            self._settled(slot)

    def _settled(self, slot: _Slot) -> None:
        self._slots.pop(slot.number, None)
        self._news.put(None)

    # What this worker owns, for others to read.

    def _publish_soon(self) -> None:
        if not self._publishing and not self._stopping:
            self._publishing = True
            self._at(clock() + _PUBLISH_AFTER, self._publish)

    def _publish(self) -> None:
        node = self._desk.owned
        data = desks.owned_data({number: it.token for number, it in self._owned.items()})
        if node is None or self._stopping or (node, data) == self._publication:
            self._publishing = False
            return
        self._publication = node, data
        attempt = self._session.attempt(queries.steadfast(lambda: desks.write(node, data)))
        attempt.when_done(lambda: self._worker.later(self._published))
        attempt.start()

    def _published(self) -> None:
        # Once more, as something may have changed meanwhile.
        self._at(clock() + _PUBLISH_AFTER, self._publish)


def _check_shards(shards: Any) -> int:
    if isinstance(shards, bool) or not isinstance(shards, int):
        raise TypeError(f"shards must be an int, not {type(shards).__name__}")
    if not 0 < shards <= MAX_SHARDS:
        raise ValueError(f"shards must be 1 to {MAX_SHARDS}, not {shards}")
    return shards


def _check_capacity(capacity: Any) -> float:
    if isinstance(capacity, bool) or not isinstance(capacity, int | float):
        raise TypeError(f"capacity must be a number, not {type(capacity).__name__}")
    if not 0 < capacity < math.inf:
        raise ValueError(f"capacity must be above 0 and finite, not {capacity}")
    return float(capacity)
