"""What looks at an election show, and the changes kept for a slow observer."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from zklock._election.changes import Feed
from zklock._election.observe import LeaderChange, ObservedQueue
from zklock._recipes import steps
from zklock._recipes.effects import Listing


def node(number: int) -> str:
    return f"_c_00000000-0000-4000-8000-{number:012d}-latch-{number:010d}"


def seen(*numbers: int, changes: int, epoch: int = 1) -> Listing:
    return Listing([node(number) for number in numbers], epoch, changes)


def looks(*listings: Listing) -> list[bool | None]:
    sight = ObservedQueue()
    return [sight.look(listing) for listing in listings]


@pytest.mark.parametrize(
    ("before", "now", "gap"),
    [
        # The first look, and no news.
        (None, seen(1, 2, changes=2), False),
        (None, seen(changes=9), False),
        (seen(1, changes=1), seen(1, 2, changes=2), None),
        (seen(changes=4), seen(changes=4), None),
        (steps.ABSENT, seen(changes=0), None),
        # Who stood next leads: nobody was in between, whatever else happened.
        (seen(1, 3, changes=2), seen(3, changes=99), False),
        (seen(1, changes=1), seen(2, changes=99), False),
        # One that stood before it has gone, and may have led.
        (seen(1, 2, 3, changes=3), seen(3, changes=5), True),
        (seen(1, 2, changes=2), seen(3, changes=5), True),
        (seen(1, 2, changes=2), seen(changes=4), True),
        # Somebody may have come and gone.
        (seen(1, changes=1), seen(4, changes=3), False),
        (seen(1, changes=1), seen(4, changes=5), True),
        (seen(1, changes=1), seen(changes=2), False),
        (seen(1, changes=1), seen(changes=4), True),
        (seen(changes=2), seen(changes=4), True),
        (seen(changes=2), seen(1, changes=3), False),
        (seen(changes=2), seen(2, changes=5), True),
        (steps.ABSENT, seen(0, changes=1), False),
        (steps.ABSENT, seen(1, changes=3), True),
        # Another parent: nothing is known of the time between.
        (seen(1, changes=2), seen(2, changes=1, epoch=2), True),
        (seen(changes=2), seen(0, changes=1, epoch=2), True),
        (seen(changes=2), seen(changes=0, epoch=2), True),
        (seen(1, changes=2), seen(1, changes=2, epoch=2), True),
    ],
)
def test_what_may_have_been_missed(before: Listing | None, now: Listing, gap: bool | None) -> None:
    assert looks(*([] if before is None else [before]), now)[-1] is gap


@pytest.mark.parametrize("seed", range(200))
def test_no_leader_is_missed_unnoticed(seed: int) -> None:
    """Members come and go at random, and somebody looks now and then."""
    choose = random.Random(seed)
    members: list[int] = []
    number = changes = 0
    unseen: list[int] = []  # leaders since the last look, in order
    last: int | None = None
    sight = ObservedQueue()
    told: list[int | None] = []
    for _ in range(400):
        leader = members[0] if members else None
        if choose.random() < 0.5:
            members.append(number)
            number += 1
            changes += 1
        elif members:
            members.pop(choose.choice([0, 0, -1]))
            changes += 1
        if members and members[0] != leader:
            unseen.append(members[0])
        if choose.random() < 0.4:
            gap = sight.look(seen(*members, changes=changes))
            now = members[0] if members else None
            missed = [each for each in unseen if each not in {now, last}]
            if gap is None:
                assert told[-1:] == [now]
                assert not missed
            else:
                assert gap or not missed or not told
                told.append(now)
            unseen, last = [], now
    assert len(told) > 5


def changes_of(feed: Feed) -> Sequence[LeaderChange]:
    found = []
    while (change := feed.take()) is not None:
        found.append(change)
    return found


def test_a_feed_keeps_the_order() -> None:
    feed = Feed(3)
    kept = [LeaderChange(None), LeaderChange(None, gap=True), LeaderChange(None)]
    for change in kept:
        feed.put(change)
    assert changes_of(feed) == kept
    assert feed.take() is None


def test_a_feed_that_is_full_keeps_the_newest_and_says_so() -> None:
    feed = Feed(3)
    for _ in range(4):
        feed.put(LeaderChange(None))
    assert changes_of(feed) == [LeaderChange(None, gap=True)]
    feed.put(LeaderChange(None))
    assert changes_of(feed) == [LeaderChange(None)]
