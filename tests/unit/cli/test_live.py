"""What is followed goes on when ZooKeeper is silent in the middle of a look."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import zklock
from tests.unit.cli.views import World
from zklock.cli.view import live
from zklock.cli.view.model import Facts, Look, picture


class Unanswered:
    """A reader that gets no answer to its second look for a while."""

    facts = Facts()
    missing = False

    def __init__(self) -> None:
        self.changed = [True, False]
        self.answers = [True, False, True]

    def read(self) -> Look:
        return Look()

    def refresh(self, timeout: float) -> bool:
        return self.changed.pop(0)

    def still_there(self, paths: Any) -> set[str]:
        if not self.answers.pop(0):
            raise zklock.NoAnswer("/: no answer")
        return set()


def test_an_answer_that_does_not_come_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "look", lambda reader, seen: reader.still_there(()) or seen)
    reader: Any = Unanswered()
    seen = live.looks(reader, 0.0)
    assert [next(seen).connected for _ in range(3)] == [True, False, True]


def test_a_deadlock_that_a_second_look_does_not_confirm_is_none() -> None:
    world = World()
    for first, second, one, two in (("/a", "/b", 1, 2), ("/x", "/y", 3, 4)):
        for path, session in ((first, one), (second, two), (second, one), (first, two)):
            world.queue(path, session, str(session))
    seen = picture(world.facts)
    gone = seen.locks[0].places[0].path
    reader: Any = SimpleNamespace(missing=False, still_there=set)
    assert len(live.look(reader, seen).deadlocks) == 2
    reader.still_there = lambda paths: set(paths) - {gone}
    (left,) = live.look(reader, seen).deadlocks
    assert gone not in left.involved
