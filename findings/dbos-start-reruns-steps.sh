#!/usr/bin/env bash
# The guess: a DBOS process that starts recovers the workflows that *died* with a process. Those that another process
#   runs at this moment go on undisturbed, and each step of them runs once at a time.
# Instead: without an executor id of its own each process is the executor "local". One that starts takes all pending
#   workflows of "local" for its own and gives them out again: a step that is at work in the first process is begun a
#   second time beside itself. Both runs of the step end; the workflow's result looks as usual.
# Why it matters: a second replica, or a script of the same application that launches DBOS on the production's database,
#   is enough to send each running payment twice. Give each process its `executor_id`; then nothing is recovered
#   that is not its own.
# Seen: dbos 3.4.0, SQLite as its database, 2026-11-29.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install dbos==3.4.0 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

cat >"$dir/application.py" <<'PYTHON'
import sys
import time
from pathlib import Path

from dbos import DBOS

home, name, own_id = Path(__file__).parent, sys.argv[1], sys.argv[2]
config = {"name": "shop", "system_database_url": f"sqlite:///{home}/{own_id}.sqlite", "log_level": "ERROR"}
if own_id == "own":
    config["executor_id"] = name
DBOS(config=config)


def note(event):
    with (home / own_id).open("a") as log:
        log.write(f"{event}\n")


@DBOS.step()
def pay():
    note("begin")
    while not (home / f"end-{own_id}").exists():
        time.sleep(0.05)
    note("end")


@DBOS.workflow()
def order():
    pay()


DBOS.launch()
if name == "first":
    DBOS.start_workflow(order)
note(f"{name} is ready")
sys.stdin.read()  # until it is told to end
DBOS.destroy()
PYTHON

timeout 150 "$python" - "$dir" <<'PYTHON'
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

home = Path(sys.argv[1])
print("dbos", version("dbos"))
running = []


def start(name, own_id):
    with (home / "log").open("a") as log:
        command = [sys.executable, home / "application.py", name, own_id]
        running.append(subprocess.Popen(command, cwd=home, stdin=subprocess.PIPE, stdout=log, stderr=log))


def play(own_id):
    """How often the step was begun before and after a second process started, and ended."""
    log = home / own_id
    count = lambda event: log.read_text().splitlines().count(event) if log.exists() else 0

    def until(event):
        deadline = time.monotonic() + 60
        while not count(event):
            assert time.monotonic() < deadline, event
            time.sleep(0.1)

    start("first", own_id)
    until("begin")
    before = count("begin")
    start("second", own_id)
    until("second is ready")
    time.sleep(6)
    after = count("begin")
    (home / f"end-{own_id}").touch()
    until("end")
    time.sleep(2)
    return before, after, count("end")


try:
    usual, own = play("local"), play("own")
finally:
    for process in running:
        process.kill()
        process.wait()
print("the step was begun: before a second process starts, after; ended:", usual, "with an executor_id each:", own)
sys.exit(None if (usual, own) == ((1, 2, 2), (1, 1, 1)) else (home / "log").read_text() + "the behaviour has changed")
PYTHON
