"""Judges a demo of the pool by its events. Pure: events in, verdicts and failover times out.

An ownership lasts from the report of its grant to the last moment at which its owner is known to
have believed in it: the last look that found it held, or the moment before its release. Times are
those of the clock that all processes share.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from zklock.assignment import assign, moves
from zklock.cli.demo.checks import KILLED, Verdict
from zklock.cli.demo.events import Event
from zklock.token import FencingToken

CAUSES = {
    "stopped": "stop",
    "drains": "drain",
    "killed": "crash",
    "paused": "pause",
    "cut": "partition",
}
"""What is done to a worker, and the name of the failover that comes of it."""


@dataclass(slots=True)
class Ownership:
    """One shard under one owner."""

    worker: str
    shard: int
    token: FencingToken
    start: float
    believed: float
    end: Event | None = None

    def __str__(self) -> str:
        return f"{self.worker} ({self.token})"


@dataclass(frozen=True, slots=True)
class Failover:
    """How long shards were without an owner: seconds from the cause to the next grant."""

    cause: str
    worker: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The one in the middle."""
        return statistics.median(self.seconds)


@dataclass(slots=True)
class Record:
    """The events, in order of time, and the ownerships that they tell of."""

    events: list[Event]
    owned: dict[int, list[Ownership]] = field(default_factory=lambda: defaultdict(list))
    strays: list[str] = field(default_factory=list)

    def of(self, *kinds: str) -> list[Event]:
        """Return the events of these kinds."""
        return [event for event in self.events if event.what in kinds]

    def owners(self, at: float) -> dict[str, set[int]]:
        """Return who had what at that time, as far as was reported."""
        found: dict[str, set[int]] = defaultdict(set)
        for shard, each in self.owned.items():
            for one in each:
                if one.start <= at and (one.end is None or one.end.at > at):
                    found[one.worker].add(shard)
        return found


def record(events: Iterable[Event]) -> Record:
    """Sort out events."""
    found = Record(sorted(events, key=lambda event: event.at))
    known: dict[tuple[str, int, str], Ownership] = {}
    for event in found.of("granted"):
        token = FencingToken.parse(event["token"])
        one = Ownership(event.who, event["shard"], token, event.at, event.at)
        known[event.who, event["shard"], event["token"]] = one
        found.owned[event["shard"]].append(one)
    for event in found.of("look", "released", "lost"):
        held: Mapping[object, str] = (
            event["held"] if event.what == "look" else {event["shard"]: event["token"]}
        )
        for shard, text in held.items():
            seen = known.get((event.who, int(str(shard)), text))
            if seen is None:
                if event.what != "look":  # a look may come before the report of the grant
                    found.strays.append(f"{event.who} reports {event.what} of shard {shard}")
                continue
            if event.what != "look":
                seen.end = event
            if event.what != "lost":
                seen.believed = max(seen.believed, event.at)
    return found


def judge(events: Iterable[Event]) -> list[Verdict]:
    """Return the verdict of every check."""
    story = record(events)
    verdicts = []
    for name, title, check in _CHECKS:
        violations: list[str] = []
        finding = check(story, violations)
        verdicts.append(Verdict(name, title, finding, tuple(violations)))
    return verdicts


def failovers(events: Iterable[Event]) -> list[Failover]:
    """Return how long each shard of a worker to which something was done had no other owner."""
    story = record(events)
    found = []
    for event in story.of(*CAUSES):
        worker = event["worker"]
        seconds = []
        for shard in sorted(story.owners(event.at).get(worker, ())):
            later = (one.start for one in story.owned[shard] if one.worker != worker)
            after = min((start for start in later if start > event.at), default=math.nan)
            seconds.append(after - event.at)
        found.append(Failover(CAUSES[event.what], worker, tuple(seconds)))
    return found


def _complete(story: Record, violations: list[str]) -> str:
    violations += [f"the demo could not be finished: {it['why']}" for it in story.of("broken")]
    violations += [f"{stray}, which it was never granted" for stray in story.strays]
    for kind in ("opening", *CAUSES):
        if len(story.of(kind)) != 1:
            violations.append(f"{kind!r} happened {len(story.of(kind))} times, not once")
    if len(story.of("act")) != len(story.of("settled")):
        violations.append("not every act came to its end")
    grants = sum(map(len, story.owned.values()))
    return f"{len(story.of('act'))} acts, {grants} ownerships of {len(story.owned)} shards"


def _exclusive(story: Record, violations: list[str]) -> str:
    margin = math.inf
    for shard, owned in sorted(story.owned.items()):
        last: Ownership | None = None
        for one in owned:
            if last is not None:
                margin = min(margin, one.start - last.believed)
                if last.believed > one.start:
                    late = last.believed - one.start
                    violations.append(
                        f"shard {shard}: {last} still believed in it {late:.4f} s after it was "
                        f"granted to {one}"
                    )
            if last is None or one.believed > last.believed:
                last = one
    if margin == math.inf:
        violations.append("no shard has ever changed hands")
    return f"by the owners' own clock readings; smallest gap {margin * 1000:.1f} ms"


def _tokens(story: Record, violations: list[str]) -> str:
    pairs = 0
    for shard, owned in sorted(story.owned.items()):
        for before, after in pairwise(owned):
            pairs += 1
            if after.token <= before.token:
                violations.append(f"shard {shard}: {after} came after {before}")
    return f"{pairs} changes of ownership, each with a higher token"


def _balanced(story: Record, violations: list[str]) -> str:
    settled = story.of("settled")
    for event in settled:
        sizes = [len(mine) for mine in event["owned"].values()]
        shards = sorted(number for mine in event["owned"].values() for number in mine)
        if shards != list(range(event["shards"])):
            violations.append(f"after {event['after']!r} not every shard has one owner")
        if max(sizes) - min(sizes) > 1:
            violations.append(f"after {event['after']!r} the workers have {sizes}")
    if not settled:
        violations.append("the shards were never assigned")
    return f"{len(settled)} times all shards owned, each worker within one of the others"


def _few_moves(story: Record, violations: list[str]) -> str:
    told = []
    for before, after in pairwise(story.of("settled")):
        was = {who: frozenset(mine) for who, mine in before["owned"].items()}
        now = {who: frozenset(mine) for who, mine in after["owned"].items()}
        least = moves(was, assign(after["shards"], dict.fromkeys(now, 1.0), was))
        moved = moves(was, now)
        told.append(f"{after['after']} {moved}")
        if moved > least:
            violations.append(f"{after['after']}: {moved} shards moved, {least} would have done")
    return f"shards moved: {', '.join(told)}; each time the fewest that balance"


def _told(story: Record, violations: list[str]) -> str:
    """Those who were paused or cut off heard of every loss; the latter before the next grant."""
    lost = 0
    for event in story.of("paused", "cut"):
        worker = event["worker"]
        for shard in sorted(story.owners(event.at).get(worker, ())):
            mine = [it for it in story.owned[shard] if it.worker == worker and it.start <= event.at]
            end = mine[-1].end
            if end is None or end.what != "lost":
                violations.append(f"{worker} was {event.what} and not told that it lost {shard}")
                continue
            lost += 1
            later = [it.start for it in story.owned[shard] if it.start > mine[-1].start]
            if event.what == "cut" and later and end.at >= later[0]:
                violations.append(f"{worker} was told of shard {shard} after its next grant")
    return f"{lost} shards lost and told of; the one that was cut off knew before the next grant"


def _left_over(story: Record, violations: list[str]) -> str:
    left = story.of("left")
    if not left:
        violations.append("nobody looked what was left")
    violations += [f"{node} is still in ZooKeeper" for event in left for node in event["nodes"]]
    killed = {event["worker"] for event in story.of("killed")}
    codes = {event.who: event["code"] for event in story.of("ended")}
    for worker in sorted({event.who for event in story.of("ready")}):
        expected = KILLED if worker in killed else 0
        if codes.get(worker) != expected:
            violations.append(f"the process of {worker} ended with {codes.get(worker)}")
    return f"no contender and no member in ZooKeeper, {len(codes)} worker processes ended"


_CHECKS: Sequence[tuple[str, str, Callable[[Record, list[str]], str]]] = (
    ("complete", "all was played", _complete),
    ("exclusive", "never two owners of a shard at once", _exclusive),
    ("tokens", "the tokens of a shard only ever grow", _tokens),
    ("balanced", "shares are equal to within one shard", _balanced),
    ("few_moves", "no more moves than the balance asks for", _few_moves),
    ("told", "every loss is told of", _told),
    ("left_over", "nothing is left over", _left_over),
)

CHECKS = tuple(name for name, _, _ in _CHECKS)
"""The names of the checks, in order."""
