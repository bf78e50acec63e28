"""By how much the command of ``zklock run`` is gone before the next grant, whatever dies.

``python -m tests.bench.bench_run [--runs N] [--timeout SECONDS] [--tick MS] [--at-once N]
[--fault NAME] [--command NAME]``

A command runs under a lock, and another contender waits for it. Something is done to the holder.
Counted are the seconds from the last sign of life of the command, or of anything that it started,
until the next grant. The default grace. One server. The runs of all faults and commands are mixed,
so that the load is the same for each.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import zklock
from tests.contract.promise import COMMANDS, FAULTS, End, end_of
from zklock.testing import ZooKeeperServer


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--timeout", type=float, default=4.0)
    parser.add_argument("--tick", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1, help="of the order of the runs")
    parser.add_argument("--fault", choices=FAULTS, action="append")
    parser.add_argument("--command", choices=COMMANDS, action="append")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    kinds = list(itertools.product(options.fault or FAULTS, options.command or COMMANDS))
    runs = kinds * options.runs
    random.Random(options.seed).shuffle(runs)
    ends: dict[tuple[str, str], list[End]] = {kind: [] for kind in kinds}
    again = itertools.count()
    with (
        ZooKeeperServer(tick_time=options.tick) as server,
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(options.at_once) as workers,
    ):
        client = zklock.connect(server.hosts, 30.0)

        def one(kind: tuple[str, str]) -> None:
            fault, command = kind
            own = Path(tempfile.mkdtemp(dir=folder))
            path = f"/run-{own.name}"
            while True:
                end = end_of(command, fault, server, client, path, options.timeout, own)
                if end is not None:
                    ends[kind].append(end)
                    return
                next(again)

        for done, _ in enumerate(workers.map(one, runs), 1):
            print(f"{done} of {len(runs)}", end="\r", file=sys.stderr, flush=True)
        client.stop()
        client.close()
    print("| what happens | the command | runs | alive at the next grant | least | median |")
    print("|---|---|---|---|---|---|")
    margins = {kind: sorted(end.margin for end in found) for kind, found in ends.items()}
    for kind, found in margins.items():
        alive = sum(bool(end.alive) for end in ends[kind])
        least, median = (1000 * it for it in (found[0], statistics.median(found)))
        row = (*kind, len(found), alive, f"{least:.0f} ms", f"{median:.0f} ms")
        print("|", " | ".join(map(str, row)), "|")
    print(f"\nruns that lost the lock before the fault, and were repeated: {next(again)}")
    if options.json:
        told = {": ".join(kind): found for kind, found in margins.items()}
        options.json.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
