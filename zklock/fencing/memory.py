"""Guards for a service that receives requests: the mark lives in its memory."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Self

from zklock._core.callbacks import check_callbacks, ran
from zklock._ground.async_event import AsyncEvent
from zklock._ground.clock import check_timeout, clock
from zklock._ground.numbers import check_int
from zklock._ground.process import this_process
from zklock.errors import GuardUnusable, NoAnswer, WouldDeadlock
from zklock.fencing.guard import Fenced, admit, resource_name, token_of
from zklock.token import FencingToken

# A waiting call finds out within so many seconds that the one with the turn is gone without having
# ended it.
_NET = 0.25


class MemoryGuard:
    """Fences one resource inside one process, for its threads and its asyncio tasks.

    Changes run one at a time, in the order in which they asked::

        with guard.hold(token):      # or: async with guard.hold_async(token)
            …                        # the change; no higher token gets in before its end

    ``timeout`` is how many seconds a call waits for its turn (``None``: without limit). After that
    it raises ``NoAnswer``, a ``TimeoutError``. ``first`` is called with the token while the guard
    has no mark, so after every restart of the process. It refuses the token by raising: pass
    ``lambda token: verify_owner(client, path, token)``.

    If a signal handler raises an exception inside a call, or in the body, the turn ends. A signal
    handler must not make these calls, because they wait: it would wait for the code that it
    interrupts. A forked child has none of its parent's turns.

    Not guaranteed:

    - Other processes have marks of their own; so does a second worker of the same service.
    - Without ``first``, a restarted process accepts the first token that it sees, even a stale
      one.
    - A change that the body only starts (a queued job, another service) is not covered.
    """

    def __init__(
        self,
        resource: str,
        *,
        timeout: float | None = None,
        first: Callable[[FencingToken], object] | None = None,
    ) -> None:
        self._resource = resource_name(resource)
        self._timeout = check_timeout(timeout)
        check_callbacks(False, first=first)
        self._first = first
        self._mark: FencingToken | None = None
        # The first has the turn. Each step is one operation of the deque: there is no lock that an
        # exception of a signal handler could leave taken.
        self._line: deque[_Place] = deque()
        # Called before the mark is set, and after the first mark is taken back.
        self._keep: Callable[[FencingToken], object] = _nothing
        self._drop: Callable[[], object] = _nothing

    @property
    def resource(self) -> str:
        """The name that errors give to the resource."""
        return self._resource

    def create(self) -> None:
        """Do nothing: the mark exists as long as the guard."""

    def claim(self, token: Fenced) -> None:
        """Advance the mark after any change that is running has ended; see ``Guard.claim``."""
        with self.hold(token):
            pass

    def hold(self, token: Fenced) -> Hold:
        """Advance the mark, run the body, and let nobody else in until it ends.

        Raises ``StaleToken``, or ``NoAnswer``, before the body. Not re-entrant: without a
        ``timeout``, a call by the thread or task whose turn it is raises ``WouldDeadlock``.
        """
        return Hold.of(self, token, self._leave)

    def hold_async(self, token: Fenced) -> AsyncHold:
        """Do the same as ``hold`` for a task; waiting and ``first`` do not block the event loop."""
        return AsyncHold.of(self, token, self._leave_async)

    def highest(self) -> FencingToken | None:
        """Return the mark; ``None`` while no token has been seen."""
        return self._mark

    def _front(self) -> _Place | None:
        """Return who has the turn: the first whose hold lives, in this process."""
        while self._line:
            with contextlib.suppress(IndexError):  # the last one has just left
                first = self._line[0]
                if first.owner() is not None and first.process == this_process():
                    return first
                self._remove(first)
        return None

    def _remove(self, place: _Place) -> None:
        with contextlib.suppress(ValueError):
            self._line.remove(place)

    def _leave(self, place: _Place, *_: object) -> None:
        """Leave the line, from any place in it, and wake the one who is first now."""
        self._remove(place)
        while (first := self._front()) is not None:
            try:
                first.poke()
            except RuntimeError:  # its event loop is closed: it waits no more
                self._remove(first)
            else:
                return

    async def _leave_async(self, place: _Place, *_: object) -> None:
        self._leave(place)


class _Place:
    """A place in the line: it is taken for as long as the hold lives."""

    owner: weakref.ref[object]
    caller: weakref.ref[Any] | None = None
    poke: Callable[[], object]

    def __init__(self) -> None:
        self.process = this_process()


# Two things keep a hold alive: ``with`` does, by the method that ends it; and a frame that has
# raised does, by its arguments. But a turn must end even if an exception strikes in the very call
# that ends it. Hence two rules. The line knows its members only by a weak reference to the hold.
# And the method that ends it is partial's, in C; it calls _leave() without the hold.


class _Held(functools.partial[Any]):
    """What a hold of a thread and a hold of a task have in common."""

    _guard: MemoryGuard
    _given: Fenced
    _place: _Place
    _entered = False
    _first_mark = False

    @classmethod
    def of(cls, guard: MemoryGuard, given: Fenced, leave: Callable[..., Any]) -> Self:
        """Return a hold that is not in the line yet; entering it joins the line."""
        place = _Place()
        hold = cls(leave, place)
        place.owner = weakref.ref(hold)
        hold._guard, hold._given, hold._place = guard, given, place
        return hold

    def take_back(self) -> None:
        """Forget the mark if this hold made the first one; for a body that has changed nothing."""
        if self._first_mark:
            self._guard._mark = None
            self._guard._drop()

    def _token(self) -> FencingToken:
        """Return the token, before the line is joined; refuse what would never come out of it."""
        guard = self._guard
        if self._entered:
            raise RuntimeError("a hold is entered once: call hold() again for another")
        self._entered = True
        if guard._timeout is None:
            first, caller = guard._front(), _caller()
            self._place.caller = caller
            if first and first.caller == caller:
                raise WouldDeadlock(
                    f"{guard._resource}: this thread or task is inside a hold of this guard and "
                    "would wait for itself: leave that body first"
                )
        return token_of(self._given)

    def _turn(self, poke: Callable[[], object]) -> Iterator[float]:
        """Join the line; yield for how many seconds to wait for a poke, until the turn."""
        guard, place = self._guard, self._place
        end = math.inf if guard._timeout is None else clock() + guard._timeout
        place.poke = poke
        guard._line.append(place)
        while guard._front() is not place:
            if (left := end - clock()) <= 0:
                raise NoAnswer(
                    f"{guard._resource}: earlier changes have been running for "
                    f"{guard._timeout:g} s: nothing has changed, try again"
                )
            yield min(_NET, left)

    def _asks(self, token: FencingToken) -> Callable[[FencingToken], object] | None:
        """Compare the token with the mark; return what has to be asked about a first one."""
        guard = self._guard
        admit(guard._resource, token, guard._mark)
        self._first_mark = guard._mark is None
        return guard._first if self._first_mark else None

    def _advance(self, token: FencingToken) -> None:
        guard = self._guard
        try:
            guard._keep(token)
            guard._mark = token
        finally:
            if guard._mark is None:
                guard._drop()


class Hold(_Held):
    """A turn of a thread, for ``with``; see ``MemoryGuard.hold``."""

    __exit__ = functools.partial.__call__

    def __enter__(self) -> None:
        """Wait for the turn, and advance the mark."""
        token = self._token()
        pokes: queue.SimpleQueue[None] = queue.SimpleQueue()
        try:
            for left in self._turn(functools.partial(pokes.put, None)):
                with contextlib.suppress(queue.Empty):
                    pokes.get(timeout=left)
            if first := self._asks(token):
                ran("first", first(token))
            self._advance(token)
        except BaseException:
            self._guard._leave(self._place)
            raise


class AsyncHold(_Held):
    """A turn of a task, for ``async with``; see ``MemoryGuard.hold_async``."""

    __aexit__ = functools.partial.__call__

    async def __aenter__(self) -> None:
        """Wait for the turn, and advance the mark."""
        token = self._token()
        poked, loop = AsyncEvent(), asyncio.get_running_loop()
        try:
            for left in self._turn(functools.partial(loop.call_soon_threadsafe, poked.set)):
                await poked.wait(left)
                poked.clear()
            if first := self._asks(token):
                ran("first", await asyncio.to_thread(first, token))
            self._advance(token)
        except BaseException:
            self._guard._leave(self._place)
            raise


class MemoryGuards:
    """The guards of a service's many resources, made when first used: ``guards[resource]``.

    Every look-up of one resource gives the same guard. ``capacity`` limits how many marks are
    kept. No mark is evicted: a forgotten mark would let stale tokens in again. Beyond the
    capacity, a new resource is refused with ``GuardUnusable`` until ``discard`` makes room. A
    resource counts from its first accepted token. ``first(resource, token)`` and ``timeout`` work
    as in ``MemoryGuard``.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        timeout: float | None = 30.0,
        first: Callable[[str, FencingToken], object] | None = None,
    ) -> None:
        self._capacity = check_int("capacity", capacity, 1)
        self._timeout = check_timeout(timeout)
        check_callbacks(False, 2, first=first)
        self._first = first
        # Not a lock of threading: an exception in the wrong place could leave it locked.
        self._mutex = MemoryGuard("the guards of a service")
        # Every guard that anybody has, so that no resource ever has two …
        self._known: weakref.WeakValueDictionary[str, MemoryGuard] = weakref.WeakValueDictionary()
        # … and those with a mark, which must stay.
        self._marked: dict[str, MemoryGuard] = {}

    def __getitem__(self, resource: str) -> MemoryGuard:
        """Return the guard of ``resource``."""
        guard = self._marked.get(resource)
        if guard is not None:
            return guard
        with self._mutex.hold(_ANY):
            guard = self._known.get(resource)
            if guard is None:
                guard = MemoryGuard(
                    resource,
                    timeout=self._timeout,
                    first=self._first and functools.partial(self._first, resource),
                )
                guard._keep = functools.partial(self._make_room, resource)
                guard._drop = functools.partial(self.discard, resource)
                self._known[resource] = guard
            return guard

    def __len__(self) -> int:
        """Return how many resources have a mark."""
        return len(self._marked)

    def discard(self, resource: str) -> None:
        """Drop a resource that is gone for good; forget its mark when nobody uses its guard.

        If a token is accepted before that, the mark is kept again.
        """
        self._marked.pop(resource, None)

    def _make_room(self, resource: str, token: FencingToken) -> None:
        if resource in self._marked:
            return
        with self._mutex.hold(_ANY):
            if len(self._marked) >= self._capacity:
                raise GuardUnusable(
                    f"{resource}: {self._capacity} other resources fill the guards' memory: raise "
                    "the capacity, or discard() resources that are gone",
                    resource=resource,
                    token=token,
                )
            self._marked[resource] = self._known[resource]


_ANY = FencingToken(0, 0)


def _nothing(*_: object) -> None:
    pass


def _caller() -> weakref.ref[Any]:
    """Return the running task, else the thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs
        task = None
    return weakref.ref(task or threading.current_thread())
