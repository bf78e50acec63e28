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


def options(case: Callable[..., None]) -> dict[str, inspect.Parameter]:
    """Return what can be said of a case."""
    _, *found = inspect.signature(case).parameters.values()
    return {each.name: each for each in found}


def listed() -> str:
    """Return the cases as lines."""
    return "\n".join(
        f"  {name:10}{(inspect.getdoc(case) or '').splitlines()[0]}\n"
        f"  {'':10}{' '.join(f'{each.name}={each.default}' for each in options(case).values())}"
        for name, case in CASES.items()
    )


def main() -> None:
    """Run a case."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__,
        epilog=listed(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("case", choices=CASES, metavar="CASE")
    parser.add_argument("said", nargs="*", metavar="NAME=VALUE")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    chosen = parser.parse_args()
    case = CASES[chosen.case]
    said = {name: option.default for name, option in options(case).items()}
    for each in chosen.said:
        name, _, value = each.partition("=")
        if name not in said:
            parser.error(f"{chosen.case} knows no {name}")
        said[name] = type(said[name])(value)
    print(measured_with())
    run = Run(dict(said))
    case(run, **said)
    if chosen.json:
        run.write(chosen.json)


if __name__ == "__main__":
    main()
