"""Guards for a service that receives requests: the mark lives in its memory."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future

from zklock.errors import GuardUnusable
from zklock.fencing.guard import Fenced, admit, resource_name, token_of
from zklock.token import FencingToken


class MemoryGuard:
    """Fences one resource inside one process, for its threads and its asyncio tasks.

    Changes run one at a time, in the order in which they asked::

        with guard.hold(token):      # or: async with guard.hold_async(token)
            …                        # the change; no higher token gets in before its end

    ``timeout`` is how many seconds a call waits for its turn (``None``: without limit), after
    which it raises ``TimeoutError``. ``first`` is called with the token while the guard has no
    mark, so after every restart of the process, and refuses it by raising: pass
    ``lambda token: verify_owner(client, path, token)``.

    Not guaranteed: other processes, a second worker of the same service too, have marks of their
    own; without ``first`` a restarted process accepts the first token that it sees, a stale one
    too; a change that the body only starts (a queued job, another service) is not covered.
    """

    def __init__(
        self,
        resource: str,
        *,
        timeout: float | None = None,
        first: Callable[[FencingToken], object] | None = None,
    ) -> None:
        self._resource = resource_name(resource)
        self._timeout = timeout
        self._first = first
        self._mark: FencingToken | None = None
        self._turns = _Turns()

    @property
    def resource(self) -> str:
        """The name that errors give to the resource."""
        return self._resource

    def create(self) -> None:
        """Do nothing: the mark exists as long as the guard."""

    def claim(self, token: Fenced) -> None:
        """Advance the mark once a change that is under way has ended; see ``Guard.claim``."""
        with self.hold(token):
            pass

    @contextlib.contextmanager
    def hold(self, token: Fenced) -> Iterator[None]:
        """Advance the mark, run the body, and let nobody else in until it ends.

        Raises ``StaleToken``, or ``TimeoutError``, before the body. Not re-entrant.
        """
        given = token_of(token)
        if not self._turns.take(self._timeout):
            raise self._too_late()
        try:
            if admit(self._resource, given, self._mark):
                if self._mark is None and self._first is not None:
                    self._first(given)
                self._mark = given
            yield
        finally:
            self._turns.give()

    @contextlib.asynccontextmanager
    async def hold_async(self, token: Fenced) -> AsyncIterator[None]:
        """Do as ``hold`` for a task; waiting, and ``first``, do not block the event loop."""
        given = token_of(token)
        if not await self._turns.take_async(self._timeout):
            raise self._too_late()
        try:
            if admit(self._resource, given, self._mark):
                if self._mark is None and self._first is not None:
                    await asyncio.to_thread(self._first, given)
                self._mark = given
            yield
        finally:
            self._turns.give()

    def highest(self) -> FencingToken | None:
        """Return the mark; ``None`` while no token has been seen."""
        return self._mark

    def _too_late(self) -> TimeoutError:
        return TimeoutError(
            f"{self._resource}: earlier changes have been running for {self._timeout} s"
        )


class MemoryGuards:
    """The guards of a service's many resources, made at their first use: ``guards[resource]``.

    Every look-up of one resource gives the same guard. ``capacity`` bounds the marks that are
    kept. None is evicted, as a forgotten mark would let stale tokens in again: a further resource
    is refused with ``GuardUnusable`` until ``discard`` makes room. A resource counts from its
    first accepted token. ``first(resource, token)`` and ``timeout`` are those of ``MemoryGuard``.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        timeout: float | None = 30.0,
        first: Callable[[str, FencingToken], object] | None = None,
    ) -> None:
        if isinstance(capacity, bool) or not isinstance(capacity, int):
            raise TypeError(f"capacity must be an int, not {type(capacity).__name__}")
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._capacity = capacity
        self._timeout = timeout
        self._first = first
        self._mutex = threading.Lock()
        # Every guard that anybody has, so that no resource ever has two …
        self._known: weakref.WeakValueDictionary[str, MemoryGuard] = weakref.WeakValueDictionary()
        # … and those with a mark, which must stay.
        self._marked: dict[str, MemoryGuard] = {}

    def __getitem__(self, resource: str) -> MemoryGuard:
        """Return the guard of ``resource``."""
        with self._mutex:
            guard = self._known.get(resource)
            if guard is None:
                guard = MemoryGuard(
                    resource,
                    timeout=self._timeout,
                    first=functools.partial(self._admit_first, resource),
                )
                self._known[resource] = guard
            return guard

    def __len__(self) -> int:
        """Return how many resources have a mark."""
        return len(self._marked)

    def discard(self, resource: str) -> None:
        """Forget the mark of a resource that is gone for good, once nobody uses its guard."""
        with self._mutex:
            self._marked.pop(resource, None)

    def _admit_first(self, resource: str, token: FencingToken) -> None:
        if self._first is not None:
            self._first(resource, token)
        with self._mutex:
            if resource not in self._marked and len(self._marked) >= self._capacity:
                raise GuardUnusable(
                    f"{resource}: {self._capacity} other resources fill the guards' memory: raise "
                    "the capacity, or discard() resources that are gone",
                    resource=resource,
                    token=token,
                )
            self._marked[resource] = self._known[resource]


class _Turns:
    """A first-come lock for threads and tasks alike; whoever holds it may be any of them."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._taken = False
        self._waiting: deque[Future[None]] = deque()

    def take(self, timeout: float | None) -> bool:
        turn = self._queue()
        try:
            turn.result(timeout)
        except TimeoutError:
            return self._withdraw(turn)
        except BaseException:
            if self._withdraw(turn):
                self.give()
            raise
        return True

    async def take_async(self, timeout: float | None) -> bool:
        turn = self._queue()
        try:
            async with asyncio.timeout(timeout):
                # Shielded: whether the turn came is decided by _withdraw alone.
                await asyncio.shield(asyncio.wrap_future(turn))
        except TimeoutError:
            return self._withdraw(turn)
        except BaseException:
            if self._withdraw(turn):
                self.give()
            raise
        return True

    def give(self) -> None:
        with self._mutex:
            while self._waiting:
                turn = self._waiting.popleft()
                if turn.set_running_or_notify_cancel():
                    break
            else:
                self._taken = False
                return
        turn.set_result(None)

    def _queue(self) -> Future[None]:
        turn: Future[None] = Future()
        with self._mutex:
            if self._taken:
                self._waiting.append(turn)
                return turn
            self._taken = True
        turn.set_running_or_notify_cancel()
        turn.set_result(None)
        return turn

    def _withdraw(self, turn: Future[None]) -> bool:
        """Leave the queue; True if the turn had come already and is the caller's."""
        return not turn.cancel()
