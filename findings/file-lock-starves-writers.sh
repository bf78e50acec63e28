#!/usr/bin/env bash
# The guess: a writer that waits for a shared file lock gets in when the readers of that moment have left; readers that
#   come later queue behind it.
# Instead: the kernel lets each new reader in while any reader is there, by flock() as by fcntl(), and so do portalocker
#   (`LockFlags.SHARED`) and fasteners' InterProcessReaderWriterLock. As long as the readers overlap the writer waits,
#   for ever, and no order of arrival counts. filelock's ReadWriteLock (SQLite's locks) keeps the new reader out.
# Why it matters: two workers that read in turns, a second each, keep a deployment, a compaction or a backup out for
#   days, and the writer's log says "waiting". A test has gaps. Have readers and writers pass one more exclusive lock
#   before this one (each frees it as soon as it is in), or take filelock's.
# Seen: fasteners 0.20, portalocker 4.4.2, filelock 4.3.1, Python 3.11, Linux 6.18, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install fasteners==0.20 portalocker==4.4.2 filelock==4.3.1 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

cat >"$dir/process.py" <<'PYTHON'
import fcntl
import sys

way, role, path = sys.argv[1:]
reads = role == "reader"
if way == "fasteners":
    from fasteners import InterProcessReaderWriterLock

    lock = InterProcessReaderWriterLock(path)
    take = lock.acquire_read_lock if reads else lock.acquire_write_lock
    leave = lock.release_read_lock if reads else lock.release_write_lock
elif way == "filelock":
    from filelock import ReadWriteLock

    lock = ReadWriteLock(path)
    take, leave = lock.acquire_read if reads else lock.acquire_write, lock.release
elif way == "portalocker":
    import portalocker

    file = open(path, "a+")
    flags = portalocker.LockFlags.SHARED if reads else portalocker.LockFlags.EXCLUSIVE
    take, leave = lambda: portalocker.lock(file, flags), lambda: portalocker.unlock(file)
else:
    file = open(path, "a+")
    act = {"flock()": fcntl.flock, "fcntl()": fcntl.lockf}[way]
    take = lambda: act(file, fcntl.LOCK_SH if reads else fcntl.LOCK_EX)
    leave = lambda: act(file, fcntl.LOCK_UN)
print("asks", flush=True)
take()
print("in", flush=True)
sys.stdin.readline()
leave()
print("out", flush=True)
PYTHON

cat >"$dir/main.py" <<'PYTHON'
import queue
import subprocess
import sys
import threading
from importlib.metadata import version
from pathlib import Path

TURNS = 3
here = Path(__file__).parent
running = []


class Process:
    def __init__(self, way, role):
        command = [sys.executable, here / "process.py", way, role, here / way]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.append(self.process)
        self.told = queue.Queue()
        threading.Thread(target=self.listen, daemon=True).start()
        assert self.says(20) == "asks"

    def listen(self):
        for line in self.process.stdout:
            self.told.put(line.strip())

    def says(self, seconds):
        try:
            return self.told.get(timeout=seconds)
        except queue.Empty:
            return "nothing"

    def leave(self):
        print(file=self.process.stdin, flush=True)
        assert self.says(10) == "out"


def turns(way):
    """What the waiting writer and the next reader are told, turn by turn; the writer when the readers have gone."""
    reader = Process(way, "reader")
    assert reader.says(20) == "in"
    writer = Process(way, "writer")
    told = [writer.says(1)]
    for _ in range(TURNS):
        other = Process(way, "reader")
        told.append(other.says(2))
        reader.leave()
        if told[-1] != "in":
            break
        told.append(writer.says(1))
        reader = other
    else:
        reader.leave()
    return told, writer.says(20)


print(*(f"{name} {version(name)}" for name in ("fasteners", "portalocker", "filelock")))
try:
    seen = {way: turns(way) for way in ("flock()", "fcntl()", "portalocker", "fasteners", "filelock")}
finally:
    for process in running:
        process.kill()
        process.wait()
for way, (told, at_last) in seen.items():
    print(f"{way}: the writer, then a reader and the writer in turns: {', '.join(told)}; when all have left: {at_last}")
starved, fair = (["nothing", *["in", "nothing"] * TURNS], "in"), (["nothing"] * 2, "in")
expected = dict.fromkeys(seen, starved) | {"filelock": fair}
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
timeout 80 "$python" "$dir/main.py"
