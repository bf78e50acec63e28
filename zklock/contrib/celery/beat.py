"""Celery beat that leads before it ticks: several may run, and one of them sends.

``celery -A app beat -S zklock.contrib.celery:LeaderScheduler``. Needs the extra ``celery``.
"""

from __future__ import annotations

import logging
import threading
from datetime import datetime
from typing import Any
from urllib.parse import quote

from celery.beat import ScheduleEntry, Scheduler
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

import zklock
from zklock.contrib import wsgi
from zklock.contrib._running import Running
from zklock.contrib.celery.settings import settings
from zklock.telemetry import log_fields

__all__ = ["LeaderScheduler"]

log = logging.getLogger("zklock")

_TURN = 1.0
"""The longest sleep between two ticks, in seconds: so soon a new leader begins."""

_Trouble = (KazooException, KazooTimeoutError)


class LeaderScheduler(Scheduler):
    """Sends the entries of ``beat_schedule`` while this beat leads; else it stands by.

    Settings of the app: ``zklock_hosts`` (needed), ``zklock_path`` (the election's znode,
    ``/celery/beat`` by default), ``zklock_timeout`` (the session timeout in seconds, 10 by default)
    and ``zklock_options`` (more arguments of ``zklock.connect()``).

    Every tick asks for the lease. When each entry was sent last is kept in ZooKeeper, below
    ``<zklock_path>-runs``: the next leader goes on from there. It is written before an entry is
    sent, in one transaction that needs the leader's own znode. So a beat that was paused or cut off
    sends nothing after another one leads, and no run is sent twice.

    *Not guaranteed:* that every run is sent. If the leader dies between the two steps, the entry is
    sent at its next time only. What was recorded by a leader that was then paused may arrive late.
    """

    def __init__(self, app: Any, *args: Any, lazy: bool = False, **kwargs: Any) -> None:
        wanted = settings(app.conf)
        path = app.conf.get("zklock_path") or "/celery/beat"
        self._runs = f"{path}-runs"
        self._timeout = wanted.timeout
        self._background = wsgi.Background(
            wanted.hosts, path, self._lead, timeout=wanted.timeout, **wanted.options
        )
        self._ticking = Running()  # the threads of ticks
        self._leadership: zklock.Leadership | None = None
        self._loaded: zklock.Leadership | None = None
        super().__init__(app, *args, lazy=lazy, **kwargs)
        if not lazy:
            self._background.start()

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due, if this beat leads; return the seconds until the next tick."""
        ticker = threading.get_ident()
        try:
            self._ticking.pieces[ticker] = None
            if not self._may_send():
                return _TURN
            return float(min(super().tick(*args, **kwargs), _TURN))
        finally:
            self._ticking.pieces.pop(ticker, None)
            self._ticking.tell()

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        """Record the run, then send the entry; it is not sent if it cannot be recorded."""
        term = self._loaded
        try:
            if term is None or not term.held:
                return
            self._record(term, self.schedule[entry.name])
        except _Trouble as error:
            self._loaded = None  # look what is recorded before anything else is sent
            log.warning(
                "%s: not sent, as it is not recorded: %s: %r",
                self._runs,
                entry.name,
                error,
                extra=log_fields(term),
            )
            return
        super().apply_entry(entry, producer=producer)

    def close(self) -> None:
        """Hand the leadership over."""
        if threading.get_ident() in self._ticking.pieces:
            return  # beat's signal handler has interrupted a tick, and closes again after it
        self._background.stop()
        super().close()

    def _lead(self, leadership: zklock.Leadership) -> None:
        self._leadership = leadership
        leadership.should_stop.wait()
        self._leadership = None  # first: a tick that begins from now on sends nothing
        self._ticking.wait()  # a tick that has begun ends before another beat leads

    def _may_send(self) -> bool:
        """Tell whether this beat leads, and knows when each entry was sent last."""
        term = self._leadership
        if term is None or not term.held:
            return False
        try:
            if self._loaded is not term:
                self._load(term)
        except _Trouble as error:
            log.warning(
                "%s: nothing is sent, the last runs are not known: %r",
                self._runs,
                error,
                extra=log_fields(term),
            )
            return False
        return True

    @property
    def _client(self) -> zklock.Client:
        client: zklock.Client | None = self._background.client
        assert client is not None, "this beat leads, so it has connected"
        return client

    def _load(self, term: zklock.Leadership) -> None:
        """Take over when each entry was sent last; an entry that was never sent begins now."""
        client = self._client
        # This server may be behind the one that the last leader wrote to.
        client.sync_async(self._runs).get(timeout=self._timeout)
        for entry in self.schedule.values():
            try:
                data, _ = client.get_async(self._node(entry)).get(timeout=self._timeout)
                entry.last_run_at = datetime.fromisoformat(data.decode())
            except NoNodeError:
                entry.last_run_at = entry.default_now()
                self._record(term, entry)
        self._heap = None
        self._loaded = term

    def _record(self, term: zklock.Leadership, entry: ScheduleEntry) -> None:
        client, node = self._client, self._node(entry)
        data = entry.last_run_at.isoformat().encode()
        there = client.exists_async(node).get(timeout=self._timeout)
        if there is None:
            client.ensure_path_async(self._runs).get(timeout=self._timeout)
        request = client.transaction()
        request.check(term.path, -1)
        if there is None:
            request.create(node, data)
        else:
            request.set_data(node, data)
        for result in request.commit_async().get(timeout=self._timeout):
            if isinstance(result, Exception):
                raise result

    def _node(self, entry: ScheduleEntry) -> str:
        return f"{self._runs}/{quote(entry.name, safe='').replace('.', '%2E')}"
