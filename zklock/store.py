"""Effects to kazoo's asynchronous calls, and kazoo's answers and errors back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from kazoo import exceptions

from zklock import names
from zklock.connection import Client, Handler, Inline
from zklock.effects import (
    Check,
    Create,
    Delete,
    Depart,
    Exists,
    Failed,
    Failure,
    Flight,
    HandOver,
    List,
    Listing,
    MakePath,
    Mark,
    Node,
    Read,
    Request,
    Sync,
    Watch,
    WatchExists,
    WatchList,
    Write,
    WriteAll,
)
from zklock.errors import AccessDenied, ZkLockError

Results: TypeAlias = tuple[Any, ...]

_WHY: tuple[tuple[type[Exception], Failure], ...] = (
    (exceptions.NoNodeError, Failure.MISSING),
    (exceptions.NotEmptyError, Failure.NOT_EMPTY),
    (exceptions.BadVersionError, Failure.CHANGED),
    (exceptions.NoAuthError, Failure.DENIED),
    (exceptions.InvalidACLError, Failure.DENIED),
    (exceptions.ConnectionLoss, Failure.DROPPED),
    (exceptions.ConnectionDropped, Failure.DROPPED),
    (exceptions.SessionExpiredError, Failure.DROPPED),
    (exceptions.SessionMovedError, Failure.DROPPED),
    (exceptions.AuthFailedError, Failure.DROPPED),
    (exceptions.OperationTimeoutError, Failure.DROPPED),
    (exceptions.RequestTimeoutError, Failure.DROPPED),
    (exceptions.NotReadOnlyCallError, Failure.DROPPED),
)

_HINTS: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.NoChildrenForEphemeralsError, "below an ephemeral znode: use another path"),
    (exceptions.QuotaExceededError, "its quota is used up: raise it, or use another path"),
)


def translate(error: Exception, path: str, lock_path: str | None = None) -> Failed:
    """Return kazoo's error as a failure, with the zklock error to raise for it."""
    lock_path = lock_path or path
    why = next((why for kind, why in _WHY if isinstance(error, kind)), Failure.OTHER)
    name = type(error).__name__
    raised: ZkLockError
    if why is Failure.DENIED:
        raised = AccessDenied(
            f"{path}: ZooKeeper's ACLs forbid it ({name}): this client needs create, delete and "
            "read permission on the lock's path, and read permission on its own contenders",
            path=lock_path,
        )
    else:
        hints = [hint for kind, hint in _HINTS if isinstance(error, kind)]
        what = "; ".join([why.value, *hints])
        raised = ZkLockError(f"{path}: {what} ({name}: {error})", path=lock_path)
    raised.__cause__ = error
    return Failed(why, raised)


class Store:
    """Sends flights over one client. ``on_event(kind, path)`` hears of every watch that fires."""

    def __init__(
        self,
        client: Client,
        on_event: Callable[[str, str | None], None],
        is_mine: Callable[[int], bool],
    ) -> None:
        self._handler = client.handler if isinstance(client.handler, Handler) else None
        # One callable for all watches: kazoo keeps a set of them for each path, so that waiters
        # that gave up leave nothing behind in the client.
        self._watcher = Inline(lambda event: on_event(event.type, event.path))
        self._is_mine = is_mine
        self._listings = _Listings(self._ask)
        self._calls: dict[type[Request], Callable[[Any], Any]] = {
            Create: lambda it: client.create_async(
                it.prefix, it.data, ephemeral=True, sequence=True, include_data=True
            ),
            List: lambda it: client.get_children_async(it.path, include_data=True),
            Watch: lambda it: client.get_async(it.path, watch=self._watcher),
            WatchList: lambda it: client.get_children_async(
                it.path, watch=self._watcher, include_data=True
            ),
            WatchExists: lambda it: client.exists_async(it.path, watch=self._watcher),
            Read: lambda it: client.get_async(it.path),
            Exists: lambda it: client.exists_async(it.path),
            Check: lambda it: _check(client, it.path),
            Write: lambda it: client.set_async(it.path, it.data, it.version),
            Mark: lambda it: _mark(client, it.path, it.data),
            WriteAll: lambda it: _write_all(client, it),
            Sync: lambda it: client.sync_async(it.path),
            Delete: lambda it: client.delete_async(it.path),
            Depart: lambda it: _depart(client, it.path, it.data),
            HandOver: lambda it: _hand_over(client, it),
            MakePath: lambda it: client.ensure_path_async(it.path),
        }
        self._values: dict[type[Request], Callable[[Any, Any], Any]] = {
            Create: self._created,
            List: _listed,
            Watch: self._read,
            WatchList: _listed,
            WatchExists: self._seen,
            Read: self._read,
            Exists: self._seen,
            Check: _carried_out,
            Mark: _carried_out,
            WriteAll: _carried_out,
            Depart: _carried_out,
            HandOver: _carried_out,
        }

    def fly(self, flight: Flight, done: Callable[[Results], None]) -> None:
        """Send the requests back to back; ``done(results)`` once, on any thread, when all are in.

        Does not block with zklock's handler.
        """
        landing = _Landing(len(flight), done)
        for slot, request in enumerate(flight):
            put = partial(landing.put, slot)
            if isinstance(request, List) and not isinstance(flight[0], Sync):
                self._listings.want(request, put)
            else:
                self._ask(request, put)

    def _ask(self, request: Request, put: Callable[[Any], None]) -> None:
        kind = type(request)
        call, value = self._calls[kind], self._values.get(kind)

        def answered(result: Any) -> None:
            if result.exception is not None:
                put(translate(result.exception, *_paths(request)))
            else:
                put(value(request, result.value) if value is not None else None)

        handler = self._handler
        if handler is not None:
            try:
                result = handler.run_inline(call, request)
            except BaseException:
                handler.nudge()
                raise
            if isinstance(result.exception, exceptions.ConnectionClosedError):
                handler.nudge()  # or kazoo took an interrupt for that
            result.rawlink(answered)
        else:
            call(request).rawlink(answered)

    def _created(self, request: Create, value: Any) -> Node:
        path, stat = value
        return self._node(path, request.data, stat)

    def _read(self, request: Watch | Read, value: Any) -> Node:
        return self._node(request.path, *value)

    def _seen(self, request: Exists | WatchExists, value: Any) -> Node | Failed:
        if value is None:
            return translate(exceptions.NoNodeError(), request.path)
        return self._node(request.path, b"", value)

    def _node(self, path: str, data: bytes, stat: Any) -> Node:
        owner = stat.ephemeralOwner
        return Node(path, data, owner, self._is_mine(owner), stat.version)


def _listed(_: List | WatchList, value: Any) -> Listing:
    names, stat = value
    return Listing(names, stat.czxid, stat.cversion)


def _carried_out(request: Request, results: list[Any]) -> Failed | None:
    refused = _refused(results)
    return None if refused is None else translate(refused, *_paths(request))


class _Landing:
    """Collects the results of a flight."""

    def __init__(self, count: int, done: Callable[[Results], None]) -> None:
        self._results: list[Any] = [None] * count
        self._missing = set(range(count))
        self._done = done

    def put(self, slot: int, result: Any) -> None:
        """Take one result; kazoo may complete a request twice when it is being stopped."""
        if slot in self._missing:
            self._results[slot] = result
            self._missing.discard(slot)
            if not self._missing:
                self._done(tuple(self._results))


class _Listings:
    """Lists a node once for all who ask while an earlier listing of it is under way.

    Each is given a listing that was asked for after it asked, and after what it asked before.
    """

    def __init__(self, ask: Callable[[List, Callable[[Any], None]], None]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._under_way: dict[str, _Shared] = {}

    def want(self, request: List, put: Callable[[Any], None]) -> None:
        """Have ``put`` called with the answer."""
        with self._lock:
            before = self._under_way.get(request.path)
            # One that was interrupted on its way out may never be answered.
            if before is not None and before.sent:
                before.next.append(put)
                return
            shared = self._under_way[request.path] = _Shared([put])
        self._send(request, shared)

    def _send(self, request: List, shared: _Shared) -> None:
        self._ask(request, partial(self._landed, request, shared))
        shared.sent = True

    def _landed(self, request: List, shared: _Shared, result: Any) -> None:
        with self._lock:
            puts, shared.puts = shared.puts, []
            later, shared.next = shared.next, []
            following = _Shared(later) if later else None
            if following is not None:
                self._under_way[request.path] = following
            elif self._under_way.get(request.path) is shared:
                del self._under_way[request.path]
        if following is not None:
            self._send(request, following)
        for put in puts:
            put(result)


class _Shared:
    """One listing, who is to get it, and who came too late for it."""

    __slots__ = ("next", "puts", "sent")

    def __init__(self, puts: list[Callable[[Any], None]]) -> None:
        self.puts = puts
        self.next: list[Callable[[Any], None]] = []
        self.sent = False


def _check(client: Client, path: str) -> Any:
    transaction = client.transaction()
    transaction.check(path, -1)
    return transaction.commit_async()


def _mark(client: Client, path: str, data: bytes) -> Any:
    transaction = client.transaction()
    transaction.check(path, -1)
    transaction.set_data(path.rpartition("/")[0], data)
    return transaction.commit_async()


def _write_all(client: Client, request: WriteAll) -> Any:
    transaction = client.transaction()
    transaction.check(request.path, -1)
    for path, data, version in request.writes:
        transaction.set_data(path, data, version)
    return transaction.commit_async()


def _depart(client: Client, path: str, data: bytes) -> Any:
    transaction = client.transaction()
    transaction.delete(path)
    transaction.set_data(path.rpartition("/")[0], data)
    return transaction.commit_async()


def _hand_over(client: Client, request: HandOver) -> Any:
    transaction = client.transaction()
    transaction.check(request.successor, -1)
    # The leader's own node last: whoever hears of it has heard of its own node before.
    for path in (*request.others, request.path):
        transaction.delete(path)
    return transaction.commit_async()


def _refused(results: list[Any]) -> Exception | None:
    """Return the error for which a transaction was not carried out; none of it was then."""
    others = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
    errors = (each for each in results if isinstance(each, Exception))
    return next((error for error in errors if not isinstance(error, others)), None)


def _paths(request: Request) -> tuple[str, str]:
    """Return the path of the request, and that of the lock it is made for."""
    if isinstance(request, Create):
        return request.prefix, request.prefix.rpartition("/")[0]
    parent, _, name = request.path.rpartition("/")
    return request.path, parent if names.parse(name) else request.path
