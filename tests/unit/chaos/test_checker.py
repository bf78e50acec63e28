"""The checker accepts what is valid, and finds whatever is planted in it: a row for each way."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import pytest

from tests.chaos.checker import Bounds, Rule, check
from tests.chaos.history import HistoryEvent
from zklock import FencingToken

BOUNDS = Bounds(slack=3.0, service=30.0)
STEP = 0.01
LOCK = "/l"
LOST = ("LEASE_LAPSED", "SESSION_EXPIRED", "CLIENT_CLOSED", "NODE_DELETED")
TURNS = (
    *(("first", "w0", 1), ("second", "w1", 1), ("kept", "w1", 3), ("behind", "w0", 1)),
    *(("ABANDONED", "w2", 1), *((reason, "w0", 1) for reason in LOST), ("after", "w1", 1)),
    *(("PAUSED", "w2", 1), ("UNGRANTED", "w0", 1), ("of a new path", "w1", 1)),
    *(("CRASHED", "d0", 1), ("KILLED", "d1", 1), ("calm", "w0", 1), ("last", "w2", 1)),
)
"""What a turn is called, whose it is, and how many grants there are on its znode."""

Name: TypeAlias = dict[str, Any]


class Story:
    """An ideal lock, and what its users would have noted: each event says of which turn it is.

    What is planted in it changes events: it names a turn, a kind, and which of these it is.
    """

    def __init__(self) -> None:
        self.now, self.turn, self.number = 1000.0, "", 0
        self.events: list[HistoryEvent] = []
        self.token = FencingToken(1, 0)
        self.log: list[list[Any]] = []
        self.late: list[tuple[str, Name, float]] = []
        sources = sorted({source for _, source, _ in TURNS})
        for source in sources:
            self.note(source, "begin")
        for turn, source, uses in TURNS:
            self.turn = turn
            if turn == "calm":
                self.note("run", "calm")
            self.take(source, uses)
        for source in sources[2:]:
            self.note(source, "end")
        self.note("run", "left", lock=LOCK, names=[])
        what: Name = {"store": "sqlite", "lock": LOCK}
        self.note("run", "contents", **what, value=len(self.log), writes=self.log)

    def note(self, source: str, kind: str, at: float | None = None, **data: Any) -> None:
        self.now += STEP
        data["turn"] = self.turn
        self.events.append(HistoryEvent(self.now if at is None else at, source, kind, data))

    def ask(self, source: str) -> str:
        ask = f"{source}-a{len(self.events)}"
        self.note(source, "ask", ask=ask, lock=LOCK, timeout=60.0)
        return ask

    def take(self, source: str, uses: int) -> None:
        ask = self.ask(source)
        if self.turn == "UNGRANTED":
            self.note(source, "answer", ask=ask, outcome="none")
            return
        self.number += 1
        self.token = FencingToken(self.token.epoch, self.token.sequence + 1)
        if self.turn == "of a new path":
            self.token = FencingToken(self.token.epoch + 1, 0)
        name: Name = {"node": f"{LOCK}/_c_{self.number}-lock-{self.token.sequence:010d}"}
        for use in range(uses):
            if use:
                self.give_back(source, name)
                ask = self.ask(source)
                name = {**name, "use": uses - use}
            said: Name = {"ask": ask, "lock": LOCK, "began": self.now, "session": self.number}
            self.now += STEP
            self.notice()
            self.note(source, "grant", **name, **said, token=str(self.token))
            self.note(source, "held", **name)
            self.write(source, name, "accepted")
            self.note(source, "held", **name)
        self.end(source, name)

    def write(self, source: str, name: Name, outcome: str) -> None:
        write, token, value = f"{source}-{len(self.events)}", str(self.token), len(self.log) + 1
        what: Name = {"store": "sqlite", "lock": LOCK, "token": token, "value": value}
        self.note(source, "write", **name, **what, write=write)
        if outcome == "accepted":
            self.log.append([write, token, value])
        self.note(source, "written", write=write, outcome=outcome)

    def end(self, source: str, name: Name) -> None:
        match self.turn:
            case "PAUSED":
                self.now += 1.0
                self.late.append((source, name, self.now))
            case "CRASHED":
                self.note(source, "crash")
            case "KILLED":
                self.ask(source)
                self.note("nemesis", "kill", worker=source)
            case reason if reason in LOST:
                lease_end = self.now + 1.0
                if reason == "LEASE_LAPSED":
                    self.now += 1.1
                elif reason == "CLIENT_CLOSED":
                    self.note(source, "close")
                elif reason == "NODE_DELETED":
                    self.note("nemesis", "break", node=name["node"])
                    self.note(source, "held", **name)  # nobody has told it yet
                self.lose(source, name, reason, lease_end)
                self.note(source, "unheld", **name)
                self.write(source, name, "refused")
                self.give_back(source, name, "lost")
            case turn:
                self.give_back(source, name, how="abandon" if turn == "ABANDONED" else "release")

    def notice(self) -> None:
        """Those that were paused past their lease notice it after the next grant."""
        for source, name, lease_end in self.late:
            self.lose(source, name, "LEASE_LAPSED", lease_end)
            self.note("nemesis", "pause", lease_end - 1.0, worker=source, until=self.now)
            self.give_back(source, name, "lost")
        self.late.clear()

    def lose(self, source: str, name: Name, reason: str, lease_end: float) -> None:
        noticed = self.now + STEP / 2
        self.note(source, "lost", **name, reason=reason, noticed=noticed, lease_end=lease_end)

    def give_back(
        self, source: str, name: Name, outcome: str = "done", how: str = "release"
    ) -> None:
        self.note(source, "release", **name, how=how)
        self.note(source, "released", **name, outcome=outcome)

    # What is planted.

    def one(self, turn: str, kind: str, number: int = 0) -> HistoryEvent:
        return [it for it in self.events if (it.kind, it["turn"]) == (kind, turn)][number]

    def change(
        self, old: HistoryEvent, at: float | None = None, without: str = "", **data: Any
    ) -> None:
        kept = {key: it for key, it in {**old.data, **data}.items() if key != without}
        new = replace(old, at=old.at if at is None else at, data=kept)
        self.events = [new if event is old else event for event in self.events]

    def drop(self, *gone: HistoryEvent) -> None:
        self.events = [it for it in self.events if not any(it is each for each in gone)]

    def add(self, like: HistoryEvent, kind: str = "", at: float | None = None, **data: Any) -> None:
        """Add another event beside one, with some data of its own."""
        at = like.at + STEP / 10 if at is None else at
        data = {**like.data, **data}
        self.events.append(replace(like, at=at, kind=kind or like.kind, data=data))

    def rewrite(self, change: Callable[[list[Any]], list[Any]]) -> None:
        """Change the log of the store, with which its counter agrees."""
        (contents,) = (event for event in self.events if event.kind == "contents")
        writes = change(contents["writes"])
        self.change(contents, writes=writes, value=len(writes))


Plant = Callable[[Story], object]


def lease_into_the_next_grant(it: Story) -> None:
    at = it.one("SESSION_EXPIRED", "grant")["began"] + STEP / 10
    it.change(it.one("LEASE_LAPSED", "lost"), at=at, noticed=at, lease_end=at)


def use_of_what_was_lost(it: Story) -> None:
    it.drop(it.one("kept", "release"), it.one("kept", "released"))
    at = it.one("kept", "grant", 1)["began"] - STEP / 2
    it.add(it.one("kept", "grant"), "lost", at, **{**NOW, "noticed": at, "lease_end": at})


def two_grants_swapped(it: Story) -> None:
    it.change(it.one("first", "grant"), token=str(FencingToken(1, 2)))
    it.change(it.one("second", "grant"), token=str(FencingToken(1, 1)))


def use_by_another_process(it: Story) -> None:
    grant = it.one("kept", "grant", 1)
    it.drop(grant)
    it.events.append(replace(grant, source="d0"))


def use_after_the_next_grant(it: Story) -> None:
    use = it.one("kept", "grant", 2)
    by = it.one("behind", "grant")["began"] + STEP / 2 - use["began"]
    for event in [event for event in it.events if event.data.get("use") == use["use"]]:
        it.change(event, at=event.at + by)
    it.change(it.one("kept", "grant", 2), began=use["began"] + by)


def two_tokens_swapped(it: Story) -> None:
    def swap(writes: list[Any]) -> list[Any]:
        (one, low, value), (other, high, more), *rest = writes
        it.change(it.one("first", "write"), value=more)
        it.change(it.one("second", "write"), value=value)
        return [[other, high, value], [one, low, more], *rest]

    it.rewrite(swap)


def update_lost(it: Story) -> None:
    def lose(writes: list[Any]) -> list[Any]:
        *others, (write, token, value) = writes
        it.change(it.one("last", "write"), value=value - 1)
        return [*others, [write, token, value - 1]]

    it.rewrite(lose)


def holder_s_write_refused(it: Story) -> None:
    write, written = it.one("first", "write"), it.one("first", "written")
    it.add(write, at=write.at, write="w")
    it.add(written, at=write.at, write="w", outcome="refused")


def not_served(it: Story) -> None:
    grant = it.one("last", "grant")
    it.drop(grant)
    it.add(grant, "answer", outcome="none")


def changed(turn: str, kind: str, number: int = 0, **data: Any) -> Plant:
    return lambda it: it.change(it.one(turn, kind, number), **data)


def added(turn: str, kind: str, as_kind: str = "", **data: Any) -> Plant:
    return lambda it: it.add(it.one(turn, kind), as_kind, **data)


def dropped(turn: str, kind: str) -> Plant:
    return lambda it: it.drop(it.one(turn, kind))


NOW: Name = {"reason": "SESSION_EXPIRED", "noticed": 0.0, "lease_end": 0.0}
PLANTS: dict[Rule, dict[str, Plant]] = {
    Rule.EXCLUSION: {
        r"w1 .* began 0.005000 s before the end of w0": lambda it: it.change(
            it.one("second", "grant"), began=it.one("first", "release").at - STEP / 2
        ),
        r"w1 .* began 0.001000 s before the end of w0": lambda it: it.add(  # a look
            it.one("first", "held"), at=it.one("second", "grant")["began"] + STEP / 10
        ),
        r"before the end of .* \(lease_lapsed\)": lease_into_the_next_grant,
        r"use 2 .* before the end of w1": lambda it: it.change(  # two bodies of one client
            it.one("kept", "grant", 1), began=it.one("kept", "release").at - STEP / 2
        ),
    },
    Rule.FINAL: {
        "began after the end of its session": changed("last", "grant", session=7),
        "w2 .* began after the end of its session": changed("last", "grant", session=8),
        "began after the loss of its node": use_of_what_was_lost,
        "held again": added("LEASE_LAPSED", "unheld", "held"),
        "held after its loss was noticed": lambda it: it.add(
            loss := it.one("LEASE_LAPSED", "lost"), "held", loss["noticed"] + STEP / 10
        ),
    },
    Rule.TOKENS: {
        r"-0000000001 of .* after .*-0000000002 of": two_grants_swapped,
        r"_c_1-.* was granted twice": added("first", "grant", ask="another"),
        r"0000000000000000-.* after": changed("second", "grant", token=str(FencingToken(0, 2))),
        "has token": changed("first", "grant", token=str(FencingToken(0, 9))),
        "use 2 .* is another one's than": changed(
            "kept", "grant", 1, token=str(FencingToken(2, 3))
        ),
        "w1 .*use 2 .* is another one's than": changed("kept", "grant", 1, session=99),
        "d0 .* is another one's than w1": use_by_another_process,
        r"_c_3-.* was granted twice": changed("kept", "grant", 1, without="use"),
        "_c_3-.*-0000000003 was granted twice": changed("kept", "grant", 2, use=2),
        "was kept, and not granted before": dropped("kept", "grant"),
        r"-0000000003 of .* after .*-0000000004 of": use_after_the_next_grant,
    },
    Rule.FENCE: {
        "-0000000001 after .*-0000000002": two_tokens_swapped,
        "was accepted, and is there 0 times": lambda it: it.rewrite(lambda all: all[:-1]),
        "was accepted, and is there 2 times": lambda it: it.rewrite(lambda all: [*all, all[-1]]),
        "nobody wrote nobody like this": lambda it: it.rewrite(
            lambda all: [*all, ["nobody", str(FencingToken(9, 9)), len(all) + 1]]
        ),
        "made 17 of 17": update_lost,
        "counts other writes than its log": changed("last", "contents", value=0),
        "was refused, and is there 1 times": changed("first", "written", outcome="refused"),
        "w of w0 .* was refused": holder_s_write_refused,
        "no contents of sqlite /l": dropped("last", "contents"),
    },
    Rule.REPORT: {
        "was reported lost 2 times": added("LEASE_LAPSED", "lost"),
        "is over without a report": dropped("LEASE_LAPSED", "lost"),
        "lost although it was released": added("first", "grant", "lost", **NOW),
        "lost of no grant: /l/unknown": added("LEASE_LAPSED", "lost", node="/l/unknown"),
        "held of no grant": changed("first", "held", use=9),
        "before its lease was over": changed("LEASE_LAPSED", "lost", noticed=1000.0),
        "nobody deleted its node": dropped("NODE_DELETED", "break"),
        "nobody closed its client": dropped("CLIENT_CLOSED", "close"),
        "was released 2 times": added("first", "release"),
        "could be released although it was not held": changed(
            "LEASE_LAPSED", "released", outcome="done"
        ),
        "never ended": lambda it: it.drop(it.one("first", "release"), it.one("first", "released")),
        "s late": changed("SESSION_EXPIRED", "lost", at=2000.0),
    },
    Rule.SERVICE: {
        "s after its timeout": changed("UNGRANTED", "answer", at=2000.0),
        "never ended": dropped("UNGRANTED", "answer"),
        "was answered twice": added("UNGRANTED", "answer"),
        r"left in /l: \['_c_1-lock-1'\]": changed("last", "left", names=["_c_1-lock-1"]),
        "nobody looked for what is left": dropped("last", "left"),
        "no end of the faults": dropped("calm", "calm"),
        "w2.* was not served after the faults": not_served,
        "was not served after the faults": changed("last", "grant", at=1040.0),
    },
    Rule.SURPRISE: {
        r"w0: \?": added("first", "ask", "error", what="?"),
        "did not end in order": dropped("last", "end"),
    },
}


@pytest.mark.parametrize(
    ("rule", "said"), [(rule, said) for rule, plants in PLANTS.items() for said in plants]
)
def test_finds_what_is_planted(rule: Rule, said: str) -> None:
    PLANTS[rule][said](story := Story())
    found = [
        violation.what
        for violation in check(story.events, BOUNDS).violations
        if violation.rule is rule
    ]
    assert any(re.search(said, what) for what in found), found


@pytest.mark.parametrize("asked", [True, False], ids=["locks", "shards are given unasked"])
def test_accepts_what_is_valid(asked: bool) -> None:
    events = Story().events
    if not asked:
        events = [event for event in events if event.kind not in ("ask", "answer")]
        for event in events:
            if event.kind == "grant":
                del event.data["ask"]  # type: ignore[attr-defined]
    verdict = check(events, BOUNDS)
    assert verdict.violations == []
    assert (verdict.grants, verdict.kept) == (18, 2)
    assert verdict.ends == {
        **dict.fromkeys(LOST[1:], 1),
        **{"LEASE_LAPSED": 2, "CRASHED": 2, "RELEASED": 11},
    }
    assert set(verdict.noticed) == {"LEASE_LAPSED", "SESSION_EXPIRED", "CLIENT_CLOSED"}
    assert min(verdict.noticed.values()) > 0
    assert verdict.writes == {"sqlite accepted": 18, "sqlite refused": len(LOST)}
    assert verdict.asks == ({"none": 1} if asked else {})
    assert verdict.faults == {"crash": 1}


@pytest.mark.parametrize(("lease_end", "overlap"), [(9.9, False), (12.0, True)])
def test_a_grant_that_was_over_before_it_was_told_has_no_interval(
    lease_end: float, overlap: bool
) -> None:
    """A process paused in the middle of acquire(): the next one was granted meanwhile."""

    def event(at: float, kind: str, number: int, **data: Any) -> HistoryEvent:
        node = f"/l/_c_{number}-lock-{number:010d}"
        return HistoryEvent(at, "w", kind, {"node": node, **data})

    events = [
        event(20.0, "grant", 1, began=10.0, lock="/l", token=str(FencingToken(1, 1))),
        event(20.0, "lost", 1, reason="LEASE_LAPSED", noticed=20.0, lease_end=lease_end),
        event(11.0, "grant", 2, began=11.0, lock="/l", token=str(FencingToken(1, 2))),
        event(12.0, "held", 2),
    ]
    found = {violation.rule for violation in check(events, BOUNDS).violations}
    assert (Rule.EXCLUSION in found) is overlap
