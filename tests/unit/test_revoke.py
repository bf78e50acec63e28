"""Asking a holder for its release: whether it was asked, for every answer of the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.exceptions import BadVersionError, ConnectionLoss, NoNodeError

from zklock._recipes import nodedata, revoke
from zklock._recipes.effects import Failed, Failure, Node, Read, Recipe, Write
from zklock._recipes.queries import Contender

PATH = "/locks/report"
NODE = f"{PATH}/_c_11111111-2222-3333-4444-555555555555-lock-0000000000"
HOLDER = Contender("me", 0, None, 1, NODE, holds=True)
WAITER = Contender("you", 1, None, 2, NODE[:-1] + "1", holds=False)

LOST = Failed(Failure.DROPPED, ConnectionLoss())
GONE = Failed(Failure.MISSING, NoNodeError())
CHANGED = Failed(Failure.CHANGED, BadVersionError())
DONE = None


def contenders() -> Recipe[list[Contender]]:
    yield from ()
    return [HOLDER, WAITER]


class Store:
    """One node: it answers in the given order, and keeps what a write brought that came through."""

    def __init__(self, *answers: Any) -> None:
        self.answers: Iterator[Any] = iter(answers)
        self.data = bytes(nodedata.NodeData(b"me"))
        self.version = 0
        self.requests: list[Any] = []

    def answer(self, request: Any) -> Any:
        self.requests.append(request)
        answer = next(self.answers)
        if isinstance(request, Write) and answer in {DONE, "done, and the answer lost"}:
            assert request.version == self.version
            self.data, self.version = request.data, self.version + 1
        if answer == "done, and the answer lost":
            return LOST
        if answer == "there":
            return Node(NODE, self.data, 1, mine=False, version=self.version)
        return answer

    def run(self, recipe: Recipe[Any]) -> Any:
        """Run it to its end; it takes all answers, and no more."""
        results: Any = None
        while True:
            try:
                batch = recipe.send(results)
            except StopIteration as stop:
                assert next(self.answers, "none") == "none"
                return stop.value
            assert isinstance(batch, tuple)
            results = tuple(map(self.answer, batch))


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        (("there", DONE), True),  # whatever the holder does next
        (("there", CHANGED, "there", DONE), True),
        (("there", LOST, "there", DONE), True),
        (("there", "done, and the answer lost", "there"), True),
        ((LOST, LOST, "there", DONE), True),
        ((GONE,), False),
        (("there", GONE, GONE), False),
        (("there", "done, and the answer lost", GONE), False),
    ],
)
def test_a_holder_was_asked_once_the_server_has_the_request(
    answers: tuple[Any, ...], asked: bool
) -> None:
    store = Store(*answers)
    assert store.run(revoke.request_release(contenders)) == ([HOLDER] if asked else [])
    assert {type(request) for request in store.requests} <= {Read, Write}
    assert {request.path for request in store.requests} == {NODE}
    writes = [request for request in store.requests if isinstance(request, Write)]
    assert len({write.data for write in writes}) == bool(writes)  # a repeated request is the same


def test_readers_are_let_in_once_the_server_has_the_mark() -> None:
    store = Store("there", DONE)
    assert store.run(revoke.let_readers_in(NODE)) is True
    assert nodedata.parse(store.data) == nodedata.NodeData(b"me", lets_readers_in=True)
