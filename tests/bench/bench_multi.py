"""A MultiLock of free locks beside one lock, in one run: ``python -m tests.bench.bench_multi``.

Acquire + release by one thread, in blocks that alternate between the two, on one client each: the
median time, the processor time, and the requests on the wire. Once as the machine is, and once with
a network in between, that is, a proxy that delivers everything with a delay.
"""

from __future__ import annotations

import argparse
import json
import statistics
import uuid
from contextlib import ExitStack

import zklock
from tests.bench.bench_lock import DELAY, Cycles, alternated
from tests.bench.peers import Block, block_of, connected, cycle_of
from zklock.testing import FaultProxy, ZooKeeperServer
from zklock.testing.frames import FrameKind

LOCKS = 5


def cycles(hosts: str, stack: ExitStack) -> dict[str, Block]:
    """Return blocks that acquire and release one lock, and several."""
    made: dict[str, Block] = {}
    for name, count in (("one lock", 1), (f"MultiLock of {LOCKS}", LOCKS)):
        client = connected("zklock", hosts, stack)
        locks = [zklock.Lock(client, f"/bench-{uuid.uuid4().hex}") for _ in range(count)]
        made[name] = block_of(cycle_of(locks[0] if count == 1 else zklock.MultiLock(locks)))
    return made


def measured(hosts: str, blocks: int, size: int) -> dict[str, Cycles]:
    """Return what the cycles of each took."""
    with ExitStack() as stack:
        return alternated(cycles(hosts, stack), blocks, size)


def requests(proxy: FaultProxy) -> dict[str, list[str]]:
    """Return the requests of one cycle of each."""
    found = {}
    with ExitStack() as stack:
        for name, block in cycles(proxy.hosts, stack).items():
            block(3)
            mark = proxy.mark()
            block(1)
            found[name] = [
                frame.op
                for frame in proxy.frames
                if frame.number > mark and frame.kind is FrameKind.REQUEST
            ]
    return found


def main() -> None:
    """Measure, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--size", type=int, default=200, help="cycles of a block")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report: dict[str, dict[str, dict[str, float]]] = {}
    with ZooKeeperServer(tick_time=2000) as server, FaultProxy(server.hosts) as proxy:
        for where, hosts, size in (
            ("as it is", server.hosts, options.size),
            (f"{2000 * DELAY:g} ms away", proxy.hosts, options.size // 4),
        ):
            if hosts == proxy.hosts:
                asked = requests(proxy)
                proxy.delay(DELAY)
            took = measured(hosts, options.blocks, size)
            one = statistics.median(took["one lock"].times)
            report[where] = {
                name: {
                    "microseconds": 1e6 * statistics.median(each.times),
                    "processor": 1e6 * statistics.median(each.busy),
                    "times one lock": statistics.median(each.times) / one,
                }
                for name, each in took.items()
            }
    if options.json:
        print(json.dumps({"times": report, "requests": asked}, indent=2))
        return
    for name, ops in asked.items():
        print(f"{name}: {len(ops)} requests: {' '.join(ops)}")
    for where, rows in report.items():
        for name, row in rows.items():
            print(
                f"{where:12} {name:16} {row['microseconds']:7.0f} µs "
                f"{row['processor']:7.0f} µs CPU {row['times one lock']:5.2f} × one lock"
            )


if __name__ == "__main__":
    main()
