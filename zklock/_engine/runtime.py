"""What a session runs on: the clock, its thread, its callers and its store, handed in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeAlias

from zklock._engine.callback_executor import CallbackExecutor
from zklock._engine.ports import Transport
from zklock._engine.timed_thread import TimedThread
from zklock._ground.clock import clock as real_clock
from zklock._kazoo.channels import open_store
from zklock._kazoo.client import Kazoo

Limit: TypeAlias = Callable[[float | None, Callable[[], object]], float | None]
"""``limit(seconds, wake)``: called before a wait of at most ``seconds``. It returns the real limit
of the wait. A clock that is not the real one returns no limit, and calls ``wake()`` in time."""


def real_limit(seconds: float | None, wake: Callable[[], object]) -> float | None:
    """Let the system limit the wait."""
    return seconds


OpenStore: TypeAlias = Callable[
    [
        Kazoo,
        Callable[[str, str | None], None],
        Callable[[int], bool],
        AbstractContextManager[object],
    ],
    Transport,
]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Runtime:
    """The clock in seconds; what makes the threads, the callers and the store; how waits end."""

    clock: Callable[[], float] = real_clock
    thread: Callable[[str, Callable[[], float | None]], TimedThread] = field(default=TimedThread)
    callers: Callable[[], CallbackExecutor] = field(default=CallbackExecutor)
    store: OpenStore = field(default=open_store)
    limit: Limit = field(default=real_limit)

    @property
    def on_real_clock(self) -> bool:
        """Whether other processes have the same clock."""
        return self.clock is real_clock
