"""What becomes of a command of ``zklock run`` when something is done to it: by how much it is gone
before the next grant.

The command and what it starts note the time, again and again, in memory that is shared with this
process. So their last sign of life is known to the millisecond, however they end.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zklock
from tests.contract.support import boottime, freeze
from tests.contract.test_demo import parent_of
from zklock.cli.supervisor import children_of
from zklock.testing import wait_for
from zklock.testing.proxy import FaultProxy

PATIENCE = 120.0
PROCESSES = 2
_SLOT = struct.Struct("=dq")  # the last sign of life of a process, and its id

_LIVE = f"""
import mmap, os, signal, struct, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
slot = struct.Struct({_SLOT.format!r})
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
def live(number, pause):
    begin = number * slot.size
    while True:  # not pack_into(): it writes zeros first, and may be killed between the two
        life = slot.pack(time.clock_gettime(time.CLOCK_BOOTTIME), os.getpid())
        memory[begin : begin + slot.size] = life
        if pause:
            time.sleep(pause)
"""
COMMANDS = {
    "ignores SIGTERM": "live(0, 0.001)",
    "forks, and calls setsid": """
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    live(1, 0.001)
live(0, 0.001)
""",
    "spins": "live(0, 0)",
}


def _cut(run: Run) -> None:
    run.proxy.blackhole()


def _stop(run: Run) -> None:
    freeze(run.runner.pid)


def _kill(run: Run) -> None:
    os.kill(run.runner.pid, signal.SIGKILL)


def _kill_supervisor(run: Run) -> None:
    os.kill(run.supervisor, signal.SIGKILL)


def _cut_and_stop_supervisor(run: Run) -> None:
    os.kill(run.supervisor, signal.SIGSTOP)
    run.proxy.blackhole()


FAULTS: dict[str, Callable[[Run], None]] = {
    "the holder is cut off": _cut,
    "the runner is stopped": _stop,
    "the runner is killed": _kill,
    "the supervisor is killed": _kill_supervisor,
    "cut off, the supervisor stopped": _cut_and_stop_supervisor,
}


@dataclass(frozen=True)
class Run:
    """A ``zklock run`` whose command has begun."""

    runner: subprocess.Popen[bytes]
    supervisor: int
    proxy: FaultProxy
    memory: mmap.mmap

    def seen(self) -> list[tuple[float, int]]:
        """Return the last sign of life of each process of the command, and its id."""
        slots = [_SLOT.unpack_from(self.memory, at * _SLOT.size) for at in range(PROCESSES)]
        return [(at, pid) for at, pid in slots if pid]


@dataclass(frozen=True)
class End:
    """``margin``: seconds from the last sign of life until the next grant. ``alive`` at it: ids."""

    margin: float
    alive: list[int]
    after: float
    """Seconds from the fault to the next grant."""


@contextmanager
def begun(command: str, server: Any, path: str, timeout: float, folder: Path) -> Iterator[Run]:
    """Run a command under a lock, through a proxy of its own; end all of it in the end."""
    count = 1 + ("fork" in COMMANDS[command])
    with FaultProxy(server) as proxy, (folder / "lives").open("w+b") as file:
        file.truncate(mmap.PAGESIZE)
        memory = mmap.mmap(file.fileno(), 0)
        program = [sys.executable, "-I", "-S", "-c", _LIVE + COMMANDS[command], file.name]
        arguments = ["--hosts", proxy.hosts, "--session-timeout", str(timeout), path, "--"]
        runner = subprocess.Popen(
            [sys.executable, "-m", "zklock.cli", "run", *arguments, *program],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        run = Run(runner, 0, proxy, memory)
        try:
            wait_for(
                lambda: len(run.seen()) == count or runner.poll() is not None,
                PATIENCE,
                "the command does not begin",
            )
            supervisor = next(iter(children_of(runner.pid)), 0)
            run = Run(runner, supervisor, proxy, memory)
            yield run
        finally:
            if run.supervisor and parent_of(run.supervisor) == runner.pid:
                os.kill(run.supervisor, signal.SIGCONT)
            runner.kill()
            runner.wait()
            for _, pid in run.seen():
                if parent_of(pid) is not None:
                    os.kill(pid, signal.SIGKILL)


def end_of(
    command: str, fault: str, server: Any, client: Any, path: str, timeout: float, folder: Path
) -> End | None:
    """Do something to a run; wait for the next grant, and return how its command has ended.

    ``None`` if the machine was so busy that the lock was lost before anything was done.
    """
    with begun(command, server, path, timeout, folder) as run:
        lock = zklock.Lock(client, path)
        granted: list[float] = []
        is_granted = threading.Event()

        def wait() -> None:
            with lock:
                granted.append(boottime())
                is_granted.set()

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        wait_for(lambda: granted or len(lock.contenders()) == 2, PATIENCE, "nobody waits")
        at = boottime()
        if granted or run.runner.poll() is not None or not run.supervisor:
            return None
        FAULTS[fault](run)
        assert is_granted.wait(PATIENCE), "no next grant"
        seen = run.seen()
        alive = [pid for _, pid in seen if parent_of(pid) is not None]
        waiting.join(PATIENCE)
        return End(granted[0] - max(last for last, _ in seen), alive, granted[0] - at)
