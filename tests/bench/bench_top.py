"""What ``zklock top`` costs ZooKeeper and the terminal.

``python -m tests.bench.bench_top [--locks N] [--contenders N] [--seconds S] [--changes N]``

The screen runs on a terminal of its own (134 columns, 40 lines) and follows many locks. Counted are
the packets that ZooKeeper gets, the watches that it keeps, the processor time of the screen, and
the bytes that it writes to the terminal: until it shows all locks; while nothing changes; and while
locks change, each once.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import zklock
from zklock._ground.clock import clock
from zklock.testing import ZooKeeperServer, four_letter, srvr, wait_for

SIZE = 40, 134
CLIENTS = 10
PATIENCE = 300.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Spent(NamedTuple):
    """What was spent by a moment."""

    at: float
    processor: float
    drawn: int
    packets: int


class Screen:
    """A running ``zklock top``."""

    def __init__(self, server: ZooKeeperServer, root: str) -> None:
        self._server = server
        self._drawn = bytearray()
        self._terminal, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "zklock.cli", "top", "--hosts", server.hosts, root],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "ZKLOCK_CONFIG": os.devnull},
        )
        os.close(theirs)
        threading.Thread(target=self._read, daemon=True).start()

    def shows(self, text: str) -> bool:
        """Whether it has written this text."""
        if self._process.poll() is not None:
            raise RuntimeError(self._drawn.decode(errors="replace"))
        return text.encode() in self._drawn

    def spent(self) -> Spent:
        """Return what it has spent since it was started."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        packets = srvr(self._server.host, self._server.port).received
        return Spent(clock(), sum(map(int, fields[11:13])) / _TICKS, len(self._drawn), packets)

    @property
    def memory(self) -> int:
        """The bytes of memory that it uses."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+([0-9]+) kB$", status, re.MULTILINE)
        assert found is not None
        return 1024 * int(found[1])

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()
        os.close(self._terminal)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._terminal, 65536)
            except OSError:  # it has ended
                return
            if not data:
                return
            self._drawn += data


def queue(client: Any, lock: str) -> Any:
    """Begin to create a contender; return kazoo's asynchronous result."""
    node = f"{lock}/_c_{uuid4()}-lock-"
    identity = f"host-7:{os.getpid()}:MainThread".encode()
    return client.create_async(node, identity, ephemeral=True, sequence=True)


def fill(clients: Sequence[Any], locks: Sequence[str], contenders: int) -> dict[str, str]:
    """Create all contenders of all locks; return a node of the first client's for each lock."""
    for lock in locks:
        clients[0].ensure_path(lock)
    ours: dict[str, str] = {}
    for client in reversed(clients):
        for _ in range(contenders // len(clients)):
            made = {lock: queue(client, lock) for lock in locks}
            ours = {lock: each.get() for lock, each in made.items()}
    return ours


def change(client: Any, lock: str, node: str) -> None:
    """Have a contender leave, and another come."""
    client.delete(node)
    queue(client, lock).get()


@contextmanager
def connected(hosts: str) -> Iterator[list[Any]]:
    """Yield clients."""
    with ExitStack() as stack:
        yield [stack.enter_context(zklock.connect(hosts, 30.0)) for _ in range(CLIENTS)]


def tell(what: str, begin: Spent, end: Spent, others: int = 0) -> None:
    """Print a row; ``others``: packets that the screen has not sent."""
    print(
        f"| {what} | {end.at - begin.at:.1f} s | {end.packets - begin.packets - others} | "
        f"{end.processor - begin.processor:.2f} s | {(end.drawn - begin.drawn) / 1024:.0f} KiB |",
        flush=True,
    )


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--locks", type=int, default=1000)
    parser.add_argument("--contenders", type=int, default=CLIENTS, help=f"a multiple of {CLIENTS}")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--changes", type=int, default=100)
    options = parser.parse_args()
    locks = [f"/bench/lock-{number:04}" for number in range(options.locks)]
    with ZooKeeperServer() as server, connected(server.hosts) as clients:
        nodes = fill(clients, locks, options.contenders)
        before = srvr(server.host, server.port).received
        nothing = Spent(clock(), 0.0, 0, before)
        screen = Screen(server, "/bench")
        try:
            wait_for(lambda: screen.shows(f"{options.locks} locks"), PATIENCE)
            shown = screen.spent()
            told = four_letter(server.host, server.port, "mntr")
            watches = dict(line.split("\t") for line in told.splitlines())["zk_watch_count"]
            time.sleep(options.seconds)
            idle = screen.spent()
            for number in range(options.changes):
                lock = locks[number * len(locks) // options.changes]
                change(clients[0], lock, nodes[lock])
                time.sleep(options.seconds / options.changes)
            changed = screen.spent()
            memory = screen.memory
        finally:
            screen.close()
    print("| | time | packets that ZooKeeper gets | processor time | written to the terminal |")
    print("|---|---|---|---|---|")
    tell("until all is shown", nothing, shown)
    tell("nothing changes", shown, idle)
    tell(f"{options.changes} locks change", idle, changed, 2 * options.changes)
    print(f"\nwatches: {watches}; memory: {memory / 2**20:.0f} MiB")
    print(f"packets: the pings of the {CLIENTS} contending sessions are among them")


if __name__ == "__main__":
    main()
