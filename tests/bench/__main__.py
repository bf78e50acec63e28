"""``python -m tests.bench CASE [NAME=VALUE…] [--json FILE]``: measure, and print what was found.

Ratios are to the peer that is named. Compare only ratios of one run. ``--help`` lists the cases,
and what can be said of each.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from pathlib import Path

from tests.bench import commands, guards, locks, members, scale
from tests.bench.results import Run, measured_with

CASES: dict[str, Callable[..., None]] = {
    "lock": locks.lock,
    "kinds": locks.kinds,
    "fencing": guards.fencing,
    "failover": members.failover,
    "pool": members.pool,
    "waiters": scale.waiters,
    "rest": scale.rest,
    "locks": scale.many_locks,
    "start": commands.start,
    "run": commands.run,
}
"""Each writes into its first argument; the others are what can be said of it."""


def main() -> None:
    """Run a case."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__,
        epilog="\n\n".join(f"{name}: {inspect.getdoc(case)}" for name, case in CASES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("case", choices=CASES, metavar="CASE")
    parser.add_argument("said", nargs="*", metavar="NAME=VALUE", help="see the code of the case")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    chosen = parser.parse_args()
    case = CASES[chosen.case]
    _, *options = inspect.signature(case).parameters.values()
    said = {each.name: each.default for each in options}
    for name, value in (each.split("=") for each in chosen.said):
        said[name] = type(said[name])(value)
    print(measured_with())
    run = Run(dict(said))
    case(run, **said)
    if chosen.json:
        run.write(chosen.json)


if __name__ == "__main__":
    main()
