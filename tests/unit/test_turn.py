"""The decision of the lock recipe: its truth table, and its proof by all small queues."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations, product

import pytest

from zklock._recipes.effects import Wakeup
from zklock._recipes.names import Kind, Name, Standing, blocks
from zklock._recipes.turn import Decision, decide

TAKE, LOOK = Decision.TAKE_TURN, Decision.LOOK
PASS, LEAVE, ANEW = Decision.PASS, Decision.LEAVE, Decision.QUEUE_AGAIN
OTHERS = set(Kind) - {Kind.READ, Kind.WRITE}
COLUMNS: list[tuple[set[Kind], bool]] = [
    ({Kind.READ}, True),
    ({Kind.READ}, False),
    ({Kind.WRITE}, True),
    ({Kind.WRITE}, False),
    (OTHERS, True),
    (OTHERS, False),
]
TABLE: dict[Wakeup | None, list[Decision]] = {
    # nearest: a reader    a writer    of any other kind
    #   sole: yes   no     yes   no     yes   no
    None: [LOOK, LOOK, LOOK, LOOK, LOOK, LOOK],
    Wakeup.BLOCKER_GONE: [TAKE, LOOK, LOOK, LOOK, TAKE, LOOK],
    Wakeup.HOLDER_GONE: [TAKE, LOOK, TAKE, TAKE, TAKE, TAKE],
    Wakeup.LETS_IN: [PASS, PASS, PASS, PASS, PASS, PASS],
    Wakeup.OWN_GONE: [ANEW, ANEW, ANEW, ANEW, ANEW, ANEW],
    Wakeup.UNWATCHED: [LEAVE, LEAVE, LEAVE, LEAVE, LEAVE, LEAVE],
}
EVENTS: list[Wakeup | None] = [None, *Wakeup]


def name(kind: Kind, number: int) -> Name:
    return Name(number, f"{kind.value}-{number}", kind, number)


@pytest.mark.parametrize("sole", [True, False])
@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("event", EVENTS)
def test_every_event_behind_every_blocker(event: Wakeup | None, kind: Kind, sole: bool) -> None:
    (column,) = (at for at, (kinds, alone) in enumerate(COLUMNS) if kind in kinds and alone is sole)
    assert decide(Standing(name(kind, 0), sole, ahead=1), event) is TABLE[event][column]


@pytest.mark.parametrize("event", EVENTS)
def test_without_a_blocker_it_takes_its_turn(event: Wakeup | None) -> None:
    assert decide(Standing(None, sole=True, ahead=0), event) is TAKE


# The proof, by all queues of up to three contenders before this one.

Queue = tuple[Name, ...]


def queues(me: Kind) -> Iterator[tuple[Queue, list[Name]]]:
    """Yield all that may stand before a contender, and which of them block it, nearest first."""
    for count in range(1, 4):
        for kinds in product([Kind.EXCLUSIVE, Kind.READ, Kind.WRITE], repeat=count):
            queue = tuple(name(kind, number) for number, kind in enumerate(kinds))
            blockers = [each for each in reversed(queue) if blocks(each.kind, me)]
            if blockers:
                yield queue, blockers


def subsets(queue: Queue) -> Iterator[set[Name]]:
    return map(set, chain.from_iterable(combinations(queue, n) for n in range(len(queue) + 1)))


def left_after(event: Wakeup, queue: Queue, nearest: Name) -> Iterator[list[Kind]]:
    """Yield the kinds of who may be left of a queue when the nearest blocker is known to be gone.

    Anybody else may be gone, too. A writer that has gone may have left a reader in its place, if it
    was Curator's; the holder was not. Nobody who blocks the holder was left when it was granted.
    """
    held = event is Wakeup.HOLDER_GONE
    for gone in subsets(queue):
        before = [each for each in queue if each.sequence < nearest.sequence]
        if nearest not in gone:
            continue
        if held and any(blocks(each.kind, nearest.kind) and each not in gone for each in before):
            continue
        writers = tuple(each for each in gone if each.kind is Kind.WRITE)
        for curators in subsets(writers):
            if not (held and (nearest in curators or _granted_despite(curators, nearest))):
                yield [each.kind for each in queue if each not in gone] + [Kind.READ] * len(
                    curators
                )


def _granted_despite(curators: set[Name], holder: Name) -> bool:
    """Whether the holder was granted behind what writers have left: only a reader can be."""
    return holder.kind is not Kind.READ and any(
        each.sequence < holder.sequence for each in curators
    )


GONE = [Wakeup.BLOCKER_GONE, Wakeup.HOLDER_GONE]


@pytest.mark.parametrize("me", [Kind.EXCLUSIVE, Kind.READ, Kind.WRITE])
@pytest.mark.parametrize("event", GONE)
def test_whoever_takes_its_turn_is_blocked_by_nobody(event: Wakeup, me: Kind) -> None:
    turns = 0
    for queue, blockers in queues(me):
        standing = Standing(blockers[0], sole=len(blockers) == 1, ahead=len(blockers))
        if decide(standing, event) is TAKE:
            turns += 1
            for left in left_after(event, queue, blockers[0]):
                assert not any(blocks(kind, me) for kind in left), (queue, left)
    assert turns


@pytest.mark.parametrize("event", GONE)
def test_it_looks_only_where_somebody_may_be_left(event: Wakeup) -> None:
    looks: dict[tuple[Kind, bool], bool] = {}
    for me in Kind:
        for queue, blockers in queues(me):
            case = blockers[0].kind, len(blockers) == 1
            if decide(Standing(blockers[0], case[1], ahead=len(blockers)), event) is LOOK:
                needed = any(
                    blocks(kind, me)
                    for left in left_after(event, queue, blockers[0])
                    for kind in left
                )
                looks[case] = looks.get(case, False) or needed
    assert looks
    assert all(looks.values()), looks
