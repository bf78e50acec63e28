"""Background work of a WSGI application: one of its worker processes does it, the others stand by.

For gunicorn's hooks ``post_fork`` and ``worker_exit``, and for whatever else starts worker
processes. Needs no extra. Workers of gevent and eventlet are not supported.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

import zklock
from zklock.contrib._clients import end
from zklock.contrib._health import PAUSE_SECONDS, BackgroundBase, Health, Reporter
from zklock.errors import LeaderStuck, NoAnswer

__all__ = ["Background", "Health"]


class Background(BackgroundBase[Callable[[zklock.Leadership], object]]):
    """Runs ``work(leadership)`` in one worker process of many: the one that leads the election.

    ``hosts``, ``timeout`` and further options are those of ``zklock.connect()``. ``path`` is the
    election's znode. ``work`` runs in a thread of its own. It has to return soon after
    ``leadership.should_stop`` is set. When it returns, another process leads. ``identity`` and
    ``grace`` are those of ``LeaderElection``.

    In ``gunicorn.conf.py``: ``post_fork = background.post_fork`` and ``worker_exit =
    background.worker_exit``. Elsewhere call ``start()`` in the process that serves, after any fork,
    and ``stop()`` before it ends. Nothing is connected before ``start()``. The process serves
    without ZooKeeper, too: the connection is tried again until there is one.

    The object itself is a WSGI application that answers ``…/live``, ``…/ready`` and ``…/leader``:
    mount it somewhere. Each answer is that of the worker process that got the request.

    *Not guaranteed:* that two processes never work at the same instant. See ``LeaderElection``.
    """

    _thread: threading.Thread | None = None

    @property
    def client(self) -> Any:
        """The client of this process, ``None`` before it is connected. Leave it running."""
        return self._report.client

    def post_fork(self, server: Any, worker: Any) -> None:
        """Stand for election in this worker: gunicorn's hook."""
        del server, worker
        self.start()

    def worker_exit(self, server: Any, worker: Any) -> None:
        """Have the work end, and hand the leadership over: gunicorn's hook."""
        del server, worker
        self.stop()

    def start(self) -> None:
        """Stand for election in this process, on a thread."""
        if self._thread is not None and self._thread.is_alive():
            raise RuntimeError("this Background already runs: make one for each application")
        self._report = Reporter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zklock-background", daemon=True)
        self._thread.start()

    def stop(self) -> bool:
        """Have the work end, and hand the leadership over; return whether all has ended.

        Waits at most twice ``grace``. Work that has not ended by then ends with the process.
        """
        thread = self._thread
        if thread is None:
            return True
        self._stop.set()
        thread.join(2 * self._grace)
        # The election gives up work that is stuck, and the thread ends before it.
        return not thread.is_alive() and self._report.leadership is None

    def __call__(
        self, environ: MutableMapping[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer a request for ``…/live``, ``…/ready`` or ``…/leader``."""
        status, body = self._report.answer(environ["REQUEST_METHOD"], environ.get("PATH_INFO", ""))
        headers = [
            ("Content-Type", "application/json"),
            ("Cache-Control", "no-store"),
            ("Content-Length", str(len(body))),
        ]
        start_response(f"{int(status)} {status.phrase}", headers)
        return [body]

    def _run(self) -> None:
        report, stop = self._report, self._stop
        with self._reporting(report):
            client = self._connect(stop)
            if client is None:
                return
            try:
                self._has_found_zookeeper()
                report.client = client
                election = zklock.LeaderElection(
                    client, self._path, identity=self._identity, grace=self._grace
                )
                report.identity = election.identity
                with contextlib.closing(election.observe(report.heard)):
                    report.standing = True
                    election.run(lambda leadership: self._lead(report, leadership), stop)
            except LeaderStuck:
                client = None  # nobody else may lead before the work, or this process, has ended
                raise
            finally:
                report.standing = False
                if client is not None:
                    end(client)

    def _connect(self, stop: threading.Event) -> Any:
        while not stop.is_set():
            try:
                return zklock.connect(self._hosts, self._timeout, **self._options)
            except NoAnswer as error:
                self._waits_for_zookeeper(error)
                stop.wait(PAUSE_SECONDS)
        return None

    def _lead(self, report: Reporter, leadership: zklock.Leadership) -> object:
        report.leadership = leadership
        try:
            return self._work(leadership)  # the election refuses a coroutine
        finally:
            report.leadership = None
