#!/usr/bin/env bash
# The guess: the kernel frees a file lock when its holder is killed. That is why one takes a file lock.
# Instead: it frees the lock when the last copy of the open file is closed, and each child that is forked has a copy.
#   The workers of a ProcessPoolExecutor that is made under the lock do not notice that their parent was killed: each
#   holds both ends of its own queue, waits there for ever, and keeps portalocker's lock. filelock closes its copy in a
#   forked child; fasteners takes the other kind of lock, which belongs to one process; `spawn` passes no copy on.
# Why it matters: the OOM killer or a supervisor's SIGKILL takes the parent alone. Every start of its successor finds
#   the lock taken, by processes that do nothing and are nobody's children. Start the workers before the lock is taken,
#   or by `spawn`, and let systemd or a container end the whole group.
# Seen: portalocker 4.4.2, filelock 4.3.1, fasteners 0.20, Python 3.11, Linux 6.18, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install portalocker==4.4.2 filelock==4.3.1 fasteners==0.20 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

cat >"$dir/holder.py" <<'PYTHON'
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor

import fasteners
import filelock
import portalocker

package, path, method = sys.argv[1:]
LOCKS = {"portalocker": portalocker.Lock, "filelock": filelock.FileLock, "fasteners": fasteners.InterProcessLock}


def main():
    lock = LOCKS[package](path)
    lock.acquire()
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
PYTHON

timeout 120 "$python" - "$dir" <<'PYTHON'
import os
import platform
import signal
import subprocess
import sys
import time
from importlib.metadata import version

import fasteners
import filelock
import portalocker

home = sys.argv[1]
packages = (f"{name} {version(name)}" for name in ("portalocker", "filelock", "fasteners"))
print("Python", platform.python_version(), *packages)


def is_free(package, path):
    """Whether the lock can be taken within three seconds."""
    try:
        if package == "fasteners":
            return fasteners.InterProcessLock(path).acquire(timeout=3)
        (portalocker.Lock if package == "portalocker" else filelock.FileLock)(path, timeout=3).acquire()
        return True
    except (portalocker.LockException, filelock.Timeout):
        return False


def after_kill(package, method):
    """Whether the lock is free when its holder was killed, before and after its worker is killed, too."""
    path = f"{home}/{package}-{method}"
    command = [sys.executable, f"{home}/holder.py", package, path, method]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    worker = int(holder.stdout.readline())
    held = not is_free(package, path)
    holder.kill()
    holder.wait()
    free = is_free(package, path)
    os.kill(worker, signal.SIGKILL)  # it is there
    return held, free, is_free(package, path) if not free else True


seen = {
    (package, method): after_kill(package, method)
    for package, method in (
        ("portalocker", "fork"),
        ("portalocker", "spawn"),
        ("filelock", "fork"),
        ("fasteners", "fork"),
    )
}
for (package, method), (held, free, at_last) in seen.items():
    print(f"{package}, {method}: held {held}; its holder is killed: free {free}; its worker, too: free {at_last}")
expected = [(True, False, True), (True, True, True), (True, True, True), (True, True, True)]
sys.exit(None if list(seen.values()) == expected else "the behaviour has changed")
PYTHON
