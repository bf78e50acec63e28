"""What processes of a test have done: each writes lines into one file."""

from __future__ import annotations

import os
from pathlib import Path


def note(record: str | Path, *words: object) -> None:
    """Add a line of this process, in one write."""
    descriptor = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{' '.join(map(str, (os.getpid(), *words)))}\n".encode())
    os.close(descriptor)


def noted(record: Path) -> list[tuple[int, *tuple[str, ...]]]:
    """Return the lines: the process, and its words."""
    lines = record.read_text().splitlines() if record.exists() else []
    return [(int(pid), *words) for pid, *words in map(str.split, lines)]


def terms(record: Path) -> list[tuple[int, str]]:
    """Return which process has worked, with which token, in order, each term once."""
    found = [(pid, words[0]) for pid, *words in noted(record)]
    return [term for at, term in enumerate(found) if at == 0 or found[at - 1] != term]
