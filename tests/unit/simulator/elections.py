"""What users do with elections, and what must hold of requests to release.

- *Hear*: a leader is told to stop, without a loss, if it was asked to release, and else not: a
  request for one leader reaches no other. It hears soon, counted from when it is connected.
- *Ask*: a member that asks while somebody leads is not told that nobody does.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import zklock
from tests.unit.simulator import system as simulated
from tests.unit.simulator.plans import MOMENT, PATHS, SOON, Member
from tests.unit.simulator.pools import Planned
from tests.unit.simulator.system import Exposed, Violation
from zklock.errors import ClientClosed, LeaderStuck, NoAnswer, ZkLockError

if TYPE_CHECKING:
    from tests.unit.simulator.world import World

PATIENCE = 4.0
"""Seconds that a leader may hear later where servers are throttled."""


@dataclass(eq=False)
class Call:
    """One ``request_release()``. ``asked``: the nodes that it may have asked; not known before it
    has returned. ``until``: when one that was interrupted asks nobody any more.
    """

    begin: float
    asked: set[str] | None = None
    until: float = -math.inf


@dataclass(eq=False)
class Term:
    """One run of ``lead``. ``connected``: since when its client has been."""

    leadership: Any
    member: Member
    exposed: Exposed
    connected: float
    asked: float | None = None  # when it was known to be asked
    told: float | None = None  # when it was told to stop, and there was no other reason


class Elections:
    """All terms, and all requests to end one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._calls: list[Call] = []
        self._terms: list[Term] = []
        self._told: list[Term] = []  # for which no request is known yet

    # What users do.

    def stand(self, member: Member, name: str, rng: random.Random) -> None:
        """Stand and lead, again and again, until all is calm; ask others to release."""
        world = self._world
        election = self._election(member, name)
        if election is None:
            return

        def lead(exposed: Exposed, leadership: Any) -> None:
            world.say(f"{name} leads with {leadership.token}")
            if rng.random() < 0.2:
                raise Planned("lead fails")
            term = Term(leadership, member, exposed, world.system.now)
            self._terms.append(term)
            leadership.should_stop.wait(rng.choice((1.0, 4.0, 16.0)) * rng.random())
            self._terms.remove(term)
            world.say(f"{name} leads no more")

        interrupted = False
        while not world.calm.is_set() and not member.stopped:
            begin = world.system.now
            try:
                with world.system.exposed() as exposed:
                    if rng.random() < 0.5:
                        self._ask(election, member, name, rng)
                    # A second interrupt does not wait for the end of the term.
                    election.run(partial(lead, exposed), world.calm)
            except KeyboardInterrupt:
                world.say(f"{name} is interrupted")
                assert exposed.struck is not None
                world.check_time(member, f"{name}, interrupted,", exposed.struck, 2 * MOMENT)
                interrupted = True
            except LeaderStuck:
                if not interrupted:
                    raise
                simulated.sleep(0.5)  # the term may not have been over yet
            except ClientClosed:
                if not member.may_be_closed(begin):
                    raise
                world.comes_back(member)
            except (ZkLockError, RuntimeError) as error:
                if not world.may_fail(error, begin):
                    raise
                simulated.sleep(0.5)

    def _election(self, member: Member, name: str) -> Any:
        """Return a user's election, once there is a client for it; ``None``: there will be none."""
        world = self._world
        while True:
            begin = world.system.now
            try:
                return zklock.LeaderElection(
                    member.client, PATHS[0], grace=30.0, **world.options(member, name)
                )
            except ClientClosed:
                if not member.may_be_closed(begin):
                    raise
                if not world.comes_back(member):
                    return None

    def _ask(self, election: Any, member: Member, name: str, rng: random.Random) -> None:
        world, limit = self._world, rng.uniform(0.2, 1.0) * self._world.plan.timeout
        simulated.sleep(rng.uniform(0, 2.0))
        call = Call(world.system.now)
        self._calls.append(call)
        asked = None
        try:
            asked = election.request_release(limit)
        except (ZkLockError, KeyboardInterrupt) as error:
            # Any of these was perhaps the first; those that are told may have left meanwhile.
            call.asked = self._standing() | self._all_told()
            if isinstance(error, KeyboardInterrupt):
                call.until = world.system.now + MOMENT  # it is withdrawn in the background
            if not isinstance(error, NoAnswer):
                raise
        finally:
            world.check_time(member, f"{name} request_release()", call.begin, limit)
        world.say(f"{name} asks {asked}")
        if call.asked is None:
            self._asked(call, asked)

    def _asked(self, call: Call, leader: Any) -> None:
        standing = self._standing()
        if leader is None:
            # It may have asked one that has left meanwhile, if the answer to that was lost.
            call.asked = self._all_told() - standing
        else:
            call.asked = {leader.path}
        for term in self._terms:
            path = term.leadership.path
            if leader is not None and leader.path == path:
                term.asked = self._world.system.now
            leads = self._world.given_at[term.leadership] < call.begin and term.leadership.held
            if leader is None and leads and path in standing:
                raise Violation(f"request_release() asks nobody, and {path} leads")

    def _standing(self) -> set[str]:
        return {f"{PATHS[0]}/{name}" for name in self._world.ensemble.names(PATHS[0])}

    def _all_told(self) -> set[str]:
        told = [*self._told, *(term for term in self._terms if term.told is not None)]
        return {term.leadership.path for term in told}

    # What must hold.

    def check(self) -> None:
        """Look whether who is told to stop was asked, and whether who was asked is told."""
        for term in self._terms:
            if term.told is None and not term.member.process.dead:
                self._look(term)
        for term in self._told[:]:
            before = [call for call in self._calls if call.begin <= (term.told or 0.0)]
            path, told = term.leadership.path, term.told or 0.0
            if any(told < call.until or path in (call.asked or ()) for call in before):
                self._told.remove(term)
            elif all(call.asked is not None for call in before):
                raise Violation(f"{term.leadership} is told to stop, and nobody has asked it to")

    def _look(self, term: Term) -> None:
        world, leadership = self._world, term.leadership
        now, process = world.system.now, term.member.process
        if leadership._ended:
            return
        if leadership.should_stop.is_set():
            term.told = now
            if not world.calm.is_set() and term.exposed.struck is None:
                self._told.append(term)
            return
        if not term.member.client.connected:
            term.connected = now
        if term.asked is None:
            return
        begin = max(term.asked, term.connected)
        limit = (
            world.plan.timeout / 10 if not world.plan.troubles else world.plan.timeout + PATIENCE
        )
        if now - begin - process.stalled(begin, now) > limit + SOON:
            raise Violation(f"{leadership} was asked to release, and is not told")
