"""What a client of a simulation runs on: its clock, its connection, its threads."""

from __future__ import annotations

import asyncio
import heapq
import math
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from kazoo.protocol.states import KeeperState

from zklock._core.ports import Reader
from zklock._core.timers import Job
from zklock._ground.clock import clock
from zklock._ground.events import Event
from zklock._shell.callback_executor import CallbackExecutor, Calls
from zklock._shell.client import Kazoo
from zklock._shell.driver import IDLE
from zklock._shell.handler import Handler
from zklock._shell.socket import Sock
from zklock._shell.timed_thread import TimedThread
from zklock.errors import ZkLockError
from zklock.testing.simulation.server import LinkedSocket, SimulatedServer, linked

_PING = 1 / 3
"""The part of the session timeout after which kazoo pings, if nothing was sent."""

_PATIENCE = 30.0
"""Real seconds to wait for the server, which answers at once."""

_RETURN = 0.05
"""Real seconds for a thread to act on the end of its wait, and wait again."""


class Waits:
    """The threads that wait in zklock, and those that run callbacks. Each does so for one client.

    From any thread, without lock. All dicts are by thread.
    """

    def __init__(self) -> None:
        self._alarms: dict[int, list[Job]] = {}  # what ends the wait; empty if it was called off
        self._woken: dict[int, float] = {}  # until when to wait for it, in real time
        self._calling: dict[int, Callable[[], None]] = {}  # gives the token of the callback back

    def begin(self, alarm: list[Job] | None) -> None:
        """Note that this thread waits, for at most as long as until this alarm.

        Its last wait is over, so that the alarm of that one is called off.
        """
        me = threading.get_ident()
        self._alarms.pop(me, []).clear()
        self.called()  # a callback that waits was told what it had to be told
        self._woken.pop(me, None)
        if alarm is not None:
            self._alarms[me] = alarm

    def begin_on_loop(self) -> None:
        """Note that a task of this thread's event loop waits. Others may do so, too."""
        self.called()
        self._woken.pop(threading.get_ident(), None)

    def end(self, thread: int, wake: Callable[[], object]) -> None:
        """End the wait of a thread."""
        if thread != threading.get_ident():
            self._woken[thread] = clock() + _RETURN
        wake()

    def ended(self) -> bool:
        """Whether a thread may still act on the end of its wait."""
        now = clock()
        for thread, until in list(self._woken.items()):
            if until > now and thread in sys._current_frames():
                return True
            self._woken.pop(thread, None)
        return False

    def calls(self, back: Callable[[], None]) -> None:
        """Note that this thread runs callbacks; ``back`` is to be called in the end."""
        self._calling[threading.get_ident()] = back

    def called(self) -> None:
        """Note that this thread has run its callbacks."""
        back = self._calling.pop(threading.get_ident(), None)
        if back is not None:
            back()

    @property
    def is_calling(self) -> bool:
        """Whether this thread runs a callback."""
        return threading.get_ident() in self._calling


@dataclass(frozen=True, slots=True)
class World:
    """What a side needs of its simulation.

    ``now()`` is the time. ``stirs(side)`` is called after each change of a side.
    """

    server: SimulatedServer
    now: Callable[[], float]
    stirs: Callable[[Side], None]
    waits: Waits = field(default_factory=Waits)


class Alarms:
    """Jobs and their times, by one clock. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heap: list[tuple[float, int, list[Job]]] = []  # an empty list was called off
        self._numbers = count()

    def add(self, due: float, alarm: list[Job]) -> None:
        """Have the jobs run at a time, unless they are taken from the list before."""
        with self._lock:
            heapq.heappush(self._heap, (due, next(self._numbers), alarm))

    def due(self) -> float:
        """Return when the first one is due."""
        with self._lock:
            while self._heap and not self._heap[0][2]:
                heapq.heappop(self._heap)
            return self._heap[0][0] if self._heap else math.inf

    def act(self, now: float) -> None:
        """Run the jobs that are due."""
        while True:
            with self._lock:
                if not self._heap or self._heap[0][0] > now:
                    return
                alarm = heapq.heappop(self._heap)[2]
            jobs = alarm[:]
            alarm.clear()  # it may be kept, but not what it refers to
            for job in jobs:
                job()

    def take(self, others: Alarms) -> None:
        """Take over what is left of others."""
        with others._lock:
            left, others._heap = others._heap, []
        for due, _, alarm in sorted(left, key=lambda each: each[:2]):
            if alarm:
                self.add(due, alarm)


class Tokens:
    """What is under way; each holds a token until it is through. From any thread, without lock."""

    def __init__(self, stirs: Callable[[], None]) -> None:
        self._stirs = stirs
        self._held: dict[object, str] = {}

    def take(self, what: str) -> Callable[[], None]:
        """Return what gives the token back; it may be called again."""
        token = object()
        self._held[token] = what
        self._stirs()

        def back() -> None:
            if self._held.pop(token, None) is not None:
                self._stirs()

        return back

    def held(self) -> str | None:
        """Return what is under way, if anything is."""
        return next(iter(list(self._held.values())), None)


class Side:
    """One client's side of a simulation."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.local = Tokens(self.stirs)
        self.handler = SimulatedHandler(self)
        self.client: Kazoo = None
        self.partitioned = False
        self.cut = False  # nothing passes
        self._session_id = 0
        self._stood_still: float | None = None
        self.alarms = Alarms()
        self._threads: list[_Thread] = []
        self.threads_ended = False  # or will have, after a last turn

    @property
    def name(self) -> str:
        return f"simulated-{self.number}"

    def stirs(self) -> None:
        """Tell the simulation that something has changed here. From any thread, without a lock."""
        self.world.stirs(self)

    # The clock.

    def now(self) -> float:
        """Return the time as the client sees it."""
        still = self._stood_still
        return self.world.now() if still is None else still

    @property
    def paused(self) -> bool:
        return self._stood_still is not None

    def stand_still(self) -> None:
        self._stood_still = self.world.now()

    def go_on(self) -> None:
        """Let its clock jump to the present."""
        self._stood_still = None

    def _set_alarm(self, seconds: float, alarm: list[Job]) -> None:
        self.alarms.add(self._after(seconds), alarm)
        self.stirs()

    def _after(self, seconds: float) -> float:
        """Return a time that is so much later; later at all, if that is less than a clock shows.

        Else who waits for what is left of a sum of floats would find as much left after the wait.
        """
        now = self.now()
        return now if seconds <= 0 else max(now + seconds, math.nextafter(now, math.inf))

    def limit(self, seconds: float | None, wake: Callable[[], object]) -> float | None:
        """Begin a wait that ends by this clock: see ``runtime.Limit``."""
        if seconds is not None and seconds <= 0:
            return 0.0
        alarm: list[Job] | None = None
        if seconds is not None and seconds < math.inf:
            alarm = [partial(self.world.waits.end, threading.get_ident(), wake)]
        if _on_loop():
            self.world.waits.begin_on_loop()
        else:
            self.world.waits.begin(alarm)
        if seconds is not None and alarm is not None:
            self._set_alarm(seconds, alarm)
        self.stirs()
        return None

    def due(self) -> float:
        """Return when it has something to do.

        A client that is stopped sends nothing. Its threads may have to notice that at a time of its
        clock, and others may wait for one.
        """
        if self.paused:
            return math.inf
        return min(self.alarms.due(), self._due_but_for_alarms())

    def _due_but_for_alarms(self) -> float:
        ping = math.inf if self.over else self.handler.ping_due
        return min((ping, self.handler.loop_due, *(each.due for each in self._threads)))

    def act(self) -> None:
        now = self.now()
        if self.handler.ping_due <= now and not self.over:
            self.handler.ping()
        if self.handler.loop_due <= now:
            self.handler.wake()
        for thread in self._threads:
            if thread.due <= now:
                thread.wake()
        self.alarms.act(now)

    # Its threads.

    def thread(self, name: str, turn: Callable[[], float | None]) -> Any:
        """Return a thread for timed work on this side's clock."""
        thread = _Thread(self, name, turn)
        self._threads.append(thread)
        return thread

    def end_threads(self) -> None:
        """Let the threads see that the client is stopped: no time will pass that wakes them."""
        self.threads_ended = True
        for thread in self._threads:
            thread.end()

    def starts(self) -> None:
        """Note that the client is started, for the first time or again."""
        self.threads_ended = False
        self.stirs()

    def is_through(self) -> bool:
        """Whether the client is stopped, and has no more to do than what its alarms do.

        Until it stirs again.
        """
        works = self._due_but_for_alarms() < math.inf or self.local.held() is not None
        return self.over and not self.cut and not works

    # Its connection.

    @property
    def over(self) -> bool:
        return bool(self.client is not None and self.client.client_state is KeeperState.CLOSED)

    @property
    def closed(self) -> bool:
        """Whether the client is stopped and closed."""
        return self.over and self.handler.closed

    @property
    def session_id(self) -> int:
        """The id of the session; while it is disconnected, of the last one."""
        known = self.client.client_id
        if known is not None:
            self._session_id = int(known[0])
        return self._session_id

    # Rest.

    def unrest(self) -> str | None:
        """Return what is not at rest on this side, if anything is. On the server's thread."""
        return self.local.held() or (
            self.handler.works if self.over else self.handler.unrest(self.cut)
        )


class _Thread:
    """A thread with timed work, on the clock of a side (see ``runtime.Thread``).

    It holds a token from each call until the turn after it is over.
    """

    def __init__(self, side: Side, name: str, turn: Callable[[], float | None]) -> None:
        self.due = math.inf
        self._side = side
        self._name = name
        self._turn = turn
        self._through: deque[Callable[[], None]] = deque()
        self._began = False
        self._inner = TimedThread(name, self._take_turn)

    def later(self, job: Job) -> None:
        self._began = True
        back = self._side.local.take(self._name)

        def run() -> None:
            try:
                job()
            finally:
                self._through.append(back)

        self._inner.later(run)

    def wake(self) -> None:
        self._began = True
        self._through.append(self._side.local.take(self._name))
        self._inner.wake()

    def ready(self) -> None:
        self._began = True
        self._inner.ready()

    def end(self) -> None:
        """Let it take a last turn, unless it was never used: then its turn may not be ready."""
        if self._began:
            self.wake()

    def _take_turn(self) -> float | None:
        through = len(self._through)  # what is added from now on holds until the next turn
        due: float | None = None
        try:
            due = self._turn()
        finally:
            self.due = math.inf if due is None else due
            for _ in range(through):
                self._through.popleft()()
        return None if due is None else math.inf


class _Callers:
    """Runs callbacks (see ``CallbackExecutor``); each call holds a token until it has returned."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._inner = CallbackExecutor()

    def start(self) -> None:
        self._inner.start()

    def run(self, calls: Calls) -> None:
        back = self._side.local.take("a callback")
        waits = self._side.world.waits
        self._inner.run([partial(waits.calls, back), *calls, waits.called])

    def end(self) -> None:
        self._inner.end()


class _SimulatedBell(Event):
    """What kazoo's connection thread waits for."""

    def __init__(self, handler: SimulatedHandler) -> None:
        super().__init__()
        self._handler = handler

    def wait(self, seconds: float | None = None) -> bool:
        self._handler.rests(True)
        try:
            return super().wait(seconds)
        finally:
            self._handler.rests(False)


class SimulatedHandler(Handler):
    """The handler of a simulated client.

    Its connections lead to the server of the simulation, without a network. It reports the times of
    its side's clock. kazoo's own limits, which go by the real clock, have no effect.
    """

    on_real_clock = False

    def __init__(self, side: Side) -> None:
        self.side = side
        self.now = side.now
        super().__init__()
        self.limit = side.limit  # type: ignore[method-assign]
        self.thread = side.thread
        self.session.limit, self.session.thread = side.limit, side.thread
        self._link: tuple[LinkedSocket, LinkedSocket] | None = None
        self._current: Sock | None = None
        self._rests = False  # the client's own thread waits
        self._backoffs = False  # the connection thread waits, and nothing has come
        self._drops = False  # the connection is about to be given up
        self._outside = False  # it waits for a way to the server
        self._ends = False
        self._unanswered = False  # a ping is
        self._gate = threading.Condition()
        self._bell = _SimulatedBell(self)

    @property
    def closed(self) -> bool:
        """Whether the client is closed: kazoo has closed what wakes its connection thread."""
        return self._wakes is not None and self._wakes.closed

    # For kazoo.

    def start(self) -> None:
        self._ends = False
        super().start()
        self.side.starts()

    def stop(self) -> None:
        """Stop the threads. A client that is cut off is not kept waiting for an answer."""
        super().stop()
        with self._gate:
            self._ends = True
            self._gate.notify_all()
        if self.side.cut:
            self.drop()

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Connect to the server; wait as long as it cannot be reached."""
        if kwargs.get("timeout") is None or not self.begins:
            return self._ask()
        self._wanted = kwargs["timeout"]
        self._backoffs = False
        self._pass()
        self._drops = False
        link = linked(self.side.now)
        self._adopt(link)
        self._link = link
        self._current = Sock(link[0], self, self.side.name, self._ask)
        self.side.stirs()
        return self._current

    def _ask(self, timeout: float | None = None) -> LinkedSocket:
        """Return a connection for a four-letter word."""
        self._pass()
        link = linked(self.side.now)
        self._adopt(link)
        return link[0]

    def _pass(self) -> None:
        with self._gate:
            self._outside = self._backoffs = True
            while self.side.cut and not self._ends:
                self._gate.wait(1.0)
            self._outside = self._backoffs = False
        if self._ends:
            raise ConnectionRefusedError("the client is being stopped")

    def _adopt(self, link: tuple[LinkedSocket, LinkedSocket]) -> None:
        try:
            self.side.world.server.adopt(link[1], self.side)
        except ZkLockError as error:
            for each in link:
                each.close()
            raise ConnectionRefusedError(str(error)) from error

    def select(
        self, rlist: Any, wlist: Any, xlist: Any, timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait; in kazoo's main loop without a limit."""
        return super().select(rlist, wlist, xlist, timeout if len(rlist) < 2 else None)

    def rests(self, so: bool) -> None:
        """Note whether the connection thread waits, and nothing has come for it."""
        self._backoffs = so
        self.side.stirs()

    # For zklock.

    def new_executor(self) -> Any:
        """Return what runs callbacks, each with a token."""
        return _Callers(self.side)

    def read_for(self, reader: Reader) -> None:
        """Leave the reading to the client's own thread: it is known when that rests."""

    def _poll(self, seconds: float) -> list[tuple[int, int]]:
        """Wait for as long as nothing wakes it: time passes elsewhere.

        While the client is being stopped, look by the real clock, too: kazoo does not say when it
        has closed a client whose session was lost before.
        """
        self._rests = True
        self.side.stirs()
        try:
            return super()._poll(IDLE if self._stopping else math.inf)
        finally:
            self._rests = False

    @property
    def loop_due(self) -> float:
        """When the client's own thread is to wake up."""
        return self._due if self._rests and self._driving else math.inf

    def drop(self) -> None:
        self._drops = True
        super().drop()

    def per_server_timeout(self) -> float:
        """Return how long to wait for the server: it answers, unless this process is stalled."""
        return _PATIENCE

    # For the simulation.

    @property
    def ping_due(self) -> float:
        """When kazoo would ping, by its own clock."""
        link = self._link
        if link is None or self._outside or self.session_timeout is None:
            return math.inf
        return link[0].sent_at + _PING * self.session_timeout

    def open(self) -> None:
        """Let the connection thread look whether the server can be reached."""
        self._unanswered = False
        with self._gate:
            self._gate.notify_all()

    def ping(self) -> None:
        """Do what kazoo does: ping, or give the connection up if the last ping has no answer."""
        assert self._link is not None
        now = self.side.now()
        self._link[0].sent_at = now
        if not self.side.cut:
            self.side.world.server.ping(self.side.session_id)
            self.step(self.session.touched, now)
        elif self._unanswered:
            self.drop()
        else:
            self._unanswered = True

    @property
    def works(self) -> str | None:
        """What the client's own thread is said to do, unless it waits or has ended."""
        rests = self._driver is None or (self._rests and self._due > -math.inf)
        return None if rests else "the client's own thread"

    def unrest(self, cut: bool) -> str | None:
        """Return what is not at rest, if anything is. On the server's thread."""
        link = self._link
        if link is None:
            return "no connection yet"
        ours, theirs = link
        under_way = ours.sent != theirs.received or theirs.sent != ours.received
        current = self._current
        reads = (current is not None and current.pending() > 0) or self._drops
        reasons = {
            "a lost connection": not cut and (theirs.over or ours.over),
            "bytes under way": not cut and under_way,
            "requests to be sent": not self._outside and bool(self._wakes.ready),
            "a request": not (cut or self.session.link.idle),
            "kazoo's thread": not self._backoffs or (reads and not self._outside),
        }
        return self.works or next((what for what, holds in reasons.items() if holds), None)


def _on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
