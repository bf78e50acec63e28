"""Decides from a history whether the locks kept their promises. Pure.

``tests.chaos.history`` defines what a history is, and the lease interval of a grant.

Times are seconds since boot, on one machine.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate, pairwise

from tests.chaos.history import HistoryEvent, Holding, Record


class Rule(Enum):
    """The rules that are checked."""

    ASKED = "nobody is granted a lock, or answered, without having asked for it before"
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

    ``slack``: extra time beyond what is promised, for a busy machine. ``service``: from the end of
    the faults until every ask is served.
    """

    slack: float = 3.0
    service: float = 30.0


@dataclass(slots=True)
class Verdict:
    """The violations, and the figures of the run.

    ``margins``: the smallest margin for each way in which a grant ended (a ``LossReason``'s name,
    ``RELEASED``, ``CRASHED``). ``noticed``: for each reason, the smallest time from when the holder
    noticed a loss to the next grant. It leaves out holders that were paused meanwhile. A holder
    whose lease lapsed while its session lived deletes its znode as soon as it can. ``late``: the
    longest delay of a loss's report, counted from the end of the lease or from when the loss was
    noticed, whichever was earlier. It also leaves out holders that were paused meanwhile.
    ``kept``: how many grants were on znodes that were kept from a grant before. ``came_back``: how
    many listings had nodes that an earlier listing shows to be deleted. The
    server that was asked has broken its own promise.
    """

    violations: list[Violation] = field(default_factory=list)
    grants: int = 0
    kept: int = 0
    asks: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    margins: dict[str, Margin] = field(default_factory=dict)
    noticed: dict[str, Margin] = field(default_factory=dict)
    late: float = 0.0
    came_back: int = 0


class _Case(Record):
    """A history under examination."""

    def __init__(self, events: Iterable[HistoryEvent], bounds: Bounds) -> None:
        super().__init__(events)
        self.bounds = bounds
        self.verdict = Verdict()
        self.calm = max((event.at for event in self.by_kind["calm"]), default=math.inf)

    def violate(self, rule: Rule, at: float, what: str) -> None:
        self.verdict.violations.append(Violation(rule, at, what))


def check(events: Iterable[HistoryEvent], bounds: Bounds | None = None) -> Verdict:
    """Check a whole history.

    These are its events, with their fields besides ``at`` and the source. ``node`` names a grant,
    with ``use`` if it is a later one on a node of a kept lock (see ``tests.chaos.history``).

    - ``ask`` (ask, lock, timeout), ``answer`` (ask, outcome)
    - ``grant`` (ask, lock, node, token, session, began; of a kept lock also keep, use);
      without ``ask`` for a shard, which a worker of a pool is given unasked
    - ``held`` and ``unheld`` (node)
    - ``queue`` (node, lock, epoch, standing)
    - ``write`` (node, store, lock, write, token, value), ``written`` (write, outcome)
    - ``release`` (node, how), ``released`` (node, outcome)
    - ``lost`` (node, reason, noticed, lease_end), ``break`` (node)
    - ``close``, ``crash``, ``kill`` (worker), ``pause`` (worker, until)
    - ``fault`` (what), ``calm``: the faults are over
    - ``contents`` (store, lock, value, writes), ``left`` (lock, names)
    - ``error`` (what), ``begin``, ``end``
    """
    case = _Case(events, bounds or Bounds())
    for event in case.twice:
        case.violate(Rule.TOKENS, event.at, f"{event['node']} was granted twice")
    for event in case.strays:
        case.violate(Rule.REPORT, event.at, f"{event.kind} of no grant: {event['node']}")
    for decide in _DECIDED:
        decide(case)
    _count(case)
    case.verdict.violations.sort(key=lambda violation: violation.at)
    return case.verdict


def _asked(case: _Case) -> None:
    asks = {event["ask"]: event for event in case.by_kind["ask"]}
    for answer in [*_asked_for(case), *case.by_kind["answer"]]:
        ask = asks.get(answer["ask"])
        granted = answer.kind == "grant"
        if ask is None or ask.source != answer.source:
            case.violate(Rule.ASKED, answer.at, f"{answer['ask']} was answered, and nobody asked")
        elif granted and answer["lock"] != ask["lock"]:
            case.violate(
                Rule.ASKED, answer.at, f"{answer['ask']} for {ask['lock']} got {answer['lock']}"
            )
        elif (answer["began"] if granted else answer.at) < ask.at:
            case.violate(Rule.ASKED, answer.at, f"{answer['ask']} was answered before it was asked")


def _asked_for(case: _Case) -> list[HistoryEvent]:
    """Return the grants that somebody asked for: workers of a pool are given shards unasked."""
    return [event for event in case.by_kind["grant"] if "ask" in event.data]


def _sessions(case: _Case) -> None:
    """Check that no session is granted anything after somebody was told of its end.

    A history need not say which session a grant is on.
    """
    granted = [event for event in case.by_kind["grant"] if "session" in event.data]
    sessions = {event["node"]: event["session"] for event in granted}
    ended: dict[int, float] = {}
    for event in case.by_kind["lost"]:
        if event["reason"] in ("SESSION_EXPIRED", "CLIENT_CLOSED") and event["node"] in sessions:
            session = sessions[event["node"]]
            ended[session] = min(ended.get(session, math.inf), event["noticed"])
    for event in granted:
        over = ended.get(event["session"], math.inf)
        if event["began"] > over:
            case.violate(
                Rule.FINAL,
                event.at,
                f"{event['node']} was granted {event['began'] - over:.6f} s after its session",
            )


def _exclusion(case: _Case) -> None:
    verdict = case.verdict
    for grants in case.locks():
        latest: Holding | None = None
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


def _note_margins(case: _Case, before: Holding, after: Holding, margin: Margin) -> None:
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


def _kept(case: _Case) -> None:
    """Check that the grants on one node are those of a kept lock, and that a loss is their end."""
    sessions = {event.grant: event.data.get("session") for event in case.by_kind["grant"]}
    for grants in case.by_node().values():
        first = grants[0]
        noticed = min(
            (loss["noticed"] for grant in grants for loss in grant.losses), default=math.inf
        )
        if first.use and first.source not in case.dead:
            case.violate(Rule.TOKENS, first.began, f"{first} was kept, and not granted before")
        for grant in grants[1:]:
            if (grant.source, grant.lock, grant.token, sessions[grant.node, grant.use]) != (
                first.source,
                first.lock,
                first.token,
                sessions[first.node, first.use],
            ):
                case.violate(Rule.TOKENS, grant.began, f"{grant} is another one's than {first}")
            if grant.began > noticed:
                case.violate(Rule.FINAL, grant.began, f"{grant} began after the loss of its node")


def _tokens(case: _Case) -> None:
    for grants in case.locks():
        for one, other in pairwise(grants):
            again = other.use and other.node == one.node and other.token == one.token
            if other.token <= one.token and not again:
                case.violate(
                    Rule.TOKENS, other.began, f"{other.token} of {other} after {one.token} of {one}"
                )
    for grant in case.grants.values():
        if f"{grant.token.sequence:010d}" != grant.node[-10:]:
            case.violate(Rule.TOKENS, grant.began, f"{grant} has token {grant.token}")


def _queue(case: _Case) -> None:
    """Check that nobody was granted while a contender with a lower number stood in the queue.

    Numbers are given in the order of creation. So a contender that stands with a lower number
    already stood when a higher number was created. For the same reason, a number that is missing
    among those that stood is gone for good. A server may show it again: one that was restarted
    while it caught up can have lost a deletion (ZOOKEEPER-3911, -4646, -4785, -5010). Such numbers
    are counted, and say nothing of the queue.
    """
    granted: dict[tuple[str, int], list[Holding]] = defaultdict(list)
    for grant in case.grants.values():
        granted[grant.lock, grant.token.epoch].append(grant)
    highest: dict[tuple[str, int], tuple[list[float], list[int]]] = {}
    for key, grants in granted.items():
        grants.sort(key=lambda grant: grant.began)
        sequences = list(accumulate((grant.token.sequence for grant in grants), max))
        highest[key] = [grant.began for grant in grants], sequences
    listings: dict[tuple[str, int], list[HistoryEvent]] = defaultdict(list)
    for event in sorted(case.by_kind["queue"], key=lambda event: event.at):
        key = event["lock"], event["epoch"]
        begun, sequences = highest.get(key, ([], []))
        earlier = bisect_left(begun, event.at)
        gone = _gone(case, event, listings[key])
        case.verdict.came_back += bool(gone)
        listings[key].append(event)
        lowest = min(set(event["standing"]) - gone, default=None)
        if lowest is None:
            case.violate(Rule.QUEUE, event.at, f"{event['node']} held, and nobody stood in line")
            continue
        if earlier and sequences[earlier - 1] > lowest:
            case.violate(
                Rule.QUEUE,
                event.at,
                f"{event['lock']}: {sequences[earlier - 1]} was granted while {lowest} stood",
            )


def _gone(case: _Case, listing: HistoryEvent, earlier: Iterable[HistoryEvent]) -> set[int]:
    """Return the numbers in a listing that were missing in one that was over before it began.

    A holder lists the queue while it holds. So a listing is over when the grant is.
    """
    gone: set[int] = set()
    for before in earlier:
        grant = case.grants.get(before.grant)
        if grant is not None and grant.end <= listing.at:
            latest = max(before["standing"], default=-1)
            missing = set(listing["standing"]) - set(before["standing"])
            gone |= {number for number in missing if number < latest}
    return gone


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
    """Check that a store refused only those whose grant is over."""
    begun = {event["write"]: event for event in case.by_kind["write"]}
    for event in case.by_kind["written"]:
        if event["outcome"] != "refused":
            continue
        grant = case.grants.get(begun[event["write"]].grant)
        if grant is not None and grant.broken == math.inf and grant.end > event.at:
            case.violate(Rule.FENCE, event.at, f"{event['write']} of {grant} was refused")


def _reports(case: _Case) -> None:
    broken = {event["node"] for event in case.by_kind["break"]}
    closing = {event.source for event in case.by_kind["close"]}
    for grant in case.grants.values():
        at = grant.losses[0].at if grant.losses else min(grant.unheld, grant.began)

        def wrong(what: str, at: float = at, grant: Holding = grant) -> None:
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
            case.violate(Rule.FINAL, grant.unheld, f"{grant} was held again")
        if grant.releases > 1:
            wrong(f"was released {grant.releases} times")
        for loss in grant.losses:
            _report(case, grant, loss, broken, closing)


def _report(
    case: _Case, grant: Holding, loss: HistoryEvent, broken: set[str], closing: set[str]
) -> None:
    reason, noticed, lease_end = loss["reason"], loss["noticed"], loss["lease_end"]
    if max(grant.held, default=-math.inf) > noticed:
        case.violate(Rule.FINAL, loss.at, f"{grant} was held after its loss was noticed")
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
    answers: dict[str, HistoryEvent] = {}
    for event in [*_asked_for(case), *case.by_kind["answer"]]:
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
    verdict.kept = sum(bool(grant.use) for grant in case.grants.values())
    verdict.asks.update(event["outcome"] for event in case.by_kind["answer"])
    verdict.asks["granted"] = verdict.grants
    verdict.ends.update(grant.ended_by for grant in case.grants.values())
    verdict.faults.update(event["what"] for event in case.by_kind["fault"])
    verdict.faults["crash"] = len(case.by_kind["crash"])
    stores = {event["write"]: event["store"] for event in case.by_kind["write"]}
    verdict.writes.update(
        f"{stores[event['write']]} {event['outcome']}" for event in case.by_kind["written"]
    )


_DECIDED = (
    _asked,
    _sessions,
    _exclusion,
    _kept,
    _tokens,
    _queue,
    _fence,
    _refusals,
    _reports,
    _service,
    _surprises,
)
