"""Sends batches, and makes once what several need: a missing parent, a listing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

from kazoo import exceptions

from zklock._ground.interrupts import may_be_interrupted
from zklock._ground.records import log_fields
from zklock._kazoo import wire
from zklock._kazoo.client import Kazoo
from zklock._kazoo.failures import MAX_REQUEST, failed, too_large
from zklock._recipes.effects import (
    Batch,
    Create,
    Failed,
    Failure,
    List,
    MakePath,
    Request,
    Sync,
    parent_of,
)

log = logging.getLogger("zklock")

P = ParamSpec("P")
T = TypeVar("T")
Results: TypeAlias = tuple[Any, ...]


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

    def send_batch(
        self, batch: Batch, done: Callable[[Results], None], awaited: bool = False
    ) -> None:
        """Send the requests back to back, and call ``done(results)`` once, when all are answered.

        ``done`` runs on any thread. With zklock's handler, this does not block. ``awaited``: for a
        thread that waits, and may ``hear`` the answers itself.
        """
        landing, making = Landing(batch, done), self._makings.under_way
        first = batch[0]
        if (isinstance(first, MakePath) and len(batch) > 1) or (
            making and isinstance(first, Create)
        ):
            self._makings.follow(landing)
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

    @property
    def over(self) -> bool:
        """Whether all results are there: a listing may be answered later."""
        return bool(self._told)

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
