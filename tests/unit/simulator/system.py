"""Threads, a clock and what threads wait for, all in the hands of one seed.

Each simulated thread is a greenlet. Whoever has to wait, or comes to a point where it might be
interrupted, chooses the next by the seed and hands over. When none can run, the clock goes on to
the next time at which one can.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

T = TypeVar("T")

BEGIN = 1000.0
"""The clock's first time, in seconds."""


class Over(BaseException):
    """Ends a thread of a run that is over."""


class Violation(AssertionError):
    """Something that must hold does not."""


class Process:
    """Threads that stop together; ``frozen`` says until when."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frozen = -math.inf
        self.dead = False
        self.threads_fail = False
        self.stood: list[tuple[float, float]] = []  # when threads of it were frozen

    def stalled(self, begin: float, end: float) -> float:
        """Return for how long a thread of it was frozen between two times."""
        return sum(max(0.0, min(end, until) - max(begin, since)) for since, until in self.stood)


class Exposed:
    """A stretch of a thread that an interrupt can strike, and perhaps a second one.

    ``struck``: when the first one has.
    """

    def __init__(self) -> None:
        self.due = False  # one strikes at the next point
        self.struck: float | None = None


class Task:
    """A simulated thread. It waits until ``ready()``, or until ``due``."""

    def __init__(self, name: str, process: Process, ident: int) -> None:
        self.name = name
        self.process = process
        self.ident = ident
        self.locals: dict[int, dict[str, Any]] = {}
        self.thread: Thread | Current = Current(self)
        self.greenlet: greenlet
        self.ready: Callable[[], object] | None = None
        self.due = math.inf
        self.exposed: Exposed | None = None
        self.frozen = process.frozen
        self.done = False


class System:
    """One run: its clock, its threads, and what happens by itself at a time.

    ``each_step`` is called before each step, on any thread; what it raises ends the run.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = BEGIN
        self.steps = 0
        self.most_steps = 100_000
        self.rng = random.Random(f"steps {seed}")
        self.strikes = random.Random(f"strikes {seed}")
        self.outside = Process("outside")
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.each_step: Callable[[], object] = lambda: None
        self.failure: BaseException | None = None
        self.over = False
        self.tells_script = False  # why a run has ended, for it has to clean up
        self.grain = 0.0  # seconds that all times are multiples of
        self.noise = 0.0  # how often others run where a thread need not wait
        self.interrupts = 0.0  # how often one strikes a thread where it can
        self.again = 0.0  # how often a second one strikes who is seeing to the first
        self.struck = 0  # by interrupts, so many calls
        self.struck_again = 0  # so many of them by a second one
        self.history = 0  # a digest of who ran when
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()
        self._hub: greenlet

    # What happens by itself.

    def at(self, when: float, call: Callable[[], object]) -> None:
        """Call at a time, on any thread. It must not wait."""
        heapq.heappush(self._events, (when, next(self._numbers), call))

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        """Call after some seconds."""
        self.at(self.now + seconds, call)

    # Threads.

    def spawn(self, name: str, call: Callable[[], object], process: Process) -> Task:
        """Begin a thread. Its number is the least one that is free, so it was perhaps another's."""
        taken = {each.ident for each in self.tasks}
        task = Task(name, process, next(each for each in count(1) if each not in taken))
        self.tasks.append(task)

        def body() -> None:
            asyncio._set_running_loop(None)
            try:
                if not self.over:
                    call()
            except Over:
                pass
            except Violation as violation:
                self.fail(violation)
            except BaseException as error:
                self.fail(Violation(f"the thread {name} ended by {error!r}"), error)
            task.done = True

        task.greenlet = greenlet(body, self._hub)
        return task

    def run(self, script: Callable[[], object]) -> None:
        """Run the script on a thread of its own; the run is over when the script is."""

        def main() -> None:
            try:
                script()
            except Exception as error:
                self.fail(error)
            self.over = True

        self._hub = getcurrent()
        self.current = self.spawn("script", main, self.outside)
        self.current.thread.name = "MainThread"
        while self.tasks:
            self.current.greenlet.switch()
            # A thread has ended.
            self.tasks.remove(self.current)
            if self.tasks:
                self.current = self.tasks[0] if self.over else self._choose()
        if self.failure is not None:
            raise self.failure

    def fail(self, failure: BaseException, cause: BaseException | None = None) -> None:
        """End the run as failed."""
        if self.failure is None and not self.over:
            failure.__cause__ = cause
            failure.add_note(f"seed {self.seed}, {self.now - BEGIN:.3f} s, step {self.steps}")
            self.failure = failure
        self.over = True

    def block(self, ready: Callable[[], object], seconds: float | None = None) -> bool:
        """Wait until ``ready()``, at most some seconds; return whether it is."""
        me = self._me()
        assert me.greenlet is getcurrent(), "a thread that the system has not made"
        me.ready = ready
        me.due = math.inf if seconds is None else self.now + seconds
        self._switch(me)
        me.ready, me.due = None, math.inf
        self._notice(me)
        return bool(ready())

    def point(self) -> None:
        """Perhaps let others run."""
        me = self._me()
        if self.over:
            raise self._ends(me)
        if self.rng.random() < self.noise:
            self._switch(me)
        self._notice(me)

    @contextmanager
    def exposed(self) -> Iterator[Exposed]:
        """Let an interrupt strike this thread, and a second one if there are such."""
        me, exposed = self._me(), Exposed()
        me.exposed = exposed
        try:
            yield exposed
        finally:
            me.exposed = None

    def interrupt(self) -> None:
        """Have an interrupt strike one of the threads that it can strike."""
        exposed = [each.exposed for each in self.tasks if each.exposed is not None]
        if exposed:
            self.strikes.choice(exposed).due = True

    def may_be_interrupted(self) -> bool:
        """Whether an interrupt, or a second one, can strike this thread now."""
        return self.current is not None and self.current.exposed is not None

    def _notice(self, me: Task) -> None:
        exposed = me.exposed
        if exposed is None:
            return
        first = exposed.struck is None
        often = self.interrupts if first else self.again
        if exposed.due or (often and self.strikes.random() < often):
            exposed.due = False
            if first:
                self.struck, exposed.struck = self.struck + 1, self.now
            else:
                self.struck_again += 1
            if not (first and self.again):
                me.exposed = None
            raise KeyboardInterrupt

    def freeze(self, process: Process, seconds: float) -> None:
        """Stop all threads of a process."""
        process.frozen = max(process.frozen, self.now + seconds)
        for task in self.tasks:
            if task.process is process:
                task.frozen = max(task.frozen, process.frozen)
        process.stood.append((self.now, self.now + seconds))

    def stall(self, task: Task, seconds: float) -> None:
        """Stop one thread."""
        task.frozen = max(task.frozen, self.now + seconds)
        task.process.stood.append((self.now, self.now + seconds))

    # Inside.

    def _me(self) -> Task:
        assert self.current is not None
        return self.current

    def _ends(self, me: Task) -> BaseException:
        """Return what ends a thread of a run that is over: the script hears why."""
        told = self.tells_script and me is self.tasks[0] and self.failure is not None
        return self.failure or Over() if told else Over()

    def _switch(self, me: Task) -> None:
        if self.over:
            raise self._ends(me)
        then = self._choose()
        if then is not me:
            self.current = then
            loop = asyncio._get_running_loop()
            then.greenlet.switch()
            asyncio._set_running_loop(loop)
        if self.over:
            raise self._ends(me)

    def _choose(self) -> Task:
        """Return the thread that runs next; do what happens by itself before."""
        try:
            while not self.over:
                self.steps += 1
                if self.steps > self.most_steps:
                    raise Violation("it goes on and on")
                self.each_step()
                able, later = self._look()
                event = bool(self._events) and self._events[0][0] <= self.now
                if not able and not event:
                    self._pass_time(later)
                    continue
                chosen = self.rng.randrange(len(able) + event)
                if chosen < len(able):
                    self.history = hash((self.history, round(self.now * 1e6), chosen, len(able)))
                    return able[chosen]
                heapq.heappop(self._events)[2]()
        except BaseException as error:
            self.fail(error)
        return self.tasks[0]

    def _look(self) -> tuple[list[Task], float]:
        """Return the threads that can run, and when another one can, if nothing happens before."""
        now, able, later = self.now, [], math.inf
        for task in self.tasks:
            frozen = task.frozen
            if task.due <= now or task.ready is None or task.ready() or _is_struck(task):
                if frozen <= now:
                    able.append(task)
                elif frozen < later:
                    later = frozen
            else:
                later = min(later, max(task.due, frozen))
        return able, later

    def _pass_time(self, later: float) -> None:
        """Go on to the next time at which something can happen."""
        if self._events:
            later = min(later, self._events[0][0])
        if later == math.inf:
            names = ", ".join(task.name for task in self.tasks)
            raise Violation(f"nothing can happen any more: {names} wait for ever")
        if self.grain:
            later = math.ceil(later / self.grain) * self.grain
        self.now = max(self.now, later)


def _is_struck(task: Task) -> bool:
    return task.exposed is not None and task.exposed.due


# The modules as zklock and kazoo see them. Outside of a run nobody else is there, and nobody waits.

_running: System | None = None


@contextmanager
def running(system: System) -> Iterator[None]:
    """Have the simulated modules use this system."""
    global _running  # noqa: PLW0603
    _running = system
    try:
        yield
    finally:
        _running = None


def _point() -> None:
    if _running is not None:
        _running.point()


def _block(ready: Callable[[], object], seconds: float | None = None) -> bool:
    if _running is None:
        return bool(ready())
    return _running.block(ready, seconds)


def _me() -> object:
    return None if _running is None else _running.current


class Lock:
    """As ``threading.Lock``."""

    def __init__(self) -> None:
        self._taken = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        _point()
        if self._taken:
            limit = None if timeout < 0 else timeout
            if not blocking or not _block(lambda: not self._taken, limit):
                return False
        self._taken = True
        return True

    def release(self) -> None:
        if not self._taken:
            raise RuntimeError("release unlocked lock")
        self._taken = False

    def locked(self) -> bool:
        return self._taken

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock:
    """As ``threading.RLock``."""

    def __init__(self) -> None:
        self.owner: object = None
        self.depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = _me()
        if not self.depth or self.owner is not me:
            _point()
            if self.depth:
                limit = None if timeout < 0 else timeout
                if not blocking or not _block(lambda: not self.depth, limit):
                    return False
        self.owner = me
        self.depth += 1
        return True

    def release(self) -> None:
        if _running is not None and _running.over:
            return  # the run may have ended while this waited for a condition
        if not self.depth or self.owner is not _me():
            raise RuntimeError("cannot release un-acquired lock")
        self.depth -= 1

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    """As ``threading.Condition``."""

    def __init__(self, lock: RLock | None = None) -> None:
        self._lock = lock or RLock()
        self._waiting: list[list[bool]] = []
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        depth, woken = self._lock.depth, [False]
        self._waiting.append(woken)
        self._lock.depth = 0
        try:
            _block(lambda: woken[0], timeout)
        finally:
            for _ in range(depth):
                self._lock.acquire()
            if not woken[0]:
                self._waiting.remove(woken)
        return woken[0]

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        end = math.inf if timeout is None else now() + timeout
        while not (met := predicate()) and now() < end:
            self.wait(None if timeout is None else end - now())
        return met

    def notify(self, n: int = 1) -> None:
        if not self._lock.depth or self._lock.owner is not _me():
            raise RuntimeError("cannot notify on un-acquired lock")
        for woken in self._waiting[:n]:
            woken[0] = True
        del self._waiting[:n]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Semaphore:
    """As ``threading.Semaphore``."""

    def __init__(self, value: int = 1) -> None:
        self._value = value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        _point()
        if not self._value and (not blocking or not _block(lambda: self._value, timeout)):
            return False
        self._value -= 1
        return True

    def release(self, n: int = 1) -> None:
        self._value += n
        _point()


class Event:
    """As ``threading.Event``."""

    def __init__(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        _point()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        _point()
        return self._set or _block(lambda: self._set, timeout)


class Barrier(threading.Barrier):
    """As ``threading.Barrier``."""

    def __init__(self, parties: int) -> None:
        super().__init__(parties)
        self._cond = Condition()


class Queue:
    """As ``queue.SimpleQueue``, and as much of ``queue.Queue`` as kazoo uses."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        _point()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        _point()
        if not self._items and (not block or not _block(self._items.__len__, timeout)):
            raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)

    def task_done(self) -> None:
        """Nobody waits for that."""


class Thread:
    """As ``threading.Thread``. It belongs to the process of the thread that starts it."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
        context: object = None,
    ) -> None:
        self.name = name or getattr(target, "__name__", "thread")
        self.daemon = daemon
        self._call = lambda: target(*args, **(kwargs or {})) if target is not None else None
        self._task: Task | None = None

    def start(self) -> None:
        _point()
        if _running is None or _running.current is None:
            raise RuntimeError("can't start new thread at interpreter shutdown")
        process = _running.current.process
        if process.threads_fail:
            raise RuntimeError("can't start new thread")
        self._task = _running.spawn(f"{process.name} {self.name}", self._call, process)
        self._task.thread = self
        _point()

    @property
    def ident(self) -> int | None:
        return None if self._task is None else self._task.ident

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done

    def join(self, timeout: float | None = None) -> None:
        _block(lambda: not self.is_alive(), timeout)


class Local:
    """As ``threading.local``: each thread has attributes of its own."""

    def __getattribute__(self, name: str) -> Any:
        object.__setattr__(self, "__dict__", _attributes(self))
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        _attributes(self)[name] = value


_none: dict[int, dict[str, Any]] = {}
"""The attributes outside of all threads."""


def _attributes(local: Local) -> dict[str, Any]:
    task = None if _running is None else _running.current
    known = _none if task is None else task.locals
    found = known.get(id(local))
    if found is None:
        found = known[id(local)] = {}
        found[""] = local  # as long as this is here, no other object gets its id
        type(local).__init__(local)
    return found


def local_class(real: type) -> type:
    """Return a subclass of ``threading.local`` as one of `Local`."""
    left_out = {"__dict__", "__weakref__"}
    names = {name: value for name, value in vars(real).items() if name not in left_out}
    return type(real.__name__, (Local,), names)


class Current:
    """As much of a ``threading.Thread`` as others see of one that nobody has made."""

    daemon = False

    def __init__(self, task: Task | None) -> None:
        self.name = "nobody" if task is None else task.name
        self.ident = 0 if task is None else task.ident

    def is_alive(self) -> bool:
        return True


def current_thread() -> Thread | Current:
    """As ``threading.current_thread``."""
    task = None if _running is None else _running.current
    return Current(None) if task is None else task.thread


def threads() -> list[Thread | Current]:
    """As ``threading.enumerate``."""
    return [] if _running is None else [each.thread for each in _running.tasks]


def main_thread() -> Thread | Current:
    """As ``threading.main_thread``: it is the first one."""
    return threads()[0]


class Module:
    """A module with some names of it replaced."""

    def __init__(self, real: Any, **names: Any) -> None:
        self._real = real
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def now() -> float:
    """As ``time.monotonic``, and as zklock's clock."""
    return BEGIN if _running is None else _running.now


def sleep(seconds: float) -> None:
    """As ``time.sleep``."""
    _block(lambda: False, seconds)


THREADING = Module(
    threading,
    Lock=Lock,
    RLock=RLock,
    Condition=Condition,
    Semaphore=Semaphore,
    Event=Event,
    Barrier=Barrier,
    Thread=Thread,
    local=Local,
    current_thread=current_thread,
    enumerate=threads,
    main_thread=main_thread,
    get_ident=lambda: current_thread().ident,
)
TIME = Module(time, monotonic=now, time=now, sleep=sleep, clock_gettime=lambda _: now())
QUEUE = Module(queue, Queue=Queue, SimpleQueue=Queue)
