"""APScheduler in two processes: the jobs run in one; it is killed, and they run in the other."""

import os
import subprocess
import sys

from apscheduler.schedulers.blocking import BlockingScheduler

from zklock.contrib.apscheduler import LeaderJobs


def member(hosts: str, name: str) -> None:
    """Run the jobs while this process leads, until it is killed."""
    scheduler = BlockingScheduler(timezone="UTC")
    jobs = LeaderJobs(scheduler, hosts, "/examples/jobs", timeout=4.0, identity=name)

    @jobs.only
    def report() -> None:
        term = jobs.leadership
        if term is not None:
            print(f"{name} runs the job with token {term.token}", flush=True)

    scheduler.add_job(report, "interval", seconds=0.2)
    scheduler.start()


def next_line(process: subprocess.Popen[str]) -> str:
    """Return what a member says next."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def main() -> None:
    """Start both members, and kill the one that runs the jobs."""
    hosts = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ZKLOCK_HOSTS", "127.0.0.1:2181")
    members = []
    for name in ("anna", "ben"):
        command = [sys.executable, __file__, "member", hosts, name]
        members.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        if name == "anna":
            print(next_line(members[0]))
    members[0].kill()
    print("anna is killed")
    print(next_line(members[1]))  # when the session of the dead one has expired
    for each in members:
        each.kill()
        each.communicate()


if __name__ == "__main__":
    if sys.argv[1:2] == ["member"]:
        member(*sys.argv[2:])
    else:
        main()
