"""``connect()`` for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from functools import partial
from types import TracebackType
from typing import Any

from zklock._kazoo.connect import (
    STUCK_SECONDS,
    Client,
    abandon,
    begin,
    end,
    new_client,
    no_server,
)
from zklock.aio.waiting import call_soon, in_thread


def connect(
    hosts: str = "127.0.0.1:2181",
    timeout: float = 10.0,
    *,
    start_timeout: float = 15.0,
    proofs: int | None = None,
    **kazoo_options: Any,
) -> Connecting:
    """Return an awaitable for a started client. The event loop is not blocked.

    ::

        client = await zklock.aio.connect(hosts)         # and client.stop() in a thread, at the end
        async with zklock.aio.connect(hosts) as client:  # stopped and closed at the end
            ...

    Arguments and errors are those of :func:`zklock.connect`. Wrong arguments are refused at the
    call. If it is cancelled while it connects, it leaves no client running. The client may also
    carry the locks of threads. A client of :func:`zklock.connect` may carry the locks of asyncio.
    """
    client = new_client(hosts, timeout, start_timeout=start_timeout, proofs=proofs, **kazoo_options)
    return Connecting(client, hosts, start_timeout)


class Connecting:
    """A client to start: ``await`` it once, or enter it once by ``async with``."""

    def __init__(self, client: Client, hosts: str, start_timeout: float) -> None:
        self._client = client
        self._hosts = hosts
        self._start_timeout = start_timeout
        self._loop: asyncio.AbstractEventLoop | None = None  # once it has begun

    def __await__(self) -> Generator[Any, None, Client]:
        return self._start().__await__()

    async def __aenter__(self) -> Client:
        return await self._start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._loop is not None
        ended = in_thread(self._loop, partial(end, self._client), "zklock-stop")
        if ended is not None:
            await ended

    async def _start(self) -> Client:
        if self._loop is not None:
            raise RuntimeError("connect() gives one client, once: call it again for another")
        self._loop = loop = asyncio.get_running_loop()
        started: asyncio.Future[Exception | None] = loop.create_future()

        def settle(outcome: Exception | None) -> None:
            if not started.done():
                started.set_result(outcome)

        def too_late() -> None:
            settle(no_server(self._client, self._hosts, self._start_timeout))

        timer = loop.call_later(self._start_timeout, too_late)
        try:
            begin(
                self._client,
                self._start_timeout,
                lambda error: call_soon(loop, partial(settle, error)) or self._abandon(),
            )
            error = await started
        except BaseException:
            self._abandon()
            raise
        finally:
            timer.cancel()
        if error is not None:
            if ended := self._abandon():
                await asyncio.wait([ended], timeout=STUCK_SECONDS)
            raise error
        return self._client

    def _abandon(self) -> asyncio.Future[None] | None:
        assert self._loop is not None
        return in_thread(self._loop, partial(abandon, self._client), "zklock-stop")
