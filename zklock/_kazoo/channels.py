"""The two ways to ask a server: through kazoo's public calls, and past kazoo (see ``gateway``)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from kazoo import exceptions

from zklock._ground.interrupts import may_be_interrupted
from zklock._kazoo import wire
from zklock._kazoo.client import Kazoo
from zklock._kazoo.failures import failed, translate
from zklock._kazoo.handler import Handler
from zklock._kazoo.paths import make_path, making
from zklock._kazoo.store import Asked, Channel, Landing, Store, shielded
from zklock._kazoo.watches import Watch as SetWatch
from zklock._kazoo.wire_request import WireRequest
from zklock._recipes.effects import (
    Batch,
    Check,
    Create,
    Delete,
    Exists,
    Failed,
    List,
    Listing,
    MakePath,
    Node,
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


class Answers:
    """Makes results of what kazoo's calls return; see ``wire``. ``makers`` are by kind of request.

    ``unchroot`` returns a path as this client knows it.
    """

    def __init__(
        self, is_mine: Callable[[int], bool], unchroot: Callable[[str], str] = lambda path: path
    ) -> None:
        self._is_mine = is_mine
        self._unchroot = unchroot
        self.makers: dict[type[Request], Callable[[Any, Any], Any]] = {
            Create: self._created,
            List: _listed,
            Watch: self._read,
            WatchList: _listed,
            WatchExists: self._seen,
            Read: self._read,
            Exists: self._seen,
            **dict.fromkeys((Transaction, Check), self._carried_out),
        }

    def _created(self, request: Create, value: Any) -> Node:
        path, stat = value
        return self._node(self._unchroot(path), request.data, stat)

    def _read(self, request: Watch | Read, value: Any) -> Node:
        return self._node(request.path, *value)

    def _seen(self, request: Exists | WatchExists, value: Any) -> Node | Failed:
        if value is None:
            return translate(exceptions.NoNodeError(), request.path)
        return self._node(request.path, b"", value)

    def _node(self, path: str, data: bytes | None, stat: Any) -> Node:
        """Return the node; its data are ``None`` if somebody has made it without any."""
        owner = stat.ephemeralOwner
        mine, times = self._is_mine(owner), (stat.ctime, stat.mtime)
        return Node(path, data or b"", owner, mine, stat.version, *times)

    def _carried_out(self, request: Transaction | Check, results: list[Any]) -> Any:
        refused = _refused(results)
        if refused is None:
            return None
        whole = request.operations if isinstance(request, Transaction) else (request,)
        operation = whole[results.index(refused)]
        node = operation.path if isinstance(operation, Write) else None
        return replace(failed(operation, refused), node=node)


def _listed(_: List | WatchList, value: Any) -> Listing:
    names, stat = value
    return Listing(names, stat.czxid, stat.cversion, stat.ctime, stat.dataLength)


def _refused(results: list[Any]) -> Exception | None:
    """Return the error for which nothing of a transaction was done; ``None``: all was done."""
    others = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
    errors = (each for each in results if isinstance(each, Exception))
    return next((error for error in errors if not isinstance(error, others)), None)


class KazooChannel:
    """Asks through kazoo's public calls: for clients with another handler than zklock's."""

    def __init__(self, client: Kazoo, answers: Answers, on_event: OnEvent) -> None:
        self._answers = answers
        self.hear: Callable[[Batch, float | None], bool] = lambda batch, seconds: False
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
            **dict.fromkeys((Transaction, Check), partial(_transaction, client)),
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
            make = self._answers.makers.get(type(request))
            put(None if make is None else make(request, answer.value))


class GatewayChannel:
    """Asks past kazoo: for clients with zklock's handler."""

    def __init__(
        self, client: Kazoo, handler: Handler, answers: Answers, on_event: OnEvent
    ) -> None:
        self._answers = answers
        self._client = client
        self._handler = handler
        self.hear = handler.hear
        self._told = shielded(on_event)  # one for all watches, as above

    def send(self, asked: list[Asked], landing: Landing | None = None) -> None:
        requests = []
        for request, body, put in asked:
            if isinstance(request, MakePath):  # it is asked alone
                self._make_path(request, put)
                return
            assert body is not None
            kind = wire.KINDS[type(request)]
            watch = None
            if isinstance(request, _WATCHING):
                path = wire.full_path(request.path, self._client.chroot)
                watch = SetWatch(kind.opcode, path, (self._told, request.path))
            heard = partial(self._heard, request, kind.decode, put)
            requests.append(WireRequest(body, heard, watch, landing))
        self._handler.write(requests, landing)

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
                if not isinstance(error, exceptions.KazooException) and may_be_interrupted():
                    raise  # a signal handler's
                put(failed(request, error))
            else:
                kind = wire.MAKE if creates else wire.KINDS[Exists]
                body = kind.encode(Exists(node), client.chroot, client.default_acl)
                self._handler.write([WireRequest(kind.head + body, go_on)])

        advance(None)

    def _heard(
        self,
        request: Request,
        decode: Callable[[bytes], Any] | None,
        put: Callable[[Any], None],
        code: int | None,
        body: bytes,
    ) -> None:
        """Take the reply to a request; see ``wire_request.Hear``."""
        result = None
        if code is None:
            result = failed(request, exceptions.ConnectionLoss())
        elif code:
            result = failed(request, wire.error_of(code))
        elif decode is not None:
            try:
                result = self._answers.makers[type(request)](request, decode(body))
            except Exception as error:
                if may_be_interrupted():  # a signal handler's
                    raise
                result = failed(request, error)  # the reply cannot be read
        put(result)


def _transaction(client: Kazoo, request: Transaction | Check) -> Any:
    transaction = client.transaction()
    for each in request.operations if isinstance(request, Transaction) else (request,):
        match each:
            case Delete(path, version):
                transaction.delete(path, version)
            case Write(path, data, version):
                transaction.set_data(path, data, version)
            case Check(path, version):
                transaction.check(path, version)
    return transaction.commit_async()


def open_store(
    client: Kazoo,
    on_event: OnEvent,
    is_mine: Callable[[int], bool],
    lock: AbstractContextManager[object],
) -> Store:
    """Return the store of a client. ``is_mine`` tells the present session's id."""
    channel: Channel
    if isinstance(client.handler, Handler):
        answers = Answers(is_mine, client.unchroot)
        channel = GatewayChannel(client, client.handler, answers, on_event)
    else:
        channel = KazooChannel(client, Answers(is_mine), on_event)
    return Store(client, channel, lock)
