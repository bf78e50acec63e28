"""What a store sends on behalf of several: a missing parent is made once, a listing is shared.

Those who need the parent go on in the order in which they asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from zklock._kazoo.store import Asked, Landing, Store
from zklock._recipes.effects import (
    Batch,
    Create,
    Failed,
    Failure,
    List,
    MakePath,
)
from zklock.errors import AccessDenied

PATH = "/locks/burst"


class Wire:
    """What is asked of ZooKeeper, and who is sent, in order."""

    def __init__(self) -> None:
        self.asked: list[Callable[[Any], None]] = []
        self.listed: list[Callable[[Any], None]] = []
        self.sent: list[int] = []
        self.landed: dict[int, Any] = {}
        self.meanwhile: Callable[[], object] = lambda: None
        client: Any = SimpleNamespace(chroot="", default_acl=None)
        self.store = Store(client, self, threading.RLock())

    def send(self, asked: list[Asked], landing: Landing | None = None) -> None:
        for request, _, put in asked:
            meanwhile, self.meanwhile = self.meanwhile, lambda: None
            meanwhile()
            if isinstance(request, MakePath):
                assert request.path == PATH
                self.asked.append(put)
            elif isinstance(request, Create):
                self.sent.append(request.asked)
            else:
                self.listed.append(put)
                self.sent.append(0)

    def hear(self, batch: Batch, seconds: float | None) -> bool:
        return False

    def begin(self, number: int, *requests: Any) -> None:
        def done(results: Any) -> None:
            self.landed[number] = results

        self.store.send_batch(requests, done)

    def makes(self, number: int) -> None:
        """Ask for the node: it was found missing."""
        self.begin(number, MakePath(PATH), Create(f"{PATH}/x-", b"", number))

    def follows(self, number: int, path: str = PATH) -> None:
        """Ask, not knowing whether the node is there."""
        self.begin(number, Create(f"{path}/x-", b"", number))


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


def strike() -> None:
    raise KeyboardInterrupt


def test_one_that_was_interrupted_on_its_way_out_is_not_waited_for(wire: Wire) -> None:
    wire.meanwhile = strike
    with pytest.raises(KeyboardInterrupt):
        wire.makes(1)
    wire.follows(2)
    wire.makes(3)
    wire.asked.pop()(None)
    assert wire.sent == [2, 3]


def test_others_wait_for_a_request_that_a_thread_is_sending(wire: Wire) -> None:
    def meanwhile() -> None:
        for call in (partial(wire.follows, 3), partial(wire.makes, 2)):
            elsewhere(call)

    wire.meanwhile = meanwhile
    wire.makes(1)
    assert (len(wire.asked), wire.sent) == (1, [])
    wire.asked.pop()(None)
    assert wire.sent == [1, 2, 3]


def test_those_who_wait_for_a_request_that_was_interrupted_ask_themselves(wire: Wire) -> None:
    def meanwhile() -> None:
        for number in (3, 2):
            elsewhere(partial(wire.follows, number))
        strike()

    wire.meanwhile = meanwhile
    with pytest.raises(KeyboardInterrupt):
        wire.makes(1)
    assert wire.sent == [2, 3]
    wire.follows(4)
    assert wire.sent == [2, 3, 4]


def test_those_who_share_a_listing_that_fails_get_an_error_each(wire: Wire) -> None:
    for number in range(3):
        wire.begin(number, List("/a"))
    wire.listed[0](Failed(Failure.DENIED, AccessDenied("no")))
    wire.listed[1](Failed(Failure.DENIED, AccessDenied("never")))
    errors = [results[0].error for results in wire.landed.values()]
    assert list(map(str, errors)) == ["no", "never", "never"]
    assert len(set(map(id, errors))) == 3


def test_a_shared_listing_is_sent_behind_the_creates_of_all_who_get_it(wire: Wire) -> None:
    """Also if the listing before it is answered just then."""
    wire.begin(0, List("/a"))
    wire.meanwhile = lambda: wire.listed[0]("first")
    wire.begin(1, Create("/a/x-", b"", 1), List("/a"))
    assert wire.sent == [0, 1, 0]
    wire.listed[1]("second")
    assert wire.landed == {0: ("first",)}  # its create is not answered


def test_a_caller_who_may_read_its_answers_itself_gives_its_listing_to_nobody(wire: Wire) -> None:
    wire.store.send_batch((List("/a"),), lambda _: None, awaited=True)
    wire.begin(1, List("/a"))
    assert wire.sent == [0, 0]
