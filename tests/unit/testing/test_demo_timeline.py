from __future__ import annotations

import io
import json

import pytest

from tests.unit.testing.story import Story
from zklock.testing.demo.checks import judge
from zklock.testing.demo.events import DIRECTOR, Event
from zklock.testing.demo.output import ToProgram
from zklock.testing.demo.timeline import Timeline

LAST_ACT = """\

Act 4: the title of act 4
  30.050      queue     w5 (10) ← w6 (11)
  30.100  w5  granted   0000000000000007-0000000010
  30.300      cut       w5, the holder, from ZooKeeper
  31.200  w5  suspended connection lost; the lease runs for 0.300 s more
  31.500  w5  LOST      says the callback: LEASE_LAPSED  1.200 s after the cut
  31.500  w5  looks     held is False
  32.500  w6  granted   0000000000000007-0000000011  2.200 s after the cut
  32.560  w6  released  having written entry 9
  33.000      restored  the connection of w5"""


def lines(story: Story, *, colour: bool = False) -> list[str]:
    timeline = Timeline(colour)
    return [line for event in story.events if (line := timeline.line(event)) is not None]


def test_an_act() -> None:
    assert "\n".join(lines(Story())).endswith(LAST_ACT)


def test_lines_fit_a_terminal() -> None:
    story = Story()
    story.add(40.0, DIRECTOR, "broken", why="w3 did not answer; " * 20)
    story.change(story.find("lost", "w5"), reason="SESSION_EXPIRED")
    told = "\n".join([*lines(story), Timeline(False).summary(judge(story.events), 35.0)])
    assert max(map(len, told.splitlines())) == 79
    assert [line for line in told.splitlines() if line.startswith(" " * 24) and "did not" in line]


def test_the_first_of_several_false_looks_is_told_of() -> None:
    story = Story()
    timeline = Timeline(colour=False)
    look = story.find("look", "w5", -1)
    assert timeline.line(look) is not None
    assert timeline.line(look) is None


def test_why_it_broke_off_is_told() -> None:
    line = Timeline(colour=False).line(Event(1.0, 2, DIRECTOR, "broken", {"why": "w3 ended"}))
    assert line is not None
    assert "w3 ended" in line


def test_the_summary_names_what_was_violated() -> None:
    story = Story()
    timeline = Timeline(colour=False)
    assert "All of it held." in timeline.summary(judge(story.events), 35.0)
    story.drop(story.find("refused"))
    text = timeline.summary(judge(story.events), 35.0)
    assert "FAILED: paused" in text
    assert "was not refused by the ledger" in " ".join(text.split())
    assert "All of it held." not in text


@pytest.mark.parametrize("held", [True, False])
def test_a_program_gets_json_lines(held: bool) -> None:
    story = Story()
    if not held:
        story.drop(story.find("refused"))
    stream = io.StringIO()
    teller = ToProgram(stream)
    for event in story.events:
        teller.tell(event)
    teller.summary(judge(story.events), 35.0)
    *events, summary = map(json.loads, stream.getvalue().splitlines())
    assert len(events) == len(story.events)
    assert summary["event"] == "summary"
    assert summary["held"] is held
    assert [check["name"] for check in summary["checks"] if not check["held"]] == (
        [] if held else ["paused"]
    )
