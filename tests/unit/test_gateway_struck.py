"""Locks whose requests ride, struck wherever it can happen to a caller in the riders' modules.

A caller is struck at every moment at which CPython looks for signals.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import zklock
from tests.contract.struck import LIBRARY, Moments
from tests.contract.support import SOON, gone, granted, open_connection, run
from tests.modes import repeated
from zklock.testing import EmbeddedServer, embedded, wait_for

pytestmark = [
    pytest.mark.hazard("H9"),
    pytest.mark.lengthy("every moment in the riders' modules: for changes of them"),
]

MOMENTS = Moments(folder=str(Path(LIBRARY, "_kazoo")))


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with embedded() as server:
        yield server


@pytest.fixture
def connect(
    server: EmbeddedServer,
) -> Iterator[Callable[[], zklock.Client]]:
    """Return what makes a client with riders, and waits until they ride."""
    clients: list[zklock.Client] = []

    def connect() -> zklock.Client:
        client = zklock.connect(server.hosts, timeout=60.0)
        clients.append(client)
        wait_for(lambda: open_connection(client.handler) is not None, SOON, "the line")
        return client

    yield connect
    for client in clients:
        client.stop()
        client.close()


def released_and_got(client: zklock.Client, other: zklock.Client) -> Callable[[], None]:
    lock = zklock.Lock(client, "/struck")

    def use() -> None:
        with lock:
            pass

    return use


def given_up(client: zklock.Client, other: zklock.Client) -> Callable[[], None]:
    """A lock that somebody else holds is asked for, and given up."""
    lock = zklock.Lock(client, "/struck")

    def use() -> None:
        assert lock.acquire(blocking=False) is None

    return use


def waited_for(client: zklock.Client, other: zklock.Client) -> Callable[[], None]:
    """A lock that somebody else passes on is waited for."""
    lock, before = zklock.Lock(client, "/struck"), zklock.Lock(other, "/struck")

    def pass_on(holds: threading.Event, over: threading.Event) -> None:
        grant = granted(before)
        holds.set()
        wait_for(
            lambda: over.is_set() or len(other.get_children("/struck")) == 2,
            SOON,
            "the waiter",
            interval=0.001,
        )
        grant.release()

    def use() -> None:
        holds, over = threading.Event(), threading.Event()
        passing = run(pass_on, holds, over)
        try:
            assert holds.wait(SOON)
            with lock:
                pass
        finally:
            over.set()
            passing.result(SOON)

    return use


def counted(call: Callable[[], None]) -> int:
    """Return how many places there are in a call that reads its own answers.

    There are fewer where the reader hears them, as it may on a busy machine.
    """

    def reads() -> bool:
        return not MOMENTS.run(call) and MOMENTS.count > 150

    wait_for(reads, SOON, lambda: f"{MOMENTS.count} places only")
    return MOMENTS.count


@pytest.mark.parametrize("use", [released_and_got, given_up, waited_for])
def test_leaves_no_node_behind(
    connect: Callable[[], zklock.Client],
    use: Callable[[zklock.Client, zklock.Client], Callable[[], None]],
) -> None:
    client, other = connect(), connect()
    held = granted(zklock.Lock(other, "/struck")) if use is given_up else None
    ours = set() if held is None else {held.path.rpartition("/")[2]}
    call = use(client, other)
    call()
    total = counted(call)
    for at in range(1, total + 1, repeated(1, 5)):
        MOMENTS.run(call, at)
        wait_for(
            lambda: set(other.get_children("/struck")) == ours,
            SOON,
            lambda at=at: f"struck at {at} of {total}: {other.get_children('/struck')}",  # type: ignore[misc]
        )
    if held is not None:
        held.release()
    granted(zklock.Lock(client, "/struck")).release()
    gone(other, "/struck")
