"""What a run is made of, and what a worker does, turn by turn: seeded, the same on each front."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum

from tests.chaos.stores import ELECTIONS, ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a run is made of. Seconds, but for ``tick_time`` in milliseconds.

    The first ``proxied`` workers reach the servers through proxies of their own. Half of the
    workers keep their locks: one of each two, and of each front. ``upgrade``: a folder with the
    jars that the servers are given one after the other. ``earlier``: the workers that keep nothing,
    and half of those of the pool, are of the release before this one.
    """

    seed: str
    seconds: float
    backend: str | None = None
    session_timeout: float = 2.0
    tick_time: int = 500
    sync_limit: int = 10
    workers: int = 4
    actors: int = 8
    proxied: int = 2
    locks: int = 20
    elections: int = 4
    shards: int = 12
    service: float = 45.0
    upgrade: str | None = None
    earlier: bool = False

    def favourite(self, worker: int) -> int | None:
        """Return the number of the lock that a worker prefers; ``None``: it keeps no locks."""
        return None if (worker + worker // 2) % 2 else worker % self.locks

    def favourites(self) -> list[int]:
        """Return the locks that some workers prefer."""
        each = map(self.favourite, range(self.workers))
        return sorted({lock for lock in each if lock is not None})

    def paths(self) -> list[str]:
        """Return the paths of the locks, and of the elections; their last parts differ, too."""
        locks = [f"{ROOT}/locks/{number}" for number in range(self.locks)]
        return locks + [f"{ELECTIONS}/e{number}" for number in range(self.elections)]


class Step(Enum):
    """One step of guarded work, each between two looks at ``held``."""

    SQLITE = "write to the store that compares tokens"
    ZOOKEEPER = "write to the store that checks the znode"
    GUARDED = "write to the store whose mark is in ZooKeeper"
    CHECK = "check()"
    VERIFY = "verify()"


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
                dice.choices(tuple(Step), (30, 20, 15, 25, 10), k=dice.randint(1, 4 if long else 3))
            ),
            rest=dice.uniform(0.05, 0.5) * session if long else dice.uniform(0, 0.02),
            ending=dice.choices(tuple(Ending), (92, 5, 3 if may_close else 0, 0.3))[0],
            pause=dice.expovariate(15),
            keep=dice.choice((0.05, 0.5, 4.0)) * session,
        )
