"""The session with its lease, heartbeat and watches, on a clock that the test moves."""

from __future__ import annotations

import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from types import FrameType
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

import pytest
from kazoo.security import make_acl

from tests.contract.support import SOON
from tests.unit.sessions import CLOSED, PATH, TIMEOUT, World, nothing_logged_in_a_step
from zklock import (
    AccessDenied,
    LockLost,
    LossReason,
)
from zklock._core import watches
from zklock._core.attempt import Attempt
from zklock._core.keep import Place
from zklock._core.session import DELETED
from zklock._core.watches import LOOK_AGAIN
from zklock._election import observe
from zklock._recipes import names, nodedata, queries
from zklock._recipes.effects import Check, Exists, List, Request, Sync, Watch
from zklock._recipes.notes import Notes
from zklock.testing.zookeeper.messages import GetData

BEAT = TIMEOUT / 10
LEASE = 2 / 3 * TIMEOUT
Make = Callable[..., World]


@pytest.fixture
def make() -> Iterator[Make]:
    with ExitStack() as stack:

        def made(*, connected: bool = True, **options: Any) -> World:
            world = World(**options)
            stack.enter_context(nothing_logged_in_a_step(world))
            if connected:
                world.connect()
            return world

        yield made


@pytest.fixture
def world(make: Make) -> World:
    return make()


def lead(world: World, **options: Any) -> Any:
    """Return a leadership that is free."""
    attempt = world.stand(**options)
    world.run()
    return attempt.result()


def requested(leadership: Any) -> bytes:
    name = leadership.path.rpartition("/")[2]
    return bytes(Notes().asking(name, [name]))


def note(world: World, leadership: Any) -> None:
    """Have a leader asked to release."""
    world.server.write(PATH, requested(leadership))
    world.deliver()


def stand_before(world: World, path: str = PATH, count: int = 2) -> list[str]:
    """Have contenders of another session stand in a queue; return their nodes."""
    other = world.server.open_session()
    world.server.make_path(path)
    prefix = f"{path}/{names.prefix(names.Kind.EXCLUSIVE, str(uuid4()))}"
    return [world.server.create(prefix, b"", other) for _ in range(count)]


@pytest.fixture
def others(world: World) -> list[str]:
    return stand_before(world)


def leave(world: World, *nodes: str) -> None:
    """Have nodes deleted; the client hears of it."""
    for node in nodes:
        world.server.delete(node)
    world.deliver()


def idle(world: World) -> None:
    """Have three answers to what proves nothing come, one every third of the timeout."""
    for _ in range(3):
        world.run(TIMEOUT / 3)
        world.shell.step(world.session.touched, world.now)


def since(world: World, began: float, kind: type[Request]) -> list[float]:
    return [when for when in world.requests(kind) if when > began]


def every_beat(times: list[float], timeouts: int) -> bool:
    """Whether there was one for each beat of so many timeouts."""
    gaps = [after - before for before, after in pairwise(times)]
    return gaps == pytest.approx([BEAT] * len(gaps)) and 0 <= 10 * timeouts - len(times) <= 1


def watched(world: World) -> list[str]:
    return [request.path for _, request in world.sent if isinstance(request, Watch)]


class TestLease:
    def test_counts_from_when_the_proof_was_sent(self, world: World) -> None:
        grant = world.acquire()
        world.latency = 0.5
        world.run(2 * TIMEOUT)
        sent = [when for when in world.requests(Check) if when <= world.now - 0.5][-1]
        assert world.session.lease_end <= sent + LEASE
        assert grant.held

    def test_is_over_for_who_looks_before_the_thread_does(self, world: World) -> None:
        grant = world.acquire()
        world.now = world.session.lease_end
        with pytest.raises(LockLost):
            grant.check()
        assert grant.lost.is_set()

    def test_that_is_over_is_not_revived_by_a_late_proof(self, world: World) -> None:
        grant = world.acquire()
        world.run(TIMEOUT)
        world.latency = 0.3 * TIMEOUT
        world.run(0.25 * TIMEOUT)
        world.now = world.session.lease_end + 1
        world.arrive()
        assert world.session.remaining() > 0
        assert not grant.held

    def test_is_not_waited_for_after_a_touch_that_went_out_behind_the_create(
        self, world: World
    ) -> None:
        """There were no nodes: it was no rest."""
        world.server.make_path(PATH)
        idle(world)
        world.run(0.25 * TIMEOUT)
        world.latency = 1.1 * BEAT
        attempt = world.ask_for()
        world.run(world.latency)
        assert attempt.result().held
        assert world.requests(Check) == []

    def test_counts_a_ping_from_when_it_was_sent(self, world: World) -> None:
        """After an idle time, kazoo's pings are all that the leader has heard of."""
        world.server.make_path(PATH)
        world.run(2 * TIMEOUT)
        world.shell.step(world.session.touched, world.now - 2 * BEAT)
        world.run(3 * BEAT)
        assert world.acquire().remaining() == pytest.approx((29 / 30 - 5 / 10) * TIMEOUT)

    def test_is_not_granted_on_when_little_is_left(self, world: World) -> None:
        world.acquire("/other")
        world.run(TIMEOUT)
        world.now = world.session.lease_end - 2 * BEAT + 0.01
        world.latency = math.inf
        attempt = world.ask_for()
        world.run(BEAT)
        assert not attempt.done


class TestHeartbeats:
    def test_take_turns_among_the_nodes(self, world: World) -> None:
        paths = {world.acquire(f"/lock-{number}").path for number in range(3)}
        world.sent.clear()
        world.run(3.5 * BEAT)
        checked = [request.path for _, request in world.sent if isinstance(request, Check)]
        assert set(checked) == paths
        assert len(checked) == 3

    def test_of_a_server_that_hangs_drop_the_connection_once(
        self, world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        drops: list[float] = []
        monkeypatch.setattr(world.shell, "drop", lambda: drops.append(world.now))
        world.acquire()
        world.run(TIMEOUT)
        world.latency = math.inf
        world.run(BEAT)
        (first,) = since(world, world.now - BEAT, Check)
        world.run(0.4 * TIMEOUT)
        assert drops == pytest.approx([first + TIMEOUT / 3])
        assert [record.message[:31] for record in caplog.records] == [
            "no answer to a heartbeat for 2.",
            "no answer to a heartbeat for 4 ",
        ]

    @pytest.mark.parametrize("everything", [False, True])
    def test_that_acls_may_deny_come_before_the_first_grant(
        self, make: Make, everything: bool
    ) -> None:
        acl = make_acl("world", "anyone", read=everything, create=True, delete=True, write=True)
        world = make(acl=[acl])
        world.server.make_path(PATH)
        world.latency = 0.1
        attempt = world.ask_for()
        world.run(BEAT)
        if everything:
            assert attempt.result().held
            assert world.requests(Check)
        else:
            with pytest.raises(AccessDenied):
                attempt.result()

    def test_that_acls_deny_later_let_the_lease_lapse(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        grant = world.acquire()
        world.run(TIMEOUT)
        world.server.deny(grant.path)
        world.run(LEASE + BEAT)
        assert grant.lost.is_set()
        assert "ACLs refuse the heartbeats" in caplog.text


class TestRest:
    """What a session does that holds nothing, while its contenders wait."""

    def proofs_and_touches(self, world: World, seconds: float) -> tuple[list[float], list[float]]:
        began = world.now
        world.run(seconds)
        one, other = since(world, began, Sync), since(world, began, Exists)
        assert abs(len(one) - len(other)) <= 1
        return since(world, began, Check), sorted(one + other)

    def waits(self, world: World, seconds: float = 0.0) -> Attempt[Any]:
        attempt = world.ask_for()
        world.run(BEAT + seconds)
        return attempt

    @pytest.mark.parametrize("next_in_line", [False, True])
    def test_proves_nothing(self, world: World, others: list[str], next_in_line: bool) -> None:
        if next_in_line:
            world.server.delete(others[1])
        self.waits(world)
        proofs, touches = self.proofs_and_touches(world, 5 * TIMEOUT)
        assert proofs == []
        assert every_beat(touches, 5)

    def test_not_of_a_session_that_holds(self, world: World, others: list[str]) -> None:
        grant = world.acquire("/another")
        self.waits(world, 5 * TIMEOUT)
        assert grant.remaining() > LEASE - BEAT - 0.01
        grant.abandon()
        world.run(2 * BEAT)
        assert self.proofs_and_touches(world, TIMEOUT)[0] == []

    def test_ends_with_a_proof_beside_the_look(self, world: World, others: list[str]) -> None:
        attempt = self.waits(world, 5 * TIMEOUT)
        world.latency = BEAT / 4
        began = world.now
        leave(world, *others)
        sent = [type(request) for when, request in world.sent if when == began]
        assert {Check, List} <= set(sent)
        world.run(BEAT)
        grant = attempt.result()
        assert grant.remaining() > LEASE - BEAT - 0.01  # as in a session that did not rest
        world.latency = 0.0
        assert len(self.proofs_and_touches(world, TIMEOUT)[0]) in {9, 10}

    def test_that_ends_soon_after_a_proof_needs_no_other(
        self, world: World, others: list[str]
    ) -> None:
        attempt = world.ask_for()
        world.run(0.9 * BEAT)
        proofs = len(world.requests(Check))
        leave(world, *others)
        assert attempt.result().held
        assert len(world.requests(Check)) == proofs

    @pytest.mark.parametrize("told", [True, False])
    def test_has_a_grant_wait_for_a_proof_although_there_is_a_lease(
        self, world: World, others: list[str], told: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its turn comes otherwise than by a deletion that it is told of."""
        monkeypatch.setattr(watches, "LOOK_AGAIN", LOOK_AGAIN)
        world.server.delete(others[0])
        first = f"{PATH}/{names.prefix(names.Kind.WRITE, str(uuid4()))}"
        writer = world.server.create(first, b"", world.server.open_session())
        assert isinstance(writer, str)
        attempt = world.ask_for(kind=names.Kind.READ)
        world.run(3 * BEAT)
        leave(world, others[1])
        if not told:
            world.forget_watches()
            world.server.delete(writer)
            world.run(LOOK_AGAIN / 2)
        proofs, touches = len(world.requests(Check)), len(world.requests(Sync))
        while len(world.requests(Sync)) == touches:
            world.run(BEAT / 16)
        world.latency = BEAT / 16
        if told:
            world.server.write(writer, bytes(nodedata.NodeData(b"", True)))
            world.deliver()
        while not attempt.done:
            world.run(BEAT / 32)
        assert attempt.result().remaining() > LEASE - BEAT
        assert len(world.requests(Check)) == proofs + 1

    def test_goes_on_when_somebody_hears_of_a_deletion_who_wants_no_grant(
        self, world: World, others: list[str]
    ) -> None:
        self.waits(world)
        observed = stand_before(world, "/another", 1)
        changes: list[Any] = []
        world.session.attempt(partial(observe.observe, "/another", changes.append)).start()
        world.run(5 * TIMEOUT)
        proofs = len(world.requests(Check))
        leave(world, *observed)
        world.run(BEAT)
        assert changes[-1].leader is None
        assert len(world.requests(Check)) == proofs


class TestWhoIsToldNothing:
    """A server may tell a client nothing, and not even that."""

    @pytest.fixture(autouse=True)
    def looks_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watches, "LOOK_AGAIN", LOOK_AGAIN)

    def test_looks_again(self, world: World, others: list[str]) -> None:
        attempt = world.ask_for()
        world.run(BEAT)
        self.tells_nothing(world, others)
        world.run(LOOK_AGAIN / 2)
        assert not attempt.done
        world.run(LOOK_AGAIN / 2)
        assert attempt.result().held

    def test_looks_again_and_again(self, world: World, others: list[str]) -> None:
        for _ in range(3):
            world.ask_for()
            world.ask_for("/free")
        world.run(10 * LOOK_AGAIN)
        looks = Counter(watched(world))
        del looks[others[1]]
        assert set(looks.values()) <= {10, 11, 12, 20, 21, 22}, looks

    def test_does_not_look_when_all_others_do(self, world: World) -> None:
        count = 240
        for number in range(count):
            stand_before(world, f"/lock-{number}", 1)
            world.ask_for(f"/lock-{number}")
        world.run(BEAT)
        world.sent.clear()
        world.run(LOOK_AGAIN)
        times = Counter(world.requests(Watch))
        assert times.total() == pytest.approx(2 * count, abs=20)
        assert max(times.values()) <= 2 * (count * BEAT / LOOK_AGAIN + 1)

    def test_rests_all_the_same(self, world: World, others: list[str]) -> None:
        attempt = world.ask_for()
        world.run(5 * BEAT)
        world.latency = BEAT / 4
        proofs, looks = len(world.requests(Check)), len(watched(world))
        world.run(5 * LOOK_AGAIN)
        assert not attempt.done
        assert len(world.requests(Check)) == proofs
        assert len(watched(world)) > looks

    def tells_nothing(self, world: World, others: list[str]) -> None:
        world.forget_watches()
        leave(world, *others)


class TestWatches:
    def test_are_placed_behind_the_next_heartbeat(self, world: World) -> None:
        world.acquire("/other")
        world.run(3 * BEAT / 2)
        world.sent.clear()
        world.acquire()
        assert world.requests(Watch) == []
        world.run(BEAT)
        assert world.requests(Watch) == world.requests(Check)
        world.run(5 * BEAT)
        assert len(world.requests(Watch)) == 1

    def test_are_limited_in_bytes_and_all_placed_in_the_end(self, world: World) -> None:
        held = 600
        for number in range(held):
            world.acquire(f"/lock-{number}")
        world.latency = 0.1
        world.run(BEAT + 0.05)
        assert 0 < len(world.requests(Watch)) < held
        world.run(BEAT)
        assert len(world.requests(Watch)) == held

    def test_bring_a_leader_a_request_at_once(self, world: World) -> None:
        asked: list[Any] = []
        leadership = lead(world, on_release_requested=asked.append)
        world.run(2 * TIMEOUT)
        for count in (1, 2):
            note(world, leadership)
            assert asked == [leadership]
            assert watched(world).count(PATH) == 1 + count
            world.run(2 * TIMEOUT)

    def test_of_a_leader_are_renewed_once_a_heartbeat_at_most(self, world: World) -> None:
        """However often others write there; and each write is read."""
        asked: list[Any] = []
        leadership = lead(world, on_release_requested=asked.append)
        world.run(TIMEOUT)
        world.sent.clear()
        for number in range(200):
            world.server.write(PATH, b"%d" % number)
            world.deliver()
            world.run(BEAT / 10)
        assert watched(world).count(PATH) <= 21
        assert len(world.requests(Check)) <= 41
        note(world, leadership)
        world.run(BEAT)
        assert asked == [leadership]

    def test_that_fire_before_the_last_answer_are_not_missed(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.acquire("/some/lock")
        asked: list[Any] = []
        leadership = lead(world, on_release_requested=asked.append)
        serve, written = world.server.machine.request, nodedata.NodeData(b"me", asked="please")

        def serve_and_write(link: int, xid: int, request: Any, now: int) -> None:
            serve(link, xid, request, now)
            if request == GetData(leadership.path, True):
                assert watched(world)[-1] == PATH, "its answer is still to come"
                monkeypatch.undo()
                world.server.write(leadership.path, bytes(written))

        monkeypatch.setattr(world.server.machine, "request", serve_and_write)
        world.run(3 * BEAT)
        assert asked == [leadership]

    def test_of_what_somebody_else_deleted_grant_nothing(self, world: World) -> None:
        """The session's end, of which the client has not heard, takes all its nodes at once."""
        first = world.acquire()
        attempt = world.ask_for()
        world.run(BEAT)
        assert world.client.client_id is not None
        world.server.expire(world.client.client_id[0])
        paths = [first.path, *(path for path in world.session._nodes if path != first.path)]
        for path in paths:  # the server tells of them in any order
            world.shell.step(world.session.fired, DELETED, path)
            assert not attempt.done
        world.shell.work()
        assert first.lost.is_set()


class TestConnections:
    def test_of_an_unanswered_handshake_bound_the_lease(self, world: World) -> None:
        grant = world.acquire()
        world.disconnect()
        world.shell.step(world.session.asked, world.now, True)
        world.run(TIMEOUT / 6 - 0.01)
        assert grant.held
        world.run(0.02)
        assert grant.lost.is_set()

    def test_may_shorten_the_timeout(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        grant = world.acquire()
        world.run(TIMEOUT)
        for timeout in (TIMEOUT / 3, TIMEOUT):
            world.disconnect()
            world.connect(timeout)
            assert world.session.timeout == TIMEOUT / 3
            assert 0 < grant.remaining() <= LEASE / 3
        assert caplog.text.count("shortened the session timeout from 12 to 4 s") == 1

    def test_to_a_read_only_server_prove_nothing(self, world: World) -> None:
        grant = world.acquire()
        world.run(TIMEOUT)
        world.disconnect()
        asked = len(world.sent)
        world.connect(read_only=True)
        attempt = world.ask_for()
        world.run(TIMEOUT)
        assert world.sent[asked:] == []
        assert grant.lost.is_set()
        assert not attempt.done
        world.connect()
        world.run(TIMEOUT)
        assert attempt.result().held


class TestChanges:
    def test_leave_the_grants_of_other_locks_alone(self, world: World) -> None:
        one, two = world.acquire("/one"), world.acquire("/two")
        assert world.session.grants("/one") == [one]
        one.abandon()
        assert world.session.grants("/one") == []
        assert world.session.grants("/two") == [two]

    def test_by_a_fork_lose_everything(self, world: World) -> None:
        grant = world.acquire()
        world.shell.forked = True
        assert not grant.held
        assert grant.lost.is_set()

    def test_are_asked_of_a_quorum(self, world: World) -> None:
        grant = world.acquire()
        sent = world.now
        attempt = world.session.attempt(partial(queries.confirm, grant._paths)).start()
        world.run()
        assert attempt.result()
        world.session.confirmed(grant, sent, False)
        world.shell.work()
        assert grant.lost.is_set()


def test_who_asks_for_a_lease_that_is_over_posts_nothing_where_nothing_is_held() -> None:
    """The thread of a client that was stopped runs no job any more: they would pile up."""
    world = World()
    world.connect()
    grant = world.acquire()
    world.stop()
    for _ in range(3):
        assert grant.remaining() == 0
    assert not world.shell.work()


def test_an_end_that_is_told_behind_the_next_start_is_over_with_the_next_session() -> None:
    world = World()
    world.connect()
    world.disconnect()
    world.shell.step(world.session.end, LossReason.CLIENT_CLOSED, CLOSED)
    world.shell.step(world.session.connected_as, TIMEOUT, 77)
    world.session.check_usable()


def test_a_place_may_be_dropped_on_another_thread_while_the_connection_ends() -> None:
    world = World()
    world.connect()
    known: Any = world.session.places
    places = [Place(world.session) for _ in range(3)]
    known.update(enumerate(places))
    begun, go_on = threading.Event(), threading.Event()
    known_by, remove = known._remove.__defaults__

    def slowly(data: Any, key: object) -> None:
        begun.set()
        assert go_on.wait(SOON)
        remove(data, key)

    known._remove.__defaults__ = known_by, slowly
    other = threading.Thread(target=places.pop)
    other.start()
    assert begun.wait(SOON)
    calls = 0

    def trace(frame: FrameType, what: str, arg: object) -> None:
        nonlocal calls
        if frame.f_code is WeakValueDictionary.values.__code__:
            calls += 1
            if calls == 2:  # it goes on behind the first one
                go_on.set()
                other.join()

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        world.disconnect()
    finally:
        sys.settrace(before)
        go_on.set()
        other.join()
    assert len(known) == 2
