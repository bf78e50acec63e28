"""The contract suite leaves nothing behind; its tests run with zklock's handler and kazoo's."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

import zklock
from tests.contract.fronts import FRONTS, Loop, Threads
from tests.contract.support import SOON, descriptors, kazoo_client
from zklock.testing import wait_for

# multiprocessing keeps this process for as long as the tests run: it must not count as left over.
resource_tracker.ensure_running()

# The interpreter, pytest and logging open a few files when they are first used.
SPARE_DESCRIPTORS = 8


def offspring() -> list[int]:
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that has ended meanwhile
            found += map(int, (task / "children").read_text().split())
    return sorted(found)


@pytest.fixture(scope="session", autouse=True)
def nothing_left_over(zklock_hosts: str) -> Iterator[None]:
    """Compare znodes, threads, processes and descriptors before and after all tests."""
    with kazoo_client(zklock_hosts) as client:
        roots = set(client.get_children("/"))
    before_children, before_descriptors = offspring(), descriptors()
    yield
    gc.collect()
    wait_for(lambda: not left_threads(), SOON, lambda: f"threads left: {left_threads()}")
    wait_for(lambda: offspring() == before_children, SOON, lambda: f"processes left: {offspring()}")
    wait_for(
        lambda: len(descriptors()) <= len(before_descriptors) + SPARE_DESCRIPTORS,
        SOON,
        lambda: f"descriptors left: {sorted(set(descriptors()) - set(before_descriptors))}",
    )
    with kazoo_client(zklock_hosts) as client:
        assert set(client.get_children("/")) == roots


def left_threads() -> list[str]:
    names = (thread.name for thread in threading.enumerate())
    return [name for name in names if name.startswith(("zklock-", "contract-test"))]


@pytest.fixture(params=["zklock's handler", "kazoo's handler"])
def client(request: pytest.FixtureRequest, zklock_hosts: str) -> Iterator[Any]:
    """A client of either sort."""
    if request.param == "kazoo's handler":
        with kazoo_client(zklock_hosts) as started:
            yield started
        return
    started = zklock.connect(zklock_hosts, timeout=4.0)
    yield started
    started.stop()
    started.close()


@pytest.fixture(params=FRONTS, ids=lambda front: front.name)
def front(request: pytest.FixtureRequest) -> Iterator[Threads | Loop]:
    """Each front in turn."""
    made = request.param()
    yield made
    made.close()


@pytest.fixture
def other(zklock_connect: Callable[..., Any]) -> Any:
    """Another client, with a session of its own."""
    return zklock_connect()


@pytest.fixture
def make_lock(client: Any, zklock_path: str) -> Callable[..., zklock.Lock]:
    """Return ``Lock`` on the client and the path of the test."""

    def make(**options: Any) -> zklock.Lock:
        if not isinstance(client.handler, zklock.Handler):
            options.setdefault("session_timeout", 4.0)
        return zklock.Lock(client, zklock_path, **options)

    return make
