"""What users do with pools of workers, and what must hold of them.

- *Owners*: no shard has two owners that believe (``world`` looks at all grants), and no worker
  handles a shard twice at a time.
- *Give back*: a shard is given back when nobody works on it any more. Nothing begins on a shard
  that was given back.
- *Loss*: a handler is told soon that its shard is lost.
- *Leave*: after ``stop()`` nothing runs, and nothing is owned; after ``drain()`` no handler begins.
  Each shard that was taken is revoked, once.
- *Rest*: once nothing goes wrong any more, the workers that live share all shards evenly, each
  shard is handled unless its handler has returned, and everybody can see that.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import zklock
from tests.unit.simulator import system as simulated
from tests.unit.simulator.plans import POOL, SOON, Member
from tests.unit.simulator.system import Violation
from zklock._pool.keys import parse_shards
from zklock.errors import AccessDenied, ClientClosed, NoAnswer, ZkLockError

if TYPE_CHECKING:
    from tests.unit.simulator.world import World

SHARDS = 4
LIMIT = 30.0
"""Seconds that ``stop()`` waits for work."""


class Planned(Exception):
    """What users' code raises on purpose."""


@dataclass(eq=False)
class Worker:
    """One ``WorkerPool``. ``drained``: no handler may begin; ``over``: nothing may run."""

    name: str
    member: Member
    pool: Any = None
    drained: bool = False
    over: bool = False
    returned: set[Any] = field(default_factory=set)  # grants whose handlers have returned
    assigned: Counter[Any] = field(default_factory=Counter)
    revoked: Counter[Any] = field(default_factory=Counter)
    since: float = 0.0  # when it has begun to join


@dataclass(eq=False)
class Work:
    """One call of a handler or of a callback. ``told``: when its end was asked for."""

    what: str
    shard: str
    grant: Any
    worker: Worker
    stop: Any = None
    told: float | None = None


class Workers:
    """All workers of the pool, and the work that they do."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"handlers {world.system.seed}")
        self._works: list[Work] = []
        self._resting: list[Worker] = []
        self._rested: Any = simulated.Event()

    # What users do.

    def work(self, member: Member, name: str, rng: random.Random) -> None:
        """Be a worker, leave and join again, until all is calm and the pool has come to rest."""
        while True:
            worker = self._join(member, name, rng)
            if worker is None:
                return
            stays = self._live(worker, rng)
            if stays:
                worker.drained = False
                worker.pool.resume()
                worker.pool.set_capacity(1.0)
                self._resting.append(worker)
                self._rested.wait()
            self._leave(worker)
            if stays or member.stopped:
                return

    def _join(self, member: Member, name: str, rng: random.Random) -> Worker | None:
        while True:
            begin = self._world.system.now
            worker = Worker(name, member, since=begin)
            try:
                worker.pool = zklock.WorkerPool(
                    member.client,
                    POOL,
                    shards=SHARDS,
                    identity=name,
                    handler=partial(self._handle, worker),
                    on_assigned=partial(self._assigned, worker),
                    on_revoked=partial(self._revoked, worker),
                    retry=(0.2, 2.0),
                )
                with self._world.system.exposed():
                    worker.pool.start()
            except KeyboardInterrupt:
                self._world.say(f"{name} is interrupted, and does not join")
            except ClientClosed:
                if not member.may_be_closed(begin):
                    raise
                if not self._world.comes_back(member):
                    return None
            except NoAnswer as error:
                self._world.say(f"{name} does not join: {error}")
            except (ZkLockError, RuntimeError) as error:
                if not self._world.may_fail(error, begin):
                    raise
                simulated.sleep(0.5)
            else:
                return worker

    def _live(self, worker: Worker, rng: random.Random) -> bool:
        """Return whether the worker stays until all is calm. A pool ends with its client."""
        acts = 0
        while not self._world.calm.is_set() and not worker.member.may_be_closed(worker.since):
            simulated.sleep(rng.uniform(0.1, 0.7) * self._world.plan.timeout)
            if acts == self._world.plan.rounds:
                continue
            acts += 1
            act = rng.choice(("", "", "", "leave", "drain", "capacity", "payload", "shards"))
            self._world.say(f"{worker.name} {act}")
            match act:
                case "leave":
                    return False
                case "drain":
                    self._drain(worker, rng)
                case "capacity":
                    worker.pool.set_capacity(rng.choice((0.5, 1.0, 3.0)))
                case "payload":
                    worker.pool.set_payload(f"at {self._world.system.now}")
                case "shards":
                    self._set_shards(worker, rng)
        return not worker.member.may_be_closed(worker.since)

    def _drain(self, worker: Worker, rng: random.Random) -> None:
        worker.drained = worker.pool.drain(rng.uniform(0.5, 10.0))
        if worker.drained and worker.pool.owned():
            raise Violation(f"{worker.name} is drained, and owns shards")
        simulated.sleep(rng.uniform(0, 0.5) * self._world.plan.timeout)
        worker.drained = False
        worker.pool.resume()

    def _set_shards(self, worker: Worker, rng: random.Random) -> None:
        begin = self._world.system.now
        try:
            worker.pool.set_shards(rng.choice((SHARDS - 1, SHARDS, SHARDS + 1)))
        except NoAnswer:
            return
        except ClientClosed:
            if not worker.member.may_be_closed(begin):
                raise
        except AccessDenied:
            if not self._world.rights.may_refuse(begin):
                raise

    def _leave(self, worker: Worker) -> None:
        world, begin = self._world, self._world.system.now
        try:
            with world.system.exposed():
                worker.pool.stop(LIMIT)
        except KeyboardInterrupt:
            world.say(f"{worker.name} is interrupted in stop()")
            worker.pool.stop(LIMIT)
        finally:
            limit = LIMIT + world.plan.timeout + 6.0
            world.check_time(worker.member, f"{worker.name} stop()", begin, limit)
        worker.over = True
        left = [each.what for each in self._works if each.worker is worker]
        if left or worker.pool.owned():
            raise Violation(f"{worker.name} has left, and goes on: {left}, {worker.pool.owned()}")
        if worker.assigned != worker.revoked and not world.struck["no threads"]:
            raise Violation(f"{worker.name} has left, and a shard that it had was not revoked once")

    # What zklock calls.

    def _handle(self, worker: Worker, shard: Any) -> None:
        work = self._begin("the handler", shard.name, shard._grant, worker, shard.should_stop)
        rng = self._rng
        try:
            if worker.drained:
                raise self._wrong(work, "begins after drain()")
            fate = rng.random()
            if fate < 0.2:
                simulated.sleep(rng.uniform(0, 1.0))
                if fate < 0.1:
                    raise Planned("a handler fails")
                worker.returned.add(shard._grant)
                return
            shard.should_stop.wait()
            simulated.sleep(rng.choice((0.0, 0.0, 0.2, 2.5)))
            if rng.random() < 0.3:
                shard.check()
        finally:
            self._works.remove(work)

    def _assigned(self, worker: Worker, shard: Any, grant: Any) -> None:
        worker.assigned[grant] += 1
        self._call("on_assigned", worker, shard, grant)

    def _revoked(self, worker: Worker, shard: Any, grant: Any) -> None:
        worker.revoked[grant] += 1
        self._call("on_revoked", worker, shard, grant)

    def _call(self, what: str, worker: Worker, shard: Any, grant: Any) -> None:
        work = self._begin(what, str(shard), grant, worker)
        try:
            simulated.sleep(self._rng.choice((0.0, 0.0, 0.3)))
            if self._rng.random() < 0.1:
                raise Planned("a callback fails")
        finally:
            self._works.remove(work)

    def _begin(self, what: str, shard: str, grant: Any, worker: Worker, stop: Any = None) -> Work:
        work = Work(what, shard, grant, worker, stop)
        if worker.over:
            raise self._wrong(work, "begins after stop()")
        if grant.released:
            raise self._wrong(work, "begins after the shard was given back")
        for other in self._works:
            if (other.worker, other.shard, other.what) == (worker, shard, what):
                raise self._wrong(work, "runs twice at a time")
        self._works.append(work)
        return work

    def _wrong(self, work: Work, what: str) -> Violation:
        violation = Violation(f"{work.what} of shard {work.shard} of {work.worker.name} {what}")
        self._world.system.fail(violation)  # zklock would take it for an error of the user's
        return violation

    # What must hold.

    def check(self) -> None:
        """Look whether shards are given back in time, and losses are told in time."""
        now = self._world.system.now
        for work in self._works:
            process = work.worker.member.process
            if process.dead:
                continue
            if work.told is None and work.stop is not None and work.stop.is_set():
                work.told = now
            if work.grant.released:
                raise self._wrong(work, "runs, and the shard is given back")
            loss = work.grant._loss
            if loss is not None and work.stop is not None and work.told is None:
                late = now - loss.noticed - process.stalled(loss.noticed, now)
                if late > SOON:
                    raise self._wrong(work, "is not told that the shard is lost")

    def rest(self) -> None:
        """Wait until all workers that live are in the pool, and have come to rest."""
        world = self._world
        if world.plan.kind != "pool":
            return
        self._come_to_rest()
        self._rested.set()

    def _come_to_rest(self) -> None:
        world = self._world
        limit = 40 * world.plan.timeout + 60
        if not world.system.block(lambda: len(self._alive()) == world.left, limit):
            raise Violation("somebody does not join, or does not leave")
        workers = self._alive()
        end = world.system.now + limit
        while workers and (missing := self._missing(workers) or self._hidden(workers)):
            if world.system.now > end:
                raise Violation(f"the pool does not come to rest: {missing}")
            simulated.sleep(0.5)

    def _alive(self) -> list[Worker]:
        return [each for each in self._resting if not each.member.process.dead]

    def _missing(self, workers: list[Worker]) -> str:
        """Return what is not as it must be at rest, in words."""
        shards = parse_shards(self._world.ensemble.data(f"{POOL}/shards")) or ()
        owned = {worker.name: worker.pool.owned() for worker in workers}
        counts = Counter(shard for mine in owned.values() for shard in mine)
        if counts != Counter(shards):
            return f"of the shards {[*shards]}, {owned} are owned"
        sizes = [len(mine) for mine in owned.values()]
        if max(sizes) - min(sizes) > 1:
            return f"the shares are not even: {sizes}"
        handled = {work.grant for work in self._works if work.what == "the handler"}
        for worker in workers:
            idle = set(owned[worker.name].values()) - handled - worker.returned
            if idle:
                return f"nobody handles the shards of {idle}"
        return ""

    def _hidden(self, workers: list[Worker]) -> str:
        """Return what the pool tells wrongly of who is there, and who owns what, in words."""
        pool = workers[0].pool
        seen = {each.identity: (each.assigned, each.owned) for each in pool.members(math.inf)}
        have = {each.name: (len(each.pool.owned()),) * 2 for each in workers}
        if seen != have:
            return f"members() says {seen}, and it is {have}"
        told = {each.shard: (each.wanted, each.owner) for each in pool.assignment(math.inf)}
        owners = {shard: (each.name,) * 2 for each in workers for shard in each.pool.owned()}
        return "" if told == owners else f"assignment() says {told}, and it is {owners}"
