"""A worker of a pool, for threads and for asyncio alike: what it owns, takes on and gives up.

One thread decides, whichever front it works for, so that a loop that is blocked holds up nothing
but its own handlers. A front adds where callbacks run, and how it waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import math
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from zklock import desks, kinds, names, queries
from zklock.assignment import encode
from zklock.attempt import Attempt
from zklock.base import G, check_callbacks
from zklock.campaign import check_retry, member_identity, pause_after
from zklock.clock import check_timeout, clock
from zklock.connection import Client
from zklock.desks import MAX_SHARDS, Desk, Found, Places, Profile
from zklock.effects import Recipe
from zklock.election import LeaderElection, Leadership
from zklock.errors import LockLost, NotHeld, PoolStuck, ZkLockError
from zklock.grant import Answer, GrantBase
from zklock.lease import HEARTBEATS
from zklock.planner import Planner
from zklock.session import session_of
from zklock.shards import Handler, InProcesses, Runner, Task, runner
from zklock.token import FencingToken
from zklock.worker import Worker

log = logging.getLogger("zklock")

T = TypeVar("T")

_PUBLISH_AFTER = 0.1
"""Seconds for which what a worker owns is gathered before it is written."""


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


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to ZooKeeper; ``NoAnswer`` after ``timeout`` seconds (``None``: as usual)."""

    make: Callable[[], Recipe[Any]]
    timeout: float | None


@dataclass(frozen=True, slots=True)
class Await:
    """A condition, and the time (of ``clock``) until which it is waited for."""

    done: Callable[[], bool]
    until: float


Script: TypeAlias = Generator[Ask | Await, Any, T]
"""What a method does. It is sent the answer, or whether the condition has come true; what ends
the wait otherwise is thrown into it.
"""


class Reporting(GrantBase):
    """A grant that tells its slot of its loss, without a thread for it."""

    def _set_lost(self) -> None:
        super()._set_lost()
        slot = self._terms.owner
        assert isinstance(slot, Slot)
        slot.lost(self)


class _ShardLock(kinds.Exclusive[Any]):
    """A shard's lock, on behalf of a slot."""

    def __init__(
        self, slot: Slot, grant: type[GrantBase], client: Client, path: str, **options: Any
    ) -> None:
        self._GRANT = grant
        super().__init__(client, path, **options)
        self._slot = slot

    def _storage(self) -> None:
        return None

    def _owner(self) -> Slot:
        return self._slot


class Slot:
    """What this worker has to do with one shard. For the pool's thread, but for ``lost``.

    ``home`` is the event loop of what is told of its grants, ``None`` for threads.
    """

    def __init__(
        self,
        number: int,
        lose: Callable[[Slot, GrantBase], object],
        home: asyncio.AbstractEventLoop | None,
    ) -> None:
        self.number = number
        self.home = home
        self.wanted = True
        self.begun = False
        self.lock: _ShardLock | None = None
        self.attempt: Attempt[Any] | None = None
        self.run: _Run | None = None
        self.answer: Answer | None = None
        self.failures = 0
        self._lose = lose

    def lost(self, grant: GrantBase) -> None:
        """Hear of the loss of a grant, on any thread."""
        self._lose(self, grant)


class _Run:
    """One ownership of a shard: from its grant until all who work under it have ended."""

    def __init__(self, grant: Any) -> None:
        self.grant = grant
        self.told = False  # to stop
        self.busy: set[str] = set()
        self.task: Task | None = None
        self.failures = 0


class Membership(Generic[G]):
    """The part of a pool's worker that does not wait; see ``WorkerPool`` for the arguments."""

    _GRANT: ClassVar[type[Reporting]]

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        shards: int = 64,
        identity: str | None = None,
        capacity: float = 1.0,
        on_assigned: Callable[[int, G], object] | None = None,
        on_revoked: Callable[[int, G], object] | None = None,
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
        self._identity = member_identity(identity)
        capacity = _check_capacity(capacity)
        check_callbacks(on_assigned=on_assigned, on_revoked=on_revoked)
        if handler is None and executor is not None:
            raise ValueError("an executor makes no sense without a handler")
        if on_error not in {"retry", "stop"}:
            raise ValueError(f"on_error must be 'retry' or 'stop', not {on_error!r}")
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._make_runner = None if handler is None else self._runner_of(handler, executor)
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
        self._started = False  # or being started
        self._joined = False
        self._stopping = False
        self._campaign = threading.Thread(
            target=self._lead_in_turn, name="zklock-campaign", daemon=True
        )
        self._departing: SimpleQueue[None] = SimpleQueue()
        self._home: asyncio.AbstractEventLoop | None = None
        self._runner: Runner | None = None
        self._callbacks: Executor | None = None
        # What follows is written by the pool's own thread.
        self._worker = Worker("zklock-pool", self._turn)
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()
        self._slots: dict[int, Slot] = {}
        self._owned: dict[int, G] = {}
        self._attending: Attempt[None] | None = None
        self._seen: tuple[str | None, int] = None, -1
        self._wanted: frozenset[int] | None = None  # as last read
        self._publication: tuple[str | None, bytes] | None = None  # to which node, and what
        self._publishing = False
        self._leaving = False
        self._left = False  # nothing of the desk is left in ZooKeeper
        self._idle = False  # nobody works on any shard, nor will
        self._closed = False  # and what was started for it has ended
        self._set_up()

    def _set_up(self) -> None:
        """Make what the front needs besides."""
        raise NotImplementedError

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

    def owned(self) -> dict[int, G]:
        """Return the shards that this worker owns, with their grants; asks nobody."""
        return {number: grant for number, grant in self._owned.copy().items() if grant.held}

    def resume(self) -> None:
        """Take shards again after :meth:`drain`. Does not wait."""
        self._change(draining=False)

    def set_capacity(self, capacity: float) -> None:
        """Change the weight of this worker; shards move as soon as the leader has heard of it."""
        self._change(capacity=_check_capacity(capacity))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._path} {self._identity} owns {len(self._owned)}>"

    # For the fronts.

    def _runner_of(
        self, handler: Handler, executor: object
    ) -> Callable[[asyncio.AbstractEventLoop | None], Runner]:
        """Return what makes the runner, given the loop that the pool was started on, if any."""
        return runner(handler, executor)

    def _new_callbacks(self) -> Executor:
        """Return what callbacks run on."""
        raise NotImplementedError

    def _heard(self) -> None:
        """Wake those who wait for a condition, from any thread."""
        raise NotImplementedError

    # What the methods do.

    def _start(self, home: asyncio.AbstractEventLoop | None) -> Script[None]:
        self._session.check_usable()
        with self._guard:
            if self._started:
                raise ZkLockError(
                    f"{self._path}: this pool was started before: make another object",
                    path=self._path,
                )
            self._started = True
        try:
            kept = yield Ask(lambda: desks.prepare(self._places, self._initial), None)
            with self._guard:
                if self._stopping:
                    raise ZkLockError(
                        f"{self._path}: this pool was stopped before it had joined: make another "
                        "object",
                        path=self._path,
                    )
                self._join(home)
        except BaseException:
            self._started = self._joined or self._stopping
            raise
        if kept != self._initial:
            log.info(
                "%s has %s shards, not %s: set_shards() changes it", self._path, kept, self._initial
            )

    def _join(self, home: asyncio.AbstractEventLoop | None) -> None:
        self._home = home
        if self._make_runner is not None:
            self._runner = self._make_runner(home)
        if self._on_assigned is not None or self._on_revoked is not None:
            self._callbacks = self._new_callbacks()
        self._joined = True
        self._worker.later(self._attend)
        self._campaign.start()

    def _stop(self, timeout: float | None) -> Script[None]:
        limit = check_timeout(timeout)
        until = _until(limit)
        if not self._depart():
            return
        if not (yield Await(lambda: self._idle, until)):
            running = sorted(number for number, slot in self._slots.copy().items() if slot.run)
            raise PoolStuck(
                f"{self._path}: the work on shards {encode(running)} has not ended within "
                f"{limit:g} s of being told to: they stay owned until it does",
                path=self._path,
            )
        patience = self._session.timeout if self._session.connected else self._session.moment
        if not (yield Await(lambda: self._left and not self._slots, clock() + patience)):
            log.info("%s: no answer to the departure yet: it goes on in the background", self._path)
        yield Await(lambda: self._closed, math.inf)

    def _depart(self) -> bool:
        """Begin to leave, which goes on by itself; whether there is anything to leave."""
        with self._guard:
            self._stopping = self._started
            joined = self._joined
        if joined:
            self._departing.put(None)
            self._election.stop()
            self._worker.later(self._leave)
        return joined

    def _drain(self, timeout: float | None) -> Script[bool]:
        until = _until(check_timeout(timeout))
        self._change(draining=True)
        drained: bool = yield Await(self._drained, until)
        return drained

    def _set_shards(self, shards: int, timeout: float | None) -> Script[None]:
        number = _check_shards(shards)

        def resize() -> Recipe[None]:
            yield from desks.prepare(self._places, number)
            yield from desks.set_shards(self._places, number)

        yield Ask(resize, check_timeout(timeout))

    def _assignment(self, timeout: float | None) -> Script[list[ShardOwner]]:
        shards, workers = yield from self._survey(timeout)
        wanted = {n: it.profile.identity for it in workers for n in it.assigned}
        said = [(n, token, it.profile.identity) for it in workers for n, token in it.owned.items()]
        owners: dict[int, tuple[FencingToken | None, str | None]]
        owners = {number: (token, owner) for number, token, owner in sorted(said)}
        found = []
        for number in sorted({*range(shards), *owners}):
            token, owner = owners.get(number, (None, None))
            found.append(ShardOwner(number, wanted.get(number), owner, token))
        return found

    def _members(self, timeout: float | None) -> Script[list[PoolMember]]:
        _, workers = yield from self._survey(timeout)
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

    def _survey(self, timeout: float | None) -> Script[tuple[int, list[Found]]]:
        limit = check_timeout(timeout)
        found: tuple[int, list[Found]] = yield Ask(lambda: desks.survey(self._places), limit)
        return found

    # Inside, on whichever thread.

    def _change(self, **what: Any) -> None:
        """Change what this worker says of itself, now or when it joins."""
        with self._guard:
            self._desk.profile = replace(self._desk.profile, **what)
            joined = self._joined
        if joined:
            self._worker.later(self._tell_profile)

    def _drained(self) -> bool:
        wanted = self._joined and not self._stopping and self._wanted != frozenset()
        return not wanted and not self._slots

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
                with contextlib.suppress(Empty):
                    self._departing.get(timeout=pause_after(failures, self._retry))

    def _lead(self, leadership: Leadership) -> None:
        log.info(
            "%s: %s assigns the shards, token %s", self._path, self._identity, leadership.token
        )
        Planner(self._session, self._places, leadership, self._settle).run()

    def _told(self, data: bytes, version: int) -> None:
        """Hear what the leader has written, on the thread that brings it."""
        self._worker.later(partial(self._heed, self._desk.assigned, data, version))

    def _lost(self, slot: Slot, grant: GrantBase) -> None:
        self._worker.later(partial(self._take_loss, slot, grant))

    def _close(self) -> None:
        """End what was started for the work, on a thread of its own: there is none any more."""
        try:
            self._campaign.join()
            if self._runner is not None:
                self._runner.close()
            if self._callbacks is not None:
                self._callbacks.shutdown()
        finally:
            self._closed = True
            self._heard()

    # Inside, on the pool's own thread.

    def _turn(self) -> float | None:
        now = clock()
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()
        if isinstance(self._runner, InProcesses) and self._owned:
            self._runner.lease(clock() + self._session.remaining())
            self._wake_by(now + self._session.timeout / HEARTBEATS / 2)
        if self._leaving and not self._idle and not self._running:
            self._idle = True
            threading.Thread(target=self._close, name="zklock-stop", daemon=True).start()
        self._heard()
        if self._idle and not self._slots and self._left:
            return None
        return self._due[0][0] if self._due else math.inf

    @property
    def _running(self) -> bool:
        return any(slot.run or slot.attempt for slot in self._slots.values())

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

    def _leave(self) -> None:
        if self._leaving:
            return
        self._leaving = True
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

    def _want(self, wanted: frozenset[int]) -> None:
        for number, slot in list(self._slots.items()):
            if slot.wanted and number not in wanted:
                slot.wanted = False
                self._revoke(slot)
        for number in sorted(wanted):
            slot = self._slots.setdefault(number, Slot(number, self._lost, self._home))
            slot.wanted = True
            if not slot.begun:
                self._begin(slot)

    def _begin(self, slot: Slot) -> None:
        """Queue for the shard."""
        slot.begun = True
        try:
            if slot.lock is None:
                slot.lock = _ShardLock(
                    slot,
                    self._GRANT,
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

    def _failed(self, slot: Slot, error: Exception) -> None:
        slot.attempt = None
        if not slot.wanted or not self._usable:
            self._settled(slot)
            return
        slot.failures += 1
        log.error("%s: shard %s cannot be had: %s", self._path, slot.number, error)
        self._at(clock() + pause_after(slot.failures, self._retry), partial(self._again, slot))

    def _again(self, slot: Slot) -> None:
        """Queue once more, unless something else has become of the slot."""
        if self._slots.get(slot.number) is slot and not (slot.attempt or slot.run or slot.answer):
            if slot.wanted:
                self._begin(slot)
            else:
                self._settled(slot)

    def _answered(self, slot: Slot, attempt: Attempt[Any]) -> None:
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

    def _own(self, slot: Slot, grant: G) -> None:
        slot.run = run = _Run(grant)
        if not slot.wanted or grant._loss is not None:
            self._over(slot)
            return
        self._owned[slot.number] = grant
        self._publish_soon()
        if self._on_assigned is not None:
            self._call(slot, "on_assigned", self._on_assigned)
        else:
            self._handle(slot, run)

    def _call(self, slot: Slot, what: str, callback: Callable[[int, G], object]) -> None:
        run, callbacks = slot.run, self._callbacks
        assert run is not None
        assert callbacks is not None
        run.busy.add(what)
        future = callbacks.submit(callback, slot.number, run.grant)
        future.add_done_callback(
            lambda future: self._worker.later(partial(self._called, slot, run, what, future))
        )

    def _called(self, slot: Slot, run: _Run, what: str, future: Future[object]) -> None:
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

    def _handle(self, slot: Slot, run: _Run) -> None:
        if run.told or self._stopping or self._runner is None:
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

    def _handled(self, slot: Slot, run: _Run, future: Future[Any]) -> None:
        run.busy.discard("handler")
        run.task = None
        error = None if future.cancelled() else future.exception()
        ended = isinstance(error, asyncio.CancelledError) and self._stopping  # with its loop
        if error is None or ended:
            run.failures = 0
        elif not (isinstance(error, LockLost) and not run.grant.held):
            log.error("%s: the handler of shard %s raised", self._path, slot.number, exc_info=error)
            if self._on_error == "retry" and not run.told:
                run.failures += 1
                due = clock() + pause_after(run.failures, self._retry)
                self._at(due, lambda: self._handle(slot, run))
        self._look(slot, run)

    def _look(self, slot: Slot, run: _Run) -> None:
        if run.told and not run.busy and slot.run is run:
            self._over(slot)

    def _revoke(self, slot: Slot) -> None:
        """Have the shard given up: it is to go to another."""
        if slot.attempt is not None:
            slot.attempt.give_up()  # or a grant is on its way, and is given back
        elif slot.run is not None:
            self._tell(slot, slot.run)
        elif slot.answer is None:
            self._settled(slot)

    def _take_loss(self, slot: Slot, grant: GrantBase) -> None:
        if slot.run is not None and slot.run.grant is grant:
            self._tell(slot, slot.run)
            if slot.run is not None and slot.run.task is not None:
                slot.run.task.lose()
            self._owned.pop(slot.number, None)
            self._publish_soon()

    def _tell(self, slot: Slot, run: _Run) -> None:
        """Have the work on the shard end."""
        if run.told:
            return
        run.told = True
        if run.task is not None:
            run.task.tell()
        if self._on_revoked is not None and "on_assigned" not in run.busy:
            self._call(slot, "on_revoked", self._on_revoked)
        self._look(slot, run)

    def _over(self, slot: Slot) -> None:
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

    def _released(self, slot: Slot) -> None:
        slot.answer = None
        self._finish(slot)

    def _finish(self, slot: Slot) -> None:
        """Go on with a slot that has nothing: it may be wanted again by now."""
        if slot.wanted and self._usable:
            self._begin(slot)
        else:
            self._settled(slot)

    def _settled(self, slot: Slot) -> None:
        self._slots.pop(slot.number, None)

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


def _until(limit: float | None) -> float:
    return math.inf if limit is None else clock() + limit
