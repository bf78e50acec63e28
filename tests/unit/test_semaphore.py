"""The semaphore recipe on an in-memory ZooKeeper: step by step, and under faults of every kind."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest.mock import ANY

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.fakes import PERSISTENT, Written, failure, sent, settle
from tests.unit import contending
from tests.unit.contending import Contender
from tests.unit.exchange import Returns, Said, Table, cases, exchanged
from tests.unit.network import CLIENTS, which
from zklock._recipes import lock as lock_recipe, names, queries, semaphore, steps
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
from zklock.errors import AccessDenied, LimitMismatch, ZkLockError
from zklock.token import FencingToken

ROOT = "/pool"
LEASES, LOCKS = f"{ROOT}/leases", f"{ROOT}/locks"


class World(contending.World):
    """A server, some clients, and the permits that they want."""

    def __init__(self, clients: int = 3) -> None:
        super().__init__(clients)

    def entry(self, limit: int | None = 2, permits: int = 1, **terms: Any) -> Any:
        terms = {"root": ROOT, "new_uuid": self.new_uuid, "limit": limit, **terms}
        kind = names.Kind.EXCLUSIVE
        return semaphore.PermitEntry(semaphore.locks(ROOT), b"me", kind, permits=permits, **terms)

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
        """Make all paths, and write the limit, as an operator does."""
        for path in (LEASES, LOCKS):
            self.server.make_path(path)
        self.server.commit(Written(ROOT, data))


@pytest.fixture
def world() -> World:
    return World()


def test_an_impatient_contender_hears_of_a_lease_that_leaves_too_few(world: World) -> None:
    world.keep(b"2")
    world.server.create(f"{LOCKS}/_c_other-lock-", b"somebody", PERSISTENT)
    impatient = world.start(1, permits=2, patient=False)
    world.settle()
    assert impatient.waits
    assert impatient.entry.behind == "somebody"
    world.server.create(f"{LEASES}/_c_other-lease-", b"", PERSISTENT)
    world.settle()
    assert impatient.outcome is None
    assert len(world.queue) == 1


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
    refused = world.granted(limit=limit, permits=permits)
    assert [type(refused)] == [error]
    assert str(refused).startswith(f"{ROOT}: ")
    assert said in str(refused)
    assert refused.path == ROOT
    if error is LimitMismatch:
        assert refused.kept == (int(data) if data else None)
    assert world.queue == world.leases == []


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
    assert world.kept == b"4"
    other.attempt(partial(semaphore.set_limit, ROOT, 6)).start()
    settle([other])
    assert world.kept == b"6"
    one.land()
    assert world.kept == b"6"


# Errors leave nothing behind.


def test_a_permit_that_may_not_be_looked_for_keeps_nothing_else(world: World) -> None:
    entry, client = world.entry(permits=2), world.clients[0]
    world.keep(b"2")
    for uuid in ("made", "lost"):  # of the second one, the reply was lost
        lease = lock_recipe.Entry(LEASES, b"me", names.Kind.LEASE, uuid=uuid)
        if uuid == "made":
            lease.node = str(world.server.create(f"{LEASES}/_c_made-lease-", b"", client.session))
        entry._leases.append(lease)
    entry.node = str(world.server.create(f"{LOCKS}/_c_me-lock-", b"", client.session))
    world.server.denied = {List}
    assert isinstance(world.ask(lock_recipe.leave(entry)), AccessDenied)
    assert (world.queue, world.leases) == ([], [])


def test_a_holder_that_waits_for_one_more_permit_still_holds(world: World) -> None:
    held, more = world.granted(limit=1), world.start(limit=1)
    world.settle()
    shown = world.ask(semaphore.contenders(ROOT), 2)
    assert [(one.path, one.holds) for one in shown] == [(held.path, True), (more.entry.node, False)]
    assert world.ask(semaphore.holder(ROOT), 2) == shown[0]


def test_a_permit_beyond_the_limit_is_held_or_being_gathered() -> None:
    def one(who: str, number: int, path: str) -> queries.Contender:
        return queries.Contender(who, number, FencingToken(1, number), number, path, holds=False)

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
LEASE = "_c_u-lease-0000000003"
DROPPED, MISSING, CHANGED, OTHER, DENIED = (
    failure(Failure[why], ROOT) for why in ("DROPPED", "MISSING", "CHANGED", "OTHER", "DENIED")
)


def node(path: str, *, mine: bool = True) -> Node:
    return Node(path, b"", 1, mine)


def entry(*, patient: bool = True, limit: int | None = None) -> semaphore.PermitEntry:
    return semaphore.PermitEntry(
        LOCKS,
        b"me",
        names.Kind.EXCLUSIVE,
        patient,
        new_uuid=lambda: "u",
        asked=1,
        node=OWN,
        root=ROOT,
        limit=limit,
        permits=1,
    )


def impatient() -> Any:
    """One that waits behind another while permits are idle."""
    return entry(patient=False).wait_behind(BLOCKER, reads=False, sole=True)


def turn(limit: int | None = None) -> Any:
    """The turn of the first in the queue."""
    return entry(limit=limit).turn(FencingToken(7, 1))


def limited(version: int) -> Node:
    return Node(ROOT, b"1", 0, False, version)


BLOCKS, ANOTHERS = node(BLOCKER, mine=False), node(OWN, mine=False)
LIMIT, UNLIMITED = limited(5), node(ROOT)
LOOKS = (Watch(BLOCKER), Watch(OWN), WatchList(LEASES), Read(ROOT))
TAKEN = (BLOCKS, node(OWN), Listing(["_c_it-lease-0000000000"], 7), LIMIT)
IDLES: Said = [LOOKS, (BLOCKS, node(OWN), MISSING, LIMIT), Wait(BLOCKER, OWN, beside=LEASES)]
IMPATIENT: dict[str, Said] = {
    "may not see its own node": [LOOKS, (BLOCKS, DENIED, MISSING, LIMIT), AccessDenied],
    "may not see the leases": [LOOKS, (BLOCKS, node(OWN), DENIED, LIMIT), AccessDenied],
    "may not see the limit": [LOOKS, (BLOCKS, node(OWN), MISSING, DENIED), AccessDenied],
    "has no node": [LOOKS, (BLOCKS, MISSING, MISSING, LIMIT), Returns(Wakeup.OWN_GONE)],
    "has another's node": [LOOKS, (BLOCKS, ANOTHERS, MISSING, LIMIT), Returns(Wakeup.OWN_GONE)],
    "is behind nobody": [LOOKS, (MISSING, node(OWN), MISSING, LIMIT), Returns()],
    "hears that its blocker goes": [*IDLES, Wakeup.BLOCKER_GONE, Returns()],
    "hears that its node goes": [*IDLES, Wakeup.OWN_GONE, Returns(Wakeup.OWN_GONE)],
    "hears of a lease": [*IDLES, Wakeup.UNWATCHED, LOOKS, TAKEN, Returns(Wakeup.UNWATCHED)],
}

READS, READS_AGAIN = (Read(ROOT),), (Sync(ROOT), Read(ROOT))
ENTERS = (Create(f"{LEASES}/_c_u-lease-", b"me", ANY), List(LEASES))
LEAVES = (Transaction((Delete(OWN), Check(ROOT, 5))),)
WATCHES = (WatchList(LEASES), Watch(OWN), Watch(ROOT))
MINE, FULL = Listing([LEASE], 7), Listing(["_c_it-lease-0000000002", LEASE], 7)
MADE: Said = [READS, (LIMIT,), ENTERS]
FREE: Said = [*MADE, (node(f"{LEASES}/{LEASE}"), MINE), LEAVES]
WAITS: Said = [*MADE, (node(f"{LEASES}/{LEASE}"), FULL), WATCHES]
LOST: Said = [*FREE, (DROPPED,), LEAVES, (MISSING,), READS_AGAIN]
CLAIMS: Said = [*FREE, (None,), ANY]
LOOKS_AGAIN: Said = [(List(LEASES),), (Listing([], 7),)]
GIVES_BACK: Said = [(Delete(f"{LEASES}/{LEASE}"),), (None,), Returns(lock_recipe.AGAIN)]
MOST = names.EXHAUSTED_AT - 1
WORN = f"{LEASES}/_c_u-lease-{names.EXHAUSTED_AT}"
kept = partial(semaphore.limit_of, ROOT)
NO_LIMIT = (*steps.makes(ROOT), Exists(ROOT))
TURNS: dict[str, Said] = {
    "another limit": [
        *(*FREE, (CHANGED,), READS, (limited(6),), (List(LEASES),)),
        *((FULL,), WATCHES),
    ],
    "its node is deleted before its turn": [*FREE, (MISSING,), *GIVES_BACK],
    "a permit is deleted before the claim": [*CLAIMS, None, *LOOKS_AGAIN, *GIVES_BACK],
    "no node as it waits": [*WAITS, (FULL, MISSING, LIMIT), *GIVES_BACK],
    "another's node as it waits": [*WAITS, (FULL, ANOTHERS, LIMIT), *GIVES_BACK],
    "its node is deleted as it waits": [
        *(*WAITS, (FULL, node(OWN), LIMIT), Wait(LEASES, OWN, beside=ROOT), Wakeup.OWN_GONE),
        *GIVES_BACK,
    ],
    "lost, without a sync": [*LOST, (OTHER, LIMIT), ZkLockError],
    "lost, without a limit": [*LOST, (None, OTHER), ZkLockError],
    "lost, and the path was made anew": [*LOST, (None, limited(4)), *GIVES_BACK],
    "lost, and the limit has changed": [*LOST, (None, limited(6)), *GIVES_BACK],
    "its numbers have run out": [
        *(*MADE, (node(WORN), Listing([WORN.rpartition("/")[2]], 7)), (Delete(WORN), ANY)),
        *((None, None), (List(LEASES),), (Listing([], 7),), (Delete(LEASES),), (None,)),
        *((List(LEASES),), (MISSING,), Returns(lock_recipe.AGAIN)),
    ],
    "it may not leave the queue": [*FREE, (DENIED,), AccessDenied],
    "the limit cannot be read": [READS, (OTHER,), ZkLockError],
    "the path cannot be made": [READS, (MISSING,), NO_LIMIT, (None, OTHER, MISSING), ZkLockError],
    "a limit is missing": [
        *(READS, (MISSING,), NO_LIMIT, (None, None, UNLIMITED), READS),
        *((UNLIMITED,), LimitMismatch),
    ],
}
CREATES = (Create(f"{LOCKS}/_c_u-lock-", b"me", 1), List(LOCKS))
ASKS: Said = [CREATES, (MISSING, MISSING), READS]
OTHERS: Table = {
    "a limit that cannot be set": (
        partial(turn, 2),
        [READS, (UNLIMITED,), (Write(ROOT, b"2", 0),), (OTHER,), ZkLockError],
    ),
    "a limit that cannot be overwritten": (
        partial(semaphore.set_limit, ROOT, 2),
        [READS, (UNLIMITED,), (Write(ROOT, b"2", 0),), (OTHER,), ZkLockError],
    ),
    "a limit that may not be looked at before it is set": (
        partial(semaphore.set_limit, ROOT, 2),
        [READS, (OTHER,), ZkLockError],
    ),
    "a limit whose path cannot be looked at": (
        partial(semaphore.set_limit, ROOT, 2),
        [READS, (MISSING,), NO_LIMIT, (None, None, OTHER), ZkLockError],
    ),
    "its limit changes as it waits": (
        partial(turn, 1),
        [*WAITS, (FULL, node(OWN), Node(ROOT, b"2", 0, False, 6)), LimitMismatch],
    ),
    "the limit": (kept, [READS, (LIMIT,), Returns(1)]),
    "the greatest limit": (kept, [READS, (Node(ROOT, b"%d" % MOST, 0, False),), Returns(MOST)]),
    "a limit that nobody has set": (kept, [READS, (UNLIMITED,), Returns()]),
    "a limit without a path": (kept, [READS, (MISSING,), Returns()]),
    "a limit that cannot be read": (kept, [READS, (OTHER,), ZkLockError]),
    "no path is made where nobody has set a limit": (
        lambda: lock_recipe.acquire(entry()),
        [*ASKS, (MISSING,), LimitMismatch],
    ),
    "nor where the limit is empty": (
        lambda: lock_recipe.acquire(entry()),
        [*ASKS, (UNLIMITED,), LimitMismatch],
    ),
    "a path is made where a limit is set": (
        lambda: lock_recipe.acquire(entry()),
        [*ASKS, (LIMIT,), (*steps.makes(LOCKS), *CREATES)],
    ),
}


@cases(
    {
        **{f"impatient: {name}": (impatient, said) for name, said in IMPATIENT.items()},
        **{f"turn: {name}": (turn, said) for name, said in TURNS.items()},
        **OTHERS,
    }
)
def test_one_answer_after_another(make: Any, said: Said) -> None:
    exchanged(make(), said)


# Under faults of every kind.

LIMIT_OF_ALL = 2


class Faults(contending.Faults):
    """No more permits are out than the limit says."""

    contenders = contending.Faults.contenders
    MOST = 6

    def __init__(self) -> None:
        super().__init__(World(CLIENTS))

    @rule(
        target=contenders,
        client=which,
        patient=st.sampled_from([True, True, False]),
        permits=st.integers(1, LIMIT_OF_ALL),
    )
    def take(self, client: int, **terms: Any) -> Any:
        contender = self.begin(client, limit=LIMIT_OF_ALL, **terms)
        if isinstance(contender, Contender):
            contender.attempt.start()
        return contender

    @rule(contender=contenders)
    def cancel(self, contender: Contender) -> None:
        contender.gave_up = True
        contender.attempt.cancel()

    @rule(contender=contenders)
    def give_back(self, contender: Contender) -> None:
        if contender.grant:
            contender.give_back()

    @rule(number=st.integers(0, 7), of=st.sampled_from([LEASES, LOCKS]))
    def operator_deletes(self, number: int, of: str) -> None:
        for name in self.server.tree.names(of)[number : number + 1]:
            self.server.delete(f"{of}/{name}")

    @rule()
    def operator_writes_the_same_limit(self) -> None:
        if ROOT in self.server.tree.nodes and self.world.kept:
            self.server.commit(Written(ROOT, self.world.kept))

    @invariant()
    def all_is_well(self) -> None:
        out = sum(
            path in self.server.tree.nodes
            for grant in self.server.grants
            if not grant.over
            for path in (grant.path, *grant.others)
        )
        assert out <= LIMIT_OF_ALL
        for contender in self.all:
            assert not isinstance(contender.outcome, BaseException), contender.outcome

    def release_one(self) -> bool:
        holding = [contender for contender in self.all if contender.grant]
        for contender in holding[:1]:
            contender.give_back()
        return bool(holding)

    def left(self) -> list[str]:
        return [*self.world.queue, *self.world.leases]


TestFaults = Faults.TestCase
