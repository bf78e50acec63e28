#!/usr/bin/env bash
# The guess: `client.add("lock", owner, expire=60)` of pymemcache returns True to the one that stored the key, and False
#   where the key is there: memcached's usual lock.
# Instead: by default the client sends "noreply" and does not wait for an answer: add(), replace() and delete() return
#   True whatever the server did. Everybody "has" the lock. Only cas(), incr() and decr() wait. HashClient and
#   PooledClient are the same.
# Why it matters: with one process everything looks right, and so does the key in the server: it is the first one's.
#   Pass `noreply=False` to each add(), or `default_noreply=False` to the client (as Django's cache backend does).
# Seen: pymemcache 4.0.0, memcached 1.6.18 (Debian 12), 2026-11-29.
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
timeout 60 "$python" - "$port" <<'PYTHON'
import sys
import time
from importlib.metadata import version

from pymemcache.client.base import Client, PooledClient
from pymemcache.client.hash import HashClient

server = ("127.0.0.1", int(sys.argv[1]))
print("pymemcache", version("pymemcache"))
deadline = time.monotonic() + 20
while True:
    try:
        Client(server).version()
        break
    except ConnectionRefusedError:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def locks(make):
    """What two clients are told that take one lock, whose it is, and what the second is told if it waits."""
    first, second = make(), make()
    first.delete("lock", noreply=False)
    told = first.add("lock", b"first", expire=60)
    assert first.get("lock") == b"first"  # the server has carried it out
    return told, second.add("lock", b"second", expire=60), second.get("lock"), second.add("lock", b"2", noreply=False)


ways = {
    "Client": lambda: Client(server),
    "PooledClient": lambda: PooledClient(server),
    "HashClient": lambda: HashClient([server]),
    "default_noreply=False": lambda: Client(server, default_noreply=False),
}
seen = {way: locks(make) for way, make in ways.items()}
for way, answers in seen.items():
    print(f"{way}: add() of the first, of the second, the key's value, add(noreply=False) of the second:", answers)
expected = {way: (True, way != "default_noreply=False", b"first", False) for way in ways}
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
