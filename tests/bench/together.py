"""What benchmarks share: processes that play a part, and what the servers take."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from zklock.cli.supervisor import children_of

LIMIT = 600.0
"""The most seconds that a process may take for its next word."""

Play: TypeAlias = Callable[..., None]
"""A function of a module: what a process does, with its end of the pipe and what else is given."""


def new_path() -> str:
    """Return a path that nobody has used."""
    return f"/bench-{uuid.uuid4().hex}"


class Worker:
    """A process that plays a part."""

    def __init__(self, play: Play, *given: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=play, args=(theirs, *given))
        self.process.start()
        theirs.close()

    def hear(self) -> Any:
        """Return what it says next."""
        if not self.pipe.poll(LIMIT):
            raise TimeoutError("a process says nothing")
        return self.pipe.recv()

    def ask(self, *order: Any) -> Any:
        """Give an order, and return the answer."""
        self.pipe.send(order)
        return self.hear()

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


@contextmanager
def workers(play: Play, given: Iterable[tuple[Any, ...]]) -> Iterator[list[Worker]]:
    """Run a process for each of what is given."""
    with ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(Worker(play, *each))) for each in given]


def begin(pipe: Connection) -> None:
    """Say that this process is ready, and wait for the others."""
    pipe.send("ready")
    pipe.recv()


def together(play: Play, count: int, *given: Any) -> list[Any]:
    """Return what so many processes tell that begin at one time: see ``begin``."""
    with workers(play, [given] * count) as found:
        for each in found:
            assert each.hear() == "ready"
        for each in found:
            each.pipe.send("go")
        return [each.hear() for each in found]


def resident() -> float:
    """Return the KiB of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


def java() -> tuple[float, float]:
    """Return the seconds of processor time, and the MiB of memory, of all Java started here."""
    seconds = memory = 0.0
    for pid in below(os.getpid()):
        with contextlib.suppress(OSError):
            head, _, tail = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
            if head.endswith("(java"):
                fields = list(map(int, tail.split()[1:]))
                seconds += sum(fields[10:12]) / os.sysconf("SC_CLK_TCK")
                memory += fields[20] * os.sysconf("SC_PAGE_SIZE") / 2**20
    return seconds, memory


def below(pid: int) -> set[int]:
    """Return the processes that this one has started, and those that they have."""
    children = children_of(pid)
    return children.union(*map(below, children))
