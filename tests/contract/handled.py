"""Parts that child processes play: signal handlers at every line, and threads that cannot start.

``python -m tests.contract.handled PART '{"json": …}'``. A part says one JSON value at its end.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import resource
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import zklock
from tests.contract.support import SOON, children, gone, granted
from tests.modes import repeated
from tests.stopwatch import Stopwatch
from zklock import telemetry
from zklock.testing import wait_for

LIBRARY = str(Path(zklock.__file__).parent)
STRIDE = repeated(4, 16)
"""Every so many lines a signal arrives, so that a run is over in seconds."""

TIMEOUT = 60.0
"""The session timeout in seconds. A tenth of it is the shortest time that anybody could wait for an
answer because of a thread that a handler has interrupted; a busy server takes less."""


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


class Lines:
    """Counts the lines of the library that this thread runs, and calls a handler at one of them.

    As a signal does: between two lines, on the same thread, whatever was being done.
    """

    def __init__(self) -> None:
        self.count = 0
        self.at = -1
        self.handler: Callable[[], object] = lambda: None

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(LIBRARY):
            return None
        return self._line

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self.at:
                self.handler()
        return self._line

    def run(self, call: Callable[[], object], at: int = -1) -> int:
        """Call; return how many lines of the library that took."""
        self.count, self.at = 0, at
        sys.settrace(self)
        try:
            call()
        finally:
            sys.settrace(None)
        return self.count


def handled(hosts: str, path: str, what: str, hooked: bool) -> None:
    """Take and release a lock while a handler does ``what`` at one line after the other."""
    faulthandler.dump_traceback_later(240, exit=True)
    told: Counter[str] = Counter()
    if hooked:
        subscription = telemetry.subscribe(lambda event: told.update([type(event).__name__]))
    client = zklock.connect(hosts, timeout=TIMEOUT)
    onlooker = zklock.connect(hosts, timeout=20.0)
    lock, held = zklock.Lock(client, path), zklock.Lock(client, f"{path}-held")
    outcomes: Counter[str] = Counter()
    longest = 0.0

    def use() -> None:
        try:
            with lock as grant:
                grant.check()
        except zklock.AcquireCancelled:
            outcomes["cancelled"] += 1

    def handler() -> None:
        nonlocal longest
        refuses = what in ASKS and client.handler.inside()
        began = watch.awake
        try:
            CALLS[what](client, path, lock, grant)
        except zklock.WouldDeadlock:
            outcomes["refused" if refuses else "refused outside of a step"] += 1
        except zklock.ZkLockError as error:
            outcomes[repr(error)] += 1
        else:
            outcomes["asked in a step" if refuses else "done"] += 1
        longest = max(longest, watch.awake - began)

    lines = Lines()
    grant = granted(held)
    lines.run(use)
    total = lines.run(use)
    lines.handler = handler
    with Stopwatch() as watch:
        for at in range(1, total + 1, STRIDE):
            if not grant.held:
                gone(onlooker, held.path)
                grant = granted(held)
            lines.run(use, at)
            gone(onlooker, path)
            if what in ENDS:
                assert not grant.held or lines.count < at, at
    wait_for(lambda: grant.remaining() > 0 or what in ENDS, SOON)
    lost = grant.lost.is_set()
    client.stop()
    onlooker.stop()
    if hooked:
        assert subscription.flush(SOON)
        assert told["Granted"] == told["Released"] + told["Lost"], told
        assert told["Granted"] + told["Withdrawn"] > total / STRIDE, told
        subscription.close()
    say({"total": total, "longest": longest, "lost": lost, **outcomes})


def _ask(client: Any, path: str, lock: zklock.Lock, grant: zklock.Grant) -> None:
    lock.contenders(timeout=SOON)


def _acquire(client: Any, path: str, lock: zklock.Lock, grant: zklock.Grant) -> None:
    other = zklock.Lock(client, f"{path}-other")
    taken = other.acquire(timeout=SOON)
    assert taken is not None
    taken.release()


def _look(client: Any, path: str, lock: zklock.Lock, grant: zklock.Grant) -> None:
    assert grant.held
    assert grant.remaining() > 0
    grant.check()
    repr((lock, lock.held, lock.grant, grant))
    grant.add_lost_callback(lambda loss: None)


CALLS: dict[str, Callable[[Any, str, zklock.Lock, zklock.Grant], object]] = {
    "cancel": lambda client, path, lock, grant: lock.cancel(),
    "abandon": lambda client, path, lock, grant: grant.abandon(),
    "release": lambda client, path, lock, grant: grant.release() if grant.held else None,
    "look": _look,
    "ask": _ask,
    "acquire": _acquire,
}
ENDS = {"abandon", "release"}
ASKS = {"ask", "acquire"}


def no_more_threads() -> None:
    """Have the system refuse this process another thread."""
    if os.geteuid() == 0:  # whom no limit holds
        os.setuid(54321)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    try:
        threading.Thread(target=int).start()
    except RuntimeError:
        return
    raise AssertionError("the system starts threads in spite of the limit")


def starved(hosts: str, path: str, how: str) -> None:
    """Lose locks when no thread can be started any more."""
    faulthandler.dump_traceback_later(120, exit=True)
    client = zklock.connect(hosts, timeout=20.0)
    told: list[int] = []
    hang = threading.Event()

    def teller(number: int) -> Callable[[zklock.Loss], object]:
        return lambda loss: told.append(number)

    locks = [zklock.Lock(client, f"{path}/{each}", on_lost=teller(each)) for each in range(4)]
    stuck = zklock.Lock(client, f"{path}/stuck", on_lost=lambda _: hang.wait(SOON))
    grants = [granted(each) for each in (stuck, *locks)]
    no_more_threads()
    if how == "deleted":
        for grant in grants:
            client.delete(grant.path)
        wait_for(lambda: len(told) == len(locks), SOON, lambda: f"told of {told}")
        assert client.connected
        with locks[0] as grant:  # the connection, the heartbeats and the lock go on
            grant.verify()
    else:
        client.stop()
        wait_for(lambda: len(told) == len(locks), SOON, lambda: f"told of {told}")
    seen = sorted(told)
    hang.set()
    client.stop()
    say(seen)


def many(hosts: str, path: str, count: int) -> None:
    """Lose many locks at once, and say how many threads that took."""
    faulthandler.dump_traceback_later(120, exit=True)
    client = zklock.connect(hosts, timeout=20.0)
    told = threading.Semaphore(0)
    threads: list[int] = []

    def on_lost(loss: zklock.Loss) -> None:
        threads.append(threading.active_count())
        told.release()

    for number in range(count):
        granted(zklock.Lock(client, f"{path}/{number}", on_lost=on_lost))
    before = threading.active_count()
    client.stop()
    for _ in range(count):
        assert told.acquire(timeout=SOON)
    say(max(threads) - before)


def leaving(hosts: str, path: str) -> None:
    """Hold at the end of the program, which stops the client when the interpreter shuts down."""
    client = zklock.connect(hosts, timeout=20.0)
    told = threading.Event()

    def on_lost(loss: zklock.Loss) -> None:
        say(loss.reason.name)
        told.set()

    def stop() -> None:
        client.stop()
        told.wait(SOON)

    atexit.register(stop)
    granted(zklock.Lock(client, path, on_lost=on_lost))
    assert children(client, path)


UNENDED: list[object] = []
"""What is ended when the interpreter ends the module."""


def unended(hosts: str, path: str) -> None:
    """Leave generators in the bodies of clients, a lock and a pool, and an object that asks."""
    client = zklock.connect(hosts, timeout=20.0)
    new, used, pool = (zklock.connect(hosts, timeout=20.0) for _ in range(3))
    taken = zklock.Lock(used, f"{path}/taken")
    granted(taken)  # its session has its threads, which will run no more
    taken.release()
    granted(zklock.Lock(client, f"{path}/taken"))
    election = zklock.LeaderElection(used, f"{path}/election")
    changes = election.changes()
    assert changes.next() is not None
    worker = zklock.WorkerPool(used, f"{path}/drained", shards=1)
    worker.start()
    asked = (
        zklock.Lock(new, f"{path}/other").acquire,
        taken.acquire,
        zklock.MultiLock([taken, zklock.Lock(used, f"{path}/other")]).acquire,
        partial(election.run, print),
        changes.next,
        worker.drain,
        taken.holder,
    )
    lock = f"{path}/lock"
    error, write = zklock.ZkLockError, os.write  # the module's names are gone by then

    def holding() -> Iterator[str]:
        with zklock.connect(hosts, timeout=60.0) as another, zklock.Lock(another, lock) as grant:
            yield grant.path

    def working() -> Iterator[None]:
        with zklock.WorkerPool(pool, f"{path}/pool", shards=1):
            yield

    class Late:
        def __del__(self) -> None:
            refused = 0
            for ask in asked:
                try:
                    ask()
                except error as why:
                    refused += "interpreter is shutting down" in str(why)
            write(1, b"true" if refused == len(asked) else b"%d" % refused)

    held, works = holding(), working()
    node = next(held)
    next(works)
    assert children(client, lock) == [node.rpartition("/")[2]]
    UNENDED.extend([held, works, Late()])


PARTS: dict[str, Callable[..., None]] = {
    "unended": unended,
    "handled": handled,
    "starved": starved,
    "many": many,
    "leaving": leaving,
}

if __name__ == "__main__":
    PARTS[sys.argv[1]](**json.loads(sys.argv[2]))
