#!/usr/bin/env bash
# The guess: the database backend of Django's tasks is a durable queue. The task of a worker that is killed is run
#   again, or at least marked as failed, when the workers are back.
# Instead: a claimed task is RUNNING, and nobody looks whether its worker lives: it stays RUNNING for ever. No worker
#   takes it, not even one with the same `--worker-id`, and `is_finished` is False for whoever waits. Only a task that
#   ends by an exception is FAILED, and that one is not tried again, either.
# Why it matters: a deployment that kills after its period of grace, or the OOM killer, drops mails and payments, and no
#   failed task is to be seen. Look for tasks that have been RUNNING for longer than any can, and decide about them by
#   hand or by a lock that the task itself holds.
# Seen: django-tasks-db 0.13.0, django-tasks 0.12.0, Django 5.2.19, SQLite, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install django-tasks-db==0.13.0 django-tasks==0.12.0 django==5.2.19 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

cat >"$dir/shop.py" <<'PYTHON'
"""The settings, and the tasks."""

from pathlib import Path

home = Path(__file__).parent
SECRET_KEY = "for this test"
INSTALLED_APPS = ["django_tasks_db"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": home / "shop.sqlite"}}
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
USE_TZ = True
PYTHON
cat >"$dir/jobs.py" <<'PYTHON'
import time
from pathlib import Path

from django_tasks import task

home = Path(__file__).parent


@task()
def pay(name):
    with (home / "log").open("a") as log:
        log.write(f"{name}\n")
    while not (home / f"end-{name}").exists():
        time.sleep(0.05)
    if name == "refused":
        raise ValueError(name)
PYTHON

export DJANGO_SETTINGS_MODULE=shop PYTHONPATH=$dir
cd "$dir"
"$python" -m django migrate -v 0
timeout 120 "$python" - "$dir" <<'PYTHON'
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import django

django.setup()
from jobs import pay

home = Path(sys.argv[1])
workers = []
print(*(f"{name} {version(name)}" for name in ("django-tasks-db", "django-tasks", "Django")))


def start():
    with (home / "errors").open("a") as errors:
        command = [sys.executable, "-m", "django", "db_worker", "--worker-id", "one", "--no-startup-delay"]
        workers.append(subprocess.Popen(command, stdout=errors, stderr=errors))
    return workers[-1]


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, (home / "errors").read_text()
        time.sleep(0.1)


def begins():
    return (home / "log").read_text().split() if (home / "log").exists() else []


def state(result):
    result.refresh()
    return result.status.name, result.is_finished


try:
    results = {name: pay.enqueue(name) for name in ("cut-off", "next", "refused")}
    first = start()
    until(lambda: begins() == ["cut-off"])
    first.kill()
    first.wait()
    for name in "cut-off", "next", "refused", "last":
        (home / f"end-{name}").touch()
    second = start()
    until(lambda: state(results["refused"])[1])
    second.terminate()
    second.wait()
    start()
    results["last"] = pay.enqueue("last")
    until(lambda: state(results["last"])[1])  # so the third worker has looked at the queue, too
    seen = {name: state(result) for name, result in results.items()}
    begun = begins()
finally:
    for worker in workers:
        worker.kill()
        worker.wait()
print("begun in this order, by three workers of one id, of which the first was killed:", begun)
for name, (status, finished) in seen.items():
    print(f"{name}: {status}, finished {finished}")
done = "SUCCESSFUL", True
expected = {"cut-off": ("RUNNING", False), "next": done, "refused": ("FAILED", True), "last": done}
sys.exit(None if (seen, begun) == (expected, list(expected)) else "the behaviour has changed")
PYTHON
