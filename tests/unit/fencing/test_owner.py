"""What ``verify_owner`` remembers."""

from __future__ import annotations

import subprocess
import sys

FORKS = """
import os, signal, threading
from zklock import FencingToken
from zklock.fencing import owner
from zklock.testing import embedded
import zklock

def keep():
    with owner._mutex:
        kept.set()
        go.wait(20)

kept, go = threading.Event(), threading.Event()
with embedded() as server, zklock.connect(server.hosts) as client:
    grant = zklock.Lock(client, "/lock").acquire()
    threading.Thread(target=keep).start()
    kept.wait(10)  # the fork comes while another thread looks up what is remembered
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        with zklock.connect(server.hosts) as mine:
            found = owner.verify_owner(mine, "/lock", grant.token, max_age=60)
        os._exit(found.token != grant.token)
    status = os.waitpid(child, 0)[1]
    go.set()
assert status == 0
"""


def test_a_forked_child_may_ask_while_its_parent_does() -> None:
    command = [sys.executable, "-c", FORKS]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
