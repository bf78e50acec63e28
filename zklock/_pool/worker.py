"""What a worker owns, takes on and gives up: the part that runs on the pool's own thread.

One thread decides, in both fronts. A blocked loop therefore delays only its own handlers.
``member`` has what users call, on any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from logging import ERROR, INFO
from typing import TYPE_CHECKING, Any

from zklock._core.attempt import Attempt, Once
from zklock._core.lease import HEARTBEATS
from zklock._ground import threads
from zklock._ground.async_event import LOOK
from zklock._ground.events import Event
from zklock._ground.mutexes import ReentrantMutex
from zklock._ground.records import Fields, Logs, log_fields
from zklock._pool import nodes
from zklock._pool.member_states import (
    DONE,
    HAS_JOINED,
    STOPPING,
    TABLE,
    MemberEvent,
    MemberState,
)
from zklock._pool.nodes import Registration
from zklock._pool.processes import InProcesses
from zklock._pool.rebalancer import Campaign
from zklock._pool.runners import OnLoop
from zklock._pool.slot import Callbacks, Slots
from zklock._pool.task_queue import TaskQueue
from zklock._pool.trouble import Trouble
from zklock._recipes import queries, steps
from zklock.errors import AccessDenied, ClientClosed, ForkedClient, ZkLockError

if TYPE_CHECKING:
    from zklock._pool.member import Membership

log = logging.getLogger("zklock")

_AFTER = 0.1
"""How long a worker collects changes of what it owns before it writes them, in seconds."""


REFUSED = 1.0
"""How long a worker waits after ACLs have refused a write, in seconds. Then it tries again."""

_LONGEST = 30.0
"""The longest such pause, after several refusals in a row, in seconds."""


class StartCall:
    """One call of ``start()``."""

    error: Exception | None = None  # why it could not join
    nodes: Registration | None = None  # what it makes in ZooKeeper before it joins


class Worker(Logs):
    """One worker of a pool. Only the pool's own thread uses it, but for what is said to be for any.

    ``pool`` is what users have of it. ``campaign`` has its turns as the leader.
    """

    def __init__(
        self,
        pool: Membership[Any],
        registration: Registration,
        callbacks: Callbacks,
        campaign: Campaign,
    ) -> None:
        self.pool = pool
        self.session = campaign.session
        self.registration = registration
        self.campaign = campaign
        self.lock = ReentrantMutex()
        self.state = MemberState.NEW
        self._starter: StartCall | None = None  # the call that starts it, or has started it
        self._serving: object = None  # what the campaign's thread has to show, else it ends at once
        self._work_over = Event()
        self.task_queue = TaskQueue(self.session, self._turn)
        self._says_profile = Publication(
            self, lambda: (self.registration.member, nodes.profile_data(self.registration))
        )
        self.says_owned = Publication(self, self._said_owned, pause=_AFTER)
        root, identity = registration.places.root, registration.profile.identity
        self.slots = Slots(self, root, identity, callbacks)
        self._attending: Attempt[None] | None = None
        self._absent = Trouble(callbacks.retry)
        self._seen: tuple[str | None, int] = None, -1
        self.left = False  # no node of the registration is left in ZooKeeper

    # From any thread.

    @property
    def stopping(self) -> bool:
        """Whether it was told to leave."""
        return self.state in STOPPING

    @property
    def joined(self) -> bool:
        return self.state in HAS_JOINED

    @property
    def drained(self) -> bool:
        """Whether it owns no shard, and takes none."""
        # It takes no more shards, even if the leader does not know yet that it drains.
        taking = self.state is MemberState.JOINED and self.slots.taking
        return self.state is MemberState.CLOSED or (not taking and self.slots.empty)

    def happens(self, event: MemberEvent) -> bool:
        """Go where the event leads; return whether that is another state."""
        with self.lock:
            before = self.state
            self.state = TABLE[before, event]
            return self.state is not before

    def begin(self, call: StartCall) -> Registration:
        """Note that it is being started → the nodes to make; ``ZkLockError`` if it was before."""
        with self.lock:
            if (self.state, MemberEvent.START) not in TABLE:
                path = self.registration.places.root
                raise ZkLockError(
                    f"{path}: this pool was started before: make another object", path=path
                )
            self._starter = call
            self.happens(MemberEvent.START)
            before = self.registration
            call.nodes = self.registration = Registration(before.places, before.profile)
            return self.registration

    def joins_no_more(self, call: StartCall) -> bool:
        """Whether it has joined, or this call cannot have it join any more."""
        with self.lock:
            return call.error is not None or self.state is not MemberState.STARTING

    def join(self, call: StartCall, home: asyncio.AbstractEventLoop | None) -> None:
        """Begin to work, unless the call was given up, or the pool was stopped."""
        with self.lock:
            if self._starter is not call or self.joins_no_more(call):
                return
            try:
                self._begin_work(home)
            except Exception as error:
                call.error = error

    def _begin_work(self, home: asyncio.AbstractEventLoop | None) -> None:
        slots = self.slots
        slots.home = home
        slots.taking = not self.registration.profile.draining
        if self.pool._make_runner is not None:
            slots.runner = self.pool._make_runner(home)
        if any((slots.callbacks.on_assigned, slots.callbacks.on_revoked)):
            slots.caller = self.pool._new_callbacks()
        self.happens(MemberEvent.JOIN)  # else the pool's thread ends when the campaign starts it
        serving = self._serving = object()
        try:
            threads.start(self._lead_and_close, "zklock-campaign", serving)
        except BaseException:  # maybe it runs all the same
            self._serving = None
            self.happens(MemberEvent.FAIL)
            if slots.runner is not None:
                slots.runner.close()
            raise
        self.task_queue.later(self._attend)

    def give_up(self, call: StartCall) -> None:
        """Undo a start that has failed or was interrupted, as far as it got."""
        with self.lock:
            mine = self._starter is call
            joined = mine and self.joined
            if mine and not joined:
                self.happens(MemberEvent.FAIL)
                self._starter = None
        if joined:
            self.depart()
        elif call.nodes is not None:
            leaving = self.session.attempt(partial(nodes.leave, call.nodes))
            with contextlib.suppress(Exception):  # it is the outcome of the attempt
                leaving.start()
            call.nodes = None

    def depart(self) -> bool:
        """Begin to leave, which goes on by itself. Return whether there is anything to leave."""
        with self.lock:
            self.happens(MemberEvent.STOP)
            joined = self.joined
        if joined:
            self.campaign.stop()
            self.task_queue.later(self._leave)
        return joined

    def abandon(self) -> None:
        """Leave without waiting, unless this is a child of the worker's process."""
        with contextlib.suppress(ForkedClient):
            self.check_process()
            self.depart()

    def check_process(self) -> None:
        """Raise ``ForkedClient`` if this is a child of the worker's process.

        Raise ``ZkLockError`` while the interpreter shuts down.
        """
        if self.joined:
            self.session.check_process()

    def change(self, **what: Any) -> None:
        """Change what this worker says of itself, now or when it joins."""
        with self.lock:
            self.registration.profile = replace(self.registration.profile, **what)
            joined = self.joined
        if joined:
            self.task_queue.later(self._take_profile)

    def gives_up_for(self, error: Exception) -> bool:
        """Whether the client is of no use any more. Then all of the worker leaves, for good.

        A client that was stopped may have been started again by now. Others have seen that it was
        stopped, and have ended.
        """
        over = isinstance(error, ClientClosed) or not self.usable()
        if over:
            self.depart()
        return over

    # On the thread of the campaign.

    def _lead_and_close(self, serving: object) -> None:
        """Lead in turn; then end what was started for the work, when no work is left."""
        with self.lock:  # the starter has it
            if serving is not self._serving:
                return
        # The pool's thread may have jobs. Nobody else tries again to start it.
        self.campaign.run(self.task_queue.ready, self.gives_up_for)
        self._work_over.wait()
        try:
            if self.slots.runner is not None:
                self.slots.runner.close()
            if self.slots.caller is not None:
                self.slots.caller.shutdown()
        finally:
            self.happens(MemberEvent.CLOSE)
            self.pool._wake_waiters()

    # On the pool's own thread.

    def _turn(self) -> bool:
        slots, runner = self.slots, self.slots.runner
        again = self.pool._look()
        if isinstance(runner, InProcesses) and slots.owned:
            now = self.session.now()
            end = now + self.session.remaining()
            # If a grant was lost with its session, this lease may be that of the next session. So
            # the lease is not noted before the loss is told.
            if all(grant._loss is None for grant in slots.owned.values()):
                runner.lease(end)
            self.task_queue.wake_by(now + self.session.timeout / HEARTBEATS / 2)
        elsewhere: tuple[object, ...] = (runner, slots.caller)
        for each in elsewhere:
            again = (isinstance(each, OnLoop) and each.look()) or again
        if again:
            self.task_queue.wake_by(self.task_queue.now() + LOOK)
        if self.state is MemberState.LEAVING and not slots.running:
            self.happens(MemberEvent.WORK_OVER)
            self._work_over.set()
        self.pool._wake_waiters()
        return self.joined and not (self.state in DONE and slots.empty and self.left)

    def _attend(self) -> None:
        if self.stopping and self.registration.member is None:
            self.left = True
            return
        self.left = False
        self._attending = attempt = self.session.attempt(
            partial(
                nodes.keep_registered,
                self.registration,
                self._told,
                lambda: self.task_queue.later(self._gone),
            )
        )
        attempt.when_done(partial(self.task_queue.later, Once(partial(self._attended, attempt))))
        attempt.start()

    def _gone(self) -> None:
        self.left = True

    def _attended(self, attempt: Attempt[None]) -> None:
        try:
            attempt.result()
        except Exception as error:
            if self.gives_up_for(error):
                self._say(INFO, "this worker leaves the pool for good: its client was stopped")
                return
            if self._absent.strikes(error):
                self._say(ERROR, "this worker cannot be in the pool: %s", error)
            self.task_queue.at(self.task_queue.now() + self._absent.pause(), self._attend)

    def _told(self, data: bytes, version: int, current: bool) -> None:
        """Hear what the leader has written, on the thread that brings it."""
        heed = partial(self._heed, self.registration.assigned, data, version, current)
        self.task_queue.later(heed)

    def _heed(self, node: str | None, data: bytes, version: int, current: bool) -> None:
        if node is not None and self._absent.ends():
            self._say(INFO, "this worker is in the pool again")
        if self.stopping:
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
            self.says_owned.soon()
        wanted = nodes.parse_assigned(data)
        if wanted is not None:
            self.slots.want(wanted)
        elif news:
            log.error(
                "%s says %r: not a list of shards; ignored",
                node,
                data[:100],
                extra=self._fields(),
            )

    def _leave(self) -> None:
        if not self.happens(MemberEvent.LEAVE):
            return  # it has heard before
        attending = self._attending
        if attending is None or (not attending.cancel() and attending.done):
            self.left = True
        self.slots.want(frozenset())

    def _take_profile(self) -> None:
        self._says_profile.soon()
        self.slots.take(not self.registration.profile.draining)

    def _said_owned(self) -> tuple[str | None, bytes]:
        tokens = {shard: grant.token for shard, grant in self.slots.owned.items()}
        return self.registration.owned, nodes.owned_data(tokens)

    def usable(self) -> bool:
        """Whether the client may be of use, now or later."""
        try:
            self.session.check_usable()
        except ZkLockError:
            return False
        return True

    def once_answered(self, call: Callable[[], object]) -> None:
        """Call when all is answered that was asked before, or the client is of no use any more."""
        read = partial(nodes.read, [self.registration.places.shards], [])
        attempt = self.session.attempt(partial(queries.retry_on_new_session, read))
        attempt.when_done(call)
        attempt.start()

    def is_unfit(self) -> None:
        """Hear that handlers cannot run any more."""
        if not self.registration.profile.draining and not self.stopping:
            self._say(
                ERROR,
                "%s gives up its shards and takes no others: its executor or event loop is "
                "gone; stop this pool, and make another",
                self.registration.profile.identity,
            )
            self.change(draining=True)

    def _fields(self) -> Fields:
        profile = self.registration.profile
        return log_fields(path=self.registration.places.root, identity=profile.identity)


@dataclass(eq=False)
class Publication:
    """Has a node say what it should: writes it after each change, and again after a refusal.

    Only the pool's thread uses it. ``said()`` returns the node and its data; the node is ``None``
    while there is nothing to write. Changes are collected for ``pause`` seconds. One write is under
    way at a time, so that the newest comes last. Nothing is written once the worker was told to
    leave. A node that is gone is left alone.
    """

    worker: Worker
    said: Callable[[], tuple[str | None, bytes]]
    pause: float = 0.0
    _refusals: Trouble = field(default_factory=lambda: Trouble((REFUSED, _LONGEST)))
    _written: tuple[str | None, bytes] | None = None
    _under_way: bool = False

    def forget(self) -> None:
        """Write the next data in any case: the node may have been made anew."""
        self._written = None

    def soon(self) -> None:
        """Write soon: something has changed."""
        if not self._under_way:
            self._under_way = True
            self._after(self.pause)

    def _after(self, seconds: float) -> None:
        self.worker.task_queue.at(self.worker.task_queue.now() + seconds, self._write)

    def _write(self) -> None:
        node, data = said = self.said()
        if node is None or self.worker.stopping or said == self._written:
            self._under_way = False
            return
        self._written = said
        write = partial(steps.overwrite, node, data)
        attempt = self.worker.session.attempt(partial(queries.retry_on_new_session, write))
        answered = Once(lambda: self._answered(attempt.settled()[1]))
        attempt.when_done(partial(self.worker.task_queue.later, answered))
        attempt.start()

    def _answered(self, error: BaseException | None) -> None:
        """Write again: something may have changed meanwhile, or ACLs may be changed."""
        if isinstance(error, AccessDenied):
            if self._refusals.strikes(error):
                log.error(
                    "this worker may not write its own node: %s", error, extra=self.worker._fields()
                )
            self._written = None
            self._after(self._refusals.pause())
        else:
            if self._refusals.ends():
                log.info("this worker writes its node again", extra=self.worker._fields())
            self._after(self.pause)
