#!/usr/bin/env bash
# The guess: filelock's SoftFileLease renews its file by a heartbeat, so a holder that stood still for longer than the
#   lease learns of its loss at its first look: `is_locked` is False, and the `with` block raises.
# Instead: `is_locked` goes on saying True until the holder releases, also after the loss was told. It is told by
#   `on_compromise` and `compromise` alone, at the second heartbeat that finds another's file: a third of the lease after
#   the holder goes on, 10 s by default. The `with` block ends without a word.
# Why it matters: code that asks `is_locked` before each write works beside the next holder, and a job that lost its
#   lease in the middle reports success. Ask `compromise`, also after the block, and have the resource refuse old tokens.
# Seen: filelock 4.3.1, Python 3.11, Linux 6.18, 2026-11-29.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install filelock==4.3.1 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

cat >"$dir/holder.py" <<'PYTHON'
import sys
import threading
import time

from filelock import SoftFileLease

HEARTBEAT = 2.0
told = threading.Event()
lease = SoftFileLease(
    sys.argv[1],
    lease_duration=3 * HEARTBEAT,
    heartbeat_interval=HEARTBEAT,
    on_compromise=lambda _: told.set(),
)
with lease:
    print("holds", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    print("first look:", lease.is_locked, lease.compromise, flush=True)
    assert told.wait(10 * HEARTBEAT)
    late = time.monotonic() - began > HEARTBEAT / 2
    print("once told:", lease.is_locked, lease.compromise.reason, "late" if late else "at once", flush=True)
print("after the block:", lease.is_locked, lease.compromise.reason, flush=True)
PYTHON

timeout 120 "$python" - "$dir" <<'PYTHON'
import signal
import subprocess
import sys
from pathlib import Path

from filelock import SoftFileLease

folder = sys.argv[1]
file = f"{folder}/job.lock"
holder = subprocess.Popen(
    [sys.executable, f"{folder}/holder.py", file],
    text=True,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
)
told = [holder.stdout.readline().strip()]
holder.send_signal(signal.SIGSTOP)
following = SoftFileLease(file, lease_duration=6.0)
following.acquire(timeout=60.0)
told.append("the next one holds")
holder.stdin.write("go on\n")
holder.stdin.flush()
holder.send_signal(signal.SIGCONT)
told += holder.communicate()[0].splitlines()
told.append(f"the next one: {following.is_locked}, {following.compromise}, file {Path(file).exists()}")
following.release()
print("\n".join(told))
sys.exit(
    told
    != [
        "holds",
        "the next one holds",
        "first look: True None",
        "once told: True owner-changed late",
        "after the block: False owner-changed",
        "the next one: True, None, file True",
    ]
    or holder.returncode != 0
)
PYTHON
