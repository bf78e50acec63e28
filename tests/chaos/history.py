"""Histories: one file of JSON lines for each process, with times of the clock since boot.

The clock is the same for all processes of a machine. A line reaches the kernel in one write, so
that a process that is killed loses nothing that it noted, and at most tears its last line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from zklock.clock import clock


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, seen by ``source`` at ``at`` (seconds since boot)."""

    at: float
    source: str
    kind: str
    data: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.data[key]


class History:
    """Writes the history of one source. Safe to use from any thread."""

    def __init__(self, folder: Path, source: str) -> None:
        self.source = source
        path = folder / f"{source}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def note(self, kind: str, /, *, at: float | None = None, **data: Any) -> float:
        """Note an event, by default of this moment; return its time."""
        at = clock() if at is None else at
        line = json.dumps({"at": at, "kind": kind, **data}, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")
        return at

    def close(self) -> None:
        """Note no more."""
        os.close(self._file)


def load(folder: Path) -> list[Event]:
    """Return what all sources of a folder noted, in order of time."""
    events = []
    for path in sorted(folder.glob("*.jsonl")):
        *lines, torn = path.read_text().split("\n")
        del torn  # what follows the last newline
        for line in lines:
            data = json.loads(line)
            events.append(Event(data.pop("at"), path.stem, data.pop("kind"), data))
    return sorted(events, key=lambda event: event.at)
