"""Decides from a history whether the lock kept its promises. Pure.

**The lease interval** of a grant is the time for which its holder demonstrably believed in it:

- It begins when the library made the grant (``began``, read inside the library, not later than
  ``acquire`` returned).
- It ends at the last moment of which it is certain that ``held`` was or would have been true:
  just *before* a look at ``held`` that said yes; just before a ``release()`` that found the grant
  held; or, for a lost grant, the earlier of the end of its lease and the moment the loss was
  noticed, as any look before that would have said yes.
- Somebody else who deletes the holder's node ends the interval at that moment: nothing that the
  holder does can protect it from that, only the fencing token.

So an interval never claims a moment that the holder could dispute, however it was paused between
a look and its note; a grant whose lease was over before the holder was told has none.

Times are seconds since boot, of one machine.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate, pairwise

from tests.chaos.history import Event
from zklock.token import FencingToken

CRASHED = "CRASHED"
RELEASED = "RELEASED"


class Rule(Enum):
    """What is decided."""

    EXCLUSION = "no two lease intervals of a lock overlap"
    TOKENS = "tokens strictly increase in the order of grants"
    QUEUE = "grants follow the order of the queue"
    FENCE = "no store accepts a token lower than an earlier one; its data are the accepted writes"
    REPORT = "every lost grant is reported once and in time, and no other is"
    SERVICE = "every call ends in time; after the faults all are served and nothing is left"
    SURPRISE = "no error but the documented ones, no process ends by itself"


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken, at a time of the history's clock."""

    rule: Rule
    at: float
    what: str

    def __str__(self) -> str:
        return f"{self.rule.name} at {self.at:.6f}: {self.what}"


@dataclass(frozen=True, slots=True)
class Margin:
    """The seconds from the end of one grant's interval to the next grant."""

    seconds: float
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much time is allowed, in seconds.

    ``slack``: beyond what is promised, for a busy machine. ``service``: from the end of the faults
    until all are served.
    """

    slack: float = 3.0
    service: float = 30.0


@dataclass(slots=True)
class Verdict:
    """The violations, and the figures of the run.

    ``margins``: the smallest one for each way in which a grant ended (a ``LossReason``'s name,
    ``RELEASED``, ``CRASHED``). ``noticed``: the smallest time from the noticing of a loss to the
    next grant, for each reason, over holders that were not paused meanwhile; one whose lease
    lapsed while its session lived deletes its znode as soon as it can. ``late``: the longest time
    from the end of a lease to its report, likewise.
    """

    violations: list[Violation] = field(default_factory=list)
    grants: int = 0
    asks: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    margins: dict[str, Margin] = field(default_factory=dict)
    noticed: dict[str, Margin] = field(default_factory=dict)
    late: float = 0.0


@dataclass(slots=True)
class _Grant:
    node: str
    lock: str
    token: FencingToken
    source: str
    began: float
    held: list[float] = field(default_factory=list)
    unheld: float = math.inf
    released: Event | None = None
    outcome: str | None = None
    losses: list[Event] = field(default_factory=list)
    broken: float = math.inf

    @property
    def given_back(self) -> bool:
        return self.released is not None and self.outcome == "done"

    @property
    def end(self) -> float:
        certain = [*self.held]
        if self.given_back and self.released is not None and self.released["how"] == "release":
            certain.append(self.released.at)
        certain += [min(loss["noticed"], loss["lease_end"]) for loss in self.losses]
        return min(self.broken, max(certain, default=-math.inf))

    @property
    def ended_by(self) -> str:
        if self.losses:
            return str(self.losses[0]["reason"])
        return RELEASED if self.given_back else CRASHED

    def __str__(self) -> str:
        return f"{self.source} {self.node} ({self.ended_by.lower()})"


class _Case:
    """One history, sorted by what it is about."""

    def __init__(self, events: Iterable[Event], bounds: Bounds) -> None:
        self.bounds = bounds
        self.verdict = Verdict()
        self.by_kind: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            self.by_kind[event.kind].append(event)
        self.dead = {event["worker"] for event in self.by_kind["kill"]}
        self.dead |= {event.source for event in self.by_kind["crash"]}
        self.pauses: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for event in self.by_kind["pause"]:
            self.pauses[event["worker"]].append((event.at, event["until"]))
        self.grants: dict[str, _Grant] = {}
        self._gather()
        self.calm = max((event.at for event in self.by_kind["calm"]), default=math.inf)

    def _gather(self) -> None:
        for event in self.by_kind["grant"]:
            if event["node"] in self.grants:
                self.violate(Rule.TOKENS, event.at, f"{event['node']} was granted twice")
            self.grants[event["node"]] = _Grant(
                event["node"],
                event["lock"],
                FencingToken.parse(event["token"]),
                event.source,
                event["began"],
            )
        for event in self.by_kind["break"]:
            if broken := self.grants.get(event["node"]):
                broken.broken = min(broken.broken, event.at)
        take: dict[str, Callable[[_Grant, Event], None]] = {
            "held": lambda grant, event: grant.held.append(event.at),
            "unheld": lambda grant, event: setattr(grant, "unheld", min(grant.unheld, event.at)),
            "release": lambda grant, event: setattr(grant, "released", event),
            "released": lambda grant, event: setattr(grant, "outcome", event["outcome"]),
            "lost": lambda grant, event: grant.losses.append(event),
        }
        for kind, note in take.items():
            for event in self.by_kind[kind]:
                if grant := self.grants.get(event["node"]):
                    note(grant, event)
                elif event.source not in self.dead:
                    self.violate(Rule.REPORT, event.at, f"{kind} of no grant: {event['node']}")

    def violate(self, rule: Rule, at: float, what: str) -> None:
        self.verdict.violations.append(Violation(rule, at, what))

    def paused(self, source: str, begin: float, end: float) -> float:
        """Return for how long a worker was paused in this time."""
        spans = self.pauses[source]
        return sum(max(0.0, min(end, until) - max(begin, at)) for at, until in spans)

    def locks(self) -> Iterable[list[_Grant]]:
        """Yield the grants of each lock that have an interval, in the order of their beginning."""
        by_lock: dict[str, list[_Grant]] = defaultdict(list)
        for grant in self.grants.values():
            if grant.end >= grant.began:
                by_lock[grant.lock].append(grant)
        for grants in by_lock.values():
            yield sorted(grants, key=lambda grant: grant.began)


def check(events: Sequence[Event], bounds: Bounds | None = None) -> Verdict:
    """Decide about a whole history. The docstrings of ``worker`` and ``run`` name its events."""
    case = _Case(events, bounds or Bounds())
    for decide in (_exclusion, _tokens, _queue, _fence, _refusals, _reports, _service, _surprises):
        decide(case)
    _count(case)
    case.verdict.violations.sort(key=lambda violation: violation.at)
    return case.verdict


def _exclusion(case: _Case) -> None:
    verdict = case.verdict
    for grants in case.locks():
        latest: _Grant | None = None
        for grant in grants:
            if latest is not None:
                margin = Margin(grant.began - latest.end, str(latest), str(grant))
                if margin.seconds < 0:
                    case.violate(
                        Rule.EXCLUSION,
                        grant.began,
                        f"{grant} began {-margin.seconds:.6f} s before the end of {latest}",
                    )
                if latest.broken == math.inf:
                    _note_margins(case, latest, grant, margin)
            if latest is None or grant.end > latest.end:
                latest = grant
    verdict.margins = dict(sorted(verdict.margins.items()))


def _note_margins(case: _Case, before: _Grant, after: _Grant, margin: Margin) -> None:
    verdict = case.verdict
    known = verdict.margins.get(before.ended_by)
    if known is None or margin.seconds < known.seconds:
        verdict.margins[before.ended_by] = margin
    if before.losses:
        noticed = before.losses[0]["noticed"]
        if not case.paused(before.source, before.end - case.bounds.slack, noticed):
            seen = Margin(after.began - noticed, margin.before, margin.after)
            best = verdict.noticed.get(before.ended_by)
            if best is None or seen.seconds < best.seconds:
                verdict.noticed[before.ended_by] = seen


def _tokens(case: _Case) -> None:
    for grants in case.locks():
        for one, other in pairwise(grants):
            if other.token <= one.token:
                case.violate(
                    Rule.TOKENS, other.began, f"{other.token} of {other} after {one.token} of {one}"
                )
    for grant in case.grants.values():
        if f"{grant.token.sequence:010d}" != grant.node[-10:]:
            case.violate(Rule.TOKENS, grant.began, f"{grant} has token {grant.token}")


def _queue(case: _Case) -> None:
    """Nobody was granted while somebody with a lower number stood in the queue.

    Numbers are given in the order of creation, so whoever stands with a lower number stood
    already when a higher one was created.
    """
    granted: dict[tuple[str, int], list[_Grant]] = defaultdict(list)
    for grant in case.grants.values():
        granted[grant.lock, grant.token.epoch].append(grant)
    highest: dict[tuple[str, int], tuple[list[float], list[int]]] = {}
    for key, grants in granted.items():
        grants.sort(key=lambda grant: grant.began)
        sequences = list(accumulate((grant.token.sequence for grant in grants), max))
        highest[key] = [grant.began for grant in grants], sequences
    for event in case.by_kind["queue"]:
        begun, sequences = highest[event["lock"], event["epoch"]]
        earlier = bisect_left(begun, event.at)
        lowest = min(event["standing"], default=None)
        if lowest is None:
            case.violate(Rule.QUEUE, event.at, f"{event['node']} held, and nobody stood in line")
            continue
        if earlier and sequences[earlier - 1] > lowest:
            case.violate(
                Rule.QUEUE,
                event.at,
                f"{event['lock']}: {sequences[earlier - 1]} was granted while {lowest} stood",
            )


def _fence(case: _Case) -> None:
    begun = {event["write"]: event for event in case.by_kind["write"]}
    outcomes = {event["write"]: event for event in case.by_kind["written"]}
    accepted: Counter[str] = Counter()
    stores = set()
    for contents in case.by_kind["contents"]:
        store, lock = contents["store"], contents["lock"]
        stores.add((store, lock))
        name = f"{store} of {lock}"
        highest = ""
        for number, (write, token, value) in enumerate(contents["writes"], 1):
            accepted[write] += 1
            was = begun.get(write)
            if was is None or (was["store"], was["lock"], was["token"], was["value"]) != (
                store,
                lock,
                token,
                value,
            ):
                case.violate(Rule.FENCE, contents.at, f"{name}: nobody wrote {write} like this")
            at = contents.at if was is None else was.at
            if token < highest:
                case.violate(Rule.FENCE, at, f"{name}: {write} with {token} after {highest}")
            if value != number:
                case.violate(Rule.FENCE, at, f"{name}: {write} made {value} of {number - 1}")
            highest = max(highest, token)
        if contents["value"] != len(contents["writes"]):
            case.violate(
                Rule.FENCE,
                contents.at,
                f"{name} says {contents['value']} after {len(contents['writes'])} writes",
            )
    for write, event in begun.items():
        if (event["store"], event["lock"]) not in stores:
            case.violate(Rule.FENCE, event.at, f"no contents of {event['store']} {event['lock']}")
        outcome = outcomes[write]["outcome"] if write in outcomes else "unknown"
        allowed = {"accepted": {1}, "unknown": {0, 1}}.get(outcome, {0})
        if accepted[write] not in allowed:
            case.violate(
                Rule.FENCE, event.at, f"{write} was {outcome}, and is there {accepted[write]} times"
            )


def _refusals(case: _Case) -> None:
    """A store refuses only those whose grant is over."""
    begun = {event["write"]: event for event in case.by_kind["write"]}
    for event in case.by_kind["written"]:
        if event["outcome"] != "refused":
            continue
        grant = case.grants.get(begun[event["write"]]["node"])
        if grant is not None and grant.broken == math.inf and grant.end > event.at:
            case.violate(Rule.FENCE, event.at, f"{event['write']} of {grant} was refused")


def _reports(case: _Case) -> None:
    broken = {event["node"] for event in case.by_kind["break"]}
    closing = {event.source for event in case.by_kind["close"]}
    for grant in case.grants.values():
        at = grant.losses[0].at if grant.losses else min(grant.unheld, grant.began)

        def wrong(what: str, at: float = at, grant: _Grant = grant) -> None:
            case.violate(Rule.REPORT, at, f"{grant} {what}")

        if len(grant.losses) > 1:
            wrong(f"was reported lost {len(grant.losses)} times")
        if (
            grant.losses
            and grant.given_back
            and grant.released
            and (grant.released["how"] == "release")
        ):
            wrong("was reported lost although it was released")
        if (
            grant.unheld < math.inf
            and grant.given_back
            and grant.released
            and (grant.released["how"] == "release" and grant.released.at > grant.unheld)
        ):
            wrong("could be released although it was not held")
        over = grant.outcome == "lost" or grant.unheld < math.inf
        if grant.source not in case.dead and not grant.losses and not grant.given_back:
            wrong("is over without a report" if over else "never ended")
        if max(grant.held, default=-math.inf) > grant.unheld:
            wrong("was held again")
        for loss in grant.losses:
            _report(case, grant, loss, broken, closing)


def _report(case: _Case, grant: _Grant, loss: Event, broken: set[str], closing: set[str]) -> None:
    reason, noticed, lease_end = loss["reason"], loss["noticed"], loss["lease_end"]
    if max(grant.held, default=-math.inf) > noticed:
        case.violate(Rule.REPORT, loss.at, f"{grant} was held after its loss was noticed")
    if reason == "LEASE_LAPSED" and noticed < lease_end:
        case.violate(Rule.REPORT, loss.at, f"{grant} was lost before its lease was over")
    if reason == "NODE_DELETED" and grant.node not in broken:
        case.violate(Rule.REPORT, loss.at, f"{grant}: nobody deleted its node")
    if reason == "CLIENT_CLOSED" and grant.source not in closing:
        case.violate(Rule.REPORT, loss.at, f"{grant}: nobody closed its client")
    due = min(noticed, lease_end)
    late = loss.at - due - case.paused(grant.source, due, loss.at)
    if not case.paused(grant.source, due - case.bounds.slack, loss.at):
        case.verdict.late = max(case.verdict.late, late)
    if late > case.bounds.slack:
        case.violate(Rule.REPORT, loss.at, f"{grant} was reported lost {late:.3f} s late")


def _service(case: _Case) -> None:
    bounds = case.bounds
    if case.calm == math.inf:
        case.violate(Rule.SERVICE, 0.0, "the history has no end of the faults")
    answers: dict[str, Event] = {}
    for kind in ("grant", "answer"):
        for event in case.by_kind[kind]:
            if event["ask"] in answers:
                case.violate(Rule.SERVICE, event.at, f"{event['ask']} was answered twice")
            answers[event["ask"]] = event
    for ask in case.by_kind["ask"]:
        name, answer = f"{ask['ask']} for {ask['lock']}", answers.get(ask["ask"])
        if answer is None:
            if ask.source not in case.dead:
                case.violate(Rule.SERVICE, ask.at, f"{name} never ended")
            continue
        deadline = ask.at + ask["timeout"]
        late = answer.at - deadline - case.paused(ask.source, ask.at, answer.at)
        if late > bounds.slack:
            case.violate(Rule.SERVICE, answer.at, f"{name} ended {late:.3f} s after its timeout")
        due = max(case.calm, ask.at) + bounds.service
        unserved = answer.at > due or (answer.kind == "answer" and answer["outcome"] == "none")
        if answer.at > case.calm and deadline >= due and unserved:
            case.violate(Rule.SERVICE, answer.at, f"{name} was not served after the faults")
    for event in case.by_kind["left"]:
        if event["names"]:
            case.violate(Rule.SERVICE, event.at, f"left in {event['lock']}: {event['names']}")
    if not case.by_kind["left"]:
        case.violate(Rule.SERVICE, case.calm, "nobody looked for what is left")


def _surprises(case: _Case) -> None:
    for event in case.by_kind["error"]:
        case.violate(Rule.SURPRISE, event.at, f"{event.source}: {event['what']}")
    ended = {event.source for event in case.by_kind["end"]} | case.dead
    for event in case.by_kind["begin"]:
        if event.source not in ended:
            case.violate(Rule.SURPRISE, event.at, f"{event.source} did not end in order")


def _count(case: _Case) -> None:
    verdict = case.verdict
    verdict.grants = len(case.grants)
    verdict.asks.update(event["outcome"] for event in case.by_kind["answer"])
    verdict.asks["granted"] = verdict.grants
    verdict.ends.update(grant.ended_by for grant in case.grants.values())
    verdict.faults.update(event["what"] for event in case.by_kind["fault"])
    verdict.faults["crash"] = len(case.by_kind["crash"])
    stores = {event["write"]: event["store"] for event in case.by_kind["write"]}
    verdict.writes.update(
        f"{stores[event['write']]} {event['outcome']}" for event in case.by_kind["written"]
    )
