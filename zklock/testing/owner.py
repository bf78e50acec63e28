"""Names a process, so that another process can later tell whether it is gone."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Owner:
    """A process: machine, boot, process namespace, pid and start time.

    Start time and namespace are empty if there is no ``/proc``. Then a later process with the same
    pid counts as the same process.
    """

    machine: str
    boot: str
    namespace: str
    pid: int
    started: str

    @classmethod
    def current(cls) -> Owner:
        """Name the calling process."""
        pid = os.getpid()
        return cls(socket.gethostname(), _boot(), _namespace(), pid, _started(pid) or "")

    @classmethod
    def parse(cls, text: str) -> Owner:
        """Read what ``str()`` wrote; ``ValueError`` for anything else."""
        parts = text.split("|")
        if len(parts) != 5:
            raise ValueError(f"not an owner: {text!r}")
        machine, boot, namespace, pid, started = parts
        return cls(machine, boot, namespace, int(pid), started)

    def __str__(self) -> str:
        return "|".join((self.machine, self.boot, self.namespace, str(self.pid), self.started))

    def gone(self) -> bool:
        """Whether the process has certainly ended; ``False`` for a process not visible here."""
        here = Owner.current()
        if self.machine != here.machine:
            return False
        if self.boot != here.boot:
            return True
        return self.namespace == here.namespace and not _runs(self.pid, self.started)


def _runs(pid: int, started: str) -> bool:
    if _PROC.joinpath("self").exists():
        return _started(pid) == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _boot() -> str:
    return _read(_PROC / "sys/kernel/random/boot_id")


def _namespace() -> str:
    try:
        return os.readlink(_PROC / "self/ns/pid")  # noqa: PTH115 (its target is no path)
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    # proc(5): field 22 counted from 1. The second field, in brackets, may itself contain spaces.
    # A zombie (state Z) has ended already.
    fields = _read(_PROC / str(pid) / "stat").rpartition(")")[2].split()
    if not fields or fields[0] == "Z":
        return None
    return fields[19]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
