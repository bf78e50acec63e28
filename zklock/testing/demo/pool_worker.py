"""A worker process of the pool's demo.

``python -m zklock.testing.demo.pool_worker NAME FRONT HOSTS TIMEOUT PATH SHARDS`` joins the pool,
as a worker of threads or of asyncio. It takes commands, one JSON object a line, on its standard
input, and reports events on its standard output. ``{"do": "drain"}`` gives up all shards. ``{"do":
"quit"}`` leaves the pool and ends. If the input ends without that, the process ends at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import zklock
from zklock import aio
from zklock._core.grant import GrantBase
from zklock._ground.clock import clock
from zklock.testing.demo.events import Event

LOOK_EVERY = 0.05
"""Seconds between two looks at what is held."""


class PoolWorker:
    """One member of the pool."""

    def __init__(self, name: str, hosts: str, timeout: float, path: str, shards: int) -> None:
        self._name = name
        self._saying = threading.Lock()
        self._client = zklock.connect(hosts, timeout)
        self._pool = self._join(
            self._client,
            path,
            shards=shards,
            identity=name,
            on_assigned=self._assigned,
            on_revoked=self._revoked,
        )

    _join: Callable[..., Any] = zklock.WorkerPool

    def run(self) -> None:
        """Work until told to quit."""
        timeout = self._client.handler.session_timeout
        self._say("ready", pid=os.getpid(), session_timeout=timeout)
        over = threading.Event()
        looking = threading.Thread(target=self._look, args=(over,), name="demo-look")
        looking.start()
        self._work()
        over.set()
        looking.join()
        self._client.stop()
        self._client.close()

    def _work(self) -> None:
        with self._pool as pool:
            for line in sys.stdin:
                match json.loads(line)["do"]:
                    case "drain":
                        pool.drain()
                        self._say("drained")
                    case "quit":
                        return
            os._exit(os.EX_UNAVAILABLE)  # nobody is left to report to

    def _look(self, over: threading.Event) -> None:
        leads = False
        while not over.wait(LOOK_EVERY):
            at = clock()
            held = {number: str(grant.token) for number, grant in self._pool.owned().items()}
            self._say("look", at=at, held=held)
            if leads != self._pool.is_leader:
                leads = not leads
                self._say("leads" if leads else "follows")

    def _assigned(self, shard: int, grant: GrantBase) -> None:
        self._say("granted", shard=shard, token=str(grant.token), node=grant.path)

    def _revoked(self, shard: int, grant: GrantBase) -> None:
        at, told = clock(), {"shard": shard, "token": str(grant.token)}
        try:
            grant.check()
        except zklock.LockLost as lost:
            loss = lost.loss
            assert loss is not None
            told |= {
                "reason": loss.reason.name,
                "noticed": loss.noticed,
                "lease_end": loss.lease_end,
            }
            self._say("lost", at=at, **told)
        else:
            self._say("released", at=at, **told)

    def _say(self, what: str, *, at: float | None = None, **data: Any) -> None:
        event = Event(clock() if at is None else at, 0, self._name, what, data)
        with self._saying:
            sys.stdout.write(event.to_json() + "\n")
            sys.stdout.flush()


class AioPoolWorker(PoolWorker):
    """A member whose pool belongs to an event loop."""

    _join = aio.WorkerPool

    def _work(self) -> None:
        asyncio.run(self._work_on_loop())

    async def _work_on_loop(self) -> None:
        async with self._pool as pool:
            while line := await asyncio.to_thread(sys.stdin.readline):
                match json.loads(line)["do"]:
                    case "drain":
                        await pool.drain()
                        self._say("drained")
                    case "quit":
                        return
            os._exit(os.EX_UNAVAILABLE)


FRONTS = {"threads": PoolWorker, "asyncio": AioPoolWorker}


def main(arguments: list[str]) -> None:
    """Run a worker."""
    name, front, hosts, timeout, path, shards = arguments
    FRONTS[front](name, hosts, float(timeout), path, int(shards)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
