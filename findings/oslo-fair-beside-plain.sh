#!/usr/bin/env bash
# The guess: oslo.concurrency's `lock("jobs", fair=True)` is the lock "jobs", with an order for those who wait. It
#   excludes whoever takes `lock("jobs")`; with `external=True` on both surely, as one file is locked.
# Instead: fair and plain locks of one name are two locks: in one process both are held at once. `external=True`
#   doesn't help inside a process, as its file lock belongs to the process. It even does harm: the first of the two to
#   leave closes the file, which frees the file lock for the whole process, and another process enters beside the one
#   that is still inside.
# Why it matters: `fair=True` is added at one place, where a thread starves, and the other users of the name are
#   forgotten. Change all of them together.
# Seen: oslo.concurrency 7.6.1, fasteners 0.20, Linux, 2026-11-29.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install oslo.concurrency==7.6.1 fasteners==0.20 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

timeout 60 "$python" - "$dir" <<'PYTHON'
import subprocess
import sys
import threading
from importlib.metadata import version

from oslo_concurrency import lockutils

folder = sys.argv[1]
print("oslo.concurrency", version("oslo.concurrency"), "fasteners", version("fasteners"))


class Holder:
    """A thread that holds the lock until it is told to leave."""

    def __init__(self, **options):
        self.entered, self.end = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.work, kwargs=options, daemon=True)
        self.thread.start()

    def work(self, **options):
        with lockutils.lock("jobs", lock_path=folder, **options):
            self.entered.set()
            self.end.wait(40)

    def enters(self):
        return self.entered.wait(2)

    def leave(self):
        self.end.set()
        self.thread.join(10)


program = """
import sys
from oslo_concurrency import lockutils
with lockutils.lock("jobs", external=True, lock_path=sys.argv[1]):
    print("inside")
"""


def other_process_enters():
    command = [sys.executable, "-c", program, folder]
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, timeout=4).stdout == b"inside\n"
    except subprocess.TimeoutExpired:
        return False


def both(first, second):
    one = Holder(**first)
    assert one.enters()
    two = Holder(**second)
    together = two.enters()
    one.leave()
    two.leave()
    return together


fair, outside = {"fair": True}, {"external": True}
threads = both({}, {}), both(fair, fair), both({}, fair), both(outside, fair | outside)
print("two threads inside: plain and plain, fair and fair, plain and fair, the same with external=True:", threads)

plain, queued = Holder(**outside), Holder(**fair, **outside)
assert plain.enters() and queued.enters()
before = other_process_enters()
plain.leave()
after = other_process_enters()
print("another process enters: while both are inside, after one of them has left:", (before, after))
queued.leave()
expected = (False, False, True, True), False, True
sys.exit(None if (threads, before, after) == expected else "the behaviour has changed")
PYTHON
