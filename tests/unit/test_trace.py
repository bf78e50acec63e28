"""The validator of traces accepts what the model allows, and refuses each seeded wrong history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.trace import (
    ENTERED,
    FENCE,
    ONCE,
    ONE_BELIEVER,
    OWN_TOKEN,
    RULES,
    TOKENS_RISE,
    Elsewhere,
    faults,
    lasting,
)
from zklock import FencingToken, LossReason
from zklock.telemetry import (
    EpochChanged,
    Event,
    Granted,
    Lost,
    Queued,
    Released,
    StaleTokenRefused,
    Suspended,
    Withdrawn,
)

PATH = "/locks/report"
STEP = 1.0


def of(events: list[Any], kind: type[Event], number: int = 0) -> Any:
    return [event for event in events if type(event) is kind][number]


def without(events: list[Any], *gone: Any) -> list[Any]:
    return [event for event in events if not any(event is each for each in gone)]


def changed(events: list[Any], event: Any, **data: Any) -> list[Any]:
    return [replace(each, **data) if each is event else each for each in events]


class Story:
    """Contenders that queue, hold, and leave, one after another, as the model has it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.events: list[Any] = []
        self.epoch, self.number = 1, -1

    def tell(self, event: type[Event], **data: Any) -> None:
        self.now += STEP
        self.events.append(event(at=self.now, **data))

    def enter(self, kind: str = "exclusive") -> dict[str, Any]:
        self.number += 1
        who = {"path": PATH, "kind": kind, "identity": f"w{self.number}"}
        node = f"{PATH}/_c_{self.epoch}-{self.number}-lock-{self.number:010d}"
        self.tell(Queued, node=node, ahead=0, **who)
        token = FencingToken(self.epoch, self.number)
        return {**who, "node": node, "token": token, "session_id": self.number % 3}

    def hold(self, who: dict[str, Any], end: LossReason | None, *, kept: bool = False) -> None:
        self.grant(who, kept=kept)
        self.end(who, end)

    def grant(self, who: dict[str, Any], *, kept: bool = False) -> None:
        self.tell(Granted, permits=1, waited=None, gap=None, kept=kept, **who)

    def end(self, who: dict[str, Any], end: LossReason | None) -> None:
        if end is None:
            self.tell(Released, lasted=1.0, **who)
        else:
            self.tell(Lost, reason=end, lease_end=self.now + STEP / 2, lasted=None, **who)

    def renew(self) -> None:
        self.tell(EpochChanged, path=PATH, before=self.epoch, now=self.epoch + 1)
        self.epoch, self.number = self.epoch + 1, -1


TURNS = st.tuples(
    st.sampled_from([None, *LossReason]),
    st.sampled_from(["go", "give up", "renew", "late create", "broken"]),
)


@given(st.lists(TURNS, max_size=8))
def test_what_the_model_allows_is_accepted(turns: list[tuple[Any, str]]) -> None:
    story = Story()
    for end, what in turns:
        if what == "renew":
            story.renew()
        elif what == "late create":
            story.number += 1  # it takes a number, and nothing is told of it
        who = story.enter()
        if what == "give up":
            story.tell(Withdrawn, path=PATH, kind="exclusive", identity="w", waited=1.0, error=None)
            continue
        story.grant(who)
        if what == "broken":
            story.tell(Suspended, remaining=1.0, **who)
        assert lasting(story.events) == [who["node"]]
        story.end(who, end)
    assert faults(story.events) == []
    assert lasting(story.events) == []


def overlapping(first: str, second: str, end: LossReason | None = None) -> list[Any]:
    """A second one is granted, and gives back, while the first one believes."""
    story = Story()
    one, two = story.enter(first), story.enter(second)
    story.grant(one)
    story.hold(two, None)
    story.end(one, end)
    return story.events


def lost_late(by: float) -> list[Any]:
    """An operator has ended a holder's session: it believes until it is told."""
    events = overlapping("exclusive", "exclusive", LossReason.SESSION_EXPIRED)
    late = of(events, Lost)
    return changed(events, late, lease_end=late.at + by)


def on_two_servers() -> list[Any]:
    """A path on another server is another lock."""
    story, other = Story(), Story()
    two = [story.enter() for _ in range(2)][1]
    story.grant(two)
    story.tell(Elsewhere)
    other.now = story.now
    other.hold({**other.enter(), "session_id": 9}, None)
    story.events += [replace(it, node="/elsewhere/-lock-0000000000") for it in other.events]
    story.now = other.now
    story.end(two, None)
    return story.events


def told() -> list[Any]:
    """Three turns: one released, one lost, one released."""
    story = Story()
    queue = [story.enter() for _ in range(3)]
    for who, end in zip(queue, (None, LossReason.LEASE_LAPSED, None), strict=True):
        story.hold(who, end)
    refused = {"token": FencingToken(1, 0), "highest": FencingToken(1, 1)}
    story.tell(StaleTokenRefused, resource="r", **refused)
    return story.events


def of_a_kept_node() -> list[Any]:
    """Three turns on one node, and one on the next."""
    story = Story()
    who, other = story.enter(), story.enter()
    for kept in (False, True, True):
        story.hold(who, None, kept=kept)
    story.hold(other, None)
    return story.events


@pytest.mark.parametrize(
    "events",
    [
        overlapping("read", "read"),
        overlapping("write", "read"),  # it may have become a reader
        overlapping("semaphore", "semaphore"),
        overlapping("exclusive", "exclusive", LossReason.NODE_DELETED),  # an operator's deed
        lost_late(STEP),
        on_two_servers(),
        of_a_kept_node(),
        told(),
    ],
)
def test_these_are_right(events: list[Any]) -> None:
    assert faults(events) == []


def overtaking() -> list[Any]:
    story = Story()
    one, two = story.enter(), story.enter()
    story.hold(two, None)
    story.hold(one, None)
    return story.events


def with_an_old_epoch() -> list[Any]:
    story = Story()
    story.hold(story.enter(), None)
    story.renew()
    story.epoch = 0
    story.hold(story.enter(), None)
    return story.events


def told_of_a_grant_that_is_over(events: list[Any]) -> list[Any]:
    over = of(events, Released)
    names = ("path", "kind", "identity", "token", "node", "session_id")
    who = {name: getattr(over, name) for name in names}
    return [*events, Suspended(at=over.at, remaining=1.0, **who)]


def late_loss(events: list[Any], noticed: float) -> list[Any]:
    """The lease runs into the next grant."""
    late = of(events, Granted, 2).at + STEP / 4
    return changed(events, of(events, Lost), at=late + noticed, lease_end=late)


def released_late(events: list[Any]) -> list[Any]:
    return changed(events, of(events, Released), at=of(events, Granted, 1).at + STEP / 4)


def lost_after_the_release(events: list[Any]) -> list[Any]:
    who = of(events, Released)
    return [*events, replace(of(events, Lost), node=who.node, session_id=who.session_id)]


WRONG: dict[str, tuple[str, Callable[[list[Any], list[Any]], list[Any]]]] = {
    "a contender that nobody saw": (ENTERED, lambda it, _: without(it, of(it, Queued, 1))),
    "a grant before the release": (ONE_BELIEVER, lambda it, _: released_late(it)),
    "a lease that runs into the next grant": (ONE_BELIEVER, lambda it, _: late_loss(it, 0)),
    "... and is noticed late": (ONE_BELIEVER, lambda it, _: late_loss(it, STEP)),
    "two locks of one path on one server": (
        f"{ONE_BELIEVER}, {TOKENS_RISE}",
        lambda *_: [it for it in on_two_servers() if not isinstance(it, Elsewhere)],
    ),
    "two writers": (ONE_BELIEVER, lambda *_: overlapping("write", "write")),
    "a writer beside a reader": (ONE_BELIEVER, lambda *_: overlapping("read", "write")),
    "a session that an operator ended after the lease": (ONE_BELIEVER, lambda *_: lost_late(-STEP)),
    "one that overtakes": (TOKENS_RISE, lambda *_: overtaking()),
    "an epoch that goes back": (
        TOKENS_RISE,
        lambda it, _: [EpochChanged(at=1.0, path=PATH, before=2, now=1), *it],
    ),
    "a token of an old epoch": (TOKENS_RISE, lambda *_: with_an_old_epoch()),
    "the token of another node": (
        OWN_TOKEN,
        lambda it, _: changed(it, of(it, Granted, 2), token=FencingToken(1, 7)),
    ),
    "a kept node, granted in the time of another grant": (
        ONE_BELIEVER,
        lambda _, kept: released_late(kept),
    ),
    "a node granted twice": (OWN_TOKEN, lambda it, _: [*it, of(it, Granted), of(it, Released)]),
    "a kept node that was never granted": (
        OWN_TOKEN,
        lambda it, _: changed(it, of(it, Granted), kept=True),
    ),
    "a kept node with another token": (
        OWN_TOKEN,
        lambda _, kept: changed(kept, of(kept, Granted, 1), token=FencingToken(2, 0)),
    ),
    "a loss after the release": (ONCE, lambda it, _: lost_after_the_release(it)),
    "a loss told twice": (ONCE, lambda it, _: [*it, of(it, Lost)]),
    "an interruption after the end": (ONCE, lambda it, _: told_of_a_grant_that_is_over(it)),
    "a release of no grant": (ONCE, lambda it, _: without(it, of(it, Granted))),
    "a grant that never ended": (ONCE, lambda it, _: without(it, of(it, Released, 1))),
    "a node that entered twice": (ONCE, lambda it, _: [of(it, Queued), *it]),
    "a refusal of a new token": (
        FENCE,
        lambda it, _: changed(it, of(it, StaleTokenRefused), highest=FencingToken(1, 0)),
    ),
}
"""What is wrong, which rule says so, and how it is made of a right history, or of a kept node's."""


@pytest.mark.parametrize("name", WRONG)
def test_a_seeded_wrong_history_is_refused(name: str) -> None:
    rule, seed = WRONG[name]
    found = {fault.rule for fault in faults(seed(told(), of_a_kept_node()))}
    assert ", ".join(sorted(found)) == rule


def test_every_rule_refuses_something() -> None:
    assert {rule for rule, _ in WRONG.values()} >= set(RULES)
