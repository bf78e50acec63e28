"""The simulated system put under zklock and kazoo: their threads, clocks, sockets and chance."""

from __future__ import annotations

import fcntl
import os
import queue
import random
import select
import selectors
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.handlers.utils import selector_select
from kazoo.retry import KazooRetry

import zklock
from tests.unit.simulator import system as simulated
from tests.unit.simulator.network import Network, raised_by_the_call
from tests.unit.simulator.system import System
from zklock._election.options import pause_after
from zklock._ground import interrupts, mutexes
from zklock._ground.clock import clock

HOUSES = ("zklock", "kazoo", "concurrent.futures")
"""What runs on the simulated system: the beginnings of the names of its modules."""

Put = Callable[[Any, str, object], None]


def _stays(name: str, more: tuple[str, ...]) -> bool:
    """Whether a module keeps the real system; the simulated servers are made of some of them."""
    return not name.startswith((*HOUSES, *more)) or (
        name.startswith("zklock.testing") and not name.startswith(more)
    )


@contextmanager
def substituted(system: System, network: Network, *more: str) -> Iterator[Put]:
    """Put the simulated system under zklock and kazoo, and under more modules.

    Yield ``put(home, name, value)``, which replaces something else for as long.
    """
    chance = random.Random(f"chance {system.seed}")
    drawn = {name: getattr(chance, name) for name in ("random", "randint", "uniform", "shuffle")}
    modules = network.modules()
    replaced: list[tuple[object, object]] = [
        (threading, simulated.THREADING),
        (queue, simulated.QUEUE),
        (time, simulated.TIME),
        (select, modules["select"]),
        (selectors, modules["selectors"]),
        (socket, modules["socket"]),
        (fcntl, modules["fcntl"]),
        (random, simulated.Module(random, **drawn)),
        (queue.SimpleQueue, simulated.Queue),
        (time.sleep, simulated.sleep),
        (random.uniform, chance.uniform),
        (clock, simulated.now),
        (interrupts.raised_by_the_call, raised_by_the_call),
        (mutexes.Mutex, simulated.Lock),
        (mutexes.ReentrantMutex, simulated.RLock),
        (os.urandom, chance.randbytes),
        (uuid.uuid4, lambda: uuid.UUID(int=chance.getrandbits(128), version=4)),
    ]
    by_id = {id(real): fake for real, fake in replaced}
    with ExitStack() as stack:

        def put(home: Any, name: str, value: object) -> None:
            stack.enter_context(mock.patch.object(home, name, value))

        for name, module in list(sys.modules.items()):
            if _stays(name, more):
                continue
            for attribute, value in list(vars(module).items()):
                if id(value) in by_id:
                    put(module, attribute, by_id[id(value)])
                    continue
                kind = type(value)  # isinstance() would ask the value, which may be lazy
                if issubclass(kind, type) and threading.local in value.__bases__:
                    put(module, attribute, simulated.local_class(value))
                elif issubclass(kind, threading.local):
                    local = simulated.Local if kind is threading.local else None
                    put(module, attribute, (local or simulated.local_class(kind))())
        put(zklock.Handler, "now", staticmethod(simulated.now))
        put(SequentialThreadingHandler, "queue_impl", simulated.Queue)
        put(SequentialThreadingHandler, "sleep_func", staticmethod(simulated.sleep))
        for function in (KazooRetry.__init__, pause_after, selector_select):
            defaults = tuple(by_id.get(id(each), each) for each in function.__defaults__ or ())
            put(function, "__defaults__", defaults)
        put(sys.modules["kazoo.handlers.threading"], "atexit", mock.Mock())
        yield put


for _name in zklock.__all__:
    getattr(zklock, _name)  # what is imported later would have the real modules
