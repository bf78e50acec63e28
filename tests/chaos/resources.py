"""What the processes of a run take, and the servers keep: a line for each, to see what grows."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from tests.bench.bench_rest import ancestors
from zklock.testing import Ensemble, NotServing


def lines(ensemble: Ensemble) -> Iterator[str]:
    """Yield a line for this process, for each that it has started, and for each server."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    for pid in sorted(parents):
        if os.getpid() in {pid, *ancestors(pid, parents)}:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                yield _line(Path(f"/proc/{pid}"))
    for server in ensemble.servers:
        with contextlib.suppress(OSError, NotServing):
            yield f"{server.hosts}: {server.status().node_count} znodes"


def _line(process: Path) -> str:
    """Return the line of a process, which its command line names."""
    command = (process / "cmdline").read_text().replace("\0", " ")
    named = re.search(r'"(?:name|identity)": ?"([^"]+)"', command)
    name = named[1] if named else Path(command.split(" ")[0]).name
    known = dict(
        line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line
    )
    resident = int(known.get("VmRSS", "0").split()[0]) / 1024
    descriptors = len(os.listdir(process / "fd"))  # noqa: PTH208 - only their number
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return (
        f"{name} {process.name}: {resident:.1f} MiB, {known['Threads'].strip()} threads, "
        f"{descriptors} descriptors, {seconds:.1f} s of processor time"
    )
