"""Who follows a node is told of what has changed, however often it is looked at."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from zklock._recipes import follow
from zklock._recipes.effects import (
    Failed,
    Failure,
    Listing,
    Node,
    SessionReplaced,
    Sync,
    Wait,
    Wakeup,
)
from zklock._recipes.follow import Folder

NODE = Node("/a", b"one", 0, False, 1)
AGAIN = Node("/a", b"two", 0, False, 2)
MISSING = Failed(Failure.MISSING, Exception())


class Looks:
    """Answers a recipe: each look with the next of the answers, as often as it is woken."""

    def __init__(self, recipe: Generator[Any, Any, None]) -> None:
        self._recipe = recipe
        self._asked = next(recipe)

    def look(self, *answers: Any) -> None:
        """Answer one batch after the other until the recipe waits, and wake it."""
        for answer in answers:
            if self._asked == (Sync("/a"),):
                self._asked = self._recipe.send((None,))
            self._asked = self._recipe.send(answer)
        assert isinstance(self._asked, Wait)
        self._asked = self._recipe.send(Wakeup.UNWATCHED)

    def replace_session(self) -> None:
        self._asked = self._recipe.throw(SessionReplaced(None))


def test_a_node() -> None:
    told: list[Any] = []
    looks = Looks(follow.follow("/a", lambda *what: told.append(what)))
    for node in (NODE, NODE, AGAIN, AGAIN, NODE):
        looks.look((node,))
    looks.replace_session()
    looks.look((NODE,))
    assert told == [(NODE, False), (AGAIN, False), (NODE, False)]


def test_a_folder() -> None:
    told: list[Any] = []
    looks = Looks(follow.follow_folder("/a", told.append))
    looks.look((MISSING, MISSING), (MISSING,))
    looks.look((MISSING, MISSING), (MISSING,))
    for node in (NODE, AGAIN):
        looks.look((Listing(["c", "b"], 5), node))
        looks.look((Listing(["b", "c"], 5), node))
    looks.replace_session()
    looks.look((Listing(["b", "c"], 6), AGAIN))
    names = ("b", "c")
    assert told == [
        Folder((), -1, b""),
        Folder(names, 5, b"one"),
        Folder(names, 5, b"two"),
        Folder(names, 6, b"two"),
    ]
