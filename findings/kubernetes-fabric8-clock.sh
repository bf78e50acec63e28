#!/usr/bin/env bash
# The guess: Kubernetes' leader election does not depend on the clocks of the candidates: each waits until it has itself
#   seen the lease unchanged for its whole duration, as client-go does.
# Instead: fabric8's LeaderElector, the one of most Java operators, compares the `renewTime` in the lease with its own
#   clock. A candidate whose clock is ahead of the leader's by more than the lease's duration takes the lease at its
#   first look, between two renewals. The leader goes on until it looks next.
# Why it matters: two lead for up to a retry period, and no renewal was missed. A node whose clock runs ahead takes the
#   lead from each healthy leader. Let a fencing token decide (the lease's `leaseTransitions`), and watch the clocks.
# Seen: fabric8 kubernetes-client 7.1.0 (out of pyspark 4.0.1), driven by JPype 1.7.1, before an API server of this
#   script's own; Debian 12's faketime 0.9.10 for the other clock, 2026-11-30. Needs Java and faketime.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
for program in java faketime; do
  command -v "$program" >/dev/null || { echo "this finding needs $program" >&2; exit 69; }
done
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
pip() { "$python" -m pip -q --disable-pip-version-check "$@" 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }; }
pip install jpype1==1.7.1
pip download --no-deps -d "$dir" pyspark==4.0.1
tar -xzf "$dir/pyspark-4.0.1.tar.gz" -C "$dir" --strip-components=2 --wildcards '*/jars/kubernetes-*' \
  '*/jars/jackson-*' '*/jars/snakeyaml-*' '*/jars/vertx-*' '*/jars/netty-*' '*/jars/zjsonpatch-*' '*/jars/slf4j-api-*'
basename -a "$dir"/jars/kubernetes-client-[0-9]*

cat >"$dir/candidate.py" <<'PYTHON'
import sys
import time

import jpype

jars, url, name = sys.argv[1:]
jpype.startJVM("-Xmx64m", "-Dslf4j.internal.verbosity=ERROR", classpath=[jars])
fabric8 = "io.fabric8.kubernetes.client."
seconds = jpype.JClass("java.time.Duration").ofSeconds


def say(what):
    return jpype.JProxy("java.lang.Runnable", dict={"run": lambda: print(what, flush=True)})


config = jpype.JClass(fabric8 + "ConfigBuilder")().withMasterUrl(url).build()
client = jpype.JClass(fabric8 + "KubernetesClientBuilder")().withConfig(config).build()
election = fabric8 + "extended.leaderelection."
ignored = jpype.JProxy("java.util.function.Consumer", dict={"accept": lambda leader: None})
callbacks = jpype.JClass(election + "LeaderCallbacks")(say("leads"), say("stops"), ignored)
builder = jpype.JClass(election + "LeaderElectionConfigBuilder")().withName("jobs")
builder.withLock(jpype.JClass(election + "resourcelock.LeaseLock")("default", "jobs", name))
builder.withLeaseDuration(seconds(15)).withRenewDeadline(seconds(10)).withRetryPeriod(seconds(2))
client.leaderElector().withConfig(builder.withLeaderCallbacks(callbacks).build()).build().start()
time.sleep(200)
PYTHON

timeout 250 "$python" - "$dir" <<'PYTHON'
import http.server
import json
import signal
import subprocess
import sys
import threading
import time

signal.signal(signal.SIGTERM, lambda *_: sys.exit("out of time"))
folder = sys.argv[1]
AHEAD = 60
leases = []  # each that was written, and when
one_by_one = threading.Lock()


class Server(http.server.BaseHTTPRequestHandler):
    """As much of an API server as one lease needs."""

    protocol_version = "HTTP/1.1"

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status, reason):
        self.answer(status, {"kind": "Status", "status": "Failure", "reason": reason, "code": status, "message": ""})

    def do_GET(self):
        if leases:
            self.answer(200, leases[-1][1])
        else:
            self.refuse(404, "NotFound")

    def write(self):
        change = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with one_by_one:
            old = leases[-1][1] if leases else {"metadata": {}, "spec": {}}
            version = old["metadata"].get("resourceVersion")
            if change["metadata"].get("resourceVersion") != version:
                return self.refuse(409, "Conflict")
            new = {**change, "spec": {**old["spec"], **change["spec"]}}
            new["metadata"]["resourceVersion"] = str(len(leases) + 1)
            leases.append((time.monotonic(), new))
        self.answer(200, new)

    do_POST = do_PUT = do_PATCH = write

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
candidates = []
log = open(f"{folder}/candidates.log", "ab")


class Candidate:
    def __init__(self, name, *clock):
        url = f"http://127.0.0.1:{server.server_port}"
        command = [*clock, sys.executable, f"{folder}/candidate.py", f"{folder}/jars/*", url, name]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        candidates.append(self.process)
        self.said = {}
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.process.stdout:
            self.said[line.strip()] = time.monotonic()

    def wait_for(self, what, seconds):
        deadline = time.monotonic() + seconds
        while what not in self.said and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.said.get(what)


try:
    first = Candidate("first")
    assert first.wait_for("leads", 60)
    equal = Candidate("equal").wait_for("leads", 25)
    ahead = Candidate("ahead", "faketime", "-f", f"+{AHEAD}s")
    assert ahead.wait_for("leads", 60)
    stops = first.wait_for("stops", 20)
finally:
    for process in candidates:
        process.kill()
        process.wait()
turns = [(when, lease["spec"]["holderIdentity"]) for when, lease in leases]
[(renewed, _), (taken, holder)] = next(pair for pair in zip(turns, turns[1:]) if pair[0][1] != pair[1][1])
print("a candidate of the same clock led while the leader lived:", equal is not None)
print(f"one that is {AHEAD} s ahead took the lease of 15 s, {taken - renewed:.1f} s after it was renewed")
print(f"  the first one led for {stops - taken:.1f} s more")
followed = equal is None and holder == "ahead" and taken - renewed < 15
sys.exit(None if followed else "the behaviour has changed")
PYTHON
