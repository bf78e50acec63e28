"""The steps of the recipes, one answer after another: what each asks for next, and how it ends."""

from __future__ import annotations

import contextlib
import math
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from tests.fakes import failure
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
    Request,
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
DROPPED, MISSING, DENIED, OTHER = (
    failure(why, PATH) for why in (Failure.DROPPED, Failure.MISSING, Failure.DENIED, Failure.OTHER)
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


def end(recipe: Any, answer: Any) -> Any:
    """Answer, and return what the recipe returns."""
    with pytest.raises(StopIteration) as stop:
        recipe.send(answer)
    return stop.value.value


# To find the node of a create whose reply was lost.


SOUGHT = (Sync(PATH), List(PATH))


@pytest.mark.parametrize("answer", [(OTHER, listing()), (None, OTHER), (MISSING, listing())])
def test_a_search_that_is_refused_says_so_and_not_that_there_is_no_node(answer: Any) -> None:
    search: Any = steps.find(PATH, "u")
    next(search)
    with pytest.raises(ZkLockError):
        search.send(answer)


def test_what_may_not_be_looked_for_is_looked_for_later() -> None:
    search: Any = steps.find(PATH, "u")
    next(search)
    assert search.send((None, DENIED)) == AbandonCreate(PATH, "u")
    with pytest.raises(AccessDenied):
        search.send(None)


@pytest.mark.parametrize("answer", [(DROPPED, listing()), (None, DROPPED), (DROPPED, DROPPED)])
def test_a_search_goes_on_until_the_listing_is_known_to_be_fresh(answer: Any) -> None:
    search: Any = steps.find(PATH, "u")
    assert next(search) == SOUGHT
    assert search.send(answer) == SOUGHT
    assert search.send((None, listing(3))) == (Exists(node(3).path),)
    assert end(search, (node(3),)) == node(3).path


@pytest.mark.parametrize("lost", [DROPPED, MISSING])
def test_a_search_begins_anew_if_it_is_not_known_whose_the_node_is(lost: Any) -> None:
    search: Any = steps.find(PATH, "u")
    next(search)
    search.send((None, listing(3)))
    assert search.send((lost,)) == SOUGHT


def test_a_search_that_may_not_see_whose_the_node_is_says_so() -> None:
    search: Any = steps.find(PATH, "u")
    next(search)
    search.send((None, listing(3)))
    with pytest.raises(ZkLockError):
        search.send((OTHER,))


@pytest.mark.parametrize("looked", [(None, Listing([], EPOCH)), (None, MISSING)])
def test_what_is_not_found_is_disowned(looked: Any) -> None:
    search: Any = steps.find(PATH, "u")
    next(search)
    assert search.send(looked) == AbandonCreate(PATH, "u")
    assert end(search, None) is None


def test_a_node_of_another_session_is_disowned_too() -> None:
    search: Any = steps.find(PATH, "u")
    next(search)
    search.send((None, listing(3)))
    assert search.send((node(3, mine=False),)) == AbandonCreate(PATH, "u")
    assert end(search, None) is None


# A create that is late.


def settled(seconds: float, at: float) -> tuple[list[float], bool]:
    """Return the ages at which it is looked for, and whether the node of this age is deleted."""
    recipe: Any = steps.reap_late_creates(PATH, lambda: ["u"], lambda: seconds)
    ages, age = list[float](), 0.0
    asked = next(recipe)
    with contextlib.suppress(StopIteration):
        while True:
            assert isinstance(asked, Pause)
            age += asked.seconds
            assert recipe.send(None) == SOUGHT
            ages.append(age)
            if age < at:
                asked = recipe.send((None, listing()))
            else:
                recipe.send((None, listing(7)))
                assert recipe.send((node(7),)) == (Delete(node(7).path),)
                end(recipe, (None,))
                return ages, True
    return ages, False


def test_a_late_create_is_looked_for_soon_and_then_at_growing_ages() -> None:
    ages, found = settled(60.0, math.inf)
    assert not found
    assert ages[0] == steps.FIRST_LOOK
    assert ages[-1] >= 60.0
    assert all(after <= max(before + 0.1001, 1.2501 * before) for before, after in pairwise(ages))
    assert len(ages) < 30


@pytest.mark.parametrize("at", [0.0, 0.05, 0.5, 3.0, 20.0, 59.0])
def test_a_late_create_is_deleted_at_the_next_look(at: float) -> None:
    ages, found = settled(60.0, at)
    assert found
    assert ages[-1] <= max(at + 0.1001, 1.2501 * at)


@pytest.mark.parametrize("answer", [(OTHER.for_another(), listing()), (None, DENIED.for_another())])
def test_a_look_for_a_late_create_that_is_refused_is_not_the_last(answer: Any) -> None:
    recipe: Any = steps.reap_late_creates(PATH, lambda: ["u"], lambda: 60.0)
    next(recipe)
    recipe.send(None)
    assert isinstance(recipe.send(answer), Pause)


def test_a_late_create_is_looked_for_once_if_it_is_late_for_no_longer() -> None:
    recipe: Any = steps.reap_late_creates(PATH, lambda: ["u"], lambda: steps.FIRST_LOOK)
    next(recipe)
    assert recipe.send(None) == SOUGHT
    end(recipe, (None, listing()))


@pytest.mark.parametrize("there", [name(7, "v"), name(7)[3:], f"_x_{name(7)[3:]}"])
def test_nothing_but_what_was_disowned_is_deleted(there: str) -> None:
    recipe: Any = steps.reap_late_creates(PATH, lambda: ["u"], lambda: 60.0)
    next(recipe)
    recipe.send(None)
    assert isinstance(recipe.send((None, Listing([there], EPOCH))), Pause)


def test_a_timeout_that_grows_meanwhile_has_a_late_create_looked_for_longer() -> None:
    seconds = [1.0]
    recipe: Any = steps.reap_late_creates(PATH, lambda: ["u"], lambda: seconds[0])
    asked, age = next(recipe), 0.0
    while age < 4.0:
        seconds[0] = 4.0
        age += asked.seconds
        recipe.send(None)
        if age < 4.0:
            asked = recipe.send((None, listing()))
    end(recipe, (None, listing()))


# To delete a node.


def test_a_node_that_is_all_there_is_is_removed() -> None:
    recipe: Any = steps.remove(node(1).path)
    assert next(recipe) == (Delete(node(1).path),)
    assert end(recipe, (None,)) is None


def test_what_is_left_with_the_session_is_not_left_again() -> None:
    search: Any = partial(steps.find, PATH, "u")
    leaving: Any = steps.persist(search)
    next(leaving)
    with pytest.raises(StopIteration):
        leaving.throw(SessionReplaced(None))


def test_who_gives_up_between_two_tries_leaves_and_is_told_so() -> None:
    leaving: Any = steps.persist(partial(steps.overwrite, PATH, b""))
    assert next(leaving) == (Read(PATH),)
    assert leaving.send((OTHER.for_another(),)) == Pause(0.05)
    assert leaving.throw(Cancelled()) == (Read(PATH),)
    with pytest.raises(Cancelled):
        leaving.send((MISSING,))


def test_the_end_of_the_session_between_two_tries_is_the_end_of_it() -> None:
    leaving: Any = steps.persist(partial(steps.overwrite, PATH, b""))
    next(leaving)
    leaving.send((OTHER.for_another(),))
    with pytest.raises(StopIteration):
        leaving.throw(SessionReplaced(None))


DEPART = Transaction((Delete(node(3).path), Write(PATH, b"mark")))


def test_a_deletion_that_is_refused_is_tried_again_alone_after_growing_pauses() -> None:
    deletion: Any = steps.delete(PATH, node(3).path, DEPART)
    assert next(deletion) == (DEPART,)
    for seconds in (0.05, 0.1, 0.2):
        assert deletion.send((OTHER,)) == Pause(seconds)
        assert deletion.send(None) == (Delete(node(3).path),)
    end(deletion, (MISSING,))


def test_a_deletion_whose_write_alone_is_refused_goes_without_it_and_says_so() -> None:
    deletion: Any = steps.delete(PATH, node(3).path, DEPART)
    next(deletion)
    error = AccessDenied("no write")
    alone = deletion.send((Failed(Failure.DENIED, error, node=PATH),))
    assert alone == (Delete(node(3).path),)
    assert deletion.send((DROPPED,)) == alone
    with pytest.raises(AccessDenied) as caught:
        deletion.send((MISSING,))
    assert caught.value is error


def test_a_deletion_whose_reply_is_lost_is_sent_again_as_it_was_without_a_pause() -> None:
    deletion: Any = steps.delete(PATH, node(3).path, DEPART)
    first = next(deletion)
    assert deletion.send((DROPPED,)) == first
    end(deletion, (None,))


@pytest.mark.parametrize(("tidy", "sequence"), [(True, 3), (False, names.RENEW_AT)])
def test_a_deletion_that_is_tried_again_still_takes_the_parent_with_it(
    tidy: bool, sequence: int
) -> None:
    deletion: Any = steps.delete(PATH, node(sequence).path, tidy=tidy)
    both: tuple[Request, ...] = (Delete(node(sequence).path), Delete(PATH))
    assert next(deletion) == both
    assert deletion.send((OTHER, OTHER)) == Pause(0.05)
    assert deletion.send(None) == both
    end(deletion, (None, failure(Failure.NOT_EMPTY, PATH)))


@pytest.mark.parametrize(
    "found", [Node(PATH, b"", 0, False, 5), Node(PATH, b"mark", 0, False), MISSING]
)
def test_a_parent_goes_after_a_deletion_with_a_write_unless_it_is_marked(found: Any) -> None:
    deletion: Any = steps.delete(PATH, node(3).path, DEPART, tidy=True)
    assert next(deletion) == (DEPART,)
    assert deletion.send((None,)) == (Read(PATH),)
    if found is not MISSING and not found.data:
        assert deletion.send((found,)) == (Delete(PATH, 5),)
        found = failure(Failure.CHANGED, PATH)
    end(deletion, (found,))


def test_a_deletion_that_is_not_permitted_is_not_tried_again() -> None:
    deletion: Any = steps.delete(PATH, node(3).path)
    next(deletion)
    with pytest.raises(AccessDenied):
        deletion.send((DENIED,))


# To wait behind a node.


OWN, BLOCKER = node(4), node(3)


def watching(**terms: Any) -> Any:
    return steps.watch(BLOCKER.path, OWN.path, **terms)


def test_a_blocker_that_may_not_be_read_is_watched_in_the_listing() -> None:
    """It would be gone without an event otherwise."""
    recipe = watching()
    assert next(recipe) == (Watch(BLOCKER.path), Watch(OWN.path))
    assert recipe.send((DENIED, OWN)) == (WatchList(PATH), Watch(OWN.path))
    assert recipe.send((listing(3, 4), OWN)) == Wait(PATH, OWN.path)
    assert recipe.send(Wakeup.UNWATCHED) == (WatchList(PATH), Watch(OWN.path))
    assert end(recipe, (listing(4), OWN)) is None


@pytest.mark.parametrize("answer", [(OTHER, OWN), (BLOCKER, OTHER), (BLOCKER, DENIED)])
def test_a_watch_that_is_refused_is_an_error(answer: Any) -> None:
    recipe = watching()
    next(recipe)
    with pytest.raises(ZkLockError):
        recipe.send(answer)


def test_a_listing_in_place_of_the_blocker_that_is_refused_too_is_an_error() -> None:
    recipe = watching()
    next(recipe)
    recipe.send((DENIED, OWN))
    with pytest.raises(AccessDenied):
        recipe.send((DENIED, OWN))


@pytest.mark.parametrize("answer", [(DROPPED, OWN), (BLOCKER, DROPPED)])
def test_a_watch_whose_reply_is_lost_is_set_again(answer: Any) -> None:
    recipe = watching()
    first = next(recipe)
    assert recipe.send(answer) == first
    assert recipe.send((BLOCKER, OWN)) == Wait(BLOCKER.path, OWN.path)


@pytest.mark.parametrize("own", [MISSING, node(4, mine=False)])
def test_a_contender_without_a_node_of_its_own_session_does_not_wait(own: Any) -> None:
    recipe = watching()
    next(recipe)
    assert end(recipe, (BLOCKER, own)) is Wakeup.OWN_GONE


@pytest.mark.parametrize("reads", [False, True])
def test_only_a_reader_is_let_in_by_a_writer_that_has_become_one(reads: bool) -> None:
    downgraded = node(3, data=bytes(NodeData(b"writer", lets_readers_in=True)))
    recipe = watching(reads=reads)
    next(recipe)
    if reads:
        assert end(recipe, (downgraded, OWN)) is Wakeup.LETS_IN
    else:
        assert recipe.send((downgraded, OWN)) == Wait(BLOCKER.path, OWN.path)


# Nodes whose names nobody knows.


ME = parsed(4)
UNKNOWN, LATER = "n_0000000002", "n_0000000005"


def beside(*strange: str) -> Listing:
    return Listing([name(3), name(4), *strange], EPOCH)


def stranger(text: str, owner: int) -> Node:
    return Node(f"{PATH}/{text}", b"", owner, False)


@pytest.mark.parametrize("strange", [(), (LATER,), ("config",)])
def test_who_knows_all_that_stand_before_it_asks_nothing(strange: tuple[str, ...]) -> None:
    assert list(steps.refuse_strangers(PATH, ME, beside(*strange))) == []


def test_an_ephemeral_stranger_before_it_is_refused() -> None:
    recipe: Any = steps.refuse_strangers(PATH, ME, beside(LATER, UNKNOWN))
    assert next(recipe) == (Exists(f"{PATH}/{UNKNOWN}"),)
    with pytest.raises(MixedNames, match=UNKNOWN):
        recipe.send((stranger(UNKNOWN, 9),))


def test_a_stranger_that_stays_is_none() -> None:
    """An entry of a queue, for example."""
    recipe: Any = steps.refuse_strangers(PATH, ME, beside(UNKNOWN))
    next(recipe)
    assert end(recipe, (stranger(UNKNOWN, 0),)) is None


@pytest.mark.parametrize("answer", [MISSING, DROPPED])
def test_a_stranger_that_was_not_seen_is_looked_for_again(answer: Any) -> None:
    """It may have hidden another one."""
    recipe: Any = steps.refuse_strangers(PATH, ME, beside(UNKNOWN))
    asked = next(recipe)
    for _ in range(2):
        assert recipe.send((answer,)) == (List(PATH),)
        assert recipe.send((beside(UNKNOWN),)) == asked
    assert recipe.send((answer,)) == (List(PATH),)
    assert end(recipe, (beside(),)) is None


@pytest.mark.parametrize("answer", [DENIED, OTHER])
def test_who_may_not_see_a_stranger_is_told(answer: Any) -> None:
    recipe: Any = steps.refuse_strangers(PATH, ME, beside(UNKNOWN))
    next(recipe)
    with pytest.raises(type(answer.error)):
        recipe.send((answer,))


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


def test_a_worn_out_parent_is_deleted_when_the_youngest_contender_is_gone() -> None:
    """A waiter for each contender in turn would be woken by each."""
    recipe: Any = steps.renew(PATH, EPOCH)
    youngest = node(4, data=bytes(NodeData(b"writer", lets_readers_in=True)))
    assert next(recipe) == (List(PATH),)
    assert recipe.send((listing(4, 3),)) == (Watch(youngest.path),)
    assert recipe.send((youngest,)) == Wait(youngest.path, None)
    assert recipe.send(Wakeup.BLOCKER_GONE) == (List(PATH),)
    assert recipe.send((listing(),)) == (Delete(PATH),)
    for again in (DROPPED, failure(Failure.NOT_EMPTY, PATH), None):
        assert recipe.send((again,)) == (List(PATH),)
        if again is not None:
            assert recipe.send((listing(),)) == (Delete(PATH),)
    end(recipe, (MISSING,))


def test_a_worn_out_parent_that_may_not_be_deleted_is_an_error() -> None:
    recipe: Any = steps.renew(PATH, EPOCH)
    next(recipe)
    recipe.send((listing(),))
    with pytest.raises(AccessDenied):
        recipe.send((DENIED,))
