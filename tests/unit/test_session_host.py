"""The session as the host of attempts and the keeper of grants, on a clock that the test moves."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from kazoo.protocol.states import KazooState, KeeperState

from tests.fakes import Counted, Written, failure
from tests.unit.sessions import PATH, TIMEOUT, World
from zklock import AccessDenied, ClientClosed, Grant, Loss, LossReason, WouldDeadlock, ZkLockError
from zklock._engine import nodes as nodes_module, session as session_module
from zklock._engine.attempt import Attempt
from zklock._engine.grant import End, GrantOptions
from zklock._engine.grant_state import State
from zklock._engine.lease import LeaseSettings
from zklock._engine.session import LATE_TIMEOUTS, LATENESS, Session
from zklock._ground.threads import NoThread
from zklock._kazoo import states
from zklock._recipes import lock as lock_recipe, names, semaphore
from zklock._recipes.effects import (
    Check,
    Claim,
    Create,
    Delete,
    Exists,
    Failure,
    List,
    Node,
    Transaction,
    Watch,
)
from zklock._recipes.nodedata import NodeData

BEAT = TIMEOUT / 10
LEASE = 2 / 3 * TIMEOUT
PATHS = "/one", "/two"
UUID = "0" * 32


@pytest.fixture
def world() -> World:
    world = World()
    world.connect()
    return world


def nodes(world: World, path: str = PATH) -> list[str]:
    return [f"{path}/{name}" for name in world.server.tree.names(path)]


def entry_of(path: str) -> lock_recipe.Entry:
    return lock_recipe.Entry(path, b"me", names.Kind.EXCLUSIVE)


# Transactions, and grants on several nodes.


def test_what_a_transaction_may_leave_there_can_still_be_claimed(world: World) -> None:
    """It checks something first. A transaction that only deletes leaves nothing to claim."""
    world.server.make_path(PATH)
    made(world)
    world.run()
    (node,) = world.session._nodes
    for operations, left in (((Check("/none"), Delete(node)), [node]), ((Delete(node),), [])):
        world.session.send_batch((Transaction(operations),), lambda _: None)
        assert list(world.session._nodes) == left


def permits(world: World, count: int, **options: Any) -> Grant:
    """Return a grant of several permits, each of which has a node."""
    entry = semaphore.Entry(
        semaphore.locks(PATH),
        b"me",
        names.Kind.EXCLUSIVE,
        root=PATH,
        limit=count,
        permits=count,
    )
    attempt = world._stand(entry, GrantOptions(PATH, "me", Grant, **options))
    world.run()
    grant: Grant = attempt.result()
    return grant


@pytest.mark.parametrize("count", [2, 3])
def test_a_grant_on_several_nodes_is_lost_with_one_and_the_others_are_deleted(
    world: World, count: int
) -> None:
    lost: list[Loss] = []
    grant = permits(world, count, on_lost=lost.append)
    world.run(BEAT)
    world.server.delete(grant.path)
    world.run(BEAT)
    assert [(loss.grant, loss.reason) for loss in lost] == [(grant, LossReason.NODE_DELETED)]
    assert nodes(world, semaphore.leases(PATH)) == []
    assert list(world.session._nodes) == []


# What it says of itself.


@pytest.mark.parametrize(("timeout", "moment"), [(12.0, 1.0), (3.0, 1.0), (1.5, 0.5)])
def test_a_moment_is_a_second_or_a_third_of_the_timeout(timeout: float, moment: float) -> None:
    world = World(timeout=timeout)
    world.connect()
    assert world.session.timeout == timeout
    assert world.session.moment == moment


def test_it_goes_by_the_clock_of_its_runtime(world: World) -> None:
    assert world.session.now() == world.now
    assert world.session.on_real_clock is False
    assert world.session.limit(3.0, lambda: None) == 3.0


def test_its_other_threads_are_of_its_runtime(world: World) -> None:
    ran: list[float] = []
    thread = world.session.thread("other", lambda: None)
    thread.after(1.0, lambda: ran.append(world.now))
    world.run(2.0)
    assert ran == [1001.0]


def test_only_the_present_session_is_its_own(world: World) -> None:
    assert world.client.client_id is not None
    session_id, _ = world.client.client_id
    assert world.is_mine(session_id)
    assert not world.is_mine(session_id - 1)
    assert not world.is_mine(session_id + 1)
    world.session.on_close()
    assert not world.is_mine(session_id)


def test_it_is_usable_until_it_is_closed(world: World) -> None:
    world.session.check_usable()
    with world.session.guard, pytest.raises(WouldDeadlock):
        world.session.check_usable()
    world.session.check_usable()
    world.stop()
    with pytest.raises(ClientClosed):
        world.session.check_usable()


def test_it_is_interrupted_on_the_thread_that_has_the_guard_alone(world: World) -> None:
    seen: list[bool] = []
    with world.session.guard:
        thread = threading.Thread(target=lambda: seen.append(world.session.interrupted))
        thread.start()
        thread.join(60.0)
        assert world.session.interrupted
    assert seen == [False]
    assert not world.session.interrupted


def test_a_grant_is_at_stake_while_its_lease_lasts(world: World) -> None:
    assert not world.session.at_stake()
    grant = world.acquire()
    assert world.session.at_stake()
    world.now = world.session.lease_end
    assert not world.session.at_stake()
    world.run()
    assert grant.lost.is_set()


@pytest.mark.parametrize("late", [0.0, 0.5])
@pytest.mark.parametrize(
    "asked", [lambda session: session.remaining(), lambda session: session.grants(PATH)]
)
def test_who_asks_after_the_end_of_the_lease_finds_it_over(
    world: World, asked: Callable[[Any], Any], late: float
) -> None:
    grant = world.acquire()
    world.now = world.session.lease_end + late
    assert not asked(world.session)
    world.run()
    assert list(world.session._nodes) == []
    assert grant.lost.is_set()
    assert nodes(world) == []


def test_who_looks_after_the_end_of_the_lease_waits_for_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session's thread may have the guard, and thousands of grants to lose."""
    grant, other = world.acquire(), world.acquire(f"{PATH}-other")
    world.now = world.session.lease_end
    with monkeypatch.context() as patch:
        patch.setattr(world.session, "guard", None)  # whoever takes it fails
        assert not grant.held
        assert grant.lost.is_set()
    world.run()
    assert other.lost.is_set()


def test_what_an_interrupted_release_has_ended_is_not_held(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node is let go later. Until then, the thread may ask for the lock again."""
    grant = world.acquire()

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(world.session, "release_grant", interrupted)
        with pytest.raises(KeyboardInterrupt):
            grant.abandon()
    assert world.session.grants(PATH) == []
    assert list(world.session._nodes) == [grant.path]
    world.run()
    assert nodes(world) == []


def test_a_grant_that_is_struck_before_anybody_gets_it_is_given_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that reads its own replies can be struck between the claim and the outcome."""
    leave = world.session.leave
    struck: list[object] = []

    def interrupted(attempt: Any) -> None:
        leave(attempt)
        if not struck:
            struck.append(attempt)
            raise KeyboardInterrupt

    attempt = world.ask_for()
    with monkeypatch.context() as patch:
        patch.setattr(world.session, "leave", interrupted)
        with pytest.raises(KeyboardInterrupt):
            world.run()
    assert struck == [attempt]
    world.run()
    assert world.session.grants(PATH) == []
    with pytest.raises(KeyboardInterrupt):
        attempt.result()
    assert nodes(world) == []


# The end of the session.


def test_it_has_lost_all_when_the_request_to_close_is_sent(world: World) -> None:
    lost: list[Loss] = []
    grant = world.acquire(on_lost=lost.append)
    world.session.on_close()
    assert not grant.held
    world.run()
    assert [loss.reason for loss in lost] == [LossReason.CLIENT_CLOSED]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (KeeperState.EXPIRED_SESSION, LossReason.SESSION_EXPIRED),
        (KeeperState.CLOSED, LossReason.CLIENT_CLOSED),
    ],
)
def test_it_has_lost_all_when_kazoo_tells_so(
    world: World, state: KeeperState, reason: LossReason
) -> None:
    lost: list[Loss] = []
    grant = world.acquire(on_lost=lost.append)
    world.client.client_state = state
    world._tell(KazooState.LOST)
    assert not grant.held
    assert len(world.callbacks) == 1
    world.run()
    assert [loss.reason for loss in lost] == [reason]


# What the wire reports, on kazoo's thread.


@pytest.mark.parametrize(
    "report",
    [
        lambda session: session.on_ask(1000.0),
        lambda session: session.on_connect(1000.0, TIMEOUT),
        lambda session: session.on_ping(1000.0, 1000.0),
        lambda session: session.on_close(),
    ],
    ids=["ask", "connect", "ping", "close"],
)
def test_what_fails_in_a_report_is_logged_and_reaches_nobody(
    world: World,
    report: Callable[[Any], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        def __enter__(self) -> None:
            raise MemoryError("of the guard")

        def __exit__(self, *_: object) -> None:
            raise NotImplementedError

    with monkeypatch.context() as patch, ThreadPoolExecutor(1) as kazoo:
        patch.setattr(world.session, "guard", Broken())
        kazoo.submit(report, world.session).result(60.0)
    assert "MemoryError: of the guard" in caplog.text


def test_a_handshake_that_is_sent_has_the_thread_look_at_the_lease(world: World) -> None:
    world.acquire()
    before = world.turns
    world.session.on_ask(world.now)
    world.run()
    assert world.turns == before + 1


def test_a_shorter_timeout_that_ends_the_lease_ends_the_grants_at_once(world: World) -> None:
    grant = world.acquire(on_lost=lambda _: None)
    world.now += LEASE - 1.0
    world.session.on_connect(world.now, TIMEOUT / 2)
    assert grant.lost.is_set()
    assert len(world.callbacks) == 1


@pytest.mark.parametrize(
    ("first", "then", "said"), [(2.0, 2.0, 0), (12.0, 12.0, 0), (12.0, 20.0, 0), (12.0, 6.0, 1)]
)
def test_a_timeout_is_told_if_it_has_become_shorter(
    first: float, then: float, said: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(timeout=first)
    world.connect()
    world.disconnect()
    world.connect(then)
    assert caplog.text.count("shortened the session timeout") == said


def unanswered(world: World) -> None:
    """Send a heartbeat that is not answered, nor failed, when its connection is lost."""
    world.acquire()
    world.latency = math.inf
    world.run(1.1 * BEAT)
    world._link, world._puts = None, []
    world.latency = 0.0


def test_no_answer_is_missed_to_a_heartbeat_of_a_lost_connection(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    unanswered(world)
    world.client.client_state = KeeperState.CONNECTING
    world._tell(KazooState.SUSPENDED)
    world.run(LEASE - 2 * BEAT)
    assert world.wire.drops == 0
    assert caplog.records == []


def test_no_answer_is_missed_to_a_heartbeat_of_the_connection_before(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    unanswered(world)
    world.connect()
    world.run(TIMEOUT)
    assert world.wire.drops == 0
    assert caplog.records == []


def test_a_loss_that_a_lost_connection_shows_is_told_at_once(world: World) -> None:
    world.acquire(on_lost=lambda _: None)
    world.now = world.session.lease_end
    world.client.client_state = KeeperState.CONNECTING
    world._tell(KazooState.SUSPENDED)
    assert len(world.callbacks) == 1


def test_a_node_that_goes_after_the_end_of_the_lease_is_not_what_was_lost_first(
    world: World,
) -> None:
    lost: list[Loss] = []
    grant = world.acquire(on_lost=lost.append)
    world.now = world.session.lease_end
    world.on_event(states.DELETED, grant.path)
    world.run()
    assert [loss.reason for loss in lost] == [LossReason.LEASE_LAPSED]


# Attempts.


@pytest.mark.parametrize("other", [-1, 1])
def test_a_node_of_another_session_is_not_claimed(world: World, other: int) -> None:
    attempt = claiming(world)
    (node,) = nodes(world)
    world.latency = BEAT / 2
    assert world.client.client_id is not None
    world.session._nodes.forget([node])
    world.session._nodes.add(node, world.client.client_id[0] + other)
    world.run(TIMEOUT)
    assert not attempt.done


def test_who_has_given_up_is_granted_nothing(world: World) -> None:
    token = world.acquire().token
    landed: list[Any] = []
    world.session.send_batch((Create(f"{PATH}/c-", b""),), landed.append)
    world.run()
    leave = partial(lock_recipe.leave, entry_of(PATH))
    attempt = world.session.attempt(leave(), terms=GrantOptions(PATH, "me", Grant))
    claim = Claim(landed[0][0].path, token, leave)
    attempt.cancel()
    assert world.session.claim(attempt, claim) is None
    assert len(world.session.grants(PATH)) == 1


def test_a_pause_ends_unless_it_is_called_off(world: World) -> None:
    ended: list[str] = []
    call_off = world.session.pause(1.0, lambda: ended.append("called off"))
    world.session.pause(2.0, lambda: ended.append("not"))
    call_off()
    world.run(2.0)
    assert ended == ["not"]


def test_a_look_at_its_own_node_is_no_proof(world: World) -> None:
    grant = world.acquire()
    before = world.session.lease_end
    world.now += BEAT / 2
    landed: list[Any] = []
    world.session.send_batch((Exists(grant.path),), landed.append)
    world.run()
    assert landed[0][0].mine
    assert world.session.lease_end == before


def made(world: World, parent: str = PATH) -> None:
    world.session.send_batch((Create(f"{parent}/c-", b""),), lambda _: None)


def found(world: World) -> None:
    world.session.send_batch((Exists(next(iter(world.session._nodes))),), lambda _: None)


@pytest.mark.parametrize("touch", [made, found])
def test_what_finds_or_makes_a_node_is_a_touch(
    world: World, touch: Callable[[World], None]
) -> None:
    world.server.make_path(PATH)
    made(world)
    world.run(5 * TIMEOUT)
    sent = world.now
    touch(world)
    world.run(TIMEOUT / 2)
    made(world)  # a proof
    world.run()
    assert world.session.lease_end == sent + 29 / 30 * TIMEOUT


def test_a_node_that_is_leaving_is_not_claimed(world: World) -> None:
    world.server.make_path(PATH)
    made(world)
    made(world)
    world.run()
    mine = tuple(world.session._nodes)
    assert len(mine) == 2
    world.latency = math.inf
    world.session.send_batch(tuple(map(Delete, mine)), lambda _: None)
    assert list(world.session._nodes) == []


def test_an_attempt_that_parks_when_it_is_connected_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.acquire("/other")
    once = iter([False])  # the connection comes while the attempt is being parked
    monkeypatch.setattr(Session, "connected", property(lambda _: next(once, True)))
    attempt = world.ask_for()
    assert attempt in world.session._parked
    world.run()
    assert attempt.result().held


def test_so_many_go_on_after_a_lost_connection_before_there_is_an_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of requests at once would hold up the heartbeats."""
    monkeypatch.setattr(session_module, "AT_ONCE", 3)
    paths = [f"/lock{n}" for n in range(8)]
    for path in paths:
        world.server.make_path(path)
    world.disconnect()
    attempts = [world.ask_for(path) for path in paths]
    world.latency = 0.1
    world.connect()
    world.run()
    world.session._worker.wake()
    world.run()
    begun = []
    for _ in range(4):
        begun.append(len(world.requests(Create)))
        world.run(0.1)
    assert begun == [3, 6, 8, 8]
    world.run(TIMEOUT)
    assert all(attempt.result().held for attempt in attempts)


def test_those_that_wait_for_an_answer_go_on_with_the_next_connection(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "AT_ONCE", 3)
    world.disconnect()
    attempts = [world.ask_for(f"/lock{n}") for n in range(8)]
    world.latency = 0.1
    world.connect()
    world.disconnect()  # before the answer
    world.connect()
    world.run(TIMEOUT)
    assert all(attempt.result().held for attempt in attempts)


@pytest.mark.parametrize("which", ["_worker", "_executor"])
def test_nothing_is_acquired_if_threads_cannot_be_started(
    world: World, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread() -> None:
        raise NoThread("can't start new thread")

    monkeypatch.setattr(getattr(world.session, which), "ready", no_thread)
    with pytest.raises(ZkLockError, match="can't start new thread") as raised:
        world.ask_for()
    assert raised.value.path == PATH
    world.run()
    assert world.requests(Create) == []
    assert world.session._attempts == {}


class Awaited(Grant):
    """A grant whose callbacks do not run on threads."""

    _AWAITS = True


def test_a_grant_that_is_awaited_needs_no_thread_for_callbacks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread() -> None:
        raise NoThread("can't start new thread")

    monkeypatch.setattr(world.session._executor, "ready", no_thread)
    entry = lock_recipe.Entry(PATH, b"me", names.Kind.EXCLUSIVE)
    attempt = world._stand(entry, GrantOptions(PATH, "me", Awaited))
    world.run()
    assert attempt.result().held


def parked(world: World) -> Attempt[Any]:
    world.disconnect()
    return world.ask_for()


def claiming(world: World) -> Attempt[Any]:
    """Return an attempt that waits for a lease, as the session was not used for long."""
    world.run(5 * TIMEOUT)
    attempt = world.ask_for()
    world.run()
    assert len(nodes(world)) == 1
    return attempt


def waiting(world: World) -> Attempt[Any]:
    world.acquire()
    attempt = world.ask_for()
    world.run()
    return attempt


@pytest.mark.parametrize(
    ("scene", "kept"),
    [
        (parked, lambda session: session._parked),
        (claiming, lambda session: session._awaiting_lease),
        (waiting, lambda session: session._watchers.everyone()),
        (waiting, lambda session: session._attempts),
    ],
)
def test_what_is_over_is_forgotten(
    world: World, scene: Callable[[World], Attempt[Any]], kept: Callable[[Any], Any]
) -> None:
    attempt = scene(world)
    assert attempt in kept(world.session)
    attempt.cancel()
    world.run()
    assert attempt not in kept(world.session)


def test_a_claim_whose_node_is_gone_is_made_again_with_another(world: World) -> None:
    attempt = claiming(world)
    (gone,) = nodes(world)
    world.server.delete(gone)
    world.run(2 * BEAT)
    assert not attempt.done
    (node,) = nodes(world)
    assert node != gone
    world.run(TIMEOUT)
    assert attempt.result().path == node


def test_a_node_that_nobody_uses_is_deleted(world: World) -> None:
    grant, other = world.acquire(), world.acquire("/other")
    world.session.delete_orphan(other.path)
    world.run()
    assert nodes(world) == [grant.path]
    assert nodes(world, "/other") == []


@pytest.mark.hazard("H56")
@pytest.mark.parametrize("late", [0.0, 0.5, 4.0, 50.0])
def test_a_disowned_create_that_is_late_is_deleted(world: World, late: float) -> None:
    world.server.make_path(PATH)
    world.session.abandon_create(PATH, UUID)
    world.run(late)
    assert world.client.client_id is not None
    world.server.create(f"{PATH}/_c_{UUID}-lock-", b"", world.client.client_id[0])
    assert len(nodes(world)) == 1
    world.run(0.2 + late / 4)
    assert nodes(world) == []
    assert not world.session._attempts


def test_a_disowned_create_that_may_not_be_looked_for_now_is_deleted_later(world: World) -> None:
    world.server.make_path(PATH)
    assert world.client.client_id is not None
    world.server.create(f"{PATH}/_c_{UUID}-lock-", b"", world.client.client_id[0])
    world.server.denied.add(List)
    world.session.abandon_create(PATH, UUID)
    world.run(2.0)
    assert len(nodes(world)) == 1
    world.server.denied.clear()
    world.run(1.0)
    assert nodes(world) == []
    assert not world.session._attempts


def test_creates_that_are_lost_at_the_same_time_are_looked_for_together(world: World) -> None:
    world.server.make_path(PATH)
    uuids = [f"{number:032}" for number in range(100)]
    for uuid in uuids[:50]:
        world.session.abandon_create(PATH, uuid)
    world.run(0.05)
    for uuid in uuids[50:]:
        world.session.abandon_create(PATH, uuid)
    world.run(0.1)
    assert len(world.session._attempts) == 1
    assert len(world.requests(List)) == 1
    assert world.client.client_id is not None
    for uuid in uuids[::3]:
        world.server.create(f"{PATH}/_c_{uuid}-lock-", b"", world.client.client_id[0])
    world.session.abandon_create(PATH, UUID)  # later: it is looked for soon, too
    world.server.create(f"{PATH}/_c_{UUID}-lock-", b"", world.client.client_id[0])
    world.run(0.2)
    assert nodes(world) == []
    assert len(world.session._attempts) == 1


def test_a_disowned_create_is_looked_for_in_vain_for_a_time(world: World) -> None:
    world.server.make_path(PATH)
    world.session.abandon_create(PATH, UUID)
    world.run(max(LATENESS, LATE_TIMEOUTS * TIMEOUT))
    assert world.session._attempts
    world.run(LATENESS / 2)
    assert not world.session._attempts


def test_a_disowned_create_is_forgotten_with_its_session(world: World) -> None:
    world.server.make_path(PATH)
    world.session.abandon_create(PATH, UUID)
    world.run(1.0)
    world.server.expire(world.session._id or 0)
    world.disconnect()
    world.connect()
    assert not world.session._attempts


@pytest.mark.parametrize("how", ["the session ends", "the client is started again"])
def test_a_session_that_ends_before_the_first_look_keeps_no_later_look_away(
    world: World, how: str
) -> None:
    world.server.make_path(PATH)
    world.session.abandon_create(PATH, "1" * 32)
    world.run(0.05)
    world.server.expire(world.session._id or 0)
    if how == "the session ends":
        world.disconnect()
    else:
        world.stop()
        world.client.client_id = None
    world.connect()
    world.session.abandon_create(PATH, UUID)
    assert world.client.client_id is not None
    world.server.create(f"{PATH}/_c_{UUID}-lock-", b"", world.client.client_id[0])
    world.run(0.2)
    assert nodes(world) == []


def test_a_disowned_create_is_forgotten_with_its_client(world: World) -> None:
    world.session.abandon_create(PATH, UUID)
    world.run(1.0)
    world.stop()
    assert not world.session._attempts


# Grants that are given back.


def test_a_grant_is_given_back_when_the_interrupted_change_is_over(world: World) -> None:
    grant = world.acquire()
    world.free = False
    with world.session.guard:
        grant.abandon()
        assert world.requests(Delete) == []
        assert grant.path in world.session._nodes
    world.free = True
    world.run()
    assert nodes(world) == []
    assert list(world.session._nodes) == []


def test_an_interrupted_release_is_finished_once_and_no_other_grant_ends(world: World) -> None:
    released, interrupted, held = (world.acquire(path) for path in ("/a", "/b", "/c"))
    given = world.session.release_grant(released)
    end = End(State.RELEASED)
    interrupted._end_with(end)
    assert len(world.requests(Delete)) == 1
    for _ in range(2):
        for grant in (released, interrupted, held):
            world.session.finish(grant, end)
    world.run()
    assert nodes(world, "/a") == nodes(world, "/b") == []
    assert len(nodes(world, "/c")) == 1
    assert held.held
    assert isinstance(given, Attempt)
    assert given.done
    assert len(world.requests(Delete)) == 2


def test_a_confirmation_by_a_quorum_extends_the_lease(world: World) -> None:
    grant = world.acquire()
    before = world.session.lease_end
    world.latency = BEAT
    world.run(BEAT / 2)
    world.session.confirmed(grant, world.now, True)
    assert world.session.lease_end == world.now + LEASE > before
    assert grant.held


# Heartbeats that are refused.


def refuse_heartbeats(world: World, why: Failure, monkeypatch: pytest.MonkeyPatch) -> None:
    served = world.server.write

    def write(session: int, request: Any) -> Any:
        refused = isinstance(request, Check)
        return failure(why, request.path) if refused else served(session, request)

    monkeypatch.setattr(world.server, "write", write)


@pytest.mark.parametrize(
    ("why", "said"),
    [
        (Failure.OTHER, ["ZooKeeper refused a heartbeat: the lease will end"]),
        (Failure.DROPPED, []),
        (Failure.DENIED, ["ACLs refuse the heartbeats: every lease will end"]),
    ],
)
def test_heartbeats_that_fail_prove_nothing_and_errors_are_told(
    world: World,
    why: Failure,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    grant = world.acquire()
    end = world.session.lease_end
    refuse_heartbeats(world, why, monkeypatch)
    world.run(1.5 * BEAT)
    assert [record.message.partition(" (")[0] for record in caplog.records] == said
    assert world.session.lease_end == end
    assert grant.held


# The thread and the callers of a client that is not used, or closed.


def ends(world: World) -> list[float]:
    """Return the list of the times at which the callers were told to end."""
    times: list[float] = []
    world.session._executor.end = lambda: times.append(world.now)  # type: ignore[method-assign]
    return times


def test_the_threads_end_with_the_client(world: World) -> None:
    times = ends(world)
    world.acquire()
    world.stop()
    assert times
    assert world._due is None


def test_the_threads_stay_while_an_unused_client_is_connected(world: World) -> None:
    times = ends(world)
    world.acquire().abandon()
    world.run(3 * TIMEOUT)
    assert times == []
    assert world._due == float("inf")
    world.disconnect()
    assert times == [world.now]
    assert world._due is None


def test_an_attempt_that_waits_for_the_connection_keeps_the_threads(world: World) -> None:
    world.disconnect()
    attempt = world.ask_for()
    times = ends(world)
    world.run(3 * TIMEOUT)
    assert times == []
    world.connect()
    world.run()
    assert attempt.result().held


# Forks.


def test_a_forked_child_has_lost_all_and_says_why(world: World) -> None:
    lost: list[Loss] = []
    grant = world.acquire(on_lost=lost.append)
    assert world.session.remaining() > 0
    held = threading.Event()
    over = threading.Event()

    def hold() -> None:
        with world.session.guard:
            held.set()
            over.wait(20.0)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(60.0)
        world.session.after_fork()
        assert world.session.remaining() == 0.0
        assert not world.session.interrupted
        assert thread.is_alive(), "it has waited for the other thread"
    finally:
        over.set()
        thread.join(60.0)
    assert grant.lost.is_set()
    world.run()
    assert [(loss.grant, loss.reason) for loss in lost] == [(grant, LossReason.FORKED)]
    assert list(world.session._nodes) == []


# Clients that zklock did not make.


@pytest.mark.parametrize(
    ("given", "timeout", "lease"), [(None, 4.0, 1.2), (TIMEOUT, TIMEOUT, 4.4), (30.0, 30.0, 11.6)]
)
def test_a_timeout_that_is_not_negotiated_is_given_or_taken_for_four_seconds(
    given: float | None, timeout: float, lease: float, caplog: pytest.LogCaptureFixture
) -> None:
    """kazoo's last ping may have been sent 1/3 T + 0.4 s before what a proof goes by."""
    world = World(wired=False, settings=LeaseSettings(given))
    world.connect()
    assert ("assumes 4.0 s" in caplog.text) == (given is None)
    assert world.session.timeout == timeout
    assert world.acquire().remaining() == pytest.approx(lease)


# CallbackExecutor that wait, and those who are told.


@pytest.mark.parametrize("awaited", [False, True])
def test_who_waits_for_a_release_may_hear_the_answer(world: World, awaited: bool) -> None:
    grant = world.acquire()
    assert world.store.awaited == []
    world.session.release_grant(grant, **({"awaited": True} if awaited else {}))
    assert world.store.awaited == [(Delete(grant.path),)] * awaited
    world.run()
    assert nodes(world) == []


def test_a_release_that_is_put_off_is_heard_by_nobody_who_waits(world: World) -> None:
    grant = world.acquire()
    world.free = False
    with world.session.guard:
        world.session.release_grant(grant, awaited=True)
        world.run()
    assert nodes(world) == []
    assert world.store.awaited == []


def test_it_is_interrupted_where_its_handler_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not world.session.interrupted
    monkeypatch.setattr(world.client.handler, "interrupted", lambda: True)
    assert world.session.interrupted


@pytest.mark.parametrize("first", [0, 1, 2])
def test_all_nodes_that_a_batch_finds_or_makes_are_its_own(world: World, first: int) -> None:
    """And a create anywhere in a batch proves that the session lives."""
    world.server.make_path(PATH)
    made(world)
    made(world)
    world.run()
    mine = nodes(world)
    world.session._nodes.forget(mine)
    before = world.session.lease_end
    world.run(BEAT / 2)
    asked: list[Any] = [*map(Exists, mine), Create(f"{PATH}/c-", b"")]
    world.session.send_batch((*asked[first:], *asked[:first]), lambda _: None)
    world.run()
    assert sorted(world.session._nodes) == nodes(world)
    assert len(nodes(world)) == 3
    assert world.session.lease_end > before


@pytest.mark.parametrize("other", [-1, 1])
def test_a_node_that_lands_on_a_later_session_stays_one_of_its_own(
    world: World, other: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session was replaced between the reply and its landing."""
    landings: list[Callable[[Any], None]] = []
    monkeypatch.setattr(
        world.session._store, "send_batch", lambda _, done, __: landings.append(done)
    )
    made(world)
    assert world.client.client_id is not None
    owner, _ = world.client.client_id
    world.session._id = owner + other
    landings[0]((Node(f"{PATH}/c-0", b"", owner, mine=True),))
    own = world.session._nodes.get(f"{PATH}/c-0")
    assert own is not None
    assert own.owner == owner


def test_grants_are_told_by_the_path_of_their_lock(world: World) -> None:
    grant = world.acquire()
    world.acquire("/other")
    assert world.session.grants_at(PATH) == [grant]


def claiming_for_long(world: World) -> Attempt[Any]:
    """Return an attempt that waits for a lease: a proof that is sent now would give it one."""
    attempt = claiming(world)
    world.latency = math.inf
    world.run(0.25 * TIMEOUT)
    assert list(world.session._awaiting_lease) == [attempt]
    world.latency = 0.0
    world.sent.clear()
    return attempt


def test_a_proof_is_told_by_the_sessions_own_thread_to_who_claims(world: World) -> None:
    """On a user's thread, an interrupt could tear those who claim, who are others."""
    attempt = claiming_for_long(world)
    world.session._proved(world.now)
    assert world.requests(List) == []
    world.run()
    assert world.session._awaiting_lease == {}
    assert world.requests(List) == [world.now]  # it looks once more before it claims
    world.disconnect()
    world.connect()
    assert attempt.result().held


def test_when_a_node_was_read_is_noted_for_those_who_are_asked_beside_it_alone(
    world: World,
) -> None:
    grant, leadership = world.acquire(), world.stand("/election")
    world.run(2 * BEAT)
    read_at = [
        own.read_at
        for path in (grant.path, leadership.result().path)
        if (own := world.session._nodes.get(path))
    ]
    assert read_at[0] < 0.0 < read_at[1] <= world.now


# Limits, and what comes in between.


@pytest.mark.parametrize("late", [0.0, 0.5])
def test_a_lease_that_is_over_leaves_nothing_and_its_grants_are_lost(
    world: World, late: float
) -> None:
    grant = world.acquire()
    world.now = world.session.lease_end + late
    assert world.session.remaining() == 0.0
    world.run()
    assert grant.lost.is_set()


def test_a_loss_that_a_signal_handler_finds_has_its_line_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    grant = world.acquire()
    world.now = world.session.lease_end
    world.free = False
    with world.session.guard:
        assert not grant.held
        assert "lock lost at" not in caplog.text  # the handler may have interrupted logging, too
    world.free = True
    world.run(1.0)
    assert caplog.text.count("lock lost at") == 1


def test_what_an_interrupted_thread_proves_does_not_revive_a_lease_that_is_over(
    world: World,
) -> None:
    """The thread has looked at the lease, and is about to extend it; a signal handler looks."""
    grant = world.acquire()
    world.now = world.session.lease_end
    world.free = False
    with world.session.guard:
        assert world.session.remaining() == 0.0
        world.session._lease.proved(world.now)
    world.free = True
    assert not grant.held
    world.run()
    assert grant.lost.is_set()


def test_a_session_turns_when_an_interrupted_one_was_found_over(world: World) -> None:
    grant = world.acquire()
    world.run()
    world.now = world.session.lease_end
    world.wake = lambda: woken.append(world.now)  # type: ignore[method-assign]
    woken: list[float] = []
    world.free = False
    with world.session.guard:
        assert not grant.held
    world.free = True
    assert woken == [world.now]


def test_who_waits_looks_again_after_a_lost_connection(world: World) -> None:
    other = world.server.open_session()
    world.server.make_path(PATH)
    before = world.server.create(f"{PATH}/_c_{'0' * 32}-lock-", b"", other)
    attempt = world.ask_for()
    world.run(BEAT)
    assert not attempt.done
    world.disconnect()
    assert isinstance(before, str)
    world.server.delete(before)
    world.connect()
    world.run(BEAT)
    assert attempt.result().held


def test_a_proof_is_sent_as_soon_as_it_is_connected_again(world: World) -> None:
    world.acquire()
    world.run(1.5 * BEAT)
    world.disconnect()
    world.run(0.1 * BEAT)
    world.sent.clear()
    world.connect()
    assert world.requests(Check) == [world.now]


def test_a_grant_whose_lease_is_over_is_lost_and_not_suspended(world: World) -> None:
    suspended: list[Any] = []
    grant = world.acquire(on_suspended=suspended.append)
    world.now = world.session.lease_end
    world.disconnect()
    assert grant.lost.is_set()
    assert suspended == []


# What follows from what, at once.


@pytest.mark.parametrize(("more", "granted"), [(0.01, True), (-0.01, False)])
def test_a_grant_is_made_if_two_heartbeats_are_left_of_the_lease(
    world: World, more: float, granted: bool
) -> None:
    world.server.make_path(PATH)
    world.acquire("/other")
    world.latency = LEASE - 2 * BEAT - more
    attempt = world.ask_for()
    world.run(world.latency)
    assert attempt.done is granted


def test_a_loss_that_a_late_proof_shows_is_told_at_once(world: World) -> None:
    grant = world.acquire(on_lost=lambda _: None)
    world.now = world.session.lease_end
    world.session.confirmed(grant, world.now, True)
    assert len(world.callbacks) == 1


def test_a_loss_that_an_interrupt_leaves_half_noted_is_noted_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = world.acquire()
    world.now = world.session.lease_end

    def struck() -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(world.session._nodes, "held", struck)
        world.session._proved(world.now)
    world.session._lease.proved(world.now)
    assert not grant.held
    assert grant.lost.is_set()


def test_a_session_that_ends_takes_the_nodes_that_are_not_granted_too(world: World) -> None:
    elsewhere = f"{PATH}-elsewhere"
    world.server.make_path(elsewhere)
    for _ in range(2):
        made(world, elsewhere)
    world.run()
    grant = world.acquire()
    world.client.client_state = KeeperState.EXPIRED_SESSION
    world._tell(KazooState.LOST)
    assert grant.lost.is_set()
    assert list(world.session._nodes) == []


def test_a_node_that_is_gone_is_not_deleted(world: World) -> None:
    grant = world.acquire()
    world.run(BEAT)
    world.server.delete(grant.path)
    world.deliver()
    world.run(BEAT)
    assert grant.lost.is_set()
    assert world.requests(Delete) == []


def test_no_node_of_a_session_that_is_over_is_deleted(world: World) -> None:
    grant = permits(world, 2)
    world.sent.clear()
    world.client.client_state = KeeperState.EXPIRED_SESSION
    world._tell(KazooState.LOST)
    world.run(BEAT)
    assert grant.lost.is_set()
    assert world.requests(Delete) == []


def test_a_claim_whose_node_is_gone_awaits_no_lease(world: World) -> None:
    attempt = claiming(world)
    (gone,) = nodes(world)
    other = world.server.open_session()
    world.server.create(f"{PATH}/_c_{'0' * 32}-lock-", b"", other)
    world.server.delete(gone)
    world.run(TIMEOUT)
    assert not attempt.done
    assert world.session._awaiting_lease == {}


def test_who_asks_after_the_end_of_the_client_is_told(world: World) -> None:
    world.acquire()
    world.stop()
    attempt = world.ask_for()
    world.run()
    with pytest.raises(ClientClosed):
        attempt.result()


def test_all_who_wait_at_the_end_of_the_client_get_an_error_of_their_own(world: World) -> None:
    """One that all raise would have all their tracebacks, and each of them would show all."""
    world.acquire()
    attempts = [world.ask_for() for _ in range(3)]
    world.run()
    world.stop()
    world.run()
    errors = []
    for attempt in attempts:
        with pytest.raises(ClientClosed, match="stopped") as told:
            attempt.result()
        errors.append(told.value)
    assert len(set(map(id, errors))) == 3


def test_a_late_answer_is_told_with_its_limits_and_the_session(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.acquire()
    world.latency = math.inf
    world.run(4 * BEAT)
    (record,) = caplog.records
    assert record.message == (
        "no answer to a heartbeat for 2.4 s: locks can be lost if an answer takes longer than "
        "3.6 s; reduce the load of the servers, or use a session timeout above 12 s"
    )
    assert world.client.client_id is not None
    assert record.__dict__["zklock_session"] == f"{world.client.client_id[0]:#x}"


def test_nothing_is_granted_once_heartbeats_are_denied(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = world.acquire()
    refuse_heartbeats(world, Failure.DENIED, monkeypatch)
    world.run(1.5 * BEAT)
    assert grant.held
    world.latency = BEAT / 10
    attempt = world.ask_for("/other")
    world.run(BEAT / 5)
    assert not attempt.done
    world.run(TIMEOUT)
    with pytest.raises(AccessDenied):
        attempt.result()


@pytest.mark.parametrize("paths", [PATHS, PATHS[::-1]])
def test_the_claim_is_refused_whose_heartbeat_was(
    world: World, paths: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run(5 * TIMEOUT)
    world.latency = 0.1
    attempts = {path: world.ask_for(path) for path in paths}
    denied: list[str] = []
    served = world.server.write

    def write(session: int, request: Any) -> Any:
        if isinstance(request, Check) and not denied:
            denied.append(request.path)
            return failure(Failure.DENIED, request.path)
        return served(session, request)

    monkeypatch.setattr(world.server, "write", write)
    world.run(TIMEOUT)
    (path,) = (path for path in PATHS if denied[0].startswith(path))
    with pytest.raises(AccessDenied):
        attempts.pop(path).result()
    (other,) = attempts.values()
    assert other.result().held


@pytest.mark.parametrize("ask", [World.ask_for, World.stand], ids=["lock", "election"])
def test_a_node_that_is_gone_when_it_is_to_be_watched_is_lost_at_once(
    world: World, ask: Callable[..., Attempt[Any]]
) -> None:
    lost: list[LossReason] = []
    for number in range(3):
        world.acquire(f"/other-{number}")
    attempt = ask(world, on_lost=lambda loss: lost.append(loss.reason))
    world.run()
    grant = attempt.result()
    world.server.delete(grant.path)
    world.sent.clear()
    world.latency = 0.1
    world.run(BEAT + 0.05)
    (check,) = (each for _, each in world.sent if isinstance(each, Check))
    assert check != Check(grant.path)
    assert not grant.lost.is_set()
    world.run(0.1)
    assert lost == [LossReason.NODE_DELETED]


def test_a_heartbeat_looks_only_at_nodes_without_their_watches(world: World) -> None:
    nodes = world.session._nodes
    world.acquire("/first").abandon()  # the first heartbeat is sent
    world.sent.clear()
    grants = [world.acquire(f"/lock-{number}") for number in range(3)]
    given_back, fired, other = (grant.path for grant in grants)
    assert list(nodes.unwatched) == [given_back, fired, other]
    grants[0].abandon()
    assert list(nodes.unwatched) == [fired, other]
    world.run(BEAT)
    assert not nodes.unwatched
    assert {each.path for _, each in world.sent if isinstance(each, Watch)} == {fired, other}
    world.on_event(states.CHANGED, fired)
    assert list(nodes.unwatched) == [fired]
    world.run(BEAT)
    assert not nodes.unwatched
    world.disconnect()
    assert sorted(nodes.unwatched) == [fired, other]


def test_so_many_watches_are_placed_before_another_heartbeat_is_answered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes_module, "WATCHED_AT_ONCE", 3)
    world.acquire("/first").abandon()  # the first heartbeat is sent
    grants = [world.acquire(f"/lock-{number}") for number in range(8)]
    world.sent.clear()
    world.latency = BEAT / 20
    world.run(BEAT)
    placed = []
    for _ in range(4):
        placed.append(len(world.requests(Watch)))
        world.run(world.latency)
    assert placed == [3, 6, 8, 8]
    assert {each.path for _, each in world.sent if isinstance(each, Watch)} == {
        grant.path for grant in grants
    }


def test_a_watch_that_is_refused_is_placed_again_with_the_next_heartbeat(world: World) -> None:
    world.acquire("/first").abandon()  # the first heartbeat is sent
    world.server.denied.add(Watch)
    grant = world.acquire()
    world.run(3 * BEAT)
    assert len(world.requests(Watch)) == 3
    world.server.denied.clear()
    world.run(BEAT)
    assert not world.session._nodes.unwatched
    assert grant.held


def test_a_node_that_is_gone_at_a_heartbeat_is_lost_at_once(world: World) -> None:
    lost: list[LossReason] = []
    world.acquire("/other").abandon()
    grant = world.acquire(on_lost=lambda loss: lost.append(loss.reason))
    del world.session._nodes.unwatched[grant.path]  # but what the watch has told is lost
    world.server.delete(grant.path)
    world.latency = 0.1
    world.run(BEAT + 0.05)
    assert not grant.lost.is_set()
    world.run(0.1)
    assert lost == [LossReason.NODE_DELETED]


def test_an_own_node_that_is_written_to_is_read_at_once(world: World) -> None:
    asked: list[Any] = []
    grant = world.acquire(on_release_requested=asked.append)
    world.run(1.5 * BEAT)
    world.server.commit(Written(grant.path, bytes(NodeData(b"me", asked="please"))))
    world.deliver()
    world.run()
    assert asked == [grant]


def test_what_is_written_to_the_path_of_a_lock_is_not_read(world: World) -> None:
    world.acquire()
    world.run(1.5 * BEAT)
    world.sent.clear()
    world.on_event(states.CHANGED, PATH)
    world.run(2 * BEAT)
    assert world.requests(Watch) == []


def test_a_worn_out_path_is_deleted_with_a_node_that_nobody_uses(world: World) -> None:
    world.server.make_path(PATH)
    assert world.client.client_id is not None
    world.server.commit(Counted(PATH, names.RENEW_AT))
    node = world.server.create(f"{PATH}/_c_{'0' * 32}-lock-", b"", world.client.client_id[0])
    assert isinstance(node, str)
    world.session.delete_orphan(node)
    world.run()
    assert PATH not in world.server.tree.nodes


def test_a_forked_child_begins_with_nothing_to_do(world: World) -> None:
    """The fork may have come in the middle of a change of the same thread."""
    session = world.session
    grant = world.acquire(on_lost=lambda _: None)
    forgotten: list[Any] = []
    grant._forget_waiters = lambda: forgotten.append(grant)  # type: ignore[method-assign]
    callers, world.free = session._executor, False
    with session.guard:
        session.deferred.add(lambda: forgotten.append("the work of the parent"))
        session.after_fork()
        assert not session.interrupted
    assert session._executor is not callers
    world.free = True
    session.remaining()
    assert forgotten == [grant]


# What it says, and to whom.


@pytest.mark.parametrize(("count", "more"), [(2, ")"), (20, ")"), (22, ", and 2 more")])
def test_locks_that_are_lost_together_are_told_of_in_one_line(
    world: World, caplog: pytest.LogCaptureFixture, count: int, more: str
) -> None:
    for number in range(count):
        world.server.make_path(f"/lock{number}")
    attempts = [world.ask_for(f"/lock{number}") for number in range(count)]
    world.run()
    assert all(attempt.made == (attempt.result(),) for attempt in attempts)
    world.session.on_give_up()
    world.run()
    assert not any(attempt.result().held for attempt in attempts)
    (said,) = [each.getMessage() for each in caplog.records if "lost" in each.getMessage()]
    assert said.startswith(f"{count} locks of one session lost at")
    assert said.count("(token ") == min(count, 20)
    assert said.endswith(more)


def test_an_error_when_the_session_is_given_up_does_not_end_who_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(reason: LossReason) -> None:
        raise RuntimeError

    monkeypatch.setattr(world.session, "_end_session", fails)
    with ThreadPoolExecutor() as pool:
        pool.submit(world.session.on_give_up).result()
    assert "an error in zklock" in caplog.text


def test_nothing_is_asked_while_the_interpreter_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "is_finalizing", lambda: True)
        with pytest.raises(ZkLockError, match="shutting down"):
            world.session.check_usable()
    world.session.check_usable()


@pytest.mark.parametrize("forked", [False, True])
def test_the_threads_of_callbacks_end_in_a_forked_child(world: World, forked: bool) -> None:
    executor: Any = world.session._executor
    world.session._forked = forked
    world.session.notify([])
    assert executor.ends == forked


def test_who_does_not_say_so_does_not_hear_the_answers(world: World) -> None:
    store: Any = world.session._store
    world.session.send_batch((Exists(PATH),), lambda _: None)
    world.session.send_batch((Exists(PATH),), lambda _: None, True)
    assert store.awaited == [(Exists(PATH),)]
    assert world.session.hear == store.hear


def test_a_connected_client_of_others_can_be_looked_after() -> None:
    world = World(wired=False)
    world.connect()
    world.begin(LeaseSettings())
    assert world.ask_for() is not None
    world.run()


def test_a_node_that_is_about_to_be_deleted_is_forgotten(world: World) -> None:
    world.server.make_path(PATH)
    made(world)
    world.run()
    (node,) = world.session._nodes
    world.session.forget(node)
    assert list(world.session._nodes) == []
