"""Faults that the simulator has to find: a line or two of the code, bent.

Each names the kinds of plans and of faults that can show it. ``detect`` draws plans of these until
something does not hold.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from tests.unit.bends import Bend, bent
from tests.unit.simulator.plans import (
    AGAIN,
    FAULTS,
    FORBID,
    INTERRUPT,
    KEPT,
    LATE,
    START_AGAIN,
    WIDER_FAULTS,
    Plan,
    kept_plan_of,
    plan_of,
)
from tests.unit.simulator.system import Violation
from tests.unit.simulator.world import World
from zklock._core.attempt import Attempt
from zklock._core.keep import Place
from zklock._core.lease import Lease
from zklock._core.session import Session
from zklock._core.watches import Watchers
from zklock._election import base as election_base
from zklock._election.candidate import Candidacy
from zklock._election.threads import LeaderElection, Leadership
from zklock._locks import base, kinds, multi_base
from zklock._locks.multi_base import MultiBase, MultiGrantBase
from zklock._pool import nodes as pool_nodes
from zklock._pool.own_threads import OwnThreads
from zklock._pool.slot import Slot
from zklock._pool.threads import WorkerPool
from zklock._pool.worker import Worker
from zklock._recipes import abandoned, lock, names, semaphore, steps
from zklock._shell.callback_executor import CallbackExecutor
from zklock._shell.handler import Handler


class Shown:
    """How wrong code shows: a pattern of what is then said, and the plans: their faults and kind.

    ``quick``: whether it is looked for in each run of the tests; ``most``: in how many plans.
    """

    def __init__(
        self,
        found: str,
        *faults: str,
        kind: str = "lock",
        troubles: int = 3,
        quick: bool = True,
        delay: float = 0.0,
        most: int = 60,
    ) -> None:
        assert set(faults) <= {*FAULTS, *WIDER_FAULTS, INTERRUPT, AGAIN}
        self.found = found
        self.quick = quick
        self.most = most
        self._kind = kind
        self._changes: dict[str, Any] = {
            "faults": faults,
            "troubles": troubles if faults else 0,
            "delay": delay,
        }

    def plan(self, seed: int) -> Plan:
        """Draw a plan that can show it."""
        plan = kept_plan_of(seed) if self._kind == KEPT else plan_of(seed, (self._kind,))
        return replace(plan, **self._changes)


class Mutation:
    """Bent code, and how it shows."""

    def __init__(self, shown: Shown, *bends: Bend) -> None:
        self.shown = shown
        self.bends = bends

    def put_in(self) -> AbstractContextManager[None]:
        """Have the bent code run."""
        return bent(self.bends, _HOMES)


MUTATIONS = {
    "the lease keeps the first timeout of its session": Mutation(
        Shown("believed in", "restart shorter"),
        Bend(Lease, "negotiated", "timeout < self.timeout", "False"),
    ),
    "the lease runs for the whole timeout": Mutation(
        Shown("believed in", "cut off", "freeze", quick=False),
        Bend(
            Lease,
            "proved",
            "min(sent + self.fraction * self.timeout, known + (1 - _SLOW) * self.timeout)",
            "sent + 1.25 * self.timeout",
        ),
    ),
    "nobody ends the lease": Mutation(
        Shown("nobody notices", "cut off", troubles=8),
        Bend(Session, "tick", "due = min(due, self._lease.end)", "pass"),
        Bend(Session, "_lapse", "self._lease.end <= self.now()", "False"),
    ),
    "lost callbacks need a new thread each": Mutation(
        Shown("nobody is told", "no threads", "expire", troubles=6),
        Bend(
            CallbackExecutor,
            "run",
            "self._queue.put(calls)",
            "for call in calls:\n"
            "    with contextlib.suppress(RuntimeError):\n"
            "        threads.start(call, 'call')\n"
            "return",
        ),
    ),
    "a lost grant is not told": Mutation(
        Shown("nobody is told", "cut off", quick=False),
        Bend(Session, "_lose_one", "self.post(grant._tell_loss)", "pass"),
    ),
    "a node is kept when its lease has lapsed": Mutation(
        Shown("left", "cut off", "freeze", quick=False),
        Bend(Session, "_lose_one", "reason is LossReason.LEASE_LAPSED or several", "several"),
    ),
    "ThrottledOp is taken for the answer to a deletion": Mutation(
        Shown("left", "throttle", quick=False),
        Bend(
            steps,
            "delete",
            "result.why is Failure.MISSING",
            "result.why is Failure.MISSING or result.busy",
        ),
        Bend(Attempt, "answered", "isinstance(result, Failed) and result.busy", "False"),
    ),
    "an unanswered deletion is taken for done": Mutation(
        Shown("left", "lose", "cut off", quick=False),
        Bend(
            steps,
            "delete",
            "result.why is Failure.MISSING",
            "result.why in (Failure.MISSING, Failure.DROPPED)",
        ),
    ),
    "an unanswered create is taken for not done": Mutation(
        Shown("left", "lose", quick=False),
        Bend(lock, "enter", "entry.node = yield from find(entry.path, entry.uuid)", "pass"),
    ),
    "a create that may come late is not looked for again": Mutation(
        Shown("left", *LATE, troubles=5, quick=False), Bend(steps, "find", "not found", "False")
    ),
    "a create that may come late is looked for once more": Mutation(
        Shown("left", *LATE, troubles=5, quick=False),
        Bend(steps, "reap_late_creates", "not uuids or age >= seconds()", "True"),
    ),
    "a create that has come late is not deleted": Mutation(
        Shown("left", *LATE, troubles=5, quick=False),
        Bend(steps, "reap_late_creates", "yield from delete(path, node)", "pass"),
    ),
    "who gives up leaves its node": Mutation(
        Shown("left", "cancel"), Bend(lock, "acquire", "yield from leave(entry)\nraise", "raise")
    ),
    "a lost watch is not placed again": Mutation(
        Shown("left waiting", "cut", "restart", quick=False),
        Bend(Attempt, "again", "self.watched(None, deleted=False)", "pass"),
    ),
    "its turn comes when its blocker goes": Mutation(
        Shown("stands before it", "cancel", "expire", troubles=6),
        Bend(
            lock,
            "_take_turn",
            "decide(standing, event)",
            "Decision.TAKE_TURN if event is Wakeup.BLOCKER_GONE else decide(standing, event)",
        ),
    ),
    "what waits for the connection is forgotten": Mutation(
        Shown("left waiting", "cut off", "restart"),
        Bend(Attempt, "again", "self._take(self._asked)", "pass"),
    ),
    "a stopped client believes until it is answered": Mutation(
        Shown("believed in", "stop client", troubles=2),
        Bend(Session, "end", "list(self._nodes)", "()"),
    ),
    "a server that hangs is kept": Mutation(
        Shown(
            "is lost", "pause server", kind="semaphore", troubles=1, quick=False, most=1000
        ),  # a holder must be on that server, and hold until kazoo gives it up, too
        Bend(Session, "tick", "self.shell.drop()", "pass"),
    ),
    "a re-entrant lock forgets that it was lost": Mutation(
        Shown("another grant", "expire", "freeze", kind="re-entrant", troubles=6),
        Bend(
            kinds.Reentrant,
            "_again",
            "mine.grants[-1].check()",
            "return None if not mine.grants[-1].held else mine.grants[-1]",
        ),
    ),
    "a semaphore with permits left is refused": Mutation(
        Shown("enough permits", kind="burst"),
        Bend(
            semaphore.PermitEntry,
            "wait_behind",
            "assert self.node is not None",
            "return Wakeup.UNWATCHED",
        ),
    ),
    "a caller waits until it has withdrawn": Mutation(
        Shown("too long", "cut off", "pause server"),
        Bend(
            base,
            "give_up_or_result",
            "if attempt.cancel():\n    return None",
            "await front.finished(attempt, None, abandon_made)\nreturn None",
        ),
    ),
    "a reader passes a writer": Mutation(
        Shown("stands before it", kind="read and write"),
        Bend(
            names, "blocks", "not (before is Kind.READ and me is Kind.READ)", "me is not Kind.READ"
        ),
    ),
    "a leader is not told to stop": Mutation(
        Shown("nobody is told", "expire", "cut off", kind="election"),
        Bend(
            Leadership,
            "_set_lost",
            "self.should_stop.set()\nsuper()._set_lost()",
            "self.lost.set()",
        ),
    ),
    "a semaphore counts one permit too many": Mutation(
        Shown("permits", kind="semaphore"),
        Bend(
            semaphore.PermitEntry,
            "turn",
            "len(listing.names) <= self._kept.limit",
            "len(listing.names) <= self._kept.limit + 1",
        ),
    ),
    "a token has no epoch": Mutation(
        Shown("no higher token"),
        Bend(
            lock, "_take_turn", "FencingToken(epoch, me.sequence)", "FencingToken(0, me.sequence)"
        ),
    ),
    "a grant needs no lease": Mutation(
        Shown("without a lease", "freeze", "cut off", troubles=5),
        Bend(Session, "may_grant", "self._live()", "True"),
    ),
    "a MultiLock acquires in the order given": Mutation(
        Shown("left waiting", kind="several"),
        Bend(MultiBase, "__init__", "sorted(found, key=full_path)", "found"),
    ),
    "a MultiLock that is not granted keeps what it has": Mutation(
        Shown("has not got all", kind="several"),
        Bend(
            MultiBase,
            "_acquire",
            "self._undo(call)\nif not complete:\n    return None",
            "if not complete:\n    return None",
        ),
    ),
    "an error of a MultiLock leaves it with what it has": Mutation(
        Shown("has not got all", "cancel", kind="several"),
        Bend(
            MultiBase,
            "_acquire",
            "try:\n    self._undo(call)\nfinally:\n    self._undo(call)\nraise",
            "raise",
        ),
    ),
    "a MultiLock does not look back at what it has": Mutation(
        Shown("was lost before", "expire", "delete node", kind="several", troubles=6, quick=False),
        Bend(
            MultiBase,
            "_acquire",
            "complete and all(each.held for each in call.grants.values())",
            "complete",
        ),
    ),
    "the loss of one of several locks is not told": Mutation(
        Shown("a part of", "expire", kind="several"),
        Bend(MultiGrantBase, "__init__", "grant._call_when_lost(self._lose)", "pass"),
    ),
    "a MultiLock gives back the first of its locks alone": Mutation(
        Shown("has given all back", kind="several"),
        Bend(MultiGrantBase, "_give_all_back", "self._left = self._left[1:]", "self._left = ()"),
    ),
    "a semaphore's waiter does not give back what it has gathered": Mutation(
        Shown("left", "cancel", kind="semaphore"),
        Bend(
            semaphore.PermitEntry,
            "before_leaving",
            "yield from lock_recipe.leave(self._leases[-1])",
            "yield from ()",
        ),
    ),
    "a shard is given back while it is worked on": Mutation(
        Shown("given back", kind="pool"), Bend(Slot, "_look", "not self._running", "True")
    ),
    "the handler of a lost shard is not told": Mutation(
        Shown("not told that the shard is lost", "expire", kind="pool"),
        Bend(Slot, "_take_loss", "self._task.lose()", "pass"),
        Bend(Slot, "_end", "self._task.tell()", "pass"),
    ),
    "a handler that was refused runs later": Mutation(
        Shown("given back", "no threads", kind="pool"),
        Bend(
            OwnThreads,
            "_start",
            "threads.begin(thread)",
            "try:\n    threads.begin(thread)\n"
            "except RuntimeError:\n    self._waiting.append(call)\n    raise",
        ),
    ),
    "a shard whose handler fails is left alone": Mutation(
        Shown("nobody handles", kind="pool", quick=False),
        Bend(Slot, "_handled", "self._slots.callbacks.again", "False"),
    ),
    "a worker does not join again after its session": Mutation(
        Shown("come to rest", "expire", kind="pool", quick=False),
        Bend(
            pool_nodes,
            "_keep_registered",
            "worker.forget()\ntell(b'', 0, True)\n"
            "if replaced.final is not None:\n    raise replaced.final from None",
            "return",
        ),
    ),
    "a worker that leaves forgets a node": Mutation(
        Shown("left behind", kind="pool"),
        Bend(pool_nodes, "_clear", "(worker.assigned, worker.owned)", "(worker.assigned,)"),
    ),
    "a shard that is given up is not revoked": Mutation(
        Shown("was not revoked", kind="pool"), Bend(Slot, "_end", "self._revoke()", "pass")
    ),
    "a writer is let in by one that has become a reader": Mutation(
        Shown("stands before it", kind="read and write", quick=False),
        Bend(lock, "_take_turn", "me.kind is names.Kind.READ", "True"),
    ),
    "a request to release reaches whoever leads": Mutation(
        Shown("nobody has asked", "expire", kind="election"),
        Bend(Candidacy, "asked_by", "name in asked", "asked"),
    ),
    "a leader does not look who is asked later": Mutation(
        Shown("is not told", kind="election"),
        Bend(
            Session,
            "_beside",
            "own is not None and grant._terms.asked_by is not None",
            "own is None",
        ),
    ),
    "telemetry is not told of a release": Mutation(
        Shown("no behaviour of the model"),
        Bend(Session, "release_grant", "emit.released(grant, self.now())", "pass"),
    ),
    "an interrupted acquire leaves its contender": Mutation(
        Shown("holds|left", INTERRUPT), Bend(base, "undo", "attempt.cancel()", "True")
    ),
    "a grant on its way to an interrupted caller is kept": Mutation(
        Shown("holds", INTERRUPT, quick=False),
        Bend(
            base,
            "undo",
            "attempt.when_done(partial(abandon_made, attempt))\nabandon_made(attempt)",
            "pass",
        ),
    ),
    "an interrupted release is not carried out": Mutation(
        Shown("left", INTERRUPT), Bend(Session, "finish", "self.release_grant(grant)", "pass")
    ),
    "what an interrupted release has ended is held": Mutation(
        Shown("this thread holds", INTERRUPT, kind="read and write", quick=False),
        Bend(Session, "grants", "grant.held", "True"),
    ),
    "a term that an interrupt has kept from its thread is not given back": Mutation(
        Shown("left", "no threads", INTERRUPT, kind="election"),
        Bend(LeaderElection, "_undo", "term.end()", "term.over.come()"),
    ),
    "an interrupted lead is not told to stop": Mutation(
        Shown("interrupted, took", INTERRUPT, kind="election"),
        Bend(LeaderElection, "_undo", "term.leadership.resign()", "pass"),
    ),
    "a worker that was interrupted as it joined stays": Mutation(
        Shown("come to rest|left behind", INTERRUPT, kind="pool", quick=False),
        Bend(Worker, "give_up", "self.depart()", "pass"),
    ),
    "a second interrupt leaves a MultiLock with a part": Mutation(
        Shown("holds", AGAIN, kind="several"),
        Bend(
            MultiBase,
            "_acquire",
            "try:\n    self._undo(call)\nfinally:\n    self._undo(call)",
            "self._undo(call)",
        ),
    ),
    "a second interrupt has a worker join that has not started": Mutation(
        Shown("come to rest|left behind", AGAIN, kind="pool", quick=False),
        Bend(
            WorkerPool,
            "_start_by",
            "try:\n    self._worker.give_up(call)\nfinally:\n    self._worker.give_up(call)",
            "self._worker.give_up(call)",
        ),
    ),
    "a release leaves its mark": Mutation(
        Shown("says that abandoned is", "expire", kind="tracked"),
        Bend(
            abandoned.MarkedEntry,
            "departure",
            "FREE if self.granted else self._found",
            "self._found",
        ),
    ),
    "who queues again removes the mark of the holder": Mutation(
        Shown("its mark is not", "slow", "expire", kind="tracked", quick=False, most=240),
        Bend(abandoned.MarkedEntry, "departure", "self._marked != node", "self._mark is None"),
    ),
    "who gives up leaves its own mark": Mutation(
        Shown("says that abandoned is", "slow", "cancel", kind="tracked", quick=False),
        Bend(abandoned.MarkedEntry, "departure", "self._marked != node", "not self.granted"),
    ),
    "who has waited for one abandoned grant does not wait for the next": Mutation(
        Shown(
            "after one that was abandoned", "slow", "expire", kind="tracked", troubles=6, delay=1.0
        ),
        Bend(
            abandoned.MarkedEntry,
            "turn",
            "self._found not in (FREE, self._waited)",
            "self._found != FREE and self._waited == FREE",
        ),
    ),
    "nobody waits after an abandoned grant": Mutation(
        Shown("after one that was abandoned", "expire", kind="tracked", delay=1.0),
        Bend(abandoned.MarkedEntry, "turn", "yield Pause(left)", "pass"),
    ),
    "the delay is over where its beginning was noted": Mutation(
        Shown(
            "after one that was abandoned",
            "expire",
            "cancel",
            kind="tracked",
            troubles=6,
            delay=1.0,
            quick=False,
        ),
        Bend(abandoned.MarkedEntry, "_delay", "return self.delay - ago", "return 0.0"),
    ),
    "a contender stays where its mark may not be removed": Mutation(
        Shown("left", FORBID, kind="tracked", troubles=6, quick=False),
        Bend(steps, "delete", "result.node is not None", "False"),
    ),
    "a tidy release removes the path whatever is marked there": Mutation(
        Shown(
            "says that abandoned is|in the end, and was it abandoned",
            "slow",
            "delete node",
            kind="tracked",
            troubles=20,
            quick=False,
            most=240,
        ),
        Bend(steps, "delete", "empties and not marked", "empties"),
    ),
    "the thread of a session does not start again": Mutation(
        Shown("left waiting", START_AGAIN),
        Bend(
            Handler,
            "_end_driver",
            "self._driver, self._ring = None, nothing",
            "self._ring = nothing",
        ),
    ),
    "a client that was started again is still over": Mutation(
        Shown("ended by ClientClosed", START_AGAIN, troubles=6),
        Bend(
            Handler,
            "_drive",
            "self._stopping, self._driving, self.session.final = False, True, None",
            "self._stopping, self._driving = False, True",
        ),
        Bend(Session, "connected_as", "self.final = None", "pass"),
    ),
    "who is refused leaves its contender": Mutation(
        Shown("left", FORBID, troubles=6),
        Bend(
            lock,
            "acquire",
            "yield from leave(entry)\nraise",
            "try:\n    raise\nexcept AccessDenied:\n    raise\n"
            "except Exception:\n    yield from leave(entry)\n    raise",
        ),
    ),
    "a contender stays where a permit is refused": Mutation(
        Shown("left", FORBID, kind="semaphore", troubles=20, quick=False),
        Bend(lock, "enter", "created.why is Failure.DENIED", "False"),
        Bend(lock, "_leave", "denied = error", "raise"),
    ),
    "nobody looks again without an event": Mutation(
        Shown("left waiting", FORBID, troubles=6, quick=False),
        Bend(Watchers, "take_turns", "len(self._paths) * seconds / LOOK_AGAIN", "0"),
    ),
    "who waits for a lease is not told that it is refused": Mutation(
        Shown("left waiting", FORBID, troubles=6),
        Bend(Session, "_on_heartbeat", "attempt.granted(copy_error(failed.error))", "pass"),
    ),
    "an idle grant is used when its lease has lapsed": Mutation(
        Shown(
            "without a lease|a node that is gone|left waiting",
            "cut off",
            "freeze",
            kind=KEPT,
            troubles=6,
            quick=False,
        ),
        Bend(Place, "_take", "self.session.may_grant(kept.claim)", "True"),
        Bend(Session, "_lose_one", "grant._place is not None", "False"),
    ),
    "a kept node is used before the queue is watched": Mutation(
        Shown("somebody else waits", kind=KEPT),
        Bend(
            Place,
            "_take",
            "kept.sure and self.session.prompt and self.session.may_grant(kept.claim)",
            "self.session.may_grant(kept.claim)",
        ),
    ),
    "a stranger that is seen while the lock is in use is forgotten": Mutation(
        Shown("somebody waits|somebody else waits", kind=KEPT),
        Bend(Place, "_seen", "kept.asked = True", "kept.asked = kept.idle is not None"),
    ),
    "an idle node is used though a stranger was seen": Mutation(
        Shown("somebody waits|somebody else waits", "cancel", kind=KEPT, troubles=4, quick=False),
        Bend(
            Place,
            "_give_back",
            "kept.asked or (self._skip and not kept.watched)",
            "(self._skip and not kept.watched)",
        ),
        Bend(Place, "_go_on", "kept.asked", "kept.asked and not self._hand(kept)"),
    ),
    "a loss does not forget the kept node": Mutation(
        Shown(
            "was lost|is over|is gone",
            "expire",
            "delete node",
            kind=KEPT,
            troubles=6,
            most=400,
            quick=False,
        ),
        Bend(Place, "lose", "self._forget(kept)", "kept.idle = self.session.now()"),
        Bend(
            Session,
            "may_grant",
            "there and self._readable and self._live()",
            "self._readable and self._live()",
        ),
    ),
    "an idle node stays for as long as another lock keeps it": Mutation(
        Shown("stays for too long", kind=KEPT, quick=False),
        Bend(Place, "_watch_then_set_timer", "end < kept.timed", "kept.timed == math.inf"),
    ),
}
"""What is wrong in each is said by its name."""

_HOMES = (steps, lock, semaphore, pool_nodes, multi_base, election_base)


@dataclass(frozen=True)
class Detected:
    """What was found, after how many plans and steps."""

    seed: int
    steps: int
    violation: Violation


def detect(mutation: Mutation) -> Detected | None:
    """Play plans with bent code until something does not hold."""
    steps_taken = 0
    with mutation.put_in():
        for seed in range(mutation.shown.most):
            world = World(seed, mutation.shown.plan(seed))
            try:
                world.run()
            except Violation as violation:
                return Detected(seed, steps_taken + world.system.steps, violation)
            steps_taken += world.system.steps
    return None
