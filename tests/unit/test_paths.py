"""Paths are made below what may not be read, and what cannot be made is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kazoo import exceptions

from zklock.fencing._paths import make_path


class Result:
    """An asynchronous result, which is there at once."""

    def __init__(self, value: Any = None, exception: Exception | None = None) -> None:
        self.value, self.exception, self.done = value, exception, False

    def set(self, value: Any) -> None:
        self.done = True

    def set_exception(self, exception: Exception) -> None:
        self.exception = exception

    def rawlink(self, callback: Callable[[Any], object]) -> None:
        callback(self)


def successful(result: Any) -> bool:
    return result.done and result.exception is None


class Tree:
    """A client that may not create below the closed nodes; nor read any, if they are hidden."""

    def __init__(self, nodes: set[str], closed: set[str], hidden: bool) -> None:
        self.handler, self.nodes, self.closed, self.hidden = self, nodes, closed, hidden

    def async_result(self) -> Any:
        return Result()

    def create_async(self, path: str, acl: object) -> Any:
        parent = path.rpartition("/")[0] or "/"
        if parent not in self.nodes and path != "/":
            return self.answer(exceptions.NoNodeError())
        if parent in self.closed:
            return self.answer(exceptions.NoAuthError())
        if path in self.nodes:
            return self.answer(exceptions.NodeExistsError())
        self.nodes.add(path)
        return self.answer(path)

    def exists_async(self, path: str) -> Any:
        if path not in self.nodes:
            return self.answer(None)
        return self.answer(exceptions.NoAuthError() if self.hidden else object())

    def answer(self, answer: object) -> Any:
        return Result(None, answer) if isinstance(answer, Exception) else Result(answer)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("there", ["/", "/a", "/a/b", "/a/b/c"])
def test_a_path_is_made_below_what_is_there(there: str, hidden: bool) -> None:
    nodes = {"/", "/a", "/a/b", "/a/b/c"}
    tree = Tree({node for node in nodes if there.startswith(node)}, set(), hidden)
    made = make_path(tree, "/a/b/c")
    assert successful(made)
    assert tree.nodes == nodes


@pytest.mark.parametrize("hidden", [False, True])
def test_a_path_that_is_there_needs_no_right_to_make_it(hidden: bool) -> None:
    made = make_path(Tree({"/", "/a", "/a/b"}, {"/a"}, hidden), "/a/b")
    assert successful(made) is not hidden  # its user reads it, too


def test_a_path_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = make_path(Tree(set(), set(), hidden=False), "/a")
    assert successful(missing)  # a chroot of one part
    denied = make_path(Tree({"/", "/a"}, {"/a"}, hidden=True), "/a/b/c")
    assert isinstance(denied.exception, exceptions.NoAuthError)
    secretive = Tree({"/"}, {"/"}, hidden=True)  # a look for what is missing is refused, too
    monkeypatch.setattr(secretive, "exists_async", lambda _: secretive.answer(denied.exception))
    assert isinstance(make_path(secretive, "/a/b").exception, exceptions.NoAuthError)
    lost = Tree({"/"}, {"/"}, hidden=False)
    monkeypatch.setattr(lost, "exists_async", lambda _: lost.answer(exceptions.ConnectionLoss()))
    assert isinstance(make_path(lost, "/a").exception, exceptions.ConnectionLoss)
    nowhere = Tree(set(), set(), hidden=False)
    monkeypatch.setattr(
        nowhere, "create_async", lambda *_, **__: nowhere.answer(exceptions.NoNodeError())
    )
    assert isinstance(make_path(nowhere, "/a/b").exception, exceptions.NoNodeError)
