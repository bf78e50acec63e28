"""One ZooKeeper session as the locks on it see it: their requests, and what happens on the wire.

It stands on ``pulse``, its heartbeats, and on ``holdings``, what is held on it and its loss.

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

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from zklock._core.attempt import Attempt, Pending
from zklock._core.grant import End, GrantBase, GrantOptions
from zklock._core.lease import HEARTBEATS, Lease
from zklock._core.link import Flight, Link
from zklock._core.pulse import Pulse
from zklock._core.wire import WATCHING
from zklock._ground.loss import LossReason
from zklock._recipes.effects import (
    Batch,
    Claim,
    Create,
    Delete,
    Exists,
    Failed,
    List,
    Node,
    Recipe,
    Transaction,
)
from zklock._telemetry import emit, subscriptions
from zklock._telemetry.events import Connected, SessionEnded

if TYPE_CHECKING:
    from zklock._core.ports import Shell

DELETED, CHANGED = 2, 3
"""Kinds of events."""


class Session(Pulse):
    """Keeps whether the session lives, and how long that may be believed."""

    def __init__(self, shell: Shell) -> None:
        super().__init__(shell)
        self.link = Link(self, shell)
        self.advancing: list[Attempt[Any]] = []  # whose recipes this step advances
        self._asked_at = -math.inf  # when the newest handshake was sent
        # By path: the flight that lists, and those that wait for the next listing.
        self._listings: dict[str, list[Flight]] = {}
        self._epochs = emit.Epochs()

    # For any thread.

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
        watched, last = [], batch[-1]
        for request in batch:
            kind = type(request)
            if kind is Delete or kind is Transaction:
                self._note_leaving(request)
            elif kind in WATCHING:
                watched.append(request.path)  # type: ignore[union-attr]
        if watched:
            attempt.watches()
            self._watchers.put(attempt, watched)
        flight, most = Flight(batch, self.now(), partial(self._answered, attempt)), len(batch)
        if type(last) is List and (most == 1 or type(batch[-2]) is Create):
            flights = self._listings.setdefault(last.path, [])
            flights.append(flight)
            most -= len(flights) > 1
        self.link.ask(self.codec, flight, most)

    def _answered(self, attempt: Attempt[Any], flight: Flight) -> None:
        self._list_next(flight)
        self._found(flight)
        attempt.answered(flight.requests, flight.results)

    def _list_next(self, flight: Flight) -> None:
        """List again, if this flight has listed, for those who came meanwhile."""
        request = flight.requests[-1]
        if not isinstance(request, List):
            return
        flights = self._listings.get(request.path)
        if flights is None or flights[0] is not flight:
            return
        del self._listings[request.path], flights[0]
        if flights:
            shared = Flight((request,), self.now(), partial(self._share, flights))
            self._listings[request.path] = [shared]
            self.link.ask(self.codec, shared, 1)

    def _share(self, flights: list[Flight], shared: Flight) -> None:
        self._list_next(shared)
        (result,) = shared.results
        for flight in flights:
            mine = result.for_another() if isinstance(result, Failed) else result
            flight.set_result(len(flight.requests) - 1, mine)

    def _note_leaving(self, request: Any) -> None:
        operations = request.operations if isinstance(request, Transaction) else (request,)
        if isinstance(operations[0], Delete):
            self._nodes.leave([each.path for each in operations if isinstance(each, Delete)])

    def _found(self, flight: Flight) -> None:
        created = False
        for request, node in zip(flight.requests, flight.results, strict=True):
            kind = type(request)
            if (kind is Create or kind is Exists) and isinstance(node, Node) and node.mine:
                created |= kind is Create
                self._nodes.add(node.path)
                self._lease.touched(flight.sent, self.now())
        if created:
            self._proved(flight.sent)

    def claim(self, attempt: Attempt[Any], claim: Claim) -> Any:
        """Return a grant if the lease is live, with some time left; else call back when it is.

        If ACLs may deny the heartbeats, the first grant waits until a heartbeat is answered.
        """
        terms = attempt.terms
        assert terms is not None
        if not self.may_grant(claim):
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

    def mend(self) -> None:
        """Have begin anew what an interrupt has torn apart. Repeatable."""
        for attempt in self.advancing:
            attempt.torn()
        self.advancing.clear()

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

    def closing(self) -> None:
        """Note that kazoo ends the session: when the server has that, others may be granted."""
        self.end(LossReason.CLIENT_CLOSED, self.shell.closed_error())
