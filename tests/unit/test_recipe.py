"""The lock recipe on an in-memory ZooKeeper: step by step, and under faults of every kind."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from typing import Any, ClassVar
from uuid import RFC_4122, UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.fakes import (
    PERSISTENT,
    Counted,
    FakeGrant,
    Written,
    failure,
    outcome,
    sent,
)
from tests.unit import contending
from tests.unit.contending import Contender
from tests.unit.exchange import Said, Table, cases, exchanged
from tests.unit.network import CLIENTS, which
from zklock._recipes import lock as lock_recipe, names, steps
from zklock._recipes.effects import (
    AbandonCreate,
    Cancelled,
    Claim,
    Create,
    Delete,
    Failure,
    List,
    Listing,
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


class World(contending.World):
    """A server, some clients, and what they want of one lock."""

    def __init__(
        self,
        clients: int = 2,
        *,
        made: bool = True,
        naming: names.Naming = names.Naming.CURATOR,
    ) -> None:
        super().__init__(clients)
        self.naming = naming
        if made:
            self.server.make_path(PATH)

    def entry(self, *, kind: names.Kind = names.Kind.EXCLUSIVE, **terms: Any) -> lock_recipe.Entry:
        terms = {"naming": self.naming, "new_uuid": self.new_uuid, **terms}
        return lock_recipe.Entry(PATH, b"me", kind, **terms)

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
    assert grant.token == FencingToken(world.server.tree.nodes[PATH].czxid, 0)
    assert sent(world.clients[0]) == []


def test_a_handover_from_the_sole_blocker_needs_no_request(world: World) -> None:
    first, second = world.start(0), world.start(1)
    world.settle()
    assert sent(world.clients[1]) == [Create, List, Watch, Watch]
    world.clients[0].release(first.outcome)
    world.settle()
    assert second.outcome.stands
    assert sent(world.clients[1]) == []


def in_line(world: World) -> list[Contender]:
    contenders = [world.start(client) for client in range(len(world.clients))]
    world.settle()
    for client in world.clients:
        client.sent.clear()
    return contenders


def test_a_release_is_one_request_and_wakes_the_next_only() -> None:
    world = World(4)
    contenders = in_line(world)
    world.clients[0].release(contenders[0].outcome)
    world.settle()
    assert [sent(client) for client in world.clients] == [[Delete], [], [], []]
    assert [contender.waits for contender in contenders] == [False, False, True, True]


def test_whoever_gives_up_in_the_middle_wakes_only_the_one_behind() -> None:
    world = World(4)
    contenders = in_line(world)
    contenders[1].attempt.cancel()
    world.settle()
    # The one behind looks again: that its blocker is gone does not make it the first.
    assert [sent(client) for client in world.clients] == [[], [Delete], [List, Watch, Watch], []]
    assert contenders[2].waits


# What is lost, and who asks.


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
    world.server.delete(f"{PATH}/{world.queue[0]}")
    world.server.delete(PATH)
    client.link.advance(2)
    world.settle()
    assert contender.outcome.stands
    assert contender.outcome.token == FencingToken(world.server.tree.nodes[PATH].czxid, 0)


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

    class Tidying(lock_recipe.Entry):
        def before_leaving(self) -> Any:
            steps.append(("before", self.node in world.server.tree.nodes))
            yield from super().before_leaving()

        def after_leaving(self) -> Any:
            steps.append(("after", self.node in world.server.tree.nodes))
            yield from super().after_leaving()

    entry = Tidying(PATH, b"me", names.Kind.EXCLUSIVE)
    world.clients[0].acquire(entry).start()
    world.settle()
    assert world.ask(lock_recipe.leave(entry)) is None
    assert steps == [("before", True), ("after", False)]


def test_a_waiter_knows_how_many_stand_before_it_and_behind_whom(world: World) -> None:
    first, second = (str(world.server.create(CURATOR, data, PERSISTENT)) for data in (b"A", b"B"))
    places: list[tuple[str, int]] = []
    waiter = world.contender(queued=lambda node, ahead: places.append((node, ahead)))
    entry = waiter.entry
    assert (entry.ahead, entry.behind) == (None, "")
    waiter.attempt.start()
    for ahead, behind, gone in ((2, "B", second), (1, "A", first)):
        world.settle()
        assert (entry.ahead, entry.behind) == (ahead, behind)
        world.server.delete(gone)
    world.settle()
    assert entry.granted
    assert places == [(entry.node, 2)], "it is told once for each node"


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
    assert isinstance(kazoos.granted(kind=kind, patient=patient), MixedNames)
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


class Faults(contending.Faults):
    """No two hold who must not, and tokens only grow."""

    contenders = contending.Faults.contenders
    MOST = 8
    NAMING: ClassVar[names.Naming] = names.Naming.CURATOR

    def __init__(self) -> None:
        super().__init__(World(CLIENTS, made=False, naming=self.NAMING))
        self.foreign: list[str] = []
        self.judged = 0
        self.strange = False

    # What callers do.

    @rule(
        target=contenders,
        client=which,
        patient=st.sampled_from([True, True, True, False]),
        kind=st.sampled_from([names.Kind.EXCLUSIVE] * 4 + [names.Kind.READ, names.Kind.WRITE]),
        interrupt=st.sampled_from([None] * 9 + [0]),
    )
    def start(self, client: int, patient: bool, kind: names.Kind, interrupt: int | None) -> Any:
        contender = self.begin(client, patient=patient, kind=kind)
        if isinstance(contender, Contender):
            self.interruptible(contender, interrupt, contender.attempt.start)
        return contender

    @rule(contender=contenders, interrupt=st.sampled_from([None] * 5 + [0, 1]))
    def cancel(self, contender: Contender, interrupt: int | None) -> None:
        contender.gave_up = True
        self.interruptible(contender, interrupt, contender.attempt.cancel)

    @rule(contender=contenders, interrupt=st.sampled_from([None] * 5 + [0]))
    def release(self, contender: Contender, interrupt: int | None) -> None:
        if grant := contender.grant:
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
        self.server.delete("/".join([PATH, *self.world.queue[number : number + 1]]))

    @rule(number=st.integers(0, 7))
    def operator_writes(self, number: int) -> None:
        for name in self.world.queue[number : number + 1]:
            self.server.commit(Written(f"{PATH}/{name}", b"x"))

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
    def all_is_well(self) -> None:
        grants = self.server.grants
        standing = [grant for grant in grants if grant.stands]
        for one, other in combinations(standing, 2):
            assert not names.blocks(one.kind, other.kind), (one, other)
        for count in range(self.judged, len(grants)):
            self.judge(grants[count], grants[:count])
        self.judged = len(grants)
        for contender in self.all:
            if isinstance(contender.outcome, SequenceExhausted):
                assert self.strange
            elif isinstance(contender.outcome, BaseException):
                assert isinstance(contender.outcome, KeyboardInterrupt)
                assert contender.interrupted

    def judge(self, grant: FakeGrant, earlier: list[FakeGrant]) -> None:
        """Fail unless its token grows, and is not worn out."""
        for before in earlier:
            if grant.stood and before.stood and names.blocks(before.kind, grant.kind):
                assert before.token < grant.token
        assert 0 <= grant.token.sequence < names.EXHAUSTED_AT

    def release_one(self) -> bool:
        standing = [grant for grant in self.server.grants if grant.stands]
        for grant in standing[:1]:
            grant.client.release(grant)
        return bool(standing)

    def left(self) -> list[str]:
        return [name for name in self.world.queue if name != "readme"]

    def teardown(self) -> None:
        for path in self.foreign:
            self.server.delete(path)
        super().teardown()


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

PREFIX = f"{PATH}/{names.prefix(names.Kind.EXCLUSIVE, 'u')}"
ME = f"{PREFIX}0000000004"
OTHER, DENIED, MISSING = (failure(Failure[why], PATH) for why in ("OTHER", "DENIED", "MISSING"))
FIRST = (Create(PREFIX, b"me", 1), List(PATH))
MADE = (*steps.makes(PATH), *FIRST)
SOUGHT = (Sync(PATH), List(PATH))
ABANDONS = AbandonCreate(PATH, "u")
GONE: Said = [(Delete(ME),), (None,)]


class Reading(lock_recipe.Entry):
    """Reads something before it makes its path, and before it leaves."""

    def before_making(self) -> Recipe[Any]:
        return steps.ask((Read(PATH),))

    before_leaving = before_making


def lone(kind: type[lock_recipe.Entry] = lock_recipe.Entry, **state: Any) -> lock_recipe.Entry:
    return kind(PATH, b"me", names.Kind.EXCLUSIVE, new_uuid=lambda: "u", asked=1, **state)


def acquire(**state: Any) -> Any:
    return lock_recipe.acquire(lone(**state))


def leave(**state: Any) -> Any:
    return lock_recipe.leave(lone(**state))


EXCHANGES: Table = {
    "given up before anything was sent": (acquire, [FIRST, Cancelled(), Cancelled]),
    "not permitted, and not looked for": (acquire, [FIRST, (DENIED, DENIED), AccessDenied]),
    "failed in another way, and looked for": (acquire, [FIRST, (OTHER, OTHER), SOUGHT]),
    "the listing alone is not permitted": (
        acquire,
        [
            *(FIRST, (Node(ME, b"me", 1, True), DENIED.for_another()), (List(PATH),)),
            *((DENIED.for_another(),), *GONE, AccessDenied),
        ],
    ),
    "a path that may not be made": (
        acquire,
        [
            *(FIRST, (MISSING, MISSING), MADE, (None, None, DENIED, MISSING, MISSING)),
            *(SOUGHT, (None, MISSING), ABANDONS, None, AccessDenied),
        ],
    ),
    "a path that is not to be made": (
        partial(acquire, kind=Reading),
        [
            *(FIRST, (MISSING, MISSING), (Read(PATH),), (MISSING.for_another(),)),
            *((Read(PATH),), (None,), SOUGHT, (None, MISSING), ABANDONS, None, ZkLockError),
        ],
    ),
    "a withdrawal that is given up goes on, and says so": (
        partial(leave, node=ME),
        [(Delete(ME),), Cancelled(), *GONE, Cancelled],
    ),
    "a withdrawal that cannot look tries again after growing pauses": (
        partial(leave, uuid="u"),
        [
            *(SOUGHT, (OTHER, OTHER), Pause(0.05), None, SOUGHT, (OTHER, OTHER), Pause(0.1), None),
            *(SOUGHT, (OTHER, OTHER), Pause(0.2)),
        ],
    ),
    "a node goes whose mark may not be removed, as others wait behind it": (
        partial(leave, kind=Reading, node=ME),
        [(Read(PATH),), (DENIED.for_another(),), *GONE, AccessDenied],
    ),
    "a tidy one that was granted": (
        partial(leave, node=ME, tidy=True, granted=True),
        [(Delete(ME), Delete(PATH))],
    ),
    "a tidy one that was not": (partial(leave, node=ME, tidy=True), [(Delete(ME),)]),
}


@cases(EXCHANGES)
def test_one_answer_after_another(make: Any, said: Said) -> None:
    exchanged(make(), said)


def test_a_grant_is_given_back_by_deleting_the_node() -> None:
    recipe: Any = acquire()
    next(recipe)
    listing = Listing([ME.rpartition("/")[2]], 7)
    claim = recipe.send((Node(ME, b"me", 1, True), listing))
    assert claim == Claim(ME, FencingToken(7, 4), claim.release)
    assert next(claim.release()) == (Delete(ME),)
