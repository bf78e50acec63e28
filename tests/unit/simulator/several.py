"""What users do with several locks as one, and what must hold of them.

- *All or nothing*: an acquire that has not got all holds none when it returns, and so does a
  release. What it got was not lost while it waited for the rest.
- *Loss*: the first loss of one of them is told once, and soon.
- *Cancel*: an acquire that was cancelled gets nothing more.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import zklock
from tests.unit.simulator import system as simulated
from tests.unit.simulator.plans import MOMENT, PATHS, SOON, Member
from tests.unit.simulator.system import Violation

if TYPE_CHECKING:
    from tests.unit.simulator.world import World


@dataclass
class Held:
    """What one user has of several locks, and was told of its loss."""

    grant: Any
    member: Member
    told: list[Any] = field(default_factory=list)


class Multimap:
    """All grants of several locks that are not given back yet."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held: list[Held] = []

    def use(self, member: Member, name: str, rng: random.Random) -> None:
        """Acquire several locks, hold them for a while, and give them back."""
        world = self._world
        paths = rng.sample(PATHS, rng.choice((1, 2, 2, 3)))
        told: list[Any] = []
        locks = [self._lock(member, name, rng, path) for path in paths]
        lock = zklock.MultiLock(locks, on_lost=told.append)
        how, limit = world.way(rng)
        begin = world.system.now
        try:
            with world.asking(name, lock):
                grant = lock.acquire(**how)
            if grant is None and limit == math.inf:
                raise Violation(f"{name}: acquire() without a limit has given up")
        except zklock.ZkLockError:
            self._check_none(name)
            raise
        finally:
            limit = max(limit, MOMENT * len(paths))
            world.check_time(member, f"{name} acquire({how})", begin, limit)
        world.say(f"{name} {how}: {grant}")
        if grant is None:
            self._check_none(name)
            return
        self._check_new(name, grant, begin)
        held = Held(grant, member, told)
        self._held.append(held)
        for _ in range(rng.choice((0, 1, 4))):
            simulated.sleep(rng.uniform(0, 0.4) * world.plan.timeout)
            if not grant.held:
                break
        self._held.remove(held)
        try:
            if rng.random() < 0.3:
                grant.abandon()
            else:
                world.release(member, name, lock.release, MOMENT * len(paths))
        finally:
            self._check_none(name)

    def check(self) -> None:
        """Look whether each loss is told, and told once."""
        now = self._world.system.now
        for held in self._held:
            losses = [each._loss for each in held.grant.grants if each._loss is not None]
            if len(held.told) > (1 if losses else 0):
                raise Violation(f"the loss of {held.grant} was told {len(held.told)} times")
            if losses and not (held.told and held.grant.lost.is_set()):
                noticed = min(loss.noticed for loss in losses)
                process = held.member.process
                late = now - noticed - process.stalled(noticed, now)
                if late > SOON and not process.dead:
                    raise Violation(f"nobody is told that a part of {held.grant} is lost")

    def _lock(self, member: Member, name: str, rng: random.Random, path: str) -> Any:
        options = self._world.options(member, name)
        if path == PATHS[0]:
            kind: Any = zklock.Lock
        elif path == PATHS[1]:
            kind = rng.choice((zklock.ReadLock, zklock.WriteLock))
        else:
            kind = partial(zklock.Semaphore, limit=self._world.plan.permits)
        return kind(member.client, path, **options)

    def _check_new(self, name: str, grant: Any, begin: float) -> None:
        given = [self._world.given_at[each] for each in grant.grants]
        cancelled = self._world.cancelled.get(name, -math.inf)
        if begin < cancelled < max(given):
            raise Violation(f"{name} goes on to acquire after its cancel()")
        for each in grant.grants:
            if each._loss is not None and each._loss.noticed < max(given):
                raise Violation(f"{grant} is granted, and {each} was lost before")
            if each.released:
                raise Violation(f"{grant} is granted, and {each} was given back before")

    def _check_none(self, name: str) -> None:
        if left := self._world.held_by(name):
            raise Violation(f"{name} has not got all, or has given all back, and holds {left}")
