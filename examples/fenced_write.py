"""A lock, and a file that refuses the write of a holder who comes late.

The lock is taken away from the first holder, as an operator might do it. The second holder writes.
The first one's write is under way meanwhile, with its token alone, and comes late: it is refused.
"""

import os
import sys
import tempfile
from pathlib import Path

import zklock
from zklock.errors import StaleToken
from zklock.fencing import FileGuard


def main() -> None:
    """Play both holders."""
    hosts = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ZKLOCK_HOSTS", "127.0.0.1:2181")
    with (
        zklock.connect(hosts) as client,
        zklock.connect(hosts) as other,
        tempfile.TemporaryDirectory() as folder,
    ):
        report = Path(folder, "report.txt")
        guard = FileGuard(report)
        guard.create()  # once: the file is new. A program that only writes does not call it

        first = zklock.Lock(client, "/examples/report", identity="first")
        second = zklock.Lock(other, "/examples/report", identity="second")
        grant = first.acquire()
        assert grant is not None
        guard.claim(grant)
        guard.write(b"written by the first", grant)

        second.break_lock()
        with second as later:
            print("the second holder's token is greater:", later.token > grant.token)
            guard.write(b"written by the second", later)
            try:
                guard.write(b"written late", grant.token)
            except StaleToken:
                print("refused: the first holder is late")
        grant.abandon()
        print("the file says:", report.read_text())


if __name__ == "__main__":
    main()
