"""The heartbeats of a session, and what else is done in time."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from zklock._core.attempt import Attempt
from zklock._core.heartbeat import HUNG, LATE, DueHeartbeat, Heartbeat
from zklock._core.holdings import Holdings
from zklock._core.link import Flight, Link
from zklock._core.nodes import OwnNode, asked_of
from zklock._core.timers import Job, Timers
from zklock._core.watches import Watchers
from zklock._core.wire import Codec
from zklock._ground.copy_error import copy_error
from zklock._ground.loss import LossReason
from zklock._recipes import steps
from zklock._recipes.effects import Check, Exists, Failed, Failure, Recipe, Request, Sync
from zklock._telemetry import subscriptions
from zklock._telemetry.events import HeartbeatAnswered, HeartbeatLate, HeartbeatSent, Proof

if TYPE_CHECKING:
    from zklock._core.ports import Shell

log = logging.getLogger("zklock")

AT_ONCE = 200
"""How many go on after a lost connection before an answer is waited for.

ZooKeeper answers in order. If all went on at once, the answer to a heartbeat would come after the
answers to all of them: too late, where there are thousands.
"""

LATENESS, LATE_TIMEOUTS = 60.0, 10
"""For how long a lost create may be carried out late: these seconds, or so many session timeouts.

The leader gives up a follower that is silent for ``syncLimit`` ticks (5 or 10, as a rule), and with
it what the follower has not delivered. The leader itself may be silent for as long. The shortest
session timeout that a server grants by default is two ticks.
"""


class Pulse(Holdings):
    """Keeps the session alive for the attempts on it, and proves that it lives for the grants."""

    link: Link
    attempt: Callable[..., Attempt[Any]]

    def __init__(self, shell: Shell) -> None:
        super().__init__(shell)
        self.codec = Codec("", lambda: None, lambda: self._id or 0)
        self.places: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()  # see ``keep``
        self._heartbeat = Heartbeat()
        self._watchers = Watchers()
        self._timers = Timers()
        self._attempts: dict[Attempt[Any], None] = {}
        self._resuming: deque[Attempt[Any]] = deque()  # they go on behind the next heartbeat
        self._awaiting_lease: dict[Attempt[Any], str] = {}  # to the node that each claims
        # By path: those that nobody looks for yet.
        self._abandoned_creates: dict[str, list[str]] = {}
        self._stalled = False  # an answer is late, and kept locks wait for it
        self._turned_at = -math.inf

    # For any thread.

    @property
    def connected(self) -> bool:
        """Whether requests go out at once; a read-only server does not count."""
        return self.link.serving

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

    def pause(self, seconds: float, job: Job) -> Callable[[], object]:
        """Run the job after ``seconds`` on the client's own thread; return what calls it off."""
        due = self.now() + seconds
        call_off = self._timers.at(due, job)
        self.shell.due(due)
        return call_off

    # In steps.

    def enter(self, attempt: Attempt[Any]) -> None:
        """Report lost sessions and connections to the attempt, until it leaves."""
        self._attempts[attempt] = None

    def leave(self, attempt: Attempt[Any]) -> None:
        """Forget the attempt. Repeatable."""
        self._attempts.pop(attempt, None)
        self._awaiting_lease.pop(attempt, None)
        self._watchers.drop(attempt)

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

    def _each_place(self) -> list[Any]:
        """Return the places. Other threads may drop some: to copy the references is one step."""
        return [place for each in self.places.valuerefs() if (place := each()) is not None]

    def touched(self, sent: float) -> None:
        """Note a ping of kazoo's that was answered."""
        self._lease.touched(sent, self.now())

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
        self._ask((request,), partial(self._on_heartbeat, number))
        for path, own, watches in self._nodes.take_unwatched():
            self._ask(watches, partial(self._watched, path, own))

    def _ask(self, batch: tuple[Request, ...], done: Callable[[Flight], object]) -> None:
        self.link.ask(self.codec, Flight(batch, self.now(), done), len(batch))

    def _watched(self, path: str, own: OwnNode, flight: Flight) -> None:
        """Note what was read for a grant, or that its node is gone."""
        results = flight.results
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

    def _on_heartbeat(self, number: int, flight: Flight) -> None:
        sent, (request,), (answer,) = flight.sent, flight.requests, flight.results
        failed = answer if isinstance(answer, Failed) else None
        some = request.path if isinstance(request, Check | Exists) else None
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
