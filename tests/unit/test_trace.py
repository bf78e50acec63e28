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


class Story:
    """Contenders that queue, hold, and leave, one after another, as the model has it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.events: list[Any] = []
        self.epoch, self.number = 1, -1

    def tell(self, event: type[Event], **data: Any) -> Any:
        self.now += STEP
        self.events.append(event(at=self.now, **data))
        return self.events[-1]

    def enter(self, kind: str = "exclusive") -> dict[str, Any]:
        self.number += 1
        who = {"path": PATH, "kind": kind, "identity": f"w{self.number}"}
        node = f"{PATH}/_c_{self.epoch}-{self.number}-lock-{self.number:010d}"
        self.tell(Queued, node=node, ahead=0, **who)
        token = FencingToken(self.epoch, self.number)
        return {**who, "node": node, "token": token, "session_id": self.number % 3}

    def hold(self, who: dict[str, Any], end: LossReason | None, *, broken: bool = False) -> None:
        self.grant(who)
        if broken:
            self.tell(Suspended, remaining=1.0, **who)
        if end is None:
            self.tell(Released, lasted=1.0, **who)
        else:
            self.lose(who, end)

    def grant(self, who: dict[str, Any], *, kept: bool = False) -> None:
        self.tell(Granted, permits=1, waited=None, gap=None, kept=kept, **who)

    def lose(self, who: dict[str, Any], end: LossReason) -> None:
        self.tell(Lost, reason=end, lease_end=self.now + STEP / 2, lasted=None, **who)

    def lost_create(self) -> None:
        """A create comes late, and is deleted: it takes a number, and nothing is told of it."""
        self.number += 1

    def renew(self) -> None:
        self.tell(EpochChanged, path=PATH, before=self.epoch, now=self.epoch + 1)
        self.epoch, self.number = self.epoch + 1, -1


ENDS = [None, *LossReason]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(ENDS),
            st.sampled_from(["go", "give up", "renew", "late"]),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_what_the_model_allows_is_accepted(turns: list[tuple[Any, str, bool]]) -> None:
    story = Story()
    for end, what, broken in turns:
        if what == "renew":
            story.renew()
        elif what == "late":
            story.lost_create()
        who = story.enter()
        if what == "give up":
            story.tell(Withdrawn, path=PATH, kind="exclusive", identity="w", waited=1.0, error=None)
        else:
            story.hold(who, end, broken=broken)
    assert faults(story.events) == []
    assert lasting(story.events) == []


def overlapping(
    first: str, second: str, end: LossReason | None = None
) -> tuple[Story, dict[str, Any]]:
    """A second one is granted, and gives back, while the first one believes."""
    story = Story()
    one, two = story.enter(first), story.enter(second)
    story.grant(one)
    story.hold(two, None)
    if end is None:
        story.tell(Released, lasted=None, **one)
    else:
        story.lose(one, end)
    return story, one


@pytest.mark.parametrize(
    ("first", "second", "end"),
    [
        ("read", "read", None),
        ("write", "read", None),  # it may have become a reader
        ("semaphore", "semaphore", None),
        ("exclusive", "exclusive", LossReason.NODE_DELETED),  # an operator's deed
    ],
)
def test_these_believe_together(first: str, second: str, end: LossReason | None) -> None:
    story, _ = overlapping(first, second, end)
    assert faults(story.events) == []


def test_a_holder_whose_session_an_operator_has_ended_believes_until_it_is_told() -> None:
    story, _ = overlapping("exclusive", "exclusive", LossReason.SESSION_EXPIRED)
    late = of(story.events, Lost)
    assert faults(changed(story.events, late, lease_end=late.at + STEP)) == []
    early = changed(story.events, late, lease_end=late.at - STEP / 2)
    assert {fault.rule for fault in faults(early)} == {ONE_BELIEVER}


def test_a_path_on_another_server_is_another_lock() -> None:
    story, other = Story(), Story()
    two = [story.enter() for _ in range(2)][1]
    story.grant(two)
    story.tell(Elsewhere)
    other.now = story.now
    other.hold({**other.enter(), "session_id": 9}, None)
    node = "/elsewhere/-lock-0000000000"
    story.events += [replace(it, node=node) for it in other.events]
    story.now = other.now
    story.tell(Released, lasted=None, **two)
    assert faults(story.events) == []
    together = [it for it in story.events if not isinstance(it, Elsewhere)]
    assert {fault.rule for fault in faults(together)} == {ONE_BELIEVER, TOKENS_RISE}


def test_the_grants_of_a_kept_node_have_one_token() -> None:
    assert faults(of_a_kept_node()) == []


def test_a_grant_lasts_until_it_is_given_back_or_lost() -> None:
    story = Story()
    who = story.enter()
    story.grant(who)
    story.tell(Suspended, remaining=1.0, **who)
    assert lasting(story.events) == [who["node"]]


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
        story.grant(who, kept=kept)
        story.tell(Released, lasted=1.0, **who)
    story.hold(other, None)
    return story.events


def of(events: list[Any], kind: type[Event], number: int = 0) -> Any:
    return [event for event in events if type(event) is kind][number]


def without(events: list[Any], *gone: Any) -> list[Any]:
    return [event for event in events if not any(event is each for each in gone)]


def changed(events: list[Any], event: Any, **data: Any) -> list[Any]:
    return [replace(each, **data) if each is event else each for each in events]


def at_the_time_of(later: Any) -> float:
    return float(later.at) + STEP / 4


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
    late = at_the_time_of(of(events, Granted, 2))
    return changed(events, of(events, Lost), at=late + noticed, lease_end=late)


def released_late(events: list[Any]) -> list[Any]:
    return changed(events, of(events, Released), at=at_the_time_of(of(events, Granted, 1)))


def lost_after_the_release(events: list[Any]) -> list[Any]:
    who = of(events, Released)
    return [*events, replace(of(events, Lost), node=who.node, session_id=who.session_id)]


WRONG: dict[str, tuple[str, Callable[[list[Any], list[Any]], list[Any]]]] = {
    "a contender that nobody saw": (ENTERED, lambda it, _: without(it, of(it, Queued, 1))),
    "a grant before the release": (ONE_BELIEVER, lambda it, _: released_late(it)),
    "a lease that runs into the next grant": (ONE_BELIEVER, lambda it, _: late_loss(it, 0)),
    "... and is noticed late": (ONE_BELIEVER, lambda it, _: late_loss(it, STEP)),
    "two writers": (ONE_BELIEVER, lambda *_: overlapping("write", "write")[0].events),
    "a writer beside a reader": (ONE_BELIEVER, lambda *_: overlapping("read", "write")[0].events),
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
    assert {fault.rule for fault in faults(seed(told(), of_a_kept_node()))} == {rule}


def test_every_rule_refuses_something() -> None:
    assert {rule for rule, _ in WRONG.values()} == set(RULES)
