"""The checker accepts every valid history, and finds whatever is planted in one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings, strategies as st

from tests.chaos.checker import Bounds, Rule, check
from tests.chaos.history import HistoryEvent
from tests.modes import examples
from zklock import FencingToken

BOUNDS = Bounds(slack=3.0, service=30.0)
STEP = 0.01
LOCKS = ("/l/0", "/l/1")


class End(Enum):
    RELEASED = "released"
    ABANDONED = "abandoned"
    LEASE_LAPSED = "lease over"
    SESSION_EXPIRED = "session over"
    CLIENT_CLOSED = "client stopped"
    NODE_DELETED = "node deleted"
    CRASHED = "process ended itself"
    KILLED = "process was killed"
    UNGRANTED = "timeout"
    PAUSED = "paused past its lease, noticed after the next grant"


LOST = (End.LEASE_LAPSED, End.SESSION_EXPIRED, End.CLIENT_CLOSED, End.NODE_DELETED)


@dataclass(frozen=True)
class Turn:
    """``uses``: how many grants there are on its znode."""

    end: End
    lock: int = 0
    source: int = 0
    looks: int = 2
    writes: int = 2
    skip: int = 1
    renewed: bool = False
    gap: float = 0.0
    uses: int = 1


turns = st.builds(
    Turn,
    lock=st.integers(0, 1),
    source=st.integers(0, 2),
    end=st.sampled_from(End),
    looks=st.integers(0, 3),
    writes=st.integers(0, 3),
    skip=st.integers(1, 3),
    renewed=st.booleans(),
    gap=st.floats(0.0, 5.0),
    uses=st.integers(1, 4),
)

DEADLY = [End.CRASHED, End.KILLED]
SPARING = [end for end in End if end not in DEADLY]
EVERYTHING = [
    Turn(end, source=number % 3)
    for number, end in enumerate([*DEADLY, End.RELEASED, *SPARING, End.RELEASED])
] + [Turn(End.RELEASED, source=1, uses=3), Turn(End.RELEASED)]
"""Every way to end, those that survive it last, so that there is always something to spoil."""

Name: TypeAlias = dict[str, Any]


class Simulation:
    """An ideal lock, and what its users would have noted."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.events: list[HistoryEvent] = []
        self.tokens = dict.fromkeys(LOCKS, FencingToken(1, 0))
        self.lives = [1, 1, 1]
        self.sessions = [1, 2, 3]
        self.logs: dict[str, list[list[Any]]] = {lock: [] for lock in LOCKS}
        self.late: list[tuple[str, Name, float]] = []
        for number in range(3):
            self.note(self.source(number), "begin")

    def source(self, number: int) -> str:
        return f"w{number}-{self.lives[number]}"

    def note(self, source: str, kind: str, at: float | None = None, **data: Any) -> None:
        self.now += STEP
        self.events.append(HistoryEvent(self.now if at is None else at, source, kind, data))

    def ask(self, source: str, lock: str) -> str:
        ask = f"{source}-a{len(self.events)}"
        self.note(source, "ask", ask=ask, lock=lock, timeout=60.0)
        return ask

    def write(self, source: str, name: Name, lock: str, token: str, outcome: str) -> None:
        log, write = self.logs[lock], f"{source}-{len(self.events)}"
        what: Name = {"store": "sqlite", "lock": lock, "token": token}
        self.note(source, "write", **name, **what, write=write, value=len(log) + 1)
        if outcome == "accepted":
            log.append([write, token, len(log) + 1])
        self.note(source, "written", write=write, outcome=outcome)

    def take(self, turn: Turn) -> None:
        self.now += turn.gap
        lock, source = LOCKS[turn.lock], self.source(turn.source)
        ask = self.ask(source, lock)
        if turn.end is End.UNGRANTED:
            self.note(source, "answer", ask=ask, outcome="none")
            return
        before = self.tokens[lock]
        token = FencingToken(before.epoch, before.sequence + turn.skip)
        if turn.renewed:
            token = FencingToken(before.epoch + 1, 0)
        self.tokens[lock] = token
        node = f"{lock}/_c_{len(self.events)}-lock-{token.sequence:010d}"
        name: Name = {"node": node}
        self.now += STEP
        for use in range(turn.uses):
            if use:
                self.give_back(source, name, "done")
                ask = self.ask(source, lock)
                name = {"node": node, "use": turn.uses - use}
            session, began = self.sessions[turn.source], self.now
            self.now += STEP
            if not use:
                self.notice()
            said: Name = {"ask": ask, "lock": lock, "token": str(token), "session": session}
            self.note(source, "grant", began=began, **name, **said)
            for _ in range(turn.looks):
                self.note(source, "held", **name)
            for _ in range(turn.writes):
                self.write(source, name, lock, str(token), "accepted")
            self.note(source, "held", **name)
        self.end(turn, source, name, lock, str(token))

    def end(self, turn: Turn, source: str, name: Name, lock: str, token: str) -> None:
        match turn.end:
            case End.RELEASED:
                self.give_back(source, name, "done")
            case End.ABANDONED:
                self.give_back(source, name, "done", how="abandon")
            case End.PAUSED:
                self.now += 1.0
                self.late.append((source, name, self.now))
            case End.CRASHED | End.KILLED:
                if turn.end is End.CRASHED:
                    self.note(source, "crash")
                else:
                    self.ask(source, lock)
                    self.note("nemesis", "kill", worker=source)
                self.lives[turn.source] += 1
                self.note(self.source(turn.source), "begin")
            case lost:
                self.lose(lost, source, name)
                if lost in (End.SESSION_EXPIRED, End.CLIENT_CLOSED):
                    self.sessions[turn.source] += len(self.sessions)
                self.note(source, "unheld", **name)
                self.write(source, name, lock, token, "refused")
                self.give_back(source, name, "lost")

    def lose(self, end: End, source: str, name: Name) -> None:
        lease_end = self.now + 1.0
        if end is End.LEASE_LAPSED:
            self.now += 1.1
        elif end is End.CLIENT_CLOSED:
            self.note(source, "close")
        elif end is End.NODE_DELETED:
            self.note("nemesis", "break", node=name["node"])
            self.note(source, "held", **name)  # nobody has told it yet
        self.report(source, name, end.name, lease_end)

    def notice(self) -> None:
        """Those that were paused notice it, after the next grant."""
        for source, name, lease_end in self.late:
            self.report(source, name, "LEASE_LAPSED", lease_end)
            self.note("nemesis", "pause", lease_end - 1.0, worker=source, until=self.now)
            self.give_back(source, name, "lost")
        self.late.clear()

    def report(self, source: str, name: Name, reason: str, lease_end: float) -> None:
        times = {"noticed": self.now + STEP / 2, "lease_end": lease_end}
        self.note(source, "lost", **name, reason=reason, **times)

    def give_back(self, source: str, name: Name, outcome: str, how: str = "release") -> None:
        self.note(source, "release", **name, how=how)
        self.note(source, "released", **name, outcome=outcome)

    def finish(self) -> list[HistoryEvent]:
        self.note("run", "calm")
        for number in range(6):
            self.take(Turn(End.RELEASED, number % 2, number % 3, looks=1, writes=1))
        for number in range(3):
            self.note(self.source(number), "end")
        for lock, log in self.logs.items():
            self.note("run", "left", lock=lock, names=[])
            self.note("run", "contents", store="sqlite", lock=lock, value=len(log), writes=log)
        return sorted(self.events, key=lambda event: event.at)


def simulate(wanted: list[Turn]) -> list[HistoryEvent]:
    simulation = Simulation()
    for turn in [*wanted, *EVERYTHING]:
        simulation.take(turn)
    return simulation.finish()


histories = st.lists(turns, max_size=12).map(simulate)


@settings(deadline=None)
@given(histories)
def test_accepts_what_is_valid(history: list[HistoryEvent]) -> None:
    verdict = check(history, BOUNDS)
    assert verdict.violations == []
    assert verdict.grants == sum(event.kind == "grant" for event in history)
    assert verdict.kept == sum(event.kind == "grant" and "use" in event.data for event in history)
    assert min(verdict.noticed.values()) > 0


class Planting:
    """Spoils one thing in a history. What it picks is of those that qualify, at random."""

    def __init__(self, history: list[HistoryEvent], data: st.DataObject) -> None:
        self.events = list(history)
        self._data = data
        dead = {event["worker"] for event in self.all("kill")}
        self.dead = dead | {event.source for event in self.all("crash")}
        self.calm = self.all("calm")[0].at

    def all(self, kind: str, **wanted: Any) -> list[HistoryEvent]:
        return [
            event
            for event in self.events
            if event.kind == kind and all(event.data.get(it) == wanted[it] for it in wanted)
        ]

    def one(
        self, kind: str, of: Callable[[HistoryEvent], object] = lambda _: True, **wanted: Any
    ) -> HistoryEvent:
        found = [event for event in self.all(kind, **wanted) if of(event)]
        return found[self._data.draw(st.integers(0, len(found) - 1))]

    def alive(self, event: HistoryEvent) -> bool:
        return event.source not in self.dead

    def about(self, kind: str, grant: HistoryEvent) -> list[HistoryEvent]:
        """Return what was noted of one grant."""
        return [event for event in self.all(kind) if event.grant == grant.grant]

    def returned(self, grant: HistoryEvent) -> bool:
        """Whether it was released, while it was held."""
        done = any(event["outcome"] == "done" for event in self.about("released", grant))
        return done and self.about("release", grant)[0]["how"] == "release"

    def untouched(self, grant: HistoryEvent) -> bool:
        """Whether nobody deleted its node either, not even later."""
        return self.returned(grant) and not self.all("break", node=grant["node"])

    def next(self, grant: HistoryEvent) -> HistoryEvent | None:
        """Return the next grant of the lock, on another node."""
        rest = self.all("grant", lock=grant["lock"])
        return next((it for it in rest if it.at > grant.at and it["node"] != grant["node"]), None)

    def followed(self, grant: HistoryEvent) -> bool:
        return self.returned(grant) and self.next(grant) is not None

    def pair(self) -> tuple[HistoryEvent, HistoryEvent]:
        """Return a grant that was released, and the next one."""
        grant = self.one("grant", self.followed)
        other = self.next(grant)
        assert other is not None
        return grant, other

    def again(self, of: Callable[[HistoryEvent], object] = lambda _: True) -> HistoryEvent:
        """Return a grant on a node that was kept."""
        return self.one("grant", lambda grant: "use" in grant.data and of(grant))

    def before(self, grant: HistoryEvent) -> HistoryEvent:
        """Return the grant on the same node that was released for this one."""
        return [it for it in self.all("grant", node=grant["node"]) if it.at < grant.at][-1]

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

    def rewrite(self, change: Callable[[list[Any]], list[Any]], least: int = 1) -> None:
        """Change the log of a store, whose counter agrees with it."""
        contents = self.one("contents", lambda event: len(event["writes"]) >= least)
        writes = change(contents["writes"])
        self.change(contents, writes=writes, value=len(writes))


Plant = Callable[[Planting], object]


def grant_while_another_was_held(it: Planting) -> None:
    grant, other = it.pair()
    (release,) = it.about("release", grant)
    it.change(other, began=(grant["began"] + release.at) / 2)


def held_after_the_next_grant(it: Planting) -> None:
    grant, other = it.pair()
    it.add(it.about("held", grant)[-1], at=other["began"] + STEP / 10)


def lease_into_the_next_grant(it: Planting) -> None:
    def followed(loss: HistoryEvent) -> object:
        return it.next(it.about("grant", loss)[0])

    loss = it.one("lost", followed, reason="LEASE_LAPSED")
    other = it.next(it.about("grant", loss)[0])
    assert other is not None
    at = other["began"] + STEP / 10
    it.change(loss, at=at, noticed=at, lease_end=at)


def two_bodies_at_once(it: Planting) -> None:
    grant = it.again()
    (release,) = it.about("release", it.before(grant))
    it.change(grant, began=release.at - STEP / 2)


def session_that_was_over(it: Planting) -> None:
    over = ("SESSION_EXPIRED", "CLIENT_CLOSED")
    loss = it.one("lost", lambda loss: loss["reason"] in over)
    (grant,) = it.about("grant", loss)
    later = it.one("grant", lambda each: each["began"] > loss["noticed"])
    it.change(later, session=grant["session"])


def use_of_what_was_lost(it: Planting) -> None:
    grant = it.again()
    first = it.before(grant)
    it.drop(*it.about("release", first), *it.about("released", first))
    at = grant["began"] - STEP / 2
    it.add(first, "lost", at, reason="SESSION_EXPIRED", noticed=at, lease_end=at)


def tokens_changed_places(it: Planting) -> None:
    grant, other = it.pair()
    it.change(grant, token=other["token"])
    it.change(other, token=grant["token"])


def token(grant: HistoryEvent, epoch: int = 0, sequence: int = 0) -> str:
    """Return its token, and so much more."""
    own = FencingToken.parse(grant["token"])
    return str(FencingToken(own.epoch + epoch, own.sequence + sequence))


def epoch_that_went_back(it: Planting) -> None:
    _, other = it.pair()
    it.change(other, token=str(FencingToken(0, FencingToken.parse(other["token"]).sequence)))


def use_by_another_process(it: Planting) -> None:
    grant = it.again()
    it.drop(grant)
    it.events.append(replace(grant, source="w9-1"))


def use_of_what_nobody_was_granted(it: Planting) -> None:
    grant = it.again(it.alive)
    (first,) = (each for each in it.all("grant", node=grant["node"]) if "use" not in each.data)
    it.drop(first)


def use_after_the_next_grant(it: Planting) -> None:
    grant = it.again(lambda use: it.next(use) and it.untouched(use))
    other = it.next(grant)
    assert other is not None
    by = other["began"] + STEP / 2 - grant["began"]
    it.change(grant, at=grant.at + by, began=grant["began"] + by)
    for kind in ("held", "release", "released"):
        for each in it.about(kind, grant):
            it.change(each, at=each.at + by)


def log_with_two_tokens_swapped(it: Planting) -> None:
    contents = it.one("contents", lock=LOCKS[0])
    writes = [*contents["writes"]]
    first = next(n for n in range(len(writes) - 1) if writes[n][1] != writes[n + 1][1])
    (one, low, value), (other, high, more) = writes[first : first + 2]
    writes[first : first + 2] = [[other, high, value], [one, low, more]]
    for write, new in ((other, value), (one, more)):
        it.change(it.all("write", write=write)[0], value=new)
    it.change(contents, writes=writes)


def update_lost_between_read_and_write(it: Planting) -> None:
    def lose(writes: list[Any]) -> list[Any]:
        *others, (write, token, value) = writes
        it.change(it.all("write", write=write)[0], value=value - 1)
        return [*others, [write, token, value - 1]]

    it.rewrite(lose, least=2)


def holder_s_write_refused(it: Planting) -> None:
    write = it.one("write", it.untouched)
    (written,) = it.all("written", write=write["write"])
    it.add(write, at=write.at, write="w")
    it.add(written, at=write.at, write="w", outcome="refused")


def somebody_not_served(it: Planting) -> None:
    grant = it.one("grant", lambda each: each.at > it.calm)
    it.drop(grant)
    it.add(grant, "answer", outcome="none")


NOW: Name = {"reason": "SESSION_EXPIRED", "noticed": 0.0, "lease_end": 0.0}
FIRST = ["nobody", str(FencingToken(9, 9))]

PLANTS: dict[Rule, dict[str, Plant]] = {
    Rule.EXCLUSION: {
        "a grant while another was held": grant_while_another_was_held,
        "a look that saw it held after the next grant": held_after_the_next_grant,
        "a lease that ended after the next grant": lease_into_the_next_grant,
        "two bodies of one client at once": two_bodies_at_once,
    },
    Rule.FINAL: {
        "a grant on a session that was over": session_that_was_over,
        "a use of what was lost": use_of_what_was_lost,
        "held again": lambda it: it.add(it.one("unheld"), "held"),
        "held after its loss": lambda it: it.add(
            loss := it.one("lost"), "held", loss["noticed"] + STEP / 10
        ),
    },
    Rule.TOKENS: {
        "two tokens changed places": tokens_changed_places,
        "a node granted twice": lambda it: it.add(it.one("grant"), ask="another"),
        "an epoch that went back": epoch_that_went_back,
        "a token that is not the node's": lambda it: it.change(
            grant := it.one("grant"), token=token(grant, sequence=1_000_000)
        ),
        "a token that changes on its node": lambda it: it.change(
            grant := it.again(), token=token(grant, epoch=1)
        ),
        "a use without a number": lambda it: it.change(it.again(), without="use"),
        "a use of the same number": lambda it: it.change(
            grant := it.again(lambda each: "use" in it.before(each).data),
            use=it.before(grant)["use"],
        ),
        "a use by another process": use_by_another_process,
        "a use in another session": lambda it: it.change(
            grant := it.again(), session=grant["session"] + 1
        ),
        "a use of what nobody was granted": use_of_what_nobody_was_granted,
        "a use after the next contender's grant": use_after_the_next_grant,
    },
    Rule.FENCE: {
        "a log with two tokens swapped": log_with_two_tokens_swapped,
        "a write that was lost": lambda it: it.rewrite(lambda all: all[:-1]),
        "a write made twice": lambda it: it.rewrite(lambda all: [*all, all[-1]]),
        "a write by nobody": lambda it: it.rewrite(lambda all: [*all, [*FIRST, len(all) + 1]]),
        "an update lost between read and write": update_lost_between_read_and_write,
        "a counter that is not its log": lambda it: it.change(it.one("contents"), value=0),
        "a refused write that is there": lambda it: it.change(
            it.one("written", outcome="accepted"), outcome="refused"
        ),
        "a holder's write refused": holder_s_write_refused,
        "a store that nobody looked at": lambda it: it.drop(it.one("contents")),
    },
    Rule.REPORT: {
        "a loss reported twice": lambda it: it.add(it.one("lost")),
        "a loss not reported": lambda it: it.drop(it.one("lost", it.alive)),
        "a released grant reported lost": lambda it: it.add(
            it.one("grant", it.returned), "lost", **NOW
        ),
        "a loss of no grant": lambda it: it.add(it.one("lost", it.alive), node="/l/0/unknown"),
        "a look at a use that there was not": lambda it: it.change(it.one("held", it.alive), use=9),
        "a lease lost too early": lambda it: it.change(
            loss := it.one("lost", reason="LEASE_LAPSED"), noticed=loss["lease_end"] - STEP
        ),
        "a deletion by nobody": lambda it: it.drop(it.one("break")),
        "a closing by nobody": lambda it: it.drop(*it.all("close")),
        "a grant released twice": lambda it: it.add(it.one("release")),
        "a lost grant released": lambda it: it.change(
            it.one("released", outcome="lost"), outcome="done"
        ),
        "a grant that never ended": lambda it: it.drop(
            *it.about(
                "release", grant := it.one("grant", lambda e: it.alive(e) and it.returned(e))
            ),
            *it.about("released", grant),
        ),
        "a loss reported late": lambda it: it.change(
            loss := it.one("lost", reason="SESSION_EXPIRED"), at=loss.at + 1004
        ),
    },
    Rule.SERVICE: {
        "a call that outlives its timeout": lambda it: it.change(
            answer := it.one("answer"), at=answer.at + 1000
        ),
        "a call that never ends": lambda it: it.drop(it.one("answer", it.alive)),
        "a call answered twice": lambda it: it.add(it.one("answer")),
        "something left": lambda it: it.change(it.one("left"), names=["_c_1-lock-1"]),
        "nobody looked for what is left": lambda it: it.drop(*it.all("left")),
        "no end of the faults": lambda it: it.drop(it.one("calm")),
        "somebody not served after the faults": somebody_not_served,
        "somebody served late after the faults": lambda it: it.change(
            it.one("grant", lambda each: each.at > it.calm), at=it.calm + 40
        ),
    },
    Rule.SURPRISE: {
        "an undocumented error": lambda it: it.add(it.one("begin"), "error", what="?"),
        "a process that vanished": lambda it: it.drop(it.one("end")),
    },
}


@pytest.mark.parametrize(
    ("rule", "name"), [(rule, name) for rule, plants in PLANTS.items() for name in plants]
)
@settings(max_examples=examples(25), deadline=None)
@given(history=histories, data=st.data())
def test_finds_what_is_planted(
    rule: Rule, name: str, history: list[HistoryEvent], data: st.DataObject
) -> None:
    PLANTS[rule][name](planting := Planting(history, data))
    assert rule in {violation.rule for violation in check(planting.events, BOUNDS).violations}


def test_shards_are_given_unasked() -> None:
    events = [event for event in simulate(EVERYTHING) if event.kind not in ("ask", "answer")]
    for event in events:
        if event.kind == "grant":
            del event.data["ask"]  # type: ignore[attr-defined]
    assert check(events, BOUNDS).violations == []


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


def test_the_figures() -> None:
    verdict = check(simulate([]), BOUNDS)
    assert verdict.ends["LEASE_LAPSED"] == 2
    assert verdict.ends["RELEASED"] == verdict.grants - 2 - 2 - 3
    assert set(verdict.noticed) == {"LEASE_LAPSED", "SESSION_EXPIRED", "CLIENT_CLOSED"}
    assert verdict.writes["sqlite refused"] == len(LOST)
    assert verdict.asks["none"] == 1
    assert verdict.faults["crash"] == 1
