"""The clock of a simulation, and what a test does with it."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, Self, TypeVar

from zklock._ground.clock import clock
from zklock._ground.events import Event
from zklock._shell.client import AnyClient
from zklock._shell.connect import Client, connect, end
from zklock.testing.errors import ServerError
from zklock.testing.settings import check_seconds
from zklock.testing.simulation.server import SimulatedServer
from zklock.testing.simulation.side import Alarms, Side, SimulatedHandler, Waits, World
from zklock.testing.zookeeper.faults import Scripted, ScriptedFault

T = TypeVar("T")

_RESTS_IN = 20.0
"""Real seconds in which everything comes to rest after a change, on a machine that is busy."""

_TURN = 1.0
"""How much of that one look may use up: all of this process may stand still meanwhile."""

_LOOK = 0.001
_LONG_LOOK = 0.01
"""Real seconds between two looks whether everything rests, while nothing is told: from, to."""

_MOMENT = 0.005
"""Real seconds in which a thread returns from a call that has its answer."""

_ROUNDS = 10
"""Turns of an event loop in which a task goes on that was told something."""

_MOST = 10_000
"""What one client may do without that time goes on."""

_WITH_MAIL = ("zklock._election.threads", "zklock._election.observers", "zklock._pool.threads")
"""The modules that wait for mail, and not for an event."""

_RETRY = {"max_tries": -1, "delay": 0.001, "backoff": 1, "max_delay": 0.01}


class Simulation(Scripted):
    """A simulated ZooKeeper, whose clock the test moves. For tests, never for production.

    ::

        with zklock.testing.simulated() as sim:
            client = sim.client(timeout=10.0)
            grant = zklock.Lock(client, "/locks/report").acquire()
            sim.partition(client)
            sim.advance(7.0)
            assert grant.lost.is_set()

    The clients are real ones, and so are their threads. The clock is not: it stands still unless
    `advance` or `run` moves it. The sessions on the server, the leases, the heartbeats, and all
    timeouts and pauses of zklock's go by it. Python's own waits use the real clock:
    ``time.sleep()``, ``grant.lost.wait(5.0)``, ``asyncio.timeout()``.

    A method that changes something returns when all effects have been reported: to the clients, to
    their callbacks, and to the waiters in zklock's calls. It does not wait for what your threads
    and tasks do then. If something does not come to rest in 20 real seconds, for example because a
    callback does not return, the method raises ``RuntimeError``. No such method may be called in a
    callback.

    *Not simulated*: what only several servers do, such as elections, and followers that lag. Delays
    of a network: what is not cut arrives at once.
    """

    def __init__(
        self,
        *,
        tick_time: int = 500,
        min_session_timeout: int | None = None,
        max_session_timeout: int | None = 60_000,
    ) -> None:
        self._now = 0.0
        self._sides: dict[Side, None] = {}  # that may have something to do
        self._resting: dict[Side, None] = {}  # of stopped clients, until these are closed
        self._alarms = Alarms()  # of threads that wait for times of stopped clients
        self._numbers = count(1)
        self._moving = threading.RLock()
        self._stirrings = count(1)
        self._stirred = 0
        self._news = Event()
        self._server = SimulatedServer(
            lambda: self._now,
            tick_time=tick_time,
            min_session_timeout=min_session_timeout,
            max_session_timeout=max_session_timeout,
        )
        self._world = World(self._server, lambda: self._now, self._stirs)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "" if self._server.running else ", closed"
        return f"<{type(self).__name__} at {self._now:g} s, {len(self._sides)} clients{state}>"

    @property
    def now(self) -> float:
        """The time: the seconds by which the clock was moved since the start."""
        return self._now

    @property
    def hosts(self) -> str:
        """The address of the server, for a client that only looks, such as ``zklock show``.

        Such a client goes by the real clock.
        """
        return self._server.hosts

    def client(self, timeout: float = 10.0, *, chroot: str = "", **kazoo_options: Any) -> Client:
        """Return a connected client, as :func:`zklock.connect` does; for threads and for asyncio.

        ``timeout``: the session timeout to ask for, in seconds. ``chroot``: a path that exists.
        Everything else goes to ``kazoo.client.KazooClient``. `close` stops it.
        """
        if wrong := {"hosts", "handler"} & kazoo_options.keys():
            raise TypeError(f"a simulation has its own {' and '.join(sorted(wrong))}")
        if chroot and not chroot.startswith("/"):
            raise ValueError(f"chroot must be absolute (start with '/'): {chroot!r}")
        with self._alone():
            for each in list(self._resting):
                if each in self._sides or each.closed:
                    del self._resting[each]
            side = Side(self._world, next(self._numbers))
            client = connect(
                self._server.hosts + chroot,
                timeout,
                **{"handler": side.handler, "connection_retry": _RETRY, **kazoo_options},
            )
            side.client = client
            self._stirs(side)
            self._settle()
        return client

    # Time.

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass, with all that is due in them, in order.

        Events that are due at the same time happen in the order in which the clients were made;
        then sessions end on the server.
        """
        with self._alone():
            until = self._now + check_seconds(seconds)
            while self._step(until):
                pass

    async def aio_advance(self, seconds: float) -> None:
        """Do what `advance` does, without blocking the event loop.

        The tasks of the loop go on after each moment at which something was due.
        """
        until = self._now + check_seconds(seconds)
        going = True
        await self._loop_settles()  # what was begun before begins now
        while going:
            going = await asyncio.to_thread(self._do_alone, self._step, until)
            await self._loop_settles()

    def run(self, call: Callable[[], T], at_most: float = 60.0) -> T:
        """Call on another thread, and let time pass while it waits in zklock; return the result.

        The call may change the simulation, too. ``TimeoutError`` if it still waits after
        ``at_most`` seconds of the simulation. ``RuntimeError`` if it waits for something else for
        20 real seconds. It is left alone then.
        """
        outcome: Future[T] = Future()

        def work() -> None:
            try:
                outcome.set_result(call())
            except BaseException as error:
                outcome.set_exception(error)

        thread = threading.Thread(target=work, name="zklock-simulated-call", daemon=True)
        with self._alone():
            until = self._now + check_seconds(at_most)
            thread.start()
        elsewhere, going = 0.0, True  # real seconds
        while thread.is_alive():
            with self._alone():
                self._settle()
                waits = _waits_in_zklock(thread)
                if waits and not going:
                    raise TimeoutError(f"the call still waits after {at_most:g} s")
                if waits:
                    elsewhere, going = 0.0, self._step(until)
            if not waits:  # it may be about to change the simulation
                began = clock()
                thread.join(_MOMENT)
                elsewhere += min(clock() - began, _TURN)
            if elsewhere > _RESTS_IN:
                raise RuntimeError("the call does not wait in zklock: time cannot end it")
        return outcome.result()

    # Faults.

    def expire(self, client: AnyClient) -> None:
        """End a client's session on the server now, as its expiry would.

        If it can be reached, the client has a new session when this returns, and its locks are
        lost. `ServerError` if the session is over already.
        """
        side = self._side(client)
        with self._alone():
            self._settle()
            self._server.expire(side.session_id)
            self._settle()

    def partition(self, client: AnyClient) -> None:
        """Cut a client off: nothing passes between it and the server, and nothing is closed."""
        self._change(client, partitioned=True)

    def heal(self, client: AnyClient) -> None:
        """Undo `partition`. Requests sent meanwhile arrive, unless the connection was given up."""
        self._change(client, partitioned=False)

    def pause(self, client: AnyClient) -> None:
        """Treat a client as a process that is stopped: its clock stands still, and nothing passes.

        Its timers do not fire. Your threads are not stopped: what they ask of zklock meanwhile is
        answered by the clock that stands still.
        """
        self._change(client, paused=True)

    def resume(self, client: AnyClient) -> None:
        """Undo `pause`. The clock jumps to the present before any answer of the server is read."""
        self._change(client, paused=False)

    def _script(self, fault: ScriptedFault) -> ScriptedFault:
        return self._server._script(fault)

    def close(self) -> None:
        """Stop all clients, and the server; ``with`` does this. Repeatable."""
        if not self._server.running:
            return
        with self._alone():
            sides = {**self._sides, **self._resting}
            for side in sides:
                self._set(side, partitioned=False, paused=False)
            for side in sides:
                end(side.client)
                side.end_threads()
            self._sides.clear()
            self._resting.clear()
            self._server.stop()

    # Inside.

    def _stirs(self, side: Side) -> None:
        """Note that something happens to a client. From any thread, without a lock."""
        if side.client is not None:  # else it is being made
            self._sides[side] = None
        self._stirred = next(self._stirrings)
        self._news.set()

    def _let_rest(self) -> bool:
        """Look no longer at the clients that are stopped and have nothing more to do.

        Return whether threads of theirs take their last turn now.
        """
        turns = False
        for side in list(self._sides):
            if not side.is_through():
                continue
            if not side.threads_ended:
                side.end_threads()
                turns = True
                continue
            del self._sides[side]
            if side.is_through():
                self._alarms.take(side.alarms)
                self._resting[side] = None
            else:  # it has stirred just before it was deleted
                self._sides[side] = None
        return turns

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._world.waits.is_calling:
            raise RuntimeError("a callback cannot change the simulation that waits for its return")
        with self._moving:
            if not self._server.running:
                raise ServerError("the simulation is not started, or closed")
            yield

    def _side(self, client: AnyClient) -> Side:
        handler = getattr(client, "handler", None)
        if not isinstance(handler, SimulatedHandler) or handler.side.world is not self._world:
            raise ValueError(f"{client!r} is no client of this simulation")
        return handler.side

    def _change(
        self, client: AnyClient, *, partitioned: bool | None = None, paused: bool | None = None
    ) -> None:
        side = self._side(client)
        with self._alone():
            self._settle()
            self._set(side, partitioned=partitioned, paused=paused)
            self._settle()

    def _set(self, side: Side, *, partitioned: bool | None, paused: bool | None) -> None:
        if partitioned is not None:
            side.partitioned = partitioned
        if paused and not side.paused:
            side.stand_still()
        cut = side.partitioned or (side.paused if paused is None else paused)
        if cut and not side.cut:
            side.cut = True
            self._server.cut(side)
        if paused is False and side.paused:
            side.go_on()
            self._happen()
        if side.cut and not cut:
            self._server.mend(side)
            side.cut = False
            side.handler.open()

    def _do_alone(self, call: Callable[..., T], *what: Any) -> T:
        with self._alone():
            return call(*what)

    def _step(self, until: float) -> bool:
        """Move to the next moment, but not beyond a time; return whether that is still to come."""
        ends = self._settle()
        while self._let_rest():
            ends = self._settle()
        due = min((ends, self._alarms.due(), *(side.due() for side in list(self._sides))))
        if due > until:
            self._now = max(self._now, until)  # another may have moved it
            return False
        self._now = max(self._now, due)
        self._happen()
        return True

    def _happen(self) -> None:
        """Have happen what is due, one after the other."""
        ends = self._settle()
        if self._alarms.due() <= self._now:
            self._alarms.act(self._now)
            ends = self._settle()
        for _ in range(_MOST):
            due = [each for each in list(self._sides) if each.due() <= self._now]
            if not due:
                break
            min(due, key=lambda each: each.number).act()
            ends = self._settle()
        else:
            raise RuntimeError("a client has something to do again and again at the same time")
        if ends <= self._now:
            self._server.tick()
            self._settle()

    def _settle(self) -> float:
        """Return when everything rests: the time at which the next session ends on the server."""
        spent, last = 0.0, clock()
        pause = _LOOK
        look = partial(_unrest, self._world.waits, self._sides)
        while True:
            before = self._stirred
            self._news.clear()
            why = look()  # a first look keeps nobody from working
            if why is None:
                why, ends = self._server.ask(lambda: (look(), self._server.due()))
                if why is None and self._stirred == before:
                    return ends
            now = clock()
            spent, last = spent + min(now - last, _TURN), now
            if spent > _RESTS_IN:
                raise RuntimeError(f"the simulation does not come to rest: {why or 'it goes on'}")
            pause = _LOOK if self._news.wait(pause) else min(2 * pause, _LONG_LOOK)

    async def _loop_settles(self) -> None:
        """Return when the tasks of the running loop do nothing more with the simulation."""
        while True:
            before = self._stirred
            for _ in range(_ROUNDS):
                await asyncio.sleep(0)
            if self._stirred == before:
                return
            await asyncio.to_thread(self._do_alone, self._settle)


def simulated(
    *,
    tick_time: int = 500,
    min_session_timeout: int | None = None,
    max_session_timeout: int | None = 60_000,
) -> Simulation:
    """Return a simulated ZooKeeper on a clock that the test moves; ``with`` starts and ends it.

    ``tick_time`` and the session timeouts are milliseconds of the simulation.
    """
    return Simulation(
        tick_time=tick_time,
        min_session_timeout=min_session_timeout,
        max_session_timeout=max_session_timeout,
    )


def _unrest(waits: Waits, sides: dict[Side, None]) -> str | None:
    """Return what does not rest, if anything does not."""
    if waits.ended():
        return "a thread whose wait has ended"
    for side in list(sides):
        if (what := side.unrest()) is not None:
            return f"{side.name}: {what}"
    return None


def _waits_in_zklock(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return False
    if frame.f_code is Event._wait.__code__:
        return not frame.f_locals["self"].is_set()
    if frame.f_globals.get("__name__") not in _WITH_MAIL:
        return False
    thread.join(_MOMENT)  # it may be about to go on with its mail
    return sys._current_frames().get(thread.ident or 0) is frame
