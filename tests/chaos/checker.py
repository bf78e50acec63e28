"""Decides from a history whether the locks kept their promises. Pure.

``tests.chaos.history`` defines what a history is, and the lease interval of a grant. Times are
seconds since boot, on one machine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from tests.chaos.history import HistoryEvent, Holding, Record


class Rule(Enum):
    """The rules that are checked; ``QUEUE`` by the servers' log alone."""

    EXCLUSION = "no two lease intervals of a lock overlap"
    FINAL = "what is over is never held again, and no session is used after its end"
    TOKENS = "tokens strictly increase in the order of grants, but on one znode of a kept lock"
    QUEUE = "grants follow the order of the queue"
    FENCE = "no store accepts a token lower than an earlier one; its data are the accepted writes"
    REPORT = "every lost grant is reported once and in time, and no other is"
    SERVICE = "every call ends in time; after the faults all are served and nothing is left"
    SURPRISE = "no error but the documented ones, no process ends by itself"


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise, with the time on the history's clock."""

    rule: Rule
    at: float
    what: str

    def __str__(self) -> str:
        return f"{self.at:.6f}: {self.what} (not so: {self.rule.value})"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much time is allowed, in seconds.

    ``slack``: extra time beyond what is promised, for a busy machine. ``service``: from the end of
    the faults until every ask is served.
    """

    slack: float = 3.0
    service: float = 30.0


@dataclass(slots=True)
class Verdict:
    """The violations, and the figures of the run.

    ``noticed``: for each reason, the smallest time from when the holder noticed a loss to the next
    grant. It leaves out holders that were paused meanwhile.
    """

    violations: list[Violation] = field(default_factory=list)
    grants: int = 0
    kept: int = 0
    asks: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    noticed: dict[str, float] = field(default_factory=dict)


class _Case(Record):
    """A history under examination."""

    def __init__(self, events: Iterable[HistoryEvent], bounds: Bounds) -> None:
        super().__init__(events)
        self.bounds = bounds
        self.verdict = Verdict()

    def violate(self, rule: Rule, at: float, what: str) -> None:
        self.verdict.violations.append(Violation(rule, at, what))


def check(events: Iterable[HistoryEvent], bounds: Bounds | None = None) -> Verdict:
    """Check a whole history."""
    case = _Case(events, bounds or Bounds())
    for event in case.twice:
        case.violate(Rule.TOKENS, event.at, f"{event['node']} was granted twice")
    for event in case.strays:
        case.violate(Rule.REPORT, event.at, f"{event.kind} of no grant: {event['node']}")
    for decide in (_sessions, _order, _kept, _fence, _reports, _service, _surprises, _count):
        decide(case)
    case.verdict.violations.sort(key=lambda violation: violation.at)
    return case.verdict


def _sessions(case: _Case) -> None:
    """Check that no session is granted anything after somebody was told of its end."""
    ended: dict[int | None, float] = {}
    for grant in case.grants.values():
        for loss in grant.losses:
            if loss["reason"] in ("SESSION_EXPIRED", "CLIENT_CLOSED"):
                told = ended.get(grant.session, math.inf)
                ended[grant.session] = min(told, loss["noticed"])
    for grant in case.grants.values():
        if grant.session is not None and grant.began > ended.get(grant.session, math.inf):
            case.violate(Rule.FINAL, grant.began, f"{grant} began after the end of its session")


def _order(case: _Case) -> None:
    """Check that intervals follow each other, and that tokens grow."""
    for grants in case.by("lock", all_of_them=False).values():
        latest = grants[0]
        for one, grant in pairwise(grants):
            margin = grant.began - latest.end
            if margin < 0:
                what = f"{grant} began {-margin:.6f} s before the end of {latest}"
                case.violate(Rule.EXCLUSION, grant.began, what)
            if latest.broken == math.inf:
                _note_margin(case, latest, grant.began)
            again = grant.use and grant.node == one.node and grant.token == one.token
            if grant.token <= one.token and not again:
                what = f"{grant.token} of {grant} after {one.token} of {one}"
                case.violate(Rule.TOKENS, grant.began, what)
            latest = max(latest, grant, key=lambda each: each.end)
    for grant in case.grants.values():
        if f"{grant.token.sequence:010d}" != grant.node[-10:]:
            case.violate(Rule.TOKENS, grant.began, f"{grant} has token {grant.token}")


def _note_margin(case: _Case, before: Holding, began: float) -> None:
    for loss in before.losses[:1]:
        noticed, known = loss["noticed"], case.verdict.noticed
        if not case.paused(before.source, before.end - case.bounds.slack, noticed):
            how = before.ended_by
            known[how] = min(began - noticed, known.get(how, math.inf))


def _kept(case: _Case) -> None:
    """Check that the grants on one node are those of a kept lock, and that a loss is their end."""
    for first, *others in case.by("node").values():
        losses = [loss["noticed"] for grant in (first, *others) for loss in grant.losses]
        if first.use and first.source not in case.dead:
            case.violate(Rule.TOKENS, first.began, f"{first} was kept, and not granted before")
        for grant in others:
            if _whose(grant) != _whose(first):
                case.violate(Rule.TOKENS, grant.began, f"{grant} is another one's than {first}")
            if grant.began > min(losses, default=math.inf):
                case.violate(Rule.FINAL, grant.began, f"{grant} began after the loss of its node")


def _whose(grant: Holding) -> object:
    return grant.source, grant.lock, grant.token, grant.session


def _fence(case: _Case) -> None:
    """Check the stores: what they accepted, and that they refused only those that were over."""
    begun = {event["write"]: event for event in case.by_kind["write"]}
    outcomes = {event["write"]: event for event in case.by_kind["written"]}
    accepted: Counter[str] = Counter()
    stores = set()
    for contents in case.by_kind["contents"]:
        place = contents["store"], contents["lock"]
        stores.add(place)
        name, highest = " of ".join(place), ""
        for number, (write, token, value) in enumerate(contents["writes"], 1):
            accepted[write] += 1
            was = begun.get(write)
            said = was and (was["store"], was["lock"], was["token"], was["value"])
            at = was.at if was else contents.at
            if said != (*place, token, value):
                case.violate(Rule.FENCE, at, f"{name}: nobody wrote {write} like this")
            if token < highest:
                case.violate(Rule.FENCE, at, f"{name}: {write} with {token} after {highest}")
            if value != number:
                case.violate(Rule.FENCE, at, f"{name}: {write} made {value} of {number - 1}")
            highest = max(highest, token)
        if contents["value"] != len(contents["writes"]):
            case.violate(Rule.FENCE, contents.at, f"{name} counts other writes than its log")
    for write, event in begun.items():
        if (event["store"], event["lock"]) not in stores:
            case.violate(Rule.FENCE, event.at, f"no contents of {event['store']} {event['lock']}")
        written = outcomes.get(write)
        outcome = written["outcome"] if written else "unknown"
        if accepted[write] not in {"accepted": {1}, "unknown": {0, 1}}.get(outcome, {0}):
            what = f"{write} was {outcome}, and is there {accepted[write]} times"
            case.violate(Rule.FENCE, event.at, what)
        grant = case.grants.get(event.grant)
        refused = written if written and outcome == "refused" else None
        if refused and grant and grant.broken == math.inf and grant.end > refused.at:
            case.violate(Rule.FENCE, refused.at, f"{write} of {grant} was refused")


def _reports(case: _Case) -> None:
    for grant in case.grants.values():
        over = bool(grant.losses) or grant.outcome == "lost" or grant.unheld < math.inf
        held = max(grant.held, default=-math.inf)
        wrong = {
            f"was reported lost {len(grant.losses)} times": len(grant.losses) > 1,
            "was reported lost although it was released": grant.losses and grant.released > 0,
            "could be released although it was not held": grant.released > grant.unheld,
            f"was released {len(grant.releases)} times": len(grant.releases) > 1,
            "is over without a report" if over else "never ended": grant.source not in case.dead
            and not grant.losses
            and not grant.given_back,
        }
        for what, broken in wrong.items():
            if broken:
                case.violate(Rule.REPORT, grant.began, f"{grant} {what}")
        if held > grant.unheld:
            case.violate(Rule.FINAL, grant.unheld, f"{grant} was held again")
        for loss in grant.losses:
            if held > loss["noticed"]:
                case.violate(Rule.FINAL, loss.at, f"{grant} was held after its loss was noticed")
            _report(case, grant, loss)


def _report(case: _Case, grant: Holding, loss: HistoryEvent) -> None:
    reason, noticed, lease_end = loss["reason"], loss["noticed"], loss["lease_end"]
    due = min(noticed, lease_end)
    late = loss.at - due - case.paused(grant.source, due, loss.at)
    closing = {event.source for event in case.by_kind["close"]}
    wrong = {
        "before its lease was over": reason == "LEASE_LAPSED" and noticed < lease_end,
        "and nobody deleted its node": reason == "NODE_DELETED" and grant.broken == math.inf,
        "and nobody closed its client": reason == "CLIENT_CLOSED" and grant.source not in closing,
        f"{late:.3f} s late": late > case.bounds.slack,
    }
    for what, broken in wrong.items():
        if broken:
            case.violate(Rule.REPORT, loss.at, f"{grant} was reported lost {what}")


def _service(case: _Case) -> None:
    calm = max((event.at for event in case.by_kind["calm"]), default=math.inf)
    if calm == math.inf:
        case.violate(Rule.SERVICE, 0.0, "the history has no end of the faults")
    answers: dict[str, HistoryEvent] = {}
    for event in [*case.by_kind["grant"], *case.by_kind["answer"]]:
        if "ask" in event.data:
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
        if late > case.bounds.slack:
            case.violate(Rule.SERVICE, answer.at, f"{name} ended {late:.3f} s after its timeout")
        due = max(calm, ask.at) + case.bounds.service
        unserved = answer.at > due or (answer.kind == "answer" and answer["outcome"] == "none")
        if answer.at > calm and deadline >= due and unserved:
            case.violate(Rule.SERVICE, answer.at, f"{name} was not served after the faults")
    for event in case.by_kind["left"]:
        if event["names"]:
            case.violate(Rule.SERVICE, event.at, f"left in {event['lock']}: {event['names']}")
    if not case.by_kind["left"]:
        case.violate(Rule.SERVICE, calm, "nobody looked for what is left")


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
    verdict.kept = sum(bool(grant.use) for grant in case.grants.values())
    verdict.asks.update(event["outcome"] for event in case.by_kind["answer"])
    verdict.asks.update(f"granted to {event['who']}" for event in case.by_kind["stranger"])
    verdict.ends.update(grant.ended_by for grant in case.grants.values())
    verdict.faults.update(event["what"] for event in case.by_kind["fault"])
    verdict.faults["crash"] = len(case.by_kind["crash"])
    stores = {event["write"]: event["store"] for event in case.by_kind["write"]}
    verdict.writes.update(
        f"{stores[event['write']]} {event['outcome']}" for event in case.by_kind["written"]
    )
