"""Turns effects into kazoo's asynchronous calls, and kazoo's answers and errors into results."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

from kazoo import exceptions

from zklock._ground.interrupts import may_be_interrupted
from zklock._ground.records import log_fields
from zklock._kazoo import wire
from zklock._kazoo.client import Kazoo
from zklock._recipes import names
from zklock._recipes.effects import (
    Batch,
    Check,
    Create,
    Exists,
    Failed,
    Failure,
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
            if may_be_interrupted():
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


class Asked(NamedTuple):
    """A request to be sent: its bytes, if it is one request, and who gets its result."""

    request: Request
    body: bytes | None
    put: Callable[[Any], None]


class Channel(Protocol):
    """Sends requests back to back, in this order, and does not block."""

    def send(self, asked: list[Asked], landing: Landing | None = None) -> None:
        """Have each result put. ``landing``: the caller waits for it, and may ``hear`` answers."""

    @property
    def hear(self) -> Callable[[Batch, float | None], bool]:
        """Waits for answers to a batch, at most so long; ``False`` at once if others hear them."""


class Store:
    """Sends batches over one client. ``lock``: may be taken in a signal handler."""

    def __init__(
        self, client: Kazoo, channel: Channel, lock: AbstractContextManager[object]
    ) -> None:
        self._client = client
        self._channel = channel
        self._listings = _Listings(self._ask, lock)
        self._makings = _Makings(self._send, self._ask, lock)
        self.hear = channel.hear

    def send_batch(self, batch: Batch, done: Callable[[Results], None]) -> None:
        """Send the requests back to back, and call ``done(results)`` once, when all are answered.

        ``done`` runs on any thread. With zklock's handler, this does not block.
        """
        self._begin(Landing(batch, done))

    def send_awaited(self, batch: Batch, done: Callable[[Results], None]) -> None:
        """Do as ``send_batch``, for a thread that waits, and may ``hear`` the answers itself."""
        self._begin(Landing(batch, done), awaited=True)

    def _begin(self, landing: Landing, awaited: bool = False) -> None:
        """Send a batch, heeding what is being made."""
        batch, making = landing.batch, self._makings.under_way
        first = batch[0]
        if (isinstance(first, MakePath) and len(batch) > 1) or (
            making and isinstance(first, Create)
        ):
            self._makings.follow(landing)
            return
        if making and isinstance(first, Transaction):
            for each in first.operations:
                if isinstance(each, Create) and (path := parent_of(each.prefix)) in making:
                    # Those who have asked for a contender there before wait for that node.
                    landing.fail(translate(exceptions.NoNodeError(), path))
                    return
        self._send(landing, awaited=awaited)

    def _send(self, landing: Landing, start: int = 0, awaited: bool = False) -> None:
        asked: list[Asked] = []
        shared: list[_Shared] = []
        batch = landing.batch
        for slot in range(start, len(batch)):
            request, put = batch[slot], partial(landing.put, slot)
            if isinstance(request, List) and not isinstance(batch[0], Sync):
                if self._listings.shared and self._listings.under_way(request.path):
                    self._channel.send(asked)  # before the listing that it gets
                    asked, awaited = [], False
                    self._listings.join(request, put)
                    continue
                if not awaited:  # a caller that reads may be struck, and gives it to nobody else
                    shared.append(self._listings.begin(request, put))
                    put = partial(self._listings.on_reply, request, shared[-1])
            self._add(asked, request, put)
        self._channel.send(asked, landing if awaited else None)
        for listing in shared:
            listing.sent = True

    def _ask(self, request: Request, put: Callable[[Any], None]) -> None:
        asked: list[Asked] = []
        self._add(asked, request, put)
        self._channel.send(asked)

    def _add(self, asked: list[Asked], request: Request, put: Callable[[Any], None]) -> None:
        kind, body = wire.KINDS.get(type(request)), None
        if kind is not None:
            body = kind.head + kind.encode(request, self._client.chroot, self._client.default_acl)
            if len(body) > MAX_REQUEST:
                put(too_large(request, len(body)))
                return
        asked.append(Asked(request, body, put))


class Landing:
    """Collects the results of a batch, from any threads."""

    def __init__(self, batch: Batch, done: Callable[[Results], None]) -> None:
        self.batch = batch
        self._results: dict[int, Any] = {}  # each is set once, by setdefault(), which is one step
        self._told: dict[None, object] = {}
        self._done = done

    def put(self, slot: int, result: Any) -> None:
        """Take one result; kazoo may complete a request twice while it stops.

        If the parent of a new node is missing, so are its listings, and are not waited for.
        Otherwise others could make the parent meanwhile, and create contenders before this attempt
        asks again.
        """
        request = self.batch[slot]
        missing = isinstance(result, Failed) and result.why is Failure.MISSING
        if missing and isinstance(request, Create):
            beside = List(parent_of(request.prefix))
            for at, each in enumerate(self.batch):
                if each == beside:
                    self._results.setdefault(at, result)
        self._results.setdefault(slot, result)
        if len(self._results) == len(self.batch):
            me = object()
            if self._told.setdefault(None, me) is me:
                self._finish()

    def fail(self, failed: Failed) -> None:
        """Take this failure as the result of each request."""
        for slot in range(len(self.batch)):
            self.put(slot, failed)

    def _finish(self) -> None:
        self._done(tuple(map(self._results.__getitem__, range(len(self.batch)))))

    def complete(self) -> None:
        """Complete it, although a thread was interrupted that did so: see ``gateway``.

        What was not heard counts as dropped.
        """
        for slot, request in enumerate(self.batch):
            self._results.setdefault(slot, failed(request, exceptions.ConnectionLoss()))
        self._finish()


class _Listings:
    """Lists a node once for all attempts that ask while an earlier listing of it is under way.

    Each attempt gets a listing whose request was sent after the attempt asked for it, and after the
    attempt's earlier requests. ``shared``: the listings that others may wait for, by path.
    """

    def __init__(
        self,
        ask: Callable[[List, Callable[[Any], None]], None],
        lock: AbstractContextManager[object],
    ) -> None:
        self._ask = ask
        self._lock = lock
        self.shared: dict[str, _Shared] = {}

    def under_way(self, path: str) -> bool:
        """Whether a listing is under way."""
        # One that was interrupted while it was sent may never be answered.
        shared = self.shared.get(path)
        return shared is not None and shared.sent

    def begin(self, request: List, put: Callable[[Any], None]) -> _Shared:
        """Return a listing that is to be sent, and that later ones wait for."""
        with self._lock:
            shared = self.shared[request.path] = _Shared([put])
            return shared

    def join(self, request: List, put: Callable[[Any], None]) -> None:
        """Have the next listing put, behind the one that is under way."""
        with self._lock:
            if self.under_way(request.path):
                self.shared[request.path].next.append(put)
                return
        self._send(request, self.begin(request, put))

    def on_reply(self, request: List, shared: _Shared, result: Any) -> None:
        """Give the result to those who wait for it, and have the next listing sent."""
        with self._lock:
            following = _Shared(shared.next) if shared.next else None
            shared.next = []
            if following is not None:
                self.shared[request.path] = following
            elif self.shared.get(request.path) is shared:
                del self.shared[request.path]
        if following is not None:
            self._send(request, following)
        for put in shared.puts:
            put(result.for_another() if isinstance(result, Failed) else result)

    def _send(self, request: List, shared: _Shared) -> None:
        self._ask(request, partial(self.on_reply, request, shared))
        shared.sent = True


class _Shared:
    """One listing, who gets it, and who came too late for it."""

    def __init__(self, puts: list[Callable[[Any], None]]) -> None:
        self.puts = puts
        self.next: list[Callable[[Any], None]] = []
        self.sent = False


class _Makings:
    """Makes a missing node once for all that need it, and sends the creates below it in order.

    An attempt that asked before the node existed found it missing, and hears so before the node is
    made. Later attempts are held until the node is made; otherwise they would overtake.

    ``under_way``: the nodes that are being made, by their paths.
    """

    def __init__(
        self,
        send: Callable[[Landing, int], None],
        ask: Callable[[MakePath, Callable[[Any], None]], None],
        lock: AbstractContextManager[object],
    ) -> None:
        self._send = send
        self._ask = ask
        self._lock = lock
        self.under_way: dict[str, _Making] = {}

    def follow(self, landing: Landing) -> None:
        """Send a batch when the parent of its node is made, which it may ask for."""
        makes, path = landing.batch[0], parent_of(_create_of(landing).prefix)
        with self._lock:
            making = self.under_way.get(path)
            # Its own thread has interrupted itself: that request may never be answered.
            if making is not None and making.sender != threading.get_ident():
                making.followers.append(landing)
                return
            if isinstance(makes, MakePath):
                making = self.under_way[path] = _Making([landing], threading.get_ident())
        if making is None or not isinstance(makes, MakePath):
            self._send(landing, 0)
            return
        try:
            self._ask(makes, partial(self._made, path, making))
        except BaseException:
            making.followers = [each for each in making.followers if each is not landing]
            self._made(path, making, None)  # who followed meanwhile asks again
            raise
        making.sender = None

    def _made(self, path: str, making: _Making, result: Any) -> None:
        while True:
            with self._lock:
                followers, making.followers = making.followers, []
                if not followers:
                    if self.under_way.get(path) is making:
                        del self.under_way[path]
                    return
            for landing in sorted(followers, key=lambda each: _create_of(each).asked):
                if not isinstance(landing.batch[0], MakePath):
                    self._send(landing, 0)
                elif result is None:
                    landing.put(0, None)
                    self._send(landing, 1)
                else:
                    landing.fail(result.for_another())


def _create_of(landing: Landing) -> Create:
    return next(each for each in landing.batch if isinstance(each, Create))


@dataclass
class _Making:
    """A node that is being made, the batches that wait for it, and who is sending the request."""

    followers: list[Landing]
    sender: int | None


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
            return tuple([self._unchroot(it) for it in results if isinstance(it, str)]) or None
        whole = request.operations if isinstance(request, Transaction) else (request,)
        operation = whole[results.index(refused)]
        node = operation.path if isinstance(operation, Write) else None
        return replace(failed(operation, refused), node=node)


def failed(request: Request, error: Exception) -> Failed:
    """Return the failure of a request for kazoo's error."""
    written = request.path if isinstance(request, Write) else None
    chroot = isinstance(request, MakePath) and isinstance(error, exceptions.NoNodeError)
    return translate(error, *paths_of(request), written, NO_CHROOT if chroot else "")


def _listed(_: List | WatchList, value: Any) -> Listing:
    names, stat = value
    return Listing(names, stat.czxid, stat.cversion, stat.ctime, stat.dataLength)


def _refused(results: list[Any]) -> Exception | None:
    """Return the error for which nothing of a transaction was done; ``None``: all was done."""
    others = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
    errors = (each for each in results if isinstance(each, Exception))
    return next((error for error in errors if not isinstance(error, others)), None)


def paths_of(request: Request) -> tuple[str, str]:
    """Return the path of the request, and the path of its lock."""
    if isinstance(request, Create):
        return request.prefix, parent_of(request.prefix)
    if isinstance(request, Transaction):
        return paths_of(request.operations[0])
    parent, _, name = request.path.rpartition("/")
    return request.path, parent if names.parse(name) else request.path


def too_large(request: Request, size: int) -> Failed:
    path, lock_path = paths_of(request)
    return Failed(
        Failure.OTHER,
        ZkLockError(
            f"{path[:100]}: a request of {size} bytes exceeds ZooKeeper's limit and was not sent: "
            "use a shorter path, or fewer members",
            path=lock_path,
        ),
    )
