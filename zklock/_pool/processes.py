"""Handlers in other processes, one for each shard, and what tells them to stop."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from functools import partial
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from zklock._core.callbacks import ran
from zklock._core.grant import GrantBase
from zklock._ground import threads
from zklock._ground.clock import check_timeout, clock
from zklock._ground.groups import OF_LOSS, says_only
from zklock._ground.records import log_fields
from zklock._pool.keys import Key
from zklock._pool.own_threads import OwnThreads
from zklock._pool.runners import CannotRun, Shard, ShardHandler, Task
from zklock.errors import LockLost, StaleToken

log = logging.getLogger("zklock")

MAX_PROCESSES = 512
"""The most processes of ``executor="processes"``: one for each shard that is handled."""

TERM_AFTER = 10.0
"""Seconds that a process has to end by itself once its shard is lost. Then it gets SIGTERM."""

KILL_AFTER = 5.0
"""Seconds that it has to end after SIGTERM. Then it gets SIGKILL."""

_LOOK = 0.02
"""Seconds between two looks of a process that waits to be told to stop."""

_ROUND = 0.5
"""The longest time between two looks at a process that runs, in seconds."""

_SPAWN = multiprocessing.get_context("spawn")
_TURNS = count(1)
_SAYS_RETURNED, _SAYS_FAILED, _SAYS_NOT_BEGUN = b"R", b"F", b"N"
_SAYS_LOST, _SAYS_STALE = b"L", b"S"
_MAX_WORD = 3000
"""How many bytes of a failure's text are sent: the last ones."""

_DIES_WITH_PARENT = """(
    __import__("ctypes").CDLL(None).prctl(1, 9, 0, 0, 0),
    __import__("os").getppid() == {parent} or __import__("os")._exit(1),
    {name!r},
)[-1]"""
"""PR_SET_PDEATHSIG, SIGKILL. For a process that cannot import zklock yet."""


class _Told(ctypes.Structure):
    """What a handler is told: until when the lease runs, on the clock of leases, and the rest."""

    _fields_ = (
        ("lease", ctypes.c_double),
        ("turn", ctypes.c_uint64),
        ("stops", ctypes.c_bool),
        ("lost", ctypes.c_bool),
    )


class RemoteStop:
    """Tells a handler in a process to stop, by memory that it shares with the owner of the shard.

    So the handler knows that its shard is lost, even if its owner stands still or is gone.
    ``wait()`` looks every 20 ms.
    """

    def __init__(self, lease: float) -> None:
        self._turn = next(_TURNS)
        self._told = _SPAWN.RawValue(_Told, lease, self._turn)

    def is_set(self) -> bool:
        """Return whether the handler should return."""
        return self._told.stops or not self._held

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds until the handler should return; whether it should."""
        limit = check_timeout(timeout)
        until = None if limit is None else clock() + limit
        while not self.is_set():
            left = _LOOK if until is None else until - clock()
            if left <= 0:
                return False
            time.sleep(min(left, _LOOK))
        return True

    @property
    def _held(self) -> bool:
        told = self._told
        # The turn comes last: a child that the handler has left behind may look when its owner
        # uses the memory for another turn.
        return bool(told.lease > clock() and not told.lost and told.turn == self._turn)


class RemoteShard(Shard):
    """A shard as a handler in another process sees it."""

    should_stop: RemoteStop

    def __init__(self, shard: Key, grant: GrantBase, stop: RemoteStop) -> None:
        self._shard = shard
        self.token = grant.token
        self.should_stop = stop
        self._path = grant.lock_path

    @property
    def held(self) -> bool:
        """Whether the shard may be believed to be owned, at the moment of the call."""
        return self.should_stop._held

    def check(self) -> None:
        """Raise ``LockLost`` once the shard is lost."""
        if not self.held:
            raise LockLost(
                f"{self._path}: shard lost, token {self.token}: stop the guarded work and return",
                path=self._path,
                token=self.token,
            )


class HandlerFailed(Exception):
    """How a handler in a process failed: the text of its exception, or how the process ended.

    The exception itself is not sent between processes. Some exceptions cannot be pickled, and some
    that can be pickled cannot be unpickled.
    """


class InProcesses:
    """Runs each handler in a process of its own.

    A shard's future is done only when its process is gone.
    """

    def __init__(self, handler: ShardHandler) -> None:
        self._handler = handler
        self._stops: dict[RemoteStop, None] = {}  # of those that run, or wait for their turn
        self._threads = OwnThreads(MAX_PROCESSES, "zklock-process")

    def lease(self, end: float) -> None:
        """Note until when the lease runs."""
        for stop in self._stops.copy():
            stop._told.lease = end

    def submit(self, shard: Key, grant: GrantBase) -> Task:
        handler = pickle.dumps(self._handler)
        stop = RemoteStop(clock() + grant.remaining())
        self._stops[stop] = None
        child = _Child(handler, RemoteShard(shard, grant, stop))
        task = Task(partial(setattr, stop._told, "stops", True), child.lose)
        task.future.add_done_callback(lambda _: self._stops.pop(stop, None))
        try:
            task.run_by(self._threads, child.run)
        except Exception:
            del self._stops[stop]
            raise
        return task

    def close(self) -> None:
        self._threads.shutdown()


class _Child:
    """One process that handles one shard, for the thread that starts it and waits for its end.

    That thread must not end earlier: for Linux it is the parent whose death kills the process.
    """

    def __init__(self, handler: bytes, shard: RemoteShard) -> None:
        self._handler = handler
        self._shard = shard
        self._told = shard.should_stop._told

    def lose(self) -> None:
        """Note that the shard is lost: the process has to end, and is made to if it does not."""
        self._told.lost = True

    def run(self) -> None:
        """Run the handler; ``CannotRun``, or ``HandlerFailed``, ``LockLost``, ``StaleToken``."""
        try:
            mine, its = multiprocessing.Pipe(duplex=False)
        except OSError as error:
            raise CannotRun(f"its process cannot be started: {error!r}") from error
        try:
            process = self._start(its)
            its.close()
            try:
                self._await_end(process)
            except BaseException:
                self._told.lost = True
                while not _gone(process):
                    time.sleep(_ROUND)
                raise
            word = _received(mine)
        finally:
            # Before the shard is given back: the process may have left children that still look.
            self._told.lost = True
            its.close()
            mine.close()
        process.join(0)
        if word is None:
            raise HandlerFailed(_obituary(process))
        text = word[1:].decode(errors="replace")
        if word[:1] == _SAYS_LOST:
            raise LockLost(text, path=self._shard._path, token=self._shard.token)
        if word[:1] == _SAYS_STALE:
            path, token = self._shard._path, self._shard.token
            raise StaleToken(text, resource=path, path=path, token=token, highest=None)
        if word[:1] == _SAYS_NOT_BEGUN:
            raise CannotRun(text)
        if word[:1] == _SAYS_FAILED:
            raise HandlerFailed(text)

    def _start(self, its: Connection) -> BaseProcess:
        # Not forked: this process has threads, and a session that is not the child's. A fork
        # server would be quicker, but leaves its socket in the file system if this one is killed.
        process = _SPAWN.Process(
            target=_serve,
            args=(its, self._handler, self._shard),
            name=_Name(f"zklock-shard-{self._shard._shard}"),
        )
        try:
            process.start()
        except Exception as error:
            raise CannotRun(f"its process cannot be started: {error!r}") from error
        return process

    def _await_end(self, process: BaseProcess) -> None:
        """Wait until the process is gone; make it end once its shard is lost.

        The sentinel is a reason to look, not the proof. A process that closes descriptors which it
        did not open runs on without it, and children of the process may hold it open.
        """
        sentinel: list[Any] = [process.sentinel]
        pause, last, left = _ROUND, clock(), [TERM_AFTER, KILL_AFTER]
        while not _gone(process):
            if wait(sentinel, pause):
                sentinel, pause = [], 0.0005
            elif not sentinel:
                pause = min(2 * pause, _ROUND)
            now = clock()
            if self._told.lost and left:
                # A pause of this process uses up at most two rounds of the grace.
                left[0] -= min(now - last, 2 * _ROUND)
                if left[0] <= 0:
                    self._insist(process, last_time=len(left) == 1)
                    del left[0]
            last = now

    def _insist(self, process: BaseProcess, *, last_time: bool) -> None:
        log.error(
            "shard %s of %s is lost, but process %s still runs its handler: sending it %s",
            self._shard._shard,
            self._shard._path,
            process.pid,
            "SIGKILL" if last_time else "SIGTERM",
            extra=log_fields(
                path=self._shard._path, token=self._shard.token, shard=self._shard._shard
            ),
        )
        with contextlib.suppress(OSError):  # it belongs to another user now
            (process.kill if last_time else process.terminate)()


def _gone(process: BaseProcess) -> bool:
    """Whether a process is gone, even if another part of this program has waited for it."""
    if process.exitcode is not None:
        return True
    try:
        os.kill(process.pid or 0, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it belongs to another user now
    return False


def _received(mine: Connection) -> bytes | None:
    """Return the last word of a process that is gone. It fits into the pipe, which keeps it."""
    try:
        return mine.recv_bytes() if mine.poll() else None
    except (EOFError, OSError):
        return None


def _obituary(process: BaseProcess) -> str:
    code = process.exitcode
    if code is None:
        how = "ended, and another part of this program took its exit status"
    elif code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        how = f"was killed by {name}"
    else:
        how = f"ended with status {code}"
    return f"process {process.pid} {how}; its handler had neither returned nor raised"


class _Name(str):
    """The name of a spawned process, which ends on Linux when the thread that spawns it does.

    ``multiprocessing`` unpickles it there before it imports the main module: that may take long,
    or for ever.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        if sys.platform != "linux":
            return str, (str(self),)
        return eval, (_DIES_WITH_PARENT.format(parent=os.getpid(), name=str(self)).strip(),)


# In the process that handles a shard.


def _serve(its: Connection, handler: bytes, shard: RemoteShard) -> None:
    """Call the handler, and send what became of it."""
    try:
        # Ctrl-C strikes all processes of a terminal. The owner of the shards decides what it means.
        signal.signal(signal.SIGINT, lambda number, frame: None)
        try:
            _end_with_parent()
        except threads.NoThread as error:
            its.send_bytes(_SAYS_NOT_BEGUN + f"its process cannot be started: {error}".encode())
            return
        ran("the handler", pickle.loads(handler)(shard))
        word = _SAYS_RETURNED
    except BaseException as error:
        word = _last_word(error)
    with contextlib.suppress(OSError):
        its.send_bytes(word)


def is_being_spawned() -> bool:
    """Whether this process was spawned, and still imports the main module of its parent."""
    main = sys.modules.get("__mp_main__")
    return main is not None and sys.modules.get("__main__") is not main


def _last_word(error: BaseException) -> bytes:
    if isinstance(error, StaleToken):
        return _SAYS_STALE + str(error).encode(errors="replace")[-_MAX_WORD:]
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:
        text = f"{type(error).__name__}, whose text cannot be had"
    says = _SAYS_LOST if says_only(error, OF_LOSS) else _SAYS_FAILED
    return says + text.encode(errors="replace")[-_MAX_WORD:]


def _end_with_parent() -> None:
    """Have this process killed when its parent is gone, however the parent ends.

    On Linux the kernel does it, from the process's beginning on. Elsewhere, and where a change of
    user has switched that off, a thread looks. Code that keeps Python's lock can hold it up.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    threads.start(_follow, "zklock-parent", parent.pid, parent.sentinel)


def _follow(parent: int | None, sentinel: int) -> None:
    while os.getppid() == parent:
        with contextlib.suppress(OSError, ValueError):  # closed by others
            wait([sentinel], _ROUND)
        time.sleep(_LOOK)
    os.kill(os.getpid(), signal.SIGKILL)
