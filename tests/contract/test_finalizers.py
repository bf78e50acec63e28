"""What users do in a finalizer while the interpreter shuts down: no thread runs any more."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.contract.support import program

PROGRAM = """
import os, signal, sys, zklock

class Owner:
    def __init__(self, hosts, path):
        self.client = zklock.connect(hosts)
        self.grant = zklock.Lock(self.client, path).acquire()

    def __del__(self):
        self.client.stop()
        self.client.close()
        print("stopped", flush=True)

owner = Owner(*sys.argv[1:3])
exec(sys.argv[3])
"""
ENDS = {
    "its last line": "owner.itself = owner",
    "sys.exit": "sys.exit(3)",
    "an error": "raise SystemError('of the program')",
    "Ctrl-C": "os.kill(os.getpid(), signal.SIGINT)",
    "SIGTERM": "signal.signal(signal.SIGTERM, lambda *_: sys.exit(4)); "
    "os.kill(os.getpid(), signal.SIGTERM)",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_client_is_stopped(zklock_hosts: str, zklock_path: str, end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, zklock_hosts, zklock_path, ENDS[end]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "stopped\n"
    assert "ignored" not in done.stderr
    assert "WriterNotClosed" not in done.stderr


def test_a_lock_that_is_still_held_at_the_end_is_a_warning(
    zklock_hosts: str, zklock_path: str
) -> None:
    code = "import sys, zklock; grant = zklock.Lock(zklock.connect(sys.argv[1]), sys.argv[2])"
    done = program("-X", "dev", "-c", f"{code}.acquire()", zklock_hosts, zklock_path)
    assert f"ResourceWarning: {zklock_path}: still held" in done.stderr
