"""The checker accepts every valid history, and finds whatever is planted in one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings, strategies as st

from tests.chaos.checker import Bounds, Rule, Verdict, check
from tests.chaos.history import HistoryEvent
from tests.modes import examples
from zklock import FencingToken

BOUNDS = Bounds(slack=3.0, service=30.0)
STEP = 0.01


class End(Enum):
    RELEASED = "released"
    ABANDONED = "abandoned"
    LAPSED = "lease over"
    EXPIRED = "session over"
    CLOSED = "client stopped"
    BROKEN = "node deleted"
    CRASHED = "process ended itself"
    KILLED = "process was killed"
    UNGRANTED = "timeout"
    PAUSED = "paused past its lease, noticed after the next grant"


LOST = {End.LAPSED, End.EXPIRED, End.CLOSED, End.BROKEN}


@dataclass(frozen=True)
class Turn:
    lock: int
    source: int
    end: End
    looks: int
    writes: tuple[str, ...]
    lists: bool
    skip: int
    renewed: bool
    gap: float
    uses: int = 1
    """How many grants there are on its znode."""


turns = st.builds(
    Turn,
    lock=st.integers(0, 1),
    source=st.integers(0, 2),
    end=st.sampled_from(End),
    looks=st.integers(0, 3),
    writes=st.lists(st.sampled_from(["sqlite", "zookeeper"]), max_size=3).map(tuple),
    lists=st.booleans(),
    skip=st.integers(1, 3),
    renewed=st.booleans(),
    gap=st.floats(0.0, 5.0),
)

DEADLY = [End.CRASHED, End.KILLED]
EVERYTHING = [
    Turn(0, number % 3, end, 2, ("sqlite", "zookeeper"), True, 1, False, 0.0)
    for number, end in enumerate(
        [*DEADLY, End.RELEASED, *(end for end in End if end not in DEADLY), End.RELEASED]
    )
]
"""Every way to end, those that survive it last, so that there is always something to spoil."""


Name: TypeAlias = dict[str, Any]


def named(grant: dict[str, Any]) -> Name:
    """Return what names a grant: its node, and the use of it if it was kept."""
    return {key: grant[key] for key in ("node", "use") if key in grant}


class Simulation:
    """An ideal lock, and what its users would have noted."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.events: list[HistoryEvent] = []
        self.epochs = [1, 1]
        self.sequences = [0, 0]
        self.lives = [1, 1, 1]
        self.sessions = [1, 2, 3]
        self.logs: dict[tuple[str, str], list[list[Any]]] = {
            (store, lock): [] for store in ("sqlite", "zookeeper") for lock in ("/l/0", "/l/1")
        }
        self.late: list[tuple[str, Name, float, float]] = []
        for number in range(3):
            self.note(self.source(number), "begin")

    def source(self, number: int) -> str:
        return f"w{number}-{self.lives[number]}"

    def note(self, source: str, kind: str, at: float | None = None, **data: Any) -> float:
        self.now += STEP
        at = self.now if at is None else at
        self.events.append(HistoryEvent(at, source, kind, data))
        return at

    def write(self, source: str, grant: dict[str, Any], store: str, outcome: str) -> None:
        lock, token = grant["lock"], grant["token"]
        log = self.logs[store, lock]
        write = f"{source}-{len(self.events)}"
        entry = [write, token, len(log) + 1]
        self.note(
            source, "write", **named(grant), store=store, lock=lock,
            write=write, token=token, value=len(log) + 1,
        )  # fmt: skip
        if outcome == "accepted":
            log.append(entry)
        self.note(source, "written", write=write, outcome=outcome)

    def ask(self, source: str, lock: str, timeout: float) -> str:
        ask = f"{source}-a{len(self.events)}"
        self.note(source, "ask", ask=ask, lock=lock, timeout=timeout)
        return ask

    def take(self, turn: Turn) -> None:
        self.now += turn.gap
        lock, source = f"/l/{turn.lock}", self.source(turn.source)
        ask = self.ask(source, lock, 60.0)
        if turn.end is End.UNGRANTED:
            self.note(source, "answer", ask=ask, outcome="none")
            return
        if turn.renewed:
            self.epochs[turn.lock] += 1
            self.sequences[turn.lock] = -1
        self.sequences[turn.lock] += turn.skip
        token = FencingToken(self.epochs[turn.lock], self.sequences[turn.lock])
        node = f"{lock}/_c_{len(self.events)}-lock-{token.sequence:010d}"
        grant: dict[str, Any] = {
            "ask": ask,
            "lock": lock,
            "node": node,
            "token": str(token),
            "session": self.sessions[turn.source],
        }
        self.now += STEP
        began = self.now
        for late_source, late, lease_end, at in self.late:
            self.report(late_source, late, "LEASE_LAPSED", self.now + STEP, lease_end)
            self.note("nemesis", "pause", at, worker=late_source, until=self.now)
            self.give_back(late_source, late, "release", "lost")
        self.late.clear()
        for use in range(1, turn.uses):
            self.use(turn, source, grant, token, began)
            self.give_back(source, named(grant), "release", "done")
            grant |= {"ask": self.ask(source, lock, 60.0), "use": turn.uses - use, "keep": 60.0}
            began = self.now = self.now + STEP
        self.use(turn, source, grant, token, began)
        self.end(turn, source, named(grant), grant)

    def use(
        self, turn: Turn, source: str, grant: dict[str, Any], token: FencingToken, began: float
    ) -> None:
        lock, name = grant["lock"], named(grant)
        self.note(source, "grant", began=began, **grant)
        for _ in range(turn.looks):
            self.note(source, "held", **name)
        if turn.lists:
            numbers = [token.sequence, token.sequence + 1]
            self.note(source, "queue", **name, lock=lock, epoch=token.epoch, standing=numbers)
        for store in turn.writes:
            self.write(source, grant, store, "accepted")
        self.note(source, "held", **name)

    def end(self, turn: Turn, source: str, name: Name, grant: dict[str, Any]) -> None:
        if turn.end in LOST:
            self.lose(turn.end, source, name)
            if turn.end in (End.EXPIRED, End.CLOSED):
                self.sessions[turn.source] += len(self.sessions)
            self.note(source, "unheld", **name)
            self.write(source, grant, "zookeeper", "refused")
            self.give_back(source, name, "release", "lost")
        elif turn.end is End.PAUSED:
            self.now += 1.0
            self.late.append((source, name, self.now, self.now - 1.0))
        elif turn.end is End.CRASHED:
            self.note(source, "crash")
            self.reborn(turn.source)
        elif turn.end is End.KILLED:
            self.ask(source, grant["lock"], 60.0)
            self.note("nemesis", "kill", worker=source)
            self.reborn(turn.source)
        else:
            how = "release" if turn.end is End.RELEASED else "abandon"
            self.give_back(source, name, how, "done")

    def reborn(self, number: int) -> None:
        self.lives[number] += 1
        self.note(self.source(number), "begin")

    def lose(self, end: End, source: str, name: Name) -> None:
        lease_end = self.now + 1.0
        if end is End.LAPSED:
            self.now += 1.1
            self.report(source, name, "LEASE_LAPSED", self.now, lease_end)
        elif end is End.EXPIRED:
            self.report(source, name, "SESSION_EXPIRED", self.now + STEP / 2, lease_end)
        elif end is End.CLOSED:
            self.note(source, "close")
            self.report(source, name, "CLIENT_CLOSED", self.now + STEP / 2, lease_end)
        else:
            self.note("nemesis", "break", node=name["node"])
            self.note(source, "held", **name)  # nobody has told it yet
            self.report(source, name, "NODE_DELETED", self.now + STEP / 2, lease_end)

    def report(
        self, source: str, name: Name, reason: str, noticed: float, lease_end: float
    ) -> None:
        self.now = max(self.now, noticed)
        self.note(source, "lost", **name, reason=reason, noticed=noticed, lease_end=lease_end)

    def give_back(self, source: str, name: Name, how: str, outcome: str) -> None:
        self.note(source, "release", **name, how=how)
        self.note(source, "released", **name, outcome=outcome)

    def finish(self) -> list[HistoryEvent]:
        self.note("run", "calm")
        for number in range(3):
            for lock in range(2):
                self.take(Turn(lock, number, End.RELEASED, 1, ("sqlite",), False, 1, False, 0.0))
        for number in range(3):
            self.note(self.source(number), "end")
        for path in ("/l/0", "/l/1"):
            self.note("run", "left", lock=path, names=[])
            for store in ("sqlite", "zookeeper"):
                log = self.logs[store, path]
                self.note("run", "contents", store=store, lock=path, value=len(log), writes=log)
        return sorted(self.events, key=lambda event: event.at)


def simulate(wanted: list[Turn]) -> list[HistoryEvent]:
    simulation = Simulation()
    for turn in [*wanted, *EVERYTHING]:
        simulation.take(turn)
    return simulation.finish()


histories = st.lists(turns, max_size=12).map(simulate)
kept_turns = st.builds(replace, turns, uses=st.integers(1, 4))
A_KEPT_ONE = replace(EVERYTHING[2], uses=3)
kept_histories = st.lists(kept_turns, max_size=12).map(
    lambda wanted: simulate([*wanted, A_KEPT_ONE])
)
"""Histories of locks that are kept; the last ones to end are those of ``EVERYTHING``."""


@settings(deadline=None)
@given(histories)
def test_accepts_what_is_valid(history: list[HistoryEvent]) -> None:
    accepts(history)


@settings(deadline=None)
@given(kept_histories)
def test_accepts_equal_tokens_of_kept_locks(history: list[HistoryEvent]) -> None:
    accepts(history)
    assert check(history, BOUNDS).kept == len(again(history)) > 0


def again(history: list[HistoryEvent]) -> list[HistoryEvent]:
    """Return the grants on nodes that were kept."""
    return [event for event in of(history, "grant") if "use" in event.data]


def accepts(history: list[HistoryEvent]) -> None:
    verdict = check(history, BOUNDS)
    assert verdict.violations == []
    assert verdict.grants == sum(event.kind == "grant" for event in history)
    assert min(margin.seconds for margin in verdict.margins.values()) > 0


# Planting. Each takes a history apart, spoils one thing, and says nothing of where.

Pick = Callable[[list[HistoryEvent]], HistoryEvent]
Plant = Callable[[list[HistoryEvent], Pick], list[HistoryEvent]]
PLANTS: dict[str, tuple[Rule, Plant]] = {}


def plant(rule: Rule) -> Callable[[Plant], Plant]:
    def register(spoil: Plant) -> Plant:
        PLANTS[spoil.__name__] = rule, spoil
        return spoil

    return register


def of(history: list[HistoryEvent], kind: str, **wanted: Any) -> list[HistoryEvent]:
    return [
        event
        for event in history
        if event.kind == kind and all(event[key] == value for key, value in wanted.items())
    ]


def changed(
    history: list[HistoryEvent], old: HistoryEvent, at: float | None = None, **data: Any
) -> list[HistoryEvent]:
    new = replace(old, at=old.at if at is None else at, data={**old.data, **data})
    return [new if event is old else event for event in history]


def without(history: list[HistoryEvent], *gone: HistoryEvent) -> list[HistoryEvent]:
    return [event for event in history if not any(event is each for each in gone)]


def about(history: list[HistoryEvent], kind: str, node: str) -> list[HistoryEvent]:
    return of(history, kind, node=node)


def alive(history: list[HistoryEvent], events: list[HistoryEvent]) -> list[HistoryEvent]:
    dead = {event["worker"] for event in of(history, "kill")}
    dead |= {event.source for event in of(history, "crash")}
    return [event for event in events if event.source not in dead]


def given_back(history: list[HistoryEvent]) -> list[HistoryEvent]:
    """Return the grants that were released while held."""
    return [
        grant
        for grant in of(history, "grant")
        for release in about(history, "release", grant["node"])
        for _ in of(history, "released", node=grant["node"], outcome="done")
        if release["how"] == "release"
    ]


def followed(history: list[HistoryEvent]) -> list[HistoryEvent]:
    """Return the grants that were released while held, and had a successor."""
    last = {lock: of(history, "grant", lock=lock)[-1]["node"] for lock in ("/l/0", "/l/1")}
    return [each for each in given_back(history) if each["node"] not in last.values()]


def successor(history: list[HistoryEvent], grant: HistoryEvent) -> HistoryEvent:
    grants = of(history, "grant", lock=grant["lock"])
    return grants[grants.index(grant) + 1]


@plant(Rule.ASKED)
def a_grant_that_nobody_asked_for(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    grant = pick(of(history, "grant"))
    return without(history, *of(history, "ask", ask=grant["ask"]))


@plant(Rule.ASKED)
def a_grant_that_another_asked_for(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    grant = pick(of(history, "grant"))
    (ask,) = of(history, "ask", ask=grant["ask"])
    return [replace(ask, source="another") if it is ask else it for it in history]


@plant(Rule.ASKED)
def a_grant_of_another_lock(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    grant = pick(of(history, "grant"))
    (ask,) = of(history, "ask", ask=grant["ask"])
    return changed(history, ask, lock="/l/another")


@plant(Rule.ASKED)
def a_grant_before_it_was_asked_for(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    grant = pick(of(history, "grant"))
    (ask,) = of(history, "ask", ask=grant["ask"])
    return changed(history, ask, at=grant["began"] + STEP / 10)


@plant(Rule.ASKED)
def an_answer_that_nobody_asked_for(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    answer = pick(of(history, "answer"))
    return without(history, *of(history, "ask", ask=answer["ask"]))


@plant(Rule.FINAL)
def a_grant_on_a_session_that_was_over(
    history: list[HistoryEvent], pick: Pick
) -> list[HistoryEvent]:
    over = {"SESSION_EXPIRED", "CLIENT_CLOSED"}
    loss = pick([each for each in of(history, "lost") if each["reason"] in over])
    (grant,) = about(history, "grant", loss["node"])
    later = [each for each in of(history, "grant") if each["began"] > loss["noticed"]]
    return changed(history, pick(later), session=grant["session"])


@plant(Rule.EXCLUSION)
def a_grant_while_another_was_held(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    grant = pick(followed(history))
    (release,) = about(history, "release", grant["node"])
    began = (grant["began"] + release.at) / 2
    return changed(history, successor(history, grant), began=began)


@plant(Rule.EXCLUSION)
def a_look_that_saw_it_held_after_the_next_grant(
    history: list[HistoryEvent], pick: Pick
) -> list[HistoryEvent]:
    grant = pick(followed(history))
    at = successor(history, grant)["began"] + STEP / 10
    return [*history, HistoryEvent(at, grant.source, "held", {"node": grant["node"]})]


@plant(Rule.EXCLUSION)
def a_lease_that_ended_after_the_next_grant(
    history: list[HistoryEvent], pick: Pick
) -> list[HistoryEvent]:
    last = {lock: of(history, "grant", lock=lock)[-1]["node"] for lock in ("/l/0", "/l/1")}
    lapsed = [
        loss
        for loss in of(history, "lost", reason="LEASE_LAPSED")
        if loss["node"] not in last.values()
    ]
    loss = pick(lapsed)
    (grant,) = about(history, "grant", loss["node"])
    began = successor(history, grant)["began"] + STEP / 10
    return changed(history, loss, at=began, noticed=began, lease_end=began)


@plant(Rule.TOKENS)
def two_tokens_changed_places(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    grant = pick(followed(history))
    after = successor(history, grant)
    history = changed(history, grant, token=after["token"])
    return changed(history, after, token=grant["token"])


@plant(Rule.TOKENS)
def a_node_granted_twice(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    grant = pick(of(history, "grant"))
    return [*history, replace(grant, data={**grant.data, "ask": "another"})]


@plant(Rule.TOKENS)
def an_epoch_that_went_back(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    grant = pick(followed(history))
    after = successor(history, grant)
    token = FencingToken(0, FencingToken.parse(after["token"]).sequence)
    return changed(history, after, token=str(token))


@plant(Rule.TOKENS)
def a_token_that_is_not_the_node_s(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    grant = pick(of(history, "grant"))
    token = FencingToken.parse(grant["token"])
    return changed(history, grant, token=str(FencingToken(token.epoch, token.sequence + 1_000_000)))


@plant(Rule.QUEUE)
def somebody_overtaken(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    listing = pick(of(history, "queue"))
    (grant,) = about(history, "grant", listing["node"])
    own = FencingToken.parse(grant["token"]).sequence
    return changed(history, listing, standing=[own - 1, own])


@plant(Rule.QUEUE)
def a_queue_without_its_holder(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    return changed(history, pick(of(history, "queue")), standing=[])


@plant(Rule.FENCE)
def a_log_with_two_tokens_swapped(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    contents = pick([each for each in of(history, "contents") if each["lock"] == "/l/0"])
    writes = [*contents["writes"]]
    first = next(n for n in range(len(writes) - 1) if writes[n][1] != writes[n + 1][1])
    (one, low, value), (other, high, next_value) = writes[first : first + 2]
    writes[first : first + 2] = [[other, high, value], [one, low, next_value]]
    for write, new in ((other, value), (one, next_value)):
        history = changed(history, of(history, "write", write=write)[0], value=new)
    return changed(history, contents, writes=writes)


@plant(Rule.FENCE)
def a_write_that_was_lost(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    contents = pick([each for each in of(history, "contents") if each["writes"]])
    writes = contents["writes"][:-1]
    return changed(history, contents, writes=writes, value=len(writes))


@plant(Rule.FENCE)
def a_counter_that_is_not_its_log(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    contents = pick(of(history, "contents"))
    return changed(history, contents, value=contents["value"] + 1)


@plant(Rule.FENCE)
def a_write_made_twice(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    contents = pick([each for each in of(history, "contents") if each["writes"]])
    writes = [*contents["writes"], contents["writes"][-1]]
    return changed(history, contents, writes=writes, value=len(writes))


@plant(Rule.FENCE)
def a_refused_write_that_is_there(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    written = pick(of(history, "written", outcome="accepted"))
    return changed(history, written, outcome="refused")


@plant(Rule.FENCE)
def an_update_lost_between_read_and_write(
    history: list[HistoryEvent], pick: Pick
) -> list[HistoryEvent]:
    contents = pick([each for each in of(history, "contents") if len(each["writes"]) > 1])
    *writes, (write, token, value) = contents["writes"]
    (begun,) = of(history, "write", write=write)
    history = changed(history, begun, value=value - 1)
    return changed(history, contents, writes=[*writes, [write, token, value - 1]])


@plant(Rule.FENCE)
def a_write_by_nobody(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    contents = pick(of(history, "contents"))
    token = contents["writes"][-1][1] if contents["writes"] else str(FencingToken(1, 1))
    writes = [*contents["writes"], ["nobody", token, len(contents["writes"]) + 1]]
    return changed(history, contents, writes=writes, value=len(writes))


@plant(Rule.FENCE)
def a_store_nobody_looked_at(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    del pick
    return without(history, *of(history, "contents", store="sqlite", lock="/l/0"))


@plant(Rule.FENCE)
def a_holder_s_write_refused(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    grant = pick(given_back(history))
    at = grant.at + STEP / 10
    token, lock = grant["token"], grant["lock"]
    write = {"node": grant["node"], "store": "sqlite", "lock": lock, "write": "w", "token": token}
    return [
        *history,
        HistoryEvent(at, grant.source, "write", {**write, "value": 1}),
        HistoryEvent(at, grant.source, "written", {"write": "w", "outcome": "refused"}),
    ]


@plant(Rule.REPORT)
def a_loss_reported_twice(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    return [*history, pick(of(history, "lost"))]


@plant(Rule.REPORT)
def a_loss_not_reported(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    return without(history, pick(alive(history, of(history, "lost"))))


@plant(Rule.REPORT)
def a_released_grant_reported_lost(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    grant = pick(given_back(history))
    (release,) = about(history, "release", grant["node"])
    loss = {"reason": "SESSION_EXPIRED", "noticed": release.at, "lease_end": release.at}
    return [
        *history,
        HistoryEvent(release.at, grant.source, "lost", {"node": grant["node"], **loss}),
    ]


@plant(Rule.REPORT)
def a_loss_of_no_grant(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    loss = pick(alive(history, of(history, "lost")))
    return [*history, replace(loss, data={**loss.data, "node": "/l/0/unknown"})]


@plant(Rule.REPORT)
def a_lease_lost_too_early(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    loss = pick(of(history, "lost", reason="LEASE_LAPSED"))
    return changed(history, loss, noticed=loss["lease_end"] - STEP)


@plant(Rule.REPORT)
def a_deletion_by_nobody(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    return without(history, pick(of(history, "break")))


@plant(Rule.REPORT)
def a_closing_by_nobody(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    closed = pick(of(history, "close"))
    gone = [each for each in of(history, "close") if each.source == closed.source]
    return without(history, *gone)


@plant(Rule.REPORT)
def a_grant_released_twice(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    release = pick(of(history, "release"))
    return [*history, replace(release, at=release.at + STEP / 10)]


@plant(Rule.FINAL)
def a_grant_held_again(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    unheld = pick(of(history, "unheld"))
    return [*history, replace(unheld, at=unheld.at + STEP / 10, kind="held")]


@plant(Rule.FINAL)
def a_grant_held_after_its_loss(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    loss = pick(of(history, "lost"))
    at = loss["noticed"] + STEP / 10
    return [*history, HistoryEvent(at, loss.source, "held", {"node": loss["node"]})]


@plant(Rule.REPORT)
def a_lost_grant_released(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    return changed(history, pick(of(history, "released", outcome="lost")), outcome="done")


@plant(Rule.REPORT)
def a_grant_that_never_ended(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    grant = pick(alive(history, given_back(history)))
    gone = about(history, "release", grant["node"]) + about(history, "released", grant["node"])
    return without(history, *gone)


@plant(Rule.REPORT)
def a_loss_reported_late(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    loss = pick([each for each in of(history, "lost") if each["reason"] == "SESSION_EXPIRED"])
    return changed(history, loss, at=loss.at + BOUNDS.slack + 1000)


@plant(Rule.SERVICE)
def a_call_that_outlives_its_timeout(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    answer = pick(of(history, "answer"))
    return changed(history, answer, at=answer.at + 60 + BOUNDS.slack + 1)


@plant(Rule.SERVICE)
def a_call_that_never_ends(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    return without(history, pick(alive(history, of(history, "answer"))))


@plant(Rule.SERVICE)
def a_call_answered_twice(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    return [*history, pick(of(history, "answer"))]


@plant(Rule.SERVICE)
def something_left(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    return changed(history, pick(of(history, "left")), names=["_c_1-lock-0000000001"])


@plant(Rule.SERVICE)
def nobody_looked_for_what_is_left(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    del pick
    return without(history, *of(history, "left"))


@plant(Rule.SERVICE)
def no_end_of_the_faults(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    return without(history, pick(of(history, "calm")))


@plant(Rule.SERVICE)
def somebody_not_served_after_the_faults(
    history: list[HistoryEvent], pick: Pick
) -> list[HistoryEvent]:
    (calm,) = of(history, "calm")
    grant = pick([each for each in of(history, "grant") if each.at > calm.at])
    gone = [event for event in history if event.data.get("node") == grant["node"]]
    writes = {event["write"] for event in gone if event.kind == "write"}
    gone += [event for event in of(history, "written") if event["write"] in writes]
    answer = HistoryEvent(
        grant.at, grant.source, "answer", {"ask": grant["ask"], "outcome": "none"}
    )
    return [*without(history, grant, *gone), answer]


@plant(Rule.SERVICE)
def somebody_served_late_after_the_faults(
    history: list[HistoryEvent], pick: Pick
) -> list[HistoryEvent]:
    (calm,) = of(history, "calm")
    grant = pick([each for each in of(history, "grant") if each.at > calm.at])
    return changed(history, grant, at=calm.at + BOUNDS.service + 10)


@plant(Rule.SURPRISE)
def an_undocumented_error(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    begun = pick(of(history, "begin"))
    return [*history, HistoryEvent(begun.at, begun.source, "error", {"what": "KeyError"})]


@plant(Rule.SURPRISE)
def a_process_that_vanished(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    return without(history, pick(of(history, "end")))


KEPT_PLANTS: dict[str, tuple[Rule, Plant]] = {}


def plant_on_a_kept_node(rule: Rule) -> Callable[[Plant], Plant]:
    def register(spoil: Plant) -> Plant:
        KEPT_PLANTS[spoil.__name__] = rule, spoil
        return spoil

    return register


def before(history: list[HistoryEvent], grant: HistoryEvent) -> HistoryEvent:
    """Return the grant on the same node that was released for this one."""
    earlier = [each for each in about(history, "grant", grant["node"]) if each.at < grant.at]
    return earlier[-1]


@plant_on_a_kept_node(Rule.TOKENS)
def a_token_that_changes_on_its_node(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    grant = pick(again(history))
    epoch = FencingToken.parse(grant["token"]).epoch + 1
    token = FencingToken(epoch, FencingToken.parse(grant["token"]).sequence)
    return changed(history, grant, token=str(token))


@plant_on_a_kept_node(Rule.TOKENS)
def a_use_that_has_no_number(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    grant = pick(again(history))
    bare = {key: value for key, value in grant.data.items() if key != "use"}
    return [replace(each, data=bare) if each is grant else each for each in history]


@plant_on_a_kept_node(Rule.TOKENS)
def a_use_of_the_same_number(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    grant = pick([each for each in again(history) if "use" in before(history, each).data])
    return changed(history, grant, use=before(history, grant)["use"])


@plant_on_a_kept_node(Rule.TOKENS)
def a_use_by_another_process(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    grant = pick(again(history))
    return [replace(each, source="w9-1") if each is grant else each for each in history]


@plant_on_a_kept_node(Rule.TOKENS)
def a_use_in_another_session(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    return changed(history, grant := pick(again(history)), session=grant["session"] + 1)


@plant_on_a_kept_node(Rule.TOKENS)
def a_use_of_what_nobody_was_granted(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    nodes = {grant["node"] for grant in alive(history, again(history))}
    grants = [grant for grant in of(history, "grant") if grant["node"] in nodes]
    return without(history, pick([grant for grant in grants if "use" not in grant.data]))


@plant_on_a_kept_node(Rule.TOKENS)
def a_use_after_the_next_contender_s_grant(
    history: list[HistoryEvent], pick: Pick
) -> list[HistoryEvent]:
    grant = pick([each for each in again(history) if later(history, each)])
    by = later(history, grant)[0]["began"] + STEP / 2 - grant["began"]
    history = changed(history, grant, at=grant.at + by, began=grant["began"] + by)
    for kind in ("held", "release", "released"):
        for each in of_use(history, kind, grant):
            history = changed(history, each, at=each.at + by)
    return history


def later(history: list[HistoryEvent], grant: HistoryEvent) -> list[HistoryEvent]:
    """Return the grants of this lock on other nodes that came after."""
    grants = of(history, "grant", lock=grant["lock"])
    return [each for each in grants if each.at > grant.at and each["node"] != grant["node"]]


@plant_on_a_kept_node(Rule.EXCLUSION)
def two_bodies_of_one_client_at_once(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    grant = pick(again(history))
    (release,) = of_use(history, "release", before(history, grant))
    return changed(history, grant, began=release.at - STEP / 2)


@plant_on_a_kept_node(Rule.FINAL)
def a_use_of_what_was_lost(history: list[HistoryEvent], pick: Pick) -> list[HistoryEvent]:
    grant = pick(again(history))
    first = before(history, grant)
    told = [*of_use(history, "release", first), *of_use(history, "released", first)]
    at = grant["began"] - STEP / 2
    lost = {"reason": "SESSION_EXPIRED", "noticed": at, "lease_end": at}
    name = {key: first[key] for key in ("node", "use") if key in first.data}
    return [*without(history, *told), HistoryEvent(at, first.source, "lost", {**name, **lost})]


@plant_on_a_kept_node(Rule.REPORT)
def a_look_at_a_use_that_there_was_not(
    history: list[HistoryEvent], pick: Pick
) -> list[HistoryEvent]:
    look = pick([each for each in alive(history, of(history, "held")) if "use" in each.data])
    return changed(history, look, use=9)


def of_use(history: list[HistoryEvent], kind: str, grant: HistoryEvent) -> list[HistoryEvent]:
    """Return what was noted about one grant on a node that was kept."""
    return [each for each in about(history, kind, grant["node"]) if each.grant == grant.grant]


@pytest.mark.parametrize("name", KEPT_PLANTS)
@settings(max_examples=examples(25), deadline=None)
@given(history=kept_histories, data=st.data())
def test_finds_what_is_planted_on_a_kept_node(
    name: str, history: list[HistoryEvent], data: st.DataObject
) -> None:
    rule, spoil = KEPT_PLANTS[name]

    def pick(events: list[HistoryEvent]) -> HistoryEvent:
        return events[data.draw(st.integers(0, len(events) - 1))]

    found = check(sorted(spoil(history, pick), key=lambda event: event.at), BOUNDS)
    assert rule in {violation.rule for violation in found.violations}


@pytest.mark.parametrize("name", PLANTS)
@settings(max_examples=examples(25), deadline=None)
@given(history=histories, data=st.data())
def test_finds_what_is_planted(name: str, history: list[HistoryEvent], data: st.DataObject) -> None:
    rule, spoil = PLANTS[name]

    def pick(events: list[HistoryEvent]) -> HistoryEvent:
        return events[data.draw(st.integers(0, len(events) - 1))]

    found = check(sorted(spoil(history, pick), key=lambda event: event.at), BOUNDS)
    assert rule in {violation.rule for violation in found.violations}


def test_every_rule_has_something_planted() -> None:
    assert {rule for rule, _ in PLANTS.values()} == set(Rule)


def test_shards_are_given_unasked() -> None:
    history = simulate(EVERYTHING)
    shards = [each for each in of(history, "grant") if each["lock"] == "/l/0"]
    asks = [each for shard in shards for each in of(history, "ask", ask=shard["ask"])]
    assert check(without(history, *asks), BOUNDS).violations
    for shard in shards:
        bare = {key: value for key, value in shard.data.items() if key != "ask"}
        history = [replace(each, data=bare) if each is shard else each for each in history]
    assert asks
    assert check(without(history, *asks), BOUNDS).violations == []


def test_a_grant_that_was_over_before_it_was_told_has_no_interval() -> None:
    """A process paused in the middle of acquire(): the next one was granted meanwhile."""
    history = simulate([])
    grant = given_back(history)[0]
    spoilt = a_grant_while_another_was_held(history, lambda _: grant)
    assert Rule.EXCLUSION in {each.rule for each in check(spoilt, BOUNDS).violations}
    (release,) = about(spoilt, "release", grant["node"])
    over = [
        event
        for event in spoilt
        if event.data.get("node") == grant["node"] and event.kind in ("held", "release", "released")
    ]
    lease_end = grant["began"] - 0.001
    loss = {
        "node": grant["node"],
        "reason": "LEASE_LAPSED",
        "noticed": grant["began"],
        "lease_end": lease_end,
    }
    told = [
        HistoryEvent(grant["began"], grant.source, "lost", loss),
        HistoryEvent(release.at, grant.source, "release", dict(release.data)),
        HistoryEvent(
            release.at, grant.source, "released", {"node": grant["node"], "outcome": "lost"}
        ),
    ]
    fine = sorted([*without(spoilt, *over), *told], key=lambda event: event.at)
    assert Rule.EXCLUSION not in {each.rule for each in check(fine, BOUNDS).violations}


def listed(*queues: list[int]) -> Verdict:
    """Check a history in which one holder after the other lists the queue of a lock."""
    turns = [Turn(0, 0, End.RELEASED, 1, (), True, 1, False, 0.0) for _ in queues]
    history = simulate(turns)
    for listing, queue in zip(of(history, "queue"), queues, strict=False):
        own = min(listing["standing"])
        history = changed(history, listing, standing=[own + number for number in queue])
    return check(history, BOUNDS)


def test_a_node_that_a_server_brings_back_does_not_stand_in_line() -> None:
    """The second listing shows that it is gone: it has a later one, and not this one."""
    verdict = listed([0, 1], [0, 1], [-2, 0, 1])
    assert verdict.violations == []
    assert verdict.came_back == 1


def test_a_node_that_no_listing_shows_to_be_gone_stands_in_line() -> None:
    verdict = listed([0, 1], [0], [-1, 0, 1])
    assert {violation.rule for violation in verdict.violations} == {Rule.QUEUE}
    assert verdict.came_back == 0


def test_margins_and_figures() -> None:
    verdict = check(simulate([]), BOUNDS)
    assert verdict.ends["LEASE_LAPSED"] == 2
    assert verdict.ends["RELEASED"] == sum(verdict.ends.values()) - 2 - 2 - 3
    assert set(verdict.noticed) == {"LEASE_LAPSED", "SESSION_EXPIRED", "CLIENT_CLOSED"}
    assert min(margin.seconds for margin in verdict.noticed.values()) > 0
    assert verdict.margins["LEASE_LAPSED"].seconds > 0
    assert verdict.writes["zookeeper refused"] == len(LOST)
    assert verdict.asks["none"] == 1
