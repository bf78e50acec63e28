"""Judges a demo of the pool by its events. Pure: events in, verdicts and failover times out.

To the checker that also judges chaos, each shard is a lock. This module adds what only a pool has.
Times are from the clock that all processes share.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from zklock._pool.assignment import assign, moves
from zklock.testing.checker import Rule
from zklock.testing.demo.checks import Checks, Report, Story, Verdict, left_over, verdicts
from zklock.testing.demo.events import Event
from zklock.testing.history import Holding

CAUSES = {
    "stopped": "stop",
    "drains": "drain",
    "killed": "crash",
    "paused": "pause",
    "cut": "partition",
}
"""What is done to a worker, and the name of the failover that follows."""


@dataclass(frozen=True, slots=True)
class Failover:
    """How long shards had no owner: seconds from the cause to the next grant."""

    cause: str
    worker: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.seconds)


def judge(events: Iterable[Event]) -> list[Verdict]:
    """Return the verdict of every check."""
    return verdicts(events, _CHECKS)


def failovers(events: Iterable[Event]) -> list[Failover]:
    """Return, for each worker with a fault, how long each of its shards had no other owner."""
    story = Story(events)
    found = []
    for event in story.of(*CAUSES):
        worker = event["worker"]
        seconds = []
        for owned in _owned(story, worker, event.at):
            later = [it.began for it in _after(story, owned, event.at) if it.source != worker]
            seconds.append(min(later, default=math.nan) - event.at)
        found.append(Failover(CAUSES[event.what], worker, tuple(seconds)))
    return found


def _complete(story: Story, report: Report) -> None:
    for event in story.of("broken"):
        report.violate(f"the demo could not be finished: {event['why']}")
    for stray in story.record.strays:
        report.violate(f"{stray.source} reports {stray.kind} of what it was never granted")
    for kind in ("opening", *CAUSES):
        if len(story.of(kind)) != 1:
            report.violate(f"{kind!r} happened {len(story.of(kind))} times, not once")
    if len(story.of("act")) != len(story.of("settled")):
        report.violate("not every act came to its end")
    shards = {grant.lock for grant in story.grants}
    report.finding = (
        f"{len(story.of('act'))} acts, {len(story.grants)} ownerships of {len(shards)} shards"
    )


def _exclusive(story: Story, report: Report) -> None:
    report.violations += story.broken(Rule.EXCLUSION, Rule.FINAL)
    if story.margin() == math.inf:
        report.violate("no shard has ever changed hands")
    report.finding = (
        f"by the owners' own clock readings; smallest gap {story.margin() * 1000:.1f} ms"
    )


def _tokens(story: Story, report: Report) -> None:
    report.violations += story.broken(Rule.TOKENS)
    changes = sum(len(owned) - 1 for owned in story.record.locks())
    report.finding = f"{changes} changes of ownership, each with a higher token"


def _balanced(story: Story, report: Report) -> None:
    settled = story.of("settled")
    for event in settled:
        sizes = [len(mine) for mine in event["owned"].values()]
        shards = sorted(number for mine in event["owned"].values() for number in mine)
        if shards != list(range(event["shards"])):
            report.violate(f"after {event['after']!r} not every shard has one owner")
        if max(sizes) - min(sizes) > 1:
            report.violate(f"after {event['after']!r} the workers have {sizes}")
    if not settled:
        report.violate("the shards were never assigned")
    report.finding = f"{len(settled)} times all shards owned, each worker within one of the others"


def _few_moves(story: Story, report: Report) -> None:
    told = []
    for before, after in pairwise(story.of("settled")):
        was = {who: frozenset(mine) for who, mine in before["owned"].items()}
        now = {who: frozenset(mine) for who, mine in after["owned"].items()}
        least = moves(was, assign(range(after["shards"]), dict.fromkeys(now, 1.0), was))
        moved = moves(was, now)
        told.append(f"{after['after']} {moved}")
        if moved > least:
            report.violate(f"{after['after']}: {moved} shards moved, {least} would have done")
    report.finding = f"shards moved: {', '.join(told)}; each time the fewest that balance"


def _told(story: Story, report: Report) -> None:
    """Check that paused and cut-off workers heard of losses; if cut off, before the next grant."""
    report.violations += story.broken(Rule.REPORT)
    lost = 0
    for event in story.of("paused", "cut"):
        for owned in _owned(story, event["worker"], event.at):
            if not owned.losses:
                report.violate(f"{owned} was {event.what} and not told of its loss")
                continue
            lost += 1
            later = _after(story, owned, owned.began)
            if event.what == "cut" and later and owned.losses[0].at >= later[0].began:
                report.violate(f"{owned} was told of its loss after the next grant")
    report.finding = (
        f"{lost} shards lost and told of; the one that was cut off knew before the next grant"
    )


def _left_over(story: Story, report: Report) -> None:
    ended = left_over(story, report, {event.who for event in story.of("ready")})
    report.finding = f"no contender and no member in ZooKeeper, {ended} worker processes ended"


_CHECKS: Checks = (
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


def _owned(story: Story, worker: str, at: float) -> list[Holding]:
    """Return what this worker had at that time, by shard, as far as the events tell."""
    found = {}
    for grant in story.grants:
        ends = [event.at for event in (grant.released, *grant.losses) if event is not None]
        if grant.source == worker and grant.began <= at < min(ends, default=math.inf):
            found[int(grant.lock)] = grant
    return [found[shard] for shard in sorted(found)]


def _after(story: Story, grant: Holding, at: float) -> list[Holding]:
    """Return the later grants of the same shard, from this time on."""
    return [it for it in story.record.of(grant.lock) if it.began > at and it is not grant]
