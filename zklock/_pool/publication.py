"""What a worker says of itself, in nodes of its own, for others to read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from zklock._core.attempt import Once
from zklock._pool.trouble import Trouble
from zklock._recipes import queries, steps
from zklock.errors import AccessDenied

if TYPE_CHECKING:
    from zklock._pool.worker import Worker

log = logging.getLogger("zklock")

REFUSED = 1.0
"""How long a worker waits after ACLs have refused a write, in seconds. Then it tries again."""

_LONGEST = 30.0
"""The longest such pause, after several refusals in a row, in seconds."""


@dataclass(eq=False)
class Publication:
    """Has a node say what it should: writes it after each change, and again after a refusal.

    Only the pool's thread uses it. ``said()`` returns the node and its data; the node is ``None``
    while there is nothing to write. Changes are collected for ``pause`` seconds. One write is under
    way at a time, so that the newest comes last. Nothing is written once the worker was told to
    leave. A node that is gone is left alone.
    """

    worker: Worker
    said: Callable[[], tuple[str | None, bytes]]
    pause: float = 0.0
    _refusals: Trouble = field(default_factory=lambda: Trouble((REFUSED, _LONGEST)))
    _written: tuple[str | None, bytes] | None = None
    _under_way: bool = False

    def forget(self) -> None:
        """Write the next data in any case: the node may have been made anew."""
        self._written = None

    def soon(self) -> None:
        """Write soon: something has changed."""
        if not self._under_way:
            self._under_way = True
            self._after(self.pause)

    def _after(self, seconds: float) -> None:
        self.worker.task_queue.at(self.worker.task_queue.now() + seconds, self._write)

    def _write(self) -> None:
        node, data = said = self.said()
        if node is None or self.worker.stopping or said == self._written:
            self._under_way = False
            return
        self._written = said
        write = partial(steps.overwrite, node, data)
        attempt = self.worker.session.attempt(partial(queries.retry_on_new_session, write))
        answered = Once(lambda: self._answered(attempt.settled()[1]))
        attempt.when_done(partial(self.worker.task_queue.later, answered))
        attempt.start()

    def _answered(self, error: BaseException | None) -> None:
        """Write again: something may have changed meanwhile, or ACLs may be changed."""
        if isinstance(error, AccessDenied):
            if self._refusals.strikes(error):
                log.error(
                    "this worker may not write its own node: %s", error, extra=self.worker._fields()
                )
            self._written = None
            self._after(self._refusals.pause())
        else:
            if self._refusals.ends():
                log.info("this worker writes its node again", extra=self.worker._fields())
            self._after(self.pause)
