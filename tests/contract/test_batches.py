"""What a session notes of every request of a batch: whose nodes can be claimed, and are proven."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.contract.lasting import LASTING
from tests.contract.support import SOON, children
from zklock import Grant
from zklock._engine.grant import GrantOptions
from zklock._engine.session import Session
from zklock._engine.sessions import session_of
from zklock._recipes import names, steps
from zklock._recipes.effects import Claim, Create, Delete, Exists, MakePath, Node, Recipe
from zklock.token import FencingToken

pytestmark = LASTING

Taken = tuple[list[Node], Grant | None]


def prefix(path: str, uuid: int) -> str:
    return f"{path}/{names.prefix(names.Kind.EXCLUSIVE, f'{uuid:08d}-0000-4000-8000-000000000000')}"


def claim(path: str, node: Node) -> Recipe[Grant | None]:
    """Claim a node → the grant, ``None`` if the session does not count the node as its own.

    The first ``None`` may say only that the lease was not live.
    """
    token = FencingToken(1, int(node.path[-10:]))
    grant: Grant | None = None
    for _ in range(3):
        grant = yield Claim(node.path, token, partial(steps.delete, path, node.path))
        if grant is not None:
            break
    return grant


def taken(session: Session, path: str, recipe: Recipe[Taken]) -> Taken:
    attempt = session.attempt(recipe, terms=GrantOptions(path, "me", Grant)).start()
    try:
        assert attempt.wait(SOON), "the claim has no answer"
        result: Taken = attempt.result()
        return result
    finally:
        attempt.give_up()


def create(path: str) -> Recipe[list[Node]]:
    creates = (Create(prefix(path, number), b"me") for number in range(3))
    nodes: list[Node]
    _, *nodes = yield (MakePath(path), *creates)
    return nodes


@pytest.mark.parametrize("number", range(3))
def test_every_node_that_a_batch_creates_can_be_claimed(
    client: Any, zklock_path: str, number: int
) -> None:
    def recipe() -> Recipe[Taken]:
        nodes = yield from create(zklock_path)
        return nodes, (yield from claim(zklock_path, nodes[number]))

    nodes, grant = taken(session_of(client), zklock_path, recipe())
    assert grant is not None
    assert grant.path == nodes[number].path


@pytest.mark.parametrize("at", range(3))
def test_every_own_node_that_a_batch_finds_can_be_claimed(
    client: Any, other: Any, zklock_path: str, at: int
) -> None:
    other.ensure_path(zklock_path)
    theirs = [
        other.create(prefix(zklock_path, number), b"it", ephemeral=True, sequence=True)
        for number in range(2)
    ]
    mine = client.create(prefix(zklock_path, 2), b"me", ephemeral=True, sequence=True)
    paths = [*theirs[:at], mine, *theirs[at:]]

    def recipe() -> Recipe[Taken]:
        nodes = yield tuple(map(Exists, paths))
        return list(nodes), (yield from claim(zklock_path, nodes[at]))

    nodes, grant = taken(session_of(client), zklock_path, recipe())
    assert [node.mine for node in nodes] == [path == mine for path in paths]
    assert grant is not None
    assert grant.path == mine


@pytest.mark.parametrize("number", range(3))
def test_no_node_that_a_batch_deletes_can_be_claimed(
    client: Any, zklock_path: str, number: int
) -> None:
    def recipe() -> Recipe[Taken]:
        nodes = yield from create(zklock_path)
        yield tuple(Delete(node.path) for node in nodes)
        return nodes, (yield from claim(zklock_path, nodes[number]))

    assert taken(session_of(client), zklock_path, recipe())[1] is None
    assert not children(client, zklock_path)


def test_a_create_anywhere_in_a_batch_proves_that_the_session_lives(
    zklock_connect: Callable[..., Any], zklock_path: str, session_seconds: float
) -> None:
    client = zklock_connect(timeout=session_seconds)
    session = session_of(client)
    client.ensure_path(zklock_path)
    before = session.lease_end

    def recipe() -> Recipe[Node]:
        node: Node
        _, node = yield (Exists(zklock_path), Create(prefix(zklock_path, 0), b"me"))
        return node

    attempt = session.attempt(recipe()).start()
    assert attempt.wait(SOON)
    assert session.lease_end > before
