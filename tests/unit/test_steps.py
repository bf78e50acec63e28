"""The steps of the recipes, one answer after another: what each asks for next, and how it ends."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from tests.fakes import failure
from tests.unit.exchange import Returns, Said, Table, answered, cases, exchanged
from zklock._recipes import names, steps
from zklock._recipes.effects import (
    AbandonCreate,
    Cancelled,
    Delete,
    Exists,
    Failed,
    Failure,
    List,
    Listing,
    Node,
    Pause,
    Read,
    SessionReplaced,
    Sync,
    Transaction,
    Wait,
    Wakeup,
    Watch,
    WatchList,
    Write,
)
from zklock._recipes.nodedata import NodeData
from zklock.errors import AccessDenied, MixedNames, ZkLockError

PATH = "/locks/report"
EPOCH = 7
DROPPED, MISSING, DENIED, NOT_EMPTY, CHANGED, OTHER = (
    failure(Failure[why], PATH)
    for why in ("DROPPED", "MISSING", "DENIED", "NOT_EMPTY", "CHANGED", "OTHER")
)


def name(sequence: int, uuid: str = "u") -> str:
    return f"{names.prefix(names.Kind.EXCLUSIVE, uuid)}{sequence:010d}"


def node(sequence: int, *, mine: bool = True, data: bytes = b"") -> Node:
    return Node(f"{PATH}/{name(sequence)}", data, 1, mine)


def listing(*sequences: int) -> Listing:
    return Listing([name(sequence) for sequence in sequences], EPOCH)


def parsed(sequence: int) -> names.Name:
    found = names.parse(name(sequence))
    assert found is not None
    return found


# To find the node of a create whose reply was lost, or that comes late.

SOUGHT = (Sync(PATH), List(PATH))
LOOKS: Said = [SOUGHT, (None, listing(3)), (Exists(node(3).path),)]
FINDS: Said = [*LOOKS, (node(3),), Returns(node(3).path)]
ABANDONS = AbandonCreate(PATH, "u")
find: Any = partial(steps.find, PATH, "u")
SEARCHES: Table = {
    "the sync is refused": (find, [SOUGHT, (OTHER, listing()), ZkLockError]),
    "the listing is refused": (find, [SOUGHT, (None, OTHER), ZkLockError]),
    "nobody has synced": (find, [SOUGHT, (MISSING, listing()), ZkLockError]),
    "it may not look": (find, [SOUGHT, (None, DENIED), ABANDONS, None, AccessDenied]),
    "the sync is lost": (find, [SOUGHT, (DROPPED, listing()), *FINDS]),
    "the listing is lost": (find, [SOUGHT, (None, DROPPED), *FINDS]),
    "all is lost": (find, [SOUGHT, (DROPPED, DROPPED), *FINDS]),
    "the owner is lost": (find, [*LOOKS, (DROPPED,), *FINDS]),
    "the node has gone": (find, [*LOOKS, (MISSING,), *FINDS]),
    "the owner is refused": (find, [*LOOKS, (OTHER,), ZkLockError]),
    "no node": (find, [SOUGHT, (None, listing()), ABANDONS, None, Returns()]),
    "no parent": (find, [SOUGHT, (None, MISSING), ABANDONS, None, Returns()]),
    "another's": (find, [*LOOKS, (node(3, mine=False),), ABANDONS, None, Returns()]),
}


@cases(SEARCHES)
def test_a_search(make: Any, said: Said) -> None:
    exchanged(make(), said)


def reap(seconds: float = 60.0) -> Any:
    return steps.reap_late_creates(PATH, lambda: ["u"], lambda: seconds)


@pytest.mark.parametrize("at", [0.0, 0.05, 0.5, 3.0, 20.0, 59.0, math.inf])
def test_a_late_create_is_looked_for_at_growing_ages_and_deleted_at_the_next(at: float) -> None:
    seconds = [1.0]
    recipe = steps.reap_late_creates(PATH, lambda: ["u"], lambda: seconds[0])
    asked: Any = next(recipe)
    ages = [0.0]
    seconds[0] = 60.0  # the timeout may grow
    while isinstance(asked, Pause):
        ages.append(ages[-1] + asked.seconds)
        assert answered(recipe) == SOUGHT
        if ages[-1] < at:
            asked = answered(recipe, (None, listing()))
        else:
            answered(recipe, (None, listing(7)))
            assert answered(recipe, (node(7),)) == (Delete(node(7).path),)
            asked = answered(recipe, (None,))
    assert asked == Returns()
    assert ages[1] == steps.FIRST_LOOK
    assert min(at, 60.0) <= ages[-1] <= max(at + 0.1001, 1.2501 * at)
    assert all(after <= max(before + 0.1001, 1.2501 * before) for before, after in pairwise(ages))
    assert len(ages) <= 30


@pytest.mark.parametrize(
    "answer",
    [
        (OTHER.for_another(), listing()),
        (None, DENIED.for_another()),
        *(
            (None, Listing([there], EPOCH))
            for there in (name(7, "v"), name(7)[3:], f"_x_{name(7)[3:]}")
        ),
    ],
)
def test_what_is_not_found_by_one_look_is_looked_for_again(answer: Any) -> None:
    exchanged(reap(), [Pause(steps.FIRST_LOOK), None, SOUGHT, answer, Pause(0.1)])


def test_a_late_create_is_looked_for_once_if_it_is_late_for_no_longer() -> None:
    first: Said = [Pause(steps.FIRST_LOOK), None, SOUGHT, (None, listing()), Returns()]
    exchanged(reap(steps.FIRST_LOOK), first)


# To delete a node.

THIS = (Delete(node(3).path),)
DEPART = (Transaction((*THIS, Write(PATH, b"mark"))),)
UNWRITTEN = Failed(Failure.DENIED, AccessDenied("no write"), node=PATH)
delete: Any = partial(steps.delete, PATH, node(3).path)
depart: Any = partial(delete, *DEPART)
overwrite: Any = partial(steps.persist, partial(steps.overwrite, PATH, b""))
READ = (Read(PATH),)


def with_parent(sequence: int) -> Said:
    both = Delete(node(sequence).path), Delete(PATH)
    return [both, (OTHER, OTHER), Pause(0.05), None, both, (None, NOT_EMPTY), Returns()]


DELETIONS: Table = {
    "is done": (partial(steps.remove, node(3).path), [THIS, (None,), Returns()]),
    "ends with the session": (
        partial(steps.persist, find),
        [SOUGHT, SessionReplaced(None), Returns()],
    ),
    "goes on when given up between two tries": (
        overwrite,
        [READ, (OTHER.for_another(),), Pause(0.05), Cancelled(), READ, (MISSING,), Cancelled],
    ),
    "ends with the session between two tries": (
        overwrite,
        [READ, (OTHER.for_another(),), Pause(0.05), SessionReplaced(None), Returns()],
    ),
    "is tried again alone after growing pauses": (
        depart,
        [
            DEPART,
            *((OTHER,), Pause(0.05), None, THIS),
            *((OTHER,), Pause(0.1), None, THIS),
            *((OTHER,), Pause(0.2), None, THIS),
            *((MISSING,), Returns()),
        ],
    ),
    "goes without a write that is refused, and says so": (
        depart,
        [DEPART, (UNWRITTEN,), THIS, (DROPPED,), THIS, (MISSING,), UNWRITTEN.error],
    ),
    "is sent again as it was when the reply is lost": (
        depart,
        [DEPART, (DROPPED,), DEPART, (None,), Returns()],
    ),
    "still takes the parent with it when tidy": (partial(delete, tidy=True), with_parent(3)),
    "still takes a worn-out parent with it": (
        partial(steps.delete, PATH, node(names.RENEW_AT).path),
        with_parent(names.RENEW_AT),
    ),
    "takes a parent without a mark": (
        partial(depart, tidy=True),
        [
            *(DEPART, (None,), READ, (Node(PATH, b"", 0, False, 5),)),
            *((Delete(PATH, 5),), (CHANGED,), Returns()),
        ],
    ),
    "leaves a parent with a mark": (
        partial(depart, tidy=True),
        [DEPART, (None,), READ, (Node(PATH, b"mark", 0, False),), Returns()],
    ),
    "finds no parent": (
        partial(depart, tidy=True),
        [DEPART, (None,), READ, (MISSING,), Returns()],
    ),
    "is not permitted": (delete, [THIS, (DENIED,), AccessDenied]),
}


@cases(DELETIONS)
def test_a_deletion(make: Any, said: Said) -> None:
    exchanged(make(), said)


# To write over what a node says.

NOW = (Write(PATH, b"now", 7),)
SEEN: Said = [READ, (Node(PATH, b"", 1, True, 7),), NOW]
AGAIN: Said = [READ, (DROPPED,), READ, (MISSING,), Returns(False)]
write: Any = partial(steps.overwrite, PATH, b"now")
WRITES: Table = {
    "is for the version that was read": (write, [*SEEN, (None,), Returns(True)]),
    "may be lost": (write, [*SEEN, (DROPPED,), *AGAIN]),
    "comes after another": (write, [*SEEN, (CHANGED,), *AGAIN]),
    "comes too late": (write, [*SEEN, (MISSING,), *AGAIN]),
    "is not permitted": (write, [*SEEN, (DENIED,), AccessDenied]),
    "nor is the look": (write, [READ, (DENIED,), AccessDenied]),
}


@pytest.mark.hazard("H56")
@cases(WRITES)
def test_a_write(make: Any, said: Said) -> None:
    exchanged(make(), said)


# To wait behind a node.

OWN, BLOCKER = node(4), node(3)
WRITER = node(3, data=bytes(NodeData(b"writer", lets_readers_in=True)))
watch: Any = partial(steps.watch, BLOCKER.path, OWN.path)
WATCHING = (Watch(BLOCKER.path), Watch(OWN.path))
LISTING = (WatchList(PATH), Watch(OWN.path))
ASLEEP = Wait(BLOCKER.path, OWN.path)
WAITS: Table = {
    "the blocker may not be read, and is watched in the listing": (
        watch,
        [
            *(WATCHING, (DENIED, OWN), LISTING, (listing(3, 4), OWN)),
            *(Wait(PATH, OWN.path), Wakeup.UNWATCHED, LISTING, (listing(4), OWN), Returns()),
        ],
    ),
    "nor the listing": (watch, [WATCHING, (DENIED, OWN), LISTING, (DENIED, OWN), AccessDenied]),
    "the blocker's watch is refused": (watch, [WATCHING, (OTHER, OWN), ZkLockError]),
    "its own watch is refused": (watch, [WATCHING, (BLOCKER, OTHER), ZkLockError]),
    "its own watch is denied": (watch, [WATCHING, (BLOCKER, DENIED), AccessDenied]),
    "one is lost": (watch, [WATCHING, (DROPPED, OWN), WATCHING, (BLOCKER, OWN), ASLEEP]),
    "its own is lost": (watch, [WATCHING, (BLOCKER, DROPPED), WATCHING, (BLOCKER, OWN), ASLEEP]),
    "its node is gone": (watch, [WATCHING, (BLOCKER, MISSING), Returns(Wakeup.OWN_GONE)]),
    "its node is another session's": (
        watch,
        [WATCHING, (BLOCKER, node(4, mine=False)), Returns(Wakeup.OWN_GONE)],
    ),
    "a writer has become a reader": (watch, [WATCHING, (WRITER, OWN), ASLEEP]),
    "a writer has become a reader, as it is": (
        partial(watch, reads=True),
        [WATCHING, (WRITER, OWN), Returns(Wakeup.LETS_IN)],
    ),
}


@cases(WAITS)
def test_a_wait(make: Any, said: Said) -> None:
    exchanged(make(), said)


# Nodes whose names nobody knows.

UNKNOWN, LATER = "n_0000000002", "n_0000000005"
LOOK = (Exists(f"{PATH}/{UNKNOWN}"),)


def beside(*strange: str) -> Listing:
    return Listing([name(3), name(4), *strange], EPOCH)


def refuse(*strange: str) -> Any:
    return steps.refuse_strangers(PATH, parsed(4), beside(*strange))


def stranger(owner: int) -> Node:
    return Node(f"{PATH}/{UNKNOWN}", b"", owner, False)


def hidden(answer: Any) -> Said:
    """It may have hidden another one."""
    again = [LOOK, (answer,), (List(PATH),), (beside(UNKNOWN),)] * 2
    return [*again, LOOK, (answer,), (List(PATH),), (beside(),), Returns()]


unknown: Any = partial(refuse, UNKNOWN)
STRANGERS: Table = {
    "there is none": (refuse, [Returns()]),
    "it comes later": (partial(refuse, LATER), [Returns()]),
    "it has no number": (partial(refuse, "config"), [Returns()]),
    "it is ephemeral": (partial(refuse, LATER, UNKNOWN), [LOOK, (stranger(9),), MixedNames]),
    "it stays, as an entry of a queue": (unknown, [LOOK, (stranger(0),), Returns()]),
    "it has gone": (unknown, hidden(MISSING)),
    "the reply is lost": (unknown, hidden(DROPPED)),
    "it may not be seen": (unknown, [LOOK, (DENIED,), AccessDenied]),
    "the look fails": (unknown, [LOOK, (OTHER,), ZkLockError]),
}


@cases(STRANGERS)
def test_a_stranger(make: Any, said: Said) -> None:
    exchanged(make(), said)


# Worn-out sequence numbers.


@pytest.mark.parametrize(
    ("sequence", "worn"),
    [(0, False), (names.RENEW_AT - 1, False), (names.RENEW_AT, True), (-1, True), (-(2**31), True)],
)
def test_which_number_wears_a_parent(sequence: int, worn: bool) -> None:
    assert steps.worn(node(sequence).path) is worn


@pytest.mark.parametrize(
    ("mine", "queue", "exhausted"),
    [
        (0, [0], False),
        (names.EXHAUSTED_AT - 1, [names.EXHAUSTED_AT - 1], False),
        (names.EXHAUSTED_AT, [], True),
        (names.EXHAUSTED_AT, [5], True),
        (-1, [], True),
        (-1, [5], True),
        (0, [names.EXHAUSTED_AT], True),
        (0, [0, 1, -1], True),
    ],
)
def test_which_number_takes_no_grant(mine: int, queue: list[int], exhausted: bool) -> None:
    assert steps.exhausted(parsed(mine), listing(*queue)) is exhausted


LISTS = (List(PATH),)
DELETES: Said = [LISTS, (listing(),), (Delete(PATH),)]
RENEWALS: Table = {
    "the youngest contender is waited for, whom no other wakes": (
        partial(steps.renew, PATH, EPOCH),
        [
            *(LISTS, (listing(4, 3),), (Watch(OWN.path),), (node(4, data=WRITER.data),)),
            *(Wait(OWN.path, None), Wakeup.BLOCKER_GONE),
            *(*DELETES, (DROPPED,), *DELETES, (NOT_EMPTY,), *DELETES, (None,)),
            *(LISTS, (MISSING,), Returns()),
        ],
    ),
    "it may not be deleted": (
        partial(steps.renew, PATH, EPOCH),
        [*DELETES, (DENIED,), AccessDenied],
    ),
}


@cases(RENEWALS)
def test_a_renewal(make: Any, said: Said) -> None:
    exchanged(make(), said)
