"""What the benchmarks have measured, and its tables in docs/benchmarks.md.

``make figures`` measures, and writes ``tests/bench/results``. The tables and the plots come from
those files, so a page and a picture cannot tell of two different runs.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "tests" / "bench" / "results"
KINDS = {"election": "LeaderElection", "pool": "WorkerPool"}

Measured: TypeAlias = dict[str, Any]


def measured(name: str) -> Measured:
    """Return what a benchmark has written."""
    found: Measured = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def measured_with(result: Measured) -> str:
    """Return the day, the versions and the kind of machine."""
    versions, machine = result["versions"], result["machine"]
    server = result["conditions"].get("ZooKeeper")
    parts = [result["day"], f"Python {versions['Python']}", f"kazoo {versions['kazoo']}"]
    parts += [f"ZooKeeper {server}"] if server else []
    return ", ".join([*parts, f"{machine['cores']} {machine['architecture']} cores"])


def table(
    result: Measured, head: Sequence[str], rows: Sequence[Sequence[str]], more: str = ""
) -> str:
    """Return the lines of a table, with what it was measured with."""
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join([f"Measured: {measured_with(result)}.{more}", "", *lines, ""])


LOCKS = (
    ("kazoo's `Lock`", "3 + 1", "kazoo"),
    ("zklock's `Lock`", "1 + 1", "zklock"),
    ("`zklock.aio`'s `Lock`", "1 + 1", "asyncio"),
    ("Curator's `InterProcessMutex`, warm JVM", "2 + 1", "curator"),
    ("the floor", "1 + 1", "floor"),
)
"""Who takes a lock: its title, its round trips, and its name in the file."""
BACKENDS = {"container": "in containers", "java": "in local Java"}
NONE = "–"


def over(figures: dict[str, Any], name: str, peer: str) -> str:
    """Return a figure as a multiple of the peer's, if both were measured."""
    if name not in figures or peer not in figures:
        return NONE
    ours, theirs = (
        each if isinstance(each, float) else each["p50"] for each in (figures[name], figures[peer])
    )
    return f"{ours / theirs:.2f}"


def lock_table() -> str:
    """Return the times and the rates of locks, as multiples of kazoo's, and the processor time."""
    result = measured("lock")
    found = result["figures"]
    places, crowds = ("one machine", "over a network"), ("2 processes", "8 processes")
    head = ["", "round trips", *(f"time, {each}" for each in places)]
    head += [*(f"hand-offs, {each}" for each in crowds), "processor time, µs"]
    here = found["one machine"]
    rows = [
        [
            title,
            trips,
            *(over(found[each], name, "kazoo") for each in (*places, *crowds)),
            f"{here[name]['processor'] * 1e6:.0f}" if name in here else NONE,
        ]
        for title, trips, name in LOCKS
    ]
    reads = " and ".join(f"{found[each]['read'] * 1e3:.1f} ms ({each})" for each in places)
    curator = result["conditions"].get("Curator")
    peer = f" Curator {curator}." if curator else ""
    return table(result, head, rows, f"{peer} A read took {reads}.{missing(result)}")


def spread(figures: dict[str, Any], name: str) -> str:
    """Return the median and the ends of a time in microseconds, if it was measured."""
    if name not in figures:
        return NONE
    least, middle, most = (figures[name][each] * 1e6 for each in ("p10", "p50", "p90"))
    return f"{middle:.0f} ({least:.0f}–{most:.0f})"


def disk_table(name: str, place: str) -> str:
    """Return the times in memory, and with the log forced to the disk."""
    result = measured(name)
    conditions = result["conditions"]
    places = [result["figures"][place], result["figures"][f"{place}, disk"]]
    rows = [
        [title, over(places[0], who, "kazoo"), *(spread(found, who) for found in places)]
        for title, _, who in LOCKS
        if any(who in found for found in places)
    ]
    ran = BACKENDS.get(conditions["backend"], conditions["backend"])
    told = f" ZooKeeper ran {ran}."
    head = ["", "memory, × kazoo", "memory, µs", "disk, µs"]
    return table(result, head, rows, told + missing(result))


def missing(result: Measured) -> str:
    """Return which peers were missing."""
    names = ", ".join(result["conditions"].get("missing", {}))
    return f" Missing: {names}." if names else ""


def failover_table() -> str:
    """Return the seconds until another one works: the median, the least and the most."""
    result = measured("failover")

    def cell(seconds: list[float]) -> str:
        return f"{statistics.median(seconds):.3f} ({min(seconds):.3f}–{max(seconds):.3f})"

    rows = [
        [f"`{KINDS[kind]}`, {cause}", cell(fronts["threads"])]
        for kind, causes in result["figures"].items()
        for cause, fronts in causes.items()
    ]
    return table(result, ["", "seconds"], rows)


def fencing_table() -> str:
    """Return the medians of writes without a guard and with one."""
    result = measured("fencing")
    rows = [
        [store, f"{each['unguarded']:.4g}", f"{each['guarded']:.4g}", f"{ratio(each):.2f}"]
        for store, each in result["figures"].items()
    ]
    return table(result, ["store", "unguarded, µs", "guarded, µs", "ratio"], rows)


def ratio(found: dict[str, float]) -> float:
    """Return how many times as long a guarded write takes."""
    return found["guarded"] / found["unguarded"]


TABLES = {
    "lock": lock_table,
    "disk": lambda: disk_table("lock", "one machine"),
    "ensemble": lambda: disk_table("ensemble", "3 nodes"),
    "failover": failover_table,
    "fencing": fencing_table,
}


def block(name: str) -> re.Pattern[str]:
    """Return what finds a table in the page, between its two comments."""
    return re.compile(rf"(<!-- {name}: begin -->\n)(.*?)(<!-- {name}: end -->)", re.DOTALL)


def write() -> None:
    """Put the tables into the page."""
    text = PAGE.read_text()
    for name, made in TABLES.items():
        found = block(name).search(text)
        if found is None:
            raise ValueError(f"{PAGE}: there is no <!-- {name}: begin --> with its end")
        text = text[: found.start(2)] + made() + text[found.end(2) :]
    PAGE.write_text(text)
