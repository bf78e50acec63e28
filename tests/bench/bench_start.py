"""What a command costs before and after its work: ``python -m tests.bench.bench_start [ROUNDS]``.

``zklock --help``, and ``zklock run`` of a free lock around ``/bin/true``, as multiples of the start
of Python itself. The peers: flock(1), which asks no server; ``etcdctl lock``, on an etcd of its
own, if both programs of etcd are installed; and a script that does with kazoo's lock what ``run``
does, but for the supervisor. All take turns in each round. For each: the median of the time, and of
the processor time of the process and its children, which a busy machine changes less.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from tests.bench.etcd import Etcd
from tests.contract.fencing.databases import Unavailable, program
from zklock.testing import ZooKeeperServer

ETCD = {"ETCDCTL_API": "3"}
KAZOO = """\
import subprocess, sys
from kazoo.client import KazooClient
client = KazooClient(sys.argv[1])
client.start()
with client.Lock("/start-kazoo"):
    status = subprocess.run(sys.argv[2:]).returncode
client.stop()
sys.exit(status)
"""


def measure(command: Sequence[str], environ: dict[str, str]) -> tuple[float, float]:
    """Run a command; return how long it took, and how much processor time."""
    started = time.perf_counter()
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    took = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{command}: status {process.returncode}")
    return took, used.ru_utime + used.ru_stime


def etcd_lock(stack: contextlib.ExitStack) -> list[str] | None:
    """Run an etcd server; return the command that locks there, ``None`` if it is missing."""
    try:
        client = program("etcdctl", "etcd-client")
        server = stack.enter_context(Etcd())
    except Unavailable as error:
        print(f"etcd is missing: {error}")
        return None
    return [client, "--endpoints", server.url, "lock", "start"]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=20)
    rounds = parser.parse_args().rounds
    python, true = sys.executable, "/bin/true"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(ZooKeeperServer())
        file = stack.enter_context(tempfile.NamedTemporaryFile())
        locking = etcd_lock(stack)
        ours = {"ZKLOCK_HOSTS": server.hosts, "ZKLOCK_CONFIG": os.devnull}
        environ = {**os.environ, **ETCD, **ours}
        commands = {
            "python -c pass": [python, "-c", "pass"],
            "flock FILE /bin/true": [shutil.which("flock") or "flock", file.name, true],
            **({"etcdctl lock start /bin/true": [*locking, true]} if locking else {}),
            "python -c 'import kazoo.client'": [python, "-c", "import kazoo.client"],
            "a script with kazoo's lock": [python, "-c", KAZOO, server.hosts, true],
            "zklock --help": [python, "-m", "zklock.cli", "--help"],
            "zklock run": [python, "-m", "zklock.cli", "run", "/start", "--", true],
        }
        measured: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for number in range(rounds + 1):
            for name, command in commands.items():
                once = measure(command, environ)
                if number:  # the first round compiles, and makes the locks' nodes
                    measured[name].append(once)
    print("| | time | processor time | as a multiple of Python's start |")
    print("|---|---|---|---|")
    start = statistics.median(used for _, used in measured["python -c pass"])
    for name, times in measured.items():
        took, used = (statistics.median(each) for each in zip(*times, strict=True))
        print(f"| `{name}` | {1000 * took:.0f} ms | {1000 * used:.0f} ms | {used / start:.1f} |")


if __name__ == "__main__":
    main()
