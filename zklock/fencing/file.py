"""A guard for one local file."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import io
import os
import re
import secrets
import stat
import time
import weakref
from pathlib import Path
from typing import TypeAlias

from zklock._ground.clock import clock
from zklock._ground.interrupts import raised_by_the_call
from zklock._ground.numbers import check_number
from zklock.errors import NoAnswer
from zklock.fencing.guard import NO_TOKEN, Fenced, admit, missing, parse_mark, token_of, unreadable
from zklock.token import FencingToken

_POLL = 0.005

_Identity: TypeAlias = tuple[int, int, int]


class FileGuard:
    """Fenced, atomic replacement of one file on a local file system.

    ``path`` is the guarded file; symbolic links in it are followed once, here. The mark is a
    regular file beside it, ``<path>.fence``. ``timeout`` is how many seconds a call waits for
    another writer that is in the middle of a write. Then the call raises ``NoAnswer``, which is a
    ``TimeoutError``, and changes nothing. Other errors of the file system pass.

    A crash at any instant leaves the old or the new content, whole. It leaves a mark at least as
    high as the token that wrote the content: the mark is on disk before the file is replaced.

    New content is first written to a temporary file in the same folder. Its name is ``.zklock-``
    and random digits; it overwrites no other file, and no other file is linked to it. Errors and
    interrupts remove it. A killed process may leave one. A guard removes it at its first write, and
    at its first write after another one has changed the mark. An exception that a signal handler
    raises inside a call leaves the guard usable, and the file as after a crash.

    If the mark is removed and made again, writes that began under the old mark are shut out: they
    look at the new mark.

    A child made by ``os.fork`` or ``multiprocessing`` closes its copy of the lock at once.
    Programs started by ``subprocess`` or ``posix_spawn`` inherit no copy.

    Not guaranteed:

    - Writers that do not use the guard are not stopped.
    - A network file system is not protected if its ``flock`` or rename is not atomic between
      hosts.
    - The replaced file keeps its permission bits, not its owner, hard links or extended
      attributes.
    - A process that is paused inside ``write`` keeps others waiting. What it writes afterwards
      still comes before their writes.
    - A child that is forked by C code, and runs no other program, keeps the lock if its parent is
      killed inside ``write``.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 10.0) -> None:
        self._path = Path(path).resolve()
        if not self._path.name or self._path.is_dir():
            raise ValueError(f"not the path of a file: {path!r}")
        self._mark = self._path.with_name(self._path.name + ".fence")
        self._timeout = check_number(
            "timeout", timeout, "seconds", lambda it: it >= 0, "0 seconds or more"
        )
        digest = hashlib.blake2b(os.fsencode(self._path.name), digest_size=8).hexdigest()
        self._prefix = f".zklock-{digest}-"
        # The mark as the last call left it; None after a call that did not complete.
        self._known: _Identity | None = None

    @property
    def resource(self) -> str:
        """The absolute path of the guarded file."""
        return str(self._path)

    def create(self) -> None:
        """Make the mark, once; keep one that exists. The file itself is left as it is."""
        made = False
        while not made:
            temporary = self._temporary()
            try:
                with io.FileIO(temporary, "x") as fresh:
                    _write_durably(fresh, memoryview(NO_TOKEN.encode()))
                    # A writer may have removed it: it looks like one that a killed process left.
                    with contextlib.suppress(FileNotFoundError):
                        with contextlib.suppress(FileExistsError):
                            os.link(temporary, self._mark)
                        made = True
            finally:
                temporary.unlink(missing_ok=True)
        self._sync_directory()

    def claim(self, token: Fenced) -> None:
        """Advance the mark, and leave the file as it is; see ``Guard.claim``.

        Also raises ``NoAnswer`` if an earlier writer is not done within ``timeout`` seconds, and
        ``OSError``: then the mark may have advanced.
        """
        self._change(token_of(token), None)

    def write(self, data: bytes | bytearray | memoryview, token: Fenced) -> None:
        """Replace the content of the file with ``data``, unless ``token`` is stale.

        Raises ``StaleToken``, ``GuardUnusable`` or ``OSError``. After the first two nothing has
        changed. After ``OSError`` the file has its old or its new content.
        """
        self._change(token_of(token), memoryview(data).cast("B"))

    def highest(self) -> FencingToken | None:
        """Return the mark; ``None`` while no token has been seen."""
        while True:
            with self._open_mark() as mark:
                text = os.pread(mark.fileno(), 128, 0)
                if _is_at(mark, self._mark):
                    return parse_mark(self.resource, str(self._mark), text)

    def _change(self, token: FencingToken, content: memoryview | None) -> None:
        end = clock() + self._timeout
        while not self._attempt(token, content, end):
            pass

    # To put a file into place, a writer does three things in this order: it makes the temporary
    # file, it checks that the mark is the one it has locked, it renames. A writer that meets a
    # mark it does not know locks that mark and removes all temporary files. Now suppose that a
    # mark was removed and made again. The temporary files of the old mark's holder are older than
    # the new mark, so the new mark's first holder removes them, and the late renames fail.

    def _attempt(self, token: FencingToken, content: memoryview | None, end: float) -> bool:
        """Try once; False if the mark was removed meanwhile and everything must be tried again."""
        known, self._known = self._known, None
        with self._lock_mark(end) as mark:
            try:
                if _identity(mark) != known:
                    self._sweep()
                text = os.pread(mark.fileno(), 128, 0)
                seen = parse_mark(self.resource, str(self._mark), text)
                if admit(self.resource, token, seen):
                    return self._advance(token, content, mark)
                return self._put(content, mark)
            finally:
                _unlock(mark)

    def _advance(self, token: FencingToken, content: memoryview | None, mark: io.FileIO) -> bool:
        """Replace the mark, then the content.

        The new mark is locked before it gets its name: nobody else can lock it while the lock of
        the old mark still protects this write.
        """
        last_fork = _last_fork
        temporary = self._temporary()
        try:
            with _beside(temporary, self._mark) as fresh:
                _held.add(weakref.ref(fresh, _held.discard))
                fcntl.flock(fresh, fcntl.LOCK_EX)
                try:
                    text = memoryview(str(token).encode())
                    if last_fork is not _last_fork or not self._replace(
                        self._mark, temporary, fresh, text, mark
                    ):
                        return False
                    return self._put(content, fresh)
                finally:
                    _unlock(fresh)
        finally:
            temporary.unlink(missing_ok=True)

    def _put(self, content: memoryview | None, mark: io.FileIO) -> bool:
        if content is not None:
            temporary = self._temporary()
            try:
                with _beside(temporary, self._path) as fresh:
                    if not self._replace(self._path, temporary, fresh, content, mark):
                        return False
            finally:
                temporary.unlink(missing_ok=True)
        self._known = _identity(mark)
        return True

    def _replace(
        self, target: Path, temporary: Path, fresh: io.FileIO, content: memoryview, mark: io.FileIO
    ) -> bool:
        """Replace ``target`` with ``content`` while ``mark`` is the mark."""
        if not _is_at(mark, self._mark):
            return False
        _write_durably(fresh, content)
        try:
            temporary.replace(target)
        except FileNotFoundError:
            return False
        self._sync_directory()
        return True

    def _lock_mark(self, end: float) -> io.FileIO:
        """Return the mark, open and locked; it was not replaced since it was opened."""
        while True:
            last_fork = _last_fork
            mark = self._open_mark()
            try:
                _held.add(weakref.ref(mark, _held.discard))
                # A child that was forked meanwhile may have the lock without knowing.
                if _try_lock(mark) and _is_at(mark, self._mark) and last_fork is _last_fork:
                    return mark
                _unlock(mark)
                mark.close()
            except BaseException:
                mark.close()
                raise
            if clock() >= end:
                raise NoAnswer(
                    f"{self.resource}: another process has been writing for {self._timeout:g} s: "
                    "nothing has changed, try again"
                )
            time.sleep(_POLL)

    def _open_mark(self) -> io.FileIO:
        # FileIO opens and owns the descriptor in one step: no exception can come between.
        # _is_at finds out if it is a link. This check avoids waiting for a named pipe.
        try:
            if not stat.S_ISREG(self._mark.lstat().st_mode):
                raise unreadable(self.resource, str(self._mark), "something other than a file")
            return io.FileIO(self._mark, "r")
        except FileNotFoundError:
            raise missing(self.resource, str(self._mark)) from None

    def _temporary(self) -> Path:
        return self._path.with_name(self._prefix + secrets.token_hex(16))

    def _sweep(self) -> None:
        """Remove others' temporary files: their process is dead, or their mark is gone."""
        pattern = re.compile(re.escape(self._prefix) + "[0-9a-f]{32}")
        with os.scandir(self._path.parent) as entries:
            names = [entry.name for entry in entries]
        for name in filter(pattern.fullmatch, names):
            self._path.with_name(name).unlink(missing_ok=True)

    def _sync_directory(self) -> None:
        descriptor = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


_private = functools.partial(os.open, mode=0o600)


def _beside(temporary: Path, target: Path) -> io.FileIO:
    """Make the file that will replace ``target``, with the permissions of ``target``."""
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        return io.FileIO(temporary, "x")
    if not stat.S_ISREG(mode):  # such as a link: everybody may do everything with it
        return io.FileIO(temporary, "x")
    # At no time may more users open it than may open the target.
    fresh = io.FileIO(temporary, "x", opener=_private)
    try:
        os.fchmod(fresh.fileno(), stat.S_IMODE(mode))
    except BaseException:
        fresh.close()
        raise
    return fresh


def _write_durably(file: io.FileIO, view: memoryview) -> None:
    while view:
        view = view[os.write(file.fileno(), view) :]
    os.fsync(file.fileno())


def _try_lock(file: io.FileIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        if not raised_by_the_call(error):
            raise
        return False
    return True


def _unlock(file: io.FileIO) -> None:
    # Closing alone would not release the lock while a child forked meanwhile has the descriptor.
    fcntl.flock(file, fcntl.LOCK_UN)


def _identity(file: io.FileIO) -> _Identity:
    # An inode number is reused when its file is removed; the time of the last change then differs.
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _is_at(file: io.FileIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False


# All who inherit its descriptor have the lock of a file: so a forked child closes it.
_held: set[weakref.ref[io.FileIO]] = set()  # no WeakSet: an exception can strike in its code

_last_fork = object()


def _note_fork() -> None:
    global _last_fork  # noqa: PLW0603
    _last_fork = object()


def _close_in_child() -> None:
    for reference in list(_held):
        if (file := reference()) is not None:
            file.close()


os.register_at_fork(before=_note_fork, after_in_parent=_note_fork, after_in_child=_close_in_child)
