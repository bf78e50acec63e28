"""One ZooKeeper session as the locks on it see it: its lease, its heartbeat, and its loss.

There is one ``Session`` for each client. It has no socket and no thread: the shell feeds it with
what arrives, and calls ``tick``. All that is not said to be for any thread runs in a step: one
thread at a time. A step only changes state and queues bytes. It does not block, starts no thread,
logs nothing, and calls nothing of the user's: what must follow is posted to the client's own
thread.

The following always holds between two steps:

1. A grant is on nodes of the present session only.
2. A lease that is over stays over for the grants of that time: no proof revives them.
3. An attempt awaits the lease from its claim until ``granted()`` or its leaving.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from zklock._core.attempt import Attempt, Pending
from zklock._core.grant import End, GrantBase, GrantOptions
from zklock._core.heartbeat import HUNG, LATE, DueHeartbeat, Heartbeat
from zklock._core.lease import DEFAULT_FRACTION, HEARTBEATS, Lease
from zklock._core.link import Flight, Link
from zklock._core.nodes import OwnNode, OwnNodes, asked_of
from zklock._core.timers import Job, Timers
from zklock._core.watches import Watchers
from zklock._core.wire import WATCHING, Codec
from zklock._ground.copy_error import copy_error
from zklock._ground.loss import Loss, LossReason
from zklock._ground.not_copyable import NotCopyable
from zklock._ground.records import Fields, log_fields
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
    List,
    Node,
    Recipe,
    Request,
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
from zklock.errors import WouldDeadlock

if TYPE_CHECKING:
    from zklock._core.ports import Shell

log = logging.getLogger("zklock")

ASSUMED_TIMEOUT = 4.0
"""The session timeout, in seconds, before the first connection."""

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

DELETED, CHANGED = 2, 3
"""Kinds of events."""


class Session(NotCopyable):
    """Keeps whether the session lives, and how long that may be believed."""

    _INSTEAD = "make what needs it in the other process, with a client of that process"

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.fraction = DEFAULT_FRACTION  # of the timeout, for which a proof is good
        self._settled = False
        self.now = shell.now  # seconds; the lease runs on this clock
        self.step, self.post, self.later = shell.step, shell.post, shell.later
        self.limit = shell.limit
        self.thread, self.notify = shell.thread, shell.notify
        self.link = Link(self)
        self.codec = Codec("", lambda: None, lambda: self._id or 0)
        self.final: Exception | None = None  # why no session will come any more
        self.advancing: list[Attempt[Any]] = []  # whose recipes this step advances
        self.places: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()  # see ``keep``
        self._asked_at = -math.inf  # when the newest handshake was sent
        self._id: int | None = None
        self._lease = Lease(ASSUMED_TIMEOUT, self.fraction)
        self._heartbeat = Heartbeat()
        self._nodes = OwnNodes()
        self.owns = self._nodes.__contains__  # a node by its path
        self._watchers = Watchers()
        self._timers = Timers()
        self._attempts: dict[Attempt[Any], None] = {}
        self._resuming: deque[Attempt[Any]] = deque()  # they go on behind the next heartbeat
        self._awaiting_lease: dict[Attempt[Any], str] = {}  # to the node that each claims
        self._listings: dict[str, tuple[list[Waits], list[Waits]]] = {}  # who waits: now, next
        # By path: those that nobody looks for yet.
        self._abandoned_creates: dict[str, list[str]] = {}
        # Whether heartbeats can work: they need read permission on the session's own nodes.
        self._readable = True
        self._epochs = emit.Epochs()
        self._refused = False  # the client's credentials were
        self._stalled = False  # an answer is late, and kept locks wait for it
        self._proved_at = -math.inf  # when the newest answered proof was sent
        self._rested_at = -math.inf  # when the newest heartbeat at rest was sent
        self._turned_at = -math.inf

    # For any thread.

    @property
    def client(self) -> Any:
        return self.shell.client

    @property
    def timeout(self) -> float:
        """The session timeout in seconds, as negotiated."""
        return self._lease.timeout

    @property
    def moment(self) -> float:
        """How long a non-blocking call may wait for an answer, in seconds."""
        return min(MOMENT, self._lease.timeout / 3)

    @property
    def interrupted(self) -> bool:
        """Whether this is a signal handler, or a finalizer, that has interrupted a step."""
        return self.shell.inside()

    @property
    def connected(self) -> bool:
        """Whether requests go out at once; a read-only server does not count."""
        return self.link.serving

    @property
    def lease_end(self) -> float:
        """When the lease ends, or has ended."""
        return self._lease.end

    @property
    def at_stake(self) -> bool:
        """Whether there is a grant that lives on a lease."""
        return self._nodes.any_held and self._lease.end > self.now()

    @property
    def prompt(self) -> bool:
        """Whether the servers answer: what happens to watched nodes is known by now."""
        late = self._heartbeat.waits(self.now(), self.timeout)
        self._stalled |= late
        return self.connected and not late

    @property
    def in_use(self) -> bool:
        """Whether there is something to see to."""
        return bool(self._attempts or self._nodes or self._abandoned_creates)

    def check_process(self) -> None:
        """Raise ``ForkedClient`` in a forked child, ``ZkLockError`` while Python shuts down."""
        self.shell.check_process()

    def check_usable(self) -> None:
        """Raise ``ForkedClient`` or ``ClientClosed`` if ZooKeeper cannot be asked.

        Raise ``WouldDeadlock`` in a signal handler that has interrupted a step on its own thread:
        no answer could be taken until the handler returns.
        """
        self.shell.check_process()
        if self.interrupted:
            raise handler_error()
        if self.final is not None:
            raise copy_error(self.final)

    def attempt(
        self,
        make: Callable[[], Recipe[Any]],
        *,
        recover: Callable[[], Recipe[Any]] | None = None,
        terms: GrantOptions | None = None,
    ) -> Attempt[Any]:
        """Return an attempt at a recipe on this session; it is not started yet."""
        attempt: Attempt[Any] = Attempt(self, make, recover=recover, terms=terms)
        if subscriptions.hooks and terms is not None and terms.place is None:
            emit.begun(attempt, self.now)
        return attempt

    def pause(self, seconds: float, job: Job) -> Callable[[], object]:
        """Run the job after ``seconds`` on the client's own thread; return what calls it off."""
        due = self.now() + seconds
        call_off = self._timers.at(due, job)
        self.shell.due(due)
        return call_off

    def settle(self, fraction: float) -> float:
        """Have proofs be good for this part of the timeout, unless that is settled; return it."""
        if not self._settled:
            self._settled, self.fraction = True, fraction
            self._lease.fraction = fraction
        return self.fraction

    def readable(self, known: bool) -> None:
        """Note whether this client is known to have read permission on its own nodes."""
        self._readable = known

    def remaining(self) -> float:
        """Return the seconds of lease left.

        When it is over, the client's thread declares all grants lost: there may be thousands. Who
        asks for one does not wait for that. It loses its own, as no proof revives a lease.
        """
        left = self._lease.end - self.now()
        if self.shell.forked:
            self._lose_in_child()
            return 0.0
        if left > 0:
            return left
        if self._nodes.any_held:
            self.later(self._over)
        return 0.0

    def _over(self) -> None:
        self.step(self._lapse)

    def held(self) -> list[GrantBase]:
        """Return all grants that are held on this session."""
        return [grant for grant in self._nodes.grants() if grant.held]

    def grants(self, lock_path: str) -> list[GrantBase]:
        """Return the grants of a lock that are held on this session."""
        return [grant for grant in self.grants_at(lock_path) if grant.held]

    def grants_at(self, lock_path: str) -> list[GrantBase]:
        """Return the grants of a lock on this session; some may be over by now."""
        return self._nodes.grants_of(lock_path)

    # For grants, on any thread.

    def release_grant(self, grant: GrantBase, *, awaited: bool = False) -> Pending[Any]:
        """Give a grant back to ZooKeeper, with as many tries as it takes.

        ``awaited``: this thread is about to wait for the answer.
        """
        if subscriptions.hooks:
            emit.released(grant, self.now())
        attempt = self.attempt(partial(self._give_back, grant), recover=grant._give_back)
        begin = attempt._begin
        if self.interrupted:
            self.later(partial(self.step, begin, False))
        elif self.shell.is_behind():
            # What this client's user has queued in kazoo goes before a release.
            self.shell.when_sent(partial(self.step, begin, False))
        else:
            self.step(begin, awaited)
        return attempt

    def _give_back(self, grant: GrantBase) -> Recipe[None]:
        """Give the grant's nodes back; one that had gone before was taken from the holder."""
        own = self._nodes.get(grant.path)
        mine = own is not None and own.grant is grant
        self._nodes.forget(grant._paths)
        grant._release_begun = True
        there = yield from grant._give_back()
        if mine and there is False:
            self.lost_before(grant)

    def lost_before(self, grant: GrantBase) -> None:
        """Lose a grant that has ended: its release has found nothing to delete."""
        loss = Loss(LossReason.NODE_DELETED, grant, self.now(), self._lease.end)
        grant._ended = End(loss)
        self.post(grant._tell_loss)
        self.post(partial(_warn, [loss]))

    def finish(self, grant: GrantBase, end: End) -> None:
        """Give back a grant whose release was interrupted: it ended so, and was not let go.

        One that has ended in another way is its place's, or somebody else gives it back.
        """
        if grant._ended is end and not grant._release_begun:
            self.release_grant(grant)

    def confirmed(self, grant: GrantBase, sent: float, there: bool) -> None:
        """Take a quorum's answer about the grant's nodes; the request was sent at ``sent``."""
        self.step(self._confirmed, grant, sent, there)

    def _confirmed(self, grant: GrantBase, sent: float, there: bool) -> None:
        if there:
            self._proved(sent)
        else:
            self._lose(grant._paths, LossReason.NODE_DELETED)

    # For attempts.

    def enter(self, attempt: Attempt[Any]) -> None:
        """Report lost sessions and connections to the attempt, until it leaves."""
        self._attempts[attempt] = None

    def leave(self, attempt: Attempt[Any]) -> None:
        """Forget the attempt. Repeatable."""
        self._attempts.pop(attempt, None)
        self._awaiting_lease.pop(attempt, None)
        self._watchers.drop(attempt)

    def send(self, attempt: Attempt[Any], batch: Batch) -> None:
        """Send an attempt's batch, and note what each of its requests means for the session.

        - Events of the nodes that it watches are reported to the attempt, and those of no others.
        - A node that it creates, or finds to belong to this session, can then be claimed.
        - A node that is leaving cannot be claimed any more. If the node is granted, the lock is
          being broken: the deletion itself ends the grant. So do the deletions of a transaction
          that checks something first: it may be refused, and the nodes stay.
        - An answered create proves that the session was alive.

        Listings of a path are shared, one at a time: a batch that comes while one is under way gets
        the next.
        """
        finds, watched, last = False, [], batch[-1]
        for request in batch:
            kind = type(request)
            if kind is Create or kind is Exists:
                finds = True
            elif kind is Delete or kind is Transaction:
                self._note_leaving(request)
            elif isinstance(request, WATCHING):
                watched.append(request.path)
        if watched:
            attempt.watches()
            self._watchers.put(attempt, watched)
        done = partial(attempt.answered, batch)
        if finds:
            done = partial(self._found, batch, self.now(), done)
        flight = Flight(batch, done)
        if type(last) is List and (len(batch) == 1 or type(batch[-2]) is Create):
            waits = flight, len(batch) - 1
            asked = self._listings.get(last.path)
            if asked is not None:
                asked[1].append(waits)
                self.link.ask(self.codec, flight, len(batch) - 1)
            else:
                self._listings[last.path] = [waits], []
                self.link.ask(self.codec, flight, len(batch) - 1)
                self._list(last)
            return
        self.link.ask(self.codec, flight, len(batch))

    def _list(self, request: List) -> None:
        self.link.ask(self.codec, Flight((request,), partial(self._listed, request)), 1)

    def _listed(self, request: List, results: tuple[Any]) -> None:
        now, following = self._listings.pop(request.path)
        if following:
            self._listings[request.path] = following, []
            self._list(request)
        (result,) = results
        for flight, slot in now:
            flight.set_result(slot, result.for_another() if isinstance(result, Failed) else result)

    def _note_leaving(self, request: Any) -> None:
        operations = request.operations if isinstance(request, Transaction) else (request,)
        if isinstance(operations[0], Delete):
            self._nodes.leave([each.path for each in operations if isinstance(each, Delete)])

    def _found(
        self, batch: Batch, sent: float, done: Callable[[tuple[Any, ...]], None], results: Any
    ) -> None:
        created = False
        for request, node in zip(batch, results, strict=True):
            if isinstance(node, Node) and node.mine and isinstance(request, Create | Exists):
                created |= isinstance(request, Create)
                self._nodes.add(node.path)
                self._lease.touched(sent, self.now())
        if created:
            self._proved(sent)
        done(results)

    def claim(self, attempt: Attempt[Any], claim: Claim) -> Any:
        """Return a grant if the lease is live, with some time left; else call back when it is.

        If ACLs may deny the heartbeats, the first grant waits until a heartbeat is answered.
        """
        terms = attempt.terms
        assert terms is not None
        paths = (*(path for path, _ in claim.others), claim.path)
        if not self.may_grant(paths):
            self._awaiting_lease[attempt] = claim.path
            self._heartbeat.soon()
            self._send_due_heartbeat()
            return None
        attempt.accept()
        if terms.place is not None:
            return terms.place.granted(claim)
        return self.give(claim, terms, attempt)

    def give(
        self, claim: Claim, terms: GrantOptions, asked: Any = None, kept: Any = None
    ) -> GrantBase:
        """Make a grant, for what has asked for it, on what was kept."""
        grant = terms.grant(self, claim=claim, session_id=self._id or 0, terms=terms)
        if kept is not None:
            kept.use(grant)
        self._nodes.give(grant)
        if asked is not None:
            asked.made = (*asked.made, grant)
            if subscriptions.hooks:
                emit.granted(asked, grant, self._epochs, self.now())
        return grant

    def may_grant(self, paths: Iterable[str]) -> bool:
        """Whether nodes of this session are there, and enough lease is left."""
        return self._live() and self._readable and all(path in self._nodes for path in paths)

    def forget(self, path: str) -> None:
        """Forget a node that is about to be deleted."""
        self._nodes.forget([path])

    def lose(self, path: str) -> None:
        """Forget a node that is deleted, and lose the grant on it."""
        self._lose([path], LossReason.NODE_DELETED)

    def delete_orphan(self, node: str) -> None:
        """Delete a node that nobody uses."""
        self._run(partial(steps.delete, node.rpartition("/")[0], node))

    def abandon_create(self, path: str, uuid: str) -> None:
        """Delete the contender with this name, should it be made later; see ``AbandonCreate``."""
        abandoned = self._abandoned_creates.get(path)
        if abandoned is not None:
            abandoned.append(uuid)  # one look for all that are lost at the same time
            return
        abandoned = [uuid]
        take = partial(self._take_abandoned_creates, path, abandoned)
        self._run(lambda: steps.reap_late_creates(path, take, self._lateness))
        self._abandoned_creates[path] = abandoned  # last: an interrupt may strike

    def _take_abandoned_creates(self, path: str, abandoned: list[str]) -> list[str]:
        """Return them; from now on, others are looked for by others. Repeatable."""
        if self._abandoned_creates.get(path) is abandoned:
            del self._abandoned_creates[path]
        return abandoned

    def _lateness(self) -> float:
        return max(LATENESS, LATE_TIMEOUTS * self.timeout)

    def _run(self, make: Callable[[], Recipe[Any]]) -> None:
        attempt = self.attempt(make, recover=make)
        self.post(attempt.start)

    # What happens on the wire.

    def opened(self) -> None:
        """Begin with a new connection: kazoo is about to shake hands."""
        self.link.opened()
        self._listings.clear()

    def asked(self, sent: float, resumes: bool) -> None:
        """Note a handshake that is about to be sent; the lease shrinks until it is answered."""
        self._asked_at = sent
        if resumes:
            self._lease.asked(sent)

    def connected_as(self, timeout: float, session_id: int) -> None:
        """Note that a handshake was answered: this session, for so many seconds."""
        before = self.timeout
        if self._id not in {None, session_id}:  # replaced, and nobody has said so
            self.end(LossReason.SESSION_EXPIRED)
        self.final = None  # kazoo may tell of an end behind the next start
        if self._id != session_id:
            self._id = session_id
            self._lease = Lease(timeout, self.fraction)
        else:
            self._lease.negotiated(timeout)
            self._lapse()
            if timeout < before:
                self.warn(
                    "ZooKeeper shortened the session timeout from %g to %g s", before, timeout
                )
        self._lease.connected(self._asked_at)

    def serve(self) -> None:
        """Note that requests can be sent: kazoo has finished connecting."""
        if self._id is None or self.link.serving:
            return
        self.link.serving = True
        self._heartbeat.forget()
        self._heartbeat.soon()
        for place in self._each_place():
            place.again()
        self._resuming = deque(self._attempts)
        self._resume()
        self._tell(Connected, timeout=self.timeout)

    def cut(self) -> None:
        """Note that the connection is lost; the session may live. Repeatable."""
        self._lapse()  # a grant that is over by now is lost, not suspended
        if self.link.serving and self._id is not None:
            grants = self._nodes.grants()
            if subscriptions.hooks:
                now = self.now()
                emit.disconnected(self._id, grants, now, self._lease.end - now)
            for grant in grants:
                grant._suspended()
        self.link.cut()  # after the telling: an interrupt may have it told twice, never not at all
        self._listings.clear()
        self._resuming.clear()
        self._heartbeat.forget()
        self._nodes.unwatch()
        for place in self._each_place():
            place.cut()

    def end(
        self, reason: LossReason, final: Exception | None = None, *, refused: bool = False
    ) -> None:
        """Note that the session is over. Repeatable.

        ``final``: why no other one will come. ``refused``: the client's credentials were.
        """
        ended, self._id = self._id, None  # no grant is given any more
        self.link.serving = False
        self.final = final
        self._refused = refused
        self._lose(list(self._nodes), reason)
        self._abandoned_creates.clear()  # they are gone, too: nobody looks for them
        for attempt in list(self._attempts):
            attempt.replaced()
        if subscriptions.hooks and ended is not None:
            subscriptions.emit(SessionEnded(at=self.now(), session_id=ended, reason=reason))

    def _each_place(self) -> list[Any]:
        """Return the places. Other threads may drop some: to copy the references is one step."""
        return [place for each in self.places.valuerefs() if (place := each()) is not None]

    def mend(self) -> None:
        """Have begin anew what an interrupt has torn apart. Repeatable."""
        for attempt in self.advancing:
            attempt.torn()
        self.advancing.clear()

    def touched(self, sent: float) -> None:
        """Note a ping of kazoo's that was answered."""
        self._lease.touched(sent, self.now())

    def fired(self, kind: int, path: str) -> None:
        """Take the event of a watch."""
        deleted = kind == DELETED
        now = self.now()
        self._lapse()  # the session may have expired meanwhile, with its nodes
        own = self._nodes.get(path)
        attempts = self._watchers.of(path)
        held = deleted and self._nodes.was_granted(path)
        taken = deleted and own is not None  # what this client deletes, it has forgotten
        claims = deleted and [each for each in attempts if each.terms is not None]
        if claims and not (self._live() or self._heartbeat.proving):
            self._heartbeat.soon()  # before they look, so that its answer comes first
            self._send_due_heartbeat(proves=True)
        if own is not None:
            self._nodes.fire(path, own)
            if deleted:
                self._lose([path], LossReason.NODE_DELETED)
            elif own.grant is not None:
                self._heartbeat.soon()  # behind the next heartbeat, the node is read
        if kind == CHANGED:
            self._beside(path, now)
        for attempt in attempts:
            attempt.watched(path, deleted, held, taken, now)
        self._send_due_heartbeat()

    def _beside(self, path: str, now: float) -> None:
        """Have the data of a lock's path read anew for the grants that watch them.

        They are read behind the next heartbeat. It is sent at once only once in the time between
        two: others may write there often.
        """
        for grant in self._nodes.grants_of(path):
            own = self._nodes.get(grant.path)
            if own is not None and grant._terms.asked_by is not None:
                self._nodes.fire(grant.path, own)
                if now - own.read_at >= self.timeout / HEARTBEATS:
                    self._heartbeat.soon()

    # The lease.

    def _live(self) -> bool:
        """Whether enough lease is left for two heartbeats, so that a grant can last.

        After a rest, it takes a proof. So a grant is no nearer to its loss for having been waited
        for in rest.
        """
        if self._id is None or self._proved_at < self._rested_at:
            return False
        return self._lease.end - self.now() >= 2 * self._lease.timeout / HEARTBEATS

    def _proved(self, sent: float) -> None:
        self._lapse()  # a late proof does not revive a lease
        self._proved_at = max(self._proved_at, sent)
        before = self._lease.end
        self._lease.proved(sent)
        if subscriptions.hooks:
            now = self.now()
            self._tell(
                Proof,
                age=now - sent,
                margin=max(0.0, before - now),
                lease=max(0.0, self._lease.end - now),
                timeout=self.timeout,
                held=self._nodes.any_held,
            )
        self._grant_claims()

    def _grant_claims(self) -> None:
        """Have claim again who can: there is a lease, or its node is gone and it must look."""
        if not self._awaiting_lease:
            return
        live = self._live() and self._readable
        for attempt, node in list(self._awaiting_lease.items()):
            if live or node not in self._nodes:
                attempt.granted()  # first: an interrupt may strike it
                self._awaiting_lease.pop(attempt, None)

    def _lapse(self) -> None:
        """Lose every grant if the lease is over."""
        if self._lease.end <= self.now() and self._nodes.any_held:
            self._lose(self._nodes.held(), LossReason.LEASE_LAPSED)

    def _lose(self, paths: Iterable[str], reason: LossReason) -> None:
        """Forget these nodes, and lose their grants. Repeatable after an interrupt."""
        losses: list[Loss] = []
        for path in paths:
            self._lose_one(path, reason, losses)
        if losses:
            self.post(partial(_warn, losses))

    def _lose_one(self, path: str, reason: LossReason, losses: list[Loss]) -> None:
        own = self._nodes.get(path)
        grant = own.grant if own is not None else None
        if grant is None:
            self._nodes.forget([path])
            return
        grant._note_loss(
            reason,
            noticed=self.now(),
            lease_end=self._lease.end,
            refused=self._refused and reason is LossReason.CLIENT_CLOSED,
        )
        if grant._loss is not None:  # by this call, or before it by the grant itself
            losses.append(grant._loss)
        self.post(grant._tell_loss)
        if grant._place is not None:
            grant._place.lose(grant, deleted=reason is LossReason.NODE_DELETED)
        if subscriptions.hooks:
            emit.lost(grant)
        # The session may live on, and keep the nodes. A grant on several nodes is lost if one of
        # them is gone: the others must be deleted.
        several = reason is LossReason.NODE_DELETED and len(grant._paths) > 1
        if reason is LossReason.LEASE_LAPSED or several:
            for each in grant._paths:
                self.delete_orphan(each)
        self._nodes.forget(grant._paths)

    # Time.

    def tick(self) -> float:
        """Do what is due; return when to call again, ``math.inf`` for when something happens."""
        now = self.now()
        self._lapse()
        for job in self._timers.take(now):
            self.post(job)
        late = self._heartbeat.falls_behind(now, self.timeout)
        if late:
            self._say_late(self.timeout)
        if self._heartbeat.hung(now, self.timeout):
            self._heartbeat.forget()
            self.warn(
                "no answer to a heartbeat for %.3g s: trying another server", HUNG * self.timeout
            )
            self.shell.drop()
        if not (self._nodes or self._attempts):
            return self._timers.due
        passed = min(now - self._turned_at, self.timeout)  # it may have slept before they came
        again = self._watchers.take_turns(passed) if self.connected else []
        self._turned_at = now
        self._send_due_heartbeat()
        for attempt in again:  # behind the heartbeat: a session does not rest while somebody looks
            attempt.watched(None, deleted=False)
        due = self._heartbeat.due(now, self.timeout, held=self._nodes.any_held)
        if self._nodes.any_held:
            due = min(due, self._lease.end)
        return min(due, self._timers.due)

    def _resume(self) -> None:
        """Have some go on with the new connection; the others do so behind the next heartbeat."""
        for _ in range(min(AT_ONCE, len(self._resuming))):
            self._resuming.popleft().again()
        if self._resuming:
            self._heartbeat.soon()
        self._send_due_heartbeat()

    def _send_due_heartbeat(self, proves: bool = False) -> None:
        if not (self._nodes or self._attempts):
            return
        now = self.now()
        held = self._nodes.any_held
        proves = proves or held or bool(self._awaiting_lease)
        heartbeat = self._heartbeat.take(
            now, self.timeout, sends=self.connected, held=held, proves=proves
        )
        if heartbeat is not None:
            self._send_heartbeat(heartbeat, now)

    def _send_heartbeat(self, heartbeat: DueHeartbeat, now: float) -> None:
        """Send a heartbeat: a proof that the session was alive when it was sent, or a touch."""
        number, proves = heartbeat
        if self._nodes and not proves:
            self._rested_at = now
        claimed = (node for node in self._awaiting_lease.values() if node in self._nodes)
        some = self._nodes.take_turns(next(claimed, None))
        self._tell(HeartbeatSent)
        request: Check | Exists | Sync = Sync("/")
        if some is not None and (proves or number % 2):
            request = Check(some) if proves else Exists(some)
        self._ask((request,), partial(self._on_heartbeat, number, now, request))
        for path, own, watches in self._nodes.take_unwatched():
            self._ask(watches, partial(self._watched, path, own))

    def _ask(self, batch: tuple[Request, ...], done: Callable[[tuple[Any, ...]], None]) -> None:
        self.link.ask(self.codec, Flight(batch, done), len(batch))

    def _watched(self, path: str, own: OwnNode, results: tuple[Any, ...]) -> None:
        """Note what was read for a grant, or that its node is gone."""
        present = self._nodes.watched(path, own, results)
        grant = own.grant if present else None
        if present and steps.is_(results[0], Failure.MISSING):
            self._lose([path], LossReason.NODE_DELETED)
        if grant is None:
            return
        if grant._terms.asked_by is not None:
            own.read_at = self.now()
        if (asked := asked_of(grant, results)) is not None:
            grant._release_requested(asked)
            if grant._place is not None:
                grant._place.ask(grant)

    def _on_heartbeat(
        self, number: int, sent: float, request: Check | Exists | Sync, results: tuple[Any, ...]
    ) -> None:
        (answer,) = results
        failed = answer if isinstance(answer, Failed) else None
        some = None if isinstance(request, Sync) else request.path
        self._heartbeat.answered(number, self.now(), self.timeout)
        self._resume_others()
        if self._stalled:
            self._stalled = False
            for place in self._each_place():
                place.again()
        if failed is None:
            self._lease.touched(sent, self.now())
            self._tell(HeartbeatAnswered, took=self.now() - sent)
            if isinstance(request, Check):
                self._readable = True
                self._proved(sent)
            return
        if failed.why is Failure.MISSING and some is not None:
            self._lose([some], LossReason.NODE_DELETED)
            self._grant_claims()
            for attempt in list(self._attempts):
                attempt.watched(some, deleted=True)
        elif failed.why is Failure.DENIED:
            self._readable = False
            self.post(
                partial(
                    log.error,
                    "ACLs refuse the heartbeats: every lease will end (%s)",
                    failed.error,
                    extra=self._fields(),
                )
            )
            for attempt in [each for each, node in self._awaiting_lease.items() if node == some]:
                attempt.granted(copy_error(failed.error))
                self._awaiting_lease.pop(attempt, None)
        else:
            self.post(
                partial(
                    log.error,
                    "ZooKeeper refused a heartbeat: the lease will end (%s)",
                    failed.error,
                    extra=self._fields(),
                )
            )

    def _resume_others(self) -> None:
        if self._nodes.crowded:
            self._heartbeat.soon()
        if self._resuming:
            self._resume()
        else:
            self._send_due_heartbeat()

    def _tell(self, event: Callable[..., Event], **what: Any) -> None:
        if subscriptions.hooks:
            subscriptions.emit(event(at=self.now(), session_id=self._id or 0, **what))

    def _say_late(self, timeout: float) -> None:
        limit = LATE * timeout
        self._tell(HeartbeatLate, limit=limit)
        self.warn(
            "no answer to a heartbeat for %.3g s: locks can be lost if an answer takes longer "
            "than %.3g s; reduce the load of the servers, or use a session timeout above %g s",
            limit,
            0.3 * timeout,
            timeout,
        )

    def warn(self, message: str, *details: object) -> None:
        """Log a warning, once nobody waits."""
        self.post(partial(log.warning, message, *details, extra=self._fields()))

    def _fields(self) -> Fields:
        return log_fields(session_id=self._id)

    # The wire's rider, on behalf of the shell; see ``link.Rider``.

    def connected_to(self, milliseconds: int, session_id: int, *, read_only: bool) -> None:
        """Take the answer to a handshake."""
        self.shell.shaken(milliseconds, session_id, read_only=read_only)

    def pinged(self) -> None:
        """Take the answer to kazoo's ping."""
        self.shell.pinged_back()

    def closing(self) -> None:
        """Note that kazoo ends the session: when the server has that, others may be granted."""
        self.end(LossReason.CLIENT_CLOSED, self.shell.closed_error())

    def went_back(self, zxid: int) -> None:
        """Note that the server's data were replaced by older ones."""
        self.shell.went_back(zxid)

    # The fork.

    def after_fork(self) -> None:
        """Start over in a forked child, where no thread of the client runs."""
        self._nodes.orphan_waiters()

    def _lose_in_child(self) -> None:
        """Lose all in a forked child: the connection is the parent's. The asking thread tells."""
        for grant in self._nodes.grants():
            grant._note_loss(LossReason.FORKED, noticed=self.now(), lease_end=self._lease.end)
            self._nodes.forget(grant._paths)
            grant._tell_loss()


Waits = tuple[Flight, int]
"""A flight that waits for a listing, and the place there."""


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
