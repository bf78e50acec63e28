"""Fifty asyncio tasks in one queue: the lock is granted in the order of asking."""

import asyncio
import os
import sys

from zklock import aio


async def main() -> None:
    """Queue fifty tasks behind a holder, then let them through."""
    hosts = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ZKLOCK_HOSTS", "127.0.0.1:2181")
    order: list[int] = []
    async with aio.connect(hosts) as client:
        lock = aio.Lock(client, "/examples/tasks")

        async def task(number: int) -> None:
            async with lock as grant:
                grant.check()
                order.append(number)

        async with asyncio.TaskGroup() as tasks, lock:
            for number in range(50):
                tasks.create_task(task(number))
            while len(await lock.contenders()) < 51:
                await asyncio.sleep(0.01)
            print("granted beside the holder:", len(order))
    print("in the order of asking:", order == sorted(order), len(order))


if __name__ == "__main__":
    asyncio.run(main())
