"""A process whose scheduler runs a job every 50 ms while it leads: HOSTS PATH RECORD."""

from __future__ import annotations

import signal
import sys

from apscheduler.schedulers.background import BackgroundScheduler

from tests.contract.contrib.records import note
from zklock.contrib.apscheduler import LeaderJobs


def main(hosts: str, path: str, record: str) -> None:
    scheduler = BackgroundScheduler(timezone="UTC")
    jobs = LeaderJobs(scheduler, hosts, path, timeout=4.0)

    @jobs.only
    def job() -> None:
        term = jobs.leadership
        if term is not None:
            note(record, term.token)

    scheduler.add_job(job, "interval", seconds=0.05)
    # An exception out of a handler would be logged by the loop of the scheduler, and no more.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    scheduler.start()
    signal.sigwait({signal.SIGTERM})
    scheduler.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
