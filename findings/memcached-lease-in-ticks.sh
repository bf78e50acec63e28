#!/usr/bin/env bash
# The guess: `add(key, owner, expire=1)` holds a memcached key for a second, and a lease of N seconds for N.
# Instead: memcached's clock is a counter that goes up once a second, and a key ends with the tick that reaches its
#   number. A lease of N seconds lasts anything between N - 1 and N; one of 1 second may last a few milliseconds, and
#   `touch()`, which should prolong it, shortens it as much.
# Why it matters: "a second is plenty for this section" holds in each test that begins after a tick, and two are inside
#   whenever one begins before it. A holder that counts N seconds of its own writes up to a second beside the next one.
#   Ask for one second more than the holder counts on.
# Seen: memcached 1.6.18 (Debian 12), pymemcache 4.0.0, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
command -v memcached >/dev/null || { echo "this finding needs memcached (Debian: memcached)" >&2; exit 69; }
dir=$(mktemp -d)
server=
cleanup() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" || true; fi
  rm -rf "$dir"
}
trap cleanup EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install pymemcache==4.0.0 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
memcached -u nobody -l 127.0.0.1 -p "$port" -U 0 -m 16 &
server=$!

memcached --version
timeout 80 "$python" - "$port" <<'PYTHON'
import sys
import time
from importlib.metadata import version

from pymemcache.client.base import Client

server = ("127.0.0.1", int(sys.argv[1]))
print("pymemcache", version("pymemcache"))
deadline = time.monotonic() + 20
while True:
    try:
        client = Client(server, default_noreply=False)
        client.version()
        break
    except OSError:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def tick():
    """Return right after the server's clock has gone on."""
    before = client.stats()[b"uptime"]
    while client.stats()[b"uptime"] == before:
        time.sleep(0.001)


def lasts(lease, after_tick, touched=None):
    """How long a key lasts that is taken so long after a tick."""
    tick()
    time.sleep(after_tick)
    begun = time.monotonic()
    assert client.add("lock", "me", expire=lease)
    if touched:
        client.touch("lock", expire=touched)
    while client.get("lock"):
        time.sleep(0.001)
    return time.monotonic() - begun


def shortest_and_longest(lease, **how):
    """Of some tries: the machine may be busy just then, which makes a long one short and a short one long."""
    early = max(lasts(lease, 0, **how) for _ in range(4))
    late = min(lasts(lease, 0.9, **how) for _ in range(4))
    print(f"expire={lease} {how or ''}: {late:.2f} s if taken just before a tick, {early:.2f} s just after")
    return late, early


one, two = shortest_and_longest(1), shortest_and_longest(2)
touched = shortest_and_longest(60, touched=1)
expected = one[0] < 0.3 and one[1] > 0.8 and two[0] < 1.3 and two[1] > 1.8 and touched[0] < 0.3
sys.exit(None if expected else "the behaviour has changed")
PYTHON
