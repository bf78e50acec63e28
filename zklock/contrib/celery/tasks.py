"""``@singleton``: a task that runs once at a time, among all workers."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, ParamSpec, TypeVar, cast

from celery import Task, current_task
from celery.exceptions import Reject
from celery.signals import worker_process_shutdown

import zklock
from zklock.contrib._clients import client_for, end_all
from zklock.contrib.celery.settings import Settings, settings
from zklock.errors import AcquireTimeout, NoAnswer
from zklock.telemetry import log_fields

__all__ = ["current_grant", "singleton"]

P = ParamSpec("P")
R = TypeVar("R")

Busy = Literal["retry", "reject", "skip"]

log = logging.getLogger("zklock")


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
            wanted = settings(task.app.conf)
            path = _path(lock, args, kwargs)
            until = time.monotonic() + wanted.timeout
            grant: zklock.Grant | None = None
            while True:
                try:
                    # Here, not in a generator: the traceback of an exception out of nowhere would
                    # keep that, and the lock with it.
                    with _lock(wanted, task, path, wait) as grant, _shown(task, grant):
                        return function(*args, **kwargs)
                except (AcquireTimeout, NoAnswer) as error:
                    if grant is not None:  # the task's own
                        raise
                    unknown = isinstance(error, AcquireTimeout) and not error.ahead
                    if unknown and time.monotonic() < until:
                        continue
                    why = _unanswered(path, wanted.timeout, error) if unknown else error
                return cast("R", _not_got(task, busy, why))

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


def _lock(wanted: Settings, task: Any, path: str, wait: float) -> zklock.Lock:
    request = task.request
    client = client_for(task.app, wanted.connect)
    identity = f"{request.hostname or socket.gethostname()}:{task.name}:{request.id}"
    return zklock.Lock(client, path, identity=identity, timeout=wait)


def _unanswered(path: str, seconds: float, cause: BaseException) -> NoAnswer:
    """Return the error for a lock of which nobody has said that another one has it."""
    error = NoAnswer(
        f"{path}: ZooKeeper did not say within {seconds:g} s whether the lock is free: send the "
        "task again later",
        path=path,
    )
    error.__cause__ = cause
    return error


@worker_process_shutdown.connect  # type: ignore[untyped-decorator]
def _end_clients(**_: Any) -> None:
    """Stop the clients of a child of a prefork pool: it ends without Python's own exit."""
    end_all()


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
