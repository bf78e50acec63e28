"""The live screen, driven by Textual's pilot: no server, and looks that the tests make."""

from __future__ import annotations

import asyncio
import html
import queue
import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.text import Text
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from tests.unit.cli.views import World
from zklock._ground.clock import clock
from zklock._pool.views import PoolMember
from zklock.cli.screen import Top
from zklock.cli.view import model
from zklock.cli.view.model import Look, PoolView
from zklock.cli.view.table import Order
from zklock.testing.switches import switch

PICTURE = Path(__file__).parents[3] / "docs" / "pictures" / "top.svg"
NOW = 1_000_000.0
SOON = 60.0
Play = Callable[["Desk"], Awaitable[None]]


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass: ages are then the same in every run."""
    monkeypatch.setattr("zklock.cli.view.model.time", SimpleNamespace(time=lambda: NOW))
    monkeypatch.delenv("NO_COLOR", raising=False)


class Feed:
    """Looks, as a reader would yield them; ``None`` ends them."""

    def __init__(self) -> None:
        self.looks: queue.SimpleQueue[Look | Exception | None] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[Look]:
        while (look := self.looks.get()) is not None:
            if isinstance(look, Exception):
                raise look
            yield look


class Desk:
    """A screen, what it is fed with, and who types."""

    def __init__(self, app: Top, feed: Feed, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot
        self._feed = feed

    async def shows(self, look: Look) -> None:
        """Feed a look; return when it is shown."""
        self._feed.looks.put(look)
        await self.until(lambda: self.app._look is look)
        self.app.turn()

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline = clock() + SOON
        while not condition():
            assert clock() < deadline
            await self.pilot.pause()

    def table(self) -> DataTable[Text]:
        found: DataTable[Text] = self.app.screen.query_one(DataTable)
        return found

    def column(self, at: int = 0) -> list[str]:
        """Return the texts of a column."""
        table = self.table()
        return [table.get_row_at(row)[at].plain for row in range(table.row_count)]

    def head(self) -> str:
        return str(self.app.screen.query_one("#head", Static).render())


def play(acts: Play, drawn: str = "", size: tuple[int, int] = (134, 12)) -> str:
    """Run a screen; return it as a picture."""
    feed = Feed()
    app = Top(iter(feed), "/locks", Order.WAITING)

    async def body() -> str:
        async with app.run_test(size=size) as pilot:
            try:
                desk = Desk(app, feed, pilot)
                await acts(desk)
                await desk.until(lambda: drawn in "\n".join(text_of(app.export_screenshot())))
                return app.export_screenshot()
            finally:
                feed.looks.put(None)

    return asyncio.run(body())


def acted(acts: Play) -> Callable[[], None]:
    """Make a test of what somebody does at a screen."""

    def test() -> None:
        play(acts)

    return test


def text_of(svg: str) -> list[str]:
    """Return the lines of text in a picture."""
    rows: dict[float, dict[float, str]] = {}
    for x, y, text in re.findall(
        r'<text class="[^"]*-r\d+" x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', svg
    ):
        rows.setdefault(float(y), {})[float(x)] = html.unescape(text)
    found = []
    for _, parts in sorted(rows.items()):
        line = ""
        for x, text in sorted(parts.items()):
            line = line.ljust(round(x / 12.2)) + text
        found.append(line.replace("\xa0", " ").rstrip())
    return [line for line in found if line]


def some() -> World:
    """Locks whose contenders came some time ago."""
    world = World()
    world.clock = int(NOW) - 4000
    world.queue("/locks/nightly", 0x10, "host-3:811:MainThread")
    world.clock += 3700
    world.queue("/locks/report", 0x11, "host-7:29405:MainThread")
    world.queue("/locks/report", 0x12, "host-8:1177:MainThread")
    world.clock += 200
    world.queue("/locks/report", 0x13, "host-9:310:MainThread")
    world.semaphore("/locks/uploads", 3, [(0x11, "host-7:29405:Upload-1"),
                                         (0x12, "host-8:1177:Upload-4")], [])  # fmt: skip
    world.queue("/locks/scheduler", 0x12, "host-8:1177:6f00aa01", "latch")
    world.queue("/locks/scheduler", 0x13, "host-9:310:17cc41be", "latch")
    return world


def test_what_it_shows_and_the_picture_in_the_docs() -> None:
    async def acts(desk: Desk) -> None:
        await desk.shows(some().look())

    # The parts of a screen are drawn one after the other: the whole is waited for.
    wanted = "" if switch("ZKLOCK_DRAW") else "\n".join(text_of(PICTURE.read_text()))
    svg = play(acts, wanted or "/locks/uploads")
    if switch("ZKLOCK_DRAW"):
        PICTURE.write_text(svg)
    lines = text_of(svg)
    assert any("/locks: 4 locks, 3 waiting; by waiting" in line for line in lines)
    (report,) = (line for line in lines if "/locks/report" in line)
    assert report.split()[:6] == [
        "/locks/report", "lock", "host-7:29405:MainThread", "4m58s", "2", "4m57s"
    ]  # fmt: skip
    (uploads,) = (line for line in lines if "/locks/uploads" in line)
    assert "semaphore of 3" in uploads
    assert text_of(PICTURE.read_text()) == lines, "draw it anew: ZKLOCK_DRAW=1"


@acted
async def test_rows_change_and_the_cursor_stays_on_its_lock(desk: Desk) -> None:
    world = some()
    await desk.shows(world.look())
    assert desk.column() == [
        "/locks/report", "/locks/scheduler", "/locks/nightly", "/locks/uploads"
    ]  # fmt: skip
    await desk.pilot.press("down")
    assert desk.table().cursor_row == 1
    for _ in range(3):
        world.queue("/locks/nightly", 9, "late")
    await desk.shows(world.look())
    assert desk.column()[:3] == ["/locks/nightly", "/locks/report", "/locks/scheduler"]
    assert desk.table().cursor_row == 2


@acted
async def test_sort_and_filter(desk: Desk) -> None:
    await desk.shows(some().look())
    await desk.pilot.press("s")
    assert "by longest-wait" in desk.head()
    await desk.pilot.press("s")
    assert desk.column()[0] == "/locks/nightly"
    await desk.pilot.press("slash", *"UPLO")
    assert desk.column() == ["/locks/uploads"]
    assert "with 'UPLO'" in desk.head()
    await desk.pilot.press("enter", "s")
    assert "by path" in desk.head()
    await desk.pilot.press("escape")
    assert len(desk.column()) == 4


@acted
async def test_into_a_queue_and_back(desk: Desk) -> None:
    world = some()
    await desk.shows(world.look())
    await desk.pilot.press("enter")
    await desk.until(lambda: desk.column(0) == ["holds", "waits", "waits"])
    assert desk.head() == "/locks/report: lock, 1 hold, 2 wait"
    world.queue("/locks/report", 9, "late")
    await desk.shows(world.look())
    assert desk.column(1) == ["-", "1", "2", "3"]
    await desk.shows(world.look(connected=False))
    assert desk.head().startswith("NOT CONNECTED; last known state: /locks/report: lock")
    await desk.shows(Look())
    assert desk.head() == "/locks/report: nobody holds or waits"
    assert desk.column() == []
    await desk.pilot.press("escape")
    await desk.until(lambda: desk.head() == "/locks: 0 locks, 0 waiting; by waiting")
    await desk.pilot.press("enter")
    assert desk.head().startswith("/locks: 0 locks"), "there is no queue to open"


@acted
async def test_it_says_that_it_reads(desk: Desk) -> None:
    await desk.until(lambda: desk.head() == "/locks: reading ...; by waiting")
    await desk.pilot.press("slash", "x")
    assert "0 locks" not in desk.head(), "nothing is known yet"
    await desk.shows(Look())
    assert desk.head() == "/locks: 0 locks, 0 waiting; by waiting; with 'x'"


def test_what_has_no_room_is_scrolled_to_and_stays() -> None:
    world = some()
    world.queue(f"/locks/{'long' * 20}/end", 0x10000ABCDEF0012, "host-9:1:MainThread")

    async def acts(desk: Desk) -> None:
        await desk.shows(world.look())
        await desk.until(lambda: desk.table().max_scroll_x > 100)
        desk.table().scroll_to(x=desk.table().max_scroll_x, animate=False, immediate=True)
        await desk.shows(world.look())

    lines = text_of(play(acts, "0x10000abcdef0012", (80, 12)))
    assert not any("PATH" in line for line in lines)
    assert all(len(line) <= 80 for line in lines)


@acted
async def test_addresses_come_later(desk: Desk) -> None:
    without = some().look()
    await desk.shows(without)
    assert set(desk.column(8)) == {"-"}
    (report,) = (lock for lock in without.locks if lock.path == "/locks/report")
    session = report.places[0].session_id
    assert session is not None
    await desk.shows(replace(without, addresses={session: "10.0.0.7:4711"}))
    assert desk.column(8) == ["10.0.0.7:4711", "-", "-", "-"]
    await desk.pilot.press("enter")
    await desk.until(lambda: len(desk.column()) == 3)
    assert desk.column(7)[0] == "10.0.0.7:4711"


def test_into_a_pool() -> None:
    workers = [PoolMember("w1", 1.0, False, 4, 3), PoolMember("w2", 1.0, True, 0, 0)]
    look = Look(pools=[PoolView("/locks/pool", 4, workers, 1)])

    async def acts(desk: Desk) -> None:
        await desk.shows(look)
        assert desk.column(2) == ["3/4 shards, 2 workers"]
        await desk.pilot.press("enter")
        await desk.until(lambda: desk.column() == ["w1", "w2"])
        assert desk.head() == "/locks/pool: pool, 4 shards, 1 without an owner, 2 workers"
        assert desk.column(3) == ["works", "drains"]

    play(acts)


def test_a_lock_at_the_path_of_a_pool_has_a_row_and_a_queue() -> None:
    world = World()
    world.queue("/p", 1, "host-7")
    look = world.look(pools=[PoolView("/p", 2, [PoolMember("w1", 1.0, False, 2, 2)], 0)])

    async def acts(desk: Desk) -> None:
        await desk.shows(look)
        assert desk.column(1) == ["lock", "pool"]
        await desk.pilot.press("enter")
        await desk.until(lambda: desk.column(6) == ["host-7"])
        await desk.pilot.press("escape", "down", "enter")
        await desk.until(lambda: desk.column() == ["w1"])

    play(acts)


def test_markup_in_an_identity_is_text() -> None:
    async def acts(desk: Desk) -> None:
        world = World()
        world.queue("/locks/x", 1, "[bold]host[/bold]\x1b[31m")
        await desk.shows(world.look())

    assert any("[bold]host[/bold]\\x1b[31m" in line for line in text_of(play(acts, "/locks/x")))


def test_an_error_of_the_reader_ends_the_screen() -> None:
    feed = Feed()
    feed.looks.put(Look())
    feed.looks.put(OSError("gone"))
    app = Top(iter(feed), "/locks", Order.WAITING)
    asyncio.run(app.run_async(headless=True))
    assert str(app.failed) == "gone"


def test_a_signal_ends_the_screen_while_nothing_is_read() -> None:
    feed = Feed()
    app = Top(iter(feed), "/", Order.WAITING)
    app.end_by(signal.SIGTERM)
    asyncio.run(app.run_async(headless=True))
    feed.looks.put(None)
    assert app.ended_by == signal.SIGTERM


def test_ages_grow_where_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.clock = int(NOW)
    world.queue("/locks/nightly", 0x10, "host-3")
    look = world.look()

    async def acts(desk: Desk) -> None:
        await desk.shows(look)
        before = desk.column(3)
        monkeypatch.setattr(model, "time", SimpleNamespace(time=lambda: NOW + 60))
        await desk.until(lambda: desk.column(3) != before)
        await desk.pilot.press("enter")
        await desk.until(lambda: "1 hold" in desk.head())
        (age,) = desk.column(5)
        monkeypatch.setattr(model, "time", SimpleNamespace(time=lambda: NOW + 120))
        await desk.until(lambda: desk.column(5) != [age])
        assert desk.app._look is look

    play(acts)
