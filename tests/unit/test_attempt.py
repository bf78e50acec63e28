"""An attempt in each of its stages: given up, cut off, torn apart, its session replaced or over.

The lock's recipe runs through the session, its bytes and a server. Whatever happens, one contender
at most is left: that of a grant, or none.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.sessions import (
    CLOSED,
    PATH,
    TIMEOUT,
    World,
    claims,
    connected,
    expire,
    sent,
    throttle,
    unsent,
    waits,
)
from zklock import ClientClosed, ZkLockError
from zklock._core.attempt import Attempt, Stage
from zklock._core.pulse import LATE_TIMEOUTS
from zklock._ground.loss import LossReason
from zklock._recipes.effects import Create, Failed, List, Recipe, Sync
from zklock._recipes.steps import delete

BEAT = TIMEOUT / 10
SOON = 3 * TIMEOUT
LATE = 2 * LATE_TIMEOUTS * TIMEOUT
"""A create that was lost is looked for no longer by then."""
Reached = tuple[World, Attempt[Any]]


def new(world: World) -> Attempt[Any]:
    attempt = world.ask_for()
    fresh = world.session.attempt(attempt._make, recover=attempt._recover, terms=attempt.terms)
    attempt.cancel()
    world.run(BEAT)
    return fresh


def sent_behind_the_missing_path(world: World) -> Attempt[Any]:
    world.latency = 0.1
    attempt = world.ask_for()
    world.run(0.15)
    return attempt


def waits_for_a_while(world: World) -> Attempt[Any]:
    world.at(world.now + TIMEOUT, lambda: world.server.delete(f"{PATH}/{world.server.names()[0]}"))
    return waits(world)


WAYS: list[tuple[Stage, Callable[[World], Attempt[Any]]]] = [
    (Stage.NEW, new),
    (Stage.UNSENT, unsent),
    (Stage.SENT, sent),
    (Stage.SENT, sent_behind_the_missing_path),
    (Stage.WAIT, waits_for_a_while),
    (Stage.CLAIM, claims),
]


@pytest.fixture(params=WAYS, ids=[way.__name__ for _, way in WAYS])
def reached(request: pytest.FixtureRequest) -> Reached:
    stage, way = request.param
    world = connected()
    attempt = way(world)
    assert attempt.stage is stage
    return world, attempt


def goes_on(world: World, attempt: Attempt[Any]) -> None:
    """The attempt is granted in the end, and has one contender; another is granted after it."""
    attempt.start()
    if not world.session.connected:
        world.connect()
    world.run(SOON)
    grant = attempt.result()
    assert grant.held
    assert world.server.names() == [grant.path.rpartition("/")[2]]
    grant.abandon()
    world.run(BEAT)
    assert world.server.names() == []
    world.latency = 0.0
    assert world.acquire().held


def leaves_nothing(world: World) -> None:
    if not world.session.connected:
        world.connect()
    world.run(LATE)
    assert world.server.names() == []
    assert not world.session.in_use


def test_goes_on(reached: Reached) -> None:
    goes_on(*reached)


@pytest.mark.parametrize("started", [True, False])
def test_given_up_it_leaves_nothing(reached: Reached, started: bool) -> None:
    world, attempt = reached
    assert attempt.cancel(error := ZkLockError("given up"))
    assert not attempt.cancel()
    assert attempt.done
    with pytest.raises(ZkLockError) as raised:
        attempt.result()
    assert raised.value is error
    attempt.start()
    leaves_nothing(world)


def test_cut_off_it_goes_on(reached: Reached) -> None:
    world, attempt = reached
    world.disconnect()
    goes_on(world, attempt)


def test_cut_off_and_given_up_it_leaves_nothing(reached: Reached) -> None:
    world, attempt = reached
    world.disconnect()
    attempt.cancel()
    leaves_nothing(world)


def test_in_another_session_it_begins_anew(reached: Reached) -> None:
    world, attempt = reached
    expire(world)
    goes_on(world, attempt)


def test_at_the_end_of_the_client_it_is_told(reached: Reached) -> None:
    world, attempt = reached
    attempt.start()
    world.shell.step(world.session.end, LossReason.CLIENT_CLOSED, CLOSED)
    world.run()
    with pytest.raises(ClientClosed):
        attempt.result()
    assert not world.session.in_use


def test_a_torn_step_of_others_is_a_cut(reached: Reached) -> None:
    world, attempt = reached

    def struck() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.shell.step(struck)
    assert world.shell.torn
    world.run(BEAT)
    assert not world.session.connected
    goes_on(world, attempt)


def test_a_listing_is_shared_by_all_who_asked_before_it_was_sent() -> None:
    world = connected(made=True)
    world.latency = 0.1
    attempts = [world.ask_for() for _ in range(50)]
    world.run(0.25)
    assert len(world.requests(Create)) == 50
    assert len(world.requests(List)) == 2, "the first one's, and that of all others"
    world.run(SOON)
    assert [attempt.done for attempt in attempts] == [True] + 49 * [False]
    for number, attempt in enumerate(attempts):
        grant = attempt.result()
        assert [each.done for each in attempts] == [each <= number for each in range(50)]
        grant.abandon()
        world.run(BEAT)
    assert world.server.names() == []


@pytest.mark.parametrize("late", [0.0, 5.0, 50.0])
def test_a_create_that_is_carried_out_late_is_deleted(late: float) -> None:
    world = connected(made=True)
    world.latency = math.inf
    attempt = world.ask_for()
    made = world.server.machine
    session, entry = world.client.client_id[0], attempt._make.args[0]  # type: ignore[attr-defined]
    uuid = entry.uuid
    world.disconnect()
    world.latency = 0.0
    world.connect()
    world.run(late)
    grant = attempt.result()
    assert uuid not in grant.path
    request = next(it for _, it in world.sent if isinstance(it, Create) and uuid in it.prefix)
    acl = made.tree.nodes[PATH].acl
    made._transact(
        0, lambda it: it.create(request.prefix, request.data, acl, session, numbered=True)
    )
    assert len(world.server.names()) == 2
    world.run(60.0)
    assert world.server.names() == [grant.path.rpartition("/")[2]]


def test_an_answer_that_asks_for_patience_is_told_after_a_pause() -> None:
    world = connected(made=True)
    throttle(world, 3)
    attempt = world.session.attempt(lambda: delete(PATH, f"{PATH}/none")).start()
    world.run()
    assert attempt.stage is Stage.BUSY
    world.run(1.0)
    assert attempt.done


def test_a_fault_in_a_recipe_is_told_and_cleaned_up(caplog: pytest.LogCaptureFixture) -> None:
    world = connected()
    tries: list[int] = []

    def faulty() -> Recipe[Any]:
        yield (Sync("/"),)
        raise LookupError("a fault")

    def cleans() -> Recipe[None]:
        tries.append(1)
        (result,) = yield (Sync("/"),)
        assert not isinstance(result, Failed)
        if len(tries) < 3:
            raise LookupError("again")

    attempt = world.session.attempt(faulty, recover=cleans)

    def run() -> None:
        attempt.start()
        world.run(5.0)

    thread = threading.Thread(target=run)
    thread.start()  # on the main thread, it might be a signal handler's
    thread.join()
    with pytest.raises(LookupError, match="a fault"):
        attempt.result()
    assert len(tries) == 3
    assert "a step failed" in caplog.text


def test_who_asks_when_it_is_done_is_told_outside_of_steps() -> None:
    world = connected()
    attempt = world.ask_for()
    told: list[bool] = []
    attempt.when_done(lambda: told.append(world.shell.inside()))
    woken: list[bool] = []
    attempt.wake_when_done(lambda: woken.append(world.shell.inside()))
    world.run()
    attempt.when_done(lambda: told.append(world.shell.inside()))
    attempt.wake_when_done(lambda: woken.append(world.shell.inside()))
    world.run()
    assert (told, woken) == ([False, False], [True, False])


def test_who_asks_while_another_is_told_takes_nothing_from_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One thread brings the outcome, another one asks for it at that moment: both are told."""
    world = connected()
    attempt = world.ask_for()
    told: list[str] = []
    later = attempt.session.later

    def asks(job: Callable[[], object]) -> None:
        later(job)
        monkeypatch.setattr(attempt.session, "later", later)
        attempt.when_done(lambda: told.append("second"))  # as another thread would

    monkeypatch.setattr(attempt.session, "later", asks)
    attempt.when_done(lambda: told.append("first"))
    world.run()
    assert sorted(told) == ["first", "second"]
