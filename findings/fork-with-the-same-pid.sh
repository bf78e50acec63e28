#!/usr/bin/env bash
# The guess: a forked child never uses its parent's connections: libraries notice the fork, as `os.getpid()` differs.
# Instead: it may be equal. The first process of a container has pid 1. If it forks into a PID namespace of its own (a
#   sandbox), the child is the first there, and has pid 1, too. redis-py then hands out the parent's connection: both
#   write to one socket, and each may read the other's reply.
# Why it matters: a lock's answer ("OK", a token) goes to the wrong process. `os.register_at_fork()` tells of such forks;
#   only those that C code makes need the pid.
# Seen: redis-py 8.1.0, Python 3.11, Linux 6.18, 2026-11-28. Needs root.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
unshare --pid --fork --mount-proc true 2>/dev/null || { echo "this finding needs root and PID namespaces" >&2; exit 69; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install redis==8.1.0 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

cat >"$dir/play.py" <<'PYTHON'
import ctypes
import os
import socketserver
import sys
import threading
from itertools import count

import redis

NEWPID = 0x20000000
numbers = count(1)


class Numbered(socketserver.StreamRequestHandler):
    """A Redis that answers every command with the number of the connection."""

    def handle(self):
        number = next(numbers)
        while head := self.rfile.readline():  # "*2", then a length and a word for each
            for _ in range(2 * int(head[1:])):
                self.rfile.readline()
            self.wfile.write(f":{number}\r\n".encode())


socketserver.ThreadingTCPServer.daemon_threads = True
server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Numbered)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = redis.Redis(port=server.server_address[1], protocol=2)


def asks():
    return client.execute_command("WHO")


def child(sandbox):
    """Return what a forked child's pid is, and its connection."""
    reads, writes = os.pipe()

    def fork():
        if sandbox:
            assert ctypes.CDLL(None).unshare(NEWPID) == 0
        if os.fork() == 0:
            os.write(writes, f"{os.getpid()} {asks()}".encode())
            os._exit(0)

    thread = threading.Thread(target=fork)  # only this thread's children are in the new namespace
    thread.start()
    thread.join()
    pid, number = os.read(reads, 100).split()
    return int(pid), int(number)


print("redis-py", redis.__version__)
mine = asks()
plain, sandboxed = child(sandbox=False), child(sandbox=True)
print(f"parent: pid {os.getpid()}, connection {mine}; after a fork: {plain}; into a sandbox: {sandboxed}")
sys.exit(not (os.getpid() == 1 and plain[1] != mine and sandboxed == (1, mine)))
PYTHON
timeout 60 unshare --pid --fork --kill-child --mount-proc "$python" "$dir/play.py"
