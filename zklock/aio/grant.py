"""One acquisition, as asyncio sees it, and how a task enters and leaves it by ``async with``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from zklock._core.contexts import AttemptingBase, B, EnteredContext, GrantContext, T
from zklock._core.grant import GrantBase, GrantOptions
from zklock._core.session import Session as SessionPort
from zklock._ground.cached_property import cached_property
from zklock._ground.context_exit import entered
from zklock._ground.records import log_fields
from zklock._recipes.effects import Claim
from zklock.aio.leaving import TaskEntersContext, held_from
from zklock.aio.waiting import AWAITING, call_soon, running_loop, running_task

log = logging.getLogger("zklock")

_callbacks: set[asyncio.Task[Any]] = set()
"""The tasks that run: the loop itself keeps only weak references to tasks."""


class Entered(GrantContext, TaskEntersContext):
    """What a task holds already, and releases at the end of an ``async with`` body."""

    def __aenter__(self) -> Coroutine[Any, Any, Self]:
        return held_from(entered(self), self._enter_body)

    async def _enter_body(self) -> Self:
        self._enter()
        return self


class Enters(EnteredContext[T], TaskEntersContext):
    """How a task enters what it holds from then on."""

    def __aenter__(self) -> Coroutine[Any, Any, T]:
        body = entered(self)
        return held_from(body, partial(self._enter, body))


class Attempting(AttemptingBase[B], Enters[B | None]):
    """``async with lock.attempt(…)``."""


class Grant(GrantBase, Entered):
    """One acquisition of a lock: held until it is released or lost, and never again after.

    The attributes are those of :class:`zklock.Grant`, but ``lost`` is an ``asyncio.Event``. It is
    set, and callbacks run, on the event loop of the task that acquired, as soon as that loop is not
    busy. ``held``, ``check()`` and ``remaining()`` ask the clock and do not depend on the loop. A
    callback that is a coroutine function is run as a task. Once the loop is closed no callback
    is called.

    A grant is a context manager: ``async with await lock.acquire() as grant:``. It is entered on
    that loop, else it raises ``RuntimeError``. A loss then cancels the body, and leaving it
    releases, by the rules of ``async with lock``.
    """

    _AWAITS = True
    _FRONT = AWAITING

    _bodies: Bodies | None = None

    def __init__(
        self, keeper: SessionPort, *, claim: Claim, session_id: int, terms: GrantOptions
    ) -> None:
        super().__init__(keeper, claim=claim, session_id=session_id, terms=terms)
        self._loop = self._loop_of(terms)

    @cached_property
    def lost(self) -> asyncio.Event:
        """Set once the grant is lost, not when it is released."""
        return asyncio.Event()

    @staticmethod
    def _loop_of(terms: GrantOptions) -> asyncio.AbstractEventLoop | None:
        """Return the loop on which the grant reports."""
        task: asyncio.Task[Any] | None = terms.owner()
        return None if task is None else task.get_loop()

    async def verify(self, timeout: float | None = None) -> None:
        """Ask a quorum whether the lock is still held: see :meth:`zklock.Grant.verify`."""
        await self._verify(timeout)

    async def release(self) -> None:
        """Release the lock, from any task: see :meth:`zklock.Grant.release`.

        If this is cancelled, the deletion of the node continues in the background.
        """
        await self._release()

    def _check_loop(self) -> None:
        """Raise if the running loop is another one: a body can be cancelled on its loop only."""
        if self._loop not in {None, asyncio.get_running_loop()}:
            raise RuntimeError(
                f"{self.lock_path}: this grant was acquired on another event loop: enter it there"
            )

    def _enter(self) -> None:
        self._check_loop()
        if self._bodies is None:
            self._bodies = Bodies()
        self._bodies.enter()
        if self._loss is not None:
            asyncio.get_running_loop().call_soon(self._tell)

    def _leave(self, error: BaseException | None) -> bool:
        return self._bodies is not None and self._bodies.leave(error)

    def _set_lost(self) -> None:
        if self._loop is running_loop():
            self.lost.set()
        if self._loop is None or not call_soon(self._loop, self._tell):
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self.lost.set()

    def _tell(self) -> None:
        self.lost.set()
        if self._bodies is not None:
            self._bodies.cancel()

    def _notify(self, calls: list[Callable[[], object]]) -> None:
        for call in calls:
            # Else they would see the context variables of whatever task has noticed a loss.
            context = Context()
            if self._loop is None or not call_soon(self._loop, partial(_run, call), context):
                log.warning(
                    "%s: a callback is not called: its event loop is closed",
                    self.lock_path,
                    extra=log_fields(self),
                )

    def _forget_waiters(self) -> None:
        self._loop = None
        self.lost = asyncio.Event()


@dataclass(slots=True, eq=False)
class _Body:
    """The body of an ``async with``; ``before``: the cancellations of its task when it began."""

    task: weakref.ref[asyncio.Task[Any]]
    before: int
    cancelled: bool = False


class Bodies:
    """The bodies of ``async with`` that one grant has entered, the innermost one last.

    Each is cancelled once if the grant is lost. It accounts for its cancellation as
    ``asyncio.timeout()`` does. On leaving, it takes back its own cancellation; a cancellation that
    others asked for as well goes on.
    """

    __slots__ = ("_bodies",)

    def __init__(self) -> None:
        self._bodies: tuple[_Body, ...] = ()

    def enter(self) -> None:
        """Enter a body of the running task."""
        task = running_task()
        self._bodies = (*self._bodies, _Body(weakref.ref(task), task.cancelling()))

    def leave(self, error: BaseException | None) -> bool:
        """Leave the innermost body of the running task, or of any if that has entered none.

        Return whether its error is the cancellation for the loss. Nobody may have entered a body:
        ``AsyncExitStack.push_async_exit()`` only leaves.
        """
        bodies = self._bodies
        if not bodies:
            return False
        running = None if running_loop() is None else asyncio.current_task()
        mine = [body for body in bodies if body.task() is running]
        left = (mine or bodies)[-1]
        self._bodies = tuple([body for body in bodies if body is not left])
        task = left.task()
        if task is None or not left.cancelled:
            return False
        return task.uncancel() <= left.before and isinstance(error, asyncio.CancelledError)

    def cancel(self) -> None:
        """Cancel the bodies. Called by the loop."""
        for body in self._bodies:
            task = body.task()
            if task is not None and not body.cancelled:
                body.cancelled = True
                task.cancel()


def _run(call: Callable[[], object]) -> None:
    """Run a callback, on the loop."""
    try:
        outcome = call()
    except Exception:
        log.exception("a callback of a lock raised", extra=log_fields())
        return
    if asyncio.iscoroutine(outcome):
        task = asyncio.get_running_loop().create_task(outcome, name="zklock-callback")
        _callbacks.add(task)
        task.add_done_callback(_ran)


def _ran(task: asyncio.Task[Any]) -> None:
    _callbacks.discard(task)
    error: BaseException | None
    if not task.cancelled():
        error = task.exception()
    elif task.cancelling():
        error = None
    else:
        error = asyncio.CancelledError("what the callback awaited was cancelled")
    if error is not None:
        log.error("a callback of a lock raised", exc_info=error, extra=log_fields())
