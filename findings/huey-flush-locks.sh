#!/usr/bin/env bash
# The guess: a consumer of huey that is started with --flush-locks frees the locks that killed consumers have left
#   ("stale locks", says its log). The locks of consumers that are at work stay.
# Instead: a lock is the value 1 under its name; nothing tells a dead holder from a living one. Each start frees every
#   lock of a decorator, held or not, and the same task runs twice at once. The first to end deletes the other's lock,
#   so that a third gets in. A lock that is made inside a task (`with huey.lock_task(name)`) is what a crash leaves
#   and --flush-locks doesn't find: it stays taken, and its tasks are dropped, not kept for later.
# Why it matters: the option is the usual answer to stale locks, and each rolling update, each added consumer, each
#   restart of one of two is then a moment with two holders. Use it with one consumer only; else `ttl=`, with a time
#   longer than any task.
# Seen: huey 3.5.4, 2026-11-28.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install huey==3.5.4 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

cat >"$dir/jobs.py" <<'PYTHON'
import time
from pathlib import Path

from huey import SqliteHuey

home = Path(__file__).parent
huey = SqliteHuey(filename=str(home / "huey.db"))


def work(name):
    """Writes who begins and who ends; ends when it is told to."""
    with (home / "log").open("a") as log:
        log.write(f"begin {name}\n")
    while not (home / f"end-{name}").exists():
        time.sleep(0.05)
    with (home / "log").open("a") as log:
        log.write(f"end {name}\n")


@huey.task()
@huey.lock_task("report")
def report(name):
    work(name)


@huey.task()
def customer(name):
    with huey.lock_task("customer-1"):
        work(name)
PYTHON

timeout 100 "$python" - "$dir" <<'PYTHON'
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

home = Path(sys.argv[1])
sys.path.insert(0, str(home))
import jobs

print("huey", version("huey"))
running = []


def consumer(*options):
    with (home / "consumer.log").open("a") as log:
        command = [Path(sys.executable).with_name("huey_consumer"), "jobs.huey", "-w", "1", "-d", "0.1", *options]
        running.append(subprocess.Popen(command, cwd=home, stdout=log, stderr=log))
    return running[-1]


def events():
    return (home / "log").read_text().splitlines() if (home / "log").exists() else []


def until(condition):
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def eventually(event):
    return until(lambda: event in events())


def unlocked():
    return until(lambda: not jobs.huey.is_locked("report"))


def end(name):
    (home / f"end-{name}").touch()
    return eventually(f"end {name}")


def stored():
    """How many tasks wait in the queue."""
    return jobs.huey.pending_count()


try:
    consumer()
    jobs.report("a")
    assert eventually("begin a")
    consumer()
    jobs.report("refused")
    time.sleep(2)
    plain = "begin refused" in events(), stored()
    print("a second consumer: the same task runs beside the first:", plain[0], "- tasks kept for later:", plain[1])

    consumer("--flush-locks")
    assert unlocked()
    jobs.report("b")
    both = eventually("begin b") and "end a" not in events()
    print("a third consumer, with --flush-locks: the task runs beside the first:", both)
    assert end("a") and unlocked()
    jobs.report("c")
    third = eventually("begin c") and "end b" not in events()
    print("the first has ended: a third one runs beside the second:", third)
    assert end("b") and end("c")

    jobs.customer("d")
    assert eventually("begin d")
    for process in running:
        process.kill()
        process.wait()
    consumer("--flush-locks")
    jobs.customer("e")
    time.sleep(3)
    stays = jobs.huey.is_locked("customer-1"), "begin e" in events(), stored()
    print("all are killed, and one starts with --flush-locks: locked, the task runs, tasks kept:", stays)
finally:
    for process in running:
        process.kill()
        process.wait()
expected = (False, 0), True, True, (True, False, 0)
sys.exit(None if (plain, both, third, stays) == expected else "the behaviour has changed")
PYTHON
