"""What one seed plays: who asks for what, and what goes wrong meanwhile."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tests.unit.simulator.system import Process
from zklock.testing.zookeeper.machine import Rules

PATHS = ("/app/lock", "/app/other", "/app/permits")
POOL = "/app/pool"
RULES = Rules(tick_time=500)
"""What the servers are configured to do at first."""

MOMENT = 1.0
SOON = 0.5
"""How late something may be, in seconds, that should happen at once."""

KINDS = (
    *("lock", "lock", "lock", "read and write", "semaphore", "semaphore", "burst", "re-entrant"),
    *("election", "several", "several", "pool", "pool"),
)
"""What users ask for. In a burst, everybody asks for one of enough permits, and may not wait."""

FAULTS = (
    *("cut", "cut off", "expire", "isolate", "pause server", "restart", "restart shorter"),
    *("throttle", "lose", "freeze", "stall", "no threads", "kill", "delete node"),
    *("stop client", "slow", "cancel"),
)

WIDER_KINDS = (*KINDS, *["tracked"] * len(KINDS))
"""What users ask for in wider plans: in half of them, locks that track abandoned grants."""

KEPT = "kept"
"""What users ask for in plans of their own: locks that may stay with their client."""

START_AGAIN = "start again"
"""A fault of wider plans: a client is stopped, and started again, at once or after a while."""

FORBID = "forbid"
"""A fault of wider plans: ACLs forbid something for a while."""

WIDER_FAULTS = (START_AGAIN, FORBID)

UNLIKE = "no threads"
"""Does not go with `START_AGAIN`: kazoo's ``start()`` leaves half of a client if it fails there."""

INTERRUPT = "interrupt"
"""A fault for a while: exceptions out of nowhere strike calls of users, each at most once."""

AGAIN = "interrupt twice"
"""The same, and a second one may strike a call while it sees to the first."""

ONE_SERVER = {"cut", "isolate", "pause server"}
"""Faults of one server: the client has to find the other one in time."""

LATE = ("isolate",)
"""What makes requests come late: a server keeps them until it is back. Five times in a plan."""


@dataclass(frozen=True)
class Plan:
    """What one seed plays. ``rounds``: how often each user asks, unless that is not limited.

    ``delay``: the ``lock_delay`` of locks that track abandoned grants.
    """

    kind: str
    timeout: float
    processes: int
    users: int
    faults: tuple[str, ...]
    troubles: int
    noise: float
    permits: int = 2
    rounds: int | None = None
    delay: float = 0.0

    @property
    def keeps(self) -> bool:
        """Whether no grant may be lost: nothing is wrong, or one server, for once."""
        return self.troubles == 0 or (self.troubles == 1 and ONE_SERVER.issuperset(self.faults))

    def __str__(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Plan:
        """Return the plan of which this is the text."""
        said = json.loads(text)
        return cls(**{**said, "faults": tuple(said["faults"])})


@dataclass(eq=False)
class Member:
    """A process of users, its client, and what its users were told of lost grants."""

    process: Process
    client: Any = None
    told: dict[Any, list[float]] = field(default_factory=dict)
    stopped: bool = False
    back: float = -math.inf  # when its client was started again; infinite while it is not

    def may_be_closed(self, since: float) -> bool:
        """Whether its client has not run all the time since then."""
        return self.stopped or self.back >= since


def command(seed: int, plan: Plan) -> str:
    """Return what plays a seed again, as it is played here."""
    return f"python -m tests.unit.simulator {seed} '{plan}'"


def plan_of(seed: int, kinds: tuple[str, ...] = KINDS) -> Plan:
    """Draw a plan: a few kinds of faults, so that some plans have one kind alone."""
    rng = random.Random(f"plan {seed}")
    kind = rng.choice(kinds)
    faults = tuple(rng.sample(FAULTS, rng.choice((0, 1, 1, 2, 2, 3, 5))))
    if kind == "burst":
        faults = ()
    elif (drawn := rng.random()) < 0.1:
        faults = tuple(sorted(ONE_SERVER))
    elif drawn < 0.2:
        faults = LATE
    timeout = rng.choice((4.0, 4.0, 6.0))
    processes = rng.choice((2, 2, 3))
    users = rng.choice((1, 1, 2))
    troubles = rng.choice((1, 2, 4)) if faults else 0
    if faults is LATE:
        troubles = 5
    elif faults and ONE_SERVER.issuperset(faults):
        troubles = 1
    return Plan(
        kind=kind,
        timeout=timeout,
        processes=processes,
        users=users,
        faults=faults,
        troubles=troubles,
        noise=rng.choice((0.0, 0.03, 0.1, 0.3)),
        permits=processes * users if kind == "burst" else 2,
    )


def wider_plan_of(seed: int) -> Plan:
    """Draw a plan of those that only new seeds play, and seeds that have found something."""
    rng = random.Random(f"wider {seed}")
    plan = plan_of(seed, (rng.choice(WIDER_KINDS),))
    delay = rng.choice((0.0, 0.0, 1.0, 3.0)) if plan.kind == "tracked" else 0.0
    more = rng.choice(((), (START_AGAIN,), (FORBID,), WIDER_FAULTS))
    if plan.kind == "burst" or not more:
        return replace(plan, delay=delay)
    faults = tuple(it for it in plan.faults if it != UNLIKE or START_AGAIN not in more)
    often = rng.choice((1, 2))  # each of them, among the others
    return replace(plan, delay=delay, faults=faults + often * more, troubles=max(3, plan.troubles))


def kept_plan_of(seed: int) -> Plan:
    """Draw a plan with locks that may stay with their client."""
    rng = random.Random(f"kept {seed}")
    plan = replace(plan_of(seed, (KEPT,)), users=rng.choice((1, 2, 3)))
    if rng.random() < 0.8:
        return plan
    faults = (*(it for it in plan.faults if it != UNLIKE), START_AGAIN)
    return replace(plan, faults=faults, troubles=max(3, plan.troubles))


def with_interrupts(plan: Plan, what: str = INTERRUPT) -> Plan:
    """Return the plan with interrupts among its faults; in a burst, nothing goes wrong."""
    if plan.kind == "burst":
        return plan
    return replace(plan, faults=(*plan.faults, what), troubles=max(2, plan.troubles))
