#!/usr/bin/env bash
# The guess: packages that lock a file lock it for one another; and a lock lasts until it is released.
# Instead: Linux has two kinds of file locks that do not see each other. filelock and portalocker take one (flock),
#   fasteners the other (POSIX, lockf): both hold "the" lock of one file at once. And a POSIX lock ends when its
#   process closes *any* descriptor of that file: fasteners's holder who reads the lock file loses the lock, and
#   `acquired` goes on saying True.
# Why it matters: two tools that share a lock file by convention exclude each other only if they use the same kind;
#   and a `cat` of the lock file, done in Python by the holder, frees it.
# Seen: filelock 4.3.1, portalocker 4.4.2, fasteners 0.20, Linux 6.x, 2026-11-27.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install filelock==4.3.1 portalocker==4.4.2 fasteners==0.20 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

cat >"$dir/take.py" <<'PYTHON'
import sys

import fasteners
import filelock
import portalocker

package, path = sys.argv[1:]
try:
    if package == "fasteners":
        lock = fasteners.InterProcessLock(path)
        got = lock.acquire(blocking=False)
    elif package == "filelock":
        lock = filelock.FileLock(path)
        lock.acquire(blocking=False)
        got = True
    else:
        lock = portalocker.Lock(path, timeout=0, fail_when_locked=True)
        lock.acquire()
        got = True
except (filelock.Timeout, portalocker.LockException):
    got = False
print("got" if got else "refused", flush=True)
for _ in sys.stdin:  # the holder: a line means "read the lock file"
    open(path).close()
    print(lock.acquired, flush=True)
PYTHON
timeout 60 "$python" - "$dir" <<'PYTHON'
import subprocess
import sys
from importlib.metadata import version

folder = sys.argv[1]
packages = ("filelock", "portalocker", "fasteners")
print(*(f"{package} {version(package)}" for package in packages), sep=", ")


def start(package, path):
    pipe = subprocess.PIPE
    command = [sys.executable, f"{folder}/take.py", package, path]
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    return process, process.stdout.readline().strip()


def attempt(package, path):
    process, answer = start(package, path)
    process.communicate()
    return answer


results = {}
for package in packages:
    path = f"{folder}/{package}.lock"
    holder, answer = start(package, path)
    assert answer == "got"
    results[package] = {other: attempt(other, path) for other in packages}
    print(f"held with {package}:", results[package])
    if package == "fasteners":
        holder.stdin.write("read\n")
        holder.stdin.flush()
        acquired = holder.stdout.readline().strip()
        stolen = attempt(package, path)
        print(f"fasteners's holder has read the file: acquired is {acquired}, the next process {stolen}")
    holder.communicate()

flock = {"filelock": "refused", "portalocker": "refused", "fasteners": "got"}
posix = {"filelock": "got", "portalocker": "got", "fasteners": "refused"}
expected = {"filelock": flock, "portalocker": flock, "fasteners": posix}
sys.exit(None if (results, acquired, stolen) == (expected, "True", "got") else "the behaviour has changed")
PYTHON
