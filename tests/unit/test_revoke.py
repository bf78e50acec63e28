"""Asking a holder for its release: whether it was asked, for every answer of the server."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.fakes import failure
from tests.unit.exchange import Returns, Said, Table, cases, exchanged
from zklock._recipes import revoke
from zklock._recipes.effects import Failure, Node, Read, Recipe, Write
from zklock._recipes.nodedata import NodeData
from zklock._recipes.queries import Contender

NODE = "/locks/report/_c_11111111-2222-3333-4444-555555555555-lock-0000000000"
HOLDER = Contender("me", 0, None, 1, NODE, holds=True)
WAITER = Contender("you", 1, None, 2, NODE[:-1] + "1", holds=False)
LOST, GONE, CHANGED = (
    failure(why, NODE) for why in (Failure.DROPPED, Failure.MISSING, Failure.CHANGED)
)


def contenders() -> Recipe[list[Contender]]:
    yield from ()
    return [HOLDER, WAITER]


def there(version: int = 0, **data: Any) -> tuple[Node]:
    return (Node(NODE, bytes(NodeData(b"me", **data)), 1, mine=False, version=version),)


def write(version: int = 0, **data: Any) -> tuple[Write]:
    return (Write(NODE, bytes(NodeData(b"me", **data)), version),)


READ = (Read(NODE),)
ASK: Said = [READ, there(), write(asked="u")]
ASKED, NOBODY = Returns([HOLDER]), Returns([])
ask = partial(revoke.request_release, contenders)
EXCHANGES: Table = {
    "whatever the holder does next": (ask, [*ASK, (None,), ASKED]),
    "its data has changed": (
        ask,
        [*ASK, (CHANGED,), READ, there(1), write(1, asked="u"), (None,), ASKED],
    ),
    "lost on the way": (ask, [*ASK, (LOST,), *ASK, (None,), ASKED]),
    "done, and the answer lost": (ask, [*ASK, (LOST,), READ, there(1, asked="u"), ASKED]),
    "the looks are lost": (ask, [READ, (LOST,), READ, (LOST,), *ASK, (None,), ASKED]),
    "it is gone": (ask, [READ, (GONE,), NOBODY]),
    "it is gone after the look": (ask, [*ASK, (GONE,), READ, (GONE,), NOBODY]),
    "the answer is lost, and it is gone": (ask, [*ASK, (LOST,), READ, (GONE,), NOBODY]),
    "readers are let in": (
        partial(revoke.let_readers_in, NODE),
        [READ, there(), write(lets_readers_in=True), (None,), Returns(True)],
    ),
}


@cases(EXCHANGES)
def test_a_holder_was_asked_once_the_server_has_the_request(
    make: Any, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revoke, "uuid4", lambda: "u")
    exchanged(make(), said)
