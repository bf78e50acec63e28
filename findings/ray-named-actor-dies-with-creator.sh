#!/usr/bin/env bash
# The guess: a lock as a named Ray actor, `Lock.options(name="lock", get_if_exists=True).remote()`, is there for as long
#   as anybody has a handle: the first program makes it, the others get it.
# Instead: it belongs to the program that happened to make it. When that one ends, even as planned, it is killed,
#   with its state, although others have handles and one of them holds the lock. The holder learns of it by
#   ActorDiedError at its next call, if it makes one; the next program makes a new, free lock of the same name, and is
#   inside beside the holder.
# Why it matters: two drivers of one namespace (a nightly job and a notebook) exclude each other until the one that came
#   first has finished. Make such an actor with `lifetime="detached"`.
# Seen: Ray 2.60.0, 2026-11-29. It takes one to two minutes.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install ray==2.60.0 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

cat >"$dir/driver.py" <<'PYTHON'
import sys

import ray
from ray.exceptions import ActorDiedError

address, lifetime, who = sys.argv[1:]


@ray.remote(num_cpus=0)
class Lock:
    owner = None

    def acquire(self, who):
        self.owner = self.owner or who
        return self.owner == who

    def release(self, who):
        if self.owner == who:
            self.owner = None


ray.init(address=address, namespace="shop", logging_level="ERROR", log_to_driver=False)
lifetimes = {"lifetime": "detached"} if lifetime == "detached" else {}
lock = Lock.options(name=lifetime, get_if_exists=True, **lifetimes).remote()
print("ready", flush=True)
for line in sys.stdin:
    try:
        print(ray.get(getattr(lock, line.strip()).remote(who)), flush=True)
    except ActorDiedError:
        print("ActorDiedError", flush=True)
PYTHON

cat >"$dir/main.py" <<'PYTHON'
import subprocess
import sys
import time
from pathlib import Path

import ray

running = []


class Driver:
    """A program of its own that uses the lock."""

    def __init__(self, *arguments):
        command = [sys.executable, Path(__file__).with_name("driver.py"), *arguments]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, text=True, stderr=subprocess.DEVNULL, **pipes)
        running.append(self.process)

    def answer(self):
        return self.process.stdout.readline().strip()

    def ask(self, what):
        print(what, file=self.process.stdin, flush=True)
        return self.answer()

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)


def play(address, lifetime):
    """Whether the second gets the lock, whether a third does beside it, and what the second is told then."""
    one, two = Driver(address, lifetime, "one"), None
    assert one.answer() == "ready" and one.ask("acquire") == "True"
    two = Driver(address, lifetime, "two")
    assert two.answer() == "ready" and two.ask("acquire") == "False"
    one.ask("release")
    holds = two.ask("acquire")
    one.end()
    time.sleep(5)
    three = Driver(address, lifetime, "three")
    assert three.answer() == "ready"
    beside = three.ask("acquire")
    return holds, beside, two.ask("acquire")


print("Ray", ray.__version__)
options = {"include_dashboard": False, "num_cpus": 1, "object_store_memory": 100_000_000, "logging_level": "ERROR"}
context = ray.init(_node_ip_address="127.0.0.1", _temp_dir=sys.argv[1] + "/ray", **options)
try:
    usual, detached = (play(context.address_info["gcs_address"], name) for name in ("usual", "detached"))
finally:
    for process in running:
        process.kill()
        process.wait()
    ray.shutdown()
print("the second holds the lock, the first's program has ended: held:", usual[0], "a third gets it:", usual[1])
print("  and the second is told at its next call:", usual[2], "- the same with a detached actor:", detached)
expected = ("True", "True", "ActorDiedError"), ("True", "False", "True")
sys.exit(None if (usual, detached) == expected else "the behaviour has changed")
PYTHON
RAY_USAGE_STATS_ENABLED=0 timeout 200 "$python" "$dir/main.py" "$dir"
