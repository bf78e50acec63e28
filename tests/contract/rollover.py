"""A process that acquires locks: ``python -m tests.contract.rollover HOSTS LEDGER COUNT PATH…``.

Writes one line to the ledger for each grant, while it is held: path, epoch, sequence. Says "ready"
when it is connected and begins when it hears a line. A second holder at the same time is an error,
and any error ends it with a traceback.
"""

from __future__ import annotations

import sys
from pathlib import Path

import zklock
from tests.contract.support import SOON


def main(hosts: str, ledger: str, count: str, *paths: str) -> None:
    client = zklock.connect(hosts, timeout=10.0)
    print("ready", flush=True)
    sys.stdin.readline()
    with Path(ledger).open("a", buffering=1) as lines:
        for path in paths:
            lock = zklock.Lock(client, path, timeout=3 * SOON)
            occupied = Path(ledger + path.replace("/", "-"))
            for _ in range(int(count)):
                with lock as grant:
                    occupied.touch(exist_ok=False)
                    grant.check()
                    lines.write(f"{path} {grant.token.epoch} {grant.token.sequence}\n")
                    occupied.unlink()
    client.stop()
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
