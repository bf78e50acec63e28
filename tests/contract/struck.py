"""A child process that is interrupted at every moment at which CPython looks for signals.

``python -m tests.contract.struck '{"json": …}'`` says one JSON value at its end.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import random
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType

import zklock
from tests.contract.support import SOON, gone, granted
from zklock import telemetry
from zklock._core import attempt
from zklock.testing import wait_for

LIBRARY = str(Path(zklock.__file__).parent)
DRIVES = attempt.__file__
KEPT_FOR = 0.1
READS_FOR = 0.5
"""Seconds."""
KAZOO_SENDS = ("kazoo.client", "_call")
"""Where kazoo hands a request over, and takes everything that is raised for a closed connection."""


class Struck(KeyboardInterrupt):
    """What a handler of SIGINT would raise."""


class Limit(zklock.LockLost):
    """What the handler of a time limit would raise that looks at a grant."""

    def __init__(self) -> None:
        super().__init__("the time is over")


STRIKES: dict[str, type[BaseException]] = {"interrupt": Struck, "limit": Limit}


class Moments:
    """Counts the moments in code below ``folder`` and where kazoo sends; raises at one of them.

    CPython looks for signals when a function of Python begins and when one of C has returned. (In
    loops it looks, too, but then it has just called something.) What is
    raised in a ``__del__`` arrives nowhere, so these moments do not count. Nor do calls of
    generators, but for those that drive a recipe: the end of one that is dropped looks like a call,
    and what is raised in it arrives nowhere. For both reasons, no garbage is collected meanwhile.
    """

    def __init__(self, error: type[BaseException] = Struck, folder: str = LIBRARY) -> None:
        self.error = error
        self.folder = folder
        self.count = 0
        self.at = -1
        self.then = 0  # a second one strikes at so many begins of functions after the first
        self.twice = False
        self.where = ""

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if event not in {"call", "c_return"} or not self._counts(frame, event):
            return
        self.count += 1
        if self.count == self.at:
            self.where = "".join(traceback.format_stack(frame)) + event
            raise self.error

    def second(self, frame: FrameType, event: str, arg: object) -> None:
        """Raise again, as a function for ``sys.settrace``: the one that raises ends by that."""
        if event != "call" or not self.where or not self._counts(frame, event):
            return
        self.then -= 1
        if self.then == 0:
            self.twice = True
            self.where += "\n".join(("", *traceback.format_stack(frame)))
            raise self.error

    def _counts(self, frame: FrameType, event: str) -> bool:
        code = frame.f_code
        if not code.co_filename.startswith(self.folder) and self._place(frame) != KAZOO_SENDS:
            return False
        if event == "call" and code.co_flags & CO_GENERATOR:
            by = frame.f_back.f_code if frame.f_back is not None else None
            if by is None or not (by.co_flags & CO_GENERATOR or by.co_filename == DRIVES):
                return False
        within: FrameType | None = frame
        while within is not None and within.f_code.co_name != "__del__":
            within = within.f_back
        return within is None

    def run(self, call: Callable[[], object], at: int = -1, then: int = 0) -> bool:
        """Call; return whether it was struck and that arrived."""
        self.count, self.at, self.where = 0, at, ""
        self.then, self.twice = then, False
        before = sys.gettrace()
        gc.disable()
        if then:
            sys.settrace(self.second)
        sys.setprofile(self)
        try:
            call()
        except self.error:
            return True
        finally:
            sys.setprofile(None)
            sys.settrace(before)
            gc.enable()
        return False

    def strike(self, call: Callable[[], object], at: int, then: int = 0) -> bool:
        """Call, struck at a moment; return whether it came to that. What is raised must arrive."""
        struck = self.run(call, at, then)
        assert struck or not self.where, f"swallowed at moment {at}:\n{self.where}"
        return struck

    def _place(self, frame: FrameType) -> tuple[str | None, str]:
        return frame.f_globals.get("__name__"), frame.f_code.co_name


class Ledger:
    """A hook that follows each grant from its event to the event of its end."""

    def __init__(self) -> None:
        self.open: set[zklock.FencingToken] = set()
        self.grants = 0
        self.twice: list[zklock.FencingToken] = []
        self._ended: set[zklock.FencingToken] = set()

    def __call__(self, event: telemetry.Event) -> None:
        match event:
            case telemetry.Granted(token=token):
                self.grants += 1
                self.open.add(token)
            case telemetry.Released(token=token) | telemetry.Lost(token=token):
                if token in self._ended:
                    self.twice.append(token)
                self._ended.add(token)
                self.open.discard(token)


def main(
    hosts: str, path: str, how: str, stride: int, hooked: bool, strike: str, twice: bool = False
) -> None:
    """Do it, struck at one moment after the other; nothing may be left."""
    faulthandler.dump_traceback_later(600, exit=True)
    logging.getLogger("kazoo").setLevel(logging.ERROR)  # each strike may end a connection
    moments = Moments(STRIKES[strike])
    if how == "connect":
        tally = connecting(hosts, moments, stride, twice)
    else:
        tally = locking(hosts, path, how, moments, stride, hooked, twice)
    print(json.dumps(tally), flush=True)


def connecting(hosts: str, moments: Moments, stride: int, twice: bool) -> dict[str, int]:
    """Connect and end: no thread of a client may be left.

    ``twice``: see :func:`locking`.
    """

    def use() -> None:
        with zklock.connect(hosts, timeout=30.0) as client:
            assert client.connected

    def alone() -> bool:
        return threading.active_count() == 1

    tally: Counter[str] = Counter()
    counts = []
    for _ in range(3):
        moments.run(use)
        counts.append(moments.count)
    total = max(counts)
    thens = random.Random(total)
    for at in range(1, total + 1, stride):
        if moments.strike(use, at, thens.randint(1, 2) if twice else 0):
            tally["struck"] += 1
            tally["twice"] += moments.twice
        else:
            tally["done"] += 1
            counts.append(moments.count)
        wait_for(
            alone,
            SOON,
            lambda: f"{threading.enumerate()} at moment {at} of {total}:\n{moments.where}",  # noqa: B023
        )
    return {"total": total, "fewest": min(counts), **tally}


def locking(
    hosts: str, path: str, how: str, moments: Moments, stride: int, hooked: bool, twice: bool
) -> dict[str, int]:
    """Acquire and release: no contender and no grant may be left.

    "multi …" uses a ``MultiLock``, "election …" a ``LeaderElection``. "again …" uses an ``RLock``
    that this thread holds, and "beside …" a ``ReadLock``: one use more is struck, and the one
    before must be left. "kept …" uses a lock that has stayed, "keep …" one that will stay.
    "queued …" waits for another client, which releases when this thread reads events itself.
    ``twice``: a second one strikes who is seeing to the first, if that takes long enough.
    """
    ledger = Ledger()
    subscription = telemetry.subscribe(ledger) if hooked else None
    client = zklock.connect(hosts, timeout=30.0)
    onlooker = zklock.connect(hosts, timeout=30.0)
    paths = [f"{path}/{name}" for name in ("a", "b")[: 2 if how.startswith("multi") else 1]]
    again = {"again": zklock.RLock, "beside": zklock.ReadLock}.get(how.partition(" ")[0])
    options = {"keep": KEPT_FOR} if how.startswith("ke") else {}
    locks = [(again or zklock.Lock)(client, each, **options) for each in paths]
    lock: zklock.Lock | zklock.MultiLock | zklock.LeaderElection = locks[0]
    if how.startswith("multi"):
        lock = zklock.MultiLock(locks)
    elif how.startswith("election"):
        lock = zklock.LeaderElection(client, path + "/a")
    taken: list[zklock.Grant | zklock.MultiGrant | None] = []
    outer: list[zklock.Grant] = []
    others: list[tuple[threading.Thread, threading.Event]] = []

    def reads_events() -> bool:
        return client.handler.session.link.idle and client.handler.reader is not None

    def let_go(held: zklock.Grant, over: threading.Event) -> None:
        with suppress(TimeoutError):  # it has read for its moment: now another thread does
            wait_for(lambda: reads_events() or over.is_set(), READS_FOR, interval=0.001)
        held.release()

    def begin() -> None:
        if how.startswith("queued"):
            over = threading.Event()
            held = granted(zklock.Lock(onlooker, paths[0]))
            thread = threading.Thread(target=let_go, args=(held, over))
            others.append((thread, over))
            thread.start()
        if again is not None:
            outer.append(granted(locks[0]))
        for _ in range(2 if how.startswith("kept") else 0):  # then the queue is watched
            granted(locks[0]).release()

    def end() -> None:
        for thread, over in others:
            over.set()
            thread.join()
        others.clear()
        for grant in taken:
            assert grant is not None
            if again is None:
                grant.release()
            else:
                locks[0].release()
        taken.clear()
        while outer:
            assert outer.pop().held
            locks[0].release()

    def use() -> None:
        if how.endswith("with"):
            assert not isinstance(lock, zklock.LeaderElection)
            with lock:
                pass
        elif how.endswith("with acquire"):
            with lock.acquire() as grant:  # type: ignore[union-attr]
                assert grant.held
        elif how.endswith("with attempt"):
            with lock.attempt() as grant:
                assert grant is not None
        else:
            taken.append(lock.acquire())

    tally: Counter[str] = Counter()
    counts = []  # they differ: an answer may be there at once, or come on another thread
    for _ in range(5):  # the first ones also make what is made once
        begin()
        moments.run(use)
        counts.append(moments.count)
        end()
        gone(onlooker, paths[0])
    del counts[:2]
    total = max(counts)
    thens, most = random.Random(total), 4 if again is zklock.RLock else 12
    for at in range(1, total + 1, stride):
        begin()
        if moments.strike(use, at, thens.randint(1, most) if twice else 0):
            tally["struck"] += 1
            tally["twice"] += moments.twice
        else:
            tally["done"] += 1
            counts.append(moments.count)
        try:
            end()
            for each in paths:
                gone(onlooker, each)
            assert not (lock.is_leader if isinstance(lock, zklock.LeaderElection) else lock.held)
            for it in locks:
                granted(it).release()
                gone(onlooker, it.path)
        except BaseException as error:
            error.add_note(f"struck at moment {at} of {total}:\n{moments.where}")
            raise
    client.stop()
    onlooker.stop()
    if subscription is not None:
        # A grant that was torn is lost when the session hears of its node, at the latest now.
        assert subscription.flush(SOON)
        assert not ledger.open
        assert not ledger.twice
        subscription.close()
    return {"total": total, "fewest": min(counts), "grants": ledger.grants, **tally}


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
