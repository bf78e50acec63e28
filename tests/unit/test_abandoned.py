"""Locks that keep track of abandoned grants: contenders that lose their node, and queue again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes import outcome
from tests.unit import contending
from tests.unit.contending import Contender
from zklock._recipes import abandoned, names
from zklock._recipes.effects import (
    Request,
    Transaction,
    Write,
)

PATH = "/locks/report"
DELAY = 5.0


def marks(request: Request) -> bool:
    """Whether it writes the mark of who is about to hold."""
    return isinstance(request, Transaction) and any(
        isinstance(it, Write) and not it.data.endswith(b"gone") for it in request.operations
    )


class World(contending.World):
    """A server, and three clients that want one lock."""

    def __init__(self) -> None:
        super().__init__(3)
        self.server.make_path(PATH)

    def entry(self, **terms: Any) -> abandoned.MarkedEntry:
        terms = {"new_uuid": self.new_uuid, "delay": DELAY, **terms}
        return abandoned.MarkedEntry(PATH, b"me", names.Kind.EXCLUSIVE, **terms)

    def crashed(self, client: int) -> None:
        """Have a holder crash."""
        self.granted(client)
        self.server.expire(self.clients[client].session)

    def marked(self) -> Contender:
        """Return one that has written its mark, and lost its session before the answer."""
        contender = self.start(0)
        client = contender.client
        while not any(map(marks, client.sent)):
            client.serve()
            client.deliver()
            client.run_job()
        session = client.session
        client.lose_connection(carried_out=1)
        self.server.expire(session)
        return contender

    @property
    def mark(self) -> bytes:
        return self.server.tree.nodes[PATH].data


@pytest.fixture
def world() -> World:
    return World()


def test_who_queues_again_and_gives_up_leaves_the_mark_of_the_holder(world: World) -> None:
    unlucky = world.marked()
    grant = world.granted(1)
    mark = world.mark
    assert mark.endswith(str(grant.token).encode())
    world.settle()
    assert unlucky.waits  # behind the holder
    assert unlucky.attempt.cancel()
    world.settle()
    assert world.server.tree.names(PATH) == [grant.path.rpartition("/")[2]]
    assert world.mark == mark


@pytest.mark.parametrize("crashes", [True, False])
def test_a_tidy_release_whose_reply_is_lost_leaves_the_mark_of_a_later_holder(
    world: World, crashes: bool
) -> None:
    """It removes the path if there is none."""
    tidy = world.clients[0]
    release = tidy.attempt(world.granted(0, tidy=True).give_back).start()
    tidy.lose_connection(carried_out=1)
    assert world.mark == abandoned.FREE
    if crashes:
        world.crashed(1)
    world.settle()
    assert outcome(release) is None
    assert (PATH in world.server.tree.nodes) is crashes
    if crashes:
        assert world.mark != abandoned.FREE
