"""What one thread computes holds up no other: a signal handler may have interrupted that thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from zklock._ground.cached_property import cached_property
from zklock._recipes.effects import Listing
from zklock._recipes.names import Kind, Queue, parse, prefix

SOON = 60.0
NODES = [f"{prefix(Kind.READ, f'u{number}')}{number:010d}" for number in range(3)]


class Interrupted(list[Any]):
    """A list that runs a call when it is iterated, as a signal handler runs in the middle."""

    def __init__(self, items: list[Any], call: Callable[[], object]) -> None:
        super().__init__(items)
        self._call = call

    def __iter__(self) -> Iterator[Any]:
        self._call()
        return super().__iter__()


def elsewhere(call: Callable[[], object]) -> bool:
    """Call on another thread; return whether it came to an end while this one waits."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(SOON)
    return not thread.is_alive()


def test_is_computed_once_and_kept() -> None:
    class Thing:
        computed = 0

        @cached_property
        def value(self) -> list[int]:
            """What it is."""
            self.computed += 1
            return [self.computed]

    thing = Thing()
    assert thing.value is thing.value
    assert thing.computed == 1
    assert Thing().value == [1]


@pytest.mark.hazard("H28")
@pytest.mark.parametrize("what", ["standing", "listing"])
def test_an_interrupted_computation_holds_up_no_other_thread(what: str) -> None:
    me = parse(NODES[2])
    assert me is not None
    ended: list[bool] = []

    def look() -> None:
        assert Listing(NODES, 1).queue.standing(me) is not None

    def interrupt() -> None:
        ended.append(elsewhere(look))

    if what == "standing":
        queue = Queue(NODES)
        queue.contenders = Interrupted(queue.contenders, interrupt)
        assert queue.standing(me) is not None
    else:
        assert Listing(Interrupted(NODES, interrupt), 1).queue.standing(me) is not None
    assert ended
    assert all(ended)
