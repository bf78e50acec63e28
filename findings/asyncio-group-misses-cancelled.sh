#!/usr/bin/env bash
# The guess: an asyncio.TaskGroup ends all its tasks as soon as one of them fails. So the work stops when the task
#   beside it, which renews the lease, can no longer do so.
# Instead: a task that ends by CancelledError counts as one that has ended well, even if nobody cancelled it. Libraries
#   raise that error for their own reasons: grpc.aio for each call whose channel is closed while it waits, say by the
#   part of the program that connects anew. The renewal is over, the work goes on, and the group ends without an error.
#   anyio's task group stops the work, and ends without an error, too.
# Why it matters: "renewal and work in one TaskGroup" is the usual way to tie a lock's life to its work. After such an
#   end nobody renews, the next holder comes in, and nothing is raised or logged. In the renewing task, catch
#   CancelledError, and raise another error unless `asyncio.current_task().cancelling()` counts a request.
# Seen: grpcio 1.85.3, anyio 4.16.0, Python 3.11.7, 3.12.1 and 3.13.0, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install grpcio==1.85.3 anyio==4.16.0 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }
cat >"$dir/group.py" <<'PYTHON'
import asyncio
import platform
import sys

import anyio
import grpc
from grpc import aio


class Leases(grpc.GenericRpcHandler):
    """A server whose renewals take their time."""

    def service(self, details):
        async def renew(_request, _context):
            await asyncio.sleep(60)
            return b""

        return grpc.unary_unary_rpc_method_handler(renew)


def guarded(renew):
    async def told(*arguments):
        try:
            await renew(*arguments)
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():
                raise
            raise RuntimeError("the lease cannot be renewed") from None

    return told


async def renew_by(channel):
    await channel.unary_unary("/leases/renew")(b"")


async def with_group(*tasks):
    async with asyncio.TaskGroup() as group:
        for task in tasks:
            group.create_task(task)


async def with_anyio(*tasks):
    async with anyio.create_task_group() as group:
        for task in tasks:
            group.start_soon(lambda task=task: task)


async def play(address, run, break_it, renew=renew_by):
    """How a program ends whose lease can no longer be renewed, and whether its work went on."""
    channel = aio.insecure_channel(address)
    worked = asyncio.Event()

    async def work():
        await asyncio.sleep(1)
        await break_it(channel)
        await asyncio.sleep(2)
        worked.set()

    try:
        await run(renew(channel), work())
        end = "no error"
    except BaseExceptionGroup as group:
        [error] = group.exceptions
        end = type(error).__name__
    await channel.close()
    return end, worked.is_set()


async def main():
    async def served(run, break_it, renew=renew_by):
        server = aio.server()
        server.add_generic_rpc_handlers([Leases()])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        found = await play(f"127.0.0.1:{port}", run, lambda channel: break_it(channel, server), renew)
        await server.stop(None)
        print(f"  {found[0]}, the work {'went on' if found[1] else 'was stopped'}")
        return found

    async def close(channel, _server):
        await channel.close()

    async def stop(_channel, server):
        await server.stop(None)

    print("Python", platform.python_version(), "grpcio", grpc.__version__)
    found = []
    for what, *arguments in (
        ("TaskGroup, the channel is closed:", with_group, close),
        ("anyio's task group, the channel is closed:", with_anyio, close),
        ("TaskGroup, the server stops:", with_group, stop),
        ("TaskGroup, the channel is closed, the renewal raises another error:", with_group, close, guarded(renew_by)),
    ):
        print(what)
        found.append(await served(*arguments))
    return found


seen = asyncio.run(main())
expected = [
    ("no error", True),
    ("no error", False),
    ("AioRpcError", False),
    ("RuntimeError", False),
]
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
GRPC_VERBOSITY=NONE timeout 60 "$python" "$dir/group.py"
