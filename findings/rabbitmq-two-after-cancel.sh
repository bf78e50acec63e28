#!/usr/bin/env bash
# The guess: on a queue with a single active consumer, only one consumer at a time has messages. When the active one
#   leaves by `basic.cancel`, the next one begins once the messages that it still has are acknowledged or given back.
# Instead: on a quorum queue the next consumer gets its first message at once, while the last one still works on its
#   own. On a classic queue with messages waiting the opposite happens: the next consumer gets nothing, not even when
#   the last one has acknowledged all, until that one's channel is closed.
# Why it matters: cancel, finish the work, acknowledge, close is how consumers stop in good order (pika's
#   `stop_consuming`, Celery's warm shutdown). So each deployment puts two workers beside each other in a queue that was
#   made for one, or stops the queue until the slowest job is done and its channel closed. If order or exclusion matter,
#   finish all messages before the cancel, with a prefetch of 1.
# Seen: RabbitMQ 3.10.8 (Debian 12: rabbitmq-server), pika 1.4.4, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
broker=/usr/lib/rabbitmq/bin/rabbitmq-server
version=$(cd /usr/lib/rabbitmq/lib 2>/dev/null && echo rabbitmq_server-*) || true
case $version in
  rabbitmq_server-3.10.*) echo "$version" ;;
  *) echo "this finding needs RabbitMQ 3.10 (Debian 12: rabbitmq-server)" >&2; exit 69 ;;
esac
dir=$(mktemp -d)
pids=()
cleanup() {
  for pid in "${pids[@]}"; do
    kill "$pid" 2>/dev/null || true
    wait "$pid" || true
  done
  rm -rf "$dir"
}
trap cleanup EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install pika==1.4.4 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }
read -r port peers names < <("$python" -c 'import socket
taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(listener.getsockname()[1] for listener in taken))')
export HOME=$dir ERL_EPMD_PORT=$names ERL_EPMD_ADDRESS=127.0.0.1
epmd >"$dir/epmd.log" 2>&1 &  # else the broker starts one that outlives it
pids+=($!)
echo '[].' >"$dir/plugins"
RABBITMQ_NODENAME=finding@localhost RABBITMQ_NODE_IP_ADDRESS=127.0.0.1 RABBITMQ_NODE_PORT=$port \
  RABBITMQ_DIST_PORT=$peers RABBITMQ_MNESIA_BASE=$dir/data RABBITMQ_LOG_BASE=$dir/log RABBITMQ_PID_FILE=$dir/pid \
  RABBITMQ_ENABLED_PLUGINS_FILE=$dir/plugins RABBITMQ_CONFIG_FILE=$dir/none RABBITMQ_CONF_ENV_FILE=$dir/none \
  "$broker" >"$dir/broker.log" 2>&1 &
pids+=($!)
timeout 90 sh -c "until grep -q 'Starting broker... completed' '$dir/broker.log'; do sleep 0.2; done" ||
  { cat "$dir/broker.log" >&2; exit 69; }

timeout 120 "$python" - "$port" <<'PYTHON'
import sys
import time

import pika


class Client:
    def __init__(self):
        self.connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", int(sys.argv[1])))
        self.channel = self.connection.channel()
        self.channel.basic_qos(prefetch_count=1)
        self.got, self.tags = [], []

    def consume(self, queue):
        def take(_channel, method, _properties, body):
            self.got.append(int(body))
            self.tags.append(method.delivery_tag)

        self.consumer = self.channel.basic_consume(queue, take)

    def look(self, seconds):
        """What has come up to now, after some seconds without anything new."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.connection.process_data_events(time_limit=0.2)
        return list(self.got)


def play(kind):
    producer, old, new = Client(), Client(), Client()
    queue = f"jobs-{kind}"
    arguments = {"x-queue-type": kind, "x-single-active-consumer": True}
    producer.channel.queue_declare(queue, durable=True, arguments=arguments)
    for number in range(3):
        producer.channel.basic_publish("", queue, str(number).encode())
    old.consume(queue)
    assert old.look(2) == [0]
    new.consume(queue)
    found = {"before the cancel": new.look(2)}
    old.channel.basic_cancel(old.consumer)
    found["after it, while the last one works"] = new.look(5)
    old.channel.basic_ack(old.tags[0])
    old.look(0.5)
    found["after the last one's acknowledgement"] = new.look(5)
    old.connection.close()
    found["after the last one's close"] = new.look(2)
    print(f"{kind}: the next consumer has " + ", ".join(f"{jobs} {when}" for when, jobs in found.items()))
    new.connection.close()
    producer.connection.close()
    return list(found.values())


print("pika", pika.__version__)
seen = play("quorum"), play("classic")
expected = [[], [1], [1], [1]], [[], [], [], [1]]
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
