"""Who follows a node is told of what has changed, however often it is looked at."""

from __future__ import annotations

from typing import Any

from tests.fakes import failure
from tests.unit.exchange import Said, exchanged
from zklock._recipes import follow
from zklock._recipes.effects import (
    Failure,
    Listing,
    Node,
    SessionReplaced,
    Sync,
    Wait,
    Wakeup,
    Watch,
    WatchExists,
    WatchList,
)
from zklock._recipes.follow import Folder

NODE = Node("/a", b"one", 0, False, 1)
AGAIN = Node("/a", b"two", 0, False, 2)
MISSING = failure(Failure.MISSING, "/a")
SLEEPS: Said = [Wait("/a", None), Wakeup.UNWATCHED]
REPLACED = SessionReplaced(None)


def test_a_node() -> None:
    told: list[Any] = []
    looks = (Watch("/a"),)
    said: Said = []
    for node in (NODE, NODE, AGAIN, AGAIN, NODE):
        said += [looks, (node,), *SLEEPS]
    said += [looks, REPLACED, looks, (NODE,), *SLEEPS, looks]
    exchanged(follow.follow("/a", lambda *what: told.append(what)), said)
    assert told == [(NODE, False), (AGAIN, False), (NODE, False)]


def test_a_folder() -> None:
    told: list[Any] = []
    syncs, looks = (Sync("/a"),), (WatchList("/a"), Watch("/a"))
    said: Said = [syncs, (None,)]
    for _ in range(2):
        said += [looks, (MISSING, MISSING), (WatchExists("/a"),), (MISSING,), *SLEEPS]
    for node in (NODE, AGAIN):
        for names in (["c", "b"], ["b", "c"]):
            said += [looks, (Listing(names, 5), node), *SLEEPS]
    said += [
        looks,
        REPLACED,
        syncs,
        (None,),
        looks,
        (Listing(["b", "c"], 6), AGAIN),
        *SLEEPS,
        looks,
    ]
    exchanged(follow.follow_folder("/a", told.append), said)
    assert told == [
        Folder((), -1, b""),
        Folder(("b", "c"), 5, b"one"),
        Folder(("b", "c"), 5, b"two"),
        Folder(("b", "c"), 6, b"two"),
    ]
