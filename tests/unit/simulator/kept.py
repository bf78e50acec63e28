"""What users do with locks that may stay with their client, and what must hold of them.

Some users keep, others do not, on the same paths. What must hold of any lock must hold of these,
and where the network and the servers do well:

- *Others*: nobody is granted again on a node behind which somebody else has stood for a while. Nor
  does the node stay when nobody uses it. So another contender waits for one body.
- *Time*: a node that nobody uses goes after ``keep`` seconds.

And always:

- *Loss*: nobody is granted on a node that was lost or has gone, or whose session is over.
- *Rest*: what is left in the end is kept for a long time, by a client that lives.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import zklock
from tests.unit.simulator import system as simulated
from tests.unit.simulator.plans import KEPT, PATHS, SOON, Member
from tests.unit.simulator.system import Violation
from zklock.errors import NoAnswer

if TYPE_CHECKING:
    from tests.unit.simulator.world import World
    from zklock._core.grant import GrantBase

LONG = 1000.0
"""Longer than a run: a stranger that is not seen waits for ever."""

TROUBLED = {
    "cut",
    "cut off",
    "isolate",
    "pause server",
    "restart",
    "restart shorter",
    "throttle",
    "lose",
    "slow",
}
"""What makes answers and notifications come late."""


class Keepers:
    """The nodes that are kept, and who stands behind them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._plays = world.plan.kind == KEPT
        self.owners: dict[str, object] = {}
        """What grants say of who has them, by the names of the users that keep."""
        self._newest: dict[str, tuple[GrantBase, Member]] = {}  # by node
        self._ended: dict[GrantBase, float] = {}  # when it was released
        self._queues: dict[str, list[str]] = {}
        self._behind: dict[str, float] = {}  # by node: since when another contender is there

    # What users do.

    def use(self, member: Member, name: str, rng: random.Random) -> None:
        """Acquire and release a lock some times."""
        lock = self._lock(member, name, rng)
        self.owners[name] = lock._owner()
        for _ in range(rng.choice((1, 2, 6))):
            how, limit = self._world.way(rng)
            if self._world.calm.is_set():
                return
            self._turn(member, name, rng, lock, how, limit)
            if rng.random() < 0.5:
                simulated.sleep(rng.choice((0.0, 0.01, 0.1, 1.0)) * rng.random())
        simulated.sleep(rng.choice((0.0, 1.0, 4.0)) * rng.random())

    def _lock(self, member: Member, name: str, rng: random.Random) -> Any:
        options = self._world.options(member, name)
        path = PATHS[0] if rng.random() < 0.85 else PATHS[1]
        kind: Any = rng.choice((zklock.Lock,) * 6 + (zklock.RLock, zklock.WriteLock))
        if rng.random() < 0.1:
            kind = zklock.ReadLock
        elif rng.random() < (0.8 if member.process.name == "p0" else 0.4):
            options["keep"] = rng.choice((0.2, 3.0, LONG))
            if rng.random() < 0.9:
                options["identity"] = member.process.name  # the same for all of its users
        return kind(member.client, path, **options)

    def _turn(
        self,
        member: Member,
        name: str,
        rng: random.Random,
        lock: Any,
        how: dict[str, Any],
        limit: float,
    ) -> None:
        world = self._world
        grant = world.acquire(member, name, lock, how, limit)
        if grant is None:
            if rng.random() < 0.2:
                self._request(name, lock)
            return
        if rng.random() < 0.4:
            simulated.sleep(rng.choice((0.0, 0.01, 1.0)) * rng.random())
        if rng.random() < 0.3:
            grant.abandon()
        else:
            world.release(member, name, lock.release)

    def _request(self, name: str, lock: Any) -> None:
        try:
            lock.request_release(timeout=1.0)
        except NoAnswer as error:
            self._world.say(f"{name}: {error}")

    # What must hold.

    def given(self, grant: GrantBase) -> None:
        """Look at a new grant."""
        if not self._plays:
            return
        world, node = self._world, grant.path
        if grant.session_id != grant._keeper._id:
            raise Violation(f"{grant} is given on a session that is over")
        if grant.kept and not world.was_deleted(node) and node not in world.ensemble.ephemerals():
            raise Violation(f"{grant} is given on a node that is gone")
        before, member = self._newest.get(node, (None, None))
        if before is not None and before._loss is not None:
            raise Violation(f"{grant} is given on a node that was lost")
        if before is not None and before.session_id != grant.session_id:
            raise Violation(f"{grant} is given on a node of a session that is over")
        if (before is not None) != grant.kept:
            raise Violation(f"{grant} says that kept is {grant.kept}, and it is not")
        if member is None:
            current = world.system.current
            assert current is not None
            member = next(each for each in world.members if each.process is current.process)
        since = self._behind.get(node, math.inf)
        if grant.kept and self._is_late(since, 0.0, member):
            raise Violation(f"{grant} is given again, and somebody else waits")
        self._newest[node] = grant, member

    def check(self) -> None:
        """Look at what is kept."""
        if not self._plays:
            return
        world = self._world
        self._look()
        for node, (grant, member) in list(self._newest.items()):
            if not grant._ended:
                continue
            path, _, name = node.rpartition("/")
            if name not in self._queues[path]:
                if not world.was_deleted(node):  # its client may not have heard of that yet
                    del self._newest[node]
                continue
            if member.process.dead:
                continue
            ended = self._ended.setdefault(grant, world.system.now)
            since = max(ended, self._behind.get(node, math.inf))
            if self._is_late(since, 0.0, member):
                raise Violation(f"somebody waits for {grant}, which has ended")
            if self._is_late(ended, grant._terms.keep, member):
                raise Violation(f"{grant} has ended, and its node stays for too long")

    def kept(self) -> set[str]:
        """Return the nodes that may be left when all is at rest."""
        return {
            node
            for node, (grant, member) in self._newest.items()
            if grant._terms.keep == LONG and grant.released and not member.stopped
        }

    def _look(self) -> None:
        """Note since when others stand behind a node."""
        world = self._world
        for path in PATHS[:2]:
            names = world.ensemble.names(path)
            if names == self._queues.get(path):
                continue
            self._queues[path] = names
            for name in names:
                node = f"{path}/{name}"
                if len(names) > 1:
                    self._behind.setdefault(node, world.system.now)
                else:
                    self._behind.pop(node, None)

    def _is_late(self, since: float, keep: float, member: Member) -> bool:
        world = self._world
        late = world.system.now - since - keep
        if late <= SOON or any(world.struck[what] for what in TROUBLED):
            return False
        return late > SOON + member.process.stalled(since, world.system.now)
