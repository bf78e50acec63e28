"""Writes ``results.json`` into docs/which-lock-in-python.md: ``python -m tests.compare.page``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "which-lock-in-python.md"
RESULTS = Path(__file__).with_name("results.json")
BEGIN, END = "<!-- compare: begin -->\n", "<!-- compare: end -->\n"
HEADS = {
    "a": "(a) taken",
    "b": "(b) killed",
    "c": "(c) paused",
    "d": "(d) cut off",
    "e": "(e) store away",
    "f": "(f) token",
    "g": "(g) order",
}
FINDINGS = {
    ("ToozZookeeper", "c"): "tooz-acquired",
    ("Aiozk", "e"): "aiozk-watch-after-reconnect",
    ("RedisPy", "g"): "redis-lock-shared-by-tasks",
    ("PythonRedisLock", "e"): "python-redis-lock-renewal",
    ("PortalockerRedis", "d"): "portalocker-redis-interrupts-main",
    ("Portalocker", "b"): "portalocker-kept-by-pool-workers",
    ("RedisPy", "b"): "redis-cancelled-acquire",
    ("RedlockNg", "a"): "redlock-ng-with-runs-unlocked",
    ("Sherlock", "c"): "sherlock-locked-for-another",
    ("Cashews", "e"): "cashews-lock-without-redis",
    ("Aiocache", "a"): "aiocache-redlock",
    ("FilelockLease", "c"): "filelock-lease-after-pause",
    ("Fasteners", "g"): "lock-files-two-kinds",
    ("Oslo", "g"): "oslo-fair-beside-plain",
    ("PostgresByHand", "g"): "postgres-advisory-lock-pools",
    ("MariaDbByHand", "a"): "mariadb-get-lock-forever",
    ("Etcd3gw", "a"): "etcd3gw-with-lock",
    ("NatsByHand", "b"): "nats-kv-expired-key",
    ("Dask", "c"): "dask-lock-late-release",
}
"""Where the findings say more of a cell."""


def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text())
    return found


def table() -> str:
    """Return the lines between the two comments: the day, the cells, and how each lock was used."""
    found = results()
    lines = [f"Played on {found['day']}.", "", "| | " + " | ".join(HEADS.values()) + " |"]
    lines.append("|---" * (len(HEADS) + 1) + "|")
    for name, row in found["rows"].items():
        if "not run" in row:
            cells = [f"not run: {row['not run']}", *[""] * (len(HEADS) - 1)]
        else:
            cells = [cell_of(name, letter, row["cells"][letter]) for letter in HEADS]
        lines.append(f"| {row['lock']} | " + " | ".join(cells) + " |")
    lines += ["", "| | used as | versions |", "|---|---|---|"]
    for row in found["rows"].values():
        if "not run" not in row:
            lines.append(f"| {row['lock']} | {row['made']} | {', '.join(row['versions'])} |")
    return "\n".join(lines) + "\n"


def cell_of(name: str, letter: str, cell: dict[str, Any]) -> str:
    """Return the text of a cell: what was seen, and the finding that says more."""
    seen = " *or* ".join(f"{each['mark']} {each['says']}" for each in (cell, *cell.get("or", ())))
    finding = FINDINGS.get((name, letter))
    return f"{seen} ([finding](../findings/{finding}.sh))" if finding else seen


def parts() -> tuple[str, str, str]:
    """Return what the page has before the table, the table, and what it has after it."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    shown, _, after = rest.partition(END)
    return before, shown, after


if __name__ == "__main__":
    head, _, tail = parts()
    PAGE.write_text(head + BEGIN + table() + END + tail)
