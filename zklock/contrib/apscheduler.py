"""APScheduler 3: the jobs run on the leader only.

Needs the extra ``apscheduler``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from apscheduler.events import EVENT_SCHEDULER_SHUTDOWN, EVENT_SCHEDULER_STARTED
from apscheduler.schedulers import SchedulerNotRunningError
from apscheduler.schedulers.base import BaseScheduler

import zklock
from zklock.contrib import wsgi
from zklock.contrib._health import Health, wait_for_end
from zklock.telemetry import log_fields

__all__ = ["LeaderJobs"]

log = logging.getLogger("zklock")

Job = TypeVar("Job", bound=Callable[..., Any])


class LeaderJobs:
    """Lets schedulers of many processes run their jobs in one: the one that leads the election.

    Make it before the scheduler is started. The scheduler is paused from its start on, and runs
    while this process leads. When it is shut down, the leadership is handed over.

    ``hosts``, ``timeout`` and further options are those of ``zklock.connect()``; ``path`` is the
    election's znode; ``identity`` and ``grace`` are those of ``LeaderElection``. ``grace`` is the
    time that running jobs have to end when the leadership is to be handed over.

    Decorate the jobs by :meth:`only`: then each looks at the lease when it begins, and a hand-over
    waits for those that run. A ``ProcessPoolExecutor`` cannot run them: its processes do not lead.

    APScheduler treats jobs that fell due while it was paused as misfired: a job that is late by no
    more than its ``misfire_grace_time`` (1 second by default) runs when this process takes over.

    *Not guaranteed:* that a job runs exactly once. With job stores in memory, a process does not
    know what another one has run: let every ``misfire_grace_time`` be shorter than the session
    timeout, or let all processes share a persistent job store. Nor is it guaranteed that two never
    run a job at the same instant: hand ``leadership.token`` to what the job writes.
    """

    def __init__(
        self,
        scheduler: Any,
        hosts: str,
        path: str,
        *,
        timeout: float = 10.0,
        identity: str | None = None,
        grace: float = 10.0,
        **options: Any,
    ) -> None:
        if scheduler.running:
            raise ValueError("the scheduler already runs: make LeaderJobs before its start()")
        self._scheduler = scheduler
        self._path = path
        self._background = wsgi.Background(
            hosts, path, self._lead, timeout=timeout, identity=identity, grace=grace, **options
        )
        self._leadership: zklock.Leadership | None = None
        # The jobs, each with the thread that it was begun on.
        self._running: dict[tuple[int, object], None] = {}
        scheduler.add_listener(self._started, EVENT_SCHEDULER_STARTED)
        scheduler.add_listener(self._shut_down, EVENT_SCHEDULER_SHUTDOWN)

    @property
    def leadership(self) -> zklock.Leadership | None:
        """The term in which this process runs the jobs, ``None`` while it does not lead."""
        term = self._leadership
        return term if term is not None and term.held else None

    @property
    def health(self) -> Health:
        """The state of this process, as for web servers."""
        return self._background.health

    def only(self, job: Job) -> Job:
        """Decorate a job, a function or a coroutine function: it starts only under the lease.

        If the lease has lapsed by then, the job is skipped: ``None`` is returned, and a warning is
        logged. The result can be kept in a persistent job store, if it is a name of a module.
        """
        if inspect.iscoroutinefunction(job):

            @functools.wraps(job)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with self._counted() as leads:
                    return await job(*args, **kwargs) if leads else None

            return awaited  # type: ignore[return-value]

        @functools.wraps(job)
        def called(*args: Any, **kwargs: Any) -> Any:
            with self._counted() as leads:
                return job(*args, **kwargs) if leads else None

        return called  # type: ignore[return-value]

    @contextlib.contextmanager
    def _counted(self) -> Iterator[bool]:
        """Count a job as running, if this process leads."""
        job = threading.get_ident(), object()
        try:
            self._running[job] = None  # before the look: see _lead()
            leads = self.leadership is not None
            if not leads:
                log.warning(
                    "%s: a job is skipped: this process does not lead now",
                    self._path,
                    extra=log_fields(path=self._path),
                )
            yield leads
        finally:
            self._running.pop(job, None)

    def _started(self, event: Any) -> None:
        del event
        self._scheduler.pause()
        self._background.start()

    def _shut_down(self, event: Any) -> None:
        del event
        loop = None
        with contextlib.suppress(RuntimeError):  # no loop runs here
            loop = asyncio.get_running_loop()
        me = threading.get_ident()
        if loop is None and all(thread != me for thread, _ in list(self._running)):
            self._hand_over(None)
            return
        # Not here: jobs on this loop, or the job on this thread, would never end. The process does
        # not end before it, as the thread is no daemon.
        try:
            threading.Thread(target=self._hand_over, args=(loop,), name="zklock-jobs-over").start()
        except RuntimeError:  # no thread can be started
            self._hand_over(loop)

    def _hand_over(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._background.stop()
        if loop is None:
            self._end_again()
        else:
            with contextlib.suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(self._end_again)

    def _end_again(self) -> None:
        if self._scheduler.running:  # a pause() or resume() from here has crossed the shutdown()
            BaseScheduler.shutdown(self._scheduler, wait=False)

    def _lead(self, leadership: zklock.Leadership) -> None:
        self._leadership = leadership
        # Stopped in the meantime: the election is told as well.
        with contextlib.suppress(SchedulerNotRunningError):
            self._scheduler.resume()
        leadership.should_stop.wait()
        with contextlib.suppress(SchedulerNotRunningError):
            self._scheduler.pause()
        self._leadership = None  # first: a job that begins from now on is left out
        wait_for_end(self._running)
