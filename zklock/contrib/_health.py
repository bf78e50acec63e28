"""The state of background work in a worker process, for threads and for asyncio."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any, ClassVar, Generic, TypeVar

import zklock
from zklock import aio
from zklock.telemetry import log_fields

log = logging.getLogger("zklock")

Work = TypeVar("Work", bound=Callable[..., Any])

START_SECONDS = 5.0
"""For how long a try to connect waits."""

PAUSE_SECONDS = 1.0
"""Between two tries to connect."""

LOOK_SECONDS = 0.02
"""Between two looks at what still runs under a leadership that ends."""


def wait_for_end(running: Collection[object]) -> None:
    """Wait until nothing runs under this leadership: then another process may lead.

    A job puts itself into a dict before it looks at the lease, and takes itself out by ``pop()``.
    That is one call of C: an exception of a signal handler strikes before it or after it. There is
    no lock that such an exception could leave taken.
    """
    while running:
        time.sleep(LOOK_SECONDS)


@dataclass(frozen=True, slots=True)
class Health:
    """How the background work of one worker process is.

    ``live``: it can go on. It is ``False`` if the work still runs without a lease, or if standing
    for election has ended with an error: the process should be replaced. ``ready``: ZooKeeper is
    connected. ``leads``: this process does the work now, with ``token``, for at least ``remaining``
    seconds. ``identity``: of this process. ``leader``: the identity of the process that leads, as
    far as this one knows.
    """

    live: bool
    ready: bool
    leads: bool
    token: str | None
    remaining: float
    identity: str | None
    leader: str | None


class Reporter:
    """The state that both fronts keep, and what follows from it."""

    def __init__(self) -> None:
        self.client: Any = None
        self.identity: str | None = None
        self.leader: str | None = None
        self.leadership: zklock.Leadership | aio.Leadership | None = None
        self.failure: BaseException | None = None
        self.standing = False

    def heard(self, change: zklock.LeaderChange) -> None:
        self.leader = None if change.leader is None else change.leader.identity

    def health(self) -> Health:
        """Return the state at this moment."""
        term = self.leadership
        remaining = 0.0 if term is None else term.remaining()
        return Health(
            live=self.failure is None and (term is None or remaining > 0),
            ready=self.standing and bool(self.client.connected),
            leads=remaining > 0,
            token=None if term is None or remaining <= 0 else str(term.token),
            remaining=round(remaining, 3),
            identity=self.identity,
            leader=self.leader,
        )

    def answer(self, method: str, path: str) -> tuple[HTTPStatus, bytes]:
        """Return the status and the body (JSON) of an answer to a request."""
        if method not in {"GET", "HEAD"}:
            return HTTPStatus.METHOD_NOT_ALLOWED, b'{"error": "GET or HEAD"}'
        health = self.health()
        good = {"live": health.live, "ready": health.ready, "leader": True}
        name = path.rstrip("/").rpartition("/")[2]
        if name not in good:
            return HTTPStatus.NOT_FOUND, b'{"error": "live, ready or leader"}'
        status = HTTPStatus.OK if good[name] else HTTPStatus.SERVICE_UNAVAILABLE
        told = asdict(health) | {"failure": None if self.failure is None else str(self.failure)}
        return status, b"" if method == "HEAD" else json.dumps(told).encode()


def _check_work(work: Any, awaits: bool) -> None:
    """Raise ``TypeError`` for work that would run nothing, or would block an event loop."""
    if not callable(work):
        raise TypeError(f"work must be callable, not {type(work).__name__}")
    calls = work, getattr(work, "__call__", None)  # noqa: B004 - an object may have a method for it
    if any(inspect.isgeneratorfunction(it) or inspect.isasyncgenfunction(it) for it in calls):
        raise TypeError("work is a generator function, and calling it runs nothing")
    if any(map(inspect.iscoroutinefunction, calls)) == awaits:
        return
    if awaits:
        raise TypeError(
            "work must be a coroutine function, as a plain one would block the event loop: use "
            "zklock.contrib.wsgi for that"
        )
    raise TypeError(
        "work is a coroutine function, which only an event loop can run: pass a plain function "
        "here, or use zklock.contrib.asgi"
    )


class BackgroundBase(Generic[Work]):
    """What runs work while this process leads; see ``Background`` of either front."""

    _AWAITS: ClassVar[bool] = False

    def __init__(
        self,
        hosts: str,
        path: str,
        work: Work,
        *,
        timeout: float = 10.0,
        identity: str | None = None,
        grace: float = 10.0,
        **options: Any,
    ) -> None:
        _check_work(work, self._AWAITS)
        self._hosts = hosts
        self._path = path
        self._work = work
        self._timeout = timeout
        self._identity = identity
        self._grace = grace
        self._options = {"start_timeout": START_SECONDS, **options}
        self._report = Reporter()
        self._waits = False

    @property
    def health(self) -> Health:
        """The state of the work in this process, at this moment."""
        return self._report.health()

    @contextlib.contextmanager
    def _reporting(self, report: Reporter) -> Iterator[None]:
        """Note and log the error with which standing for election ends."""
        try:
            yield
        except (Exception, SystemExit) as error:  # sys.exit() would end a thread without a word
            report.failure = error
            log.exception(
                "%s: this process no longer stands for election: restart it",
                self._path,
                extra=log_fields(path=self._path, identity=report.identity),
            )

    def _waits_for_zookeeper(self, error: Exception) -> None:
        """Say it, once."""
        if not self._waits:
            self._waits = True
            log.warning(
                "%s: the background work waits for ZooKeeper: %s",
                self._path,
                error,
                extra=log_fields(path=self._path, identity=self._identity),
            )

    def _has_found_zookeeper(self) -> None:
        if self._waits:
            self._waits = False
            log.info(
                "%s: the background work is connected to ZooKeeper",
                self._path,
                extra=log_fields(path=self._path, identity=self._identity),
            )
