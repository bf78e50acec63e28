#!/usr/bin/env bash
# The guess: pysyncobj's ReplLockManager keeps its locks in a Raft log, so no member's clock can break them: a lock
#   comes free when its holder has been silent for autoUnlockTime.
# Instead: what is in the log is the date on each caller's wall clock, and it is compared with another's date. A
#   member whose clock is ahead by more than autoUnlockTime removes everybody's locks, over and over: its lock manager
#   renews its own locks (it need not have any), and drops what looks old by its date. The holder hears nothing.
# Why it matters: one machine that starts before its clock is set, or a date that steps, lets a second holder in
#   beside the first, in a cluster with a healthy majority and leader. isAcquired() tells, if it is asked.
# Seen: pysyncobj 0.3.17, Debian 12's faketime 0.9.10 for the wrong date, 2026-11-28.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
command -v faketime >/dev/null || { echo "this finding needs faketime (Debian: faketime)" >&2; exit 69; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install pysyncobj==0.3.17 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

cat >"$dir/member.py" <<'PYTHON'
import sys

from pysyncobj import SyncObj
from pysyncobj.batteries import ReplLockManager

me, *others = sys.argv[1:]
locks = ReplLockManager(autoUnlockTime=20, selfID=me)
member = SyncObj(me, others, consumers=[locks])
member.waitReady()
print("ready", flush=True)
for line in sys.stdin:
    answer = locks.isAcquired("jobs") if line == "has\n" else locks.tryAcquire("jobs", sync=True, timeout=20)
    print(answer, flush=True)
locks.destroy()
member.destroy()
PYTHON

timeout 120 "$python" - "$dir/member.py" <<'PYTHON'
import socket
import subprocess
import sys
import time
from importlib.metadata import version

print("pysyncobj", version("pysyncobj"))
free = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
addresses = ["127.0.0.1:{}".format(it.getsockname()[1]) for it in free]
for it in free:
    it.close()
members = []


def start(*wrong_date):
    me = addresses[len(members)]
    others = [it for it in addresses if it != me]
    members.append(
        subprocess.Popen(
            [*wrong_date, sys.executable, sys.argv[1], me, *others],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    )


def ask(member, question):
    members[member].stdin.write(question + "\n")
    members[member].stdin.flush()
    return members[member].stdout.readline().strip()


try:
    start()
    start()
    for member in members:
        assert member.stdout.readline() == "ready\n"
    assert ask(0, "try") == "True"
    time.sleep(8)  # longer than the pause between two renewals
    before = ask(1, "try"), ask(0, "has")
    print("a second gets the lock, the first has it:", before)
    start("faketime", "-f", "+60s")
    assert members[2].stdout.readline() == "ready\n"
    deadline = time.monotonic() + 10  # half of autoUnlockTime
    while (second := ask(1, "try")) == "False" and time.monotonic() < deadline:
        time.sleep(0.1)
    first = ask(0, "has")
    print("after a third has joined whose clock is a minute ahead:", (second, first))
finally:
    for member in members:
        member.stdin.close()
    for member in members:
        member.wait(20)
expected = ("False", "True"), ("True", "False")
sys.exit(None if (before, (second, first)) == expected else "the behaviour has changed")
PYTHON
