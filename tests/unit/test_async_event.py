"""A flag with a limited wait, also for a task that was cancelled and cleans up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from zklock._ground.async_event import AsyncEvent

SOON = 60.0


def test_what_is_set_needs_no_wait() -> None:
    async def body() -> None:
        news = AsyncEvent()
        assert not news.is_set()
        news.set()
        assert news.is_set()
        assert await news.wait(0)
        assert await news.wait()
        news.clear()
        assert not news.is_set()
        assert not await news.wait(0)

    asyncio.run(body())


@pytest.mark.parametrize("seconds", [None, SOON])
@pytest.mark.parametrize("cleared", [False, True])
def test_all_who_wait_are_woken(seconds: float | None, cleared: bool) -> None:
    async def body() -> None:
        news = AsyncEvent()
        waiting = [asyncio.create_task(news.wait(seconds)) for _ in range(3)]
        await asyncio.sleep(0)
        news.set()
        if cleared:
            news.clear()
        assert await asyncio.gather(*waiting) == [True] * 3

    asyncio.run(body())


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_news_that_do_not_come(seconds: float) -> None:
    assert not asyncio.run(AsyncEvent().wait(seconds))


def test_a_task_that_was_cancelled_waits_like_any_other() -> None:
    seen: list[Any] = []

    async def clean_up() -> None:
        try:
            await AsyncEvent().wait()
        finally:
            seen.append(await AsyncEvent().wait(0.01))

    async def body() -> None:
        task = asyncio.create_task(clean_up())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == [False]

    asyncio.run(body())


def test_who_is_cancelled_waits_no_more() -> None:
    async def body() -> None:
        news = AsyncEvent()
        gone, stays = (asyncio.create_task(news.wait(SOON)) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        news.set()
        assert await stays

    asyncio.run(body())
