"""The command ``zklock run``: what its start costs, and what is gone before the next grant."""

from __future__ import annotations

import itertools
import os
import random
import resource
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import zklock
from tests.bench.results import Run
from tests.bench.together import new_path
from tests.contract.promise import COMMANDS, FAULTS, end_of
from zklock.testing import ZooKeeperServer

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


def start(run: Run, rounds: int = 20) -> None:
    """What a command costs before and after its work: processor time, as multiples of Python's.

    ``zklock --help``, and ``zklock run`` of a free lock around ``/bin/true``, beside the start of
    Python, and a script that does with kazoo's lock what ``run`` does, but for the supervisor. All
    take turns; of the process and its children.
    """
    with ZooKeeperServer() as server:
        environ = {**os.environ, "ZKLOCK_HOSTS": server.hosts, "ZKLOCK_CONFIG": os.devnull}
        commands = {
            "python -c pass": ["-c", "pass"],
            "a script with kazoo's lock": ["-c", KAZOO, server.hosts, "/bin/true"],
            "zklock --help": ["-m", "zklock.cli", "--help"],
            "zklock run": ["-m", "zklock.cli", "run", "/start", "--", "/bin/true"],
        }
        used: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(rounds + 1):
            for name, words in commands.items():
                before = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
                command = [sys.executable, *words]
                subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=True)
                if number:  # the first round compiles, and makes the locks' nodes
                    after = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
                    used[name].append(after - before)
        run.note("processor time, s", used, "python -c pass")


def run(run: Run, runs: int = 50, timeout: float = 4.0, at_once: int = 8, seed: int = 1) -> None:
    """By how many seconds the command of ``zklock run`` is gone before the next grant.

    A command runs under a lock, and another contender waits for it. Something is done to the
    holder. Counted is the time from the last sign of life of the command, or of anything that it
    started, until the next grant; and how many were alive then. The runs of all faults and commands
    are mixed, so that the load is the same for each.
    """
    kinds = list(itertools.product(FAULTS, COMMANDS))
    every = kinds * runs
    random.Random(seed).shuffle(every)
    with (
        ZooKeeperServer(tick_time=1000) as server,
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(at_once) as workers,
        zklock.connect(server.hosts, 30.0) as client,
    ):

        def one(kind: tuple[str, str]) -> tuple[float, bool]:
            fault, command = kind
            own = Path(tempfile.mkdtemp(dir=folder))
            while True:  # again, if the lock was lost before the fault
                end = end_of(command, fault, server, client, new_path(), timeout, own)
                if end is not None:
                    return end.margin, bool(end.alive)

        ends = list(workers.map(one, every))
    margins: dict[str, list[float]] = {": ".join(kind): [] for kind in kinds}
    for kind, (margin, _) in zip(every, ends, strict=True):
        margins[": ".join(kind)].append(margin)
    run.note("gone before the next grant, s", margins)
    run.note("alive at the next grant", {f"of {len(ends)}": sum(alive for _, alive in ends)})
