"""The lock recipe on an in-memory ZooKeeper: step by step, and under faults of every kind."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, ClassVar
from uuid import RFC_4122, UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, invariant, multiple, rule

from tests.fakes import (
    PERSISTENT,
    Client,
    Counted,
    FakeGrant,
    Server,
    Written,
    failure,
    outcome,
    sent,
    settle,
    uuids,
)
from tests.unit.network import CLIENTS, Network, which
from zklock._core.attempt import Attempt
from zklock._recipes import lock as lock_recipe, names, steps
from zklock._recipes.effects import (
    Cancelled,
    Claim,
    Create,
    Delete,
    Failure,
    List,
    Listing,
    Make,
    Node,
    Pause,
    Read,
    Recipe,
    Sync,
    Watch,
)
from zklock.errors import AccessDenied, MixedNames, SequenceExhausted, ZkLockError
from zklock.token import FencingToken

PATH = "/locks/report"
KAZOO = f"{PATH}/{'a' * 32}__lock__"
CURATOR = f"{PATH}/_c_11111111-2222-3333-4444-555555555555-lock-"


@dataclass(eq=False)
class Contender:
    """One acquire, as a caller sees it."""

    client: Client
    entry: lock_recipe.Entry
    attempt: Attempt[FakeGrant | None]
    gave_up: bool = False
    interrupted: bool = False

    @property
    def outcome(self) -> Any:
        return outcome(self.attempt)

    @property
    def waits(self) -> bool:
        """Whether there is no outcome yet."""
        return self.outcome is ...


class World:
    """A server, some clients, and what they want of one lock."""

    def __init__(
        self,
        clients: int = 2,
        *,
        made: bool = True,
        naming: names.Naming = names.Naming.CURATOR,
    ) -> None:
        self.naming = naming
        self.server = Server()
        if made:
            self.server.make_path(PATH)
        self.clients = [Client(self.server) for _ in range(clients)]
        self.uuids = uuids()

    def entry(self, *, patient: bool = True, kind: names.Kind = names.Kind.EXCLUSIVE) -> Any:
        return lock_recipe.Entry(
            PATH,
            b"me",
            kind,
            patient=patient,
            naming=self.naming,
            new_uuid=lambda: next(self.uuids),
        )

    def contender(self, client: int = 0, **terms: Any) -> Contender:
        entry = self.entry(**terms)
        host = self.clients[client]
        return Contender(host, entry, host.acquire(entry))

    def start(self, client: int = 0, **terms: Any) -> Contender:
        contender = self.contender(client, **terms)
        contender.attempt.start()
        return contender

    def settle(self) -> None:
        settle(self.clients)

    @property
    def queue(self) -> list[str]:
        return self.server.tree.names(PATH)

    def count_to(self, counter: int) -> None:
        self.server.commit(Counted(PATH, counter))


@pytest.fixture
def world() -> World:
    return World()


# What it costs.


def test_a_free_lock_takes_one_batch_of_two_requests(world: World) -> None:
    contender = world.start()
    assert sent(world.clients[0]) == [Create, List]
    world.settle()
    grant = contender.outcome
    assert grant.stands
    assert grant.token.sequence == 0
    assert grant.token.epoch == world.server.tree.nodes[PATH].czxid
    assert sent(world.clients[0]) == []


def test_a_handover_from_the_sole_blocker_needs_no_request(world: World) -> None:
    first, second = world.start(0), world.start(1)
    world.settle()
    assert sent(world.clients[1]) == [Create, List, Watch, Watch]
    world.clients[0].release(first.outcome)
    world.settle()
    assert second.outcome.stands
    assert sent(world.clients[1]) == []


def test_a_release_is_one_request_and_wakes_the_next_only() -> None:
    world = World(4)
    contenders = [world.start(client) for client in range(4)]
    world.settle()
    for client in world.clients:
        client.sent.clear()
    world.clients[0].release(contenders[0].outcome)
    world.settle()
    assert [sent(client) for client in world.clients] == [[Delete], [], [], []]
    assert [contender.waits for contender in contenders] == [False, False, True, True]


def test_whoever_gives_up_in_the_middle_wakes_only_the_one_behind() -> None:
    world = World(4)
    contenders = [world.start(client) for client in range(4)]
    world.settle()
    for client in world.clients:
        client.sent.clear()
    contenders[1].attempt.cancel()
    world.settle()
    # The one behind looks again: that its blocker is gone does not make it the first.
    assert [sent(client) for client in world.clients] == [[], [Delete], [List, Watch, Watch], []]
    assert contenders[2].waits


# Lost replies, lost connections, lost sessions.


@pytest.mark.parametrize("carried_out", [0, 1, 2])
def test_a_create_whose_reply_is_lost(world: World, carried_out: int) -> None:
    contender = world.start()
    client = world.clients[0]
    client.lose_connection(carried_out=carried_out)
    world.settle()
    assert contender.outcome.stands
    assert world.queue == [contender.outcome.path.rpartition("/")[2]]
    prefixes = [request.prefix for request in client.sent if isinstance(request, Create)]
    assert len(prefixes) == (1 if carried_out else 2)
    assert len(prefixes) == len(set(prefixes)), "the other create may still arrive, for nobody"


@pytest.mark.parametrize("counter", [0, names.EXHAUSTED_AT])
def test_parent_and_node_deleted_before_the_listing(world: World, counter: int) -> None:
    """H13, at its worst: between the two requests of the first batch."""
    world.count_to(counter)
    contender = world.start()
    client = world.clients[0]
    client.serve()
    assert client.link is not None
    (node,) = world.queue
    world.server.delete(f"{PATH}/{node}")
    world.server.delete(PATH)
    client.link.advance(2)
    world.settle()
    assert contender.outcome.stands
    assert contender.outcome.token.epoch == world.server.tree.nodes[PATH].czxid
    assert contender.outcome.token.sequence == 0


# Errors leave nothing behind.


@pytest.mark.parametrize(("what", "made"), [(Create, True), (Make, False)])
def test_a_forbidden_create_is_an_error(what: type[Any], made: bool) -> None:
    world = World(made=made)
    world.server.denied = {what}
    contender = world.start()
    world.settle()
    assert isinstance(contender.outcome, AccessDenied)


def test_a_forbidden_listing_is_an_error_and_leaves_no_node(world: World) -> None:
    world.server.denied = {List}
    contender = world.start()
    world.settle()
    assert isinstance(contender.outcome, AccessDenied)
    assert world.queue == []


@pytest.mark.parametrize("reconnected", [True, False])
def test_a_give_up_while_an_error_is_being_cleaned_up_after(
    world: World, reconnected: bool
) -> None:
    """H9: the withdrawal under way goes on, whether or not it had been sent."""
    world.server.denied = {List}
    contender = world.start()
    client = world.clients[0]
    client.serve(2)
    client.deliver(2)
    client.serve()  # looks again, and is refused again
    client.deliver()
    assert type(client.sent[-1]) is Delete
    client.lose_connection()
    if reconnected:
        client.reconnect()
    assert contender.attempt.cancel()
    world.settle()
    assert world.queue == []
    assert client.attempts == 0


# As a generator: what it asks for, one by one.


def test_a_recipe_that_is_told_to_give_up_at_its_first_batch_sends_nothing() -> None:
    asked: Any = lock_recipe.acquire(World().entry())
    assert [type(request) for request in next(asked)] == [Create, List]
    with pytest.raises(Cancelled):
        asked.throw(Cancelled())


def test_data_that_change_while_the_create_is_under_way_are_told(world: World) -> None:
    """The changer knows of no node then, and leaves it to the recipe."""

    class Telling(lock_recipe.Entry):
        told = 0

        def announce(self) -> Any:
            self.told += 1
            yield from super().announce()

    for changes in (0, 1):
        entry = Telling(PATH, b"me", names.Kind.READ)
        attempt = world.clients[changes].acquire(entry).start()
        if changes:
            entry.data = b"changed"
        world.settle()
        assert outcome(attempt).stands
        assert entry.told == changes


def test_whoever_leaves_removes_its_other_nodes_first_and_tidies_up_last(world: World) -> None:
    steps: list[tuple[str, bool]] = []

    class ContextExit(lock_recipe.Entry):
        def before_leaving(self) -> Any:
            steps.append(("before", self.node in world.server.tree.nodes))
            yield from super().before_leaving()

        def after_leaving(self) -> Any:
            steps.append(("after", self.node in world.server.tree.nodes))
            yield from super().after_leaving()

    entry = ContextExit(PATH, b"me", names.Kind.EXCLUSIVE)
    client = world.clients[0]
    client.acquire(entry).start()
    world.settle()
    attempt = client.attempt(partial(lock_recipe.leave, entry)).start()
    world.settle()
    assert outcome(attempt) is None
    assert steps == [("before", True), ("after", False)]


def test_a_withdrawal_that_is_told_to_give_up_goes_on_and_tells_it_in_the_end(
    world: World,
) -> None:
    entry = world.entry()
    entry.node = f"{PATH}/{names.prefix(entry.kind, 'u')}0000000007"
    asked: Any = lock_recipe.leave(entry)
    assert next(asked) == (Delete(entry.node),)
    assert asked.throw(Cancelled()) == (Delete(entry.node),)
    with pytest.raises(Cancelled):
        asked.send((None,))


def test_a_withdrawal_that_cannot_look_for_its_node_tries_again_after_growing_pauses(
    world: World,
) -> None:
    entry = world.entry()
    entry.uuid = "u"
    asked: Any = lock_recipe.leave(entry)
    batch = next(asked)
    refused = failure(Failure.OTHER, PATH)
    pauses = []
    for _ in range(3):
        assert [type(request) for request in batch] == [Sync, List]
        pauses.append(asked.send((refused, refused)))
        batch = asked.send(None)
    assert pauses == [Pause(0.05), Pause(0.1), Pause(0.2)]


# What a caller may ask about its place.


def test_a_waiter_knows_how_many_stand_before_it_and_behind_whom(world: World) -> None:
    first, second = (str(world.server.create(CURATOR, data, PERSISTENT)) for data in (b"A", b"B"))
    entry = world.entry()
    places: list[tuple[str, int]] = []
    entry.queued = lambda node, ahead: places.append((node, ahead))

    def place() -> tuple[int | None, str]:
        return entry.ahead, entry.behind

    assert place() == (None, "")
    world.clients[0].acquire(entry).start()
    world.settle()
    assert place() == (2, "B")
    world.server.delete(second)
    world.settle()
    assert place() == (1, "A")
    world.server.delete(first)
    world.settle()
    assert entry.granted
    assert places == [(entry.node, 2)], "it is told once for each node"


@pytest.mark.parametrize(("tidy", "left"), [(True, False), (False, True)])
def test_the_release_of_a_tidy_lock_removes_its_path(world: World, tidy: bool, left: bool) -> None:
    entry = world.entry()
    entry.tidy = tidy or entry.tidy
    client = world.clients[0]
    client.acquire(entry).start()
    world.settle()
    client.attempt(partial(lock_recipe.leave, entry)).start()
    world.settle()
    assert (PATH in world.server.tree.nodes) is left


def test_a_tidy_contender_that_was_not_granted_leaves_the_path(world: World) -> None:
    entry = world.entry()
    entry.tidy = True
    attempt = world.clients[0].acquire(entry).start()
    assert attempt.cancel()
    world.settle()
    assert world.queue == []
    assert PATH in world.server.tree.nodes


# Among kazoo's names.


@pytest.fixture
def kazoos() -> World:
    return World(naming=names.Naming.KAZOO)


@pytest.mark.parametrize("kind", [names.Kind.EXCLUSIVE, names.Kind.READ, names.Kind.WRITE])
@pytest.mark.parametrize("patient", [True, False])
def test_names_that_kazoo_does_not_see_are_refused(
    kazoos: World, kind: names.Kind, patient: bool
) -> None:
    stranger = kazoos.server.create(CURATOR, b"", PERSISTENT)
    contender = kazoos.start(kind=kind, patient=patient)
    kazoos.settle()
    assert isinstance(contender.outcome, MixedNames)
    assert [f"{PATH}/{name}" for name in kazoos.queue] == [stranger]


def test_a_waiter_that_comes_to_see_such_a_name_leaves(kazoos: World) -> None:
    first, second = (str(kazoos.server.create(KAZOO, b"", PERSISTENT)) for _ in range(2))
    waiter = kazoos.start()
    kazoos.settle()
    stranger = kazoos.server.create(CURATOR, b"", PERSISTENT)
    kazoos.server.delete(second)
    kazoos.settle()
    assert isinstance(waiter.outcome, MixedNames)
    assert {f"{PATH}/{name}" for name in kazoos.queue} == {first, stranger}


# Under faults of every kind.


class Faults(Network):
    """Contenders of three clients on one lock, while everything goes wrong that can.

    Checked after every step: no two hold who must not, and tokens only grow. Checked in the end,
    when nothing fails any more: everybody who still waits gets the lock, in turn, and nothing is
    left behind.
    """

    contenders: Bundle[Contender] = Bundle("contenders")
    NAMING: ClassVar[names.Naming] = names.Naming.CURATOR

    def __init__(self) -> None:
        super().__init__()
        self.world = World(CLIENTS, made=False, naming=self.NAMING)
        self.all: list[Contender] = []
        self.foreign: list[str] = []
        self.judged = 0
        self.strange = False

    @property
    def server(self) -> Server:
        return self.world.server

    @property
    def clients(self) -> list[Client]:
        return self.world.clients

    # What callers do.

    @rule(
        target=contenders,
        client=which,
        patient=st.sampled_from([True, True, True, False]),
        kind=st.sampled_from([names.Kind.EXCLUSIVE] * 4 + [names.Kind.READ, names.Kind.WRITE]),
        interrupt=st.sampled_from([None] * 9 + [0]),
    )
    def start(self, client: int, patient: bool, kind: names.Kind, interrupt: int | None) -> Any:
        if len(self.all) >= 8:
            return multiple()
        contender = self.world.contender(client, patient=patient, kind=kind)
        self.all.append(contender)
        self.interruptible(contender, interrupt, contender.attempt.start)
        return contender

    @rule(contender=contenders, interrupt=st.sampled_from([None] * 5 + [0, 1]))
    def cancel(self, contender: Contender, interrupt: int | None) -> None:
        contender.gave_up = True
        self.interruptible(contender, interrupt, contender.attempt.cancel)

    @rule(contender=contenders)
    def give_up_in_the_middle_of_the_next_step(self, contender: Contender) -> None:
        """As if from another thread, which gets in between."""
        contender.gave_up = True
        contender.client.on_batch = contender.attempt.cancel

    @rule(contender=contenders, interrupt=st.sampled_from([None] * 5 + [0]))
    def release(self, contender: Contender, interrupt: int | None) -> None:
        grant = contender.outcome
        if isinstance(grant, FakeGrant) and not grant.over:
            self.interruptible(contender, interrupt, partial(contender.client.release, grant))

    def interruptible(self, contender: Contender, after: int | None, call: Any) -> None:
        """Call, with a KeyboardInterrupt after so many batches."""
        contender.client.interrupt_in = after
        try:
            call()
        except KeyboardInterrupt:
            contender.interrupted = True
        contender.client.interrupt_in = None

    # What others do.

    @rule(java=st.booleans())
    def foreign_contender(self, java: bool) -> None:
        prefix = CURATOR if java and self.NAMING is names.Naming.CURATOR else KAZOO
        path = self.server.create(prefix, b"", PERSISTENT)
        if isinstance(path, str):
            self.foreign.append(path)

    @rule()
    def foreign_contender_leaves(self) -> None:
        if self.foreign:
            self.server.delete(self.foreign.pop(0))

    @rule(number=st.integers(0, 7))
    def operator_deletes(self, number: int) -> None:
        queue = self.world.queue
        if number < len(queue):
            self.server.delete(f"{PATH}/{queue[number]}")
        else:
            self.server.delete(PATH)

    @rule(number=st.integers(0, 7))
    def operator_writes(self, number: int) -> None:
        queue = self.world.queue
        if number < len(queue):
            self.server.commit(Written(f"{PATH}/{queue[number]}", b"x"))

    @rule(strange=st.sampled_from([False] * 5 + [True]))
    def operator_makes_the_path(self, strange: bool) -> None:
        self.server.make_path(f"{PATH}/readme" if strange else PATH)
        self.strange = self.strange or strange

    @rule(
        counter=st.sampled_from(
            [names.RENEW_AT - 2, names.RENEW_AT, names.EXHAUSTED_AT - 2, 2**31 - 3, -(2**31), -3]
        )
    )
    def count(self, counter: int) -> None:
        """Wear the parent's numbers out; they go back only when it is made anew."""
        parent = self.server.tree.nodes.get(PATH)
        if parent is not None and counter & 0xFFFFFFFF > parent.counter & 0xFFFFFFFF:
            self.world.count_to(counter)

    # What must hold.

    @invariant()
    def nobody_holds_with_another(self) -> None:
        standing = [grant for grant in self.server.grants if grant.stands]
        for one, other in combinations(standing, 2):
            assert not names.blocks(one.kind, other.kind), (one, other)

    @invariant()
    def tokens_grow(self) -> None:
        grants = self.server.grants
        for count in range(self.judged, len(grants)):
            grant = grants[count]
            for before in grants[:count]:
                if grant.stood and before.stood and names.blocks(before.kind, grant.kind):
                    assert before.token < grant.token
        self.judged = len(grants)

    @invariant()
    def no_worn_out_number_is_granted(self) -> None:
        for grant in self.server.grants:
            assert 0 <= grant.token.sequence < names.EXHAUSTED_AT

    @invariant()
    def nothing_is_torn_apart_but_by_an_interrupt(self) -> None:
        for contender in self.all:
            if isinstance(contender.outcome, SequenceExhausted):
                assert self.strange
            elif isinstance(contender.outcome, BaseException):
                assert isinstance(contender.outcome, KeyboardInterrupt)
                assert contender.interrupted

    def teardown(self) -> None:
        """Nothing fails from here on."""
        for path in self.foreign:
            self.server.delete(path)
        self.server.bury()
        for client in self.world.clients:
            client.interrupt_in = client.on_batch = None
        while True:
            self.world.settle()
            self.nobody_holds_with_another()
            self.tokens_grow()
            self.no_worn_out_number_is_granted()
            self.nothing_is_torn_apart_but_by_an_interrupt()
            held = [grant for grant in self.server.grants if grant.stands]
            if not held:
                break
            held[0].client.release(held[0])
        for contender in self.all:
            assert not contender.waits, "left waiting for a free lock"
            if contender.outcome is None:
                assert contender.gave_up or not contender.entry.patient
        assert self.world.queue in ([], ["readme"]), "a contender was left behind"
        assert [client.attempts for client in self.world.clients] == [0] * CLIENTS


class FaultsAmongKazoosNames(Faults):
    """The same with names that kazoo sees."""

    NAMING = names.Naming.KAZOO


TestFaults = Faults.TestCase
TestFaultsAmongKazoosNames = FaultsAmongKazoosNames.TestCase


def test_a_contender_is_named_by_a_random_uuid() -> None:
    texts = [lock_recipe.random_uuid() for _ in range(256)]
    assert len(set(texts)) == len(texts)
    for text in texts:
        found = UUID(text)
        assert (str(found), found.version, found.variant) == (text, 4, RFC_4122)
    assert {text[19] for text in texts} == set("89ab")


# One answer after another.

ME = f"{PATH}/{names.prefix(names.Kind.EXCLUSIVE, 'u')}0000000004"
OTHER, DENIED = (failure(why, PATH) for why in (Failure.OTHER, Failure.DENIED))


class NotToBeMade(lock_recipe.Entry):
    def before_making(self) -> Recipe[Any]:
        return steps.ask((Read(PATH),))


class Marked(lock_recipe.Entry):
    def before_leaving(self) -> Recipe[Any]:
        return steps.ask((Read(PATH),))


def lone(kind: type[lock_recipe.Entry] = lock_recipe.Entry, **state: Any) -> lock_recipe.Entry:
    return kind(PATH, b"me", names.Kind.EXCLUSIVE, new_uuid=lambda: "u", **state)


def test_a_grant_is_given_back_by_deleting_the_node() -> None:
    recipe: Any = lock_recipe.acquire(lone())
    next(recipe)
    listing = Listing([ME.rpartition("/")[2]], 7)
    claim = recipe.send((Node(ME, b"me", 1, True), listing))
    assert claim == Claim(ME, FencingToken(7, 4), claim.release)
    assert next(claim.release()) == (Delete(ME),)


def test_a_create_that_is_not_permitted_is_not_looked_for() -> None:
    recipe: Any = lock_recipe.acquire(lone())
    next(recipe)
    with pytest.raises(AccessDenied):
        recipe.send((DENIED, DENIED))


def test_a_create_that_has_failed_in_another_way_is_looked_for() -> None:
    recipe: Any = lock_recipe.acquire(lone())
    next(recipe)
    assert recipe.send((OTHER, OTHER)) == (Sync(PATH), List(PATH))


def test_a_path_that_is_not_to_be_made_is_not() -> None:
    world = World(made=False)
    attempt = world.clients[0].acquire(lone(NotToBeMade))
    attempt.start()
    world.settle()
    with pytest.raises(ZkLockError, match="no such node"):
        attempt.result()
    assert PATH not in world.server.tree.nodes


def test_a_node_goes_whose_mark_may_not_be_removed() -> None:
    """Others wait behind it."""
    recipe: Any = lock_recipe.leave(lone(Marked, node=ME))
    assert next(recipe) == (Read(PATH),)
    assert recipe.send((DENIED.for_another(),)) == (Delete(ME),)
    with pytest.raises(AccessDenied):
        recipe.send((None,))
