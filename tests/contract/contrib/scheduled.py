"""A process whose scheduler runs a job every 50 ms while it leads: HOSTS PATH RECORD."""

from __future__ import annotations

import os
import signal
import sys

from apscheduler.schedulers.background import BackgroundScheduler

from zklock.contrib.apscheduler import LeaderJobs


def main(hosts: str, path: str, record: str) -> None:
    scheduler = BackgroundScheduler(timezone="UTC")
    jobs = LeaderJobs(scheduler, hosts, path, timeout=4.0)

    @jobs.only
    def job() -> None:
        term = jobs.leadership
        if term is not None:
            descriptor = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(descriptor, f"{os.getpid()} {term.token}\n".encode())
            os.close(descriptor)

    scheduler.add_job(job, "interval", seconds=0.05)
    # Waited for, and not an exception out of a handler: the scheduler's loop logs any that it
    # meets, and goes on.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    scheduler.start()
    signal.sigwait({signal.SIGTERM})
    scheduler.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
