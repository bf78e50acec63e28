"""One ZooKeeper session as the locks on it see it: its lease, its heartbeat, and its loss.

There is one ``Session`` for each client, shared by everything on it, with one thread of its own:
it sends the heartbeats, ends the lease on time, and does what must not be done on kazoo's threads.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from kazoo.protocol.states import EventType, KazooState, KeeperState

from zklock import nodedata, queries, steps
from zklock.attempt import Attempt
from zklock.clock import clock
from zklock.connection import Client, Handler, Observer, check_client, closed_error, forked_error
from zklock.effects import (
    Check,
    Claim,
    Create,
    Delete,
    Depart,
    Exists,
    Failed,
    Failure,
    Flight,
    Node,
    Recipe,
    Request,
    Sync,
    Watch,
)
from zklock.errors import NoAnswer
from zklock.grant import Answer, Grant, GrantBase, LossReason, Terms
from zklock.lease import DEFAULT_FRACTION, HEARTBEATS, Lease
from zklock.store import Results, Store
from zklock.worker import Worker

log = logging.getLogger("zklock")

ASSUMED_TIMEOUT = 4.0
"""Seconds taken for the session timeout where it cannot be known: twice ZooKeeper's usual tick."""

MOMENT = 1.0
"""Seconds, at most, for which a call that must not wait waits for ZooKeeper's answer."""

_NEW_WATCHES = 64  # placed by one heartbeat
_GRANTED = 4096  # grants remembered for those who wait behind them


class _Own:
    """A node of this session: a waiting contender's, or with its grant."""

    __slots__ = ("grant", "owner", "watched")

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.grant: GrantBase | None = None
        self.watched = False


class Session(Observer):
    """Whether the session lives, and for how long that may be believed.

    ``guard`` protects all its state; nothing that can block is done under it.
    """

    def __init__(self, client: Client, session_timeout: float | None, fraction: float) -> None:
        self.client = client
        self.guard: AbstractContextManager[object] = threading.RLock()
        self.terms = session_timeout, fraction
        self._handler = client.handler if isinstance(client.handler, Handler) else None
        self._store = Store(client, self._on_event, lambda owner: owner == self._id)
        self._worker = Worker("zklock-session", self._turn)
        self._wire: tuple[float, float] | None = None  # asked at, negotiated timeout
        self._id: int | None = None
        self._lease = Lease(session_timeout or ASSUMED_TIMEOUT, fraction)
        self._nodes: dict[str, _Own] = {}
        self._attempts: set[Attempt[Any]] = set()
        self._watching: dict[Attempt[Any], tuple[str, ...]] = {}
        self._watchers: dict[str, set[Attempt[Any]]] = {}
        self._granted: dict[str, bool] = {}  # nodes that were, until those behind are told
        self._awaiting_lease: list[tuple[str, Attempt[Any]]] = []
        # Whether heartbeats can be sent: they need read permission on the own nodes.
        self._readable = not client.default_acl
        self._parked: list[Attempt[Any]] = []
        self._forked = False
        self._idle = True  # the worker sleeps until it is woken
        self._used_at = self._beat_at = -math.inf
        self._unanswered: float | None = None  # when the heartbeat under way was sent
        if self._handler is not None:
            self._handler.observe(self)
        elif session_timeout is None:
            log.warning(
                "this client was not made by zklock.connect(): its negotiated session timeout "
                "is not known, so that a lost connection ends every lease at once and %s s are "
                "taken for the timeout; pass session_timeout= where it is known",
                ASSUMED_TIMEOUT,
            )
        client.add_listener(self._on_state)
        if client.connected:
            self._on_connected()

    # What locks ask for.

    @property
    def timeout(self) -> float:
        """The session timeout in seconds: negotiated, given, or assumed."""
        return self._lease.timeout

    @property
    def moment(self) -> float:
        """Seconds for which a call that must not wait may wait for an answer."""
        return min(MOMENT, self.timeout / 3)

    def check_usable(self) -> None:
        """Raise ``ForkedClient`` or ``ClientClosed`` if nothing can be asked of ZooKeeper."""
        if self._forked:
            raise forked_error()
        error = closed_error(self.client)
        if error is not None:
            raise error

    def attempt(
        self,
        what: Recipe[Any],
        *,
        recover: Callable[[], Recipe[None]] | None = None,
        terms: Terms | None = None,
    ) -> Attempt[Any]:
        """Return an attempt at a recipe on this session, to be started."""
        return Attempt(self, what, recover=recover, terms=terms)

    def ask(self, make: Callable[[], Recipe[Any]], path: str, timeout: float | None) -> Any:
        """Run a query and wait for what it returns; ``NoAnswer`` after ``timeout`` seconds."""
        self.check_usable()
        limit = self.timeout if timeout is None else timeout
        attempt = self.attempt(queries.steadfast(make))
        try:
            if not attempt.start().wait(limit) and attempt.give_up():
                raise no_answer(path, limit)
            return attempt.result()
        except BaseException:
            attempt.give_up()
            raise

    # What grants ask for (grant.Keeper).

    def remaining(self) -> float:
        """Return the seconds of lease left; what is lost by now is declared lost."""
        if self._forked:
            self._lose(list(self._nodes), LossReason.FORKED)
            return 0.0
        left = self._lease.end - clock()
        if left <= 0:
            self._lapse()
        return max(0.0, left)

    def notify(self, calls: list[Callable[[], object]]) -> None:
        """Run user callbacks, in order, on a thread of their own."""

        def run() -> None:
            for call in calls:
                try:
                    call()
                except BaseException:  # SystemExit too: it would end this thread, unheard
                    log.exception("a callback of a lock raised")

        threading.Thread(target=run, name="zklock-callback", daemon=True).start()

    def let_go(self, grant: GrantBase) -> Answer:
        """Give the grant back to ZooKeeper, however long it takes."""
        with self.guard:
            for path in grant._paths:
                self._nodes.pop(path, None)
        return self._run(grant._give_back)

    def let_go_later(self, grant: GrantBase) -> None:
        """Give the grant back from the session's own thread."""
        self.later(lambda: self.let_go(grant))

    def await_answer(self, answer: Answer) -> None:
        """Wait for the answer, for a bounded moment."""
        if answer.wait(self.moment):
            answer.result()
        else:
            log.info("no answer to a release yet: it goes on in the background")

    def verify(self, grant: GrantBase, timeout: float | None) -> None:
        """Have a quorum confirm that the grant's nodes are still there."""
        limit = self.remaining() if timeout is None else timeout
        self.confirmed(
            grant, clock(), self.ask(lambda: queries.confirm(grant._paths), grant.lock_path, limit)
        )

    def confirmed(self, grant: GrantBase, sent: float, there: bool) -> None:
        """Take a quorum's word on the grant's nodes, which it was asked for at ``sent``."""
        if there:
            self._proved(sent)
        else:
            self._lose(grant._paths, LossReason.NODE_DELETED)

    # What attempts ask for (attempt.Host).

    @property
    def connected(self) -> bool:
        """Whether requests go out at once; a read-only server does not count."""
        return bool(self.client.client_state is KeeperState.CONNECTED)

    def enter(self, attempt: Attempt[Any]) -> None:
        """Tell the attempt of lost sessions and connections, until it leaves."""
        with self.guard:
            self._attempts.add(attempt)
            self._used_at = clock()
            idle = self._idle
        if idle:
            self._worker.wake()

    def leave(self, attempt: Attempt[Any]) -> None:
        """Forget the attempt."""
        with self.guard:
            self._attempts.discard(attempt)
            self._unwatch(attempt)

    def park(self, attempt: Attempt[Any]) -> None:
        """Resume the attempt once the client is connected."""
        with self.guard:
            self._parked.append(attempt)
        self._worker.wake()  # it may have been connected meanwhile

    def fly(self, flight: Flight, done: Callable[[Results], None]) -> None:
        """Send a flight; an answered create proves that the session was alive.

        Nodes that the flight creates, or finds to be this session's, can be claimed from then on.
        """
        first = flight[0]
        if isinstance(first, Delete | Depart):
            with self.guard:
                own = self._nodes.get(first.path)
                if own is not None and own.grant is None:  # else it is being broken
                    del self._nodes[first.path]
        if not isinstance(first, Create | Exists):
            self._store.fly(flight, done)
            return
        sent = clock()

        def landed(results: Results) -> None:
            node = results[0]
            if isinstance(node, Node) and node.mine:
                with self.guard:
                    self._nodes.setdefault(node.path, _Own(node.owner))
                    self._lease.touched(sent, clock())
                if isinstance(first, Create):
                    self._proved(sent)
            done(results)

        self._store.fly(flight, landed)

    def watch(self, attempt: Attempt[Any], paths: Iterable[str]) -> None:
        """Tell the attempt of watch events on these paths from now on, and on no other."""
        with self.guard:
            self._unwatch(attempt)
            self._watching[attempt] = tuple(paths)
            for path in self._watching[attempt]:
                self._watchers.setdefault(path, set()).add(attempt)

    def pause(self, seconds: float, done: Callable[[], object]) -> Callable[[], object]:
        """Call ``done()`` once so many seconds have passed; return what calls that off."""
        timer = threading.Timer(seconds, done)
        timer.daemon = True
        timer.start()
        return timer.cancel

    def claim(self, attempt: Attempt[Any], claim: Claim) -> GrantBase | None:
        """Return a grant if the lease is live, with some time to go; else call back then.

        With ACLs that may deny the heartbeats, the first grant waits for one to be answered.
        """
        terms = attempt.terms
        assert terms is not None
        paths = (claim.path, *(path for path, _ in claim.others))
        with self.guard:
            owned = [self._nodes.get(path) for path in paths]
            mine = all(own is not None and own.owner == self._id for own in owned)
            if not mine or not self._live() or not self._readable:
                self._awaiting_lease.append((claim.path, attempt))
                self._beat_at = -math.inf
                self._worker.wake()
                return None
            make = terms.grant or Grant
            grant = make(self, claim=claim, session_id=self._id or 0, terms=terms)
            for own in owned:
                if own is not None:
                    own.grant = grant
            self._granted[claim.path] = True
            if len(self._granted) > _GRANTED:
                del self._granted[next(iter(self._granted))]
            return grant

    def grants(self, lock_path: str) -> list[GrantBase]:
        """Return the grants of a lock that are held on this session."""
        self.remaining()
        with self.guard:
            found = {own.grant for own in self._nodes.values() if own.grant is not None}
            return [grant for grant in found if grant.lock_path == lock_path]

    def sweep(self, node: str) -> None:
        """Delete a node that nobody stands on."""
        self.later(lambda: self._delete(node))

    def later(self, job: Callable[[], object]) -> None:
        """Run the job soon, on the session's own thread."""
        self._worker.later(job)

    # What kazoo tells, on its threads. The wire (connection.Observer) speaks before the state.

    def on_connect(self, sent: float, timeout: float) -> None:
        """Note when the connection was asked for, and the negotiated timeout."""
        self._wire = sent, timeout

    def on_ping(self, sent: float, answered: float) -> None:
        """Count kazoo's own pings as touches."""
        with self.guard:
            self._lease.touched(sent, answered)

    def on_close(self) -> None:
        """Lose every grant: once the server has the request, others may be granted.

        kazoo tells of the end only when the server has answered.
        """
        with self.guard:
            held = [path for path, own in self._nodes.items() if own.grant is not None]
            self._lose(held, LossReason.CLIENT_CLOSED)
            self._id = None  # nothing is granted any more

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._on_connected()
        elif state == KazooState.SUSPENDED:
            self._on_suspended()
        elif self.client.client_state is KeeperState.EXPIRED_SESSION:
            self._on_gone(LossReason.SESSION_EXPIRED)
        else:
            self._on_gone(LossReason.CLIENT_CLOSED)
        self._worker.wake()

    def _on_connected(self) -> None:
        if not self.connected:
            return  # to a read-only server
        client_id = self.client.client_id
        if client_id is None:
            return  # the connection is lost again
        session_id = client_id[0]
        if self._id not in (None, session_id):  # replaced, without having been called lost
            self._on_gone(LossReason.SESSION_EXPIRED)
        with self.guard:
            if self._id != session_id:
                self._id = session_id
                self._lease = self._new_lease()
            if self._wire is not None:
                self._lease.connected(self._wire[0])
            self._unanswered = None
            self._beat_at = -math.inf
        self._worker.wake()

    def _new_lease(self) -> Lease:
        given, fraction = self.terms
        if self._wire is not None:
            return Lease(self._wire[1], fraction)
        timeout = given or ASSUMED_TIMEOUT
        # kazoo pings after a third of the timeout; its jitter can add 0.4 s.
        return Lease(timeout, fraction, idle=timeout / 3 + 0.4)

    def _on_suspended(self) -> None:
        with self.guard:
            self._unanswered = None
            for own in self._nodes.values():
                own.watched = False
            grants = [own.grant for own in self._nodes.values() if own.grant]
            waiting = list(self._watching)
            if self._handler is None and self.terms[0] is None:
                self._lease.end = -math.inf
            self._lapse()  # a grant that is over by now is lost, not suspended
        for grant in grants:
            grant._suspended()
        for attempt in waiting:
            attempt.watched(None, deleted=False)

    def _on_gone(self, reason: LossReason) -> None:
        with self.guard:
            self._lose(list(self._nodes), reason)
            self._id = None
            attempts = list(self._attempts)
        final = closed_error(self.client) if reason is LossReason.CLIENT_CLOSED else None
        for attempt in attempts:
            attempt.session_replaced(final)

    def _on_event(self, kind: str, path: str | None) -> None:
        if path is None:
            return  # the connection is lost, which the state says too
        deleted = kind == EventType.DELETED
        with self.guard:
            self._lapse()  # the session may have expired meanwhile, and its nodes with it
            own = self._nodes.get(path)
            attempts = list(self._watchers.get(path, ()))
            held = deleted and self._granted.pop(path, False)
            if own is not None:
                own.watched = False
                if deleted:
                    self._lose([path], LossReason.NODE_DELETED)
                elif own.grant is not None:
                    self._beat_at = -math.inf  # the next heartbeat reads it
                    self._worker.wake()
        for attempt in attempts:
            attempt.watched(path, deleted, held)

    # The lease.

    def _live(self) -> bool:
        """Whether the lease runs long enough for two heartbeats, so that a grant can last."""
        return self._lease.end - clock() >= 2 * self.timeout / HEARTBEATS

    def _proved(self, sent: float) -> None:
        with self.guard:
            self._lapse()  # a proof that comes too late revives nothing
            self._lease.proved(sent)
            if not self._awaiting_lease or not self._live() or not self._readable:
                return
            waiting, self._awaiting_lease = self._awaiting_lease, []
        for _, attempt in waiting:
            attempt.lease_live()

    def _lapse(self) -> None:
        """Lose every grant, if the lease is over; their nodes must go, as the session may live."""
        with self.guard:
            if self._lease.end > clock():
                return
            held = [path for path, own in self._nodes.items() if own.grant is not None]
            for path in self._lose(held, LossReason.LEASE_LAPSED):
                self.sweep(path)

    def _lose(self, paths: Iterable[str], reason: LossReason) -> list[str]:
        """Forget these nodes, losing their grants; return the nodes of those that were held."""
        paths, noticed = list(paths), clock()
        lost: list[str] = []
        with self.guard:
            for path in paths:
                own = self._nodes.pop(path, None)
                if own is None or own.grant is None:
                    continue
                if own.grant._lose(reason, noticed=noticed, lease_end=self._lease.end):
                    lost += own.grant._paths
                    log.warning("%s lost: %s", own.grant, reason.value)
            for path in set(lost).difference(paths):
                del self._nodes[path]
        if reason is LossReason.NODE_DELETED:
            for path in lost if len(lost) > 1 else ():
                self.sweep(path)  # a grant on several nodes is lost with any of them
        return lost

    def _turn(self) -> float | None:
        """Do what is due; return when to be called again (see ``Worker``)."""
        now = clock()
        connected = self.connected
        with self.guard:
            self._lapse()
            parked: list[Attempt[Any]] = []
            if connected:
                parked, self._parked = self._parked, []
            # A heartbeat proves nothing for a claim whose node is gone: it is to look for it.
            waiting = self._awaiting_lease
            orphans = [attempt for node, attempt in waiting if node not in self._nodes]
            self._awaiting_lease = [each for each in waiting if each[0] in self._nodes]
            limit = self.timeout / 3
            hung = self._unanswered is not None and now - self._unanswered >= limit
            if hung:
                self._unanswered = None
        if hung and self._handler is not None:
            log.warning("no answer to a heartbeat in %.3g s: trying another server", limit)
            self._handler.drop()
        for attempt in parked:
            attempt.resume()
        for attempt in orphans:
            attempt.lease_live()
        if self.client.client_state in {KeeperState.CLOSED, KeeperState.AUTH_FAILED}:
            self._idle = True
            self._on_gone(LossReason.CLIENT_CLOSED)  # for those that came in meanwhile
            return None
        with self.guard:
            self._idle = not self._nodes and now - self._used_at > self.timeout
            if self._idle and not self._attempts:
                # What closes a client that has lost its session already is not told of.
                return math.inf if connected else None
            interval = self.timeout / HEARTBEATS
            beat = now >= self._beat_at + interval
            if beat:
                self._beat_at = now
            due = self._beat_at + interval
            if self._lease.end > now:
                due = min(due, self._lease.end)
        if beat and connected and not hung and self._unanswered is None:
            self._beat(now)
        return due

    def _beat(self, now: float) -> None:
        """Send a heartbeat: it proves that the session was alive when it was sent."""
        with self.guard:
            fresh = [
                path
                for path, own in self._nodes.items()
                if own.grant is not None and not own.watched
            ][:_NEW_WATCHES]
            claimed = (node for node, _ in self._awaiting_lease if node in self._nodes)
            some = next(claimed, next(iter(self._nodes), None))
            if some is not None:
                self._nodes[some] = self._nodes.pop(some)  # another one's turn next time
            self._unanswered = now
        proof: Request = Sync("/") if some is None else Check(some)
        watches = tuple(Watch(path) for path in fresh)
        self._store.fly((proof, *watches), partial(self._beaten, now, some, watches))

    def _beaten(
        self, sent: float, some: str | None, watches: tuple[Watch, ...], results: Results
    ) -> None:
        refused: list[Attempt[Any]] = []
        with self.guard:
            self._unanswered = None
            proof, *nodes = results
            if proof is None:
                self._lease.touched(sent, clock())
                self._readable |= some is not None
            elif proof.why is Failure.MISSING and some is not None:
                self._lose([some], LossReason.NODE_DELETED)
            elif proof.why is Failure.DENIED:
                log.error("ACLs refuse the heartbeats, so that no lease can last: %s", proof.error)
                self._readable = False
                waiting = self._awaiting_lease
                refused = [attempt for node, attempt in waiting if node == some]
                self._awaiting_lease = [each for each in waiting if each[0] != some]
            elif proof.why is not Failure.DROPPED:
                log.error("a heartbeat was refused, so that the lease will end: %s", proof.error)
            for watch, node in zip(watches, nodes, strict=True):
                if isinstance(node, Node) and watch.path in self._nodes:
                    own = self._nodes[watch.path]
                    own.watched = True
                    asked = nodedata.parse(node.data).asked
                    if asked is not None and own.grant is not None:
                        own.grant._release_requested(asked)
                elif isinstance(node, Failed) and node.why is Failure.MISSING:
                    self._lose([watch.path], LossReason.NODE_DELETED)
        for attempt in refused:
            attempt.refused(proof.error)
        if proof is None and some is not None:
            self._proved(sent)

    # The rest.

    def _delete(self, node: str) -> Attempt[None]:
        path = node.rpartition("/")[0]
        return self._run(lambda: steps.delete(path, node))

    def _run(self, make: Callable[[], Recipe[None]]) -> Attempt[None]:
        return self.attempt(make(), recover=make).start()

    def _unwatch(self, attempt: Attempt[Any]) -> None:
        for path in self._watching.pop(attempt, ()):
            self._watchers[path].discard(attempt)
            if not self._watchers[path]:
                del self._watchers[path]

    def after_fork(self) -> None:
        """Start over in a forked child, where no thread of this runs and any lock may be held."""
        self._forked = True
        self.guard = threading.RLock()
        for own in self._nodes.values():
            if own.grant is not None:
                own.grant._forget_waiters()


def no_answer(path: str, limit: float) -> NoAnswer:
    """Return the error to raise when a query was not answered in time."""
    return NoAnswer(f"{path}: ZooKeeper did not answer within {limit:g} s", path=path)


_sessions: weakref.WeakKeyDictionary[Client, weakref.ref[Session]] = weakref.WeakKeyDictionary()
_opening = threading.Lock()


def session_of(
    client: Client,
    session_timeout: float | None = None,
    lease_fraction: float | None = None,
) -> Session:
    """Return the session of this client, made when it is first asked for.

    Raises ``TypeError``, ``ValueError``, ``ClientUnusable`` for what cannot carry locks.
    """
    check_client(client)
    for name, value in (("session_timeout", session_timeout), ("lease_fraction", lease_fraction)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{name} must be a number, not {type(value).__name__}")
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be a positive number, not {value}")
    if lease_fraction is not None and not 0.3 <= lease_fraction <= 0.75:
        raise ValueError(f"lease_fraction must be in 0.3 … 0.75, not {lease_fraction}")
    with _opening:
        found = _sessions.get(client)
        session = found() if found is not None else None
        if session is None:
            session = Session(client, session_timeout, lease_fraction or DEFAULT_FRACTION)
            _sessions[client] = weakref.ref(session)
        elif session_timeout not in (None, session.terms[0]) or lease_fraction not in (
            None,
            session.terms[1],
        ):
            raise ValueError(
                "all locks of one client share one lease: this client's has "
                f"session_timeout={session.terms[0]} and lease_fraction={session.terms[1]}"
            )
        return session


def _after_fork() -> None:
    global _opening  # noqa: PLW0603
    _opening = threading.Lock()
    for found in list(_sessions.values()):
        session = found()
        if session is not None:
            session.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
