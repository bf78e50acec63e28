"""Every interleaving of a few contenders and a few faults: the recipe's own code, exhaustively.

What is explored is the real `Attempt` with the real recipe, on the in-memory ZooKeeper of
`tests.fakes`. A *state* is a whole `World`. From each state, each step is taken that can be taken
there: a server carries out one request, or applies one transaction; a client hears one message,
loses its connection or its session; a caller gives up or gives back; an operator deletes. A state
that was reached before, on whatever way, is not entered again. So all executions are covered,
within the bounds of a `Bounds`.

**States.** Two worlds are the same state if all that they are made of is the same: what each server
has applied and will apply, what is under way, and for each suspended generator its frames: the
instruction, and the local variables (`tests.unit.spelling`).

**Replays.** A suspended generator cannot be copied. So a state is reached again by taking the same
steps in a new world, which is why nothing here may depend on chance, addresses or the clock.

**Reductions**, none of which loses a violation:

1. *Clients are alike.* A client takes its first step only after the one before it in the list has
   taken its own. Any execution becomes such a one when the clients are renamed.
2. *A reconnection is to the server that lags most.* It may catch up before it does anything else,
   so what any other server does, it does too.
3. *A loss of the connection carries out nothing.* That requests were carried out, and their replies
   lost, is: they are carried out, and then the connection is lost.
4. *When no fault is left*, a client that holds nothing hears what was sent to it, and runs what it
   has put off, before anything else happens. Such a step changes that client alone, appends to its
   own requests, and nothing that others do can disable it or change what it does: the death of a
   session, the one thing that could, is a fault. A claim is made earlier by this, never later. If a
   later claim breaks a promise, the earlier one does, too: whoever stands before it then has stood
   before it all along, as numbers grow; and whoever holds beside it then is granted beside it now.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.fakes import Client, FakeGrant, Replica, Server, outcome, uuids
from tests.unit.spelling import spelled
from zklock._core.attempt import Attempt
from zklock._recipes import lock as lock_recipe, names

PATH = "/lock"
EVERYTHING = 10**9
Step: TypeAlias = tuple[str, int]
"""What is done, and to which client or node."""

FAULTS = ("connection", "late", "session", "give up", "node", "tree", "lease")
"""The kinds of faults. "late": the connection is lost, and its server carries out later what it has
of it.
"node", "tree": an operator deletes one node, or all and the parent. "lease": the lease is not live
when the lock is claimed."""


@dataclass(frozen=True)
class Bounds:
    """How much is explored: contenders, and how many faults of these kinds happen at most."""

    contenders: int = 2
    faults: int = 1
    kinds: tuple[str, ...] = FAULTS
    made: bool = True
    """Whether the parent is there from the start."""
    depth: int = 400
    """An execution of more steps than this goes on and on."""


def _owns(client: Client, node: str) -> bool:
    return node in client.own


class World:
    """Contenders, each with a client of its own, which have just asked for one lock."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.path = PATH
        self.server = Server()
        if bounds.made:
            self.server.make_path(PATH)
        self.left = bounds.faults
        self.acting = 0  # clients that have taken a step
        self.judged = 0  # grants that were found right
        self.top: Any = None  # the greatest token granted
        self.clients = [Client(self.server) for _ in range(bounds.contenders)]
        self.entries: list[lock_recipe.Entry] = []
        self.attempts: list[Attempt[FakeGrant | None]] = []
        self.gave_up: set[int] = set()
        self.chopped: set[str] = set()  # what an operator has deleted
        for number, client in enumerate(self.clients):
            entry = lock_recipe.Entry(
                PATH,
                b"",
                names.Kind.EXCLUSIVE,
                new_uuid=functools.partial(next, uuids(str(number))),
                asked=number,
                is_ours=functools.partial(_owns, client),
            )
            self.entries.append(entry)
            self.attempts.append(client.acquire(entry))
        for attempt in self.attempts:
            attempt.start()

    def grant(self, number: int) -> FakeGrant | None:
        """Return what a contender holds."""
        held = outcome(self.attempts[number])
        return held if isinstance(held, FakeGrant) and not held.over else None

    # Which steps there are.

    def steps(self) -> list[Step]:
        """Return the steps that can be taken; none if all is at rest and no fault is left."""
        if not self.left:
            for number, client in enumerate(self.clients):
                if number <= self.acting and (soon := self._soon(number, client)):
                    return [soon]
        found = [step for each in self._acting() for step in self._of(*each)]
        if self.server.dying:
            found.append(("bury", -1))
        if self.left:
            found += self._faults()
        return found

    def _acting(self) -> Iterator[tuple[int, Client]]:
        """Yield the clients that may take a step: see reduction 1."""
        yield from list(enumerate(self.clients))[: self.acting + 1]

    def _soon(self, number: int, client: Client) -> Step | None:
        """Return a step that comes before anything else: see reduction 4."""
        if self.grant(number) is not None:
            return None
        if client.jobs:
            return "job", number
        if client.link is not None and client.link.inbox:
            return "deliver", number
        if client.link is None and client.alive:
            return "reconnect", number
        if client.awaiting and client.alive and client.connected:
            return "renew", number
        return None

    def _of(self, number: int, client: Client) -> Iterator[Step]:
        """Yield what a client, its server and its caller can do without a fault."""
        link = client.link
        if link is None:
            yield "reconnect", number
        else:
            if link.asked and not link.closed:
                yield "serve", number
            if link.inbox:
                yield "deliver", number
            if link.lag:
                yield "advance", number
            if link.closed or not client.alive:
                yield "hang_up", number
        if client.jobs:
            yield "job", number
        if client.awaiting and client.alive and client.connected:
            yield "renew", number
        if self.grant(number) is not None:
            yield "release", number
        if client.late:
            yield "land", number

    def _faults(self) -> Iterator[Step]:
        kinds = self.bounds.kinds
        for number, client in self._acting():
            waits = not self.attempts[number].done
            if client.link is not None and client.alive and not client.link.closed:
                if "connection" in kinds:
                    yield "lose", number
                if "late" in kinds and client.link.writes:
                    yield "lose_slow", number
            if "session" in kinds and client.alive:
                yield "expire", number
            if "give up" in kinds and waits:
                yield "cancel", number
            if "lease" in kinds and waits and not client.refusals:
                yield "refuse", number
        if "node" in kinds:
            for number in range(len(self.server.tree.names(PATH))):
                yield "chop", number
        if "tree" in kinds and PATH in self.server.tree.nodes:
            yield "fell", -1

    # What they do.

    def take(self, step: Step) -> None:
        """Take a step, and look whether all is right."""
        self._do(step)
        self.judge()

    def repeat(self, steps: Iterable[Step]) -> None:
        """Take steps again, after which all was right."""
        for step in steps:
            self._do(step)
        self.judged = len(self.server.grants)
        for grant in self.server.grants:
            if grant.stood:
                self.top = grant.token

    def _do(self, step: Step) -> None:
        what, number = step
        self.left -= what in _FAULTS
        if what not in ("bury", "chop", "fell"):
            self.acting = max(self.acting, number + 1)
        STEPS[what](self, number, self.clients[number % len(self.clients)])

    def give_up(self, number: int) -> None:
        self.gave_up.add(number)
        self.attempts[number].cancel()

    def chop(self, number: int) -> None:
        path = f"{PATH}/{self.server.tree.names(PATH)[number]}"
        self.chopped.add(path)
        self.server.delete(path)

    def fell(self) -> None:
        while self.server.tree.names(PATH):
            self.chop(0)
        self.server.delete(PATH)

    # What must hold.

    def judge(self) -> None:
        """Fail if a promise is broken in this state."""
        grants = self.server.grants
        believers = [grant for grant in grants if self._believes(grant)]
        assert len(believers) <= 1, f"two believers: {[grant.path for grant in believers]}"
        for grant in believers:
            assert grant.path in self.server.tree.nodes, f"{grant.path} is gone, and is believed in"
        for grant in grants[self.judged :]:
            self._judge(grant)
        self.judged = len(grants)
        for attempt in self.attempts:
            error = outcome(attempt)
            assert not isinstance(error, BaseException), f"an error: {error!r}"

    def _believes(self, grant: FakeGrant) -> bool:
        """Whether a holder believes, and is right to: a watch tells it of what operators do."""
        client = grant.client
        return (
            not grant.over
            and client.session == grant.session
            and client.alive
            and grant.path not in self.chopped
        )

    def _judge(self, grant: FakeGrant) -> None:
        if not grant.stood:
            seen = Replica()
            for txn in self.server.log[: grant.client.seen]:
                seen.apply(txn)
            told = f"granted on {grant.path}, and its client was told that it is gone"
            assert grant.path in seen.tree.nodes, told
            return
        assert self.top is None or self.top < grant.token, f"{grant.token} after {self.top}"
        self.top = grant.token
        parent = self.server.tree.nodes[PATH]
        if parent.czxid == grant.token.epoch:
            earlier = [
                name
                for name in self.server.tree.names(PATH)
                if int(name[-10:]) < grant.token.sequence
            ]
            assert not earlier, f"{grant.path} was granted while {earlier} stood"

    def at_rest(self, steps: list[Step]) -> bool:
        """Whether nothing happens any more without a fault."""
        return not any(what in _FREE for what, _ in steps)

    def rest(self) -> None:
        """Fail if something is left where nothing can happen any more without a fault."""
        for number, attempt in enumerate(self.attempts):
            assert attempt.done, f"contender {number} is left waiting for a free lock"
            if outcome(attempt) is None:
                assert number in self.gave_up, f"contender {number} got nothing"
        assert self.server.tree.names(PATH) == [], "a node was left behind"
        assert not any(client.attempts for client in self.clients), "an attempt goes on"


Act: TypeAlias = Callable[[World, int, Any], object]


def _renew(world: World, number: int, client: Client) -> None:
    client.refusals = 0
    client.renew_lease()


_FREE: dict[str, Act] = {
    "serve": lambda world, number, client: client.serve(),
    "deliver": lambda world, number, client: client.deliver(),
    "advance": lambda world, number, client: client.link.advance(1),
    "reconnect": lambda world, number, client: client.reconnect(lag=EVERYTHING),
    "hang_up": lambda world, number, client: client.lose_connection(),
    "job": lambda world, number, client: client.run_job(),
    "renew": _renew,
    "release": lambda world, number, client: client.release(world.attempts[number].result()),
    "land": lambda world, number, client: client.land(),
    "bury": lambda world, number, client: world.server.bury(),
}
_FAULTS: dict[str, Act] = {
    "lose": lambda world, number, client: client.lose_connection(),
    "lose_slow": lambda world, number, client: client.lose_connection(late=True),
    "expire": lambda world, number, client: world.server.expire(client.session, lingering=True),
    "cancel": lambda world, number, client: world.give_up(number),
    "refuse": lambda world, number, client: setattr(client, "refusals", 1),
    "chop": lambda world, number, client: world.chop(number),
    "fell": lambda world, number, client: world.fell(),
}
STEPS = _FREE | _FAULTS


# The search.


@dataclass
class Found(Exception):
    """A promise was broken, after these steps."""

    why: str
    trace: list[Step]
    states: int

    def __str__(self) -> str:
        steps = "\n".join(f"  {what} {number}" for what, number in self.trace)
        return f"{self.why}, in state {self.states}, after\n{steps}"


@dataclass
class Covered:
    """What was explored without finding anything: distinct states, steps, ends, longest way."""

    states: int = 1
    steps: int = 0
    ends: int = 0
    deepest: int = 0
    taken: set[str] = field(default_factory=set)


def explore(bounds: Bounds) -> Covered:
    """Take every step from every state, once; raise `Found` if a promise is broken."""
    covered = Covered()
    trace: list[Step] = []
    world = World(bounds)
    seen = {spelled(world)}
    waiting = [world.steps()]  # the steps still to be taken, from each state on the way
    fresh = True  # whether the world is the state at the end of the trace
    while waiting:
        if not waiting[-1]:
            waiting.pop()
            if trace:
                trace.pop()
            fresh = False
            continue
        step = waiting[-1].pop()
        try:
            if not fresh:
                world = World(bounds)
                world.repeat(trace)
            trace.append(step)
            world.take(step)
            covered.taken.add(step[0])
            covered.steps += 1
            key = spelled(world)
            if key in seen:
                trace.pop()
                fresh = False
                continue
            seen.add(key)
            covered.states += 1
            covered.deepest = max(covered.deepest, len(trace))
            assert len(trace) < bounds.depth, "it goes on and on"
            steps = world.steps()
            if world.at_rest(steps):
                covered.ends += 1
                world.rest()
            waiting.append(steps)
            fresh = True
        except AssertionError as error:
            raise Found(str(error), trace, covered.states) from error
    return covered


def main(arguments: list[str]) -> None:
    """Explore: ``python -m tests.unit.explorer CONTENDERS FAULTS [KIND ...]``."""
    contenders, faults, *kinds = arguments
    print("explored:", explore(Bounds(int(contenders), int(faults), tuple(kinds) or FAULTS)))


if __name__ == "__main__":
    main(sys.argv[1:])
