"""Handlers of shards for other processes: what they do is told by the files that they write."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zklock
from zklock.fencing import MemoryGuard


class Unreadable(Exception):
    """One that pickles, and does not unpickle."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class Unwritable(Exception):
    """One that does not pickle."""

    def __init__(self) -> None:
        super().__init__("it holds a lock")
        self.lock = threading.Lock()


@dataclass(frozen=True)
class Named:
    """Writes the shard's name, its token and whether it is held; then it waits to be told."""

    folder: str

    def __call__(self, shard: zklock.Shard) -> None:
        """Handle a shard."""
        file = Path(self.folder, f"{os.getpid()}")
        file.write_text(f"{shard.name} {shard.token} {shard.held}")
        file.rename(file.with_suffix(".done"))
        shard.should_stop.wait()


@dataclass(frozen=True)
class Handle:
    """What a shard's handler does, by the shard's number; by default it waits to be told.

    Every event is a file of the folder, ``<event>-<number>-<pid>-<token>``.
    """

    folder: str
    does: dict[int, str] = field(default_factory=dict)

    def __call__(self, shard: Any) -> Any:
        """Handle a shard."""
        what: Callable[[Any], Any] = getattr(self, self.does.get(shard.number, "waits"))
        return what(shard)

    def waits(self, shard: Any) -> None:
        """Wait to be told."""
        self.note("began", shard)
        shard.should_stop.wait()
        self.note("held" if shard.held else "lost", shard)

    def raises_unreadable(self, shard: Any) -> None:
        """Fail."""
        self.note("began", shard)
        raise Unreadable("one", "another")

    def is_refused(self, shard: Any) -> None:
        """Write to a resource that has seen a later holder's token, once the shard is lost."""
        self.note("began", shard)
        while shard.held:
            time.sleep(0.01)
        guard = MemoryGuard("report")
        guard.claim(zklock.FencingToken(shard.token.epoch + 1, 0))
        guard.claim(shard.token)

    def raises_unwritable(self, shard: Any) -> None:
        """Fail."""
        self.note("began", shard)
        raise Unwritable

    def raises_at_length(self, shard: Any) -> None:
        """Fail."""
        self.note("began", shard)
        raise ValueError("x" * 1_000_000)

    def returns_unwritable(self, shard: Any) -> Any:
        """Return what does not pickle."""
        self.note("began", shard)
        return threading.Lock()

    def exits(self, shard: Any) -> None:
        """End the process."""
        self.note("began", shard)
        os._exit(7)

    def insists(self, shard: Any) -> None:
        """Go on, whatever is told, until the file ``finish`` is there; note a loss."""
        signal.signal(signal.SIGTERM, lambda number, frame: self.note("termed", shard))
        self.note("began", shard)
        while not Path(self.folder, "finish").exists():
            if not shard.held:
                self.note("lost", shard)
            time.sleep(0.01)

    def becomes_nobody(self, shard: Any) -> None:
        """Become another user, where that is allowed, and wait to be told."""
        self.note("began", shard)
        if os.geteuid() == 0:
            os.setuid(65534)
        assert not shard.should_stop.is_set()
        shard.should_stop.wait()

    def leaves_a_child(self, shard: Any) -> None:
        """Fork, and end before the child does, which waits to be told that its shard is lost."""
        self.note("began", shard)
        if os.fork() == 0:
            with contextlib.suppress(BaseException):
                while shard.held and not Path(self.folder, "finish").exists():
                    time.sleep(0.01)
                self.note("child-lost", shard)
            os._exit(0)

    def note(self, event: str, shard: Any) -> None:
        """Write a file."""
        Path(self.folder, f"{event}-{shard.number}-{os.getpid()}-{shard.token}").touch()


def noted(folder: Path, event: str) -> dict[int, set[int]]:
    """Return the processes that have noted an event, by the number of the shard."""
    found: dict[int, set[int]] = {}
    for path in folder.glob(f"{event}-*"):
        number, pid, *_ = path.name.removeprefix(f"{event}-").split("-")
        found.setdefault(int(number), set()).add(int(pid))
    return found


def tokens(folder: Path, event: str, number: int) -> list[zklock.FencingToken]:
    """Return the tokens with which an event of a shard was noted."""
    names = [path.name.split("-", 3)[3] for path in folder.glob(f"{event}-{number}-*")]
    return sorted(map(zklock.FencingToken.parse, names))


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in {"Z", "X"}
