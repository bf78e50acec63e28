#!/usr/bin/env bash
# The guess: `with concurrency("database"):` of Prefect takes a slot under a lease: it comes free when the block ends,
#   and by the lease's time if the process dies; a restart of the server changes nothing, as its data are in its
#   database.
# Instead: the count of taken slots is in the database, and the leases are in the server's memory. A restart leaves
#   the count and forgets the leases: a block that ends afterwards frees nothing (its lease is unknown, and that is
#   taken for success), and nothing is left that could expire. The slot is taken for ever.
# Why it matters: a limit of 1 that was in use during one update of the server lets nobody in again, and everything
#   looks right: no holder, no lease, no error. Keep the leases elsewhere
#   (prefect.server.concurrency.lease_storage.filesystem, or prefect-redis), or reset the limit after each restart.
# Seen: prefect 3.9.1, 2026-11-28. It takes two minutes.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install prefect==3.9.1 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

timeout 360 "$python" - "$dir" <<'PYTHON'
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.metadata import version
from pathlib import Path

home = Path(sys.argv[1])
with socket.create_server(("127.0.0.1", 0)) as free:
    port = str(free.getsockname()[1])
api = f"http://127.0.0.1:{port}/api"
environment = {
    **os.environ,
    "DO_NOT_TRACK": "1",
    "PREFECT_API_URL": api,
    "PREFECT_HOME": str(home / "prefect"),
    "PREFECT_LOGGING_LEVEL": "ERROR",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_REPOSSESSOR_LOOP_SECONDS": "2",  # looks for expired leases
}
print("prefect", version("prefect"))


def call(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(api + path, data, {"Content-Type": "application/json"}, method=method)
    for again in range(30):
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if again and error.code == 409:  # it was done
                return None
            if error.code < 500:
                raise
            time.sleep(1)  # its database is busy, on a busy machine
    sys.exit(f"{path}: the server is busy for too long")


def server():
    with (home / "server.log").open("a") as log:
        command = [Path(sys.executable).with_name("prefect"), "server", "start", "--host", "127.0.0.1", "--port", port]
        process = subprocess.Popen([*command, "--no-ui"], env=environment, stdout=log, stderr=log)
    while process.poll() is None:
        try:
            call("GET", "/health")
        except OSError:
            time.sleep(0.5)
        else:
            return process
    sys.exit((home / "server.log").read_text())


def stop(process):
    process.terminate()
    process.wait(60)


HOLDER = """
import sys
from prefect.concurrency.sync import concurrency
try:
    with concurrency(sys.argv[1], lease_duration=60, timeout_seconds=5):
        print("in", flush=True)
        sys.stdin.readline()
    print("out", flush=True)
except TimeoutError:
    print("timed out", flush=True)
"""


def enter(limit):
    """A process that tries to enter the block, and what it says."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, limit],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return process, process.stdout.readline().strip()


def leave(process):
    process.stdin.write("\n")
    process.stdin.flush()
    said = process.stdout.readline().strip()
    process.wait(60)
    return said


def taken(limit):
    return call("GET", f"/v2/concurrency_limits/{limit}")["active_slots"]


running = server()
try:
    for limit in ("database", "other"):
        call("POST", "/v2/concurrency_limits/", {"name": limit, "limit": 1})
    holder, said = enter("database")
    before = said, taken("database"), leave(holder), taken("database")
    print("without a restart: entered, slots taken, left, slots taken:", before)

    holder, said = enter("database")
    stop(running)
    running = server()
    after = said, taken("database"), leave(holder), taken("database")
    print("with a restart during the block:", after)

    victim, said = enter("other")
    assert said == "in"
    victim.kill()
    victim.wait()
    deadline = time.monotonic() + 120
    while taken("other") and time.monotonic() < deadline:
        time.sleep(1)
    print("slots taken by a process that was killed after the restart, a lease later:", taken("other"))
    last, said = enter("database")
    last.wait(60)
    late = taken("other"), taken("database"), said
    print("the slot of the block that ended long ago:", late[1], "and who wants to enter:", said)
finally:
    stop(running)
expected = ("in", 1, "out", 0), ("in", 1, "out", 1), (0, 1, "timed out")
sys.exit(None if (before, after, late) == expected else "the behaviour has changed")
PYTHON
