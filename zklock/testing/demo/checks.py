"""Judges a demo by its events. Pure: events in, verdicts out.

No single source is trusted. The order comes from the znode names and from what ZooKeeper listed,
the tokens from the grants, the intervals from the holders' own clock readings, and the ledger from
SQLite. The checker that also judges chaos (``zklock.testing.checker``) decides about what a lock
must never do. This module adds what only this demo has. An empty log passes no check.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from zklock.testing import checker
from zklock.testing.checker import Rule
from zklock.testing.demo.events import Event
from zklock.testing.demo.translation import history_of
from zklock.testing.history import Holding, Record

KILLED = -9
"""The exit code of a process that SIGKILL has ended."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one check.

    ``finding`` says what was seen. ``violations`` has each thing that must not have happened.
    ``figures`` has the measurements, in seconds unless the name says otherwise.
    """

    name: str
    title: str
    finding: str
    violations: tuple[str, ...]
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        """Whether nothing was violated."""
        return not self.violations


class Report:
    """A verdict that is being made."""

    def __init__(self) -> None:
        self.finding = ""
        self.violations: list[str] = []
        self.figures: dict[str, float] = {}

    def violate(self, what: str) -> None:
        """Note a thing that must not have happened."""
        self.violations.append(what)


class Story:
    """The events of a demo, in order of time; the grants in them, and the checker's verdict."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = sorted(events, key=lambda event: event.at)
        told = history_of(self.events)
        self.record = Record(told)
        self.verdict = checker.check(told)
        self.grants = sorted(self.record.grants.values(), key=lambda grant: grant.began)

    def of(self, *kinds: str) -> list[Event]:
        """Return the events of these kinds."""
        return [event for event in self.events if event.what in kinds]

    def broken(self, *rules: Rule) -> list[str]:
        """Return the violations of these rules of locks."""
        return [each.what for each in self.verdict.violations if each.rule in rules]

    def margin(self) -> float:
        """Return the smallest time from the end of one grant's interval to the next grant."""
        return min((each.seconds for each in self.verdict.margins.values()), default=math.inf)

    def holder(self, worker: str, at: float) -> Holding | None:
        """Return the grant that this worker had at that time."""
        mine = [it for it in self.grants if it.source == worker and it.began <= at]
        if not mine or (mine[-1].released is not None and mine[-1].released.at <= at):
            return None
        return mine[-1]

    def next_after(self, grant: Holding) -> Holding | None:
        """Return the next grant after this one."""
        later = self.grants[self.grants.index(grant) + 1 :]
        return later[0] if later else None


Checks = Sequence[tuple[str, str, Callable[[Story, Report], None]]]


def verdicts(events: Iterable[Event], checks: Checks) -> list[Verdict]:
    """Return the verdict of each of these checks."""
    story = Story(events)
    found = []
    for name, title, check in checks:
        report = Report()
        check(story, report)
        found.append(Verdict(name, title, report.finding, tuple(report.violations), report.figures))
    return found


def judge(events: Iterable[Event]) -> list[Verdict]:
    """Return the verdict of every check."""
    return verdicts(events, _CHECKS)


def _complete(story: Story, report: Report) -> None:
    for event in story.of("broken"):
        report.violate(f"the demo could not be finished: {event['why']}")
    for kind, count in (("opening", 1), ("act", 4), ("killed", 1), ("paused", 1), ("cut", 1)):
        if len(story.of(kind)) != count:
            report.violate(f"{kind!r} happened {len(story.of(kind))} times, not {count}")
    asked = Counter(event.who for event in story.of("asks"))
    granted = Counter(grant.source for grant in story.grants)
    for worker in sorted(asked | granted):
        if asked[worker] != granted[worker]:
            report.violate(
                f"{worker} asked {asked[worker]} times and was granted {granted[worker]} times"
            )
    for stray in story.record.strays:
        report.violate(f"{stray.source} reports {stray.kind} of what it was never granted")
    report.finding = f"4 acts; {asked.total()} times asked, {len(story.grants)} times granted"


def _order(story: Story, report: Report) -> None:
    """Check that grants follow the sequence numbers, and the queue that was seen."""
    _needs_grants(story, report)
    for before, after in pairwise(story.grants):
        if _sequence(before) >= _sequence(after):
            report.violate(
                f"{after} has sequence number {_sequence(after)} and was granted after {before}, "
                f"which has {_sequence(before)}"
            )
    queues = story.of("queue")
    if not any(len(event["contenders"]) > 1 for event in queues):
        report.violate("nobody was ever seen to queue")
    places_of = {_sequence(it): (place, it.source) for place, it in enumerate(story.grants)}
    for event in queues:
        places = []
        for contender in event["contenders"]:
            place, worker = places_of.get(contender["sequence"], (0, None))
            if worker == contender["worker"]:
                places.append(place)
            else:
                report.violate(f"{contender['worker']} queued and got no grant for that place")
        if places != sorted(places):
            names = " ".join(contender["worker"] for contender in event["contenders"])
            report.violate(f"the queue {names} was not served in this order")
    longest = max((len(event["contenders"]) for event in queues), default=0)
    report.finding = (
        f"sequence numbers {min(places_of, default='-')} … {max(places_of, default='-')}, "
        f"the queue as ZooKeeper listed it, up to {longest} long"
    )


def _tokens(story: Story, report: Report) -> None:
    _needs_grants(story, report)
    report.violations += story.broken(Rule.TOKENS)
    tokens = [grant.token for grant in story.grants]
    report.finding = f"{len(set(tokens))} tokens, {' … '.join(map(str, tokens[:1] + tokens[-1:]))}"


def _exclusive(story: Story, report: Report) -> None:
    """Check that no holder still believed in its lock when the next one had it."""
    _needs_grants(story, report)
    report.violations += story.broken(Rule.EXCLUSION, Rule.FINAL)
    report.finding = (
        f"{len(story.grants)} intervals by the holders' own clock readings, none overlap"
    )
    if story.margin() < math.inf:
        report.figures["smallest_gap"] = story.margin()
        report.finding += f"; smallest gap {story.margin() * 1000:.1f} ms"


def _ledger(story: Story, report: Report) -> None:
    """Compare the ledger with what its writers were told, in the order of their tokens."""
    entries = [entry for event in story.of("ledger") for entry in event["entries"]]
    if not entries:
        report.violate("the ledger is empty")
    report.violations += story.broken(Rule.FENCE)
    wrote = {(entry["worker"], entry["token"]) for entry in entries}
    finished = {(it.source, str(it.token)) for it in story.grants if it.given_back}
    for worker, token in sorted(finished - wrote):
        report.violate(f"{worker} finished its grant {token} and its entry is missing")
    for worker, token in sorted(wrote - finished):
        report.violate(f"{worker} wrote under {token}, and has no finished grant with it")
    report.finding = f"{len(entries)} entries by {len(finished)} finished grants, numbered 1 … n"


def _callbacks(story: Story, report: Report) -> None:
    """Check that every grant ended in a release, in one lost callback, or with its process."""
    _needs_grants(story, report)
    report.violations += story.broken(Rule.REPORT)
    lost = sum(bool(grant.losses) for grant in story.grants)
    released = sum(grant.given_back for grant in story.grants)
    report.finding = f"{lost} grants lost and told of once each, {released} released"


def _killed(story: Story, report: Report) -> None:
    event, grant, after = _victim(story, report, "killed")
    if event is None or grant is None or after is None:
        return
    waited = after.began - event.at
    timeout = max((float(it["session_timeout"]) for it in story.of("opening")), default=math.nan)
    report.figures = {"next_grant_after": waited, "session_timeout": timeout}
    report.finding = (
        f"{grant.source} killed; {after.source} granted {waited:.2f} s later "
        f"(session timeout {timeout:g} s)"
    )


def _paused(story: Story, report: Report) -> None:
    event, grant, after = _victim(story, report, "paused")
    if event is None or grant is None or after is None:
        return
    worker, token = grant.source, str(grant.token)
    back = [it.at for it in story.of("resumed") if it["worker"] == worker]
    if len(back) != 1:
        report.violate(f"{worker} was resumed {len(back)} times, not once")
        return
    resumed = back[0]
    if after.began > resumed:
        report.violate(f"{after} was granted only after {worker} was resumed")
    looks = [it for it in story.of("look") if (it.who, it["token"]) == (worker, token)]
    first = [it["held"] for it in looks if it.at >= resumed][:1]
    if first != [False]:
        found = "True" if first else "nothing"
        report.violate(f"{worker} found held to be {found} at its first look after the pause")
    if not any(loss.at >= resumed for loss in grant.losses):
        report.violate(f"{worker} was not told by its callback that it lost the lock")
    refusals = [it for it in story.of("refused") if it["token"] == token]
    if not refusals:
        report.violate(f"the late write of {grant} was not refused by the ledger")
    for refusal in refusals:
        if refusal["highest"] <= refusal["token"]:
            report.violate(f"the ledger refused {grant}, whose token is not older than what it saw")
    report.figures = {"paused": resumed - event.at, "next_grant_after": after.began - event.at}
    report.finding = (
        f"{worker} paused for {resumed - event.at:.2f} s; {after.source} granted after "
        f"{after.began - event.at:.2f} s; then held was False at the first look, "
        "and the late write refused"
    )


def _cut(story: Story, report: Report) -> None:
    event, grant, after = _victim(story, report, "cut")
    if event is None or grant is None or after is None:
        return
    if not grant.losses:
        report.violate(f"{grant.source} was not told by its callback that it lost the lock")
        return
    told = grant.losses[0].at
    margin = after.began - told
    if margin <= 0:
        report.violate(
            f"{grant} was told of its loss {-margin * 1000:.1f} ms after {after} was granted"
        )
    report.figures = {
        "lost_callback_after": told - event.at,
        "next_grant_after": after.began - event.at,
        "margin": margin,
    }
    report.finding = (
        f"{grant.source} was told {told - event.at:.3f} s after the cut, {after.source} granted "
        f"{after.began - event.at:.3f} s after it: {margin:.3f} s to spare"
    )


def _left_over(story: Story, report: Report) -> None:
    workers = {worker for event in story.of("opening") for worker in event["workers"]}
    ended = left_over(story, report, workers)
    report.finding = f"no contender in ZooKeeper, {ended} worker processes ended"


def left_over(story: Story, report: Report, workers: Iterable[str]) -> int:
    """Check what is left in ZooKeeper and how the workers ended; return how many ended."""
    report.violations += story.broken(Rule.SERVICE, Rule.SURPRISE)
    killed = {event["worker"] for event in story.of("killed")}
    codes = {event.who: event["code"] for event in story.of("ended")}
    for worker in sorted(workers):
        if worker not in codes:
            report.violate(f"the process of {worker} has not ended")
        elif codes[worker] != (KILLED if worker in killed else 0):
            report.violate(f"the process of {worker} ended with code {codes[worker]}")
    return len(codes)


_CHECKS: Checks = (
    ("complete", "all was played", _complete),
    ("order", "grants in order of asking", _order),
    ("tokens", "tokens only ever grow", _tokens),
    ("exclusive", "never two holders at once", _exclusive),
    ("ledger", "the ledger is that of the grants", _ledger),
    ("callbacks", "every loss told of once", _callbacks),
    ("killed", "a killed holder is succeeded", _killed),
    ("paused", "a paused holder is fenced off", _paused),
    ("cut", "a cut-off holder knows first", _cut),
    ("left_over", "nothing is left over", _left_over),
)

CHECKS = tuple(name for name, _, _ in _CHECKS)
"""The names of the checks, in order."""


def _victim(
    story: Story, report: Report, kind: str
) -> tuple[Event | None, Holding | None, Holding | None]:
    """Return the fault of this kind, the grant of its victim, and the next grant."""
    event = next(iter(story.of(kind)), None)
    if event is None:
        report.violate(f"nobody was {kind}")
        return None, None, None
    grant = story.holder(event["worker"], event.at)
    if grant is None:
        report.violate(f"{event['worker']} was {kind} when it did not hold the lock")
        return event, None, None
    after = story.next_after(grant)
    if after is None:
        report.violate(f"nobody was granted the lock after {grant} was {kind}")
    elif after.began < event.at:
        report.violate(f"{after} was granted before {grant} was {kind}")
        after = None
    return event, grant, after


def _needs_grants(story: Story, report: Report) -> None:
    if not story.grants:
        report.violate("nothing was granted")


def _sequence(grant: Holding) -> int:
    return int(grant.node.rpartition("-")[2])
