"""An event loop reads what its tasks wait for, and the reading is taken from it in time."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest

import zklock
from tests.contract.struck import Moments
from tests.contract.support import SOON, granted, open_files
from zklock import aio
from zklock._shell import driver
from zklock.aio import waiting
from zklock.testing import wait_for
from zklock.testing.zookeeper.server import EmbeddedServer

pytestmark = pytest.mark.skipif(not driver.READS, reason="nobody else reads here")


@pytest.fixture
def client() -> Iterator[Any]:
    with EmbeddedServer() as server, zklock.connect(server.hosts, timeout=20.0) as client:
        yield client


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody end the reading because time has passed."""
    monkeypatch.setattr(driver, "LONGEST", SOON)
    monkeypatch.setattr(waiting, "LONGEST", SOON)


async def reading(client: Any) -> aio.Grant:
    """Return a grant for which the running loop has read, and goes on for a moment."""
    grant = await aio.Lock(client, "/a").acquire()
    assert grant is not None
    return grant


def played(part: Callable[[], Awaitable[object]]) -> None:
    asyncio.run(asyncio.wait_for(part(), SOON))


@pytest.mark.usefixtures("patient")
def test_the_loop_reads_what_its_tasks_wait_for(client: Any) -> None:
    pumped, pump = list[int](), client.handler._pump

    def noted(*what: Any) -> None:
        pumped.append(threading.get_ident())
        pump(*what)

    async def part() -> None:
        client.handler._pump = noted
        for _ in range(20):
            async with aio.Lock(client, "/a"):
                pass
        assert set(pumped) == {threading.get_ident()}

    played(part)


@pytest.mark.usefixtures("patient")
def test_what_a_blocked_loop_waits_for_in_kazoo_comes_at_once(client: Any) -> None:
    async def part() -> None:
        async with aio.Lock(client, "/a"):
            assert client.handler.reader is not None
            assert client.exists("/a")
            assert client.handler.reader is None

    played(part)


@pytest.mark.usefixtures("patient")
def test_a_thread_that_waits_takes_the_reading_from_a_loop(client: Any) -> None:
    async def part() -> None:
        await reading(client)
        assert client.handler.reader is not None
        grant = granted(zklock.Lock(client, "/b"))  # the loop stands still meanwhile
        grant.release()
        async with aio.Lock(client, "/c"):
            pass

    played(part)


def test_the_reading_is_taken_from_a_loop_that_stands_still(client: Any) -> None:
    async def part() -> None:
        grant = await reading(client)
        wait_for(lambda: client.handler.reader is None, SOON)
        await grant.release()

    played(part)


def test_it_is_taken_so_although_nothing_was_asked(client: Any) -> None:
    frames, pass_on = list[bytes](), client.handler.pass_on

    def noted(sock: Any, frame: bytes) -> None:
        frames.append(frame)
        pass_on(sock, frame)

    async def part() -> None:
        grant = await reading(client)
        await grant.release()
        while client.handler.reader is not None or client.handler._due < math.inf:
            await asyncio.sleep(0.01)
        client.handler.pass_on = noted
        with pytest.raises(zklock.NotHeld):
            await grant.release()
        wait_for(lambda: client.handler.reader is None, SOON)
        assert not frames  # kazoo takes it, too

    played(part)


def test_a_loop_reads_for_a_moment_only(client: Any) -> None:
    async def part() -> None:
        before = open_files()
        await reading(client)
        while client.handler.reader is not None:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        assert open_files() <= before

    played(part)


@pytest.mark.usefixtures("patient")
def test_one_of_two_loops_reads(client: Any) -> None:
    async def other() -> None:
        async with aio.Lock(client, "/b"):
            pass

    async def part() -> None:
        grant = await reading(client)
        assert client.handler.reader is not None
        thread = threading.Thread(target=asyncio.run, args=(other(),))
        thread.start()
        thread.join(SOON)  # this loop stands still meanwhile
        assert not thread.is_alive()
        await grant.release()

    played(part)


@pytest.mark.usefixtures("patient")
def test_the_connection_may_end_while_a_loop_reads(client: Any) -> None:
    async def part() -> None:
        grant = await reading(client)
        assert client.handler.reader is not None
        client.handler.drop()
        await grant.release()
        async with aio.Lock(client, "/a"):
            pass

    before = len(open_files())
    played(part)
    granted(zklock.Lock(client, "/b")).release()  # it takes the reading from the loop that is over
    wait_for(lambda: len(open_files()) == before, SOON)


@pytest.mark.usefixtures("patient")
def test_a_loop_that_is_closed_while_it_reads_leaves_nothing(client: Any) -> None:
    granted(zklock.Lock(client, "/b")).release()
    before = open_files()
    played(lambda: reading(client))
    granted(zklock.Lock(client, "/b")).release()
    gc.collect()
    assert open_files() == before


@pytest.mark.slow("it connects anew after each interrupt")
def test_an_interrupt_as_it_begins_to_read_leaves_nothing(client: Any) -> None:
    moments, hears = Moments(), partial(waiting.AWAITING.hears, client.handler.session)

    async def struck(at: int) -> bool:
        return moments.run(hears, at)

    granted(zklock.Lock(client, "/a")).release()
    before, at = len(open_files()), 1
    while asyncio.run(struck(at)):
        granted(zklock.Lock(client, "/a")).release()
        wait_for(lambda: len(open_files()) == before, SOON, moments.where)
        at += 1
    assert at > 10
