"""Errors that ZooKeeper answers with: each has its meaning, and none leaves a lock behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import zklock
from tests.contract.fronts import Behind, Place, Threads
from tests.contract.refusing import CREATE2, DELETE, GET_CHILDREN2, MULTI, SYNC, Refusing
from tests.contract.support import SOON, attempts_of, granted, passes_on, run
from zklock.testing import FaultProxy, ZooKeeperServer, wait_for

Connect = Callable[..., Any]

MAX_PATH = 256 * 1024
"""The most bytes that a path may have."""

THROTTLED, OPERATION_TIMEOUT, MARSHALLING, QUOTA, UNKNOWN = -127, -7, -5, -125, -126


@pytest.fixture
def front() -> Threads:
    return Threads()


@pytest.fixture
def refusing(zklock_server: ZooKeeperServer) -> Iterator[Refusing]:
    with Refusing(zklock_server) as relay:
        yield relay


@pytest.fixture
def ours(front: Threads, refusing: Refusing, zklock_connect: Connect, theirs: Place) -> Place:
    """The path of the test, which is there, for a client that is refused."""
    theirs.client.ensure_path(theirs.path)
    return Place(front, zklock_connect(refusing.hosts), theirs.path)


@pytest.mark.hazard("H30")
@pytest.mark.parametrize("code", [THROTTLED, OPERATION_TIMEOUT, MARSHALLING, QUOTA])
def test_a_deletion_goes_on_until_it_is_done(
    refusing: Refusing, ours: Place, theirs: Place, code: int
) -> None:
    lock = ours.Lock()
    granted(lock)
    refusing.refuse(code, 4, DELETE)
    lock.release()
    assert refusing.refused[DELETE] >= 1
    theirs.passes_on()
    assert refusing.refused[DELETE] == 4
    with lock as grant:
        grant.verify()


def handed_on(ours: Place, theirs: Place, refuse: Callable[[], object]) -> None:
    """Hand a lock on inside a client; at the grant the node before must be gone."""
    grant = granted(ours.Lock())

    def look() -> tuple[list[str], str]:
        with ours.Lock() as later:
            return theirs.nodes(), later.path

    waiting = run(look)
    theirs.queued(2)
    refuse()
    grant.abandon()
    left, mine = waiting.result(SOON)
    assert left == [mine.rpartition("/")[2]]
    theirs.gone()


@pytest.mark.parametrize("code", [THROTTLED, OPERATION_TIMEOUT])
def test_a_deletion_that_is_refused_hands_nothing_on(
    refusing: Refusing, ours: Place, theirs: Place, code: int
) -> None:
    handed_on(ours, theirs, lambda: refusing.refuse(code, 4, DELETE))
    assert refusing.refused[DELETE] == 4


@pytest.mark.parametrize(
    "fault", ["drop_before_request", "drop_after_request", "drop_before_reply", "drop_after_reply"]
)
def test_a_deletion_that_is_lost_hands_on_what_was_deleted(
    behind: Behind, theirs: Place, fault: str
) -> None:
    armed: list[Any] = []
    arm = getattr(behind.proxy, fault)
    handed_on(behind(), theirs, lambda: armed.append(arm(op="delete")))
    assert armed[0].fired.is_set()


@pytest.mark.hazard("H30")
@pytest.mark.parametrize("code", [THROTTLED, QUOTA])
def test_a_release_that_writes_goes_on_until_it_is_done(
    refusing: Refusing, ours: Place, theirs: Place, code: int
) -> None:
    grant = granted(ours.Lock(track_abandoned=True))
    refusing.refuse(code, 3, MULTI)
    grant.abandon()
    theirs.gone()


@pytest.mark.hazard("H30")
@pytest.mark.parametrize(
    "opcodes", [(CREATE2,), (GET_CHILDREN2,), (SYNC,), (MULTI,), (CREATE2, SYNC)]
)
def test_an_overloaded_server_is_asked_again(
    refusing: Refusing, ours: Place, theirs: Place, opcodes: tuple[int, ...]
) -> None:
    lock = ours.Lock()
    refusing.refuse(THROTTLED, 4, *opcodes)
    grant = granted(lock)
    assert theirs.nodes() == [grant.path.rpartition("/")[2]]
    grant.verify()
    wait_for(lambda: grant.remaining() > 1.0, SOON)
    lock.release()
    theirs.passes_on()


@pytest.mark.hazard("H30")
def test_giving_up_on_an_overloaded_server_leaves_nothing(
    refusing: Refusing, ours: Place, theirs: Place
) -> None:
    lock = ours.Lock()
    refusing.refuse(THROTTLED, 5, CREATE2, SYNC, DELETE)
    assert lock.acquire(timeout=0.1) is None
    theirs.passes_on()


def test_an_error_that_is_raised_leaves_nothing(
    refusing: Refusing, ours: Place, theirs: Place
) -> None:
    lock = ours.Lock()
    refusing.refuse(QUOTA, 1, CREATE2)
    with pytest.raises(zklock.ZkLockError, match="quota is used up"):
        lock.acquire()
    theirs.passes_on()


@pytest.mark.hazard("H32")
def test_a_path_that_no_request_can_carry_is_refused_at_the_call(
    zklock_proxy: FaultProxy, zklock_connect: Connect
) -> None:
    client = zklock_connect(zklock_proxy.hosts)
    mark = zklock_proxy.mark()
    for path in ("/" + "x" * 2**20, "/" + "x" * MAX_PATH, "/ä" + "ö" * (MAX_PATH // 2)):
        for make in (
            lambda path=path: zklock.Lock(client, path),
            lambda path=path: zklock.Semaphore(client, path, limit=2),
            lambda path=path: zklock.LeaderElection(client, path),
        ):
            with pytest.raises(ValueError, match="at most"):
                make()
    sent = [each.op for each in zklock_proxy.frames[mark:] if each.kind.value == "request"]
    assert set(sent) <= {"ping"}


@pytest.mark.hazard("H32")
def test_the_longest_path_works(zklock_connect: Connect, zklock_path: str) -> None:
    client = zklock_connect()
    path = f"{zklock_path}/{'x' * (MAX_PATH - len(zklock_path) - 1)}"
    with zklock.Lock(client, path, identity="i" * 4096, track_abandoned=True) as grant:
        grant.verify()
    assert client.connected


@pytest.mark.hazard("H14")
def test_attempts_given_up_in_an_outage_are_forgotten(
    zklock_proxy: FaultProxy, zklock_connect: Connect, zklock_path: str
) -> None:
    client = zklock_connect(zklock_proxy.hosts, timeout=40.0)
    lock = zklock.Lock(client, zklock_path)
    granted(lock).release()
    zklock_proxy.cut()
    wait_for(lambda: not client.connected, SOON)
    before = attempts_of(client)
    for _ in range(100):
        assert lock.acquire(timeout=0.001) is None
    assert attempts_of(client) <= before + 5
    zklock_proxy.restore()
    passes_on(client, zklock_path)


@pytest.mark.hazard("H29")
def test_a_thread_whose_number_is_used_again_is_another_one(mine: Place) -> None:
    numbers: list[int] = []

    def alone(acquire: Callable[..., Any]) -> Any:
        """Acquire on a thread that ends before the next one begins."""
        outcomes: list[Any] = []

        def body() -> None:
            numbers.append(threading.get_ident())
            outcomes.append(acquire(blocking=False))

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        return outcomes[0]

    for _ in range(20):
        reading = alone(mine.ReadLock().acquire)
        assert alone(mine.WriteLock().acquire) is None
        reading.release()
    assert len(set(numbers)) < len(numbers), "no number was used again: nothing was tried"
