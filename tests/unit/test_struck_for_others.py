"""Struck at every moment of a step that serves others: these are served all the same.

A struck thread may read for all, cancel for others, or hand a kept lock on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest

import zklock
from tests.contract.struck import LIBRARY, Limit, Moments
from tests.unit.sessions import (
    PATH,
    TIMEOUT,
    World,
    behind_another,
    claims,
    connected,
    expire,
    sent,
    throttle,
    unsent,
    waits,
)
from zklock._core.attempt import Attempt, Pending, Stage
from zklock._core.grant import GrantOptions
from zklock._core.keep import Place, Waiter
from zklock._recipes import lock as lock_recipe, names, queries, semaphore
from zklock.errors import AcquireCancelled

pytestmark = [pytest.mark.hazard("H9"), pytest.mark.slow("strikes at every moment")]

BEAT = TIMEOUT / 10
Scene = Iterator[Callable[[], object] | None]
"""Yields what is struck; then it checks what has come of it."""


class _Moments(Moments):
    def _counts(self, frame: FrameType, event: str) -> bool:
        # The end of one that is dropped looks like a call; what is raised there arrives nowhere.
        return frame.f_code.co_name != "<genexpr>" and super()._counts(frame, event)


def struck_at_every_moment(scene: Callable[[], Scene]) -> None:
    moments, at = _Moments(Limit, f"{LIBRARY}/_"), 0
    struck = True
    while struck:
        at += 1
        played = scene()
        act = next(played)
        assert act is not None
        struck = moments.strike(act, at)
        assert next(played, None) is None, moments.where
    assert at > 5


class Heard:
    """Whether who waits for an outcome is woken, and told."""

    def __init__(self, pending: Pending[Any]) -> None:
        self.pending = pending
        self.woken = self.told = False
        pending.wake_when_done(partial(setattr, self, "woken", True))
        pending.when_done(partial(setattr, self, "told", True))

    def outcome(self) -> Any:
        assert self.pending.done
        assert self.woken
        assert self.told
        return self.pending.settled()


def reconnected(world: World) -> None:
    """Let it mend, and connect."""
    world.latency = 0.0
    for _ in range(2):
        world.run(BEAT)
        if not world.session.connected:
            world.connect()
    world.run(BEAT)


def alone_with_it(world: World, heard: Heard) -> None:
    """It is granted, and leaves nothing."""
    reconnected(world)
    world.run(2 * BEAT)
    grant, error = heard.outcome()
    assert error is None
    assert grant.held
    assert world.server.names() == [grant.path.rpartition("/")[2]]
    grant.abandon()
    world.run(BEAT)
    assert world.server.names() == []


def its_blocker_is_gone() -> Scene:
    world = connected(made=True)
    blocker = behind_another(world)
    heard = Heard(world.ask_for())
    world.run(BEAT)
    world.server.delete(blocker)
    yield world._hear
    alone_with_it(world, heard)


def it_is_asked_for_patience() -> Scene:
    world = connected(made=True)
    throttle(world, 2)
    world.latency = 0.1
    heard = Heard(world.ask_for())
    world.now += 0.1
    yield world.arrive
    alone_with_it(world, heard)


def it_asks_for_permits() -> Scene:
    world = connected(made=True)

    def asks() -> Attempt[Any]:
        entry = semaphore.PermitEntry(
            semaphore.locks(PATH), b"me", names.Kind.EXCLUSIVE, root=PATH, limit=1, permits=1
        )
        return world._stand(entry, GrantOptions(PATH, "me", zklock.Grant))

    holder = asks()
    world.run()
    heard = Heard(asks())
    world.run(BEAT)
    holder.result().abandon()
    yield world.run
    reconnected(world)
    world.run(2 * BEAT)
    grant, _ = heard.outcome()
    assert grant.held
    assert world.server.names(semaphore.leases(PATH)) == [grant.path.rpartition("/")[2]]


def it_is_refused() -> Scene:
    world = connected(made=True)
    world.server.deny(PATH)
    world.latency = 0.1
    heard = Heard(world.ask_for())
    world.now += 0.1
    yield world.arrive
    reconnected(world)
    assert isinstance(heard.outcome()[1], zklock.AccessDenied)


def it_asks() -> Scene:
    world = connected(made=True)
    behind_another(world)
    world.latency = 0.1
    heard = Heard(world.session.attempt(lambda: queries.contenders(PATH)).start())
    world.now += 0.1
    yield world.arrive
    reconnected(world)
    assert len(heard.outcome()[0]) == 1


def it_claims() -> Scene:
    world = connected(made=True)
    attempt = claims(world)
    assert attempt.stage is Stage.CLAIM
    heard = Heard(attempt)
    world.session._rested_at = -1.0
    world.session._lease.connected(world.now)
    yield partial(world.shell.step, world.session._proved, world.now)
    alone_with_it(world, heard)


def it_is_cancelled(where: Callable[[World], Attempt[Any]]) -> Scene:
    world = connected(made=True)
    heard = Heard(where(world))
    error = AcquireCancelled("cancelled")

    def cancel() -> None:
        heard.pending.cancel(error)

    yield cancel
    cancel()
    reconnected(world)
    assert heard.outcome() == (None, error)
    for name in world.server.names():
        if name.startswith("_c_00000000"):
            world.server.delete(f"{PATH}/{name}")
    world.run(2 * BEAT)
    assert not heard.pending.made
    assert world.server.names() == []


def it_is_held() -> Scene:
    world = connected(made=True)
    lost: list[zklock.Loss] = []
    grant = world.acquire(on_lost=lost.append)
    world.run(3 * BEAT)
    world.now += BEAT
    yield partial(world.shell.step, world.session.tick)
    reconnected(world)
    assert grant.held
    expire(world)
    world.run(BEAT)
    assert len(lost) == 1
    assert grant.remaining() == 0


def its_session_ends() -> Scene:
    world = connected(made=True)
    lost: list[zklock.Loss] = []
    grants = [world.acquire(f"{PATH}{number}", on_lost=lost.append) for number in range(2)]
    yield partial(world.shell.step, world.session.end, zklock.LossReason.SESSION_EXPIRED)
    world.disconnect()
    world.client.client_id = None  # it is given up, and kazoo asks for another one
    world.latency = 0.1
    world.connect()
    assert [grant.remaining() for grant in grants] == [0, 0]
    world.run(BEAT)
    assert len(lost) == 2


@pytest.mark.lengthy("each bytecode of a step: seconds of a core")
@pytest.mark.parametrize(
    "scene",
    [
        it_is_held,
        its_session_ends,
        its_blocker_is_gone,
        it_is_asked_for_patience,
        it_asks_for_permits,
        it_is_refused,
        it_asks,
        it_claims,
        partial(it_is_cancelled, waits),
        partial(it_is_cancelled, unsent),
        partial(it_is_cancelled, sent),
    ],
)
def test_an_attempt_of_another_goes_on(scene: Callable[[], Scene]) -> None:
    struck_at_every_moment(scene)


# In the place of a kept lock.


def contend(place: Place, patient: bool) -> Attempt[Any]:
    entry = lock_recipe.Entry(PATH, b"me", names.Kind.EXCLUSIVE, patient)
    terms = GrantOptions(PATH, "me", zklock.Grant, place=place)
    make = partial(lock_recipe.acquire, entry)
    return place.session.attempt(make, recover=entry.leave, terms=terms)


class Kept:
    """A place, and some who wait in it; ``held``: the first of them is granted."""

    def __init__(self, waiters: int, *, held: bool = True) -> None:
        self.world = connected(made=True)
        self.place = self.world.session.places["it"] = Place(self.world.session)
        self.waiters = [self._waiter() for _ in range(waiters)]
        self.heard = [Heard(each) for each in self.waiters]
        if held:
            self.waiters[0].start()
            self.world.run()
            self.grant: Any = self.waiters[0].result()

    def _waiter(self) -> Waiter:
        terms = GrantOptions(PATH, "me", zklock.Grant, keep=100.0)
        return Waiter(self.place, terms, contend, patient=True)

    def serves(self, *heard: Heard) -> None:
        """They are granted one after the other; then a stranger is."""
        left = list(heard)
        reconnected(self.world)
        while left:
            self.world.run(BEAT)
            granted = [each for each in left if each.pending.done]
            assert len(granted) == 1
            left.remove(granted[0])
            grant, _ = granted[0].outcome()
            assert grant.held
            grant.abandon()
        self.world.run(BEAT)
        stranger = behind_another(self.world)
        self.world.run(2 * BEAT)
        assert self.world.server.names() == [stranger.rpartition("/")[2]]


def first_grant(*, leaves: bool) -> Scene:
    kept = Kept(2, held=False)
    kept.world.latency = 0.1
    for waiter in kept.waiters:
        waiter.start()
    kept.world.now += 0.1
    yield kept.world.arrive
    if leaves and not kept.waiters[0].cancel():
        kept.waiters[0].result().abandon()  # type: ignore[union-attr]
    kept.serves(*kept.heard[leaves:])


def first_release(*, waits: bool) -> Scene:
    kept = Kept(2)
    if waits:
        kept.waiters[1].start()
    yield kept.grant.abandon
    kept.grant.abandon()
    kept.serves(*kept.heard[1:] * waits)


def handing_over() -> Scene:
    kept = Kept(3)
    kept.grant.abandon()
    kept.world.run()
    terms = kept.waiters[0].terms
    assert terms is not None
    again = kept.place.take(terms)
    for waiter in kept.waiters[1:]:
        waiter.start()
    yield again.abandon
    again.abandon()
    kept.serves(*kept.heard[1:])


def joining() -> Scene:
    kept = Kept(2, held=False)
    yield kept.waiters[0].start
    kept.waiters[0].cancel()
    kept.waiters[1].start()
    kept.serves(kept.heard[1])


def leaving() -> Scene:
    kept = Kept(1, held=False)
    blocker = behind_another(kept.world)
    kept.waiters[0].start()
    kept.world.run()
    yield kept.waiters[0].cancel
    kept.waiters[0].cancel()
    reconnected(kept.world)
    assert kept.world.server.names() == [blocker.rpartition("/")[2]]


def joining_without_a_lease() -> Scene:
    kept = Kept(2)
    kept.grant.abandon()
    kept.world.run()
    lease = kept.world.session._lease
    lease.end = lease._end = kept.world.now + BEAT
    yield kept.waiters[1].start
    if kept.waiters[1] not in kept.place._waiters and not kept.waiters[1].done:
        kept.waiters[1].start()
    kept.serves(kept.heard[1])


@pytest.mark.parametrize(
    "scene",
    [
        partial(first_grant, leaves=False),
        partial(first_grant, leaves=True),
        partial(first_release, waits=True),
        partial(first_release, waits=False),
        handing_over,
        joining,
        leaving,
        joining_without_a_lease,
    ],
)
def test_a_kept_lock_goes_on(scene: Callable[[], Scene]) -> None:
    struck_at_every_moment(scene)
