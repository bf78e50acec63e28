"""Two processes share six shards; one is told to end (SIGTERM), the other takes what it had.

A process that is killed instead keeps its shards until its session ends.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import zklock

PATH = "/examples/pool"


def handle(shard: zklock.Shard) -> None:
    """Work on a shard until it is to be given up."""
    shard.should_stop.wait()


def worker(hosts: str) -> None:
    """Be one process, until it is told to end."""
    ended: list[int] = []  # a plain flag: an Event could wait for the thread that is interrupted
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    with (
        zklock.connect(hosts) as client,
        zklock.WorkerPool(client, PATH, shards=6, identity="two", handler=handle),
    ):
        while not ended:
            time.sleep(0.05)


def wait_until(done: Callable[[], bool]) -> None:
    """Wait for a condition, half a minute at most."""
    until = time.monotonic() + 30
    while not done() and time.monotonic() < until:
        time.sleep(0.05)


def main() -> None:
    """Be a worker beside another process, and end that one."""
    hosts = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ZKLOCK_HOSTS", "127.0.0.1:2181")
    other = subprocess.Popen([sys.executable, __file__, hosts, "worker"])
    try:
        with (
            zklock.connect(hosts) as client,
            zklock.WorkerPool(client, PATH, shards=6, identity="one", handler=handle) as one,
        ):

            def shared() -> dict[str, int]:
                return {member.identity: member.owned for member in one.members()}

            wait_until(lambda: shared() == {"one": 3, "two": 3})
            print("shared:", shared())
            other.terminate()
            print("it ended well:", other.wait(timeout=30) == 0)
            wait_until(lambda: len(one.owned()) == 6)
            print("one has all of them:", sorted(one.owned()))
    finally:
        other.kill()
        other.wait()


if __name__ == "__main__":
    if sys.argv[2:] == ["worker"]:
        worker(sys.argv[1])
    else:
        main()
