"""Locks that keep track of abandoned grants: contenders that lose their node, and queue again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes import Client, Server, outcome, settle, uuids
from zklock._core.attempt import Attempt
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


class World:
    """A server, and three clients that want one lock."""

    def __init__(self) -> None:
        self.server = Server()
        self.server.make_path(PATH)
        self.clients = [Client(self.server) for _ in range(3)]
        self._uuids = uuids()

    def start(self, client: Client, *, tidy: bool = False) -> Attempt[Any]:
        entry = abandoned.MarkedEntry(
            PATH,
            b"me",
            names.Kind.EXCLUSIVE,
            tidy=tidy,
            new_uuid=lambda: next(self._uuids),
            delay=DELAY,
        )
        return client.acquire(entry).start()

    def settle(self) -> None:
        settle(self.clients)

    def granted(self, client: Client, *, tidy: bool = False) -> Any:
        attempt = self.start(client, tidy=tidy)
        settle([client])
        return outcome(attempt)

    def marked(self, client: Client) -> Attempt[Any]:
        """Return an attempt that has written its mark, and lost its session before the answer."""
        attempt = self.start(client)
        while not any(map(marks, client.sent)):
            client.serve()
            client.deliver()
            client.run_job()
        session = client.session
        client.lose_connection(carried_out=1)
        self.server.expire(session)
        return attempt

    @property
    def mark(self) -> bytes:
        return self.server.tree.nodes[PATH].data


@pytest.fixture
def world() -> World:
    return World()


def test_who_queues_again_and_gives_up_leaves_the_mark_of_the_holder(world: World) -> None:
    unlucky, holding, _ = world.clients
    attempt = world.marked(unlucky)
    grant = world.granted(holding)
    mark = world.mark
    assert mark.endswith(str(grant.token).encode())
    world.settle()
    assert outcome(attempt) is ...  # behind the holder
    assert attempt.cancel()
    world.settle()
    assert world.server.tree.names(PATH) == [grant.path.rpartition("/")[2]]
    assert world.mark == mark


def test_who_queues_again_waits_for_each_holder_that_has_not_released(world: World) -> None:
    unlucky, holding, crashed = world.clients
    world.granted(crashed)
    world.server.expire(crashed.session)
    attempt = world.marked(unlucky)
    assert unlucky.pauses == [DELAY]
    world.granted(holding)
    world.settle()
    assert outcome(attempt) is ...  # behind the holder
    world.server.expire(holding.session)
    world.settle()
    assert outcome(attempt).stands
    assert unlucky.pauses == [DELAY, DELAY]


def test_who_queues_again_alone_does_not_wait_for_the_same_holder_again(world: World) -> None:
    unlucky, _, crashed = world.clients
    world.granted(crashed)
    world.server.expire(crashed.session)
    attempt = world.marked(unlucky)
    world.settle()
    assert outcome(attempt).stands
    assert unlucky.pauses == [DELAY]


@pytest.mark.parametrize("crashes", [True, False])
def test_a_tidy_release_whose_reply_is_lost_leaves_the_mark_of_a_later_holder(
    world: World, crashes: bool
) -> None:
    """It removes the path if there is none."""
    tidy, crashed, _ = world.clients
    release = tidy.attempt(world.granted(tidy, tidy=True).give_back).start()
    tidy.lose_connection(carried_out=1)
    assert world.mark == abandoned.FREE
    if crashes:
        world.granted(crashed)
        world.server.expire(crashed.session)
    world.settle()
    assert outcome(release) is None
    assert (PATH in world.server.tree.nodes) is crashes
    if crashes:
        assert world.mark != abandoned.FREE


def test_a_tidy_release_of_a_broken_lock_leaves_the_mark_of_a_later_holder(world: World) -> None:
    tidy, crashed, _ = world.clients
    grant = world.granted(tidy, tidy=True)
    world.server.delete(grant.path)
    world.granted(crashed)
    world.server.expire(crashed.session)
    mark = world.mark
    assert mark != abandoned.FREE
    release = tidy.attempt(grant.give_back).start()
    world.settle()
    assert outcome(release) is False  # it was gone before
    assert world.mark == mark
