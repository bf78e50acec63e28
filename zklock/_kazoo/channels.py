"""The two ways to ask a server: through kazoo's public calls, and past kazoo (see ``gateway``)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from kazoo import exceptions

from zklock._ground.interrupts import may_be_interrupted
from zklock._kazoo import wire
from zklock._kazoo.client import Kazoo
from zklock._kazoo.handler import Handler
from zklock._kazoo.paths import make_path, making
from zklock._kazoo.store import Answers, Asked, Channel, Landing, Store, failed, shielded
from zklock._kazoo.watches import Watch as SetWatch
from zklock._kazoo.wire_request import WireRequest
from zklock._recipes.effects import (
    Batch,
    Create,
    CreateAll,
    Delete,
    Exists,
    Expect,
    List,
    MakePath,
    Read,
    Request,
    Sync,
    Transaction,
    Watch,
    WatchExists,
    WatchList,
    Write,
)

OnEvent = Callable[[str, str | None], None]
"""Takes the kind and the path of an event, when a watch fires."""

_WATCHING = (Watch, WatchList, WatchExists)  # made once: `A | B` makes an object at each evaluation


class KazooChannel:
    """Asks through kazoo's public calls: for clients with another handler than zklock's."""

    def __init__(self, client: Kazoo, answers: Answers, on_event: OnEvent) -> None:
        self._answers = answers
        # One callable for all watches: kazoo keeps a set of callables for each path. So waiters
        # that gave up leave nothing behind in the client.
        watcher = shielded(lambda event: on_event(event.type, event.path))
        self._calls: dict[type[Request], Callable[[Any], Any]] = {
            Create: lambda it: client.create_async(
                it.prefix, it.data, ephemeral=True, sequence=True, include_data=True
            ),
            List: lambda it: client.get_children_async(it.path, include_data=True),
            Watch: lambda it: client.get_async(it.path, watch=watcher),
            WatchList: lambda it: client.get_children_async(
                it.path, watch=watcher, include_data=True
            ),
            WatchExists: lambda it: client.exists_async(it.path, watch=watcher),
            Read: lambda it: client.get_async(it.path),
            Exists: lambda it: client.exists_async(it.path),
            Write: lambda it: client.set_async(it.path, it.data, it.version),
            Sync: lambda it: client.sync_async(it.path),
            Delete: lambda it: client.delete_async(it.path, it.version),
            MakePath: lambda it: make_path(client, it.path),
            **dict.fromkeys(wire.TRANSACTIONS, partial(_transaction, client)),
        }

    def send(self, asked: list[Asked], landing: Landing | None = None) -> None:
        for request, _, put in asked:
            self._calls[type(request)](request).rawlink(
                shielded(partial(self._answered, request, put))
            )

    def _answered(self, request: Request, put: Callable[[Any], None], answer: Any) -> None:
        if answer.exception is not None:
            put(failed(request, answer.exception))
        else:
            put(self._answers.result(request, answer.value))

    def hear(self, batch: Batch, seconds: float | None) -> bool:
        return False


class GatewayChannel:
    """Asks past kazoo: for clients with zklock's handler."""

    def __init__(
        self, client: Kazoo, handler: Handler, answers: Answers, on_event: OnEvent
    ) -> None:
        self._answers = answers
        self._client = client
        self._handler = handler
        self._told = shielded(on_event)  # one for all watches, as above

    def send(self, asked: list[Asked], landing: Landing | None = None) -> None:
        if asked and isinstance(asked[0].request, MakePath):
            self._make_path(asked[0].request, asked[0].put)
        else:
            self._handler.write([self._wire_request(each, landing) for each in asked], landing)

    def _make_path(self, request: MakePath, put: Callable[[Any], None]) -> None:
        client, steps = self._client, making(request.path)

        def go_on(code: int | None, body: bytes = b"") -> None:
            answer: Any = True
            if code is None:
                answer = exceptions.ConnectionLoss()
            elif code:
                answer = wire.error_of(code)
            advance(answer)

        def advance(answer: Any) -> None:
            try:
                creates, node = steps.send(answer)
            except StopIteration:
                put(None)
            except Exception as error:
                if may_be_interrupted():  # a signal handler's
                    raise
                put(failed(request, error))
            else:
                encode = wire.making if creates else wire.ENCODERS[Exists]
                body = encode(Exists(node), client.chroot, client.default_acl)
                self._handler.write([WireRequest(body, go_on)])

        advance(None)

    def hear(self, batch: Batch, seconds: float | None) -> bool:
        return self._handler.hear(batch, seconds)

    def _wire_request(self, asked: Asked, landing: Landing | None) -> WireRequest:
        request, body, put = asked
        watch = None
        if isinstance(request, _WATCHING):
            path = wire.full_path(request.path, self._client.chroot)
            watch = SetWatch(wire.WATCHING[type(request)], path, (self._told, request.path))
        return WireRequest(body or b"", partial(self._heard, request, put), watch, landing)

    def _heard(
        self, request: Request, put: Callable[[Any], None], code: int | None, body: bytes
    ) -> None:
        """Take the reply to a request; see ``wire_request.Hear``."""
        if code is None:
            put(failed(request, exceptions.ConnectionLoss()))
        elif code:
            put(failed(request, wire.error_of(code)))
        else:
            put(self._result(request, body))

    def _result(self, request: Request, body: bytes) -> Any:
        decode = wire.DECODERS.get(type(request))
        if decode is None:
            return None
        try:
            value = decode(body)
            if isinstance(request, Create):
                path, stat = value
                value = self._client.unchroot(path), stat
            elif isinstance(request, CreateAll):
                value = [
                    self._client.unchroot(each) if isinstance(each, str) else each for each in value
                ]
            return self._answers.result(request, value)
        except Exception as error:
            if may_be_interrupted():  # a signal handler's
                raise
            return failed(request, error)  # the reply cannot be read


def _transaction(client: Kazoo, request: Transaction) -> Any:
    transaction = client.transaction()
    for each in request.operations:
        match each:
            case Create():
                transaction.create(each.prefix, each.data, ephemeral=True, sequence=True)
            case Delete(path, version):
                transaction.delete(path, version)
            case Write(path, data, version):
                transaction.set_data(path, data, version)
            case Expect(path, version):
                transaction.check(path, version)
    return transaction.commit_async()


def open_store(
    client: Kazoo,
    on_event: OnEvent,
    is_mine: Callable[[int], bool],
    lock: AbstractContextManager[object],
) -> Store:
    """Return the store of a client. ``is_mine`` tells the present session's id."""
    answers = Answers(is_mine)
    channel: Channel
    if isinstance(client.handler, Handler):
        channel = GatewayChannel(client, client.handler, answers, on_event)
    else:
        channel = KazooChannel(client, answers, on_event)
    return Store(client, channel, lock)
