"""What benchmarks have found, as JSON: the figures, and what they were measured with and on.

``python -m tests.bench.bench_lock --json FILE`` writes such a file. docs/benchmarks.md shows those
in ``tests/bench/results``, in tables (docs/site/figures.py) and plots (docs/site/pictures.py).
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import zklock

DIGITS = 4


def rounded(value: Any) -> Any:
    """Return the figures with as many digits as mean something."""
    match value:
        case float():
            return float(f"{value:.{DIGITS}g}")
        case dict():
            return {key: rounded(each) for key, each in value.items()}
        case list() | tuple():
            return [rounded(each) for each in value]
    return value


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median and the ends of many figures, for files that are to stay small."""
    hundredths = statistics.quantiles(seconds, n=100)
    return {f"p{each}": hundredths[each - 1] for each in (10, 50, 90, 99)}


def versions() -> dict[str, str]:
    """Return the versions of what runs in this process."""
    return {
        "zklock": zklock.__version__,
        "kazoo": version("kazoo"),
        "Python": platform.python_version(),
    }


def machine() -> dict[str, object]:
    """Return what kind of machine this is."""
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "system": platform.system(),
    }


def measured_with() -> str:
    """Return the versions and the machine in one line, to be printed."""
    found = {**versions(), **machine()}
    return ", ".join(f"{name} {value}" for name, value in found.items())


def write(file: Path, conditions: dict[str, object], figures: object) -> None:
    """Write the figures with the conditions under which they were measured."""
    found = {
        "day": datetime.now(UTC).date().isoformat(),
        "conditions": conditions,
        "versions": versions(),
        "machine": machine(),
        "figures": figures,
    }
    file.write_text(json.dumps(rounded(found), indent=1, ensure_ascii=False) + "\n")
