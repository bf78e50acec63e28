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
    sent,
)
from tests.unit import contending
from tests.unit.contending import Contender
from tests.unit.exchange import Returns, Said, Table, cases, exchanged
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
    Wait,
    Wakeup,
    Watch,
)
from zklock.errors import AccessDenied, MixedNames, SequenceExhausted, ZkLockError

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

KIND = names.Kind.EXCLUSIVE
PREFIX = f"{PATH}/{names.prefix(KIND, 'u')}"
ME = f"{PREFIX}0000000004"
OTHER, DENIED, MISSING = (failure(Failure[why], PATH) for why in ("OTHER", "DENIED", "MISSING"))
FIRST = (Create(PREFIX, b"me", 1), List(PATH))
MADE = (*steps.makes(PATH), *FIRST)
SOUGHT = (Sync(PATH), List(PATH))
ABANDONS = AbandonCreate(PATH, "u")
WORN = f"{PREFIX}{names.EXHAUSTED_AT}"
UNSEEN: Said = [FIRST, (Node(ME, b"me", 1, True), MISSING), (List(PATH),), (MISSING,)]
SEEN = (Create(f"{PATH}/{names.prefix(KIND, 'u', names.Naming.KAZOO)}", b"me", 1), List(PATH))
MINE = Node(f"{SEEN[0].prefix}0000000004", b"me", 1, True)
OLDER, FOREIGN = [f"{KAZOO}{number:010d}" for number in range(2)], f"{CURATOR}0000000003"
GONE: Said = [(Delete(ME),), (None,)]


class Reading(lock_recipe.Entry):
    """Reads something before it makes its path, and before it leaves; syncs after it has left."""

    def before_making(self) -> Recipe[Any]:
        return steps.ask((Read(PATH),))

    before_leaving = before_making

    def after_leaving(self) -> Recipe[Any]:
        return steps.ask((Sync(PATH),))


def lone(kind: type[lock_recipe.Entry] = lock_recipe.Entry, **state: Any) -> lock_recipe.Entry:
    return kind(PATH, b"me", names.Kind.EXCLUSIVE, new_uuid=lambda: "u", asked=1, **state)


def acquire(**state: Any) -> Any:
    return lock_recipe.acquire(lone(**state))


def leave(**state: Any) -> Any:
    return lock_recipe.leave(lone(**state))


def queue(*nodes: str) -> Listing:
    return Listing([node.rpartition("/")[2] for node in nodes], 7)


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
    "its path is deleted before the listing": (acquire, [*UNSEEN, FIRST]),
    "its path is deleted as its numbers have run out": (
        acquire,
        [
            *(FIRST, (Node(WORN, b"me", 1, True), MISSING), (List(PATH),), (MISSING,)),
            *((Delete(WORN), Delete(PATH)), (MISSING, MISSING), (List(PATH),), (MISSING,), FIRST),
        ],
    ),
    "a name that kazoo does not see": (
        partial(acquire, naming=names.Naming.KAZOO),
        [SEEN, (MINE, queue(FOREIGN, MINE.path)), (Delete(MINE.path),), (None,), MixedNames],
    ),
    "a name that kazoo does not see, as it waits": (
        partial(acquire, naming=names.Naming.KAZOO),
        [
            *(SEEN, (MINE, queue(*OLDER, MINE.path)), (Watch(OLDER[1]), Watch(MINE.path))),
            *((Node(OLDER[1], b"", 2, False), MINE), Wait(OLDER[1], MINE.path)),
            *(Wakeup.BLOCKER_GONE, (List(PATH),), (queue(OLDER[0], MINE.path, FOREIGN),)),
            *((Delete(MINE.path),), (None,), MixedNames),
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
            *((Read(PATH),), (None,), SOUGHT, (None, MISSING), ABANDONS, None),
            *((Sync(PATH),), (None,), ZkLockError),
        ],
    ),
    "a withdrawal that is given up goes on, and says so": (
        partial(leave, node=ME),
        [(Delete(ME),), Cancelled(), *GONE, Cancelled],
    ),
    "a withdrawal of what is gone says so": (
        partial(leave, node=ME),
        [(Delete(ME),), (MISSING,), Returns(False)],
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
        [(Read(PATH),), (DENIED.for_another(),), *GONE, (Sync(PATH),), (None,), AccessDenied],
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


def test_data_may_change_while_the_create_is_under_way() -> None:
    entry = lone()
    recipe: Any = lock_recipe.acquire(entry)
    next(recipe)
    entry.data = b"changed"
    assert isinstance(recipe.send((Node(ME, b"me", 1, True), queue(ME))), Claim)
