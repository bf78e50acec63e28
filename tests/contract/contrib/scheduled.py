"""A process whose scheduler runs a job every 50 ms while it leads: HOSTS PATH RECORD."""

from __future__ import annotations

import os
import signal
import sys

from apscheduler.schedulers.blocking import BlockingScheduler

from zklock.contrib.apscheduler import LeaderJobs


def main(hosts: str, path: str, record: str) -> None:
    scheduler = BlockingScheduler(timezone="UTC")
    jobs = LeaderJobs(scheduler, hosts, path, timeout=4.0)

    @jobs.only
    def job() -> None:
        term = jobs.leadership
        if term is not None:
            descriptor = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(descriptor, f"{os.getpid()} {term.token}\n".encode())
            os.close(descriptor)

    scheduler.add_job(job, "interval", seconds=0.05)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    try:
        scheduler.start()
    except SystemExit:
        scheduler.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
