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
        found = []
        for each in given:
            found.append(Worker(play, *each))
            stack.callback(found[-1].close)
        yield found


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
    parents: dict[int, int] = {}
    taken: dict[int, tuple[float, float]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            head, _, tail = stat.read_text().rpartition(")")
            fields, pid = tail.split(), int(stat.parent.name)
            parents[pid] = int(fields[1])
            if head.endswith("(java"):
                seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                taken[pid] = seconds, int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    ours = [each for pid, each in taken.items() if os.getpid() in ancestors(pid, parents)]
    return sum(seconds for seconds, _ in ours), sum(memory for _, memory in ours)


def ancestors(pid: int, parents: dict[int, int]) -> set[int]:
    """Return the processes that have started this one, the nearest and the farthest."""
    found: set[int] = set()
    while (pid := parents.get(pid, 0)) and pid not in found:
        found.add(pid)
    return found
