"""Acquires of a kept lock in a place, on a clock that the test moves; interrupts among them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest

from tests.unit.sessions import PATH, World
from zklock import Grant
from zklock._engine.attempt import Attempt
from zklock._engine.grant import GrantOptions
from zklock._engine.keep import Place, Waiter, place_of
from zklock._recipes import lock as lock_recipe, names
from zklock._recipes.effects import Delete

KEEP = 600.0


class Limit(Exception):
    """What the signal handler of a time limit raises."""


@pytest.fixture
def world() -> World:
    world = World()
    world.connect()
    return world


def contend(world: World, place: Place, patient: bool) -> Attempt[object]:
    entry = lock_recipe.Entry(PATH, b"me", names.Kind.EXCLUSIVE, patient=patient)
    terms = GrantOptions(PATH, "me", Grant, place=place)
    return world.session.attempt(lock_recipe.acquire(entry), recover=entry.leave, terms=terms)


def begin(world: World, *, patient: bool = True) -> Waiter:
    """Begin to wait for the lock; nothing is answered yet."""
    terms = GrantOptions(PATH, "me", Grant, keep=KEEP)
    place = place_of(world.session, PATH)
    return Waiter(place, terms, partial(contend, world), patient=patient).start()


def wait(world: World) -> Waiter:
    """Begin to wait for the lock."""
    waiter = begin(world)
    world.run()
    return waiter


def released(world: World, waiter: Waiter) -> None:
    """Release the lock that somebody has waited for."""
    grant = waiter.result()
    assert grant is not None
    assert grant.held
    assert grant.path in nodes(world)
    grant.abandon()
    world.run()


@contextmanager
def interrupted(world: World, where: str, error: type[BaseException]) -> Iterator[None]:
    """Have an interrupt strike whoever gives a grant: before that, within it, or after it.

    ``recipe``: it strikes when its contender goes on with that.
    """
    claim = lock_recipe.claim

    def goes_on(*what: Any, **more: Any) -> Any:
        yield from claim(*what, **more)
        raise error

    host: Any = world.session._nodes if where == "within" else world.session
    give = host.give

    def struck(*what: Any) -> None:
        if where == "after":
            give(*what)
        raise error

    with pytest.MonkeyPatch.context() as patch:
        if where == "recipe":
            patch.setattr(lock_recipe, "claim", goes_on)
        else:
            patch.setattr(host, "give", struck)
        yield


def nodes(world: World) -> list[str]:
    return [f"{PATH}/{name}" for name in world.server.tree.names(PATH)]


@pytest.mark.hazard("H9")
@pytest.mark.parametrize("where", ["before", "within", "after"])
def test_who_is_next_gets_the_lock_though_an_interrupt_strikes_in_the_hand_over(
    world: World, where: str
) -> None:
    waiters = [wait(world) for _ in range(4)]
    released(world, waiters[0])  # from now on, the queue is watched
    with interrupted(world, where, KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        released(world, waiters[1])
    world.run()
    assert not waiters[3].done
    released(world, waiters[2])
    released(world, waiters[3])
    world.run(2 * KEEP)
    assert nodes(world) == []


@pytest.mark.hazard("H9")
@pytest.mark.parametrize("error", [KeyboardInterrupt, Limit])
@pytest.mark.parametrize("where", ["before", "within", "after", "recipe"])
def test_the_lock_can_be_had_though_an_interrupt_strikes_as_it_is_granted(
    world: World, where: str, error: type[BaseException]
) -> None:
    """Its contender deletes the znode: nobody is told that it is granted."""
    first, second = begin(world), begin(world)
    with interrupted(world, where, error), suppress(error):
        world.run()
    world.run()
    for waiter in (first, second):
        with pytest.raises(error):
            waiter.result()
    released(world, wait(world))
    world.run(2 * KEEP)
    assert nodes(world) == []


@pytest.mark.hazard("H9")
@pytest.mark.parametrize("where", ["within", "after"])
def test_who_is_granted_what_was_struck_is_told_why_however_soon_that_is_seen_to(
    world: World, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The session's own thread may be the first to tell."""
    waiter = begin(world)
    monkeypatch.setattr(world.session, "post", lambda job: job())
    with interrupted(world, where, Limit):
        world.run()
    world.run()
    with pytest.raises(Limit):
        waiter.result()


@pytest.mark.hazard("H9")
@pytest.mark.parametrize("given_up", [False, True])
def test_who_waits_is_told_though_an_interrupt_strikes_who_tells(
    world: World, given_up: bool
) -> None:
    waiters = [wait(world) for _ in range(3)]
    released(world, waiters[0])  # from now on, the queue is watched
    told: list[str] = []

    def tell() -> None:
        told.append("struck")
        if len(told) == 1:
            raise KeyboardInterrupt

    waiters[2].when_done(tell)
    with pytest.raises(KeyboardInterrupt):
        if given_up:
            waiters[2].cancel()
        else:
            released(world, waiters[1])
    world.run()
    assert told == ["struck", "struck"]


@pytest.mark.hazard("H9")
def test_it_is_given_back_though_a_signal_handler_abandons_it_in_its_release(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler strikes the release in its change, when the znode is to go."""
    waiter, place = wait(world), place_of(world.session, PATH)
    grant = waiter.result()
    assert grant is not None
    place.ask(grant)
    decide = place._decide

    def struck() -> None:
        grant.abandon()
        decide()

    world.free = False
    with monkeypatch.context() as patch:
        patch.setattr(place, "_decide", struck)
        grant.abandon()
    world.free = True
    world.run()
    assert nodes(world) == []
    released(world, wait(world))


@pytest.mark.parametrize("patient", [False, True])
def test_an_idle_one_that_may_not_be_granted_now_is_exchanged(
    world: World, monkeypatch: pytest.MonkeyPatch, patient: bool
) -> None:
    """As after a pause: who does not wait can wait for an answer."""
    released(world, wait(world))
    (idle,) = nodes(world)
    with monkeypatch.context() as patch:
        patch.setattr(world.session, "may_grant", lambda paths: False)
        waiter = begin(world, patient=patient)
    world.run()
    grant = waiter.result()
    assert grant is not None
    assert grant.held
    assert nodes(world) == [grant.path] != [idle]


def test_what_another_grant_has_replaced_leaves_no_alarm(world: World) -> None:
    """Its znode is deleted, and the next one is granted before anybody hears of that."""
    released(world, wait(world))
    second = wait(world).result()
    assert second is not None
    world.forget_watches()
    world.server.delete(second.path)
    place_of(world.session, PATH).ask(second)
    third = wait(world)
    assert second.held
    assert third.result() is not None
    world.stop()
    assert not world._events


def test_a_refused_release_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    waiter = wait(world)
    world.server.denied = {Delete}
    released(world, waiter)
    world.run(2 * KEEP)
    assert "a kept lock stays until the session ends" in caplog.text


def test_a_forked_child_begins_no_contender(world: World) -> None:
    released(world, wait(world))
    first, second = wait(world), wait(world)
    grant = first.result()
    assert grant is not None
    world.session.after_fork()
    before = len(world.sent)
    assert not grant.held
    world.run()
    assert not second.done
    assert len(world.sent) == before
