"""Hands events to those who have subscribed to them, each on a thread of its own."""

from __future__ import annotations

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

from zklock._ground import threads
from zklock._ground.clock import clock
from zklock._ground.events import Event as Flag
from zklock._ground.process import Process, this_process
from zklock._ground.records import log_fields
from zklock._telemetry.events import Event, Lost, Released

log = logging.getLogger("zklock")

Hook: TypeAlias = Callable[[Event], object]

Over: TypeAlias = dict[object, None]
"""Belongs to a grant, and notes which subscriptions were told of its end."""

QUIET = 60.0
"""Seconds from one message about a subscription to the next."""


class Subscription:
    """Events on their way to one hook; see ``subscribe``."""

    def __init__(self, hook: Hook, most: int) -> None:
        self._hook = hook
        self._most = most
        # By thread: without the global lock, two threads that add to one number lose counts.
        self._drops: defaultdict[int, int] = defaultdict(int)
        self._said = 0
        self._quiet_until = 0.0
        self._begin()

    @property
    def dropped(self) -> int:
        """How many events were dropped, because too many waited already."""
        return sum(list(self._drops.values()))

    def flush(self, timeout: float = 1.0) -> bool:
        """Wait until all events so far are delivered, at most ``timeout`` seconds; return whether.

        In the hook itself it waits until its timeout. ``False`` after ``close()``, too.
        """
        told = Flag()
        self._queue.put(told)
        return told.wait(timeout)

    def close(self) -> None:
        """Deliver the events so far, and no later ones. Does not wait. Repeatable."""
        hooks.pop(self, None)
        self._queue.put(None)

    def _put(self, event: Event, over: Over | None) -> None:
        """Have the event told soon.

        This takes no lock, waits for nothing, and starts no thread. So it may be called under a
        lock, on a kazoo thread, and in a signal handler.
        """
        if self._queue.qsize() < self._most:
            self._queue.put((event, over))
        else:
            self._drops[threading.get_ident()] += 1

    def _begin_anew(self) -> None:
        """Start over in a forked child, where the thread does not run."""
        try:
            self._begin()
        except threads.NoThread as error:
            log.error("no telemetry in this forked process: %s", error, extra=log_fields())

    def _begin(self) -> None:
        self._queue: SimpleQueue[tuple[Event, Over | None] | Flag | None] = SimpleQueue()
        try:
            threads.start(self._serve, "zklock-telemetry", self._queue)
        except BaseException:
            self._queue.put(None)  # an interrupt may strike once the thread runs
            raise

    def _serve(self, queue: SimpleQueue[tuple[Event, Over | None] | Flag | None]) -> None:
        while (item := queue.get()) is not None:
            if isinstance(item, Flag):
                item.set()
                continue
            event, over = item
            if over is None or self not in over:
                if over is not None and isinstance(event, Released | Lost):
                    over[self] = None
                self._tell(event)
            del item, event, over
            if self._drops and (dropped := self.dropped) > self._said and self._may_speak():
                log.warning(
                    "%s telemetry events dropped: %r is too slow",
                    dropped - self._said,
                    self._hook,
                    extra=log_fields(),
                )
                self._said = dropped

    def _tell(self, event: Event) -> None:
        try:
            self._hook(event)
        except BaseException:  # SystemExit too: it would end this thread silently
            if self._may_speak():
                log.exception("a telemetry hook raised", extra=log_fields())

    def _may_speak(self) -> bool:
        now = clock()
        if now < self._quiet_until:
            return False
        self._quiet_until = now + QUIET
        return True

    def __repr__(self) -> str:
        return f"<Subscription of {self._hook!r}, {self.dropped} dropped>"


hooks: dict[Subscription, None] = {}
"""The subscriptions. The maker of an event looks here first: without one it costs a look."""


def subscribe(hook: Hook, most: int) -> Subscription:
    """Tell ``hook`` of every event from now on; ``NoThread`` if no thread can be started."""
    subscription = Subscription(hook, most)
    try:
        hooks[subscription] = None
        return subscription
    except BaseException:
        subscription.close()
        raise


def emit(event: Event, over: Over | None = None) -> None:
    """Have all hooks told of the event.

    With the ``over`` of a grant, each is told of one end of it, and of nothing after that: threads
    that saw the grant before it ended may tell of it later.
    """
    for subscription in list(hooks):  # one step, as tuple() is not without the global lock
        subscription._put(event, over)


def in_child(process: Process) -> bool:
    """Whether users' code on a thread of ours has forked since, and has returned in the child.

    ``process``: the one before. The thread has to end then: it is the only one there, and locks may
    be taken for ever. Nothing is told any more, as the thread for that would keep the process.
    """
    if this_process() == process:
        return False
    for subscription in list(hooks):
        subscription.close()
    return True


def _after_fork() -> None:
    for subscription in list(hooks):
        subscription._begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
