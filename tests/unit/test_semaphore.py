"""The semaphore recipe on an in-memory ZooKeeper: step by step, and under faults of every kind."""

from __future__ import annotations

from functools import partial
from typing import Any

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
from zklock._recipes import lock as lock_recipe, names, semaphore, steps
from zklock._recipes.effects import (
    Check,
    Create,
    Delete,
    Exists,
    Failure,
    List,
    Listing,
    Node,
    Read,
    Sync,
    Transaction,
    Wait,
    Wakeup,
    Watch,
    WatchList,
    Write,
)
from zklock._recipes.queries import Contender
from zklock.errors import AccessDenied, LimitMismatch, ZkLockError
from zklock.token import FencingToken

ROOT = "/pool"
LEASES, LOCKS = f"{ROOT}/leases", f"{ROOT}/locks"


class Taker:
    """One acquire, as a caller sees it."""

    def __init__(
        self, client: Client, new: Any, limit: int | None, permits: int, *, patient: bool
    ) -> None:
        self.client = client
        self.entry = semaphore.PermitEntry(
            semaphore.locks(ROOT),
            b"me",
            names.Kind.EXCLUSIVE,
            patient=patient,
            new_uuid=lambda: next(new),
            root=ROOT,
            limit=limit,
            permits=permits,
        )
        self.patient = patient
        self.gave_up = False
        self.attempt: Attempt[Any] = client.attempt(
            partial(lock_recipe.acquire, self.entry),
            recover=lambda: lock_recipe.leave(self.entry),
        )

    @property
    def outcome(self) -> Any:
        return outcome(self.attempt)

    @property
    def waits(self) -> bool:
        return self.outcome is ...

    def give_back(self) -> None:
        grant = self.outcome
        grant.over = True
        self.client.attempt(grant.give_back, recover=grant.give_back).start()


class World:
    """A server, some clients, and the permits that they want."""

    def __init__(self, clients: int = 3) -> None:
        self.server = Server()
        self.clients = [Client(self.server) for _ in range(clients)]
        self.new = uuids()

    def taker(
        self, client: int = 0, limit: int | None = 2, permits: int = 1, *, patient: bool = True
    ) -> Taker:
        return Taker(self.clients[client], self.new, limit, permits, patient=patient)

    def take(self, client: int = 0, limit: int | None = 2, permits: int = 1, **how: Any) -> Taker:
        taker = self.taker(client, limit, permits, **how)
        taker.attempt.start()
        return taker

    def settle(self) -> None:
        settle(self.clients)

    def serve_until_the_turn(self, client: int) -> Client:
        """Answer one client until it asks to leave the queue with its permits; return it."""
        host = self.clients[client]
        while Transaction not in [type(request) for request in host.sent]:
            host.serve()
            host.deliver()
        return host

    def ask(self, recipe: Any, client: int = 0) -> Any:
        """Run a recipe to its end."""
        attempt: Attempt[Any] = self.clients[client].attempt(lambda: recipe).start()
        self.settle()
        return outcome(attempt)

    @property
    def leases(self) -> list[str]:
        return self.server.tree.names(LEASES)

    @property
    def queue(self) -> list[str]:
        return self.server.tree.names(LOCKS)

    @property
    def kept(self) -> bytes:
        return self.server.tree.nodes[ROOT].data

    def keep(self, data: bytes) -> None:
        """Write the limit, as an operator does."""
        self.server.make_path(ROOT)
        self.server.commit(Written(ROOT, data))


@pytest.fixture
def world() -> World:
    return World()


def name_of(path: str | None) -> str:
    assert path is not None
    return path.rpartition("/")[2]


# Permits and their order.


def test_what_a_free_permit_costs(world: World) -> None:
    world.keep(b"2")
    world.server.make_path(LOCKS)
    world.server.make_path(LEASES)
    taker = world.take()
    world.settle()
    assert taker.outcome.stands
    assert sent(world.clients[0]) == [Create, List, Read, Create, List, Transaction]
    assert world.queue == []
    assert world.leases == [name_of(taker.outcome.path)]


def test_several_permits_have_the_greatest_token_and_go_together(world: World) -> None:
    taker = world.take(limit=3, permits=3)
    world.settle()
    numbers = sorted(int(name[-10:]) for name in world.leases)
    assert taker.outcome.token.sequence == numbers[-1]
    assert sorted(int(path[-10:]) for path in taker.outcome.others) == numbers[:-1]
    sent(world.clients[0])
    taker.give_back()
    world.settle()
    assert world.leases == world.queue == []
    assert sent(world.clients[0]) == [Delete] * 3


# Without patience.


def test_an_impatient_contender_hears_of_a_lease_that_leaves_too_few(world: World) -> None:
    world.keep(b"2")
    world.server.make_path(LOCKS)
    world.server.make_path(LEASES)
    other = world.server.create(f"{LOCKS}/_c_other-lock-", b"somebody", PERSISTENT)
    impatient = world.take(1, limit=2, permits=2, patient=False)
    world.settle()
    assert impatient.waits
    assert impatient.entry.behind == "somebody"
    world.server.create(f"{LEASES}/_c_other-lease-", b"", PERSISTENT)
    world.settle()
    assert impatient.outcome is None
    assert [f"{LOCKS}/{name}" for name in world.queue] == [other]


# The limit.


@pytest.mark.parametrize(
    ("data", "limit", "permits", "error", "said"),
    [
        (b"", None, 1, LimitMismatch, "this semaphore has no limit yet"),
        (b"3", 2, 1, LimitMismatch, "the stored limit is 3, not 2"),
        (b"2", 2, 3, LimitMismatch, "3 permits will never be free: the limit is 2"),
        (b"2", None, 3, LimitMismatch, "3 permits will never be free: the limit is 2"),
        (b"x", 2, 1, ZkLockError, "not a semaphore's limit"),
        (b"0", None, 1, ZkLockError, "not a semaphore's limit"),
        (str(names.EXHAUSTED_AT).encode(), None, 1, ZkLockError, "not a semaphore's limit"),
        (b"9" * 5000, None, 1, ZkLockError, "not a semaphore's limit"),
    ],
)
def test_a_limit_that_does_not_fit_is_an_error(
    world: World, data: bytes, limit: int | None, permits: int, error: type, said: str
) -> None:
    world.keep(data)
    taker = world.take(limit=limit, permits=permits)
    world.settle()
    assert [type(taker.outcome)] == [error]
    assert said in str(taker.outcome)
    assert str(taker.outcome).startswith(f"{ROOT}: ")
    assert taker.outcome.path == ROOT
    if error is LimitMismatch:
        assert taker.outcome.kept == (int(data) if data else None)
    assert world.queue == world.leases == []


def test_the_greatest_limit_is_one(world: World) -> None:
    world.keep(str(names.EXHAUSTED_AT - 1).encode())
    taker = world.take(limit=None)
    world.settle()
    assert taker.outcome.stands


def test_a_waiter_that_named_another_limit_leaves_when_it_changes(world: World) -> None:
    world.take(0, limit=1)
    waiting = world.take(1, limit=1)
    world.settle()
    world.ask(semaphore.set_limit(ROOT, 2), 2)
    assert isinstance(waiting.outcome, LimitMismatch)
    assert len(world.leases) == 1
    assert world.queue == []


def test_a_node_that_is_deleted_before_the_turn(world: World) -> None:
    """Another may have counted meanwhile: the permits are given back, and it queues again."""
    taker = world.take()
    world.serve_until_the_turn(0)
    (node,) = world.queue
    world.server.delete(f"{LOCKS}/{node}")
    world.settle()
    assert taker.outcome.stands
    assert taker.outcome.token.sequence == 1
    assert len(world.leases) == 1


def test_permits_of_which_one_is_deleted_before_the_claim_are_made_anew(world: World) -> None:
    taker = world.take(permits=2)
    world.clients[0].refusals = 1
    client = world.serve_until_the_turn(0)
    client.serve()
    client.deliver()
    assert taker.waits
    first, second = sorted(world.leases)
    world.server.delete(f"{LEASES}/{first}")
    world.settle()
    assert taker.outcome.stands
    assert len(world.leases) == 2
    assert not {first, second}.intersection(world.leases)


# Worn-out numbers.


def test_worn_out_permits_are_renewed(world: World) -> None:
    world.keep(b"2")
    world.server.make_path(LEASES)
    world.server.commit(Counted(LEASES, names.EXHAUSTED_AT - 1))
    taker = world.take(permits=2)
    world.settle()
    assert taker.outcome.stands
    assert taker.outcome.token.sequence == 1
    assert len(world.leases) == 2


def test_who_gets_a_worn_out_permit_waits_until_the_last_one_is_given_back(world: World) -> None:
    world.keep(b"2")
    world.server.make_path(LEASES)
    world.server.commit(Counted(LEASES, names.EXHAUSTED_AT - 1))
    holder = world.take(0)
    world.settle()
    assert holder.outcome.token.sequence == names.EXHAUSTED_AT - 1
    late = world.take(1)
    world.settle()
    assert late.waits
    assert len(world.leases) == 1
    holder.give_back()
    world.settle()
    assert late.outcome.token.sequence == 0
    assert late.outcome.token > holder.outcome.token


# ContextExit.


@pytest.mark.parametrize("denied", [Create, List, Read, Transaction, WatchList])
def test_what_is_forbidden_is_an_error_and_leaves_nothing(world: World, denied: type) -> None:
    world.take(0, limit=1)
    world.settle()
    world.server.denied = {denied}
    other = world.take(1, limit=1)
    if denied is Transaction:
        world.server.grants[0].client.delete(world.server.grants[0].path)
    world.settle()
    assert isinstance(other.outcome, AccessDenied)
    assert world.queue == []
    assert len(world.leases) == (denied is not Transaction)


def test_a_permit_that_may_not_be_looked_for_keeps_nothing_else(world: World) -> None:
    entry, client = world.taker(0, permits=2).entry, world.clients[0]
    for path in (LEASES, LOCKS):
        world.server.make_path(path)
    for uuid in ("made", "lost"):  # of the second one, the reply was lost
        lease = lock_recipe.Entry(LEASES, b"me", names.Kind.LEASE, uuid=uuid)
        if uuid == "made":
            lease.node = str(world.server.create(f"{LEASES}/_c_made-lease-", b"", client.session))
        entry._leases.append(lease)
    entry.node = str(world.server.create(f"{LOCKS}/_c_me-lock-", b"", client.session))
    world.server.denied = {List}
    assert isinstance(world.ask(lock_recipe.leave(entry)), AccessDenied)
    assert (world.queue, world.leases) == ([], [])


# Asking.


def test_the_limit_that_is_kept(world: World) -> None:
    assert world.ask(semaphore.limit_of(ROOT)) is None
    world.server.make_path(ROOT)
    assert world.ask(semaphore.limit_of(ROOT)) is None
    assert world.ask(semaphore.set_limit(ROOT, 1)) is None
    assert world.ask(semaphore.limit_of(ROOT)) == 1


@pytest.mark.hazard("H56")
def test_a_limit_that_is_written_late_undoes_no_later_one(world: World) -> None:
    world.keep(b"4")
    world.settle()
    one, other = world.clients[:2]
    one.attempt(partial(semaphore.set_limit, ROOT, 5)).start()
    one.serve()
    one.deliver()
    assert sent(one) == [Read, Write]
    one.lose_connection(late=True)
    assert world.server.tree.nodes[ROOT].data == b"4"
    other.attempt(partial(semaphore.set_limit, ROOT, 6)).start()
    settle([other])
    assert world.kept == b"6"
    one.land()
    assert world.kept == b"6"


def test_a_holder_that_waits_for_one_more_permit_still_holds(world: World) -> None:
    held = world.take(0, limit=1)
    world.settle()
    more = world.take(0, limit=1)
    world.settle()
    shown = world.ask(semaphore.contenders(ROOT), 2)
    assert [(one.path, one.holds) for one in shown] == [
        (held.outcome.path, True),
        (more.entry.node, False),
    ]
    assert world.ask(semaphore.holder(ROOT), 2) == shown[0]


def test_a_permit_beyond_the_limit_is_held_or_being_gathered() -> None:
    def one(who: str, number: int, path: str) -> Contender:
        return Contender(who, number, FencingToken(1, number), number, path, holds=False)

    having = [one("a", 1, LEASES), one("b", 2, LEASES), one("c", 3, LEASES)]
    waiting = [one("c", 3, LOCKS), one("b", 2, LOCKS)]
    assert [(it.identity, it.holds) for it in semaphore.arrange(1, having, waiting)] == [
        ("a", True),
        ("b", True),  # was given before the limit was lowered, and queues once more
        ("c", False),  # has gathered, and is the first in the queue
        ("b", False),
    ]
    assert all(it.token is None for it in semaphore.arrange(1, having, waiting)[2:])


# One answer after another.

OWN, BLOCKER = f"{LOCKS}/_c_me-lock-0000000001", f"{LOCKS}/_c_it-lock-0000000000"
LEAVING = Transaction((Delete(OWN), Check(ROOT, 5)))
DROPPED, MISSING, CHANGED, OTHER = (
    failure(why, ROOT) for why in (Failure.DROPPED, Failure.MISSING, Failure.CHANGED, Failure.OTHER)
)


def node(path: str, data: bytes = b"", *, mine: bool = True, version: int = 0) -> Node:
    return Node(path, data, 1, mine, version)


def entry(*, patient: bool) -> semaphore.PermitEntry:
    return semaphore.PermitEntry(
        LOCKS,
        b"me",
        names.Kind.EXCLUSIVE,
        patient=patient,
        node=OWN,
        root=ROOT,
        limit=None,
        permits=1,
    )


def begun(recipe: Any, first: Any) -> Any:
    """Return the recipe, which asks for this first."""
    assert next(recipe) == first
    return recipe


def end(recipe: Any, answer: Any) -> Any:
    """Answer, and return what the recipe returns."""
    with pytest.raises(StopIteration) as stop:
        recipe.send(answer)
    return stop.value.value


class Impatient:
    """One that waits behind another while permits are idle."""

    BATCH = (Watch(BLOCKER), Watch(OWN), WatchList(LEASES), Read(ROOT))
    SLEEP = Wait(BLOCKER, OWN, beside=LEASES)
    IDLE = (node(BLOCKER, mine=False), node(OWN), MISSING, node(ROOT, b"1"))

    def __init__(self) -> None:
        self.recipe = begun(
            entry(patient=False).wait_behind(BLOCKER, reads=False, sole=True), self.BATCH
        )

    def idle_but(self, place: int, result: Any) -> tuple[Any, ...]:
        return (*self.IDLE[:place], result, *self.IDLE[place + 1 :])


@pytest.mark.parametrize("place", range(1, 4))
def test_an_impatient_contender_that_may_not_see_all_but_who_is_before_it_says_so(
    place: int,
) -> None:
    impatient = Impatient()
    with pytest.raises(AccessDenied):
        impatient.recipe.send(impatient.idle_but(place, failure(Failure.DENIED, ROOT)))


@pytest.mark.parametrize("own", [MISSING, node(OWN, mine=False)])
def test_an_impatient_contender_without_a_node_of_its_own_session_does_not_wait(own: Any) -> None:
    impatient = Impatient()
    assert end(impatient.recipe, impatient.idle_but(1, own)) is Wakeup.OWN_GONE


def test_an_impatient_contender_does_not_wait_for_who_is_gone_already() -> None:
    impatient = Impatient()
    assert end(impatient.recipe, impatient.idle_but(0, MISSING)) is None


@pytest.mark.parametrize(
    ("event", "told"), [(Wakeup.BLOCKER_GONE, None), (Wakeup.OWN_GONE, Wakeup.OWN_GONE)]
)
def test_an_impatient_contender_hears_what_is_gone(event: Wakeup, told: Wakeup | None) -> None:
    impatient = Impatient()
    impatient.recipe.send(Impatient.IDLE)
    assert end(impatient.recipe, event) is told


def test_an_impatient_contender_looks_at_the_leases_again_when_they_change() -> None:
    impatient = Impatient()
    impatient.recipe.send(Impatient.IDLE)
    assert impatient.recipe.send(Wakeup.UNWATCHED) == Impatient.BATCH
    taken = impatient.idle_but(2, Listing(["_c_it-lease-0000000000"], 7))
    assert end(impatient.recipe, taken) is Wakeup.UNWATCHED


class Turn:
    """The turn of the first in the queue, who has made its lease."""

    LEASE = "_c_new-lease-0000000003"
    MINE = Listing([LEASE], 7)
    FULL = Listing(["_c_it-lease-0000000002", LEASE], 7)
    WATCHING = (WatchList(LEASES), Watch(OWN), Watch(ROOT))
    SLEEP = Wait(LEASES, OWN, beside=ROOT)
    LIMIT = node(ROOT, b"1", version=5)

    def __init__(self, listing: Listing) -> None:
        mine = entry(patient=True)
        mine.new_uuid = lambda: "new"
        self.recipe = begun(mine.turn(FencingToken(7, 1)), (Read(ROOT),))
        (create, _) = self.recipe.send((self.LIMIT,))
        assert create.prefix == f"{LEASES}/{self.LEASE[:-10]}"
        self.asked = self.recipe.send((node(f"{LEASES}/{self.LEASE}"), listing))


def test_a_turn_that_finds_another_limit_counts_the_leases_again() -> None:
    turn = Turn(Turn.MINE)
    assert turn.asked == (LEAVING,)
    assert turn.recipe.send((CHANGED,)) == (Read(ROOT),)
    assert turn.recipe.send((node(ROOT, b"1", version=6),)) == (List(LEASES),)
    assert turn.recipe.send((Turn.FULL,)) == Turn.WATCHING


@pytest.mark.parametrize("own", [MISSING, node(OWN, mine=False)])
def test_the_wait_for_room_ends_without_a_node_of_its_own_session(own: Any) -> None:
    turn = Turn(Turn.FULL)
    given_back = turn.recipe.send((Turn.FULL, own, Turn.LIMIT))
    assert given_back == (Delete(f"{LEASES}/{Turn.LEASE}"),)
    assert end(turn.recipe, (None,)) is lock_recipe.AGAIN


def test_the_wait_for_room_ends_when_its_node_is_deleted() -> None:
    turn = Turn(Turn.FULL)
    turn.recipe.send((Turn.FULL, node(OWN), Turn.LIMIT))
    assert turn.recipe.send(Wakeup.OWN_GONE) == (Delete(f"{LEASES}/{Turn.LEASE}"),)


class Lost(Turn):
    """A turn whose reply was lost, and that finds its node gone."""

    LOOK = (Sync(ROOT), Read(ROOT))

    def __init__(self) -> None:
        super().__init__(Turn.MINE)
        assert self.recipe.send((DROPPED,)) == self.asked
        assert self.recipe.send((MISSING,)) == self.LOOK


@pytest.mark.parametrize("answer", [(OTHER, Turn.LIMIT), (None, OTHER)])
def test_a_lost_turn_that_cannot_look_at_the_limit_says_so(answer: Any) -> None:
    with pytest.raises(ZkLockError):
        Lost().recipe.send(answer)


@pytest.mark.parametrize("version", [4, 6])
def test_a_lost_turn_that_finds_another_limit_gives_its_permits_back(version: int) -> None:
    """A version that is lower is that of a path that was made anew."""
    lost = Lost()
    given_back = lost.recipe.send((None, node(ROOT, b"1", version=version)))
    assert given_back == (Delete(f"{LEASES}/{Turn.LEASE}"),)


@pytest.mark.parametrize(
    ("make", "answers"),
    [
        (lambda: entry(patient=True).turn(FencingToken(7, 1)), [OTHER]),
        (lambda: entry(patient=True).turn(FencingToken(7, 1)), [MISSING, OTHER]),
        (lambda: limited(entry(patient=True)).turn(FencingToken(7, 1)), [node(ROOT), OTHER]),
        (lambda: semaphore.set_limit(ROOT, 2), [OTHER]),
        (lambda: semaphore.set_limit(ROOT, 2), [MISSING, OTHER]),
        (lambda: semaphore.set_limit(ROOT, 2), [node(ROOT), OTHER]),
        (lambda: semaphore.limit_of(ROOT), [OTHER]),
    ],
)
def test_a_limit_that_cannot_be_read_or_written_is_an_error(make: Any, answers: list[Any]) -> None:
    recipe = make()
    next(recipe)
    for answer in answers[:-1]:
        recipe.send((answer,))
    with pytest.raises(ZkLockError):
        recipe.send((answers[-1],))


@pytest.mark.parametrize("root", [MISSING, node(ROOT)])
def test_a_path_is_not_made_where_nobody_has_set_a_limit(root: Any) -> None:
    taker = entry(patient=True)
    recipe: Any = lock_recipe.acquire(taker)
    next(recipe)
    assert recipe.send((MISSING, MISSING)) == (Read(ROOT),)
    with pytest.raises(LimitMismatch, match="no limit yet"):
        recipe.send((root,))


def test_a_path_is_made_where_a_limit_is_set() -> None:
    recipe: Any = lock_recipe.acquire(entry(patient=True))
    next(recipe)
    assert recipe.send((MISSING, MISSING)) == (Read(ROOT),)
    *made, create, look = recipe.send((node(ROOT, b"2"),))
    assert (tuple(made), type(create), look) == (steps.makes(LOCKS), Create, List(LOCKS))


def test_a_turn_without_a_limit_is_an_error_and_a_missing_root_is_made() -> None:
    recipe = begun(entry(patient=True).turn(FencingToken(7, 1)), (Read(ROOT),))
    assert recipe.send((MISSING,)) == (*steps.makes(ROOT), Exists(ROOT))
    assert recipe.send((None, None, node(ROOT))) == (Read(ROOT),)
    with pytest.raises(LimitMismatch, match="no limit yet"):
        recipe.send((node(ROOT),))


def limited(one: semaphore.PermitEntry) -> semaphore.PermitEntry:
    one.limit = 2
    return one


# Under faults of every kind.

LIMIT = 2


class Faults(Network):
    """Takers of three clients, while everything goes wrong that can.

    Checked after every step: no more permits are out than the limit says. Checked in the end, when
    nothing fails any more: everybody who still waits is served in turn, and nothing is left behind.
    """

    takers: Bundle[Taker] = Bundle("takers")

    def __init__(self) -> None:
        super().__init__()
        self.world = World(CLIENTS)
        self.all: list[Taker] = []

    @property
    def server(self) -> Server:
        return self.world.server

    @property
    def clients(self) -> list[Client]:
        return self.world.clients

    @rule(
        target=takers,
        client=which,
        patient=st.sampled_from([True, True, False]),
        permits=st.integers(1, LIMIT),
    )
    def take(self, client: int, patient: bool, permits: int) -> Any:
        if len(self.all) >= 6:
            return multiple()
        taker = self.world.take(client, LIMIT, permits, patient=patient)
        self.all.append(taker)
        return taker

    @rule(taker=takers)
    def cancel(self, taker: Taker) -> None:
        taker.gave_up = True
        taker.attempt.cancel()

    @rule(taker=takers)
    def give_back(self, taker: Taker) -> None:
        if isinstance(taker.outcome, FakeGrant) and not taker.outcome.over:
            taker.give_back()

    @rule(number=st.integers(0, 7), of=st.sampled_from([LEASES, LOCKS]))
    def operator_deletes(self, number: int, of: str) -> None:
        nodes = self.server.tree.names(of)
        if number < len(nodes):
            self.server.delete(f"{of}/{nodes[number]}")

    @rule()
    def operator_writes_the_same_limit(self) -> None:
        if ROOT in self.server.tree.nodes and self.world.kept:
            self.server.commit(Written(ROOT, self.world.kept))

    @invariant()
    def the_limit_is_kept(self) -> None:
        out = sum(
            path in self.server.tree.nodes
            for grant in self.server.grants
            if not grant.over
            for path in (grant.path, *grant.others)
        )
        assert out <= LIMIT

    @invariant()
    def nothing_is_torn_apart(self) -> None:
        for taker in self.all:
            assert not isinstance(taker.outcome, BaseException), taker.outcome

    def teardown(self) -> None:
        """Nothing fails from here on."""
        self.server.bury()
        while True:
            self.world.settle()
            self.the_limit_is_kept()
            self.nothing_is_torn_apart()
            held = [
                taker
                for taker in self.all
                if isinstance(taker.outcome, FakeGrant) and not taker.outcome.over
            ]
            if not held:
                break
            held[0].give_back()
        for taker in self.all:
            assert not taker.waits, "left waiting for a free permit"
            if taker.outcome is None:
                assert taker.gave_up or not taker.patient
        assert self.world.queue == [], "a contender was left behind"
        assert self.world.leases == [], "a permit was left behind"
        assert [client.attempts for client in self.world.clients] == [0] * CLIENTS


TestFaults = Faults.TestCase
