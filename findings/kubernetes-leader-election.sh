#!/usr/bin/env bash
# The guess: with the Python client's LeaderElection, leadership and the leader's work begin and end together.
# Instead: when the work returns, the lease is renewed for ever and nobody leads; when the lease is lost, the work
#   goes on in its thread: `onstopped_leading` is called, nothing stops `onstarted_leading`, and the next leader's
#   work runs beside it.
# Why it matters: a leader whose work ended keeps all stand-bys out; a deposed leader goes on writing. The work has
#   to look at a flag that `onstopped_leading` sets, and must raise (not return) to give up leadership.
# Seen: kubernetes 37.0.2 (kubernetes.leaderelection), 2026-11-27. The API server's object is held in memory here;
#   the election uses it through its three methods get, create and update.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install kubernetes==37.0.2 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

timeout 100 "$python" -u - <<'PYTHON'
import json
import sys
import threading
import time
from types import SimpleNamespace

import kubernetes
from kubernetes.leaderelection import electionconfig, leaderelection

print("kubernetes", kubernetes.__version__)


class Api:
    """One ConfigMap's worth of an API server."""

    def __init__(self):
        self.record, self.writers, self.cut_off, self.mutex = None, [], set(), threading.Lock()


class ResourceLock:
    name, namespace = "job", "default"

    def __init__(self, api, identity):
        self.api, self.identity = api, identity

    def get(self, name, namespace):
        with self.api.mutex:
            if self.identity in self.api.cut_off:
                return False, SimpleNamespace(body=json.dumps({"code": 503}), reason="unavailable")
            if self.api.record is None:
                return False, SimpleNamespace(body=json.dumps({"code": 404}), reason="not found")
            return True, self.api.record

    def create(self, name, namespace, election_record):
        return self.update(name, namespace, election_record)

    def update(self, name, namespace, election_record):
        with self.api.mutex:
            if self.identity in self.api.cut_off:
                return False
            self.api.record = election_record
            self.api.writers.append(self.identity)
            return True


def candidate(api, identity, work, stopped):
    lock = ResourceLock(api, identity)
    config = electionconfig.Config(
        lock, lease_duration=3, renew_deadline=2, retry_period=1, onstarted_leading=work, onstopped_leading=stopped
    )
    threading.Thread(target=leaderelection.LeaderElection(config).run, daemon=True).start()


def nothing():
    pass


api = Api()
returned = threading.Event()
candidate(api, "first", returned.set, nothing)
returned.wait(20)
at_return = len(api.writers)
second_leads = threading.Event()
candidate(api, "second", second_leads.set, nothing)
second_leads.wait(8)
renewals = len(api.writers) - at_return
print(f"the first leader's work has returned; renewals since, in more than two lease times: {renewals};",
      "second leads:", second_leads.is_set())

api = Api()
first_stopped, second_works, first_works = threading.Event(), threading.Event(), threading.Event()
beats = []


def first_work():
    first_works.set()
    while True:
        beats.append(time.monotonic())
        time.sleep(0.05)


candidate(api, "first", first_work, first_stopped.set)
first_works.wait(20)
candidate(api, "second", second_works.set, nothing)
api.cut_off.add("first")
stopped, replaced = first_stopped.wait(30), second_works.wait(30)
before = len(beats)
time.sleep(1)
print("first cut off: onstopped_leading called:", stopped, "second works:", replaced,
      "first still works:", len(beats) > before)
expected = renewals >= 2 and not second_leads.is_set() and stopped and replaced and len(beats) > before
sys.exit(None if expected else "the behaviour has changed")
PYTHON
