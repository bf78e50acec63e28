"""A guard for one local file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from zklock.fencing.guard import NO_TOKEN, Fenced, admit, missing, parse_mark, token_of
from zklock.token import FencingToken

_POLL = 0.005


class FileGuard:
    """Fenced, atomic replacement of one file on a local file system.

    ``path`` is the guarded file; symbolic links in it are followed once, here. The mark is kept
    beside it in ``<path>.fence``. ``timeout`` is how many seconds a call waits for another
    writer that is in the middle of a write; then it raises ``TimeoutError``, which is an
    ``OSError`` and changes nothing.

    A crash at any instant leaves the old or the new content, whole, and a mark at least as high
    as the token that wrote it: the mark is on disk before the file is replaced.

    Not guaranteed: writers that do not use the guard are not stopped; network file systems whose
    ``flock`` or rename is not atomic between hosts are not protected; the replaced file keeps its
    permission bits, not its owner, hard links or extended attributes; a process that is paused
    inside ``write`` keeps others waiting, but what it then writes still comes before them.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 10.0) -> None:
        self._path = Path(path).resolve()
        if not self._path.name:
            raise ValueError(f"not the path of a file: {path!r}")
        self._mark = self._beside(".fence")
        self._timeout = timeout

    @property
    def resource(self) -> str:
        """The absolute path of the guarded file."""
        return str(self._path)

    def create(self) -> None:
        """Make the mark, once; keep one that exists. The file itself is left as it is."""
        fresh = self._beside(f".fence.{os.getpid()}.{time.monotonic_ns()}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            _write_durably(descriptor, NO_TOKEN.encode())
            with contextlib.suppress(FileExistsError):
                os.link(fresh, self._mark)
        finally:
            os.close(descriptor)
            fresh.unlink()
        self._sync_directory()

    def claim(self, token: Fenced) -> None:
        """Advance the mark; see ``Guard.claim``."""
        with self._locked(token_of(token)):
            pass

    def write(self, data: bytes | bytearray | memoryview, token: Fenced) -> None:
        """Replace the content of the file by ``data``, unless ``token`` is stale.

        Raises ``StaleToken``, ``GuardUnusable`` or ``OSError``; after the first two nothing has
        changed, after ``OSError`` the file has its old or its new content.
        """
        content = memoryview(data).cast("B")
        with self._locked(token_of(token)):
            temporary = self._beside(".new")
            # Only the holder of the mark's lock touches this name; a crash may have left one.
            descriptor = os.open(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666
            )
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.fchmod(descriptor, stat.S_IMODE(self._path.stat().st_mode))
                _write_durably(descriptor, content)
            finally:
                os.close(descriptor)
            temporary.replace(self._path)
            self._sync_directory()

    def highest(self) -> FencingToken | None:
        """Return the mark; ``None`` while no token has been seen."""
        try:
            text = self._mark.read_bytes()
        except FileNotFoundError:
            raise missing(self.resource, str(self._mark)) from None
        return parse_mark(self.resource, str(self._mark), text)

    def _beside(self, suffix: str) -> Path:
        return self._path.with_name(self._path.name + suffix)

    @contextlib.contextmanager
    def _locked(self, token: FencingToken) -> Iterator[None]:
        """Hold the mark's lock, with the mark at ``token``."""
        with contextlib.ExitStack() as locks:
            locks.callback(_unlock, descriptor := self._lock_mark())
            mark = parse_mark(self.resource, str(self._mark), os.pread(descriptor, 128, 0))
            if admit(self.resource, token, mark):
                locks.callback(_unlock, self._replace_mark(token))
            yield

    def _lock_mark(self) -> int:
        """Return the open mark, locked, and not replaced since it was opened."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                descriptor = os.open(self._mark, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise missing(self.resource, str(self._mark)) from None
            try:
                if _try_lock(descriptor) and _is_at(descriptor, self._mark):
                    return descriptor
            except BaseException:
                _unlock(descriptor)
                raise
            _unlock(descriptor)
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"{self.resource}: another process has been writing for {self._timeout} s"
                )
            time.sleep(_POLL)

    def _replace_mark(self, token: FencingToken) -> int:
        """Put ``token`` into the mark and return it open and locked.

        The new file is locked before it gets the mark's name, so that nobody can lock it while
        the old one's lock still protects this write.
        """
        temporary = self._beside(".fence.new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.fchmod(descriptor, stat.S_IMODE(self._mark.stat().st_mode))
            _write_durably(descriptor, str(token).encode())
            temporary.replace(self._mark)
            self._sync_directory()
        except BaseException:
            _unlock(descriptor)
            raise
        return descriptor

    def _sync_directory(self) -> None:
        descriptor = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_durably(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlock(descriptor: int) -> None:
    # Closing alone would not release it while a child forked meanwhile has the descriptor.
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
