"""A ticket on an in-memory ZooKeeper: contenders of several locks in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from tests.fakes import Client, Counted, FakeGrant, Server, failure, outcome, sent, settle, uuids
from zklock._engine.attempt import Attempt
from zklock._recipes import lock as lock_recipe, names, together
from zklock._recipes.effects import (
    AbandonCreate,
    Cancelled,
    ClaimAll,
    Create,
    Delete,
    Exists,
    Failure,
    List,
    Listing,
    Node,
    Pause,
    Recipe,
    SessionReplaced,
    Sync,
    Transaction,
)
from zklock.errors import AccessDenied, AcquireCancelled, ClientClosed, ZkLockError

PATHS = ["/a", "/b", "/c", "/d"]


class World:
    """A server, and clients that ask for several locks."""

    def __init__(self, *, made: bool = True, clients: int = 2) -> None:
        self.server = Server()
        if made:
            for path in PATHS:
                self.server.make_path(path)
        self.clients = [Client(self.server) for _ in range(clients)]
        self.client = self.clients[0]
        self.uuids = uuids()

    def entry(self, path: str, kind: names.Kind = names.Kind.EXCLUSIVE, **more: Any) -> Any:
        new_uuid = partial(next, self.uuids)
        return lock_recipe.Entry(path, b"me", kind, alone=True, new_uuid=new_uuid, **more)

    def entries(self, **more: Any) -> list[lock_recipe.Entry]:
        return [self.entry(path, **more) for path in PATHS]

    def ticket(
        self, entries: list[lock_recipe.Entry] | None = None, client: int = 0
    ) -> Attempt[Any]:
        host = self.clients[client]
        asked = self.entries() if entries is None else entries
        return Attempt(host, together.acquire(asked), recover=partial(together.leave, asked))

    def holder(self, path: str, client: int = 1, kind: Any = names.Kind.EXCLUSIVE) -> FakeGrant:
        attempt = self.clients[client].acquire(self.entry(path, kind)).start()
        self.settle()
        grant: FakeGrant = outcome(attempt)
        assert grant.stands
        return grant

    def settle(self) -> None:
        settle(self.clients)

    @property
    def queues(self) -> list[int]:
        return [len(self.server.tree.names(path)) for path in PATHS]


@pytest.fixture
def world() -> World:
    return World()


def test_free_locks_take_one_batch_and_one_transaction_to_go(world: World) -> None:
    attempt = world.ticket().start()
    assert sent(world.client) == [Transaction, *[List] * 4]
    world.settle()
    grants = outcome(attempt)
    assert [grant.path.rpartition("/")[0] for grant in grants] == PATHS
    assert all(grant.stands for grant in grants)
    for grant, path in zip(grants, PATHS, strict=True):
        assert grant.token.epoch == world.server.tree.nodes[path].czxid
        assert grant.token.sequence == int(grant.path[-10:])
    assert sent(world.client) == []
    give_back(world, grants)
    assert sent(world.client) == [Transaction]
    assert world.queues == [0] * 4


def give_back(world: World, grants: Sequence[Any]) -> Attempt[None]:
    nodes = [grant.path for grant in grants]
    each = [grant.give_back for grant in grants]
    make = partial(together.give_back, nodes, each)
    attempt: Attempt[None] = Attempt(world.client, make(), recover=make).start()
    world.settle()
    return attempt


@pytest.mark.parametrize("at", range(4))
def test_it_takes_those_before_the_first_that_is_not_free(world: World, at: int) -> None:
    for path in {PATHS[at], PATHS[3]}:
        world.holder(path)
    before = world.queues
    attempt = world.ticket().start()
    world.settle()
    assert len(outcome(attempt)) == at
    assert [now - then for now, then in zip(world.queues, before, strict=True)] == [
        *[1] * at,
        *[0] * (4 - at),
    ]


def test_readers_stand_beside_readers(world: World) -> None:
    for path in PATHS:
        world.holder(path, kind=names.Kind.READ)
    attempt = world.ticket([world.entry(path, names.Kind.READ) for path in PATHS]).start()
    world.settle()
    assert len(outcome(attempt)) == 4
    writing = world.ticket([world.entry(path, names.Kind.WRITE) for path in PATHS]).start()
    world.settle()
    assert outcome(writing) == ()
    assert world.queues == [2, 2, 2, 2]


def test_two_tickets_stand_in_one_order_in_every_queue(world: World) -> None:
    first, second = world.ticket().start(), world.ticket(client=1).start()
    world.settle()
    assert len(outcome(first)) == 4
    assert outcome(second) == ()
    assert world.queues == [1, 1, 1, 1]


def empty(attempt: Attempt[Any]) -> bool:
    return bool(outcome(attempt) == ())


def test_a_missing_parent_makes_nothing() -> None:
    world = World(made=False)
    for path in PATHS[:3]:
        world.server.make_path(path)
    attempt = world.ticket().start()
    world.settle()
    assert empty(attempt)
    assert sent(world.client) == [Transaction, *[List] * 4]
    assert [len(world.server.tree.names(path)) for path in PATHS] == [0] * 4


@pytest.mark.parametrize("carried_out", range(6))
def test_a_lost_connection_leaves_nothing(world: World, carried_out: int) -> None:
    attempt = world.ticket().start()
    world.client.lose_connection(carried_out=carried_out)
    assert outcome(attempt) is ...
    world.settle()
    assert empty(attempt)
    assert world.queues == [0] * 4


def test_a_lost_listing_leaves_nothing(world: World) -> None:
    """The transaction is answered, and what was asked after it is not."""
    attempt = world.ticket().start()
    world.client.serve(3)
    world.client.deliver(2)
    world.client.lose_connection()
    world.settle()
    assert empty(attempt)
    assert world.queues == [0] * 4


@pytest.mark.parametrize("carried_out", [0, 1])
def test_a_lost_session_leaves_nothing(world: World, carried_out: int) -> None:
    attempt = world.ticket().start()
    world.client.lose_connection(carried_out=carried_out)
    world.server.expire(world.client.session)
    world.settle()
    assert empty(attempt)
    assert world.queues == [0] * 4


def test_a_closed_client_ends_it(world: World) -> None:
    attempt = world.ticket().start()
    attempt.session_replaced(ClientClosed("closed"))
    with pytest.raises(ClientClosed):
        attempt.result()


def test_no_claim_waits_for_a_lease(world: World) -> None:
    world.client.refusals = 1
    attempt = world.ticket().start()
    world.settle()
    assert empty(attempt)
    assert world.client.awaiting == 0
    assert world.queues == [0] * 4


@pytest.mark.parametrize("held", [None, "/a", "/c"])
@pytest.mark.parametrize("answers", range(7))
def test_giving_up_at_any_time_leaves_nothing(world: World, answers: int, held: str | None) -> None:
    if held is not None:
        world.holder(held)
    before = world.queues
    attempt = world.ticket().start()
    for _ in range(answers):
        world.client.serve()
        world.client.deliver()
    mine = attempt.cancel(AcquireCancelled("cancelled"))
    world.settle()
    if mine:
        with pytest.raises(AcquireCancelled):
            attempt.result()
    else:
        give_back(world, outcome(attempt))
    assert world.queues == before


@pytest.mark.parametrize("batches", range(2))
def test_an_interrupt_leaves_nothing(world: World, batches: int) -> None:
    world.holder("/c")
    world.client.interrupt_in = batches
    attempt = world.ticket()
    with pytest.raises(KeyboardInterrupt):
        attempt.start()
        world.settle()
    world.settle()
    assert world.queues == [0, 0, 1, 0]


def test_nodes_of_a_ticket_that_nobody_waits_for_are_swept(world: World) -> None:
    """The answer comes when the attempt has been torn."""
    attempt = world.ticket().start()
    world.client.serve(5)
    attempt.session_replaced()
    world.settle()
    assert empty(attempt)
    assert world.queues == [0] * 4


@pytest.mark.parametrize("which", [Create, Delete])
def test_what_is_not_permitted_is_tried_one_by_one(world: World, which: type[Any]) -> None:
    world.server.denied = {(which,)}
    world.holder("/c")
    attempt = world.ticket().start()
    world.settle()
    if which is Create:
        assert empty(attempt)
    else:
        assert len(outcome(attempt)) == 2
        assert Delete in sent(world.client)
        assert world.queues == [1, 1, 1, 0]


def test_an_error_of_the_deletion_is_raised_when_all_was_tried(world: World) -> None:
    world.holder("/b")
    world.server.denied = {(Delete,), Delete}
    attempt = world.ticket().start()
    world.settle()
    with pytest.raises(AccessDenied):
        attempt.result()
    tried = [request for request in world.client.sent if isinstance(request, Delete)]
    assert {request.path[:2] for request in tried} == set(PATHS)


@pytest.mark.parametrize("gone", range(4))
def test_one_that_is_gone_does_not_keep_the_others(world: World, gone: int) -> None:
    attempt = world.ticket().start()
    world.settle()
    grants = outcome(attempt)
    world.server.delete(grants[gone].path)
    world.settle()
    assert give_back(world, grants).result() is None
    assert world.queues == [0] * 4


@pytest.mark.parametrize("carried_out", [0, 1])
def test_a_lost_answer_to_a_release(world: World, carried_out: int) -> None:
    attempt = world.ticket().start()
    world.settle()
    grants = outcome(attempt)
    nodes = [grant.path for grant in grants]
    each: list[Callable[[], Recipe[None]]] = [grant.give_back for grant in grants]
    releasing: Attempt[None] = Attempt(world.client, together.give_back(nodes, each)).start()
    world.client.lose_connection(carried_out=carried_out)
    world.settle()
    assert releasing.result() is None
    assert world.queues == [0] * 4


@pytest.mark.parametrize("counter", [names.RENEW_AT, names.EXHAUSTED_AT])
def test_a_worn_out_number_is_for_who_takes_one_lock(world: World, counter: int) -> None:
    world.server.commit(Counted("/b", counter))
    attempt = world.ticket().start()
    world.settle()
    grants = outcome(attempt)
    if counter == names.EXHAUSTED_AT:
        assert len(grants) == 1
        assert world.queues == [1, 0, 0, 0]
        return
    assert len(grants) == 4
    give_back(world, grants)
    assert "/b" not in world.server.tree.nodes  # its last child has taken it along
    assert world.queues == [0] * 4


def test_a_name_that_kazoo_does_not_see_is_for_who_takes_one_lock(world: World) -> None:
    world.holder("/c", kind=names.Kind.READ)
    entries = [world.entry(path, names.Kind.READ, naming=names.Naming.KAZOO) for path in PATHS]
    attempt = world.ticket(entries).start()
    world.settle()
    assert len(outcome(attempt)) == 2


def test_it_never_waits_for_anybody_and_watches_nothing() -> None:
    """Whatever it is answered. So it never rests, and its claim has no rest to end."""
    played, asked_for = 0, set[type]()
    todo: list[tuple[int, ...]] = [()]
    while todo:
        choices = todo.pop()
        played += 1
        *_, (asked, count) = plays(choices)
        asked_for.update(map(type, asked if isinstance(asked, tuple) else (asked,)))
        if len(choices) < 4:
            todo.extend((*choices, number) for number in range(count))
    assert played > 5000
    assert asked_for == {
        Transaction,
        List,
        ClaimAll,
        Delete,
        Sync,
        Exists,
        Pause,
        AbandonCreate,
    }


def plays(choices: tuple[int, ...]) -> Iterator[tuple[Any, int]]:
    """Yield what a ticket asks for, and how many answers there are; ``None`` and 0: it is over."""
    entries = [
        lock_recipe.Entry(path, b"me", names.Kind.EXCLUSIVE, alone=True, new_uuid=lambda: "me")
        for path in PATHS[:3]
    ]
    recipe = together.acquire(entries)
    asked = next(recipe)
    try:
        for choice in choices:
            answers = answers_to(asked)
            yield asked, len(answers)
            answer = answers[choice]
            go_on = recipe.throw if isinstance(answer, Exception) else recipe.send
            asked = go_on(answer)
    except (StopIteration, Cancelled, ZkLockError):
        yield (), 0
    else:
        yield asked, len(answers_to(asked))


def answers_to(asked: Any) -> list[Any]:
    """Return what may become of what a recipe asks for; an exception is thrown into it."""
    ends: list[Any] = [Cancelled(), SessionReplaced(None), SessionReplaced(ClientClosed("closed"))]
    if isinstance(asked, ClaimAll):
        return [None, asked.claims]  # as grants
    if isinstance(asked, Pause | AbandonCreate):
        return [None, *ends]
    failed = [tuple(failure(why, "/") for _ in asked) for why in Failure]
    free, queued = (tuple(result_of(each, before) for each in asked) for before in (False, True))
    unlisted = (free[0], *failed[0][1:])
    return [free, queued, unlisted, *failed, *ends]


def result_of(request: Any, before: bool) -> Any:
    """Return the result of a request; ``before``: somebody stands first in the second queue."""
    if isinstance(request, Transaction):
        creates = (each for each in request.operations if isinstance(each, Create))
        return tuple([f"{each.prefix}0000000007" for each in creates]) or None
    if isinstance(request, List):
        first = ["_c_other-lock-0000000001"] if before and request.path == PATHS[1] else []
        return Listing([*first, "_c_me-lock-0000000007"], 5)
    return Node(request.path, b"", 1, mine=True) if isinstance(request, Exists) else None
