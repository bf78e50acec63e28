#!/usr/bin/env bash
# The guess: a worker that is killed while it *waits* for a lock is out of the queue, and a lock of
#   multiprocessing.Manager(), which is a server that sees its clients' connections end, forgets it at the latest then.
# Instead: the manager's thread that serves this worker waits for the lock in its place, and looks at the connection
#   only to answer. At the holder's release it takes the lock for the dead one, fails to tell it, and ends. Nobody has
#   the lock and nobody gets it, though the holder released it as it should. A plain multiprocessing.Lock() forgets a
#   waiter that is killed.
# Why it matters: the lock of a Manager is the one that can be passed to the workers of a Pool; `pool.terminate()`, and
#   the end of a `with Pool()` block, kill workers that wait. The next acquire() hangs, and no process is there to
#   blame. A lock that is given to the pool's initializer is a plain one; a file lock forgets dead holders, too.
# Seen: Python 3.11.7, 3.12.1 and 3.13.0, Linux, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cat >"$dir/main.py" <<'PYTHON'
import multiprocessing
import platform
import sys
import time
from pathlib import Path


def wait(lock, pid):
    pid.value = multiprocessing.current_process().pid
    lock.acquire()


def until_it_waits(pid):
    """Return when a process has been in one system call for a second."""
    call, since = None, time.monotonic()
    while time.monotonic() - since < 1:
        now = Path(f"/proc/{pid.value or 'self'}/syscall").read_text()
        if now != call or not pid.value or now.startswith("running"):
            call, since = now, time.monotonic()
        time.sleep(0.02)


def kill(context, lock, pid):
    worker = context.Process(target=wait, args=(lock, pid))
    worker.start()
    until_it_waits(pid)
    worker.kill()
    worker.join()


def terminate_pool(context, lock, pid):
    with context.Pool(1) as pool:
        pool.apply_async(wait, (lock, pid))
        until_it_waits(pid)


def free_after(context, make_lock, end_waiter, make_pid):
    """Whether a lock can be had when its waiter has ended and its holder has released it, three times out of three."""
    return all(is_free_after(context, make_lock(), end_waiter, make_pid("i", 0)) for _ in range(3))


def is_free_after(context, lock, end_waiter, pid):
    """Whether a lock can be taken ten times. After each release the dead one's thread may be the first."""
    lock.acquire()
    end_waiter(context, lock, pid)
    for _ in range(10):
        lock.release()
        time.sleep(0.1)
        if not lock.acquire(True, 5):
            return False
    return True


def main():
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        seen = {
            "Lock(), its waiter is killed": free_after(context, context.Lock, kill, context.Value),
            "Manager().Lock(), its waiter is killed": free_after(context, manager.Lock, kill, context.Value),
            "Manager().Lock(), its pool ends": free_after(context, manager.Lock, terminate_pool, manager.Value),
        }
    print("Python", platform.python_version())
    for what, free in seen.items():
        print(f"{what}: after the release it can be taken: {free}")
    sys.exit(None if list(seen.values()) == [True, False, False] else "the behaviour has changed")


if __name__ == "__main__":
    main()
PYTHON
timeout 120 python3 "$dir/main.py"
