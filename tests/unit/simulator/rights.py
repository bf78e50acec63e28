"""What an operator forbids for a while, and what must hold of it.

ACLs of some nodes lack a right, or several, until they are given back: of what stands for long,
such as a lock's path, or of contenders.

- *Refused*: users see ``AccessDenied`` only of calls that were under way while something was
  forbidden. What is refused is not held.
- *Stay*: a contender may stay until its session ends if the servers have refused its deletion. No
  other may. An operator ends the sessions of those that may stay once the rights are back.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from zklock.testing.zookeeper.codec import Acl
from zklock.testing.zookeeper.messages import OPEN, Delete, Multi, Perms, Request, SetData

if TYPE_CHECKING:
    from tests.unit.simulator.world import World

ROOT = "/app"
TAKEN = (
    Perms.READ,
    Perms.WRITE,
    Perms.CREATE,
    Perms.DELETE,
    Perms.CREATE | Perms.DELETE,
    Perms.READ | Perms.WRITE | Perms.CREATE | Perms.DELETE,
)
"""What is forbidden at a time. The operator goes on to administer."""


class Rights:
    """What is forbidden now, and which contenders may stay for that."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"rights {world.system.seed}")
        self._given_back = -math.inf  # when the last of them was; infinite if not all are
        self._may_stay: set[str] = set()
        self.unmarked: set[str] = set()
        """Contenders whose deletion was refused for the write that came with it."""

    # What goes wrong.

    def forbid(self, long: float) -> None:
        """Take rights away from somebody's nodes for some seconds."""
        rng, nodes = self._rng, self._world.ensemble.machine.tree.nodes
        there = [path for path in nodes if path.startswith(ROOT)]
        lasting = [path for path in there if not nodes[path].ephemeral]
        passing = [path for path in there if nodes[path].ephemeral]
        found = rng.choice((lasting, lasting, passing, passing or lasting))
        if rng.random() < 0.8:
            found = rng.sample(found, min(1, len(found)))
        taken = rng.choice(TAKEN)
        self._world.say(f"forbidden: {taken!r} of {', '.join(found)}")
        self._given_back = math.inf
        for path in found:
            self._protect(path, (Acl(Perms.ALL & ~taken, "world", "anyone"),))
        self._world.system.after(long, self.give_back)

    def give_back(self) -> None:
        """Permit everything again, and end the sessions of those that may stay."""
        if self._given_back < math.inf:
            return
        world = self._world
        world.say("everything is permitted again")
        nodes = world.ensemble.machine.tree.nodes
        for path in [path for path, node in nodes.items() if node.acl != OPEN]:
            self._protect(path, OPEN)
        self._given_back = world.system.now
        owners = {nodes[path].owner for path in self._may_stay if path in nodes}
        for session in sorted(owners - {0}):
            world.say(f"the operator ends the session {session:x}")
            world.expire_session(session)
        self._may_stay.clear()

    def _protect(self, path: str, acl: tuple[Acl, ...]) -> None:
        self._world.ensemble.protect(path, acl)

    def may_refuse(self, since: float) -> bool:
        """Whether something was forbidden at this time, or later."""
        return self._given_back >= since

    # What the servers tell.

    def refused(self, request: Request, part: Request) -> None:
        """Hear that a client may not do this; ``part``: what is refused, of a transaction."""
        written = isinstance(part, SetData)
        (self.unmarked if written else self._may_stay).update(_deleted(request))


def _deleted(request: Request) -> Iterator[str]:
    parts = request.parts if isinstance(request, Multi) else (request,)
    return (part.path for part in parts if isinstance(part, Delete))
