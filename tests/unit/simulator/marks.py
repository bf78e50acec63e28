"""What users do with locks that track abandoned grants, and what must hold of them.

The servers say how each node went: a client asked for it, or its session ended, or an operator
deleted it. Of two grants of a lock, the *grant before* is the one with the next lower token.

- *Abandoned*: ``grant.abandoned`` is true if the grant before was lost, or its node went without a
  request, or ACLs refused to remove its mark. It is false if there was none, or if that one was
  released.
- *Perhaps*: it may be true after a release, too, if the node of a contender between the two went
  without a request, and this contender had written its mark: its turn had come. And if an interrupt
  kept the grant before from its caller, it may be as that one's is.
- *Delay*: the next grant comes no earlier than the delay after the node of one that did not
  release has gone.
- *Marks*: as long as the node of a grant is there, its mark is. In the end there is a mark if the
  next grant would have to say so, and none if it must not.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tests.unit.simulator.plans import PATHS, Member
from tests.unit.simulator.system import Violation
from zklock._core.grant import GrantBase
from zklock._recipes import names
from zklock.token import FencingToken

if TYPE_CHECKING:
    from tests.unit.simulator.world import World

HELD = b"held by "
KIND = "tracked"


class Gone(NamedTuple):
    """A contender whose node has gone: when, and whether a client asked for it."""

    token: FencingToken
    at: float
    asked: bool


class Marks:
    """All contenders that have gone, all grants, and all marks that were ever written."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"marks {world.system.seed}")
        self._gone: dict[str, list[Gone]] = defaultdict(list)
        self._grants: dict[tuple[str, FencingToken], GrantBase] = {}
        self._marks: set[bytes] = set()
        self._reached: set[GrantBase] = set()
        self._plays = world.plan.kind == KIND
        self._harms = self._plays and world.plan.troubles > 0 and not world.plan.keeps

    # What users do, and what happens to them.

    def reached(self, grant: GrantBase) -> None:
        """Note that its caller has got a grant."""
        self._reached.add(grant)

    def harm(self, member: Member) -> None:
        """Perhaps end the session of a holder."""
        if self._harms and not self._world.calm.is_set() and self._rng.random() < 0.15:
            self._world.say(f"{member.process.name} loses its session as it holds")
            self._world.expire(member)

    # What the servers tell.

    def gone(self, node: str, *, asked: bool) -> None:
        """Hear that a node has gone."""
        path, _, own = node.rpartition("/")
        name = names.parse(own)
        if self._plays and name is not None and path in PATHS:
            token = FencingToken(self._world.ensemble.epoch(path), name.sequence)
            stays = self._world.ensemble.data(path) == HELD + str(token).encode()
            asked = asked and not (stays and node in self._world.rights.unmarked)
            self._gone[path].append(Gone(token, self._world.system.now, asked))

    def written(self, path: str, session: int) -> bool:
        """Hear that data were written; return whether the writer's session ends, unanswered."""
        if not self._plays or path not in PATHS:
            return False
        data = self._world.ensemble.data(path)
        self._check_standing(path)
        if not data.startswith(HELD) or data in self._marks:
            return False
        self._marks.add(data)
        if not self._harms or self._world.calm.is_set() or self._rng.random() > 0.1:
            return False
        if self._rng.random() < 0.5:
            expire = partial(self._world.expire_session, session)
            self._world.system.after(self._rng.choice((0.0, 0.01, 0.5)), expire)
            return False
        self._world.say(f"the session {session:x} ends as it writes its mark")
        self._world.delete_all_of(session)
        return True

    # What must hold.

    def given(self, grant: GrantBase) -> None:
        """Look at a new grant."""
        if not self._plays:
            return
        allowed, since = self._expected(grant.lock_path, grant.token)
        if grant.abandoned not in allowed:
            raise Violation(f"{grant} says that abandoned is {grant.abandoned}, and it is not")
        waited = self._world.given_at[grant] - since
        if waited < self._world.plan.delay - 1e-6:
            raise Violation(f"{grant} is given {waited:.3f} s after one that was abandoned")
        self._grants[grant.lock_path, grant.token] = grant
        self._check_standing(grant.lock_path)

    def check_rest(self) -> None:
        """Look whether marks are left, or missing."""
        for path in PATHS if self._plays else ():
            data = self._world.ensemble.data(path)
            allowed, _ = self._expected(path)
            if bool(data) not in allowed:
                raise Violation(f"{path} has {data!r} in the end, and was it abandoned: {allowed}")

    def _expected(self, path: str, before: FencingToken | None = None) -> tuple[set[bool], float]:
        """Return what a grant may say of the grant before it, and since when that is abandoned."""
        allowed: set[bool] = set()
        for gone in sorted(self._gone[path], reverse=True):
            if before is not None and not gone.token < before:
                continue
            grant = self._grants.get((path, gone.token))
            if grant is None:
                if not gone.asked and HELD + str(gone.token).encode() in self._marks:
                    allowed.add(True)
                continue
            if not gone.asked or not grant.released:
                return {True}, gone.at
            allowed.add(False)
            if grant not in self._reached and grant.abandoned:
                allowed.add(True)
            return allowed, -math.inf
        return {*allowed, False}, -math.inf

    def _check_standing(self, path: str) -> None:
        there = self._world.ensemble.names(path)
        data = self._world.ensemble.data(path)
        for grant in self._grants.values():
            stands = grant.lock_path == path and grant.path.rpartition("/")[2] in there
            if stands and data != HELD + str(grant.token).encode():
                raise Violation(f"{grant} is there, and its mark is not, but {data!r}")
