"""What a worker does with each shard: it queues for its lock, works, and gives it back.

A ``Slot`` is one acquisition of one shard, from queueing to release; ``slot_states`` has its
states. ``Slots`` are those of a worker.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from logging import ERROR, INFO, WARNING
from typing import TYPE_CHECKING, Any

from zklock._core.attempt import Attempt, Once
from zklock._core.callbacks import ran
from zklock._core.grant import GrantBase
from zklock._ground.groups import OF_LOSS, says_only
from zklock._ground.records import Fields, Logs, log_fields
from zklock._locks import kinds
from zklock._pool import slot_states
from zklock._pool.keys import Key, in_order
from zklock._pool.own_threads import Calling
from zklock._pool.runners import CannotRun, Runner, Task
from zklock._pool.slot_states import UNSETTLED, WORKED_ON, SlotEvent, SlotState
from zklock._pool.trouble import Trouble
from zklock._shell.client import Kazoo
from zklock._telemetry import subscriptions
from zklock._telemetry.events import ShardMoved
from zklock.errors import LockLost, NotHeld, StaleToken

if TYPE_CHECKING:
    from zklock._pool.worker import Worker

AT_ONCE = 200
"""How many shards a worker begins to queue for before it waits for an answer."""


class Reporting(GrantBase):
    """A grant that tells its slot of its loss, without a thread for that."""

    def _set_lost(self) -> None:
        super()._set_lost()
        slot = self._terms.owner
        assert isinstance(slot, Slot)
        slot.lost(self)


class ShardLock(kinds.Exclusive[Any]):
    """A shard's lock, used by a slot."""

    _CALLED = "shard"

    def __init__(
        self, slot: Slot, grant: type[GrantBase], client: Kazoo, path: str, **options: Any
    ) -> None:
        self._GRANT = grant
        super().__init__(client, path, **options)
        self._slot = slot

    def _storage(self) -> None:
        return None

    def _owner(self) -> Slot:
        return self._slot


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What the user wants to be called, and when.

    ``again``: whether a handler that failed is called again. ``retry``: the first and the longest
    pause after a failure, in seconds.
    """

    on_assigned: Callable[[Any, Any], object] | None
    on_revoked: Callable[[Any, Any], object] | None
    again: bool
    retry: tuple[float, float]


class Slots:
    """The shards that a worker should have, and what it does with them.

    Only the pool's thread uses it, except what is said to be for any thread. ``owned`` has the
    grants of the shards that the worker owns.
    """

    home: asyncio.AbstractEventLoop | None = None
    runner: Runner | None = None
    caller: Calling | None = None
    taking = True

    def __init__(self, worker: Worker, path: str, identity: str, callbacks: Callbacks) -> None:
        self.worker = worker
        self.path = path
        self.callbacks = callbacks
        self.owned: dict[Key, Any] = {}
        self._identity = identity
        self._wanted: frozenset[Key] = frozenset()
        self._to_begin: deque[Key] = deque()
        self._room = AT_ONCE
        self._asked = False  # for the answer that comes after those to what has begun
        self._slots: dict[Key, Slot] = {}

    @property
    def empty(self) -> bool:
        """Whether there is nothing to give up. From any thread."""
        return not self._slots

    @property
    def running(self) -> bool:
        """Whether somebody works on a shard, or may soon."""
        return any(slot.state in UNSETTLED for slot in self._slots.values())

    def worked_on(self) -> list[Key]:
        """Return the shards that stay until the work on them has ended. From any thread."""
        slots = self._slots.copy().values()
        return in_order(slot.shard for slot in slots if slot.state in WORKED_ON)

    def want(self, wanted: frozenset[Key]) -> None:
        """Have these shards from now on, and no others."""
        self._wanted = wanted
        self._adjust()

    def take(self, taking: bool) -> None:
        """Take shards, or no others than those that are owned already."""
        self.taking = taking
        if not self.worker.stopping:
            self._adjust()

    def _adjust(self) -> None:
        unwanted = [
            slot
            for shard, slot in self._slots.items()
            # An owned shard stays until the leader has another owner for it.
            if shard not in self._wanted or not (self.taking or slot.state in WORKED_ON)
        ]
        # First of all: the end of one handler would let another begin that is to end as well.
        for slot in unwanted:
            slot.call_off()
        for slot in unwanted:
            slot.unwant()
        self._to_begin.clear()
        if self.taking:
            self._to_begin.extend(in_order(self._wanted - self._slots.keys()))
        self._begin_some()

    def _begin_some(self) -> None:
        """Begin with what is wanted, until as many have begun as may before an answer.

        ZooKeeper answers in order. If all began at once, the answer to a heartbeat would come after
        the answers to all of them: too late, where there are thousands.
        """
        while self._to_begin and self._room:
            self._room -= 1
            self._begin(self._to_begin.popleft())
        if not self._room and not self._asked:
            self._asked = True
            self.worker.once_answered(partial(self.worker.task_queue.later, Once(self._go_on)))

    def _go_on(self) -> None:
        self._asked, self._room = False, AT_ONCE
        self._begin_some()

    def _begin(self, shard: Key) -> None:
        slot = self._slots[shard] = Slot(shard, self)
        slot.want()

    # For the slots.

    def own(self, shard: Key, grant: Any) -> None:
        """Note that a shard is owned."""
        self.owned[shard] = grant
        self._moved(shard, grant, owned=True)

    def disown(self, shard: Key) -> None:
        """Note that a shard is not owned any more."""
        grant = self.owned.pop(shard, None)
        if grant is not None:
            self._moved(shard, grant, owned=False)

    def _moved(self, shard: Key, grant: Any, *, owned: bool) -> None:
        if subscriptions.hooks:
            subscriptions.emit(
                ShardMoved(
                    at=self.worker.task_queue.now(),
                    path=self.path,
                    shard=shard,
                    identity=self._identity,
                    token=grant.token,
                    owned=owned,
                )
            )
        self.worker.says_owned.soon()

    def gone(self, shard: Key) -> None:
        """Forget a slot. Begin with another if its shard is wanted again."""
        del self._slots[shard]
        if shard in self._wanted and self.taking and self.worker.usable():
            self._to_begin.append(shard)
            self._begin_some()


class Slot(Logs):
    """One go at one shard. Only the pool's thread uses it, except ``lost`` and ``home``."""

    def __init__(self, shard: Key, slots: Slots) -> None:
        self.shard = shard
        self.state = SlotState.NEW
        self._slots = slots
        self._lock: ShardLock | None = None
        self._attempt: Attempt[Any] | None = None
        self._trouble = Trouble(slots.callbacks.retry)  # of the attempts, then of the handler
        self._grant: Any = None
        self._running: set[str] = set()  # the callbacks and the handler that run
        self._task: Task | None = None

    @property
    def home(self) -> asyncio.AbstractEventLoop | None:
        """The event loop on which its grants report, ``None`` for threads. From any thread."""
        return self._slots.home

    def want(self) -> None:
        """Begin."""
        self._apply(SlotEvent.WANTED)

    def unwant(self) -> None:
        self._apply(SlotEvent.UNWANTED)

    def call_off(self) -> None:
        """Have the handler not begin, if it waits for its turn."""
        if self._task is not None:
            self._task.call_off()

    def lost(self, grant: GrantBase) -> None:
        """Hear of the loss of a grant. From any thread."""
        self._later(self._take_loss, grant)

    # Inside.

    def _later(self, call: Callable[..., object], *what: object) -> None:
        self._slots.worker.task_queue.later(partial(call, *what))

    def _after_pause(self, call: Callable[[], object]) -> None:
        task_queue = self._slots.worker.task_queue
        task_queue.at(task_queue.now() + self._trouble.pause(), call)

    def _apply(self, event: SlotEvent, grant: Any = None) -> None:
        """Go where the event leads, and do what is done first there. ``grant`` is new."""
        then = slot_states.TABLE[self.state, event]
        if then is self.state:
            return
        self.state = then
        if grant is not None:
            self._grant = grant
        match then:
            case SlotState.CONTENDING:
                self._contend()
            case SlotState.WITHDRAWING:
                assert self._attempt is not None
                self._attempt.cancel()  # a grant that is on its way is given back
            case SlotState.OWNED:
                self._own()
            case SlotState.ENDING:
                self._end()
            case SlotState.RELEASING:
                self._release()
            case SlotState.GONE:
                self._slots.gone(self.shard)

    def _contend(self) -> None:
        try:
            if self._lock is None:
                self._lock = self._slots.worker.pool._lock_of(self)
            self._attempt = self._lock._begin(partial(self._later, Once(self._answered)))
        except Exception as error:
            self._failed(error)

    def _answered(self, attempt: Attempt[Any]) -> None:
        if attempt is not self._attempt:
            self._apply(SlotEvent.LATE)  # it has raised when it was begun
            return
        try:
            grant = attempt.result()
        except Exception as error:
            self._failed(error)
            return
        if grant is None:
            self._apply(SlotEvent.WITHDRAWN)
        elif grant._loss is not None or not self._slots.taking:
            self._apply(SlotEvent.USELESS, grant)
        else:
            self._apply(SlotEvent.GRANTED, grant)

    def _failed(self, error: Exception) -> None:
        self._apply(SlotEvent.FAILED if self._slots.worker.usable() else SlotEvent.HOPELESS)
        if self.state is SlotState.RETRYING:
            if self._trouble.strikes(error):
                self._say(ERROR, "cannot acquire shard %s: %s", self.shard, error)
            self._after_pause(partial(self._apply, SlotEvent.DUE))

    def _own(self) -> None:
        if self._trouble.ends():
            self._say(INFO, "shard %s acquired", self.shard)
        self._slots.own(self.shard, self._grant)
        if self._slots.callbacks.on_assigned is not None:
            self._call("on_assigned", self._slots.callbacks.on_assigned)
        else:
            self._work()

    def _call(self, what: str, callback: Callable[[Any, Any], object]) -> None:
        caller = self._slots.caller
        assert caller is not None
        self._running.add(what)
        try:
            future = caller.submit(callback, self.shard, self._grant)
        except Exception as error:
            future = Future()
            future.set_exception(error)
        future.add_done_callback(partial(self._later, self._called, what))

    def _called(self, what: str, future: Future[object]) -> None:
        try:
            ran(what, future.result())
        except BaseException as error:
            self._say(ERROR, "%s of shard %s raised", what, self.shard, error=error)
        self._running.discard(what)
        if what == "on_assigned":
            self._work()
            self._revoke()
        self._look()

    def _fields(self) -> Fields:
        return log_fields(self._grant, path=self._slots.path, shard=self.shard)

    def _work(self) -> None:
        """Call the handler, unless the shard is being given up."""
        self._apply(SlotEvent.WORK_DUE)
        runner = self._slots.runner
        if self.state is not SlotState.OWNED or self._slots.worker.stopping or runner is None:
            return
        self._running.add("handler")
        try:
            self._task = runner.submit(self.shard, self._grant)
        except Exception as error:
            if not isinstance(error, CannotRun):
                error = CannotRun(f"not started: {error!r}")
            self._handled(error)
            return
        self._task.future.add_done_callback(
            lambda future: self._later(self._handled, future.exception())
        )

    def _handled(self, error: BaseException | None) -> None:
        self._running.discard("handler")
        self._task = None
        # Its loop has ended.
        ended = isinstance(error, asyncio.CancelledError) and self._slots.worker.stopping
        shard = self.shard
        if error is None or ended:
            if self._trouble.ends():
                self._say(INFO, "the handler of shard %s runs again", shard)
        elif isinstance(error, CannotRun):
            # No failure, whatever ``on_error`` is. A worker keeps no shard that nobody works on.
            if self._trouble.strikes(error):
                self._say(ERROR, "the handler of shard %s did not start: %s", shard, error)
            if error.for_good:
                self._slots.worker.is_unfit()
            else:
                self._after_pause(self._work)
        elif not (says_only(error, OF_LOSS) and not self._grant.held):
            if not says_only(error, StaleToken):
                self._say(ERROR, "the handler of shard %s raised", shard, error=error)
                self._trouble.fails()
            elif self._trouble.strikes(error):
                # The loss comes in a moment; or the mark is that of other tokens.
                self._say(
                    WARNING, "a guard refused a write of the handler of shard %s: %s", shard, error
                )
            if self._slots.callbacks.again:
                self._after_pause(self._work)
        self._look()

    def _look(self) -> None:
        if not self._running:
            self._apply(SlotEvent.WORK_OVER)

    def _take_loss(self, grant: GrantBase) -> None:
        if grant is not self._grant or self.state not in WORKED_ON:
            self._apply(SlotEvent.LATE)
            return
        if self._task is not None:
            self._task.lose()
        self._slots.disown(self.shard)
        self._apply(SlotEvent.LOST)

    def _end(self) -> None:
        """Tell the work on the shard to end."""
        if self._task is not None:
            self._task.tell()
        self._revoke()
        self._look()

    def _revoke(self) -> None:
        """Call ``on_revoked``, once ``on_assigned`` has returned, if the shard is given up."""
        on_revoked = self._slots.callbacks.on_revoked
        if (
            on_revoked is not None
            and self.state is SlotState.ENDING
            and "on_assigned" not in self._running
        ):
            self._call("on_revoked", on_revoked)

    def _release(self) -> None:
        grant = self._grant
        self._slots.disown(self.shard)
        try:
            answer = grant._end()
        except (LockLost, NotHeld):
            self._apply(SlotEvent.RELEASED)
        except Exception as error:
            # The session goes on with it. Another go at this shard queues behind this one's node.
            self._say(ERROR, "shard %s is released in the background: %s", self.shard, error)
            self._apply(SlotEvent.RELEASED)
        else:
            answer.when_done(partial(self._later, Once(self._apply), SlotEvent.RELEASED))
