#!/usr/bin/env bash
# The guess: a DBOS queue with `global_concurrency=1` runs one workflow at a time, and goes on with the next one when
#   the process that ran the first has died.
# Instead: the place is taken by each workflow whose state is "pending", and a killed process leaves it pending. Only a
#   process with the same executor id brings it back, when it starts. Where each process has an id of its own, as the
#   name of a pod, that one never comes: the place is taken for ever, and everything that is put into the queue waits,
#   with healthy workers and no line in the log.
# Why it matters: one kill by the memory limit, and the nightly report has run for the last time. The one cure against
#   workflows that are begun twice (see dbos-start-reruns-steps.sh) brings this about. Use ids that come back, as a
#   StatefulSet's, or run DBOS's Conductor, or look for pending workflows of executors that are no more.
# Seen: dbos 3.4.0, SQLite as its database, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install dbos==3.4.0 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

cat >"$dir/pod.py" <<'PYTHON'
import sys
import time
from pathlib import Path

from dbos import DBOS

home, pod, reports = Path(__file__).parent, sys.argv[1], sys.argv[2:]
DBOS(
    config={
        "name": "reports",
        "executor_id": pod,
        "system_database_url": f"sqlite:///{home}/reports.sqlite",
        "log_level": "WARNING",
    }
)


def note(event):
    with (home / "log").open("a") as log:
        log.write(f"{event}\n")


@DBOS.workflow()
def report(name):
    note(f"begin {name}")
    while not (home / f"end-{name}").exists():
        time.sleep(0.05)
    note(f"end {name}")


DBOS.launch()
queue = DBOS.register_queue("reports", global_concurrency=1)
for name in reports:
    queue.enqueue(report, name)
sys.stdin.read()  # until it is told to end
PYTHON

timeout 200 "$python" - "$dir" <<'PYTHON'
import sqlite3
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

home = Path(sys.argv[1])
pods = []
print("dbos", version("dbos"))


def start(*arguments):
    with (home / "errors").open("a") as errors:
        command = [sys.executable, home / "pod.py", *arguments]
        pods.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=errors, stderr=errors))
    return pods[-1]


def happens(event, seconds=60):
    deadline = time.monotonic() + seconds
    while not (home / "log").exists() or event not in (home / "log").read_text().splitlines():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def log():
    return [line for line in (home / "errors").read_text().splitlines() if line.strip()]


try:
    (home / "end-second").touch()
    killed = start("pod-7f4c", "first")
    assert happens("begin first")
    killed.kill()
    killed.wait()
    start("pod-92ab", "second")
    alone = happens("begin second", 30)
    with sqlite3.connect(home / "reports.sqlite") as database:
        states = database.execute("SELECT status, executor_id FROM workflow_status ORDER BY created_at").fetchall()
    said = log()
    (home / "end-first").touch()
    start("pod-7f4c")
    again = happens("end first") and happens("end second")
finally:
    for pod in pods:
        pod.kill()
        pod.wait()
print("thirty seconds after the first pod was killed, the second report has begun:", alone)
print("the workflows:", states, "the log:", said)
print("a pod with the id of the killed one starts, and both reports are done:", again)
expected = False, ["PENDING", "ENQUEUED"], [], True
sys.exit(None if (alone, [state for state, _ in states], said, again) == expected else "the behaviour has changed")
PYTHON
