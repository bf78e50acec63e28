"""Handlers in other processes, one for each shard, and what tells them to stop.

A shared board says until when the lease runs. For each shard, at a place of its own, it says whose
turn it is, and what that handler was told. So a process knows that its shard is lost, even if the
process that owns the shard stands still or is gone.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import multiprocessing
import os
import pickle
import secrets
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from zklock._core.callbacks import ran
from zklock._core.grant import GrantBase
from zklock._ground import threads
from zklock._ground.clock import check_timeout, clock
from zklock._ground.groups import OF_LOSS, says_only
from zklock._ground.records import log_fields
from zklock._pool.keys import MAX_SHARDS, Key
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

_RUNS, _STOPS, _LOST = 0, 1, 2
_SIZE = 8 * (2 + MAX_SHARDS)
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


class _View:
    """The board's memory, as every process sees it."""

    def __init__(self, file: int) -> None:
        shared = memoryview(mmap.mmap(file, _SIZE))
        self.lease = shared[:8].cast("d")
        self.mark = shared[8:16].cast("Q")
        self.told = shared[16:].cast("Q")


class SharedBoard:
    """The shared memory, for the process that owns the shards.

    Others find it by ``path`` and ``mark``. On Linux it is in no directory, so that nothing is left
    of it however this process ends. It is a file in the temporary directory elsewhere, where this
    process has changed its user, and where ``/proc`` is of another PID namespace; a kill leaves
    that file there.
    """

    def __init__(self) -> None:
        self.path = ""
        with contextlib.suppress(OSError, AttributeError):
            file = os.memfd_create("zklock-pool")
            try:
                mine = Path(f"/proc/{os.getpid()}")
                if mine.samefile("/proc/self") and Path(mine, "fd").stat().st_uid == os.geteuid():
                    self._file, self.path = file, f"/proc/{os.getpid()}/fd/{file}"
            finally:
                if not self.path:
                    os.close(file)
        self._named = not self.path
        if self._named:
            self._file, self.path = tempfile.mkstemp(prefix="zklock-pool-")
        os.ftruncate(self._file, _SIZE)
        self._view = _View(self._file)
        # Others may get the same number of a descriptor, or of a process, later.
        self.mark = self._view.mark[0] = secrets.randbits(63) | 1
        self._turns = count(1)

    def lease(self, end: float) -> None:
        """Note until when the lease runs, on the clock of leases."""
        self._view.lease[0] = end

    def begin(self, place: int) -> int:
        """Begin a turn of a shard's handler, and return it. Earlier turns are then lost."""
        turn = next(self._turns) << 2
        self._view.told[place] = turn | _RUNS
        return turn

    def note(self, place: int, turn: int, state: int) -> None:
        """Note what the handler is told. A lost turn stays lost."""
        if self._view.told[place] != turn | _LOST:
            self._view.told[place] = turn | state

    def close(self) -> None:
        """Remove the board. Processes that still map it find every shard lost."""
        self._view.lease[0] = 0.0
        self._view.mark[0] = 0
        if self._named:
            Path(self.path).unlink(missing_ok=True)
        os.close(self._file)


_views: dict[str, _View] = {}
"""By path. A path may be a descriptor, and be used again: a new board replaces an old one."""


def _view(path: str, mark: int) -> _View | None:
    view = _views.get(path)
    if view is None or view.mark[0] != mark:
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            view = _View(file)
        except (OSError, ValueError):
            return None
        finally:
            os.close(file)
        if view.mark[0] != mark:
            return None
        _views[path] = view
    return view


class RemoteStop:
    """Tells a handler in a process to stop. ``wait()`` looks every 20 ms."""

    def __init__(self, board: str, mark: int, place: int, turn: int) -> None:
        self._board = board
        self._mark = mark
        self._place = place
        self._turn = turn

    def is_set(self) -> bool:
        """Return whether the handler should return."""
        return self._state() != _RUNS

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

    def _state(self) -> int:
        view = _view(self._board, self._mark)
        if view is None:
            return _LOST  # the pool has ended
        now = view.told[self._place]
        live = view.lease[0] > clock() and now >> 2 == self._turn >> 2
        return now - self._turn if live else _LOST


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
        return bool(self.should_stop._state() != _LOST)

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
        self._board = SharedBoard()
        self._named: dict[str, int] = {}  # the places of shards with names, last begun last
        self._threads = OwnThreads(MAX_PROCESSES, "zklock-process")

    def lease(self, end: float) -> None:
        """Note until when the lease runs."""
        self._board.lease(end)

    def submit(self, shard: Key, grant: GrantBase) -> Task:
        handler = pickle.dumps(self._handler)
        place = self._place(shard)
        turn = self._board.begin(place)
        note = partial(self._board.note, place, turn)
        self.lease(clock() + grant.remaining())
        stop = RemoteStop(self._board.path, self._board.mark, place, turn)
        child = _Child(handler, RemoteShard(shard, grant, stop), note)
        task = Task(partial(note, _STOPS), child.lose)
        try:
            task.run_by(self._threads, child.run)
        except Exception:
            note(_LOST)
            raise
        return task

    def close(self) -> None:
        self._threads.shutdown()
        self._board.close()

    def _place(self, shard: Key) -> int:
        """Return the shard's place on the board: of a name, that of its turns before."""
        if isinstance(shard, int):
            return shard
        place = self._named.pop(shard, len(self._named))
        if place == MAX_SHARDS:
            # No pool has so many names at a time: a turn that still runs there finds itself lost.
            place = self._named.pop(next(iter(self._named)))
        self._named[shard] = place
        return place


class _Child:
    """One process that handles one shard, for the thread that starts it and waits for its end.

    That thread must not end earlier: for Linux it is the parent whose death kills the process.
    """

    def __init__(self, handler: bytes, shard: RemoteShard, note: Callable[[int], None]) -> None:
        self._handler = handler
        self._shard = shard
        self._note = note
        self._lost = False

    def lose(self) -> None:
        """Note that the shard is lost: the process has to end, and is made to if it does not."""
        self._note(_LOST)
        self._lost = True

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
                self._note(_LOST)
                while not _gone(process):
                    time.sleep(_ROUND)
                raise
            word = _received(mine)
        finally:
            # Before the shard is given back: the process may have left children that still look.
            self._note(_LOST)
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
        process = multiprocessing.get_context("spawn").Process(
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
            if self._lost and left:
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
        shard.should_stop.is_set()  # the handler may become another user, who finds no board
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
