"""A missing parent is made once, and those who need it go on in the order in which they asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from zklock._kazoo.store import _Follower, _Landing, _Makings
from zklock._recipes.effects import Create, Failed, Failure, List, MakePath
from zklock.errors import AccessDenied

PATH = "/locks/burst"


class Wire:
    """What is asked of ZooKeeper, and who is sent, in order."""

    def __init__(self) -> None:
        self.asked: list[Callable[[Any], None]] = []
        self.sent: list[int] = []
        self.landed: dict[int, Any] = {}
        self.interrupt: int | None = None
        self.makings = _Makings(self.ask, threading.RLock())

    def ask(self, request: MakePath, put: Callable[[Any], None]) -> None:
        assert request.path == PATH
        self.asked.append(put)

    def follower(self, number: int, *, makes: bool, path: str = PATH) -> _Follower:
        batch: tuple[Any, ...] = (Create(f"{path}/x-", b"", number), List(path))
        if makes:
            batch = (MakePath(path), *batch)

        def send(_: _Landing) -> None:
            if number == self.interrupt:
                self.interrupt = None
                raise KeyboardInterrupt
            self.sent.append(number)

        landing = _Landing(batch, lambda results: self.landed.update({number: results}))
        return _Follower(batch, landing, send)

    def makes(self, number: int) -> None:
        """Ask for the node: it was found missing."""
        self.makings.make(MakePath(PATH), self.follower(number, makes=True))

    def follows(self, number: int, path: str = PATH) -> None:
        """Ask, not knowing whether the node is there."""
        self.makings.follow(self.follower(number, makes=False, path=path))


def elsewhere(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


@pytest.fixture
def wire() -> Wire:
    return Wire()


def test_nobody_is_held_where_nothing_is_made(wire: Wire) -> None:
    wire.follows(1)
    wire.follows(2)
    assert wire.sent == [1, 2]


def test_all_go_in_the_order_of_asking(wire: Wire) -> None:
    wire.makes(2)
    wire.follows(5)
    wire.makes(3)
    wire.follows(4)
    wire.makes(1)
    assert (len(wire.asked), wire.sent) == (1, [])
    wire.asked.pop()(None)
    assert wire.sent == [1, 2, 3, 4, 5]
    wire.follows(6)
    wire.makes(7)
    assert (len(wire.asked), wire.sent[5:]) == (1, [6])


def test_other_paths_are_not_held(wire: Wire) -> None:
    wire.makes(1)
    wire.follows(2, f"{PATH}-2")
    assert wire.sent == [2]


def test_a_failure_is_told_to_those_who_made(wire: Wire) -> None:
    denied = Failed(Failure.DENIED, AccessDenied("no"))
    wire.makes(1)
    wire.makes(2)
    wire.follows(3)
    wire.asked.pop()(denied)
    assert {number: len(set(map(id, results))) for number, results in wire.landed.items()} == {
        1: 1,
        2: 1,
    }
    first, second = (wire.landed[number][0] for number in (1, 2))
    assert str(first.error) == str(second.error) == "no"
    assert first.error is not second.error  # each raises its own
    assert wire.sent == [3]


def test_an_interrupt_holds_up_nobody(wire: Wire) -> None:
    for number in (1, 2, 3):
        wire.makes(number)
    wire.interrupt = 2
    with pytest.raises(KeyboardInterrupt):
        wire.asked.pop()(None)
    wire.follows(4)
    assert wire.sent == [1, 3, 4]


def test_one_that_was_interrupted_on_its_way_out_is_not_waited_for(wire: Wire) -> None:
    def strike(request: MakePath, put: Callable[[Any], None]) -> None:
        raise KeyboardInterrupt

    makings = wire.makings
    makings._ask = strike
    with pytest.raises(KeyboardInterrupt):
        wire.makes(1)
    makings._ask = wire.ask
    wire.follows(2)
    wire.makes(3)
    wire.asked.pop()(None)
    assert wire.sent == [2, 3]


def test_others_wait_for_a_request_that_a_thread_is_sending(wire: Wire) -> None:
    ask = wire.ask

    def meanwhile(request: MakePath, put: Callable[[Any], None]) -> None:
        ask(request, put)
        wire.makings._ask = ask
        for call in (partial(wire.follows, 3), partial(wire.makes, 2)):
            elsewhere(call)

    wire.makings._ask = meanwhile
    wire.makes(1)
    assert (len(wire.asked), wire.sent) == (1, [])
    wire.asked.pop()(None)
    assert wire.sent == [1, 2, 3]


def test_those_who_wait_for_a_request_that_was_interrupted_ask_themselves(wire: Wire) -> None:
    def strike(request: MakePath, put: Callable[[Any], None]) -> None:
        for number in (3, 2):
            elsewhere(partial(wire.follows, number))
        raise KeyboardInterrupt

    wire.makings._ask = strike
    with pytest.raises(KeyboardInterrupt):
        wire.makes(1)
    assert wire.sent == [2, 3]
    wire.follows(4)
    assert wire.sent == [2, 3, 4]
