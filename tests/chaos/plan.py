"""What a worker does, turn by turn: seeded, and the same whatever front carries it out."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum


class Step(Enum):
    """One step of guarded work, each between two looks at ``held``."""

    SQLITE = "write to the store that compares tokens"
    ZOOKEEPER = "write to the store that checks the znode"
    GUARDED = "write to the store whose mark is in ZooKeeper"
    QUEUE = "list the queue, and have a quorum confirm the own place in it"
    CHECK = "check()"


class Ending(Enum):
    """How a turn ends."""

    RELEASE = "release()"
    ABANDON = "abandon()"
    CLOSE = "the client is stopped while it holds the lock"
    CRASH = "the process ends itself"


@dataclass(frozen=True, slots=True)
class Turn:
    """One acquisition: on which lock, for how long to wait, what to do with it; in seconds.

    ``rest`` is slept after each step, looking at ``held`` all the while; ``pause`` after the turn.
    ``keep``: for how long a worker that keeps locks keeps this one.
    """

    lock: int
    timeout: float
    cancel_after: float | None
    steps: tuple[Step, ...]
    rest: float
    ending: Ending
    pause: float
    keep: float = 0.0


PATIENT = 60.0


def _is_held_long(lock: int) -> bool:
    return lock % 4 == 1


def turns(
    seed: str,
    locks: int,
    session: float,
    *,
    may_close: bool,
    favourite: int | None = None,
    spared: Collection[int] = (),
) -> Iterator[Turn]:
    """Yield turns without end, the same for the same seed.

    Half of them are on the ``favourite`` lock, if there is one; few are on those that are
    ``spared``.
    Every fourth lock is held long, so that faults find a holder; the others change hands quickly.
    Few turns are on a lock that is held long: else all would soon wait for those.
    """
    dice = random.Random(seed)
    weights = [1.0 if _is_held_long(lock) else 3.0 for lock in range(locks)]
    for lock in spared:
        weights[lock] = 0.2
    if favourite is not None:
        weights[favourite] = sum(weights) - weights[favourite]
    while True:
        (lock,) = dice.choices(range(locks), weights)
        long = dice.random() < (0.15 if _is_held_long(lock) else 0.01)
        yield Turn(
            lock=lock,
            timeout=dice.choices((PATIENT, session, 0.1, 0.0), (60, 20, 10, 10))[0],
            cancel_after=dice.uniform(0, session / 2) if dice.random() < 0.08 else None,
            steps=tuple(
                dice.choices(tuple(Step), (30, 20, 15, 10, 25), k=dice.randint(1, 4 if long else 3))
            ),
            rest=dice.uniform(0.05, 0.5) * session if long else dice.uniform(0, 0.02),
            ending=dice.choices(tuple(Ending), (92, 5, 3 if may_close else 0, 0.3))[0],
            pause=dice.expovariate(15),
            keep=dice.choice((0.05, 0.5, 4.0)) * session,
        )
