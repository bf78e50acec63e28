"""Judges a demo by its events. Pure: events in, verdicts out.

Nothing is taken on trust from one source: the order is that of the znode names and of what
ZooKeeper listed, the tokens are what the grants gave, the intervals are the holders' own clock
readings, the ledger is what SQLite has. An empty log passes no check.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from zklock.cli.demo.events import Event
from zklock.token import FencingToken

KILLED = -9
"""The code with which a process ends by SIGKILL."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one check.

    ``finding`` says what was seen, ``violations`` each thing that must not have happened, and
    ``figures`` what was measured, in seconds unless the name says otherwise.
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


class _Report:
    """A verdict in the making."""

    def __init__(self) -> None:
        self.finding = ""
        self.violations: list[str] = []
        self.figures: dict[str, float] = {}

    def violate(self, what: str) -> None:
        self.violations.append(what)


@dataclass(slots=True)
class _Turn:
    """One grant and what became of it."""

    worker: str
    token: FencingToken
    node: str
    start: float
    believed: float  # the last time at which its holder is known to have believed in it
    looks: list[tuple[float, bool]]
    lost: list[Event]
    released: list[Event]

    @property
    def sequence(self) -> int:
        return int(self.node.rpartition("-")[2])

    def __str__(self) -> str:
        return f"{self.worker} ({self.token})"


class _Log:
    """The events, sorted by time, and the turns that they tell of, in the order of grants."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = sorted(events, key=lambda event: event.at)
        self.turns: list[_Turn] = []
        self.strays: list[str] = []
        latest: dict[tuple[str, str], _Turn] = {}
        for event in self.events:
            if event.what == "granted":
                token = FencingToken.parse(event["token"])
                turn = _Turn(event.who, token, event["node"], event.at, event.at, [], [], [])
                self.turns.append(turn)
                latest[event.who, event["token"]] = turn
        for event in self.of("look", "released", "lost"):
            found = latest.get((event.who, event["token"]))
            if found is None:
                self.strays.append(f"{event.who} reports {event.what} of {event['token']}")
                continue
            if event.what == "look":
                found.looks.append((event.at, event["held"]))
            else:
                (found.lost if event.what == "lost" else found.released).append(event)
            if event.what == "released" or (event.what == "look" and event["held"]):
                found.believed = max(found.believed, event.at)

    def of(self, *kinds: str) -> list[Event]:
        """Return the events of these kinds."""
        return [event for event in self.events if event.what in kinds]

    def holder(self, worker: str, at: float) -> _Turn | None:
        """Return the turn that this worker had at that time."""
        turns = [turn for turn in self.turns if turn.worker == worker and turn.start <= at]
        turn = turns[-1] if turns else None
        return None if turn is None or any(it.at <= at for it in turn.released) else turn

    def next_after(self, turn: _Turn) -> _Turn | None:
        """Return the turn that was granted after this one."""
        later = self.turns[self.turns.index(turn) + 1 :]
        return later[0] if later else None


def judge(events: Iterable[Event]) -> list[Verdict]:
    """Return the verdict of every check."""
    log = _Log(events)
    verdicts = []
    for name, title, check in _CHECKS:
        report = _Report()
        check(log, report)
        verdicts.append(
            Verdict(name, title, report.finding, tuple(report.violations), report.figures)
        )
    return verdicts


def _complete(log: _Log, report: _Report) -> None:
    for event in log.of("broken"):
        report.violate(f"the demo could not be finished: {event['why']}")
    for kind, count in (("opening", 1), ("act", 4), ("killed", 1), ("paused", 1), ("cut", 1)):
        if len(log.of(kind)) != count:
            report.violate(f"{kind!r} happened {len(log.of(kind))} times, not {count}")
    asked = Counter(event.who for event in log.of("asks"))
    granted = Counter(turn.worker for turn in log.turns)
    for worker in sorted(asked | granted):
        if asked[worker] != granted[worker]:
            report.violate(
                f"{worker} asked {asked[worker]} times and was granted {granted[worker]} times"
            )
    for stray in log.strays:
        report.violate(f"{stray}, which it was never granted")
    report.finding = f"4 acts; {asked.total()} times asked, {len(log.turns)} times granted"


def _order(log: _Log, report: _Report) -> None:
    """Grants come in the order of the sequence numbers, and of the queue that was seen."""
    if not log.turns:
        report.violate("nothing was granted")
    for before, after in pairwise(log.turns):
        if before.sequence >= after.sequence:
            report.violate(
                f"{after} has sequence number {after.sequence} and was granted after {before}, "
                f"which has {before.sequence}"
            )
    queues = log.of("queue")
    if not any(len(event["contenders"]) > 1 for event in queues):
        report.violate("nobody was ever seen to queue")
    granted = {turn.sequence: (index, turn.worker) for index, turn in enumerate(log.turns)}
    for event in queues:
        places = []
        for contender in event["contenders"]:
            place, worker = granted.get(contender["sequence"], (0, None))
            if worker == contender["worker"]:
                places.append(place)
            else:
                report.violate(f"{contender['worker']} queued and got no grant for that place")
        if places != sorted(places):
            names = " ".join(contender["worker"] for contender in event["contenders"])
            report.violate(f"the queue {names} was not served in this order")
    longest = max((len(event["contenders"]) for event in queues), default=0)
    sequences = [turn.sequence for turn in log.turns]
    report.finding = (
        f"sequence numbers {min(sequences, default='-')} … {max(sequences, default='-')}, "
        f"the queue as ZooKeeper listed it, up to {longest} long"
    )


def _tokens(log: _Log, report: _Report) -> None:
    if not log.turns:
        report.violate("nothing was granted")
    for before, after in pairwise(log.turns):
        if before.token >= after.token:
            report.violate(f"{after} was granted after {before}, without a higher token")
    for turn in log.turns:
        if turn.token.sequence != turn.sequence:
            report.violate(f"{turn}: its znode has the sequence number {turn.sequence}")
    tokens = [turn.token for turn in log.turns]
    report.finding = f"{len(set(tokens))} tokens, {' … '.join(map(str, tokens[:1] + tokens[-1:]))}"


def _exclusive(log: _Log, report: _Report) -> None:
    """No holder still believed in its lock when the next one had it."""
    if not log.turns:
        report.violate("nothing was granted")
    margin = math.inf
    last: _Turn | None = None
    for turn in log.turns:
        if last is not None:
            margin = min(margin, turn.start - last.believed)
            if last.believed > turn.start:
                report.violate(
                    f"{last} still believed that it held the lock "
                    f"{_ms(last.believed - turn.start)} after it was granted to {turn}"
                )
        if last is None or turn.believed > last.believed:
            last = turn
    for turn in log.turns:
        answers = [held for _, held in sorted(turn.looks)]
        if answers != sorted(answers, reverse=True):
            report.violate(f"{turn} was held again after it was not")
    report.finding = f"{len(log.turns)} intervals by the holders' own clock readings, none overlap"
    if margin < math.inf:
        report.figures["smallest_gap"] = margin
        report.finding += f"; smallest gap {_ms(margin)}"


def _ledger(log: _Log, report: _Report) -> None:
    """Compare the ledger with what the finished grants wrote, in the order of their tokens."""
    entries = [entry for event in log.of("ledger") for entry in event["entries"]]
    if not entries:
        report.violate("the ledger is empty")
    if [entry["number"] for entry in entries] != list(range(1, len(entries) + 1)):
        report.violate(
            f"its numbers are not 1 … {len(entries)}: an update was lost or made twice: "
            + " ".join(str(entry["number"]) for entry in entries)
        )
    for before, after in pairwise(entries):
        if before["token"] >= after["token"]:
            report.violate(
                f"entry {after['number']} of {after['worker']} has token {after['token']}, not "
                f"higher than that of the entry before it"
            )
    written = {(entry["worker"], entry["token"]) for entry in entries}
    finished = {(it.worker, str(it.token)) for it in log.turns if it.released}
    for worker, token in sorted(written - finished):
        report.violate(f"{worker} wrote under {token}, and has no finished grant with it")
    for worker, token in sorted(finished - written):
        report.violate(f"{worker} finished its grant {token} and its entry is missing")
    taken = {(event.who, event["token"], event["number"]) for event in log.of("wrote")}
    if taken != {(entry["worker"], entry["token"], entry["number"]) for entry in entries}:
        report.violate("the entries are not those that the workers were told had been taken")
    report.finding = f"{len(entries)} entries by {len(finished)} finished grants, numbered 1 … n"


def _callbacks(log: _Log, report: _Report) -> None:
    """Every grant ends in a release, in one lost callback, or with its process."""
    if not log.turns:
        report.violate("nothing was granted")
    killed = {event["worker"]: event.at for event in log.of("killed")}
    lost = 0
    for turn in log.turns:
        lost += bool(turn.lost)
        if len(turn.lost) > 1:
            report.violate(f"{turn}: the lost callback was called {len(turn.lost)} times")
        if len(turn.released) > 1:
            report.violate(f"{turn} was released {len(turn.released)} times")
        if turn.lost and turn.released:
            report.violate(f"{turn} was released, and then called lost")
        if not turn.lost and not turn.released:
            at = killed.get(turn.worker)
            if at is None or turn is not log.holder(turn.worker, at):
                report.violate(f"{turn} was neither released nor called lost")
    report.finding = (
        f"{lost} grants lost and told of once each, "
        f"{sum(bool(turn.released) for turn in log.turns)} released"
    )


def _killed(log: _Log, report: _Report) -> None:
    event, turn, after = _victim(log, report, "killed")
    if event is None or turn is None or after is None:
        return
    waited = after.start - event.at
    timeout = _session_timeout(log)
    report.figures = {"next_grant_after": waited, "session_timeout": timeout}
    report.finding = (
        f"{turn.worker} killed; {after.worker} granted {waited:.2f} s later "
        f"(session timeout {timeout:g} s)"
    )


def _paused(log: _Log, report: _Report) -> None:
    event, turn, after = _victim(log, report, "paused")
    if event is None or turn is None or after is None:
        return
    back = [it.at for it in log.of("resumed") if it["worker"] == turn.worker]
    if len(back) != 1:
        report.violate(f"{turn.worker} was resumed {len(back)} times, not once")
        return
    resumed = back[0]
    if after.start > resumed:
        report.violate(f"{after} was granted only after {turn.worker} was resumed")
    first = [held for at, held in sorted(turn.looks) if at >= resumed][:1]
    if first != [False]:
        found = "True" if first else "nothing"
        report.violate(f"{turn.worker} found held to be {found} at its first look after the pause")
    if not any(it.at >= resumed for it in turn.lost):
        report.violate(f"{turn.worker} was not told by its callback that it lost the lock")
    refusals = [it for it in log.of("refused") if it["token"] == str(turn.token)]
    if not refusals:
        report.violate(f"the late write of {turn} was not refused by the ledger")
    for refusal in refusals:
        if refusal["highest"] <= refusal["token"]:
            report.violate(f"the ledger refused {turn}, whose token is not older than what it saw")
    report.figures = {"paused": resumed - event.at, "next_grant_after": after.start - event.at}
    report.finding = (
        f"{turn.worker} paused for {resumed - event.at:.2f} s; {after.worker} granted after "
        f"{after.start - event.at:.2f} s; then held was False at the first look, "
        "and the late write refused"
    )


def _cut(log: _Log, report: _Report) -> None:
    event, turn, after = _victim(log, report, "cut")
    if event is None or turn is None or after is None:
        return
    if not turn.lost:
        report.violate(f"{turn.worker} was not told by its callback that it lost the lock")
        return
    told = turn.lost[0].at
    margin = after.start - told
    if margin <= 0:
        report.violate(f"{turn} was told of its loss {_ms(-margin)} after {after} was granted")
    report.figures = {
        "lost_callback_after": told - event.at,
        "next_grant_after": after.start - event.at,
        "margin": margin,
    }
    report.finding = (
        f"{turn.worker} was told {told - event.at:.3f} s after the cut, {after.worker} granted "
        f"{after.start - event.at:.3f} s after it: {margin:.3f} s to spare"
    )


def _left_over(log: _Log, report: _Report) -> None:
    left = log.of("left")
    if not left:
        report.violate("nobody looked what was left")
    for event in left:
        for node in event["nodes"]:
            report.violate(f"{node} is still in ZooKeeper")
    killed = {event["worker"] for event in log.of("killed")}
    workers = {worker for event in log.of("opening") for worker in event["workers"]}
    codes = {event.who: event["code"] for event in log.of("ended")}
    for worker in sorted(workers):
        if worker not in codes:
            report.violate(f"the process of {worker} has not ended")
        elif codes[worker] != (KILLED if worker in killed else 0):
            report.violate(f"the process of {worker} ended with code {codes[worker]}")
    report.finding = f"no contender in ZooKeeper, {len(codes)} worker processes ended"


_CHECKS: Sequence[tuple[str, str, Callable[[_Log, _Report], None]]] = (
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
    log: _Log, report: _Report, kind: str
) -> tuple[Event | None, _Turn | None, _Turn | None]:
    """Return what was done, to which holder, and who came next."""
    event = next(iter(log.of(kind)), None)
    if event is None:
        report.violate(f"nobody was {kind}")
        return None, None, None
    turn = log.holder(event["worker"], event.at)
    if turn is None:
        report.violate(f"{event['worker']} was {kind} when it did not hold the lock")
        return event, None, None
    after = log.next_after(turn)
    if after is None:
        report.violate(f"nobody was granted the lock after {turn} was {kind}")
    elif after.start < event.at:
        report.violate(f"{after} was granted before {turn} was {kind}")
        after = None
    return event, turn, after


def _session_timeout(log: _Log) -> float:
    return max((float(event["session_timeout"]) for event in log.of("opening")), default=math.nan)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
