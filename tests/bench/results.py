"""What benchmarks have found, as JSON: the figures, and what they were measured with and on.

``python -m tests.bench lock --json FILE`` writes such a file. docs/benchmarks.md shows those
in ``tests/bench/results``, in tables (docs/site/figures.py) and plots (docs/site/pictures.py).
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
from collections.abc import Mapping, Sequence
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


VERSIONS = {
    "zklock": zklock.__version__,
    "kazoo": version("kazoo"),
    "Python": platform.python_version(),
}
MACHINE = {
    "cores": os.cpu_count(),
    "architecture": platform.machine(),
    "system": platform.system(),
}


def measured_with() -> str:
    """Return the versions and the machine in one line, to be printed."""
    return ", ".join(f"{name} {value}" for name, value in {**VERSIONS, **MACHINE}.items())


class Run:
    """The figures of one case, and the conditions under which they are measured."""

    def __init__(self, conditions: dict[str, object]) -> None:
        self.conditions = conditions
        self.figures: dict[str, Any] = {}

    def note(self, what: str, found: Mapping[str, Any], peer: str = "") -> None:
        """Keep figures, and print them; those of a peer as 1."""
        self.figures[what] = {**self.figures.get(what, {}), **found}
        print(f"{what}:")
        for name, each in found.items():
            ratio = f"{middle(each) / middle(found[peer]):8.3g} x {peer}" if peer in found else ""
            spread = f"  {min(each):.4g} to {max(each):.4g}" if isinstance(each, list) else ""
            print(f"  {name:48}{middle(each):12.4g}{ratio}{spread}", flush=True)

    def write(self, file: Path) -> None:
        """Write the figures with the conditions under which they were measured."""
        found = {
            "day": datetime.now(UTC).date().isoformat(),
            "conditions": self.conditions,
            "versions": VERSIONS,
            "machine": MACHINE,
            "figures": self.figures,
        }
        text = json.dumps(rounded(found), indent=1, ensure_ascii=False)
        file.write_text(re.sub(r"\[[^][{}]*\]", lambda it: " ".join(it[0].split()), text) + "\n")


def middle(figure: Any) -> float:
    """Return the median of figures; of quantiles, that one."""
    match figure:
        case {"p50": float(median)}:
            return median
        case dict():
            return middle(next(iter(figure.values())))
        case list():
            return float(statistics.median(figure))
    return float(figure)
