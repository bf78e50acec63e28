"""A flag with a limited wait, also for a task that was cancelled and cleans up."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from zklock._ground.async_event import AsyncEvent

SOON = 60.0


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    return functools.wraps(test)(lambda *args, **options: asyncio.run(test(*args, **options)))


@on_a_loop
async def test_what_is_set_needs_no_wait() -> None:
    news = AsyncEvent()
    assert not news.is_set()
    news.set()
    assert news.is_set()
    assert await news.wait(0)
    assert await news.wait()
    news.clear()
    assert not news.is_set()
    for seconds in (0.0, 0.01):
        assert not await news.wait(seconds)


@pytest.mark.parametrize("seconds", [None, SOON])
@pytest.mark.parametrize("cleared", [False, True])
@on_a_loop
async def test_all_who_wait_are_woken_but_who_was_cancelled(
    seconds: float | None, cleared: bool
) -> None:
    news = AsyncEvent()
    gone, *waiting = [asyncio.create_task(news.wait(seconds)) for _ in range(4)]
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    news.set()
    if cleared:
        news.clear()
    assert await asyncio.gather(*waiting) == [True] * 3


@on_a_loop
async def test_a_task_that_was_cancelled_waits_like_any_other() -> None:
    seen: list[bool] = []

    async def clean_up() -> None:
        try:
            await AsyncEvent().wait()
        finally:
            seen.append(await AsyncEvent().wait(0.01))

    task = asyncio.create_task(clean_up())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == [False]
