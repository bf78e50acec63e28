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
from typing import Any, ClassVar, Self

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
    interrupts.

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
        self._line = _Line()
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
        return Hold(self, token)

    def hold_async(self, token: Fenced) -> AsyncHold:
        """Do the same as ``hold`` for a task; waiting and ``first`` do not block the event loop."""
        return AsyncHold(self, token)

    def highest(self) -> FencingToken | None:
        """Return the mark; ``None`` while no token has been seen."""
        return self._mark

    def _advance(self, token: FencingToken) -> None:
        """Set the mark; the caller has the turn, and has asked ``first`` about a first token."""
        try:
            self._keep(token)
            self._mark = token
        finally:
            if self._mark is None:
                self._drop()


# Two things keep a hold alive: ``with`` does, by the method that ends it; and a frame that has
# raised does, by its arguments. But a turn must end even if an exception strikes in the very call
# that ends it. Hence two rules. The line knows its members only by a weak reference to the hold.
# And the method that ends it is partial's, in C; it calls _Line.leave without the hold.


class _Held(functools.partial[Any]):
    """What a hold of a thread and a hold of a task have in common."""

    _LEAVE: ClassVar[str]
    """The method of the line that ends the turn."""

    _guard: MemoryGuard
    _place: _Place
    _token: Fenced
    _used = False
    _first_mark = False

    def __new__(cls, guard: MemoryGuard, token: Fenced) -> Self:
        """Return a hold that is not in the line yet; entering it joins the line."""
        place = _Place()
        hold = super().__new__(cls, getattr(guard._line, cls._LEAVE), place)
        place.owner = weakref.ref(hold)
        hold._guard, hold._place, hold._token = guard, place, token
        return hold

    def take_back(self) -> None:
        """Forget the mark if this hold made the first one; for a body that has changed nothing."""
        if self._first_mark:
            self._guard._mark = None
            self._guard._drop()

    def _begin(self) -> FencingToken:
        if self._used:
            raise RuntimeError("a hold is entered once: call hold() again for another")
        self._used = True
        if self._guard._timeout is None:
            self._check_own()
        return token_of(self._token)

    def _check_own(self) -> None:
        guard, first = self._guard, self._guard._line._first()
        self._place.caller = _caller()
        if first and first.caller == self._place.caller:
            raise WouldDeadlock(
                f"{guard._resource}: this thread or task is inside a hold of this guard and would "
                "wait for itself: leave that body first"
            )

    def _admit(self, came: bool, token: FencingToken) -> Callable[[FencingToken], object] | None:
        """Compare the token with the mark; return what has to be asked about a first mark."""
        guard = self._guard
        if not came:
            raise NoAnswer(
                f"{guard._resource}: earlier changes have been running for {guard._timeout:g} s: "
                "nothing has changed, try again"
            )
        admit(guard._resource, token, guard._mark)
        self._first_mark = guard._mark is None
        return guard._first if self._first_mark else None


class Hold(_Held):
    """A turn of a thread, for ``with``; see ``MemoryGuard.hold``."""

    _LEAVE = "leave"
    __exit__ = functools.partial.__call__

    def __enter__(self) -> None:
        """Wait for the turn, and advance the mark."""
        given = self._begin()
        guard = self._guard
        try:
            came = guard._line.take(self._place, guard._timeout)
            if first := self._admit(came, given):
                ran("first", first(given))
            guard._advance(given)
        except BaseException:
            guard._line.leave(self._place)
            raise


class AsyncHold(_Held):
    """A turn of a task, for ``async with``; see ``MemoryGuard.hold_async``."""

    _LEAVE = "leave_async"
    __aexit__ = functools.partial.__call__

    async def __aenter__(self) -> None:
        """Wait for the turn, and advance the mark."""
        given = self._begin()
        guard = self._guard
        try:
            came = await guard._line.take_async(self._place, guard._timeout)
            if first := self._admit(came, given):
                ran("first", await asyncio.to_thread(first, given))
            guard._advance(given)
        except BaseException:
            guard._line.leave(self._place)
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
            if resource not in self._marked and len(self._marked) >= self._capacity:
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


class _Place:
    """A place in the line; the one who stands there is alive as long as ``owner`` is.

    In a forked child, only the places of the thread that has forked are anybody's.
    """

    __slots__ = ("_process", "_thread", "caller", "owner", "poke")

    caller: weakref.ref[Any]
    owner: weakref.ref[object]

    def __init__(self) -> None:
        self.poke: Callable[[], object] = _nothing

    def taken(self) -> None:
        """Note who stands here from now on."""
        self._process, self._thread = this_process(), threading.get_ident()

    @property
    def alive(self) -> bool:
        """Whether somebody stands here."""
        ours = self._process == this_process() or self._thread == threading.main_thread().ident
        return ours and self.owner() is not None


class _Line:
    """A first-come lock for both threads and tasks: the first in the line has the turn.

    It uses no other lock: every step is one operation of the deque.
    """

    def __init__(self) -> None:
        self._places: deque[_Place] = deque()

    def take(self, place: _Place, timeout: float | None) -> bool:
        """Join the line and wait for the turn; False if it does not come in time."""
        pokes: queue.SimpleQueue[None] = queue.SimpleQueue()
        for left in self._waits(place, timeout, functools.partial(pokes.put, None)):
            with contextlib.suppress(queue.Empty):
                pokes.get(timeout=left)
        return self._first() is place

    async def take_async(self, place: _Place, timeout: float | None) -> bool:
        poked, loop = AsyncEvent(), asyncio.get_running_loop()
        poke = functools.partial(loop.call_soon_threadsafe, poked.set)
        for left in self._waits(place, timeout, poke):
            await poked.wait(left)
            poked.clear()
        return self._first() is place

    def _waits(
        self, place: _Place, timeout: float | None, poke: Callable[[], object]
    ) -> Iterator[float]:
        """Join the line; yield for how long to wait for a poke, until the turn or the end."""
        end = math.inf if timeout is None else clock() + timeout
        place.poke = poke
        place.taken()
        self._places.append(place)
        while self._first() is not place and (left := min(_NET, end - clock())) > 0:
            yield left
        place.poke = _nothing

    def leave(self, place: _Place, *_: object) -> None:
        """Leave the line, from any place in it, and wake the one who is first now."""
        self._remove(place)
        while (first := self._first()) is not None:
            try:
                first.poke()
            except RuntimeError:  # its event loop is closed: it waits no more
                self._remove(first)
            else:
                return

    async def leave_async(self, place: _Place, *_: object) -> None:
        self.leave(place)

    def _first(self) -> _Place | None:
        while self._places:
            try:
                first = self._places[0]
            except IndexError:
                break
            if first.alive:
                return first
            self._remove(first)
        return None

    def _remove(self, place: _Place) -> None:
        with contextlib.suppress(ValueError):
            self._places.remove(place)
