#!/usr/bin/env bash
# The guess: a holder of a distributed.Lock that stood still past its lease (30 s by default) has lost it; if another
#   one has it meanwhile, the late holder's release() is refused, and locked() is true for the one that has it.
# Instead: the late holder's refresh puts its lease *back*, beside the other's: two leases of a lock that has one. Each
#   release() returns True, and nobody is told anything. While both are inside, locked() is False for everybody: it
#   compares the number of leases with 1.
# Why it matters: a task that holds the GIL for half a minute (a parser, a compression) is such a holder. The only trace
#   is a line in the scheduler's log. For data that must not be written by two, use a token that the resource compares.
# Seen: distributed 2026.8.0 with lease-timeout 3 s, 2026-11-29.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install distributed==2026.8.0 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

cat >"$dir/holder.py" <<'PYTHON'
import sys

from distributed import Client, Lock

with Client(sys.argv[1], set_as_default=True) as client:
    lock = Lock("jobs")
    print("acquired", lock.acquire(), flush=True)
    for line in sys.stdin:
        print(lock.locked() if line == "locked\n" else lock.release(), flush=True)
PYTHON

cat >"$dir/main.py" <<'PYTHON'
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import dask
from distributed import LocalCluster

LEASE = {"lease-timeout": "3s", "lease-validation-interval": "500ms"}
running = []


class Holder:
    """Another process that takes the lock."""

    def __init__(self, address):
        command = [sys.executable, Path(__file__).with_name("holder.py"), address]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, text=True, stderr=subprocess.DEVNULL, **pipes)
        running.append(self.process)

    def answer(self):
        return self.process.stdout.readline().strip()

    def ask(self, what):
        print(what, file=self.process.stdin, flush=True)
        return self.answer()


def main():
    print("distributed", version("distributed"))
    options = {"n_workers": 0, "dashboard_address": None, "silence_logs": False, "protocol": "tcp", "host": "127.0.0.1"}
    with LocalCluster(**options) as cluster:
        leases = lambda: len(cluster.scheduler.extensions["semaphores"].leases["jobs"])
        late = Holder(cluster.scheduler_address)
        assert late.answer() == "acquired True"
        one = leases(), late.ask("locked")
        os.kill(late.process.pid, signal.SIGSTOP)
        other = Holder(cluster.scheduler_address)
        assert other.answer() == "acquired True"
        os.kill(late.process.pid, signal.SIGCONT)
        deadline = time.monotonic() + 20
        while leases() < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        two = leases(), late.ask("locked"), other.ask("locked")
        released = late.ask("release"), other.ask("release")
    print("one holder: leases, locked():", one)
    print("the late one goes on, another has the lock: leases, locked() of both:", two, "release() of both:", released)
    return one == (1, "True") and two == (2, "False", "False") and released == ("True", "True")


if __name__ == "__main__":
    try:
        with dask.config.set({"distributed.scheduler.locks": LEASE}):
            expected = main()
    finally:
        for process in running:
            process.kill()
            process.wait()
    sys.exit(None if expected else "the behaviour has changed")
PYTHON
export DASK_DISTRIBUTED__SCHEDULER__LOCKS__LEASE_TIMEOUT=3s DASK_TEMPORARY_DIRECTORY=$dir
timeout 100 "$python" "$dir/main.py" 2>"$dir/log" ||
  { tail -n 20 "$dir/log" >&2; exit 1; }
