"""Liveness from ``held``: a process that works on without its lock says that it is not well.

An orchestrator asks over HTTP, and restarts a process that is not well. A process that does not
work, or that waits for its lock, is well. Here an operator takes the lock away from the worker.
"""

import os
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import zklock

working: zklock.Grant | None = None
"""The grant under which this process works at the moment."""


class Health(BaseHTTPRequestHandler):
    """Answer 200 if the process is well, else 503."""

    def do_GET(self) -> None:
        """Answer one question."""
        grant = working
        self.send_response(200 if grant is None or grant.held else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def ask(address: str) -> int:
    """Ask as an orchestrator does; return the status."""
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        refused.close()
        return refused.code


def main() -> None:
    """Work, lose the lock, and ask for the health in between."""
    global working  # noqa: PLW0603 - one process, one piece of work
    hosts = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ZKLOCK_HOSTS", "127.0.0.1:2181")
    client, operator = zklock.connect(hosts), zklock.connect(hosts)
    server = HTTPServer(("127.0.0.1", 0), Health)
    threading.Thread(target=server.serve_forever).start()
    address = f"http://127.0.0.1:{server.server_port}/healthz"
    try:
        lock = zklock.Lock(client, "/examples/liveness")
        print("before it works:", ask(address))
        working = lock.acquire()
        assert working is not None
        print("while it works under its lock:", ask(address))
        zklock.Lock(operator, "/examples/liveness").break_lock(working.token)
        working.lost.wait(30)
        print("while it works on without its lock:", ask(address))
        working = None
        print("when the work has ended:", ask(address))
    finally:
        server.shutdown()
        server.server_close()
        for each in (client, operator):
            each.stop()
            each.close()


if __name__ == "__main__":
    main()
