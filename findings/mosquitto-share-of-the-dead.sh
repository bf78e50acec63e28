#!/usr/bin/env bash
# The guess: a shared subscription (`$share/workers/jobs`) hands each message to one member of the group that is there.
#   If a worker dies, the others get its share.
# Instead: mosquitto goes on dealing in turns to a member whose session outlives its connection, and keeps that share
#   for it. With two workers, every second job waits for the dead one, beside an idle worker that could do it.
# Why it matters: a session that lasts (`clean_session=False`, or a SessionExpiryInterval) is what one takes so that no
#   job is lost. With client ids that are names of pods, the dead one never comes back: its share is not done, of new
#   jobs, too, until its session expires, which it never does by default in MQTT 3.1.1. Nothing tells the others or the
#   producer. Give workers sessions that end with the connection, or short ones, and let somebody look for what was not
#   done.
# Seen: mosquitto 2.0.11 (Debian 12), paho-mqtt 2.2.0, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
PATH=$PATH:/usr/sbin
version=$(mosquitto -h 2>/dev/null | head -1 || true)
case $version in
  *" 2.0."*) echo "$version" ;;
  *) echo "this finding needs mosquitto 2.0 (Debian 12: mosquitto)" >&2; exit 69 ;;
esac
dir=$(mktemp -d)
broker=
cleanup() {
  if [ -n "$broker" ]; then kill "$broker" 2>/dev/null || true; wait "$broker" || true; fi
  rm -rf "$dir"
}
trap cleanup EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install paho-mqtt==2.2.0 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
printf '%s\n' "listener $port 127.0.0.1" 'allow_anonymous true' >"$dir/mosquitto.conf"
mosquitto -c "$dir/mosquitto.conf" >"$dir/broker.log" 2>&1 &
broker=$!
cat >"$dir/worker.py" <<'PYTHON'
import sys

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

port, name, group, expiry = sys.argv[1:]
client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv5)
session = Properties(PacketTypes.CONNECT)
session.SessionExpiryInterval = int(expiry)
client.on_message = lambda _client, _data, message: print(message.payload.decode(), flush=True)
client.on_subscribe = lambda *_: print("ready", flush=True)
client.connect("127.0.0.1", int(port), clean_start=False, properties=session)
client.subscribe(f"$share/workers/{group}", qos=1)
client.loop_forever()
PYTHON

timeout 100 "$python" - "$port" "$dir" <<'PYTHON'
import subprocess
import sys
import time
from importlib.metadata import version

import paho.mqtt.client as mqtt

port, folder = sys.argv[1:]
workers = []
print("paho-mqtt", version("paho-mqtt"))


class Worker:
    def __init__(self, name, group, expiry):
        self.path = f"{folder}/{name}"
        command = [sys.executable, f"{folder}/worker.py", port, name, group, str(expiry)]
        with open(self.path, "w") as out:
            self.process = subprocess.Popen(command, stdout=out)
        workers.append(self.process)
        self.until(lambda lines: "ready" in lines)

    def got(self):
        with open(self.path) as lines:
            return lines.read().split()

    def until(self, condition):
        deadline = time.monotonic() + 30
        while not condition(self.got()):
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def jobs(self):
        return sorted(int(line) for line in self.got() if line.isdigit())

    def kill(self):
        self.process.kill()
        self.process.wait()


def publish(group, jobs):
    producer = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=f"producer-{group}", protocol=mqtt.MQTTv5)
    producer.connect("127.0.0.1", int(port))
    producer.loop_start()
    for job in jobs:
        producer.publish(group, str(job), qos=1).wait_for_publish(20)
    producer.disconnect()
    producer.loop_stop()


def play(group, expiry):
    """Jobs that the living worker gets after the other's death, and those that the dead one gets when it comes back."""
    one, two = Worker(f"one-{group}", group, expiry), Worker(f"two-{group}", group, expiry)
    publish(group, range(10))
    one.until(lambda lines: len(one.jobs()) + len(two.jobs()) == 10)
    two.kill()
    time.sleep(3)  # the broker is told by the kernel
    before = one.jobs()
    publish(group, range(10, 20))
    time.sleep(5)
    done = [job for job in one.jobs() if job not in before]
    back = Worker(f"two-{group}", group, expiry)
    time.sleep(2)
    print(f"session of {expiry} s: of ten jobs the living worker gets {done}, the one that comes back {back.jobs()}")
    return len(done), len(back.jobs())


try:
    seen = play("kept", 3600), play("dropped", 0)
finally:
    for process in workers:
        process.kill()
        process.wait()
sys.exit(None if seen == ((5, 5), (10, 0)) else "the behaviour has changed")
PYTHON
