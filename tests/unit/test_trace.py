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


def test_readers_believe_together() -> None:
    story = Story()
    one, two = story.enter("read"), story.enter("read")
    story.grant(two)
    story.hold(one, None)
    story.tell(Released, lasted=None, **two)
    assert faults(story.events) == []


def test_a_holder_whose_node_an_operator_has_deleted_believes_until_it_is_told() -> None:
    story = Story()
    one, two = story.enter(), story.enter()
    story.grant(one)
    story.grant(two)
    story.lose(one, LossReason.NODE_DELETED)
    story.tell(Released, lasted=None, **two)
    assert faults(story.events) == []


def test_a_holder_whose_session_an_operator_has_ended_believes_until_it_is_told() -> None:
    story = Story()
    one, two = story.enter(), story.enter()
    story.grant(one)
    story.grant(two)
    story.lose(one, LossReason.SESSION_EXPIRED)
    late = of(story.events, Lost)
    story.tell(Released, lasted=None, **two)
    told = changed(story.events, late, lease_end=late.at + STEP)
    assert faults(told) == []
    assert {fault.rule for fault in faults(story.events)} == {ONE_BELIEVER}


def test_a_writer_may_become_a_reader_and_let_others_in() -> None:
    story = Story()
    writer, reader = story.enter("write"), story.enter("read")
    story.grant(writer)
    story.hold(reader, None)
    story.tell(Released, lasted=None, **writer)
    assert faults(story.events) == []


def test_a_path_on_another_server_is_another_lock() -> None:
    story, other = Story(), Story()
    story.enter()
    two = story.enter()
    story.grant(two)
    story.tell(Elsewhere)
    other.now = story.now
    three = {**other.enter(), "node": "/elsewhere/-lock-0000000000", "session_id": 9}
    story.events += [replace(it, node=three["node"]) for it in other.events]
    story.now = other.now
    story.hold(three, None)
    story.tell(Released, lasted=None, **two)
    assert faults(story.events) == []
    together = [it for it in story.events if not isinstance(it, Elsewhere)]
    assert {fault.rule for fault in faults(together)} == {ONE_BELIEVER, TOKENS_RISE}


def test_a_holder_of_several_permits_blocks_nobody() -> None:
    story = Story()
    one, two = story.enter("semaphore"), story.enter("semaphore")
    story.grant(one)
    story.hold(two, None)
    story.tell(Released, lasted=None, **one)
    assert faults(story.events) == []


def test_the_grants_of_a_kept_node_have_one_token() -> None:
    assert faults(of_a_kept_node()) == []


def test_a_grant_lasts_until_it_is_given_back_or_lost() -> None:
    story = Story()
    who = story.enter()
    story.grant(who)
    story.tell(Suspended, remaining=1.0, **who)
    assert lasting(story.events) == [who["node"]]


def told(*, kind: str = "exclusive") -> list[Any]:
    """Three turns: one released, one lost, one released."""
    story = Story()
    queue = [story.enter(kind) for _ in range(3)]
    for who, end in zip(queue, (None, LossReason.LEASE_LAPSED, None), strict=True):
        story.hold(who, end)
    story.tell(
        StaleTokenRefused, resource="r", token=FencingToken(1, 0), highest=FencingToken(1, 1)
    )
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


def an_unseen_contender(events: list[Any]) -> list[Any]:
    return without(events, of(events, Queued, 1))


def a_grant_before_the_release(events: list[Any]) -> list[Any]:
    return changed(events, of(events, Released), at=of(events, Granted, 1).at + STEP / 4)


def a_lease_that_runs_into_the_next_grant(events: list[Any]) -> list[Any]:
    late = of(events, Granted, 2).at + STEP / 4
    return changed(events, of(events, Lost), at=late, lease_end=late)


def a_loss_noticed_late_of_a_lease_that_ran_on(events: list[Any]) -> list[Any]:
    late = of(events, Granted, 2).at + STEP / 4
    return changed(events, of(events, Lost), at=late + STEP, lease_end=late)


def two_writers_at_once(events: list[Any]) -> list[Any]:
    del events
    story = Story()
    one, two = story.enter("write"), story.enter("write")
    story.grant(one)
    story.hold(two, None)
    story.tell(Released, lasted=None, **one)
    return story.events


def a_writer_beside_a_reader(events: list[Any]) -> list[Any]:
    del events
    story = Story()
    reader, writer = story.enter("read"), story.enter("write")
    story.grant(reader)
    story.hold(writer, None)
    story.tell(Released, lasted=None, **reader)
    return story.events


def a_contender_that_overtakes(events: list[Any]) -> list[Any]:
    del events
    story = Story()
    one, two = story.enter(), story.enter()
    story.hold(two, None)
    story.hold(one, None)
    return story.events


def an_epoch_that_goes_back(events: list[Any]) -> list[Any]:
    return [EpochChanged(at=1.0, path=PATH, before=2, now=1), *events]


def a_token_without_its_epoch(events: list[Any]) -> list[Any]:
    del events
    story = Story()
    story.hold(story.enter(), None)
    story.renew()
    story.epoch = 0
    story.hold(story.enter(), None)
    return story.events


def the_token_of_another_node(events: list[Any]) -> list[Any]:
    return changed(events, of(events, Granted, 2), token=FencingToken(1, 7))


def a_node_granted_twice(events: list[Any]) -> list[Any]:
    return [*events, of(events, Granted), of(events, Released)]


def a_kept_node_that_was_never_granted(events: list[Any]) -> list[Any]:
    return changed(events, of(events, Granted), kept=True)


def a_kept_node_with_another_token(events: list[Any]) -> list[Any]:
    events = of_a_kept_node()
    return changed(events, of(events, Granted, 1), token=FencingToken(2, 0))


def a_kept_node_granted_in_the_time_of_another_grant(events: list[Any]) -> list[Any]:
    events = of_a_kept_node()
    return changed(events, of(events, Released), at=of(events, Granted, 1).at + STEP / 4)


def a_loss_after_the_release(events: list[Any]) -> list[Any]:
    loss, who = of(events, Lost), of(events, Released)
    return [*events, replace(loss, node=who.node, session_id=who.session_id)]


def a_loss_told_twice(events: list[Any]) -> list[Any]:
    return [*events, of(events, Lost)]


def an_interruption_after_the_end(events: list[Any]) -> list[Any]:
    who = of(events, Released)
    names = ("path", "kind", "identity", "token", "node", "session_id")
    data = {name: getattr(who, name) for name in names}
    return [*events, Suspended(at=who.at, remaining=1.0, **data)]


def a_release_of_no_grant(events: list[Any]) -> list[Any]:
    return without(events, of(events, Granted))


def a_grant_that_never_ended(events: list[Any]) -> list[Any]:
    return without(events, of(events, Released, 1))


def a_node_that_entered_twice(events: list[Any]) -> list[Any]:
    return [of(events, Queued), *events]


def a_refusal_of_a_token_that_was_new(events: list[Any]) -> list[Any]:
    return changed(events, of(events, StaleTokenRefused), highest=FencingToken(1, 0))


WRONG: list[tuple[str, Callable[[list[Any]], list[Any]]]] = [
    (ENTERED, an_unseen_contender),
    (ONE_BELIEVER, a_grant_before_the_release),
    (ONE_BELIEVER, a_lease_that_runs_into_the_next_grant),
    (ONE_BELIEVER, a_loss_noticed_late_of_a_lease_that_ran_on),
    (ONE_BELIEVER, two_writers_at_once),
    (ONE_BELIEVER, a_writer_beside_a_reader),
    (TOKENS_RISE, a_contender_that_overtakes),
    (TOKENS_RISE, an_epoch_that_goes_back),
    (TOKENS_RISE, a_token_without_its_epoch),
    (OWN_TOKEN, the_token_of_another_node),
    (ONE_BELIEVER, a_kept_node_granted_in_the_time_of_another_grant),
    (OWN_TOKEN, a_node_granted_twice),
    (OWN_TOKEN, a_kept_node_that_was_never_granted),
    (OWN_TOKEN, a_kept_node_with_another_token),
    (ONCE, a_loss_after_the_release),
    (ONCE, a_loss_told_twice),
    (ONCE, an_interruption_after_the_end),
    (ONCE, a_release_of_no_grant),
    (ONCE, a_grant_that_never_ended),
    (ONCE, a_node_that_entered_twice),
    (FENCE, a_refusal_of_a_token_that_was_new),
]


@pytest.mark.parametrize(("rule", "seed"), WRONG, ids=[seed.__name__ for _, seed in WRONG])
def test_a_seeded_wrong_history_is_refused(
    rule: str, seed: Callable[[list[Any]], list[Any]]
) -> None:
    events = told()
    assert faults(events) == []
    assert {fault.rule for fault in faults(seed(events))} == {rule}


def test_every_rule_refuses_something() -> None:
    assert {rule for rule, _ in WRONG} == set(RULES)
