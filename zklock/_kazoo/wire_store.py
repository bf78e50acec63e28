"""A store that sends its requests past kazoo, as wire requests (see ``gateway``)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from kazoo import exceptions

from zklock._ground.strikes import may_strike
from zklock._kazoo import wire
from zklock._kazoo.client import Kazoo
from zklock._kazoo.gateway import GatewaySocket
from zklock._kazoo.handler import Handler
from zklock._kazoo.store import (
    MAX_REQUEST,
    Results,
    Store,
    _Landing,
    _too_large,
    failed,
    shielded,
)
from zklock._kazoo.watches import Watch as SetWatch
from zklock._kazoo.wire_request import WireRequest
from zklock._recipes.effects import (
    Batch,
    Create,
    CreateAll,
    List,
    Request,
    Watch,
    WatchExists,
    WatchList,
)

_WATCHING = (Watch, WatchList, WatchExists)  # made once: `A | B` makes an object at each evaluation


class AwaitedLanding(_Landing):
    """The landing of a batch that a caller waits for, and may read the replies to."""

    def complete(self) -> None:
        """Complete it: what was not heard counts as dropped."""
        for slot, request in enumerate(self.batch):
            self._results.setdefault(slot, failed(request, exceptions.ConnectionLoss()))
        self._finish()


class WireStore(Store):
    """Sends batches as wire requests where it can, else through kazoo as the other store does."""

    def __init__(
        self,
        client: Kazoo,
        on_event: Callable[[str, str | None], None],
        is_mine: Callable[[int], bool],
        lock: AbstractContextManager[object],
        *,
        handler: Handler,
    ) -> None:
        super().__init__(client, on_event, is_mine, lock)
        self._carrier = handler
        # One for all watches: a set of callables is kept for each path. So waiters that gave up
        # leave nothing behind.
        self._told = shielded(on_event)

    def send_batch(self, batch: Batch, done: Callable[[Results], None]) -> None:
        try:
            super().send_batch(batch, done)
            self._carrier.rouse()
        except BaseException:
            self._carrier.nudge()  # what is in line is sent, and what kazoo has queued
            raise

    def send_awaited(self, batch: Batch, done: Callable[[Results], None]) -> None:
        """Send a batch that the caller waits for; the caller may read the replies to it.

        It can if the batch needs nothing of others, and is sent at once (see ``gateway``).
        """
        line = self._carrier.open_connection
        if line is None or not self._depart(line, batch, done):
            self.send_batch(batch, done)

    def hear(self, batch: Batch, seconds: float | None) -> bool:
        return self._carrier.hear(batch, seconds)

    def _depart(self, line: GatewaySocket, batch: Batch, done: Callable[[Results], None]) -> bool:
        """Send a batch whose replies the caller may read; return whether it can go so."""
        landing = AwaitedLanding(batch, done)
        wire_requests = self._wire_requests_of(line, landing)
        if wire_requests is None:
            return False
        try:
            self._carrier.depart(wire_requests, landing)
        except BaseException:
            self._carrier.nudge()
            raise
        return True

    def _wire_requests_of(
        self, line: GatewaySocket, landing: AwaitedLanding
    ) -> list[WireRequest] | None:
        """Return those of a batch; ``None`` if it has to go another way, or with others."""
        if self._makings.under_way:
            return None
        wire_requests = []
        chroot, acl = self._client.chroot, self._client.default_acl
        for slot, request in enumerate(landing.batch):
            encode = wire.ENCODERS.get(type(request))
            shares = isinstance(request, List) and request.path in self._listings.under_way
            if encode is None or shares:
                return None
            body = encode(request, chroot, acl)
            if len(body) > MAX_REQUEST:
                return None
            put = partial(landing.put, slot)
            wire_requests.append(self._wire_request(line, request, body, put, landing))
        return wire_requests

    def _ask(self, request: Request, put: Callable[[Any], None]) -> None:
        line, encode = self._carrier.open_connection, wire.ENCODERS.get(type(request))
        if line is None or encode is None:
            super()._ask(request, partial(self._answered, put))
            return
        body = encode(request, self._client.chroot, self._client.default_acl)
        if len(body) > MAX_REQUEST:
            put(_too_large(request, len(body)))
        else:
            # ``rouse()`` must follow. ``send_batch`` calls it once, for the whole batch. So does
            # whatever kazoo answers (see ``_answered``), and whoever hears replies.
            self._carrier.enqueue(self._wire_request(line, request, body, put))

    def _answered(self, put: Callable[[Any], None], result: Any) -> None:
        """Take kazoo's answer, on whichever thread, and send what has waited for it."""
        try:
            put(result)
        finally:
            self._carrier.rouse()

    def _wire_request(
        self,
        connection: GatewaySocket,
        request: Request,
        body: bytes,
        put: Callable[[Any], None],
        landing: AwaitedLanding | None = None,
    ) -> WireRequest:
        watch = None
        if isinstance(request, _WATCHING):
            path = wire.full_path(request.path, self._client.chroot)
            watch = SetWatch(wire.WATCHING[type(request)], path, (self._told, request.path))
        hear = partial(self._heard, request, put)
        return WireRequest(connection, body, hear, watch, landing)

    def _heard(
        self, request: Request, put: Callable[[Any], None], code: int | None, body: bytes
    ) -> None:
        """Take the reply to a request; see ``wire_requests.Hear``."""
        kind = type(request)
        decode = wire.DECODERS.get(kind)
        result: Any = None
        if code is None:
            result = failed(request, exceptions.ConnectionLoss())
        elif code:
            result = failed(request, wire.error_of(code))
        elif decode is not None:
            try:
                answer = decode(body)
                if isinstance(request, Create):
                    path, stat = answer
                    answer = self._client.unchroot(path), stat
                elif isinstance(request, CreateAll):
                    answer = [
                        self._client.unchroot(each) if isinstance(each, str) else each
                        for each in answer
                    ]
                result = self._values[kind](request, answer)
            except Exception as error:
                if may_strike():  # a signal handler's
                    raise
                result = failed(request, error)  # the reply cannot be read
        put(result)


def open_store(
    client: Kazoo,
    on_event: Callable[[str, str | None], None],
    is_mine: Callable[[int], bool],
    lock: AbstractContextManager[object],
) -> Store:
    """Return the store of a client: one with wire requests if it has zklock's handler."""
    if isinstance(client.handler, Handler):
        return WireStore(client, on_event, is_mine, lock, handler=client.handler)
    return Store(client, on_event, is_mine, lock)
