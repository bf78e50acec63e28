"""A process that stands for election with zklock when it is told to: ``elector HOSTS``.

Says "ready" when it is connected, then answers commands, a line each:

``contend IDENTITY SUCCESSOR PATH FOLDER COUNT MICROSECONDS``
    Leads COUNT terms of so many microseconds, one after the other. Every third is handed over to
    the member SUCCESSOR, once that waits, for two seconds at most. The others end so that the next
    in the queue leads.
    While it leads it writes down what it did, as ``player.py`` describes. "done", COUNT, and how
    many terms were to be handed over.

Any error ends the process with a traceback.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import zklock

WHO = f"elector-{os.getpid()}"


def contend(client: Any, words: list[str]) -> str:
    """Lead so many terms; return what to answer."""
    identity, successor, path, where, count, micros = words
    folder = Path(where)
    election = zklock.LeaderElection(client, path, identity=identity)
    terms = transfers = 0

    def lead(leadership: zklock.Leadership) -> None:
        nonlocal terms, transfers
        entered = time.monotonic_ns()
        time.sleep(int(micros) / 1e6)
        leadership.check()
        terms += 1
        if terms == int(count):
            election.stop()
        elif terms % 3 == 0:
            until = time.monotonic() + 2.0
            while successor not in [each.identity for each in election.members()[1:]]:
                if time.monotonic() > until:
                    leadership.resign()
                    break
                time.sleep(0.01)
            else:
                election.transfer(successor)
                transfers += 1
        left = time.monotonic_ns()
        with (folder / "ledger").open("a") as ledger:
            ledger.write(f"exclusive {leadership.path[-10:]} {entered} {left} {WHO}\n")

    election.run(lead, on_error="raise")
    return f"done {terms} {transfers}"


def main(hosts: str) -> None:
    client = zklock.connect(hosts, timeout=10.0)
    print("ready", flush=True)
    for line in sys.stdin:
        command, *words = line.split()
        if command != "contend":
            raise ValueError(f"no such command: {line}")
        print(contend(client, words), flush=True)
    client.stop()
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
