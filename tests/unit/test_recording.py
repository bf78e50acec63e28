"""The moving picture of the demo, and the script that records it."""

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree

import pytest

from tests.unit.test_pictures import DOCS, loaded

(record,) = loaded("record")


def test_a_recording_shows_each_line_when_it_was_printed() -> None:
    command = [sys.executable, "-c", "print('   0.1  w1  LOST   a < b\\n\\nIt held.')"]
    lines = record.recorded(command)
    assert [line for _, line in lines] == ["   0.1  w1  LOST   a < b", "", "It held."]
    made = record.svg([(0.0, "first"), (2.0, "second"), (2.0, lines[0][1])])
    ElementTree.fromstring(made)
    assert '<tspan class="bad">LOST</tspan>   a &lt; b</text>' in made
    length, down = 2.0 + record.PACE + record.REST, record.LINE * (record.ROWS - 1)
    for at, place in ((0.0, down), (2.0, down - record.LINE), (2.2, down - 2 * record.LINE)):
        assert f"{at / length:.3%} {{ transform: translateY({place}px) }}" in made


def test_a_command_that_fails_is_not_recorded() -> None:
    with pytest.raises(SystemExit, match="status 3"):
        record.recorded([sys.executable, "-c", "raise SystemExit(3)"])


def test_the_recorded_demo_passed_its_checks() -> None:
    there = ElementTree.parse(DOCS / "pictures" / "demo.svg")
    lines = ["".join(each.itertext()) for each in there.iter("{http://www.w3.org/2000/svg}text")]
    assert lines[0] == "$ zklock demo"
    assert len([line for line in lines if re.match(" +ok", line)]) >= 10
