"""Turns effects into kazoo's asynchronous calls, and kazoo's answers and errors into results."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar

from kazoo import exceptions

from zklock._ground.records import log_fields
from zklock._ground.strikes import may_strike
from zklock._kazoo import wire
from zklock._kazoo.client import Kazoo
from zklock._kazoo.handler import Handler, Inline
from zklock._kazoo.paths import make_path
from zklock._recipes import names
from zklock._recipes.effects import (
    Batch,
    Create,
    CreateAll,
    Delete,
    DeleteAll,
    Depart,
    Exists,
    Expect,
    Failed,
    Failure,
    List,
    Listing,
    MakePath,
    Mark,
    Node,
    Read,
    Request,
    Sync,
    Transaction,
    Watch,
    WatchExists,
    WatchList,
    Write,
    WriteAll,
    parent_of,
)
from zklock.errors import AccessDenied, ZkLockError

log = logging.getLogger("zklock")

P = ParamSpec("P")
T = TypeVar("T")
Results: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of a ZooKeeper error code for a request of ours.

    ``busy``: the request may succeed later, on this connection. ``hint``: what to do next.
    """

    why: Failure
    busy: bool = False
    hint: str = ""


_NEVER_ASKED = Meaning(Failure.OTHER, hint="it answers no zklock request: check the server")
_BROKEN = Meaning(Failure.OTHER, hint="read the log of the ZooKeeper server")
_GONE = Meaning(Failure.DROPPED)
_BUSY = Meaning(Failure.DROPPED, busy=True)

MEANINGS: dict[int, Meaning] = {
    # 0 and -2: operations of a failed transaction that did not fail themselves: see _refused().
    0: _BROKEN,  # RolledBack
    -1: _BROKEN,  # SystemError: the beginning of a range
    -2: _BROKEN,  # RuntimeInconsistency
    -3: _BROKEN,  # DataInconsistency
    -4: _GONE,  # ConnectionLoss
    # A server also sends this for any error that it did not expect: the outcome is unknown.
    -5: Meaning(Failure.OTHER, hint="a request too large, or an error in the server: see its log"),
    -6: Meaning(Failure.OTHER, hint="the server is too old: use ZooKeeper 3.6 or later"),
    -7: _BUSY,  # OperationTimeout
    -8: Meaning(Failure.OTHER, hint="the server rejects the path or the data"),
    -12: _BUSY,  # UnknownSession, to servers: the session is going
    -13: _NEVER_ASKED,  # NewConfigNoQuorum
    -14: _NEVER_ASKED,  # ReconfigInProgress
    -100: _BROKEN,  # APIError: the beginning of a range
    -101: Meaning(Failure.MISSING),
    -102: Meaning(Failure.DENIED),
    -103: Meaning(Failure.CHANGED),
    -108: Meaning(Failure.OTHER, hint="below an ephemeral znode: use another path"),
    -110: Meaning(Failure.OTHER, hint="the new znode's number already exists: try again"),
    -111: Meaning(Failure.NOT_EMPTY),
    -112: _GONE,  # SessionExpired, and kazoo's ConnectionClosed
    -113: _NEVER_ASKED,  # InvalidCallback
    -114: Meaning(Failure.DENIED),  # InvalidACL
    -115: _GONE,  # AuthFailed: the client is closed
    -118: _BUSY,  # SessionMoved: the connection is about to be closed
    -119: _BUSY,  # NotReadOnly: this server is cut off from the quorum, and about to say so
    -120: Meaning(
        Failure.OTHER,
        hint="its sessions are local: set localSessionsEnabled=false there",
    ),
    -121: _NEVER_ASKED,  # NoWatcher
    -122: _BUSY,  # RequestTimeout
    -123: _NEVER_ASKED,  # ReconfigDisabled
    # The server closes this session, and every later one.
    -124: Meaning(
        Failure.DENIED,
        hint="pass sasl_options, or what its enforce.auth.schemes names: auth_data for digest, "
        "certfile for x509",
    ),
    -125: Meaning(Failure.OTHER, hint="its quota is used up: raise it, or use another path"),
    -127: _BUSY,  # ThrottledOp: not carried out, as the server is overloaded
}
"""All codes of ZooKeeper 3.9. A code that is not listed does not tell what was done."""

_UNKNOWN = Meaning(Failure.OTHER)

NO_CHROOT = "the chroot in the client's address does not exist: create it, or correct the address"
"""The hint for a path that cannot be made since a node is missing: see ``make_path``."""

_DROPPED: tuple[type[Exception], ...] = (exceptions.ConnectionDropped,)
"""Errors of kazoo's own, without a code; the outcome of the request is unknown after them."""

_CREATING = (Create, CreateAll)  # made once: `A | B` makes an object at each evaluation

MAX_REQUEST = 1_000_000
"""The most bytes of a request: ZooKeeper closes the connection for one above 1,048,575."""


def shielded(call: Callable[P, T]) -> Callable[P, T | None]:
    """Return a call for kazoo's threads: an error of ours is logged, and does not end the thread.

    Everything that kazoo calls on its own goes through this. On the main thread, which is none of
    kazoo's, a signal handler may have raised the error: there it goes on.
    """

    @wraps(call)
    def shield(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return call(*args, **kwargs)
        except Exception:
            if may_strike():
                raise
            log.exception("the connection continues after an error in zklock", extra=log_fields())
            return None

    return shield


def translate(
    error: Exception,
    path: str,
    lock_path: str | None = None,
    written: str | None = None,
    hint: str = "",
) -> Failed:
    """Return the failure for kazoo's error, with the zklock error to raise.

    ``written``: the node whose data the request writes, if it only writes. ``hint``: what to do, if
    the code does not say it.
    """
    lock_path = lock_path or path
    if isinstance(error, _DROPPED):
        meaning = _GONE
    else:
        meaning = MEANINGS.get(getattr(error, "code", 1), _UNKNOWN)
    name = type(error).__name__
    raised: ZkLockError
    if meaning.why is Failure.DENIED:
        needs = meaning.hint or (
            f"this client needs read and write permission on {written}, whose data it writes"
            if written
            else "this client needs create, delete and read permission on the lock's path, and "
            "read permission on its own contenders and on any contender that it checks"
        )
        if isinstance(error, exceptions.SessionClosedRequireSaslError):
            raised = AccessDenied(
                f"{path}: ZooKeeper requires authentication ({name}): {needs}",
                path=lock_path,
            )
        else:
            raised = AccessDenied(
                f"{path}: ZooKeeper's ACLs forbid it ({name}): {needs}", path=lock_path
            )
    else:
        what = "; ".join(filter(None, [meaning.why.value, meaning.hint or hint]))
        raised = ZkLockError(f"{path}: {what} ({name}: {error})", path=lock_path)
    raised.__cause__ = error
    return Failed(meaning.why, raised, meaning.busy)


class _Asking(threading.local):
    """How many requests this thread is handing to kazoo: several in a signal handler."""

    depth = 0


class Store:
    """Sends batches over one client. ``on_event(kind, path)`` is called when a watch fires.

    ``lock``: may be taken in a signal handler.
    """

    def __init__(
        self,
        client: Kazoo,
        on_event: Callable[[str, str | None], None],
        is_mine: Callable[[int], bool],
        lock: AbstractContextManager[object],
    ) -> None:
        self._client = client
        self._asking = _Asking()
        self._handler = client.handler if isinstance(client.handler, Handler) else None
        # One callable for all watches: kazoo keeps a set of callables for each path. So waiters
        # that gave up leave nothing behind in the client.
        self._watcher = Inline(shielded(lambda event: on_event(event.type, event.path)))
        self._is_mine = is_mine
        self._listings = _Listings(self._ask, lock)
        self._makings = _Makings(self._ask, lock)
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
            Write: lambda it: client.set_async(it.path, it.data, it.version),
            Sync: lambda it: client.sync_async(it.path),
            Delete: lambda it: client.delete_async(it.path, it.version),
            MakePath: lambda it: make_path(client, it.path),
            **dict.fromkeys(wire.TRANSACTIONS, partial(_transaction, client)),
        }
        self._values: dict[type[Request], Callable[[Any, Any], Any]] = {
            Create: self._created,
            List: _listed,
            Watch: self._read,
            WatchList: _listed,
            WatchExists: self._seen,
            Read: self._read,
            Exists: self._seen,
            **dict.fromkeys(wire.TRANSACTIONS, _carried_out),
            CreateAll: _all_created,
        }

    def send_batch(self, batch: Batch, done: Callable[[Results], None]) -> None:
        """Send the requests back to back, and call ``done(results)`` once, when all are answered.

        ``done`` runs on any thread. With zklock's handler, this does not block.
        """
        landing = _Landing(batch, done)
        first = batch[0]
        if isinstance(first, MakePath) and any(isinstance(each, Create) for each in batch):
            self._makings.make(first, _Follower(batch, landing, partial(self._send, batch, 1)))
        elif isinstance(first, _CREATING):
            self._create(first, batch, landing)
        else:
            self._send(batch, 0, landing)

    def send_awaited(self, batch: Batch, done: Callable[[Results], None]) -> None:
        """Do as ``send_batch``, for a thread that waits, and may ``hear`` the answers itself."""
        self.send_batch(batch, done)

    def hear(self, batch: Batch, seconds: float | None) -> bool:
        """Wait for answers to a batch, at most so long; ``False`` at once if others hear them."""
        return False

    def _create(self, first: Create | CreateAll, batch: Batch, landing: _Landing) -> None:
        """Send a batch that begins with a create, heeding what is being made."""
        if not self._makings.under_way:
            self._send(batch, 0, landing)
        elif isinstance(first, Create):
            self._makings.follow(_Follower(batch, landing, partial(self._send, batch, 0)))
        elif (path := self._makings.any_of(first)) is not None:
            # Those who have asked for a contender there before wait for that node.
            for slot in range(len(batch)):
                landing.put(slot, translate(exceptions.NoNodeError(), path))
        else:
            self._send(batch, 0, landing)

    def _send(self, batch: Batch, start: int, landing: _Landing) -> None:
        for slot, request in enumerate(batch[start:], start):
            put = partial(landing.put, slot)
            if isinstance(request, Create):
                put = partial(landing.created, slot, request, batch)
            if isinstance(request, List) and not isinstance(batch[0], Sync):
                self._listings.want(request, put)
            else:
                self._ask(request, put)

    def _ask(self, request: Request, put: Callable[[Any], None]) -> None:
        kind = type(request)
        call, value = self._calls[kind], self._values.get(kind)
        encode = wire.ENCODERS.get(kind)
        size = len(encode(request, self._client.chroot, self._client.default_acl)) if encode else 0
        if size > MAX_REQUEST:
            put(_too_large(request, size))
            return

        @shielded
        def answered(result: Any) -> None:
            if result.exception is not None:
                put(failed(request, result.exception))
            else:
                put(value(request, result.value) if value is not None else None)

        handler = self._handler
        if handler is not None:
            depth = self._asking.depth
            try:
                self._asking.depth = depth + 1
                result = handler.run_inline(call, request)
            except BaseException:
                handler.nudge()
                raise
            finally:
                self._asking.depth = depth
            if depth:  # in a signal handler: the wake-up of what was interrupted may have to come
                handler.nudge()
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

    def _node(self, path: str, data: bytes | None, stat: Any) -> Node:
        """Return the node; its data are ``None`` if somebody has made it without any."""
        owner = stat.ephemeralOwner
        mine, times = self._is_mine(owner), (stat.ctime, stat.mtime)
        return Node(path, data or b"", owner, mine, stat.version, *times)


def failed(request: Request, error: Exception) -> Failed:
    """Return the failure of a request for kazoo's error."""
    chroot = isinstance(request, MakePath) and isinstance(error, exceptions.NoNodeError)
    return translate(error, *_paths(request), _written(request), NO_CHROOT if chroot else "")


def _listed(_: List | WatchList, value: Any) -> Listing:
    names, stat = value
    return Listing(names, stat.czxid, stat.cversion, stat.ctime, stat.dataLength)


def _carried_out(request: Any, results: list[Any]) -> Failed | None:
    refused = _refused(results)
    if refused is None:
        return None
    operation = request.operations[results.index(refused)]
    if isinstance(request, WriteAll | Depart) and isinstance(operation, Write):
        return replace(failed(operation, refused), node=operation.path)
    return failed(request, refused)


def _all_created(request: CreateAll, results: list[Any]) -> Failed | tuple[str, ...]:
    return _carried_out(request, results) or tuple(results)


def _listings_beside(create: Create, batch: Batch) -> list[int]:
    """Return the slots of the batch that list the parent of the created node."""
    _, parent = _paths(create)
    return [at for at, each in enumerate(batch) if isinstance(each, List) and each.path == parent]


class _Landing:
    """Collects the results of a batch, from any threads."""

    def __init__(self, batch: Batch, done: Callable[[Results], None]) -> None:
        self.batch = batch
        self._results: dict[int, Any] = {}  # each is set once, by setdefault(), which is one step
        self._told: dict[None, object] = {}
        self._done = done

    def put(self, slot: int, result: Any) -> None:
        """Take one result; kazoo may complete a request twice while it stops."""
        self._results.setdefault(slot, result)
        if len(self._results) == len(self.batch):
            me = object()
            if self._told.setdefault(None, me) is me:
                self._finish()

    def _finish(self) -> None:
        self._done(tuple(map(self._results.__getitem__, range(len(self.batch)))))

    def created(self, slot: int, create: Create, batch: Batch, result: Any) -> None:
        """Take the result of a create of the batch.

        If the parent is missing, so are its listings, and are not waited for. Otherwise others
        could make the parent meanwhile, and create contenders before this attempt asks again.
        """
        if isinstance(result, Failed) and result.why is Failure.MISSING:
            for each in _listings_beside(create, batch):
                self.put(each, result)
        self.put(slot, result)


class _Listings:
    """Lists a node once for all attempts that ask while an earlier listing of it is under way.

    Each attempt gets a listing whose request was sent after the attempt asked for it, and after the
    attempt's earlier requests. ``under_way``: the listings that others may share, by their paths.
    """

    def __init__(
        self,
        ask: Callable[[List, Callable[[Any], None]], None],
        lock: AbstractContextManager[object],
    ) -> None:
        self._ask = ask
        self._lock = lock
        self.under_way: dict[str, _Shared] = {}

    def want(self, request: List, put: Callable[[Any], None]) -> None:
        """Call ``put`` with the answer, when it comes."""
        with self._lock:
            before = self.under_way.get(request.path)
            # A request that was interrupted while it was sent may never be answered.
            if before is not None and before.sent:
                before.next.append(put)
                return
            shared = self.under_way[request.path] = _Shared([put])
        self._send(request, shared)

    def _send(self, request: List, shared: _Shared) -> None:
        self._ask(request, partial(self._on_reply, request, shared))
        shared.sent = True

    def _on_reply(self, request: List, shared: _Shared, result: Any) -> None:
        with self._lock:
            puts, shared.puts = shared.puts, []
            later, shared.next = shared.next, []
            following = _Shared(later) if later else None
            if following is not None:
                self.under_way[request.path] = following
            elif self.under_way.get(request.path) is shared:
                del self.under_way[request.path]
        if following is not None:
            self._send(request, following)
        for put in puts:
            put(result.for_another() if isinstance(result, Failed) else result)


class _Follower:
    """A batch that creates a contender; it may have to wait until its parent is made."""

    def __init__(self, batch: Batch, landing: _Landing, send: Callable[[_Landing], None]) -> None:
        create = next(request for request in batch if isinstance(request, Create))
        (self.path,) = _parents(create)
        self.asked = create.asked
        self._landing = landing
        self._makes = isinstance(batch[0], MakePath)
        self._slots = range(len(batch))
        self._send = send

    def go(self, made: Any = None) -> None:
        """Send the batch, now that its parent is made; if that failed, fail in the same way."""
        if self._makes and made is not None:
            mine = made.for_another()
            for slot in self._slots:
                self._landing.put(slot, mine)
            return
        if self._makes:
            self._landing.put(0, made)
        self._send(self._landing)


class _Makings:
    """Makes a missing node once for all that need it, and sends the creates below it in order.

    An attempt that asked before the node existed found it missing, and hears so before the node is
    made. Later attempts are held until the node is made; otherwise they would overtake.

    ``under_way``: the nodes that are being made, by their paths.
    """

    def __init__(
        self,
        ask: Callable[[MakePath, Callable[[Any], None]], None],
        lock: AbstractContextManager[object],
    ) -> None:
        self._ask = ask
        self._lock = lock
        self.under_way: dict[str, _Making] = {}

    def make(self, request: MakePath, follower: _Follower) -> None:
        """Make the node, and let the follower go."""
        mine = _Making(threading.get_ident(), [follower])
        try:
            with self._lock:
                making = self.under_way.get(request.path)
                if making is not None and making.goes_on():
                    making.followers.append(follower)
                    return
                self.under_way[request.path] = mine
            self._ask(request, partial(self._made, request.path, mine))
            mine.sent = True
        except BaseException:
            mine.struck = True
            with self._lock:
                if follower in mine.followers:
                    mine.followers.remove(follower)
            self._made(request.path, mine, None)  # who followed meanwhile asks again
            raise

    def follow(self, follower: _Follower) -> None:
        """Let the follower go; if its parent is being made, after the others."""
        with self._lock:
            making = self.under_way.get(follower.path)
            if making is not None and making.goes_on():
                making.followers.append(follower)
                return
        follower.go()

    def any_of(self, request: CreateAll) -> str | None:
        """Return a parent of the request's nodes that is being made, if there is one."""
        with self._lock:
            return next((path for path in _parents(request) if path in self.under_way), None)

    def _made(self, path: str, making: _Making, result: Any) -> None:
        while True:
            with self._lock:
                some, making.followers = making.followers, []
                if not some:
                    if self.under_way.get(path) is making:
                        del self.under_way[path]
                    return
            some.sort(key=lambda follower: -follower.asked)
            try:
                _let_go(some, result)
            except BaseException:
                making.followers += some
                self._made(path, making, result)
                raise


def _let_go(some: list[_Follower], result: Any) -> None:
    while some:
        some.pop().go(result)


class _Making:
    """A node that is being made by a thread, and the batches that wait for it."""

    __slots__ = ("_sender", "followers", "sent", "struck")

    def __init__(self, sender: int, followers: list[_Follower]) -> None:
        self._sender = sender
        self.followers = followers
        self.sent = False
        self.struck = False

    def goes_on(self) -> bool:
        """Whether its request was sent, or another thread is sending it.

        A thread that meets its own request half sent was interrupted, or interrupts itself: that
        request may never be answered.
        """
        return self.sent or (not self.struck and self._sender != threading.get_ident())


class _Shared:
    """One listing, the requests that get it, and the requests that came too late for it."""

    __slots__ = ("next", "puts", "sent")

    def __init__(self, puts: list[Callable[[Any], None]]) -> None:
        self.puts = puts
        self.next: list[Callable[[Any], None]] = []
        self.sent = False


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


def _refused(results: list[Any]) -> Exception | None:
    """Return the error for which nothing of a transaction was done; ``None``: all was done."""
    others = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
    errors = (each for each in results if isinstance(each, Exception))
    return next((error for error in errors if not isinstance(error, others)), None)


def _paths(request: Request) -> tuple[str, str]:
    """Return the path of the request, and the path of its lock."""
    if isinstance(request, Create):
        return request.prefix, parent_of(request.prefix)
    if isinstance(request, CreateAll):
        return _paths(request.creates[0])
    path = request.paths[0] if isinstance(request, DeleteAll) else request.path
    parent, _, name = path.rpartition("/")
    return path, parent if names.parse(name) else path


def _parents(create: Create | CreateAll) -> tuple[str, ...]:
    """Return the parents of what is created."""
    creates = create.creates if isinstance(create, CreateAll) else (create,)
    return tuple([parent_of(each.prefix) for each in creates])


def _written(request: Request) -> str | None:
    """Return the node whose data the request writes, the first of several, if it only writes."""
    match request:
        case Write(path):
            return path
        case WriteAll(writes=((path, _, _), *_)):
            return path
        case Mark(path):
            return parent_of(path)
    return None


def _too_large(request: Request, size: int) -> Failed:
    path, lock_path = _paths(request)
    return Failed(
        Failure.OTHER,
        ZkLockError(
            f"{path[:100]}: a request of {size} bytes exceeds ZooKeeper's limit and was not sent: "
            "use a shorter path, or fewer members",
            path=lock_path,
        ),
    )
