"""Whether what zklock tells of its locks is a behaviour of the model of the recipe.

The model is `docs/model/Recipe.tla`. What it does in one step is told by one event: a contender
that has entered the queue by `Queued`, `Claim` by `Granted`, `Release` by `Released`, the end of
belief by `Lost`. So a history of events is held against what the model says of any behaviour:

- **entered**: nobody is granted whose node was not seen in the queue before;
- **one believer** (``OneBeliever``): no two holders that block each other believe at once. A holder
  believes from its grant until it is released, until the loss is noticed, or until its lease ends;
- **tokens rise** (``TokensRise``, ``InOrder``): of two holders that block each other, the one
  granted later has the greater token. As a token is a place in the queue, this is first come,
  first served, among those who were granted;
- **own token**: a token's number is that of the node, and no node is granted twice, unless it was
  kept (``Granted.kept``): then its grants have one token, and one has ended before the next begins;
- **once**: a grant ends once, and after that nothing is told of it; in the end all have ended;
- **fence** (``ResourceInOrder``): what a resource refused is older than what it had accepted.

As in the model, belief and order say nothing of a holder whose node an operator has deleted: it
believes until it is told (`LossReason.NODE_DELETED`). The same holds if an operator has ended its
session, which tests do and ZooKeeper does not, while the lease ran. (Whether a session that expires
by itself ends after the lease is judged in the histories of chaos, by `tests.chaos.checker`.)

A late create tells no event: its node takes a number, as any node does, and goes.
If it stays, no event says so. The servers' log does (`tests.chaos.server_log`), and so do the tests
that look for what is left behind.

A history is that of one process, in the order in which the events were told. All times are of one
clock. A path on another server is another lock: `Elsewhere` says so. Readers do not block each
other, nor does a writer a reader that came later, as it may have become a reader, too; permits of a
semaphore block nobody by their tokens.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

from zklock import LossReason
from zklock.telemetry import (
    EpochChanged,
    Event,
    Granted,
    GrantEvent,
    Lost,
    Queued,
    Released,
    StaleTokenRefused,
)

ENTERED = "entered"
ONE_BELIEVER = "one believer"
TOKENS_RISE = "tokens rise"
OWN_TOKEN = "own token"
ONCE = "once"
FENCE = "fence"
RULES = (ENTERED, ONE_BELIEVER, TOKENS_RISE, OWN_TOKEN, ONCE, FENCE)

ALONE = {"exclusive", "read", "write", "election", "shard"}
"""The kinds of which one holder at most believes, but for readers; each is granted its own node."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A history is no behaviour of the model: which rule says so, and why."""

    rule: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere(Event):
    """From here on, other servers are meant: the next test begins."""


@dataclass(slots=True)
class _Belief:
    granted: Granted
    world: int
    ended: Released | Lost | None = None

    @property
    def end(self) -> float:
        """When the holder stopped to believe."""
        match self.ended:
            case Lost(at=noticed, lease_end=lease_end):
                return min(noticed, lease_end)
            case Released(at=at):
                return at
        return math.inf

    @property
    def struck(self) -> bool:
        """Whether an operator has deleted its node, or ended its session while the lease ran."""
        match self.ended:
            case Lost(reason=LossReason.NODE_DELETED):
                return True
            case Lost(reason=LossReason.SESSION_EXPIRED, at=at, lease_end=lease_end):
                return at < lease_end
        return False

    def __str__(self) -> str:
        granted = self.granted
        return f"{granted.identity} with {granted.node} ({granted.at:.6f} to {self.end:.6f})"


def faults(events: Iterable[Event]) -> list[Fault]:
    """Return where a history leaves the model, which is nowhere if zklock is right."""
    run = _Run()
    return [*(fault for event in events for fault in run.hear(event)), *run.over()]


def lasting(events: Iterable[Event]) -> list[str]:
    """Return the nodes of the grants that have not ended yet."""
    nodes: dict[tuple[str, int], None] = {}
    for event in events:
        if isinstance(event, Granted):
            nodes[event.node, event.session_id] = None
        elif isinstance(event, Released | Lost):
            nodes.pop((event.node, event.session_id), None)
    return [node for node, _ in nodes]


class _Run:
    """A run of the model, as far as a history has told of it."""

    def __init__(self) -> None:
        self._queued: set[str] = set()
        self._beliefs: dict[tuple[str, int], _Belief] = {}  # the newest of each node
        self._earlier: list[_Belief] = []  # of nodes that were kept
        self._world = 0

    def hear(self, event: Event) -> Iterator[Fault]:
        """Take the next event; yield what is wrong with it."""
        match event:
            case Queued(node=node):
                if node in self._queued:
                    yield Fault(ONCE, f"{node} entered the queue twice")
                self._queued.add(node)
            case Granted():
                yield from self._granted(event)
            case GrantEvent():
                yield from self._told(event)
            case Elsewhere():
                self._world += 1
            case EpochChanged(path=path, before=before, now=now) if before > now:
                yield Fault(TOKENS_RISE, f"{path}: epoch {now} after {before}")
            case StaleTokenRefused(resource=name, token=token, highest=highest):
                if highest is not None and token >= highest:
                    yield Fault(FENCE, f"{name} refused {token}, having seen only {highest}")

    def _granted(self, event: Granted) -> Iterator[Fault]:
        node, grant = event.node, (event.node, event.session_id)
        if event.kind in ALONE and node not in self._queued:
            yield Fault(ENTERED, f"{node} was granted, and nobody saw it in the queue")
        before = self._beliefs.get(grant)
        if event.kept and before is not None and before.granted.token == event.token:
            self._earlier.append(before)
        elif event.kept or before is not None:
            yield Fault(OWN_TOKEN, f"{node} was granted {'again' if event.kept else 'twice'}")
        if f"{event.token.sequence:010d}" != node[-10:]:
            yield Fault(OWN_TOKEN, f"{node} has the token {event.token}")
        self._beliefs[grant] = _Belief(event, self._world)

    def _told(self, event: GrantEvent) -> Iterator[Fault]:
        belief = self._beliefs.get((event.node, event.session_id))
        if belief is None or belief.ended is not None:
            over = "that was over" if belief else "that nobody was given"
            yield Fault(ONCE, f"{type(event).__name__} of {event.node}, {over}")
        elif isinstance(event, Released | Lost):
            belief.ended = event

    def over(self) -> Iterator[Fault]:
        """Yield what is wrong with the whole, now that nothing more is told."""
        by_lock: dict[tuple[int, str], list[_Belief]] = defaultdict(list)
        for belief in (*self._earlier, *self._beliefs.values()):
            if belief.ended is None:
                yield Fault(ONCE, f"{belief} never ended")
            if belief.granted.kind in ALONE and not belief.struck:
                by_lock[belief.world, belief.granted.path].append(belief)
        for beliefs in by_lock.values():
            yield from _of_one_lock(sorted(beliefs, key=lambda belief: belief.granted.at))


def _of_one_lock(beliefs: list[_Belief]) -> Iterator[Fault]:
    for before, after in combinations(beliefs, 2):
        if after.granted.kind == "read" and before.granted.kind in ("read", "write"):
            continue
        if after.granted.at < before.end:
            yield Fault(ONE_BELIEVER, f"{after} began in the time of {before}")
        again = after.granted.kept and after.granted.node == before.granted.node
        if after.granted.token <= before.granted.token and not again:
            yield Fault(TOKENS_RISE, f"{after} came after {before}")
