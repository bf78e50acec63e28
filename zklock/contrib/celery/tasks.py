"""``@singleton``: a task that runs once at a time, among all workers."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import socket
import time
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Literal, ParamSpec, TypeVar, cast

from celery import Task, current_task
from celery.exceptions import Reject
from celery.signals import worker_process_shutdown

import zklock
from zklock.contrib._clients import ProcessClients
from zklock.contrib.celery.settings import settings
from zklock.errors import AcquireTimeout, LockLost, NoAnswer
from zklock.telemetry import log_fields

__all__ = ["current_grant", "singleton"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Busy = Literal["retry", "reject", "skip"]

log = logging.getLogger("zklock")

_TURN = 1.0
"""The longest single wait of a task's thread, in seconds: Python misses a signal that arrives just
before the thread begins to wait."""

_LOOK = 0.01
"""Seconds between two calls of ``cancel()``, which an acquire may miss as it begins."""

_clients = ProcessClients()


def singleton(
    *, lock: str | Callable[..., str], busy: Busy = "retry", wait: float = 0.0
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a task: it runs under a lock, and one runs at a time among all workers.

    ::

        @app.task(bind=True, default_retry_delay=10, max_retries=None)
        @singleton(lock="/locks/report")
        def report(self):
            write_report(token=self.request.zklock.token)

    ``lock``: the path of the lock, or a function that makes it of the task's arguments (without
    ``self``): ``lambda customer: f"/locks/customers/{customer}"``. ``wait``: seconds to queue for
    the lock if another one has it; this process of the worker runs nothing else meanwhile, and its
    warm shutdown waits. A soft time limit ends the wait.

    ``busy``: what happens if another one has the lock. ``"retry"``: the task is sent again, by its
    own ``default_retry_delay`` and ``max_retries``; it fails with ``AcquireTimeout`` when these are
    used up. ``"reject"``: the message is rejected, for brokers that keep rejected messages. It
    needs ``acks_late``. ``"skip"``: the task ends well, with ``None``, and does nothing.

    While it runs, ``self.request.zklock`` is its ``Grant``, and :func:`current_grant` returns it.
    Nothing interrupts the task when the lock is lost: ask ``check()`` between its steps, and hand
    the token to what is written. When it ends, ``LockLost`` is raised if the lock was lost, and the
    task fails (or is sent again, with ``autoretry_for=(LockLost,)``).

    Each process of a worker has a client of its own, made by the first task after the fork. The
    lock is released when the task ends, in whatever way: an error, a soft time limit, a revocation
    by SIGTERM. A process that is killed keeps it until its session ends.

    Raises ``NoAnswer`` if ZooKeeper does not answer for a session timeout (with ``busy="retry"``
    the task is sent again); ``ImproperlyConfigured`` without ``zklock_hosts``; the other errors of
    ``Lock.acquire()``.

    *Not guaranteed:* that a task runs exactly once: Celery may deliver a message twice, and the
    second run comes after the first. For the rest see ``zklock.Lock``. Workers of gevent and
    eventlet are not supported.
    """
    if busy not in {"retry", "reject", "skip"}:
        raise ValueError(f'busy is "retry", "reject" or "skip", not {busy!r}')

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            task = _running(function, args)
            tenure = _Tenure(task, _path(lock, args, kwargs), wait)
            try:
                try:
                    try:
                        grant = tenure.begin()
                    except (AcquireTimeout, NoAnswer) as error:
                        return cast("R", _not_got(task, busy, error))
                    with _shown(task, grant):
                        result = function(*args, **kwargs)
                finally:
                    tenure.over.put(None)  # one call of C: nothing strikes before it is done
            except BaseException as error:
                tenure.note_loss(error)
                raise
            tenure.finish()
            return result

        # Celery checks arguments by it, and does not look through the wrapper.
        run.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        return run

    return decorate


def current_grant() -> zklock.Grant:
    """Return the grant under which the running task holds its lock.

    Raises ``RuntimeError`` outside of a task that is decorated by :func:`singleton`.
    """
    grant = getattr(current_task.request, "zklock", None) if current_task else None
    if grant is None:
        raise RuntimeError("no grant: no task with @singleton runs here")
    found: zklock.Grant = grant
    return found


class _Tenure:
    """Holds the lock for one run of a task, on a thread of its own.

    A soft time limit and SIGTERM raise in the thread that runs the task, at any moment. There they
    strike neither the acquisition nor the release. The two threads share nothing but queues of C:
    a condition of ``threading`` that is struck may stay locked.
    """

    def __init__(self, task: Any, path: str, wait: float) -> None:
        request = task.request  # another thread has no request
        self._identity = f"{request.hostname or socket.gethostname()}:{task.name}:{request.id}"
        self._app = task.app
        self._path = path
        self._wait = wait
        self.over: SimpleQueue[None] = SimpleQueue()
        self._begun: SimpleQueue[zklock.Grant | BaseException] = SimpleQueue()
        self._ended: SimpleQueue[BaseException | None] = SimpleQueue()
        self._through: SimpleQueue[None] = SimpleQueue()  # the wait for the lock is over
        self._granted = False
        self._lock: zklock.Lock | None = None

    def begin(self) -> zklock.Grant:
        """Acquire the lock, to be held until something is put into ``over``.

        ``AcquireTimeout``: another one has it. ``NoAnswer``: that is not known.
        """
        start_new_thread(self._hold, ())  # a struck start() of threading raises something else
        grant = _take(self._begun)
        if isinstance(grant, BaseException):
            raise grant
        self._granted = True
        return grant

    def finish(self) -> None:
        """Wait for the release; raise ``LockLost`` if the lock was lost before."""
        error = _take(self._ended)
        if error is not None:
            raise error

    def note_loss(self, error: BaseException) -> None:
        """Wait for the release, or end the wait for the lock; note a loss on the task's error."""
        if self._granted:
            lost = _take(self._ended)
            if isinstance(lost, LockLost):
                error.add_note(f"the lock was also lost: {lost}")
            return
        while self._lock is not None and self._through.empty():
            self._lock.cancel()
            with contextlib.suppress(Empty):
                self._through.get(timeout=_LOOK)
                return

    def _hold(self) -> None:
        tell: Callable[[Any], None] = self._begun.put
        try:
            wanted = settings(self._app.conf)
            client = _clients.get(self._app, wanted.connect)
            lock = zklock.Lock(client, self._path, identity=self._identity, timeout=self._wait)
            self._lock = lock
            if not self.over.empty():
                self._through.put(None)
                return  # the task has ended, perhaps before there was a lock to cancel
            until = time.monotonic() + wanted.timeout
            while True:
                try:
                    with lock as grant:
                        self._through.put(None)
                        tell(grant)
                        tell = self._ended.put
                        self.over.get()
                    break
                except AcquireTimeout as error:
                    if error.ahead:
                        raise
                    if time.monotonic() >= until or not self.over.empty():
                        raise NoAnswer(
                            f"{self._path}: ZooKeeper did not say within {wanted.timeout:g} s "
                            "whether the lock is free: send the task again later",
                            path=self._path,
                        ) from error
        except BaseException as error:
            self._through.put(None)
            tell(error)
        else:
            tell(None)


def _take(told: SimpleQueue[T]) -> T:
    """Return what is told, once it is."""
    while True:
        with contextlib.suppress(Empty):
            return told.get(timeout=_TURN)


@worker_process_shutdown.connect  # type: ignore[untyped-decorator]
def _end_clients(**_: Any) -> None:
    """Stop the clients of a child of a prefork pool: it ends without Python's own exit."""
    _clients.end()


def _running(function: Callable[..., Any], args: Any) -> Any:
    if args and isinstance(args[0], Task):
        return args[0]
    if not current_task:
        raise RuntimeError(
            f"{function.__qualname__} runs outside of a task: call the task made by @app.task, "
            "and put @app.task above @singleton"
        )
    return current_task._get_current_object()


def _path(lock: str | Callable[..., str], args: Any, kwargs: Any) -> str:
    if isinstance(lock, str):
        return lock
    bound = bool(args) and isinstance(args[0], Task)
    return lock(*args[bound:], **kwargs)


@contextlib.contextmanager
def _shown(task: Any, grant: zklock.Grant) -> Iterator[None]:
    """Show the grant in the context of the task; a task may call another one's function."""
    request = task.request
    before = getattr(request, "zklock", None)
    request.zklock = grant
    try:
        yield
    finally:
        request.zklock = before


def _not_got(task: Any, busy: Busy, error: AcquireTimeout | NoAnswer) -> object:
    if busy == "retry":
        raise task.retry(exc=error)
    if isinstance(error, NoAnswer):
        raise error
    if busy == "reject":
        raise Reject(str(error), requeue=False)
    log.info("%s is skipped: %s", task.name, error, extra=log_fields(path=error.path))
    return None
