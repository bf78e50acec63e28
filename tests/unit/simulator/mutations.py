"""Faults that the simulator has to find: a line or two of the code, bent.

Each names the kinds of plans and of faults that can show it. ``detect`` draws plans of these until
something does not hold.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

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
from tests.unit.simulator.system import MOST_STEPS, Violation
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


class Mutation:
    """Bent code, and the plans that can show it: their kind, and their faults.

    ``found`` is a pattern of what is then said, ``quick`` whether it is looked for in each run of
    the tests, ``most`` in how many plans. A plan with more than ``steps`` goes on and on.
    """

    def __init__(
        self,
        *bends: Bend,
        kind: str = "lock",
        faults: tuple[str, ...] = (),
        troubles: int = 3,
        found: str,
        quick: bool = True,
        delay: float = 0.0,
        steps: int = MOST_STEPS,
        most: int = 60,
    ) -> None:
        self.bends = bends
        self.found = found
        self.quick = quick
        self.steps = steps
        self.most = most
        self._kind = kind
        self._faults = faults
        self._troubles = troubles if faults else 0
        self._delay = delay

    def put_in(self) -> AbstractContextManager[None]:
        """Have the bent code run."""
        return bent(self.bends, _HOMES)

    def plan(self, seed: int) -> Plan:
        """Draw a plan that can show it."""
        assert set(self._faults) <= {*FAULTS, *WIDER_FAULTS, INTERRUPT, AGAIN}
        return replace(
            kept_plan_of(seed) if self._kind == KEPT else plan_of(seed, (self._kind,)),
            faults=self._faults,
            troubles=self._troubles,
            delay=self._delay,
        )


MUTATIONS = {
    "the lease keeps the first timeout of its session": Mutation(
        Bend(Lease, "negotiated", "timeout < self.timeout", "False"),
        faults=("restart shorter",),
        found="believed in",
    ),
    "the lease runs for the whole timeout": Mutation(
        Bend(
            Lease,
            "proved",
            "min(sent + self.fraction * self.timeout, known + (1 - _SLOW) * self.timeout)",
            "sent + 1.25 * self.timeout",
        ),
        faults=("cut off", "freeze"),
        found="believed in",
        quick=False,
    ),
    "nobody ends the lease": Mutation(
        Bend(Session, "tick", "due = min(due, self._lease.end)", "pass"),
        Bend(Session, "_lapse", "self._lease.end <= self.now()", "False"),
        faults=("cut off",),
        troubles=8,
        found="nobody notices",
    ),
    "lost callbacks need a new thread each": Mutation(
        Bend(
            CallbackExecutor,
            "run",
            "self._queue.put(calls)",
            "for call in calls:\n"
            "    with contextlib.suppress(RuntimeError):\n"
            "        threads.start(call, 'call')\n"
            "return",
        ),
        faults=("no threads", "expire"),
        troubles=6,
        found="nobody is told",
    ),
    "a lost grant is not told": Mutation(
        Bend(Session, "_lose_one", "self.post(grant._tell_loss)", "pass"),
        faults=("cut off",),
        found="nobody is told",
        quick=False,
    ),
    "a node is kept when its lease has lapsed": Mutation(
        Bend(Session, "_lose_one", "reason is LossReason.LEASE_LAPSED or several", "several"),
        faults=("cut off", "freeze"),
        found="left",
        quick=False,
    ),
    "ThrottledOp is taken for the answer to a deletion": Mutation(
        Bend(
            steps,
            "delete",
            "result.why is Failure.MISSING",
            "result.why is Failure.MISSING or result.busy",
        ),
        Bend(Attempt, "answered", "isinstance(result, Failed) and result.busy", "False"),
        faults=("throttle",),
        found="left",
        quick=False,
    ),
    "an unanswered deletion is taken for done": Mutation(
        Bend(
            steps,
            "delete",
            "result.why is Failure.MISSING",
            "result.why in (Failure.MISSING, Failure.DROPPED)",
        ),
        faults=("lose", "cut off"),
        found="left",
        quick=False,
    ),
    "an unanswered create is taken for not done": Mutation(
        Bend(lock, "enter", "entry.node = yield from find(entry.path, entry.uuid)", "pass"),
        faults=("lose",),
        found="left",
        quick=False,
    ),
    "a create that may come late is not looked for again": Mutation(
        Bend(steps, "find", "not found", "False"),
        faults=LATE,
        troubles=5,
        found="left",
        quick=False,
    ),
    "a create that may come late is looked for once more": Mutation(
        Bend(steps, "reap_late_creates", "not uuids or age >= seconds()", "True"),
        faults=LATE,
        troubles=5,
        found="left",
        quick=False,
    ),
    "a create that has come late is not deleted": Mutation(
        Bend(steps, "reap_late_creates", "yield from delete(path, node)", "pass"),
        faults=LATE,
        troubles=5,
        found="left",
        quick=False,
    ),
    "who gives up leaves its node": Mutation(
        Bend(lock, "acquire", "yield from leave(entry)\nraise", "raise"),
        faults=("cancel",),
        found="left",
    ),
    "a lost watch is not placed again": Mutation(
        Bend(Attempt, "again", "self.watched(None, deleted=False)", "pass"),
        faults=("cut", "restart"),
        found="left waiting",
        quick=False,
    ),
    "its turn comes when its blocker goes": Mutation(
        Bend(
            lock,
            "_take_turn",
            "decide(standing, event)",
            "Decision.TAKE_TURN if event is Wakeup.BLOCKER_GONE else decide(standing, event)",
        ),
        faults=("cancel", "expire"),
        troubles=6,
        found="stands before it",
    ),
    "what waits for the connection is forgotten": Mutation(
        Bend(Attempt, "again", "self._send(self._asked)", "pass"),
        faults=("cut off", "restart"),
        found="left waiting",
    ),
    "a stopped client believes until it is answered": Mutation(
        Bend(Session, "end", "list(self._nodes)", "()"),
        faults=("stop client",),
        troubles=2,
        found="believed in",
    ),
    "a server that hangs is kept": Mutation(
        Bend(Session, "tick", "self.shell.drop()", "pass"),
        kind="semaphore",
        faults=("pause server",),
        troubles=1,
        found="is lost",
        quick=False,
        most=1000,  # a holder must be on that server, and hold until kazoo gives it up, too
    ),
    "a re-entrant lock forgets that it was lost": Mutation(
        Bend(
            kinds.Reentrant,
            "_again",
            "mine.grants[-1].check()",
            "return None if not mine.grants[-1].held else mine.grants[-1]",
        ),
        kind="re-entrant",
        faults=("expire", "freeze"),
        troubles=6,
        found="another grant",
    ),
    "a semaphore with permits left is refused": Mutation(
        Bend(
            semaphore.PermitEntry,
            "wait_behind",
            "assert self.node is not None",
            "return Wakeup.UNWATCHED",
        ),
        kind="burst",
        found="enough permits",
    ),
    "a caller waits until it has withdrawn": Mutation(
        Bend(
            base,
            "give_up_or_result",
            "if attempt.cancel():\n    return None",
            "await front.finished(attempt, None, abandon_made)\nreturn None",
        ),
        faults=("cut off", "pause server"),
        found="too long",
    ),
    "a reader passes a writer": Mutation(
        Bend(
            names, "blocks", "not (before is Kind.READ and me is Kind.READ)", "me is not Kind.READ"
        ),
        kind="read and write",
        found="stands before it",
    ),
    "a leader is not told to stop": Mutation(
        Bend(
            Leadership,
            "_set_lost",
            "self.should_stop.set()\nsuper()._set_lost()",
            "self.lost.set()",
        ),
        kind="election",
        faults=("expire", "cut off"),
        found="nobody is told",
    ),
    "a semaphore counts one permit too many": Mutation(
        Bend(
            semaphore.PermitEntry,
            "turn",
            "len(listing.names) <= self._kept.limit",
            "len(listing.names) <= self._kept.limit + 1",
        ),
        kind="semaphore",
        found="permits",
    ),
    "a token has no epoch": Mutation(
        Bend(
            lock, "_take_turn", "FencingToken(epoch, me.sequence)", "FencingToken(0, me.sequence)"
        ),
        found="no higher token",
    ),
    "a grant needs no lease": Mutation(
        Bend(Session, "may_grant", "self._live()", "True"),
        faults=("freeze", "cut off"),
        troubles=5,
        found="without a lease",
    ),
    "a MultiLock acquires in the order given": Mutation(
        Bend(MultiBase, "__init__", "sorted(found, key=full_path)", "found"),
        kind="several",
        found="left waiting",
    ),
    "a MultiLock that is not granted keeps what it has": Mutation(
        Bend(
            MultiBase,
            "_acquire",
            "self._undo(call)\nif not complete:\n    return None",
            "if not complete:\n    return None",
        ),
        kind="several",
        found="has not got all",
    ),
    "an error of a MultiLock leaves it with what it has": Mutation(
        Bend(
            MultiBase,
            "_acquire",
            "try:\n    self._undo(call)\nfinally:\n    self._undo(call)\nraise",
            "raise",
        ),
        kind="several",
        faults=("cancel",),
        found="has not got all",
    ),
    "a MultiLock does not look back at what it has": Mutation(
        Bend(
            MultiBase,
            "_acquire",
            "complete and all(each.held for each in call.grants.values())",
            "complete",
        ),
        kind="several",
        faults=("expire", "delete node"),
        troubles=6,
        found="was lost before",
        quick=False,
    ),
    "the loss of one of several locks is not told": Mutation(
        Bend(MultiGrantBase, "__init__", "grant._call_when_lost(self._lose)", "pass"),
        kind="several",
        faults=("expire",),
        found="a part of",
    ),
    "a MultiLock gives back the first of its locks alone": Mutation(
        Bend(MultiGrantBase, "_give_all_back", "self._left = self._left[1:]", "self._left = ()"),
        kind="several",
        found="has given all back",
    ),
    "a semaphore's waiter does not give back what it has gathered": Mutation(
        Bend(
            semaphore.PermitEntry,
            "before_leaving",
            "yield from lock_recipe.leave(self._leases[-1])",
            "yield from ()",
        ),
        kind="semaphore",
        faults=("cancel",),
        found="left",
    ),
    "a shard is given back while it is worked on": Mutation(
        Bend(Slot, "_look", "not self._running", "True"), kind="pool", found="given back"
    ),
    "the handler of a lost shard is not told": Mutation(
        Bend(Slot, "_take_loss", "self._task.lose()", "pass"),
        Bend(Slot, "_end", "self._task.tell()", "pass"),
        kind="pool",
        faults=("expire",),
        found="not told that the shard is lost",
    ),
    "a handler that was refused runs later": Mutation(
        Bend(
            OwnThreads,
            "_start",
            "threads.begin(thread)",
            "try:\n    threads.begin(thread)\n"
            "except RuntimeError:\n    self._waiting.append(call)\n    raise",
        ),
        kind="pool",
        faults=("no threads",),
        found="given back",
    ),
    "a shard whose handler fails is left alone": Mutation(
        Bend(Slot, "_handled", "self._slots.callbacks.again", "False"),
        kind="pool",
        found="nobody handles",
        quick=False,
    ),
    "a worker does not join again after its session": Mutation(
        Bend(
            pool_nodes,
            "_keep_registered",
            "worker.forget()\ntell(b'', 0, True)\n"
            "if replaced.final is not None:\n    raise replaced.final from None",
            "return",
        ),
        kind="pool",
        faults=("expire",),
        found="come to rest",
        quick=False,
    ),
    "a worker that leaves forgets a node": Mutation(
        Bend(
            pool_nodes,
            "_clear",
            "(worker.assigned, worker.owned)",
            "(worker.assigned,)",
        ),
        kind="pool",
        found="left behind",
    ),
    "a shard that is given up is not revoked": Mutation(
        Bend(Slot, "_end", "self._revoke()", "pass"), kind="pool", found="was not revoked"
    ),
    "a writer is let in by one that has become a reader": Mutation(
        Bend(lock, "_take_turn", "me.kind is names.Kind.READ", "True"),
        kind="read and write",
        found="stands before it",
        quick=False,
    ),
    "a request to release reaches whoever leads": Mutation(
        Bend(Candidacy, "asked_by", "name in asked", "asked"),
        kind="election",
        faults=("expire",),
        found="nobody has asked",
    ),
    "a leader does not look who is asked later": Mutation(
        Bend(
            Session,
            "_beside",
            "own is not None and grant._terms.asked_by is not None",
            "own is None",
        ),
        kind="election",
        found="is not told",
    ),
    "telemetry is not told of a release": Mutation(
        Bend(Session, "release_grant", "emit.released(grant, self.now())", "pass"),
        found="no behaviour of the model",
    ),
    "an interrupted acquire leaves its contender": Mutation(
        Bend(base, "undo", "attempt.cancel()", "True"), faults=(INTERRUPT,), found="holds|left"
    ),
    "a grant on its way to an interrupted caller is kept": Mutation(
        Bend(
            base,
            "undo",
            "attempt.when_done(partial(abandon_made, attempt))\nabandon_made(attempt)",
            "pass",
        ),
        faults=(INTERRUPT,),
        found="holds",
        quick=False,
    ),
    "an interrupted release is not carried out": Mutation(
        Bend(Session, "finish", "self.release_grant(grant)", "pass"),
        faults=(INTERRUPT,),
        found="left",
    ),
    "what an interrupted release has ended is held": Mutation(
        Bend(Session, "grants", "grant.held", "True"),
        kind="read and write",
        faults=(INTERRUPT,),
        found="this thread holds",
        quick=False,
    ),
    "a term that an interrupt has kept from its thread is not given back": Mutation(
        Bend(LeaderElection, "_undo", "term.end()", "term.over.come()"),
        kind="election",
        faults=("no threads", INTERRUPT),
        found="left",
    ),
    "an interrupted lead is not told to stop": Mutation(
        Bend(LeaderElection, "_undo", "term.leadership.resign()", "pass"),
        kind="election",
        faults=(INTERRUPT,),
        found="interrupted, took",
    ),
    "a worker that was interrupted as it joined stays": Mutation(
        Bend(Worker, "give_up", "self.depart()", "pass"),
        kind="pool",
        faults=(INTERRUPT,),
        found="come to rest|left behind",
        quick=False,
    ),
    "a second interrupt leaves a MultiLock with a part": Mutation(
        Bend(
            MultiBase,
            "_acquire",
            "try:\n    self._undo(call)\nfinally:\n    self._undo(call)",
            "self._undo(call)",
        ),
        kind="several",
        faults=(AGAIN,),
        found="holds",
    ),
    "a second interrupt has a worker join that has not started": Mutation(
        Bend(
            WorkerPool,
            "_start_by",
            "try:\n    self._worker.give_up(call)\nfinally:\n    self._worker.give_up(call)",
            "self._worker.give_up(call)",
        ),
        kind="pool",
        faults=(AGAIN,),
        found="come to rest|left behind",
        quick=False,
    ),
    "a release leaves its mark": Mutation(
        Bend(
            abandoned.MarkedEntry,
            "departure",
            "FREE if self.granted else self._found",
            "self._found",
        ),
        kind="tracked",
        faults=("expire",),
        found="says that abandoned is",
    ),
    "who queues again removes the mark of the holder": Mutation(
        Bend(abandoned.MarkedEntry, "departure", "self._marked != node", "self._mark is None"),
        kind="tracked",
        faults=("slow", "expire"),
        found="its mark is not",
        quick=False,
        most=240,
    ),
    "who gives up leaves its own mark": Mutation(
        Bend(abandoned.MarkedEntry, "departure", "self._marked != node", "not self.granted"),
        kind="tracked",
        faults=("slow", "cancel"),
        found="says that abandoned is",
        quick=False,
    ),
    "who has waited for one abandoned grant does not wait for the next": Mutation(
        Bend(
            abandoned.MarkedEntry,
            "turn",
            "self._found not in (FREE, self._waited)",
            "self._found != FREE and self._waited == FREE",
        ),
        kind="tracked",
        faults=("slow", "expire"),
        troubles=6,
        found="after one that was abandoned",
        delay=1.0,
    ),
    "nobody waits after an abandoned grant": Mutation(
        Bend(abandoned.MarkedEntry, "turn", "yield Pause(left)", "pass"),
        kind="tracked",
        faults=("expire",),
        found="after one that was abandoned",
        delay=1.0,
    ),
    "the delay is over where its beginning was noted": Mutation(
        Bend(abandoned.MarkedEntry, "_delay", "return self.delay - ago", "return 0.0"),
        kind="tracked",
        faults=("expire", "cancel"),
        troubles=6,
        found="after one that was abandoned",
        delay=1.0,
        quick=False,
    ),
    "a contender stays where its mark may not be removed": Mutation(
        Bend(steps, "delete", "result.node is not None", "False"),
        kind="tracked",
        faults=(FORBID,),
        troubles=6,
        found="left",
        quick=False,
    ),
    "a tidy release removes the path whatever is marked there": Mutation(
        Bend(steps, "delete", "empties and not marked", "empties"),
        kind="tracked",
        faults=("slow", "delete node"),
        troubles=20,
        found="says that abandoned is|in the end, and was it abandoned",
        quick=False,
        most=240,
    ),
    "the thread of a session does not start again": Mutation(
        Bend(
            Handler,
            "_end_driver",
            "self._driver, self._ring = None, nothing",
            "self._ring = nothing",
        ),
        faults=(START_AGAIN,),
        found="left waiting",
    ),
    "a client that was started again is still over": Mutation(
        Bend(
            Handler,
            "_drive",
            "self._stopping, self._driving, self.session.final = False, True, None",
            "self._stopping, self._driving = False, True",
        ),
        Bend(Session, "connected_as", "self.final = None", "pass"),
        faults=(START_AGAIN,),
        troubles=6,
        found="ended by ClientClosed",
    ),
    "who is refused leaves its contender": Mutation(
        Bend(
            lock,
            "acquire",
            "yield from leave(entry)\nraise",
            "try:\n    raise\nexcept AccessDenied:\n    raise\n"
            "except Exception:\n    yield from leave(entry)\n    raise",
        ),
        faults=(FORBID,),
        troubles=6,
        found="left",
    ),
    "a contender stays where a permit is refused": Mutation(
        Bend(lock, "enter", "created.why is Failure.DENIED", "False"),
        Bend(lock, "_leave", "denied = error", "raise"),
        kind="semaphore",
        faults=(FORBID,),
        troubles=20,
        found="left",
        quick=False,
    ),
    "nobody looks again without an event": Mutation(
        Bend(Watchers, "take_turns", "len(self._paths) * seconds / LOOK_AGAIN", "0"),
        faults=(FORBID,),
        troubles=6,
        found="left waiting",
        quick=False,
    ),
    "who waits for a lease is not told that it is refused": Mutation(
        Bend(Session, "_on_heartbeat", "attempt.granted(copy_error(failed.error))", "pass"),
        faults=(FORBID,),
        troubles=6,
        found="left waiting",
    ),
    "an idle grant is used when its lease has lapsed": Mutation(
        Bend(Place, "_free", "self._may_grant(kept)", "True"),
        Bend(Session, "_lose_one", "grant._place is not None", "False"),
        kind=KEPT,
        faults=("cut off", "freeze"),
        troubles=6,
        found="without a lease|a node that is gone|left waiting",
        quick=False,
    ),
    "a kept node is used before the queue is watched": Mutation(
        Bend(
            Place,
            "_free",
            "unused and kept.sure and self.session.prompt and self._may_grant(kept)",
            "unused and self._may_grant(kept)",
        ),
        kind=KEPT,
        found="somebody else waits",
    ),
    "a stranger that is seen while the lock is in use is forgotten": Mutation(
        Bend(Place, "_seen", "kept.asked = True", "kept.asked = kept.idle is not None"),
        kind=KEPT,
        found="somebody waits|somebody else waits",
    ),
    "an idle node is used though a stranger was seen": Mutation(
        Bend(
            Place,
            "_give_back",
            "kept.asked or (self._skip and not kept.watched)",
            "(self._skip and not kept.watched)",
        ),
        Bend(Place, "_go_on", "kept.asked", "kept.asked and not self._hand(kept)"),
        kind=KEPT,
        faults=("cancel",),
        troubles=4,
        found="somebody waits|somebody else waits",
        quick=False,
    ),
    "a loss does not forget the kept node": Mutation(
        Bend(
            Place,
            "lose",
            "self._forget(kept)",
            "kept.idle = self.session.now()",
        ),
        Bend(
            Session,
            "may_grant",
            "all(path in self._nodes for path in paths)",
            "True",
        ),
        kind=KEPT,
        faults=("expire", "delete node"),
        troubles=6,
        most=400,
        found="was lost|is over|is gone",
        quick=False,
    ),
    "an idle node stays for as long as another lock keeps it": Mutation(
        Bend(Place, "_watch_then_set_timer", "end < kept.timed", "kept.timed == math.inf"),
        kind=KEPT,
        found="stays for too long",
        quick=False,
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
        for seed in range(mutation.most):
            world = World(seed, mutation.plan(seed))
            world.system.most_steps = mutation.steps
            try:
                world.run()
            except Violation as violation:
                return Detected(seed, steps_taken + world.system.steps, violation)
            steps_taken += world.system.steps
    return None
