"""Both fronts in one shape: what the threaded one looks like, so that one suite can hold both.

``FRONTS`` are the fronts; each has the public classes as attributes.

``script(body)`` of a front makes a function (a coroutine function) of a generator: whenever that
yields an event, or a number of seconds, the function waits. Of anything else, such as what a method
of a front's object returns, the generator is sent the outcome. With ``stubborn``, waits for events
heed no cancellation.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import zklock
from tests.contract.support import SOON, children, gone, granted, passes_on, queued, run
from zklock import aio
from zklock.testing import FaultProxy

T = TypeVar("T")
Steps = Generator[Any, None, None]
Script = Callable[..., Steps]


class Threads:
    """The threaded front, as it is."""

    name = "threads"

    def pool(self, client: Any, path: str, **options: Any) -> Any:
        """Return a worker of a pool."""
        return zklock.WorkerPool(client, path, **options)

    def event(self) -> threading.Event:
        """Return an event that any thread may set."""
        return threading.Event()

    def script(self, body: Script, *, stubborn: bool = False) -> Callable[..., None]:
        """Return a function."""

        def play(*args: Any) -> None:
            steps, step = body(*args), None
            with suppress(StopIteration):
                while True:
                    step = steps.send(step)
                    if isinstance(step, float):
                        time.sleep(step)
                    elif hasattr(step, "is_set"):
                        step.wait(2 * SOON)

        return play

    def __getattr__(self, name: str) -> Any:
        return getattr(zklock, name)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class Loop:
    """The asyncio front, on a loop in a thread of its own; every thread that calls is a task."""

    name = "asyncio"

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.seats = threading.local()
        self.all_seats: list[Seat] = []
        self.thread = threading.Thread(target=self._run, name="contract-test-loop", daemon=True)
        self.thread.start()

    def pool(self, client: Any, path: str, **options: Any) -> AioPool:
        """Return a worker of a pool."""
        return AioPool(self, aio.WorkerPool(client, path, **options))

    def event(self) -> asyncio.Event:
        """Return an event that any thread may set."""
        event = asyncio.Event()
        at_once = event.set
        setattr(event, "set", lambda: self.loop.call_soon_threadsafe(at_once))  # noqa: B010
        return event

    def script(self, body: Script, *, stubborn: bool = False) -> Callable[..., Awaitable[None]]:
        """Return a coroutine function; where it is cancelled, the generator is closed."""

        async def play(*args: Any) -> None:
            with closing(body(*args)) as steps, suppress(StopIteration):
                step = None
                while True:
                    step = steps.send(step)
                    if isinstance(step, float):
                        await asyncio.sleep(step)
                    elif isinstance(step, asyncio.Event) and not stubborn:
                        await step.wait()
                    elif hasattr(step, "is_set"):
                        while not step.is_set():
                            with suppress(asyncio.CancelledError) if stubborn else nullcontext():
                                await asyncio.sleep(0.01)
                    elif inspect.isawaitable(step):
                        step = await step

        return play

    def __getattr__(self, name: str) -> Any:
        def make(*args: Any, **options: Any) -> AioLock:
            return AioLock(self, getattr(aio, name)(*map(_bare, args), **options))

        return make

    @property
    def seat(self) -> Seat:
        """The task of this thread."""
        if not hasattr(self.seats, "seat"):
            self.seats.seat = Seat(self.loop)
            self.all_seats.append(self.seats.seat)
        seat: Seat = self.seats.seat
        return seat

    def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run in the task of this thread."""
        return self.seat.run(call)

    def close(self) -> None:
        """End the loop, and the tasks first."""
        asyncio.run_coroutine_threadsafe(self._leave(), self.loop).result(SOON)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(SOON)
        assert not self.thread.is_alive()

    async def _leave(self) -> None:
        for seat in self.all_seats:
            seat.leave()
        await asyncio.gather(*(seat.task for seat in self.all_seats))

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()


class Seat:
    """A task that does what one thread asks for.

    ``cancelled`` is the cancellation that struck while it was not asked for anything.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._wanted: asyncio.Queue[Callable[[], Awaitable[None]] | None] = asyncio.Queue()
        name = threading.current_thread().name
        self._ready = threading.Event()
        self.cancelled: asyncio.CancelledError | None = None
        self.task: asyncio.Task[None]
        loop.call_soon_threadsafe(self._sit, name)
        assert self._ready.wait(SOON)

    def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run in the task, and wait for the outcome."""
        done = threading.Event()
        outcome: list[T] = []
        errors: list[BaseException] = []

        async def body() -> None:
            try:
                outcome.append(await call())
            except asyncio.CancelledError:
                errors.append(RuntimeError("cancelled"))
                raise
            except BaseException as error:
                errors.append(error)
            finally:
                done.set()

        self._loop.call_soon_threadsafe(self._wanted.put_nowait, body)
        done.wait()
        if errors:
            raise errors[0]
        return outcome[0]

    def leave(self) -> None:
        """End the task; called by the loop."""
        self._wanted.put_nowait(None)

    def _sit(self, name: str) -> None:
        self.task = self._loop.create_task(self._serve(), name=name)
        self._ready.set()

    async def _serve(self) -> None:
        while True:
            try:
                wanted = await self._wanted.get()
                if wanted is None:
                    return
            except asyncio.CancelledError as error:
                self.cancelled = error
            else:
                await wanted()


class AioBody:
    """What ``async with`` enters, in the shape of what ``with`` enters."""

    def __init__(self, front: Loop, entered: Any) -> None:
        self._front = front
        self._entered = entered

    def __enter__(self) -> Any:
        return _shaped(self._front, self._front.run(self._entered.__aenter__))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Any:
        seat = self._front.seat
        cancelled, seat.cancelled = seat.cancelled, None
        error = error or cancelled  # what strikes the task strikes the body
        return seat.run(lambda: self._entered.__aexit__(error and type(error), error, traceback))

    def __bool__(self) -> bool:
        return bool(self._entered)


class AioLock(AioBody):
    """A lock of ``zklock.aio`` in the shape of one for threads."""

    def __init__(self, front: Loop, lock: Any) -> None:
        super().__init__(front, lock)
        self._lock = lock

    def __getattr__(self, name: str) -> Any:
        if threading.current_thread() is self._front.thread:
            return getattr(self._lock, name)

        async def look() -> Any:
            return getattr(self._lock, name)

        found = self._front.run(look)
        if name not in WATCHING:
            return _shaped(self._front, found)

        async def watch(*args: Any, **options: Any) -> Any:
            return found(*args, **options)

        return lambda *args, **options: AioChanges(
            self._front, self._front.run(partial(watch, *args, **options))
        )

    def __repr__(self) -> str:
        return repr(self._lock)

    def attempt(self, *args: Any, **options: Any) -> AioBody:
        """Return what a ``with`` statement enters."""
        return AioBody(self._front, self._lock.attempt(*args, **options))


WATCHING = {"changes", "observe", "membership_changes", "observe_membership"}
"""The methods that belong on a loop though they are no coroutine functions."""


class AioChanges(AioLock):
    """An iterator or an observer of ``zklock.aio`` in the shape of one for threads."""

    def __enter__(self) -> AioChanges:
        return self

    def __exit__(self, *exc: object) -> None:
        self._lock.close()

    def __iter__(self) -> Iterator[Any]:
        with suppress(StopAsyncIteration):
            while True:
                yield self._front.run(self._lock.__anext__)


class AioPool(AioLock):
    """A pool of ``zklock.aio`` in the shape of one for threads."""

    def owned(self) -> dict[int, AioGrant]:
        """Return the own shards."""
        found: dict[int, aio.Grant] = self._lock.owned()
        return {number: AioGrant(self._front, grant) for number, grant in found.items()}

    def __enter__(self) -> AioPool:
        self._front.run(self._lock.__aenter__)
        return self


class AioGrant(AioBody):
    """A grant of ``zklock.aio`` in the shape of one for threads."""

    def __init__(self, front: Loop, grant: aio.Grant | aio.MultiGrant) -> None:
        super().__init__(front, grant)
        self._grant = grant
        self.lost = AioEvent(front, grant)

    def __getattr__(self, name: str) -> Any:
        return _shaped(self._front, getattr(self._grant, name))

    def __eq__(self, other: object) -> bool:
        return getattr(other, "_grant", other) is self._grant

    def __hash__(self) -> int:
        return hash(self._grant)


class AioEvent:
    """``Grant.lost`` in the shape of a ``threading.Event``."""

    def __init__(self, front: Loop, grant: aio.Grant | aio.MultiGrant) -> None:
        self._front = front
        self._grant = grant

    def is_set(self) -> bool:
        """Whether it is set, once the loop has had its turn."""

        async def look() -> bool:
            await asyncio.sleep(0)
            return self._grant.lost.is_set()

        return asyncio.run_coroutine_threadsafe(look(), self._front.loop).result(SOON)

    def wait(self, timeout: float) -> bool:
        """Wait for so many seconds; whether it is set."""

        async def wait() -> bool:
            try:
                async with asyncio.timeout(timeout):
                    return await self._grant.lost.wait()
            except TimeoutError:
                return False

        return asyncio.run_coroutine_threadsafe(wait(), self._front.loop).result()


def _bare(value: Any) -> Any:
    """Take the shape off what is given to an aio object."""
    if isinstance(value, list):
        return [_bare(each) for each in value]
    return value._lock if isinstance(value, AioLock) else value


def _shaped(front: Loop, value: Any) -> Any:
    """Give what an aio object has or returns the shape that threads know."""
    if isinstance(value, aio.Grant | aio.MultiGrant):
        return AioGrant(front, value)
    if isinstance(value, tuple) and all(isinstance(each, aio.Grant) for each in value):
        return tuple(AioGrant(front, each) for each in value)
    if inspect.iscoroutinefunction(value):
        return lambda *args, **options: _shaped(front, front.run(lambda: value(*args, **options)))
    return value


FRONTS: list[type[Threads] | type[Loop]] = [Threads, Loop]


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test that is a coroutine function, on a loop of its own."""

    @functools.wraps(test)
    def body(*args: Any, **kwargs: Any) -> None:
        async def limited() -> None:
            async with asyncio.timeout(SOON):
                await test(*args, **kwargs)

        asyncio.run(limited())

    return body


class Place:
    """The path of a test for one client: what its front makes there, and the znodes below it.

    ``place.RLock(at, **options)`` makes a lock or an election; ``at`` is appended to the path.
    """

    def __init__(self, front: Any, client: Any, path: str) -> None:
        self.front = front
        self.client = client
        self.path = path

    def __getattr__(self, name: str) -> Callable[..., Any]:
        make = getattr(self.front, name)
        return lambda at="", **options: make(self.client, self.path + at, **options)

    def nodes(self, at: str = "") -> list[str]:
        """Return the names of the nodes, by sequence number."""
        return children(self.client, self.path + at)

    def queued(self, count: int, at: str = "") -> list[str]:
        """Wait until there are so many nodes; return their names."""
        return queued(self.client, self.path + at, count)

    def gone(self, at: str = "") -> None:
        """Wait until there is no node."""
        gone(self.client, self.path + at)

    def passes_on(self, at: str = "") -> None:
        """Insist that the lock is free for the next contender, and that nobody is left behind."""
        passes_on(self.client, self.path + at)

    def waits(self, lock: Any, count: int, at: str = "", **how: Any) -> Future[Any]:
        """Acquire on another thread; return when so many are queued, it among them."""
        pending = run(granted, lock, **how)
        self.queued(count, at)
        assert not pending.done()
        return pending

    def lose(self, grant: Any) -> None:
        """Delete the node of a grant, and wait until that is noticed."""
        self.client.delete(grant.path)
        assert grant.lost.wait(SOON)


Places = Callable[..., list[Place]]


@dataclass
class Behind:
    """Makes places for clients behind the proxy: ``behind(**options)``, those of ``connect()``."""

    make: Callable[..., Place]
    proxy: FaultProxy

    def __call__(self, **options: Any) -> Any:
        return self.make(**options)
