"""The contract suite on the simulator's system: ``ZKLOCK_TEST_PLAYED=1``.

Each test runs by itself, with its fixtures, on a system, a network and servers of its own (see
`tests.unit.simulator`). Its threads are greenlets, its event loops wait by the simulated clock, and
so does everything else. What runs when follows from the seed, and that from the test's id: two runs
of one test are the same, on any machine. Nothing waits for real time.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import socket
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

import zklock.aio
from tests.stopwatch import Stopwatch
from tests.unit.simulator.ensemble import ADDRESSES, Ensemble
from tests.unit.simulator.network import Network, Socket
from tests.unit.simulator.substituted import substituted
from tests.unit.simulator.system import System, now, running
from zklock.testing.zookeeper.machine import Rules

SERVER = f"{ADDRESSES[0]}:2181"

MOST_STEPS = 3_000_000

HOUSES = (
    "tests.contract",
    "tests.stopwatch",
    "tests.unit.testing.wire",
    "asyncio.base_events",
    "zklock.testing.proxy",
    "zklock.testing.pytest_plugin",
    "zklock.testing.sessions",
    "zklock.testing.status",
    "zklock.testing.waiting",
)
"""What runs on the simulated system beside zklock and kazoo."""

GRAIN = 2.0**-20
"""Seconds: no wait seems shorter than it is, as it would by what floats are rounded to."""

ITERATION = 0.0002
"""Seconds that a loop takes for what is ready: others go on while a task only lets tasks run."""

NOISE = 0.1
"""How often others run where a thread need not wait."""


class Selector:
    """As much of a selector as an event loop needs: it waits for sockets that can be read."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.woken = False
        self.readers: dict[Socket, asyncio.Handle] = {}

    def select(self, timeout: float | None = None) -> list[asyncio.Handle]:
        """Wait until the loop is woken, or something can be read, for some seconds at most."""
        if timeout is None or timeout > 0:
            self._system.block(lambda: self.woken or self._ready(), timeout)
        else:
            self._system.block(lambda: False, ITERATION)
        self.woken = False
        return self._ready()

    def _ready(self) -> list[asyncio.Handle]:
        return [handle for end, handle in self.readers.items() if end.readable]

    def get_map(self) -> dict[int, object]:
        """Return what asyncio shows of it."""
        return {}


class Loop(asyncio.BaseEventLoop):
    """An event loop by the simulated clock, with as much of sockets as the fault proxy uses."""

    def __init__(self, system: System, network: Network) -> None:
        super().__init__()
        self._network = network
        self._selector = Selector(system)

    def close(self) -> None:
        super().close()
        self._selector.readers.clear()

    def _process_events(self, events: list[asyncio.Handle]) -> None:
        for handle in events:
            self._add_callback(handle)  # type: ignore[attr-defined]

    def _write_to_self(self) -> None:
        self._selector.woken = True

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., object], *args: Any
    ) -> None:
        self._selector.readers[fd] = asyncio.Handle(callback, args, self, None)

    def remove_reader(self, fd: Any) -> bool:
        handle = self._selector.readers.pop(fd, None)
        if handle is not None:
            handle.cancel()
        return handle is not None

    async def connect_accepted_socket(  # type: ignore[override]
        self, factory: Any, sock: Any, **_: Any
    ) -> Any:
        return Transport(self, sock, factory())

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None) -> Any:  # type: ignore[override]
        return Transport(self, self._network.connect((host, port)), factory())


class Transport(asyncio.Transport):
    """A connection on a simulated loop."""

    def __init__(self, loop: Loop, end: Socket, protocol: asyncio.Protocol) -> None:
        super().__init__({"socket": end})
        self._loop = loop
        self._end = end
        self._protocol = protocol
        self._closing = False
        protocol.connection_made(self)
        loop.add_reader(end, self._read)

    def _read(self) -> None:
        data = self._end.recv(1 << 16)
        if data:
            self._protocol.data_received(data)
            return
        self._loop.remove_reader(self._end)
        if not self._protocol.eof_received():
            self.close()

    def write(self, data: Any) -> None:
        self._end.send(data)

    def write_eof(self) -> None:
        self._end.shutdown(socket.SHUT_WR)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.remove_reader(self._end)
            self._end.close()
            self._loop.call_soon(self._protocol.connection_lost, None)

    abort = close


@contextmanager
def playing(seed: int) -> Iterator[System]:
    """Put a simulated system under zklock, kazoo, asyncio and the tests."""
    system = System(seed)
    system.noise = NOISE
    system.most_steps = MOST_STEPS
    system.grain = GRAIN
    system.tells_script = True
    network = Network(system)
    with ExitStack() as stack:
        put = stack.enter_context(substituted(system, network, *HOUSES))
        for home in (asyncio, asyncio.events):
            put(home, "new_event_loop", lambda: Loop(system, network))
        put(asyncio, "SelectorEventLoop", lambda: Loop(system, network))
        put(Stopwatch, "clock", staticmethod(now))
        stack.enter_context(running(system))
        Ensemble(system, network, Rules(max_session_timeout=60_000))
        yield system


# What is imported later would have the real threads.
for _name in (*HOUSES[2:], "concurrent.futures.thread", "zklock.fencing", "zklock.telemetry"):
    importlib.import_module(_name)
for _name in zklock.aio.__all__:
    getattr(zklock.aio, _name)


def seed_of(test: str) -> int:
    """Return the seed of a test: it depends on its id alone."""
    return zlib.crc32(test.encode()) + int(os.environ.get("ZKLOCK_TEST_SEED", "0"))


class Player:
    """Runs each test on a system of its own."""

    def __init__(self) -> None:
        self.histories: dict[str, int] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Play a test, and all that its fixtures do."""
        collects = gc.isenabled()
        gc.disable()  # what a collection ends, it ends at another step each time
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        try:
            with playing(seed_of(item.nodeid)) as system:
                try:
                    system.run(lambda: runtestprotocol(item, nextitem=None))
                except Exception as failure:
                    _report(item, failure)
            self.histories[item.nodeid] = system.history
        finally:
            hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            if collects:
                gc.enable()
                gc.collect()
        return True


def _report(item: pytest.Item, failure: Exception) -> None:
    """Report what has ended the system of a test."""

    def fail() -> None:
        raise failure

    call = pytest.CallInfo.from_call(fail, "teardown")
    report = item.ihook.pytest_runtest_makereport(item=item, call=call)
    item.ihook.pytest_runtest_logreport(report=report)


def register(config: pytest.Config) -> None:
    """Have the tests of this run played."""
    config.pluginmanager.register(Player(), "zklock-played")
