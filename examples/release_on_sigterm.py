"""A job that gives its lock back when it is told to end (SIGTERM), even while it waits for it.

It starts two processes of itself. The first one is told to end in the middle of its work, as a
service manager or an orchestrator does it. The second one works then.
"""

import os
import signal
import subprocess
import sys
import time
from types import FrameType

import zklock


def job(hosts: str) -> None:
    """Be one process."""
    client = zklock.connect(hosts)
    lock = zklock.Lock(client, "/examples/sigterm")
    told: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        told.append(number)  # a plain flag: an Event could wait for the thread that it interrupts
        lock.cancel()  # ends the wait for the lock

    signal.signal(signal.SIGTERM, end)
    try:
        with lock as grant:
            print("works", flush=True)
            while not told:
                grant.check()
                time.sleep(0.05)  # a step of the work
        print("has released", flush=True)
    except zklock.AcquireCancelled:
        print("waits no more", flush=True)
    finally:
        client.stop()
        client.close()


class Job:
    """Another process."""

    def __init__(self, hosts: str) -> None:
        command = [sys.executable, __file__, hosts, "job"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def says(self) -> str:
        """Return the next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


def main() -> None:
    """Run two processes, and end them one after the other."""
    hosts = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ZKLOCK_HOSTS", "127.0.0.1:2181")
    jobs = [Job(hosts)]
    try:
        print("the first one", jobs[0].says())
        jobs.append(Job(hosts))
        jobs[0].process.terminate()
        print("the first one", jobs[0].says())
        print("the second one", jobs[1].says())
        jobs[1].process.terminate()
        print("the second one", jobs[1].says())
        print("both ended well:", [each.process.wait() for each in jobs] == [0, 0])
    finally:
        for each in jobs:
            each.process.kill()
            each.process.communicate()


if __name__ == "__main__":
    if sys.argv[2:] == ["job"]:
        job(sys.argv[1])
    else:
        main()
