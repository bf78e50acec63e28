#!/usr/bin/env bash
# The guess: a pid file keeps a second `celery beat` from starting while the first one lives. In two containers that
#   share the folder it keeps it from starting even where it should, as pids of other namespaces look dead or alive by
#   chance.
# Instead: the usual case is no chance: the first process of each container has pid 1. Celery takes a file with its own
#   pid for one that it left itself, removes it, and starts: two beats, each with "the" pid file. Without containers,
#   too: a live process of another user counts as dead, as it may not be signalled (EPERM).
# Why it matters: a beat that runs twice sends each periodic task twice. What is to run once needs a lock that its
#   holder's end frees, and not the number of a process.
# Seen: celery 5.7.0, Linux 6.18, 2026-11-28. Needs root.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
unshare --pid --fork --mount-proc true 2>/dev/null || { echo "this finding needs root and PID namespaces" >&2; exit 69; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
chmod 755 "$dir"
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install celery==5.7.0 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

cat >"$dir/beat.py" <<'PYTHON'
import os
import sys

import celery
from celery.platforms import LockFailed, Pidfile

file = Pidfile(sys.argv[1])
try:
    if file.is_locked():  # as celery.platforms.create_pidlock() does
        if not file.remove_if_stale():
            raise LockFailed
    file.acquire()
except LockFailed:
    print("refused", flush=True)
else:
    print(f"pid {os.getpid()} runs, celery {celery.__version__}", flush=True)
    sys.stdin.readline()
PYTHON

timeout 60 "$python" - "$dir" <<'PYTHON'
import os
import subprocess
import sys
from pathlib import Path

folder = sys.argv[1]
beat = [sys.executable, f"{folder}/beat.py"]
container = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
user = ["setpriv", "--reuid=nobody", "--clear-groups"]


def two(name, first, second):
    file = Path(folder, name, "beat.pid")
    file.parent.mkdir(mode=0o777)
    file.parent.chmod(0o777)
    running, told = [], []
    for command in (first, second):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        running.append(subprocess.Popen([*command, *beat, str(file)], text=True, **pipes))
        told.append(running[-1].stdout.readline().strip())
        print(f"{name}: {told[-1]}")
    for each in running:
        each.communicate("\n")
    return ["runs" in each for each in told]


same = two("same user", [], [])
twins = two("two containers", container, container)
users = two("two users", [], user)
print("beats that run at a time:", sum(same), sum(twins), sum(users))
sys.exit((same, twins, users) != ([True, False], [True, True], [True, True]))
PYTHON
