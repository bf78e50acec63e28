from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.unit.testing.story import Story, Tampering, token
from zklock.testing.demo.checks import CHECKS, judge
from zklock.testing.demo.events import DIRECTOR, Event
from zklock.token import FencingToken


def violated(story: Story) -> set[str]:
    return {verdict.name for verdict in judge(story.events) if not verdict.held}


def test_all_holds_where_all_went_well() -> None:
    verdicts = judge(Story().events)
    assert [verdict.name for verdict in verdicts] == list(CHECKS)
    assert [verdict.violations for verdict in verdicts] == [()] * len(CHECKS)
    assert all(verdict.finding for verdict in verdicts)


def test_figures() -> None:
    figures = {verdict.name: verdict.figures for verdict in judge(Story().events)}
    assert figures["killed"] == pytest.approx({"next_grant_after": 2.2, "session_timeout": 2.0})
    assert figures["paused"] == pytest.approx({"paused": 2.7, "next_grant_after": 2.2})
    assert figures["cut"] == pytest.approx(
        {"lost_callback_after": 1.2, "next_grant_after": 2.2, "margin": 1.0}
    )
    assert figures["exclusive"] == pytest.approx({"smallest_gap": 0.04})


def test_nothing_is_proven_by_an_empty_log() -> None:
    verdicts = judge([])
    assert [verdict.name for verdict in verdicts if verdict.held] == []


def grants_swapped(story: Story) -> None:
    first, second = story.find("granted", "w3"), story.find("granted", "w4")
    story.change(first, at=second.at)
    story.change(second, at=first.at)


def queue_served_out_of_order(story: Story) -> None:
    queue = story.find("queue")
    contenders = list(queue["contenders"])
    contenders[2], contenders[3] = contenders[3], contenders[2]
    story.change(queue, contenders=contenders)


def a_contender_never_served(story: Story) -> None:
    queue = story.find("queue")
    story.change(queue, contenders=[*queue["contenders"], {"worker": "w9", "sequence": 99}])


def a_place_given_to_another(story: Story) -> None:
    queue = story.find("queue")
    first, *rest = queue["contenders"]
    story.change(queue, contenders=[{**first, "worker": "w6"}, *rest])


def no_queue_seen(story: Story) -> None:
    for event in [it for it in story.events if it.what == "queue"]:
        story.change(event, contenders=event["contenders"][:1])


def retoken(story: Story, old: str, new: str) -> None:
    """Give one grant another token, everywhere."""

    def swap(value: Any) -> Any:
        if isinstance(value, list):
            return [swap(it) for it in value]
        if isinstance(value, dict):
            return {key: swap(it) for key, it in value.items()}
        return new if value == old else value

    story.events = [replace(it, data=swap(dict(it.data))) for it in story.events]


def a_token_that_goes_back(story: Story) -> None:
    retoken(story, token(3), str(FencingToken(6, 3)))


def a_release_after_the_next_grant(story: Story) -> None:
    story.change(story.find("released", "w2"), at=story.find("granted", "w3").at + 0.001)


def entries(story: Story) -> list[dict[str, Any]]:
    return [dict(entry) for entry in story.find("ledger")["entries"]]


def an_entry_lost(story: Story) -> None:
    story.change(story.find("ledger"), entries=entries(story)[:-1])


def an_entry_of_a_stranger(story: Story) -> None:
    changed = entries(story)
    changed[0]["worker"] = "w9"
    story.change(story.find("ledger"), entries=changed)


def a_loss_told_twice(story: Story) -> None:
    story.events.append(story.find("lost", "w5"))


def a_loss_not_told(story: Story) -> None:
    story.drop(story.find("lost", "w5"))


def nobody_after_the_killed(story: Story) -> None:
    story.events = [it for it in story.events if it.at <= 10.3 or it.who == DIRECTOR]


def a_grant_before_the_kill(story: Story) -> None:
    story.change(story.find("killed"), at=12.6)


def killed_while_it_held_nothing(story: Story) -> None:
    story.change(story.find("killed"), at=5.0)


def held_at_the_first_look(story: Story) -> None:
    story.change(story.find("look", "w2", -1), held=True)
    story.add(23.15, "w2", "look", token=token(8), held=False)


def no_look_after_the_pause(story: Story) -> None:
    story.drop(story.find("look", "w2", -1))


def never_resumed(story: Story) -> None:
    story.drop(story.find("resumed"))


def resumed_before_the_next_grant(story: Story) -> None:
    story.change(story.find("resumed"), at=22.0)


def not_refused(story: Story) -> None:
    story.drop(story.find("refused"))


def refused_for_no_reason(story: Story) -> None:
    story.change(story.find("refused"), highest=token(8))


def the_paused_one_not_told(story: Story) -> None:
    story.drop(story.find("lost", "w2"))


def told_after_the_next_grant(story: Story) -> None:
    story.change(story.find("lost", "w5"), at=32.51)


def told_at_the_moment_of_the_next_grant(story: Story) -> None:
    story.change(story.find("lost", "w5"), at=story.find("granted", "w6", -1).at)


def a_node_left(story: Story) -> None:
    story.change(story.find("left"), nodes=["_c_0-lock-0000000011"])


def nobody_looked(story: Story) -> None:
    story.drop(story.find("left"))


def a_worker_still_there(story: Story) -> None:
    story.drop(story.find("ended", "w6"))


def a_worker_that_failed(story: Story) -> None:
    story.change(story.find("ended", "w6"), code=1)


def the_killed_one_ended_otherwise(story: Story) -> None:
    story.change(story.find("ended", "w1"), code=0)


def an_ask_unanswered(story: Story) -> None:
    story.add(9.0, "w4", "asks")


def a_grant_without_asking(story: Story) -> None:
    story.drop(story.find("asks", "w4"))


def an_act_missing(story: Story) -> None:
    story.drop(story.find("act", nth=3))


def broken_off(story: Story) -> None:
    story.add(33.5, DIRECTOR, "broken", why="w3 ended, with exit status 1")


def a_release_of_nothing(story: Story) -> None:
    story.add(9.0, "w4", "released", token=token(77))


PLANTED: list[tuple[str, Tampering]] = [
    ("order", grants_swapped),
    ("order", queue_served_out_of_order),
    ("order", a_contender_never_served),
    ("order", a_place_given_to_another),
    ("order", no_queue_seen),
    ("tokens", a_token_that_goes_back),
    ("exclusive", a_release_after_the_next_grant),
    ("ledger", an_entry_lost),
    ("ledger", an_entry_of_a_stranger),
    ("callbacks", a_loss_told_twice),
    ("callbacks", a_loss_not_told),
    ("killed", nobody_after_the_killed),
    ("killed", a_grant_before_the_kill),
    ("killed", killed_while_it_held_nothing),
    ("paused", held_at_the_first_look),
    ("paused", no_look_after_the_pause),
    ("paused", never_resumed),
    ("paused", resumed_before_the_next_grant),
    ("paused", not_refused),
    ("paused", refused_for_no_reason),
    ("paused", the_paused_one_not_told),
    ("cut", a_loss_not_told),
    ("cut", told_after_the_next_grant),
    ("cut", told_at_the_moment_of_the_next_grant),
    ("left_over", a_node_left),
    ("left_over", nobody_looked),
    ("left_over", a_worker_still_there),
    ("left_over", a_worker_that_failed),
    ("left_over", the_killed_one_ended_otherwise),
    ("complete", an_ask_unanswered),
    ("complete", a_grant_without_asking),
    ("complete", an_act_missing),
    ("complete", broken_off),
    ("complete", a_release_of_nothing),
]


@pytest.mark.parametrize(("check", "tamper"), PLANTED, ids=[it.__name__ for _, it in PLANTED])
def test_a_planted_violation_is_caught(check: str, tamper: Tampering) -> None:
    story = Story()
    tamper(story)
    assert check in violated(story)


def test_every_check_has_a_planted_violation() -> None:
    assert {check for check, _ in PLANTED} == set(CHECKS)


@pytest.mark.parametrize("kind", ["killed", "paused", "cut", "resumed", "ledger", "left", "queue"])
def test_what_the_director_did_not_do_is_missed(kind: str) -> None:
    story = Story()
    story.events = [event for event in story.events if event.what != kind]
    assert violated(story)


_KINDS_THAT_COUNT = {"asks", "granted", "wrote", "released", "lost", "refused", "ended", "act"}


@given(data=st.data())
def test_no_event_that_counts_can_be_missing(data: st.DataObject) -> None:
    story = Story()
    event = data.draw(st.sampled_from([it for it in story.events if it.what in _KINDS_THAT_COUNT]))
    story.drop(event)
    assert violated(story)


def test_events_survive_json() -> None:
    for event in Story().events:
        rounded = replace(event, at=round(event.at, 6))
        assert Event.from_json(event.to_json()) == rounded


OTHER_SHAPE = '{"version": 2, "at": 1, "act": 1, "who": "w1", "event": "asks"}'


@pytest.mark.parametrize(
    "line", ["", "x", "3", "[]", "null", "{}", '{"at": 1, "act": 1}', "{", OTHER_SHAPE]
)
def test_other_lines_are_no_events(line: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Event.from_json(line)
