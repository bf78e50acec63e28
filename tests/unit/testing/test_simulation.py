"""What happens on the simulated clock, and when."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, wait
from functools import partial
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest

import zklock
from tests.at_once import at_once
from tests.contract.support import run
from zklock import aio
from zklock._ground.clock import clock as monotonic_clock
from zklock.testing import ServerError, Simulation, simulated, wait_for
from zklock.testing.simulation import world
from zklock.testing.simulation.side import Side, _Thread

TIMEOUT = 10.0
LEASE = 2 / 3 * TIMEOUT
HUNG = TIMEOUT / 3
SOON = 20.0
PATH = "/locks/report"


def threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("zklock")}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Look after the end of the simulation: no time passes then that could end a thread."""
    before = threads()
    yield
    wait_for(lambda: threads() <= before, SOON, lambda: f"left: {threads() - before}")


@pytest.fixture
def sim() -> Iterator[Simulation]:
    with simulated() as made:
        yield made


@pytest.fixture
def client(sim: Simulation) -> Any:
    return sim.client(TIMEOUT)


@pytest.fixture
def other(sim: Simulation) -> Any:
    return sim.client(TIMEOUT)


def acquired(lock: Any) -> zklock.Grant:
    grant = lock.acquire()
    assert grant is not None
    return grant  # type: ignore[no-any-return]


def queue(lock: Any, number: int = 2) -> Future[Any]:
    """Have a thread acquire, and wait until it is queued."""
    acquiring = run(lock.acquire)
    wait_for(lambda: len(lock.contenders()) == number, SOON)
    return acquiring


def waits(acquiring: Future[Any]) -> bool:
    return not wait([acquiring], 0.02).done


def until(sim: Simulation, condition: Any, step: float, most: float) -> float:
    """Advance in steps until the condition holds; return when it does."""
    end = sim.now + most
    while not condition():
        assert sim.now < end
        sim.advance(step)
    return sim.now


class TestTime:
    def test_moves_forward_by_what_is_said_alone(self, sim: Simulation, client: Any) -> None:
        grant = acquired(zklock.Lock(client, PATH))
        left = grant.remaining()
        time.sleep(0.05)
        assert (sim.now, grant.remaining()) == (0.0, left)
        for wrong in (-1.0, float("inf"), float("nan"), "1", None):
            with pytest.raises((ValueError, TypeError)):
                sim.advance(wrong)  # type: ignore[arg-type]
        for seconds in (0.0, 0.25, 3, 1000.0):
            before = sim.now
            sim.advance(seconds)
            assert sim.now == before + seconds
        assert grant.held
        assert grant.remaining() >= LEASE - TIMEOUT / 10 - 1e-6

    def test_a_client_that_only_looks_keeps_its_session(self, sim: Simulation) -> None:
        with zklock.connect(sim.hosts, TIMEOUT) as outside:
            session = outside.client_id
            sim.advance(5 * TIMEOUT)
            assert outside.exists("/") is not None
            assert outside.client_id == session

    def test_threads_and_tasks_that_move_the_clock_at_once_move_it_forward(
        self, sim: Simulation, client: Any
    ) -> None:
        acquired(zklock.Lock(client, PATH))
        at_once(*(partial(sim.advance, seconds) for seconds in (50.0, 1.0, 2.0)))
        assert sim.now == 53.0
        at_once(lambda: asyncio.run(sim.aio_advance(1.0)), partial(sim.advance, 50.0))
        assert sim.now >= 103.0


class TestLoss:
    def test_a_partitioned_holder_is_suspended_and_lost_in_time(
        self, sim: Simulation, client: Any, other: Any
    ) -> None:
        lost: list[tuple[float, zklock.LossReason]] = []
        suspended: list[float] = []
        lock = zklock.Lock(
            client,
            PATH,
            on_lost=lambda loss: lost.append((sim.now, loss.reason)),
            on_suspended=lambda grant: suspended.append(sim.now),
        )
        grant = acquired(lock)
        next_one = queue(zklock.Lock(other, PATH))
        sim.advance(20.0)
        sim.partition(client)
        sim.advance(HUNG)
        assert suspended == []
        sim.advance(1.0)  # the first heartbeat that was not answered was sent 1 s after the cut
        assert suspended == [pytest.approx(21.0 + HUNG)]
        assert grant.held
        sim.advance(20.0 + LEASE - sim.now - 0.01)
        assert (grant.held, lost) == (True, [])
        assert waits(next_one)
        sim.advance(0.01)
        assert grant.remaining() == 0
        assert [reason for _, reason in lost] == [zklock.LossReason.LEASE_LAPSED]
        assert lost[0][0] == pytest.approx(20.0 + LEASE)
        assert waits(next_one)
        sim.advance(30.49 - sim.now)  # the session ends at the first tick after its timeout
        assert waits(next_one)
        sim.advance(0.02)
        given = next_one.result(SOON)
        assert given is not None
        assert given.token > grant.token

    def test_an_expired_session_is_told_at_once(
        self, sim: Simulation, client: Any, other: Any
    ) -> None:
        lost: list[zklock.LossReason] = []
        grant = acquired(zklock.Lock(client, PATH, on_lost=lambda loss: lost.append(loss.reason)))
        next_one = queue(zklock.Lock(other, PATH))
        before = client.client_id
        sim.expire(client)
        # Once a heartbeat has watched its node, the deletion is heard before the end.
        (reason,) = lost
        assert reason in {zklock.LossReason.SESSION_EXPIRED, zklock.LossReason.NODE_DELETED}
        assert grant.lost.is_set()
        assert client.connected
        assert client.client_id != before
        given = next_one.result(SOON)
        assert given is not None
        assert given.token > grant.token
        assert sim.now == 0.0

    def test_a_partition_that_is_healed_costs_nothing(self, sim: Simulation, client: Any) -> None:
        grant = acquired(zklock.Lock(client, PATH))
        for seconds in (2.0, 5.0):  # with and without the loss of the connection
            sim.partition(client)
            sim.advance(seconds)
            sim.heal(client)
            assert client.connected
            sim.advance(3 * TIMEOUT)
            assert grant.held

    @pytest.mark.parametrize("pauses", [False, True])
    def test_an_idle_client_notices_a_partition(
        self, sim: Simulation, client: Any, pauses: bool
    ) -> None:
        sim.advance(TIMEOUT)
        sim.partition(client)
        assert client.connected
        if pauses:  # the partition outlasts that
            sim.pause(client)
            sim.advance(1.0)
            sim.resume(client)
        sim.advance(TIMEOUT)
        assert not client.connected
        sim.heal(client)
        assert client.connected

    def test_a_lost_reply_loses_nothing(self, sim: Simulation, client: Any) -> None:
        fault = sim.lose_reply("create2")
        lock = zklock.Lock(client, PATH)
        grant = acquired(lock)
        assert fault.struck == 1
        assert grant.held
        assert [each.path for each in lock.contenders()] == [grant.path]


class TestPause:
    def test_believes_as_before_until_it_goes_on(
        self, sim: Simulation, client: Any, other: Any
    ) -> None:
        lost: list[float] = []
        grant = acquired(zklock.Lock(client, PATH, on_lost=lambda loss: lost.append(sim.now)))
        next_one = queue(zklock.Lock(other, PATH))
        left = grant.remaining()
        sim.pause(client)
        sim.advance(2 * TIMEOUT)
        newer = next_one.result(SOON)
        assert newer is not None
        assert grant.remaining() == left  # as in the last instruction before the pause
        assert lost == []
        sim.resume(client)
        assert not grant.held
        assert lost == [2 * TIMEOUT]
        assert newer.held
        assert client.connected

    def test_the_clock_jumps_before_an_answer_is_read(
        self, sim: Simulation, client: Any, other: Any
    ) -> None:
        grant = acquired(zklock.Lock(client, PATH))
        sim.pause(client)
        asked = run(client.exists, PATH)
        sim.advance(LEASE + 0.1)  # the session lives on
        sim.resume(client)
        asked.result(SOON)
        assert not grant.held
        assert grant.lost.is_set()
        session = client.client_id
        sim.advance(1.0)
        assert client.client_id == session


class TestWaits:
    def test_run_lets_time_pass_while_a_call_waits(
        self, sim: Simulation, client: Any, other: Any
    ) -> None:
        held = zklock.Lock(client, PATH)
        acquired(held)
        lock = zklock.Lock(other, PATH)
        assert sim.run(lambda: lock.acquire(timeout=30.0)) is None
        assert sim.now == 30.0
        with pytest.raises(TimeoutError, match="45 s"):
            sim.run(zklock.Lock(other, PATH).acquire, at_most=45.0)
        assert sim.now == 75.0
        with pytest.raises(ZeroDivisionError):
            sim.run(lambda: 1 / 0)

    def test_the_call_may_change_the_simulation(
        self, sim: Simulation, client: Any, other: Any
    ) -> None:
        sim.partition(client)
        acquired(zklock.Lock(other, PATH))

        def work() -> float:
            sim.advance(5.0)
            sim.expire(other)
            assert sim.run(zklock.Lock(other, PATH).acquire) is not None
            sim.heal(client)
            assert zklock.Lock(client, PATH).acquire(timeout=2.0) is None
            return sim.now

        assert sim.run(work) == 7.0

    def test_time_that_the_call_lets_pass_counts(
        self, sim: Simulation, client: Any, other: Any
    ) -> None:
        acquired(zklock.Lock(client, PATH))

        def work() -> object:
            sim.advance(60.0)
            return zklock.Lock(other, PATH).acquire()

        with pytest.raises(TimeoutError, match="45 s"):
            sim.run(work, at_most=45.0)
        assert sim.now == 60.0

    def test_what_is_asked_of_nobody_ends(self, sim: Simulation, client: Any) -> None:
        lock = zklock.Lock(client, PATH)
        sim.partition(client)
        with pytest.raises(zklock.NoAnswer):
            sim.run(lambda: lock.contenders(timeout=5.0))
        assert sim.now == 5.0
        assert sim.run(lambda: lock.acquire(blocking=False)) is None
        assert sim.now == 6.0


class TestElection:
    def test_a_grace_that_the_clock_does_not_show_is_over_in_a_moment(
        self, sim: Simulation, client: Any
    ) -> None:
        sim.advance(60)
        grace = 1e-15
        assert sim.now + grace == sim.now
        election = zklock.LeaderElection(client, PATH, grace=grace)
        leads, may_end = threading.Event(), threading.Event()

        def lead(leadership: zklock.Leadership) -> None:
            leads.set()
            may_end.wait(SOON)

        running = run(election.run, lead)
        assert leads.wait(SOON)
        election.stop()
        until(sim, running.done, 0.001, 1.0)
        may_end.set()
        with pytest.raises(zklock.LeaderStuck):
            running.result(SOON)

    def test_changes_are_waited_for_by_this_clock(self, sim: Simulation, client: Any) -> None:
        election = zklock.LeaderElection(client, "/leader")
        with election.changes() as changes:
            assert changes.next() is not None
            assert sim.run(lambda: changes.next(timeout=8.0)) is None
            assert sim.now == 8.0


def test_a_client_that_gets_its_timeout_hears_no_warning(
    sim: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    sim.client(TIMEOUT)
    assert "grants a session timeout" not in caplog.text
    sim.client(1000.0)
    assert "grants a session timeout of 60 s instead of 1000 s" in caplog.text


class TestPool:
    def test_the_shards_of_a_worker_that_is_cut_off_move(
        self, sim: Simulation, client: Any, other: Any
    ) -> None:
        pools = [
            zklock.WorkerPool(each, "/pool", shards=4, identity=name, settle=0.5)
            for each, name in ((client, "a"), (other, "b"))
        ]
        for pool in pools:
            sim.run(pool.start)

        def owned() -> list[int]:
            return [len(pool.owned()) for pool in pools]

        until(sim, lambda: owned() == [2, 2], 0.25, 60.0)
        before = sim.now
        sim.partition(client)
        # Nothing waits for what the threads of a pool do: they may be late by some steps.
        assert until(sim, lambda: owned() == [0, 4], 0.25, 60.0) - before >= TIMEOUT - 1.0
        sim.heal(client)
        until(sim, lambda: owned() == [2, 2], 0.25, 120.0)
        for pool in pools:
            sim.run(pool.stop)

    def test_handlers_in_processes_are_refused(self, client: Any) -> None:
        with pytest.raises(ValueError, match="real clock"):
            zklock.WorkerPool(client, "/pool", shards=1, handler=print, executor="processes")

    def test_one_that_cannot_be_made_does_nothing(
        self, sim: Simulation, client: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(ValueError, match="settle"):
            zklock.WorkerPool(client, "/pool", shards=1, handler=print, settle=-1.0)
        before = threads()
        sim.close()
        wait_for(lambda: threads() < before, SOON, lambda: f"left: {threads()}")
        assert not [each for each in caplog.records if each.levelname == "ERROR"]


def test_tasks_go_on_between_two_moments(sim: Simulation, client: Any) -> None:
    async def main() -> None:
        blocked = aio.Lock(client, PATH)
        assert await blocked.acquire() is not None
        ended: list[float] = []

        async def again() -> None:
            for _ in range(4):
                assert await aio.Lock(client, PATH).acquire(timeout=2.5) is None
                ended.append(sim.now)

        task = asyncio.create_task(again())
        await sim.aio_advance(10.0)
        await task
        assert ended == [2.5, 5.0, 7.5, 10.0]

    asyncio.run(main())


class TestTheObject:
    def test_its_clients_alone(self, sim: Simulation) -> None:
        with simulated() as another:
            stranger = another.client()
            for call in (sim.expire, sim.partition, sim.heal, sim.pause, sim.resume):
                with pytest.raises(ValueError, match="no client of this simulation"):
                    call(stranger)

    def test_its_own_server_and_handler(self, sim: Simulation) -> None:
        for option in ("hosts", "handler"):
            with pytest.raises(TypeError, match=option):
                sim.client(TIMEOUT, chroot="", **{option: None})
        with pytest.raises(ValueError, match=r"must be absolute .*'relative'"):
            sim.client(TIMEOUT, chroot="relative")

    def test_closed(self, sim: Simulation, client: Any) -> None:
        grant = acquired(zklock.Lock(client, PATH))
        sim.partition(client)
        sim.close()
        sim.close()
        assert not client.connected
        assert not grant.held
        with pytest.raises(ServerError, match="closed"):
            sim.advance(1.0)
        with pytest.raises(ServerError, match="closed"):
            sim.client()

    def test_a_client_that_is_cut_off_stops_at_once(self, sim: Simulation, client: Any) -> None:
        acquired(zklock.Lock(client, PATH))
        for seconds in (0.0, 5.0):  # with its connection, and without
            sim.partition(client)
            sim.advance(seconds)
            client.stop()
            sim.heal(client)
            client.start()
            sim.advance(3 * TIMEOUT)
            assert client.connected

    def test_not_in_a_callback(self, sim: Simulation, client: Any) -> None:
        errors: list[BaseException] = []

        def advance(loss: zklock.Loss) -> None:
            try:
                sim.advance(1.0)
            except RuntimeError as error:
                errors.append(error)

        acquired(zklock.Lock(client, PATH, on_lost=advance))
        sim.expire(client)
        assert ["callback" in str(each) for each in errors] == [True]

    def test_a_callback_that_waits_for_another_client_holds_nothing_up(
        self, sim: Simulation, client: Any, other: Any
    ) -> None:
        got: list[object] = []

        def again(loss: zklock.Loss) -> None:
            got.append(zklock.Lock(other, PATH).acquire(timeout=4.0))

        acquired(zklock.Lock(client, PATH, on_lost=again))
        blocker = queue(zklock.Lock(sim.client(TIMEOUT), PATH))
        sim.expire(client)
        assert blocker.result(SOON) is not None
        sim.advance(4.0)
        wait_for(lambda: got == [None], SOON)

    def test_a_client_that_is_stopped_and_closed_is_forgotten(self, sim: Simulation) -> None:
        ended = []
        for _ in range(3):
            client = sim.client(TIMEOUT)
            with zklock.Lock(client, PATH):  # pytest keeps records that name a lost one
                pass
            client.stop()
            client.close()
            ended.append(weakref.ref(client))
        del client
        sim.advance(3 * TIMEOUT)
        assert repr(sim) == f"<Simulation at {3 * TIMEOUT:g} s, 0 clients>"
        sim.client(TIMEOUT)
        gc.collect()
        assert [each() for each in ended] == [None] * 3

    def test_who_waits_for_a_time_of_a_stopped_client_keeps_none_of_it(
        self, sim: Simulation, other: Any
    ) -> None:
        client = sim.client(TIMEOUT)
        told: list[float] = []
        side = sim._side(client)
        side.limit(60.0, lambda: told.append(sim.now))
        ended = weakref.ref(client)
        client.stop()
        client.close()
        del client, side
        sim.advance(3 * TIMEOUT)
        sim.client(TIMEOUT)
        gc.collect()
        assert ended() is None
        sim.advance(60.0)
        assert told == [60.0]

    def test_a_client_that_is_started_again_is_known_again(
        self, sim: Simulation, client: Any
    ) -> None:
        for _ in range(2):
            client.stop()
            sim.advance(3 * TIMEOUT)
            assert "0 clients" in repr(sim)
            client.close()
            sim.client(TIMEOUT).stop()  # its start forgets those that are closed
            sim.advance(0.0)
            client.start()
            assert "1 clients" in repr(sim)
            grant = acquired(zklock.Lock(client, PATH))
            sim.partition(client)
            sim.advance(LEASE)
            assert grant.lost.is_set()
            sim.heal(client)

    def test_a_command_is_answered_beside_the_session(self, sim: Simulation) -> None:
        client = sim.client(TIMEOUT)
        assert client.command(b"ruok") == "imok"
        assert zklock.Lock(client, PATH).acquire() is not None

    def test_the_last_job_of_a_stopped_client_is_waited_for(self, sim: Simulation) -> None:
        client = sim.client(TIMEOUT)
        begun, may_end = threading.Event(), threading.Event()
        done: list[bool] = []

        def job() -> None:
            begun.set()
            done.append(may_end.wait(10.0))

        sim.partition(client)
        client.handler.later(job)
        assert begun.wait(10.0)
        client.stop()
        wait_for(lambda: sim._side(client).over)
        threading.Timer(0.1, may_end.set).start()
        sim.advance(0.0)
        assert done == [True]

    def test_clients_that_are_stopped_cost_a_move_nothing(self, sim: Simulation) -> None:
        sim.client(TIMEOUT)
        sim.advance(TIMEOUT)
        for _ in range(3):
            with mock.patch.object(Side, "unrest", autospec=True, side_effect=Side.unrest) as looks:
                sim.advance(TIMEOUT)
            assert {call.args[0].name for call in looks.mock_calls} == {"simulated-1"}
            stopped = sim.client(TIMEOUT)
            acquired(zklock.Lock(stopped, PATH))
            stopped.stop()
            sim.advance(3 * TIMEOUT)


def story(sim: Simulation) -> list[tuple[float, str]]:
    """Play what needs an order: three contend, the holder is cut off, paused, or expires."""
    told: list[tuple[float, str]] = []
    clients = [sim.client(TIMEOUT) for _ in range(3)]
    acquiring: list[Future[Any]] = []

    def tell(number: int, what: str) -> None:
        told.append((sim.now, f"{number} {what}"))

    for number, each in enumerate(clients):
        lock = zklock.Lock(
            each,
            PATH,
            on_lost=partial(lambda n, loss: tell(n, loss.reason.name), number),
            on_suspended=partial(lambda n, grant: tell(n, "suspended"), number),
        )
        acquiring.append(queue(lock, number + 1))
    faults = (sim.partition, sim.pause, sim.expire)
    for number, fault in enumerate(faults):
        acquiring[number].result(SOON)
        tell(number, "is granted")
        sim.advance(3.3)
        fault(clients[number])
        sim.advance(12.1)
    sim.heal(clients[0])
    sim.resume(clients[1])
    tokens = [each.result().token for each in acquiring]
    assert all(one < two for one, two in pairwise(tokens))
    return told


def test_the_same_story_in_every_run() -> None:
    stories = []
    for _ in range(5):
        with simulated() as sim:
            stories.append(story(sim))
    assert len(stories[0]) == 7
    assert stories == [stories[0]] * 5


def test_what_waits_for_a_time_of_a_stopped_client_does_not_wait_for_ever(
    sim: Simulation, client: Any
) -> None:
    async def main() -> None:
        leads = asyncio.Event()

        async def lead(leadership: aio.Leadership) -> None:
            leads.set()
            await asyncio.sleep(SOON * 10)

        running = asyncio.create_task(aio.LeaderElection(client, PATH).run(lead))
        async with asyncio.timeout(SOON):
            await leads.wait()
        await asyncio.to_thread(client.stop)
        await sim.aio_advance(60.0)
        async with asyncio.timeout(SOON):
            with pytest.raises(zklock.ClientClosed):
                await running

    asyncio.run(main())


def test_a_client_that_is_stopped_after_its_session_leaves_no_thread(
    sim: Simulation, client: Any
) -> None:
    before = threads()
    expired = sim.client(TIMEOUT)
    stopping = threading.Thread(target=expired.stop)

    def on_state(state: str) -> None:
        if state == "LOST":
            stopping.start()
            assert expired._stopped.wait(SOON)

    expired.add_listener(on_state)
    grant = acquired(zklock.Lock(expired, PATH))
    sim.expire(expired)
    assert grant.lost.is_set()
    stopping.join(SOON)
    assert not expired.connected
    sim.advance(3 * TIMEOUT)
    wait_for(lambda: threads() <= before, SOON, lambda: f"left: {threads() - before}")


def test_a_wake_up_that_comes_as_a_turn_is_taken_is_over_after_the_next_one() -> None:
    """Else the simulation would wait for it for ever."""
    held: list[str] = []

    class Busy:
        local: Any

        def take(self, name: str) -> Any:
            held.append(name)
            thread._take_turn()
            return held.pop

    side: Any = Busy()
    side.local = side
    thread = _Thread(side, "a thread", lambda: None)
    thread._inner = mock.Mock()
    thread.wake()
    assert held
    thread._take_turn()
    assert not held


def lost_when_cut_off() -> None:
    with simulated() as sim:
        client = sim.client(timeout=10.0)
        grant = zklock.Lock(client, "/lock").acquire()
        sim.partition(client)
        sim.advance(7.0)
        assert grant is not None
        assert not grant.held


def test_time_may_be_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries of frozen time replace ``time.monotonic``."""
    frozen = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: frozen)
    lost_when_cut_off()
    with pytest.raises(TimeoutError):
        wait_for(lambda: False, 0.05)


def test_the_test_process_may_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two looks whether everything rests: as if for 24 seconds."""
    real, stood = monotonic_clock, [0]

    def jumps() -> float:
        stood[0] += stood[0] < 10
        return real() + 24.0 * stood[0]

    monkeypatch.setattr(world, "clock", jumps)
    lost_when_cut_off()
    assert stood[0] == 10
