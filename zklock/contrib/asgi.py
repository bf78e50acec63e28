"""Background work of an ASGI application: one of its worker processes does it, the others stand by.

For FastAPI, Starlette and whatever else has a lifespan; served by uvicorn, hypercorn, or gunicorn
with workers of uvicorn. Needs no extra.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any, Self

from zklock import aio
from zklock.contrib._clients import end
from zklock.contrib._health import PAUSE_SECONDS, BackgroundBase, Health, Reporter
from zklock.errors import LeaderStuck, NoAnswer

__all__ = ["Background", "Health"]


class Background(BackgroundBase[Callable[[aio.Leadership], Awaitable[object]]]):
    """Runs ``work(leadership)`` in one worker process of many: the one that leads the election.

    ``hosts``, ``timeout`` and further options are those of ``aio.connect()``. ``path`` is the
    election's znode. ``work`` is a coroutine function. It should run until
    ``leadership.should_stop`` is set; it is cancelled when the leadership is lost. When it returns,
    another process leads. ``identity`` and ``grace`` are those of ``aio.LeaderElection``.

    Use it as the lifespan (``FastAPI(lifespan=background.lifespan)``), or by ``async with
    background:`` inside a lifespan of your own. The application also starts and serves without
    ZooKeeper: it retries the connection until there is one.

    The object itself is an ASGI application that answers ``…/live``, ``…/ready`` and ``…/leader``:
    mount it somewhere. Each answer is that of the worker process that got the request.

    *Not guaranteed:* that two processes never work at the same instant. See ``LeaderElection``.
    """

    _AWAITS = True
    _election: aio.LeaderElection | None = None
    _task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:
        """Stand for election while the application is up."""
        del app
        async with self:
            yield

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise RuntimeError("this Background already runs: make one for each application")
        self._report = Reporter()
        self._task = asyncio.create_task(self._run(), name="zklock-background")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Have the work end, and hand the leadership over; at most three times ``grace``."""
        task, election = self._task, self._election
        assert task is not None
        try:
            if election is None:
                task.cancel()
            else:
                election.stop()
            # The election cancels the work after its grace, and gives it up after another.
            if not (await asyncio.wait({task}, timeout=3 * self._grace))[0]:
                task.cancel()
                await asyncio.wait({task}, timeout=3 * self._grace)
        finally:
            self._task = None

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Answer a request for ``…/live``, ``…/ready`` or ``…/leader``."""
        if scope["type"] != "http":
            raise RuntimeError(f"mount it below an application: it has no {scope['type']}")
        status, body = self._report.answer(scope["method"], scope["path"])
        headers = [
            (b"content-type", b"application/json"),
            (b"cache-control", b"no-store"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": int(status), "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _run(self) -> None:
        report = self._report
        with self._reporting(report):
            client = await self._connect()
            try:
                self._has_found_zookeeper()
                report.client = client
                election = aio.LeaderElection(
                    client, self._path, identity=self._identity, grace=self._grace
                )
                report.identity = election.identity
                self._election = election
                with election.observe(report.heard):
                    report.standing = True
                    await election.run(self._lead)
            except LeaderStuck:
                client = None  # nobody else may lead before the work, or this process, has ended
                raise
            finally:
                report.standing = False
                self._election = None
                if client is not None:
                    await asyncio.to_thread(end, client)

    async def _connect(self) -> Any:
        while True:
            try:
                return await aio.connect(self._hosts, self._timeout, **self._options)
            except NoAnswer as error:
                self._waits_for_zookeeper(error)
                await asyncio.sleep(PAUSE_SECONDS)

    async def _lead(self, leadership: aio.Leadership) -> None:
        report = self._report
        report.leadership = leadership
        try:
            await self._work(leadership)
        finally:
            report.leadership = None
