"""``connect()`` for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any

from zklock._ground.async_event import settle
from zklock._ground.context_exit import entered
from zklock._shell.connect import (
    STUCK_SECONDS,
    Client,
    abandon,
    begin,
    end,
    new_client,
    no_server,
    warn_of_chroot,
)
from zklock.aio.leaving import TaskEntersContext, held_from
from zklock.aio.waiting import call_soon, in_thread


def connect(
    hosts: str = "127.0.0.1:2181",
    timeout: float = 10.0,
    *,
    start_timeout: float = 15.0,
    **kazoo_options: Any,
) -> Connecting:
    """Return an awaitable for a started client. The event loop is not blocked.

    ::

        client = await zklock.aio.connect(hosts)  # client.stop() in a thread ends it
        async with zklock.aio.connect(hosts) as client:  # stopped and closed at the end
            ...

    Arguments and errors are those of :func:`zklock.connect`. Wrong arguments are refused at the
    call. If it is cancelled while it connects, it leaves no client running. The client may also
    carry the locks of threads. A client of :func:`zklock.connect` may carry the locks of asyncio.
    """
    client = new_client(hosts, timeout, start_timeout=start_timeout, **kazoo_options)
    return Connecting(client, hosts, start_timeout)


class Connecting(TaskEntersContext, Coroutine[Any, Any, Client]):
    """A client to start: ``await`` it once, or enter it once by ``async with``.

    It is a coroutine, so that ``asyncio.create_task`` takes it.
    """

    def __init__(self, client: Client, hosts: str, start_timeout: float) -> None:
        self._client = client
        self._hosts = hosts
        self._start_timeout = start_timeout
        self._loop: asyncio.AbstractEventLoop | None = None  # once it has begun
        self._steps: Coroutine[Any, Any, Client] | None = None  # of a task

    def __await__(self) -> Generator[Any, None, Client]:
        return self._start().__await__()

    def send(self, value: Any) -> Any:
        """Go on; for a task."""
        if self._steps is None:
            self._steps = self._start()
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:
        """Go on with an error; for a task."""
        if self._steps is None:
            self._steps = self._start()
        return self._steps.throw(*error)

    def close(self) -> None:
        """End it; for a task."""
        if self._steps is not None:
            self._steps.close()

    def __aenter__(self) -> Coroutine[Any, Any, Client]:
        return held_from(entered(self), self._start)

    def _abandon_body(self) -> None:
        self._give_up()

    async def _end_body(self, error: BaseException | None) -> None:
        assert self._loop is not None
        ended = in_thread(self._loop, partial(end, self._client), "zklock-stop")
        if ended is not None:
            await ended

    async def _start(self) -> Client:
        if self._loop is not None:
            raise RuntimeError("connect() makes one client: call it again for another")
        self._loop = loop = asyncio.get_running_loop()
        started: asyncio.Future[tuple[Exception | None, bool]] = loop.create_future()

        def too_late() -> None:
            error = no_server(self._client, self._hosts, self._start_timeout)
            settle(started, (error, False))

        timer = loop.call_later(self._start_timeout, too_late)
        try:
            begin(
                self._client,
                self._start_timeout,
                lambda *it: call_soon(loop, partial(settle, started, it)) or self._give_up(),
                lambda: loop.is_closed() and self._give_up(),
            )
            error, rootless = await started
            if rootless:
                warn_of_chroot(self._client)
        except BaseException:
            self._give_up()
            raise
        finally:
            timer.cancel()
        if error is not None:
            if ended := self._give_up():
                await asyncio.wait([ended], timeout=STUCK_SECONDS)
            raise error
        return self._client

    def _give_up(self) -> asyncio.Future[None] | None:
        assert self._loop is not None
        return in_thread(self._loop, partial(abandon, self._client), "zklock-stop")
