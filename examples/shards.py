"""Two workers share six shards; one leaves, the other takes what it had."""

import os
import sys
import time
from collections.abc import Callable

import zklock


def handle(shard: zklock.Shard) -> None:
    """Work on a shard until it is to be given up."""
    shard.should_stop.wait()


def wait_until(done: Callable[[], bool]) -> None:
    """Wait for a condition, half a minute at most."""
    until = time.monotonic() + 30
    while not done() and time.monotonic() < until:
        time.sleep(0.05)


def main() -> None:
    """Run both workers in this process, each with a client of its own."""
    hosts = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ZKLOCK_HOSTS", "127.0.0.1:2181")
    with zklock.connect(hosts) as client, zklock.connect(hosts) as other:
        one, two = (
            zklock.WorkerPool(each, "/examples/pool", shards=6, identity=name, handler=handle)
            for each, name in ((client, "one"), (other, "two"))
        )
        with one:
            with two:
                wait_until(lambda: len(one.owned()) == len(two.owned()) == 3)
                print("shared:", len(one.owned()), "and", len(two.owned()))
            wait_until(lambda: len(one.owned()) == 6)
            print("one has all of them:", sorted(one.owned()))


if __name__ == "__main__":
    main()
