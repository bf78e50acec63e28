"""One ZooKeeper session as the locks on it see it: its lease, its heartbeat, and its loss.

There is one ``Session`` for each client. Everything on that client shares it. It has one thread of
its own: the thread sends the heartbeats, ends the lease on time, and does what must not run on
kazoo's threads.

Locks, attempts, grants and the wire call ``Session``. Its parts have a module each: the
arithmetic of the lease, when heartbeats are sent, the nodes of the session, who is told of which
events, and what is left to do after a change. They share one lock, the guard.

The guard protects all state. The code that has the guard only changes state: it does not block,
sends nothing, starts no thread, logs nothing, and calls nothing of the user's. What follows from a
change is deferred until the guard is free. The following always holds when the guard is
free:

1. A grant is on nodes of the present session only: ``_id`` is the owner of each of them.
2. A grant is taken out of the nodes only after it is over: it was let go, or its loss was noted.
   Then telling its holder and deleting its nodes is deferred: an interrupt loses neither.
3. A lease that is over stays over for the grants of that time. ``_late`` is set until all of them
   are noted as lost; meanwhile no proof counts, and nothing is granted.
4. What is deferred is done by whoever has changed something, before it returns; after an
   interrupt, by the next one.
5. An attempt awaits the lease from its claim until ``lease_live()``, ``refused()`` or its leaving.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from itertools import islice
from typing import Any
from weakref import WeakValueDictionary

from zklock._engine.attempt import Attempt
from zklock._engine.deferred import Deferred
from zklock._engine.future import Once
from zklock._engine.grant import End, GrantBase, GrantOptions
from zklock._engine.heartbeat import HUNG, LATE, DueHeartbeat, Heartbeat
from zklock._engine.lease import HEARTBEATS, Lease, LeaseSettings
from zklock._engine.nodes import OwnNode, OwnNodes, asked_of
from zklock._engine.ports import Answer
from zklock._engine.runtime import Runtime
from zklock._engine.watches import Watchers
from zklock._ground import threads
from zklock._ground.copy_error import copy_error
from zklock._ground.loss import Loss, LossReason
from zklock._ground.mutexes import ReentrantMutex, owned_by_me
from zklock._ground.not_copyable import NotCopyable
from zklock._ground.records import Fields, log_fields
from zklock._kazoo import states
from zklock._kazoo.client import Kazoo, closed_error, forked_error
from zklock._kazoo.client_state import WireObserver
from zklock._kazoo.handler import Handler
from zklock._kazoo.states import Change
from zklock._kazoo.store import Results, shielded
from zklock._recipes import steps
from zklock._recipes.effects import (
    Batch,
    Check,
    Claim,
    Create,
    Delete,
    Exists,
    Failed,
    Failure,
    Node,
    Recipe,
    Sync,
    Transaction,
)
from zklock._telemetry import emit, subscriptions
from zklock._telemetry.events import (
    Connected,
    Event,
    HeartbeatAnswered,
    HeartbeatLate,
    HeartbeatSent,
    Proof,
    SessionEnded,
)
from zklock.errors import WouldDeadlock, ZkLockError

log = logging.getLogger("zklock")

ASSUMED_TIMEOUT = 4.0
"""The session timeout, in seconds, if it cannot be known: twice ZooKeeper's usual tick."""

MOMENT = 1.0
"""How long a non-blocking call may wait for ZooKeeper's answer, in seconds."""

AT_ONCE = 200
"""How many go on after a lost connection before an answer is waited for.

ZooKeeper answers in order. If all went on at once, the answer to a heartbeat would come after the
answers to all of them: too late, where there are thousands.
"""

_NAMED = 20
"""How many lost locks a log line names."""

LATENESS, LATE_TIMEOUTS = 60.0, 10
"""For how long a lost create may be carried out late: these seconds, or so many session timeouts.

The leader gives up a follower that is silent for ``syncLimit`` ticks (5 or 10, as a rule), and with
it what the follower has not delivered. The leader itself may be silent for as long. The shortest
session timeout that a server grants by default is two ticks.
"""

_FINDS = (Create, Exists)  # made once: `A | B` makes an object at each evaluation


class Session(NotCopyable, WireObserver):
    """Keeps whether the session lives, and how long that may be believed."""

    _INSTEAD = "make what needs it in the other process, with a client of that process"

    def __init__(
        self, client: Kazoo, settings: LeaseSettings, runtime: Runtime | None = None
    ) -> None:
        self.client = client
        self.settings = settings
        self._make_guard()
        self._runtime = runtime = runtime or Runtime()
        self._clock = self.now = runtime.clock  # seconds; the lease runs on this clock
        self.on_real_clock = runtime.on_real_clock  # whether other processes have the same clock
        self.limit, self.thread = runtime.limit, runtime.thread
        self._worker = worker = runtime.thread("zklock-session", self._turn)
        self.post, self.later, self.pause = worker.post, worker.later, worker.after
        self._executor = runtime.callers()
        self._store = runtime.store(
            client,
            self._on_event,
            lambda owner: owner == self._id,
            self.guard,
        )
        self.hear = self._store.hear
        self._handler = client.handler if isinstance(client.handler, Handler) else None
        self._wire: tuple[float, float] | None = None  # handshake sent at, negotiated timeout
        self._id: int | None = None
        self._lease = Lease(settings.session_timeout or ASSUMED_TIMEOUT, settings.fraction)
        self._heartbeat = Heartbeat()
        self._nodes = OwnNodes()
        self._watchers = Watchers()
        self.deferred = Deferred()
        self.places: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()  # see ``keep``
        self._attempts: dict[Attempt[Any], None] = {}
        self._parked: dict[Attempt[Any], None] = {}
        self._resuming = False  # some go on, and others when a heartbeat is answered
        self._awaiting_lease: dict[Attempt[Any], str] = {}  # to the node that each claims
        # By path: those that nobody looks for yet.
        self._abandoned_creates: dict[str, list[str]] = {}
        # Whether heartbeats can work: they need read permission on the session's own nodes.
        self._readable = not client.default_acl
        self._epochs = emit.Epochs()
        self._late = False  # the lease is over, and the losses are not all noted
        self._proved_at = -math.inf  # when the newest answered proof was sent
        self._rested_at = -math.inf  # when the newest heartbeat at rest was sent
        self._forked = False
        self._idle = True  # the worker sleeps until it is woken
        self._turned_at = -math.inf
        self._used_at = -math.inf
        if self._handler is not None:
            self._handler.observe(self)
        elif settings.session_timeout is None:
            log.warning(
                "this client has no zklock.Handler: make it with handler=zklock.Handler(), or by "
                "zklock.connect(); without one, zklock assumes %s s as the session timeout unless "
                "session_timeout= gives it, leases are shorter, and a lost connection ends every "
                "lease at once",
                ASSUMED_TIMEOUT,
                extra=log_fields(),
            )
        client.add_listener(shielded(self._on_state))
        # kazoo's thread may tell of another session while this thread notes the one before.
        while self.connected and states.session_id(client) not in {None, self._id}:
            self._on_connected()
        if client.connected and self._handler is not None:
            self._handler.repeat_pings()

    def _make_guard(self) -> None:
        self.guard = ReentrantMutex()
        self.has_guard = owned_by_me(self.guard)

    # For locks.

    @property
    def timeout(self) -> float:
        """The session timeout in seconds: negotiated, given, or assumed."""
        return self._lease.timeout

    @property
    def moment(self) -> float:
        """How long a non-blocking call may wait for an answer, in seconds."""
        return min(MOMENT, self._lease.timeout / 3)

    def check_process(self) -> None:
        """Raise ``ForkedClient`` in a forked child: no thread of the session runs there.

        None runs while the interpreter shuts down, either: raise ``ZkLockError``.
        """
        if self._forked:
            raise forked_error()
        if sys.is_finalizing():
            raise ZkLockError(
                "the interpreter is shutting down, and zklock's threads have ended: do this "
                "earlier, not in a finalizer"
            )

    def check_usable(self) -> None:
        """Raise ``ForkedClient`` or ``ClientClosed`` if ZooKeeper cannot be asked.

        Raise ``WouldDeadlock`` in a signal handler that has interrupted a change of the session on
        its own thread: no answer could be taken until the handler returns. Raise ``ZkLockError``
        while the interpreter shuts down.
        """
        self.check_process()
        if self.interrupted:
            raise handler_error()
        error = closed_error(self.client)
        if error is not None:
            raise error

    def attempt(
        self,
        what: Recipe[Any],
        *,
        recover: Callable[[], Recipe[None]] | None = None,
        terms: GrantOptions | None = None,
    ) -> Attempt[Any]:
        """Return an attempt at a recipe on this session; it is not started yet."""
        attempt: Attempt[Any] = Attempt(self, what, recover=recover, terms=terms)
        if subscriptions.hooks and terms is not None and terms.place is None:
            emit.begun(attempt, self._clock)
        return attempt

    # For grants.

    def remaining(self) -> float:
        """Return the seconds of lease left.

        When it is over, the session's thread declares all grants lost: there may be thousands. Who
        asks for one does not wait for that. It loses its own, as no proof revives a lease.
        """
        if self._forked:
            with self.guard:
                self._lose(self._nodes, LossReason.FORKED)
            self.deferred.run()
            return 0.0
        left = self._lease.end - self._clock()
        if left > 0 and not self._late:
            return left
        if self.interrupted:
            self._late = True  # the interrupted code must not revive a lease that is over
        self._worker.wake()
        return 0.0

    @property
    def answers_late(self) -> bool:
        """Whether answers have become late: events may be late, too. The caller has the guard."""
        return self._heartbeat.behind

    @property
    def lease_end(self) -> float:
        """When the lease ends, or has ended."""
        return self._lease.end

    def notify(self, calls: list[Callable[[], object]]) -> None:
        """Run users' callbacks, in order, on threads that exist for them. Takes no lock."""
        self._executor.run(calls)
        if self._forked:
            self._executor.end()  # a child that was forked on another thread ends with its threads

    def release_grant(self, grant: GrantBase, *, awaited: bool = False) -> Answer:
        """Give a grant back to ZooKeeper, with as many tries as it takes.

        ``awaited``: this thread is about to wait for the answer.
        """
        if subscriptions.hooks:
            emit.released(grant, self._clock())
        give_back = grant._give_back
        attempt = self.attempt(give_back(), recover=give_back)
        if self.interrupted:
            self.later(partial(self._begin_release, attempt, grant, awaited=False))
        else:
            self._begin_release(attempt, grant, awaited=awaited)
        return attempt

    def _begin_release(self, attempt: Attempt[None], grant: GrantBase, *, awaited: bool) -> None:
        if grant._place is not None:
            grant._place.lose(grant)
        with self.guard:
            self._nodes.forget(grant._paths)
        attempt.start(awaited=awaited)
        grant._release_begun = True

    def finish(self, grant: GrantBase, end: End) -> None:
        """Give back a grant whose release was interrupted: it ended so, and was not let go.

        One that has ended in another way is its place's, or somebody else gives it back.
        """
        if grant._ended is end and not grant._release_begun:
            self.release_grant(grant)

    def confirmed(self, grant: GrantBase, sent: float, there: bool) -> None:
        """Take a quorum's answer about the grant's nodes; the request was sent at ``sent``."""
        if there:
            self._proved(sent)
        else:
            with self.guard:
                self._lose(grant._paths, LossReason.NODE_DELETED)
            self.deferred.run()

    # For attempts.

    @property
    def interrupted(self) -> bool:
        """Whether this is a signal handler that has interrupted a change on its own thread."""
        if self.has_guard():
            return True
        return self._handler is not None and self._handler.interrupted()

    @property
    def connected(self) -> bool:
        """Whether requests go out at once; a read-only server does not count."""
        return states.serves(self.client)

    def enter(self, attempt: Attempt[Any]) -> None:
        """Report lost sessions and connections to the attempt, until it leaves.

        Raises ``ZkLockError`` if a grant is asked for and its threads cannot be started.
        """
        with self.guard:
            self._attempts[attempt] = None
            self._used_at = self._clock()
            idle = self._idle
        if attempt.terms is not None:
            self.ready(attempt.terms)
        if idle:
            self._worker.wake()

    def ready(self, terms: GrantOptions) -> None:
        """Start the threads that prove the lease, and that call lost callbacks."""
        try:
            self._worker.ready()
            if not terms.grant._AWAITS:
                self._executor.ready()
        except threads.NoThread as error:
            raise ZkLockError(
                f"{terms.lock_path}: cannot acquire: no threads can be started to watch the "
                f"grant ({error}): raise the limit of processes or memory, or acquire before "
                "the interpreter shuts down",
                path=terms.lock_path,
            ) from error

    def leave(self, attempt: Attempt[Any]) -> None:
        """Forget the attempt."""
        with self.guard:
            self._attempts.pop(attempt, None)
            self._parked.pop(attempt, None)
            self._awaiting_lease.pop(attempt, None)
            self._watchers.drop(attempt)

    def park(self, attempt: Attempt[Any]) -> None:
        """Resume the attempt when the client is connected."""
        with self.guard:
            self._parked[attempt] = None
        self._worker.wake()  # it may have been connected meanwhile

    def send_batch(
        self, batch: Batch, done: Callable[[Results], None], awaited: bool = False
    ) -> None:
        """Send a batch, and note what each of its requests means for the session.

        - A node that it creates, or finds to belong to this session, can then be claimed.
        - A node that is leaving cannot be claimed any more. If the node is granted, the lock is
          being broken: the deletion itself ends the grant. So do the deletions of a transaction
          that checks something first: it may be refused, and the nodes stay.
        - An answered create proves that the session was alive.
        """
        found: list[int] = []
        for at, request in enumerate(batch):
            whole = request.operations if isinstance(request, Transaction) else (request,)
            if isinstance(request, _FINDS):
                found.append(at)
            elif isinstance(whole[0], Delete):
                leaving = [it.path for it in whole if isinstance(it, Delete)]
                with self.guard:
                    self._nodes.leave(leaving)
        if not found:
            self._store.send_batch(batch, done, awaited)
            return
        sent = self._clock()

        def on_reply(results: Results) -> None:
            created = False
            while found:
                at = found[-1]
                node = results[at]
                if isinstance(node, Node) and node.mine:
                    created |= isinstance(batch[at], Create)
                    with self.guard:
                        # One object for all nodes of the session.
                        mine = self._id
                        self._nodes.add(node.path, mine if mine == node.owner else node.owner)
                        self._lease.touched(sent, self._clock())
                found.pop()  # noted: a reader that is struck may have it told again
            if created:
                self._proved(sent)
            done(results)

        self._store.send_batch(batch, on_reply, awaited)

    def watch(self, attempt: Attempt[Any], paths: Iterable[str]) -> None:
        """Report watch events on these paths to the attempt from now on, and on no others."""
        with self.guard:
            self._watchers.put(attempt, paths)

    def claim(self, attempt: Attempt[Any], claim: Claim) -> Any:
        """Return a grant if the lease is live, with some time left; else call back when it is.

        If ACLs may deny the heartbeats, the first grant waits until a heartbeat is answered.
        """
        terms = attempt.terms
        assert terms is not None
        paths = (*(path for path, _ in claim.others), claim.path)
        place = terms.place
        torn = partial(place.torn, claim.path) if place is not None else None
        try:
            with self.guard:
                if self.may_grant(paths):
                    if not attempt.accept():
                        return None
                    if place is not None:
                        return place.granted(claim)
                    return self.give(claim, terms, attempt)
                self._awaiting_lease[attempt] = claim.path
                self._heartbeat.soon()
        except BaseException as error:
            if torn is not None:
                # Nothing is called before ``post``: a second interrupt comes in after that.
                kept = place._kept
                if kept is not None and kept.claim is claim:  # nobody is let in any more
                    kept.doubt, kept.asked = error, True
                self.post(torn)
            raise
        self._worker.wake()
        return None

    def give(
        self, claim: Claim, terms: GrantOptions, asked: Any = None, kept: Any = None
    ) -> GrantBase:
        """Make a grant, for what has asked for it, on what was kept; the caller has the guard."""
        grant = terms.grant(self, claim=claim, session_id=self._id or 0, terms=terms)
        if kept is not None:
            kept.use(grant)
        self._nodes.give(grant)
        if asked is not None:
            asked.made = (*asked.made, grant)
            if subscriptions.hooks:
                emit.granted(asked, grant, self._epochs, self._clock())
        return grant

    def may_grant(self, paths: Iterable[str]) -> bool:
        """Whether nodes of this session are there, and enough lease is left. With the guard."""
        for own in map(self._nodes.get, paths):
            if own is None or own.owner != self._id:
                return False
        return self._live() and self._readable

    def forget(self, path: str) -> None:
        """Forget a node that is about to be deleted."""
        with self.guard:
            self._nodes.forget([path])

    def lose(self, path: str) -> None:
        """Forget a node that is deleted, and lose the grant on it; the caller has the guard."""
        self._lose([path], LossReason.NODE_DELETED)

    def grants(self, lock_path: str) -> list[GrantBase]:
        """Return the grants of a lock that are held on this session."""
        # An interrupted release has the node of an ended one let go later.
        return [grant for grant in self.grants_at(lock_path) if grant.held]

    def grants_at(self, lock_path: str) -> list[GrantBase]:
        """Return the grants of a lock on this session; some may be over by now."""
        return self._nodes.grants_of(lock_path)

    def delete_orphan(self, node: str) -> None:
        """Delete a node that nobody uses."""
        path = node.rpartition("/")[0]
        self.later(partial(self._run, partial(steps.delete, path, node)))

    def abandon_create(self, path: str, uuid: str) -> None:
        """Delete the contender with this name, should it be made later; see ``AbandonCreate``."""
        self.later(partial(self._reap_late_creates, path, uuid))

    def _reap_late_creates(self, path: str, uuid: str) -> None:
        with self.guard:
            abandoned = self._abandoned_creates.get(path)
            if abandoned is not None:
                abandoned.append(uuid)  # one look for all that are lost at the same time
                return
            abandoned = self._abandoned_creates[path] = [uuid]
        take = partial(self._take_abandoned_creates, path, abandoned)
        self._run(lambda: steps.reap_late_creates(path, take, self._lateness))

    def _take_abandoned_creates(self, path: str, abandoned: list[str]) -> list[str]:
        """Return them; from now on, others are looked for by others. Repeatable."""
        with self.guard:
            if self._abandoned_creates.get(path) is abandoned:
                del self._abandoned_creates[path]
        return abandoned

    def _lateness(self) -> float:
        return max(LATENESS, LATE_TIMEOUTS * self.timeout)

    # From kazoo, on its threads. The wire (handler.WireObserver) reports before the state does.

    def at_stake(self) -> bool:
        """Return whether there is a grant that lives on a lease."""
        with self.guard:
            return self._nodes.any_held and self._lease.end > self._clock()

    @shielded
    def on_ask(self, sent: float) -> None:
        """Shorten the lease until it is known what the server does with the session."""
        with self.guard:
            self._lease.asked(sent)
        self._worker.wake()

    @shielded
    def on_connect(self, sent: float, timeout: float) -> None:
        """Note when the handshake was sent, and the shortest timeout negotiated so far."""
        self._wire = sent, timeout
        with self.guard:
            before = self.timeout
            self._lease.negotiated(timeout)
            self._lapse()
        self.deferred.run()
        if timeout < before and self._id is not None:
            log.warning(
                "ZooKeeper shortened the session timeout from %g to %g s",
                before,
                timeout,
                extra=self._fields(),
            )

    @shielded
    def on_ping(self, sent: float, answered: float) -> None:
        """Count kazoo's own pings as touches."""
        with self.guard:
            self._lease.touched(sent, answered)

    @shielded
    def on_close(self) -> None:
        """Lose every grant: when the server has the request, others may be granted.

        kazoo reports the end only after the server has answered.
        """
        self._end_session(LossReason.CLIENT_CLOSED)

    @shielded
    def on_give_up(self) -> None:
        """Lose every grant: others may be granted already. kazoo reports the end soon."""
        self._end_session(LossReason.SESSION_EXPIRED)

    def _end_session(self, reason: LossReason) -> None:
        with self.guard:
            self._lose(self._nodes.held(), reason)
            ended, self._id = self._id, None  # no grant is given any more
        self.deferred.run()
        if subscriptions.hooks and ended is not None:
            now = self._clock()
            subscriptions.emit(SessionEnded(at=now, session_id=ended, reason=reason))

    def _on_state(self, state: str) -> None:
        match states.told(self.client, state):
            case Change.CONNECTED:
                self._on_connected()
            case Change.SUSPENDED:
                self._on_suspended()
            case Change.EXPIRED:
                self._on_gone(LossReason.SESSION_EXPIRED)
            case Change.CLOSED:
                self._on_gone(LossReason.CLIENT_CLOSED)
        self._worker.wake()

    def _on_connected(self) -> None:
        if not self.connected:
            return  # to a read-only server
        session_id = states.session_id(self.client)
        if session_id is None:
            return  # the connection is lost again
        if self._id not in (None, session_id):  # replaced, and kazoo did not report a loss
            self._on_gone(LossReason.SESSION_EXPIRED)
        with self.guard:
            if self._id != session_id:
                self._id = session_id
                self._lease = self._new_lease()
            if self._wire is not None:
                self._lease.connected(self._wire[0])
            self._heartbeat.forget()
            self._heartbeat.soon()
        self._tell(Connected, timeout=self.timeout)

    def _tell(self, event: Callable[..., Event], **what: Any) -> None:
        if subscriptions.hooks:
            subscriptions.emit(event(at=self._clock(), session_id=self._id or 0, **what))

    def _new_lease(self) -> Lease:
        fraction = self.settings.fraction
        if self._wire is not None:
            return Lease(self._wire[1], fraction)
        timeout = self.settings.session_timeout or ASSUMED_TIMEOUT
        # kazoo pings after a third of the timeout; its jitter can add 0.4 s.
        return Lease(timeout, fraction, idle=timeout / 3 + 0.4)

    def _on_suspended(self) -> None:
        with self.guard:
            self._heartbeat.forget()
            self._nodes.unwatch()
            grants = self._nodes.grants()
            waiting = self._watchers.everyone()
            if self._handler is None and self.settings.session_timeout is None:
                self._lease.ends_now()
            self._lapse()  # a grant that is over by now is lost, not suspended
        self.deferred.run()
        if subscriptions.hooks and self._id is not None:
            now = self._clock()
            emit.disconnected(self._id, grants, now, self._lease.end - now)
        for grant in grants:
            grant._suspended()
        _look_again(waiting)

    def _on_gone(self, reason: LossReason, *, only_seen: bool = False) -> bool:
        """Lose the session. Return whether it is lost.

        ``only_seen``: nobody has reported it, and the client was seen to be over. It may have been
        started again since then: all that is there would be of another session.
        """
        with self.guard:
            if only_seen and not states.over(self.client):
                return False
            self._lose(self._nodes, reason)
            self._abandoned_creates.clear()  # they are gone, too: nobody looks for them
            attempts = list(self._attempts)
            final = closed_error(self.client) if reason is LossReason.CLIENT_CLOSED else None
        self._end_session(reason)
        for attempt in attempts:
            attempt.session_replaced(None if final is None else copy_error(final))
        return True

    def _on_event(self, kind: str, path: str | None) -> None:
        if path is None:
            return  # the connection is lost; the state reports this too
        deleted = kind == states.DELETED
        now = self._clock()
        with self.guard:
            self._lapse()  # the session may have expired meanwhile, with its nodes
            own = self._nodes.get(path)
            attempts = self._watchers.of(path)
            held = deleted and self._nodes.was_granted(path)
            taken = deleted and own is not None  # what this client deletes, it has forgotten
            awake = False
            heartbeat = None
            wanted = deleted and any(attempt.terms is not None for attempt in attempts)
            if wanted and not self._live():
                self._heartbeat.soon()
                heartbeat = self._heartbeat.take(
                    now, self.timeout, sends=self.connected, held=self._nodes.any_held, proves=True
                )
            if own is not None:
                self._nodes.fire(path, own)
                if deleted:
                    self._lose([path], LossReason.NODE_DELETED)
                elif own.grant is not None:
                    awake = True
                    self._heartbeat.soon()  # behind the next heartbeat, the node is read
            if kind == states.CHANGED:
                awake |= self._beside(path, now)
        self.deferred.run()
        if awake:
            self._worker.wake()
        try:
            if heartbeat is not None:  # before the attempts look, so that its answer comes first
                self._send_heartbeat(heartbeat, now)
        finally:
            for attempt in attempts:
                attempt.watched(path, deleted, held, taken, now)

    def _beside(self, path: str, now: float) -> bool:
        """Have the data of a lock's path read anew for the grants that watch them.

        They are read behind the next heartbeat. Return whether it is to be sent at once. That is so
        once in the time between two heartbeats: others may write there often. The caller has the
        guard.
        """
        soon = False
        for grant in self._nodes.grants_of(path):
            own = self._nodes.get(grant.path)
            if own is not None and grant._terms.asked_by is not None:
                self._nodes.fire(grant.path, own)
                soon |= now - own.read_at >= self.timeout / HEARTBEATS
        if soon:
            self._heartbeat.soon()
        return soon

    # The lease.

    def _live(self) -> bool:
        """Whether enough lease is left for two heartbeats, so that a grant can last.

        After a rest, it takes a proof. So a grant is no nearer to its loss for having been waited
        for in rest.
        """
        if self._late or self._proved_at < self._rested_at:
            return False
        return self._lease.end - self._clock() >= 2 * self._lease.timeout / HEARTBEATS

    def _proved(self, sent: float) -> None:
        with self.guard:
            self._lapse()  # a late proof does not revive a lease
            self._proved_at = max(self._proved_at, sent)
            before = self._lease.end
            self._lease.proved(sent)
            awaited = self._awaiting_lease and self._live()
        self.deferred.run()
        if subscriptions.hooks:
            now = self._clock()
            self._tell(
                Proof,
                age=now - sent,
                margin=max(0.0, before - now),
                lease=max(0.0, self._lease.end - now),
                timeout=self.timeout,
                held=self._nodes.any_held,
            )
        if awaited:
            self._worker.wake()

    def _lapse(self) -> None:
        """Lose every grant if the lease is over; the caller has the guard."""
        if self._lease.end > self._clock() and not self._late:
            return
        # Set before the work: if this is interrupted, the next call does the rest.
        self._late = True
        self._lose(self._nodes.held(), LossReason.LEASE_LAPSED)
        self._late = False

    def _lose(self, paths: Iterable[str], reason: LossReason) -> None:
        """Forget these nodes, and lose their grants; the caller has the guard.

        Repeatable after an interrupt.
        """
        losses: list[Loss] = []
        try:
            for path in paths:
                self._lose_one(path, reason, losses)
        finally:
            if losses:
                self.deferred.add(Once(partial(_warn, losses)))

    def _lose_one(self, path: str, reason: LossReason, losses: list[Loss]) -> None:
        own = self._nodes.get(path)
        grant = own.grant if own is not None else None
        if grant is None:
            self._nodes.forget([path])
            return
        closed = reason is LossReason.CLIENT_CLOSED
        grant._note_loss(
            reason,
            noticed=self._clock(),
            lease_end=self._lease.end,
            refused=closed and states.refused(self.client),
        )
        if grant._loss is not None:  # by this call, or before it by the grant itself
            losses.append(grant._loss)
        self.deferred.add(grant._tell_loss)
        if grant._place is not None:
            self.deferred.add(partial(grant._place.lose, grant))
        if subscriptions.hooks:
            self.deferred.add(partial(emit.lost, grant))
        # The session may live on, and keep the nodes. A grant on several nodes is lost if one of
        # them is gone: the others must be deleted.
        several = reason is LossReason.NODE_DELETED and len(grant._paths) > 1
        if reason is LossReason.LEASE_LAPSED or several:
            for each in grant._paths:
                self.deferred.add(partial(self.delete_orphan, each))
        self._nodes.forget(grant._paths)

    # The session's own thread.

    def _turn(self) -> float | None:
        """Do what is due; return when to call again (see ``TimedThread``)."""
        now = self._clock()
        connected = self.connected
        with self.guard:
            self._lapse()
            parked = self._take_parked() if connected and not self._resuming else []
            if parked and self._parked:  # the others go on behind the next heartbeat
                self._resuming = True
                self._heartbeat.soon()
            claims = self._take_claims()
            timeout = self.timeout
            late = self._heartbeat.falls_behind(now, timeout)
            hung = self._heartbeat.hung(now, timeout)
            if hung:
                self._heartbeat.forget()
        self.deferred.run()
        if late:
            self._fall_behind(timeout)
        if hung and self._handler is not None:
            log.warning(
                "no answer to a heartbeat for %.3g s: trying another server",
                HUNG * timeout,
                extra=self._fields(),
            )
            self._handler.drop()
        for attempt in parked:
            attempt.resume()
        for attempt in claims:
            attempt.lease_live()
        if states.over(self.client):
            self._idle = True  # who enters from now on wakes this thread
            if self._on_gone(LossReason.CLIENT_CLOSED, only_seen=True):
                self._executor.end()
                return None
        with self.guard:
            used = self._nodes or self.deferred or now - self._used_at <= self.timeout
            self._idle = not used
            if self._idle and not self._attempts:
                # If a client has lost its session already, kazoo does not report that it is closed.
                # Under the guard: an attempt that enters from now on finds its callers ready.
                if not connected:
                    self._executor.end()
                return math.inf if connected else None
            sends, held = connected and not hung, self._nodes.any_held
            proves = held or bool(self._awaiting_lease)
            heartbeat = self._heartbeat.take(now, timeout, sends=sends, held=held, proves=proves)
            due = self._heartbeat.due(now, timeout, held=held)
            if self._lease.end > now:
                due = min(due, self._lease.end)
            passed = min(now - self._turned_at, timeout)  # it may have slept before they came
            again = self._watchers.take_turns(passed) if connected else []
            self._turned_at = now
        if heartbeat is not None:
            self._send_heartbeat(heartbeat, now)
        _look_again(again)  # behind the heartbeat: a session does not rest while somebody looks
        return due

    def _take_claims(self) -> list[Attempt[Any]]:
        """Return those that claim again now; the caller has the guard.

        They do so when there is a lease. It does not help a claim whose node is gone: its attempt
        must look again.
        """
        live, waiting = self._live() and self._readable, self._awaiting_lease.items()
        claims = [attempt for attempt, node in waiting if live or node not in self._nodes]
        for attempt in claims:
            del self._awaiting_lease[attempt]
        return claims

    def _take_parked(self) -> list[Attempt[Any]]:
        """Return those that go on now; the caller has the guard."""
        parked = list(islice(self._parked, AT_ONCE))
        for attempt in parked:
            del self._parked[attempt]
        return parked

    def _fields(self) -> Fields:
        return log_fields(session_id=self._id)

    def _fall_behind(self, timeout: float) -> None:
        """Say that answers are late; kept locks look again, as events may be late, too."""
        for place in list(self.places.values()):
            place.look_again()
        limit = LATE * timeout
        self._tell(HeartbeatLate, limit=limit)
        log.warning(
            "no answer to a heartbeat for %.3g s: locks can be lost if an answer takes longer "
            "than %.3g s; reduce the load of the servers, or use a session timeout above %g s",
            limit,
            0.3 * timeout,
            timeout,
            extra=self._fields(),
        )

    def _send_heartbeat(self, heartbeat: DueHeartbeat, now: float) -> None:
        """Send a heartbeat: a proof that the session was alive when it was sent, or a touch."""
        number, proves = heartbeat
        with self.guard:
            if self._nodes and not proves:
                self._rested_at = now
            claimed = (node for node in self._awaiting_lease.values() if node in self._nodes)
            some = self._nodes.take_turns(next(claimed, None))
        self._tell(HeartbeatSent)
        request: Check | Exists | Sync = Sync("/")
        if some is not None and (proves or number % 2):
            request = Check(some) if proves else Exists(some)
        self._store.send_batch((request,), partial(self._on_heartbeat, number, now, request))
        with self.guard:
            unwatched = self._nodes.take_unwatched()
        for path, own, watches in unwatched:
            self._store.send_batch(watches, partial(self._watched, path, own))

    def _watched(self, path: str, own: OwnNode, results: Results) -> None:
        """Note what was read for a grant, or that its node is gone."""
        with self.guard:
            present = self._nodes.watched(path, own, results)
            grant = own.grant if present else None
            if present and steps.is_(results[0], Failure.MISSING):
                self._lose([path], LossReason.NODE_DELETED)
        self.deferred.run()
        if grant is not None:
            if grant._terms.asked_by is not None:
                own.read_at = self._clock()
            if (asked := asked_of(grant, results)) is not None:
                grant._release_requested(asked)
                if grant._place is not None:
                    grant._place.ask(grant)

    def _on_heartbeat(
        self, number: int, sent: float, request: Check | Exists | Sync, results: Results
    ) -> None:
        refused: list[Attempt[Any]] = []
        (answer,) = results
        failed = answer if isinstance(answer, Failed) else None
        proves = failed is None and isinstance(request, Check)
        some = None if isinstance(request, Sync) else request.path
        with self.guard:
            self._resuming = False
            self._heartbeat.answered(number, self._clock(), self.timeout)
            if self._nodes.crowded:
                self._heartbeat.soon()
            goes_on = self._parked or self._nodes.crowded
            if failed is None:
                self._lease.touched(sent, self._clock())
                self._readable |= proves
            elif failed.why is Failure.MISSING and some is not None:
                self._lose([some], LossReason.NODE_DELETED)
            elif failed.why is Failure.DENIED:
                self._readable = False
                waiting = self._awaiting_lease.items()
                refused = [attempt for attempt, node in waiting if node == some]
                for attempt in refused:
                    del self._awaiting_lease[attempt]
        self.deferred.run()
        if goes_on:
            self._worker.wake()
        if failed is None:
            self._tell(HeartbeatAnswered, took=self._clock() - sent)
            if proves:
                self._proved(sent)
            return
        if failed.why is Failure.DENIED:
            log.error(
                "ACLs refuse the heartbeats: every lease will end (%s)",
                failed.error,
                extra=self._fields(),
            )
        elif failed.why is not Failure.DROPPED and not (failed.why is Failure.MISSING and some):
            log.error(
                "ZooKeeper refused a heartbeat: the lease will end (%s)",
                failed.error,
                extra=self._fields(),
            )
        for attempt in refused:
            attempt.refused(copy_error(failed.error))

    # Helpers, and the fork.

    def _run(self, make: Callable[[], Recipe[None]]) -> Attempt[None]:
        return self.attempt(make(), recover=make).start()

    def after_fork(self) -> None:
        """Start over in a forked child: its threads do not run there, and any lock may be taken."""
        self._forked = True
        self._make_guard()
        self._executor = self._runtime.callers()
        self.deferred = Deferred()
        self._nodes.orphan_waiters()


def _look_again(attempts: Iterable[Attempt[Any]]) -> None:
    """Have those that wait for events look, and watch anew."""
    for attempt in attempts:
        attempt.watched(None, deleted=False)


def _warn(losses: list[Loss]) -> None:
    """Log one line for all grants that were lost together."""
    first = losses[0]
    if len(losses) == 1:
        log.warning("%s", first, extra=log_fields(first.grant, reason=first.reason))
        return
    named = sorted(f"{it.grant.lock_path} (token {it.grant.token})" for it in losses)
    if len(named) > _NAMED:
        named[_NAMED:] = [f"and {len(named) - _NAMED} more"]
    log.warning(
        "%d locks of one session lost at %s: %s; stop the guarded work and %s: %s",
        len(losses),
        first._since,
        first._why,
        first._todo,
        ", ".join(named),
        extra=log_fields(session_id=first.grant.session_id, reason=first.reason),
    )


def handler_error() -> WouldDeadlock:
    """Return the error to raise in a signal handler that has interrupted the session."""
    return WouldDeadlock(
        "this signal handler interrupted zklock and cannot wait for an answer: set a flag, and "
        "make this call from the main program; a handler may use cancel(), abandon() and held"
    )
