#!/usr/bin/env bash
# The guess: a message that a worker has taken and not acknowledged goes to another one when the worker dies, whatever
#   the broker: Celery's `acks_late` asks for just that.
# Instead: kombu's transports for SQLAlchemy and for files take the message out of the store when they hand it to the
#   worker, as the one for ZooKeeper says of itself. The list of unacknowledged messages is in the worker's memory. An
#   orderly end of the connection puts them back, so tests look well. With a SIGKILL, an out-of-memory kill or a power
#   cut they are gone.
# Why it matters: a queue that was put into the database so as not to lose anything loses what each killed worker had.
#   Use Redis or RabbitMQ for such tasks, or keep a list of them elsewhere.
# Seen: kombu 5.7.0, SQLAlchemy 2.1.9 with SQLite, 2026-11-30; with Celery 5.7.0 and acks_late, too.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install kombu==5.7.0 sqlalchemy==2.1.9 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

cat >"$dir/worker.py" <<'PYTHON'
import json
import os
import signal
import sys

from kombu import Connection

url, options, end = sys.argv[1:]
with Connection(url, transport_options=json.loads(options)) as connection:
    print(connection.SimpleQueue("jobs").get(timeout=20).payload, flush=True)
    if end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
PYTHON

timeout 100 "$python" - "$dir" <<'PYTHON'
import json
import os
import subprocess
import sys
from importlib.metadata import version

from kombu import Connection

folder = sys.argv[1]
print(*(f"{name} {version(name)}" for name in ("kombu", "sqlalchemy")))
os.mkdir(f"{folder}/jobs")
files = dict.fromkeys(("data_folder_in", "data_folder_out", "control_folder"), f"{folder}/jobs")
brokers = {
    "SQLAlchemy": (f"sqla+sqlite:///{folder}/jobs.sqlite", {}),
    "files": ("filesystem://", files),
}


def left(url, options, end):
    """What the next worker finds after one that had taken the only job, and ended in this way."""
    with Connection(url, transport_options=options) as connection:
        connection.SimpleQueue("jobs").put("a job")
    worker = [sys.executable, f"{folder}/worker.py", url, json.dumps(options), end]
    assert subprocess.run(worker, stdout=subprocess.PIPE, text=True).stdout == "a job\n"
    with Connection(url, transport_options=options) as connection:
        queue = connection.SimpleQueue("jobs")
        try:
            message = queue.get(timeout=3)
        except queue.Empty:
            return None
        message.ack()
        return message.payload


seen = {name: [left(*broker, end) for end in ("closed", "killed")] for name, broker in brokers.items()}
for name, jobs in seen.items():
    print(f"{name}: after a worker that closed its connection: {jobs[0]}, after one that was killed: {jobs[1]}")
sys.exit(None if all(jobs == ["a job", None] for jobs in seen.values()) else "the behaviour has changed")
PYTHON
