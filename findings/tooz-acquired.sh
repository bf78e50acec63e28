#!/usr/bin/env bash
# The guess: after the session has ended, the `acquired` of tooz's ZooKeeper lock is false, or the heartbeat that tooz
#   asks for says so; release() then returns False.
# Instead: `acquired` stays True while another process has the lock, heartbeat() succeeds (it does nothing with this
#   driver), and release() returns True. Only `is_still_owner()` asks the server.
# Why it matters: code that looks at `acquired` before it writes, as tooz's interface suggests for every driver, goes
#   on writing beside the next holder.
# Seen: tooz 9.1.0, kazoo 2.11.0, ZooKeeper 3.9.3 (out of pyspark 4.0.1), 2026-11-27. Needs Java.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
command -v java >/dev/null || { echo "this finding needs java" >&2; exit 69; }
dir=$(mktemp -d)
server=
cleanup() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" || true; fi
  rm -rf "$dir"
}
trap cleanup EXIT

python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
pip() { "$python" -m pip -q --disable-pip-version-check "$@" 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }; }
pip install kazoo==2.11.0 tooz==9.1.0
pip download --no-deps -d "$dir" pyspark==4.0.1
tar -xzf "$dir/pyspark-4.0.1.tar.gz" -C "$dir" --strip-components=2 --wildcards \
  '*/jars/zookeeper-*' '*/jars/netty-*' '*/jars/slf4j-api-*' '*/jars/snappy-java-*' '*/jars/metrics-core-*'

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
printf '%s\n' tickTime=500 "dataDir=$dir/data" "clientPort=$port" clientPortAddress=127.0.0.1 \
  admin.enableServer=false >"$dir/zoo.cfg"
java -Xmx128m -cp "$dir/jars/*" \
  org.apache.zookeeper.server.quorum.QuorumPeerMain "$dir/zoo.cfg" >"$dir/server.log" 2>&1 &
server=$!

basename "$dir"/jars/zookeeper-[0-9]*

cat >"$dir/first.py" <<'PYTHON'
import json
import logging
import sys
import time

from tooz import coordination

logging.disable()
coordinator = coordination.get_coordinator(sys.argv[1], b"first")
coordinator.start(start_heart=True)
lock = coordinator.get_lock(b"job")
print(lock.acquire(), flush=True)
sys.stdin.readline()  # stopped meanwhile, for longer than its session lasts
while True:  # until it is connected again
    try:
        coordinator.get_groups().get(timeout=5)
        owner = lock.is_still_owner()
        break
    except Exception:
        time.sleep(0.2)
coordinator.heartbeat()
print(json.dumps({"acquired": lock.acquired, "is_still_owner": owner, "release": lock.release()}), flush=True)
PYTHON
timeout 100 "$python" - "$dir" "$port" <<'PYTHON'
import json
import logging
import signal
import subprocess
import sys
from importlib.metadata import version

from tooz import coordination

print("tooz", version("tooz"), "kazoo", version("kazoo"))
logging.disable()
signal.signal(signal.SIGTERM, lambda *_: sys.exit("out of time"))
folder, port = sys.argv[1:]
url = f"zookeeper://127.0.0.1:{port}?timeout=3"
pipe = subprocess.PIPE
first = subprocess.Popen([sys.executable, f"{folder}/first.py", url], stdin=pipe, stdout=pipe, text=True)
try:
    got = first.stdout.readline().strip()
    second = coordination.get_coordinator(url, b"second")
    second.start(start_heart=True)
    lock = second.get_lock(b"job")
    first.send_signal(signal.SIGSTOP)
    taken = lock.acquire(timeout=60)
    first.send_signal(signal.SIGCONT)
    first.stdin.write("go on\n")
    first.stdin.flush()
    answers = json.loads(first.stdout.readline())
    has = lock.is_still_owner()
finally:
    first.kill()
    first.wait()
print("the first acquired:", got, "- stood still for longer than its session - the second acquired:", taken)
print("what the first says, while the second has the lock:", answers, "the second:", has)
expected = taken and has and answers == {"acquired": True, "is_still_owner": False, "release": True}
sys.exit(None if expected else "the behaviour has changed")
PYTHON
