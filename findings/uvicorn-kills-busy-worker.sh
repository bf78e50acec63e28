#!/usr/bin/env bash
# The guess: uvicorn --workers starts a worker again when it has died. One that is busy is left to its work, at most it
#   answers late.
# Instead: the parent asks each worker twice a second, and one that does not answer within five seconds is killed by
#   SIGKILL. A thread answers, so an event loop that is blocked does no harm; but one call in C that keeps the GIL for
#   longer (a sum, a sort or a parser over much data; an extension) stops that thread, too. The worker is killed in the
#   middle: all its requests break, no finally runs, and the log says "died", at level INFO, as after a crash.
# Why it matters: a lock with a time limit then stays until that is over, and one that ends with the process is free in
#   the middle of a change, with nothing undone. Set --timeout-worker-healthcheck above the longest such call, or make
#   the call in a process of its own.
# Seen: uvicorn 0.54.0, Python 3.11, Linux, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install uvicorn==0.54.0 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

cat >"$dir/app.py" <<'PYTHON'
import os
import time
from pathlib import Path

home = Path(__file__).parent


def note(line):
    with (home / "notes").open("a") as notes:
        notes.write(f"{line} {os.getpid()}\n")


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    name = scope["path"].strip("/")
    note(f"begin-{name}")
    try:
        if name == "sleep":
            time.sleep(10)  # the event loop is blocked, the GIL is not
        elif name == "sum":
            sum(range(3 * 10**9))
    finally:
        note(f"finally-{name}")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})
PYTHON

timeout 300 "$python" - "$dir" <<'PYTHON'
import http.client
import signal
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

home = Path(sys.argv[1])
with socket.create_server(("127.0.0.1", 0)) as taken:
    port = taken.getsockname()[1]
print("uvicorn", version("uvicorn"), "Python", sys.version.split()[0])


def ask(path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=240)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except ConnectionRefusedError:
        return None
    except (ConnectionError, http.client.HTTPException) as error:
        return "broken" if isinstance(error, ConnectionError) else type(error).__name__


def notes(word):
    lines = (home / "notes").read_text().split() if (home / "notes").exists() else []
    return lines.count(word)


log = home / "log"
with log.open("w") as output:
    command = [sys.executable, "-m", "uvicorn", "app:app", "--workers", "2", "--port", str(port)]
    parent = subprocess.Popen(command, cwd=home, stdout=output, stderr=output)
try:
    deadline = time.monotonic() + 60
    while ask("/hello") != 200:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)
    seen = {}
    for name in ("sleep", "sum"):
        status = ask(f"/{name}")
        deadline = time.monotonic() + 30
        while name == "sum" and "died" not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.2)
        died = [line for line in log.read_text().splitlines() if "died" in line]
        seen[name] = status, notes(f"begin-{name}"), notes(f"finally-{name}"), len(died)
        print(f"{name}: answer {status}, begun and ended: {seen[name][1:3]}, what the log says: {died}")
finally:
    parent.send_signal(signal.SIGTERM)
    parent.wait(60)
expected = {"sleep": (200, 1, 1, 0), "sum": ("broken", 1, 0, 1)}
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
