"""Celery beat that leads before it ticks: several may run, and one of them sends.

``celery -A app beat -S zklock.contrib.celery:LeaderScheduler``. Needs the extra ``celery``.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from datetime import datetime
from functools import cached_property
from typing import Any
from urllib.parse import quote

from celery.beat import ScheduleEntry, Scheduler, SchedulingError
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kombu.exceptions import OperationalError

import zklock
from zklock.contrib import wsgi
from zklock.contrib._health import wait_for_end
from zklock.contrib.celery.settings import settings
from zklock.telemetry import log_fields

__all__ = ["LeaderScheduler"]

log = logging.getLogger("zklock")

_TURN = 1.0
"""The longest sleep between two ticks, in seconds: so soon a new leader begins."""

_Trouble = (KazooException, KazooTimeoutError)

_LIMITS = {
    "redis": ("socket_timeout", "socket_connect_timeout"),
    "amqp": ("read_timeout", "write_timeout"),
}
"""What a transport of kombu calls the limits of time of its sockets."""


class LeaderScheduler(Scheduler):
    """Sends the entries of ``beat_schedule`` while this beat leads; else it stands by.

    Settings of the app: ``zklock_hosts`` (needed), ``zklock_path`` (the election's znode,
    ``/celery/beat`` by default), ``zklock_timeout`` (the session timeout in seconds, 10 by default)
    ``zklock_options`` (more arguments of ``zklock.connect()``), ``zklock_send_failures`` (after so
    many runs in a row that the broker did not take, this beat lets another one lead; 2 by default)
    and ``zklock_send_timeout`` (for how many seconds it waits for the broker, 10 by default).

    Every tick asks for the lease. When each entry was sent last is kept in ZooKeeper, below
    ``<zklock_path>-runs``: the next leader goes on from there. It is written before an entry is
    sent, in one transaction that needs the leader's own znode. A beat that was paused or cut off
    therefore sends nothing after another one leads, and no run is sent twice. A run that the broker
    refused is not recorded any more: this beat, or the next leader, sends it once the broker
    accepts it.

    *Not guaranteed:* that every run is sent. If the leader dies between the two steps, the entry is
    sent at its next time only. A run that a leader recorded before a pause may arrive late. A run
    whose message the broker took without an answer is sent again.
    """

    def __init__(self, app: Any, *args: Any, lazy: bool = False, **kwargs: Any) -> None:
        wanted = settings(app.conf)
        path = app.conf.get("zklock_path") or "/celery/beat"
        self._runs = f"{path}-runs"
        self._timeout = wanted.timeout
        self._patience = int(app.conf.get("zklock_send_failures") or 2)
        self._send_timeout = float(app.conf.get("zklock_send_timeout") or 10.0)
        self._refusals = 0  # by the broker, in a row
        self._refused: BaseException | None = None  # the last one
        self._background = wsgi.Background(
            wanted.hosts, path, self._lead, timeout=wanted.timeout, **wanted.options
        )
        self._ticking: dict[int, None] = {}  # the threads of ticks
        self._leadership: zklock.Leadership | None = None
        self._loaded: zklock.Leadership | None = None
        super().__init__(app, *args, lazy=lazy, **kwargs)
        if not lazy:
            self._background.start()

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due, if this beat leads; return the seconds until the next tick."""
        ticker = threading.get_ident()
        try:
            self._ticking[ticker] = None
            if not self._may_send():
                return _TURN
            try:
                return float(min(super().tick(*args, **kwargs), _TURN))
            except self._broker_errors as error:  # there is no connection to send by
                self._not_sent(error)
                return _TURN
        finally:
            self._ticking.pop(ticker, None)

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
                "%s: not sent: ZooKeeper did not record %s (%r)",
                self._runs,
                entry.name,
                error,
                extra=log_fields(term),
            )
            return
        before = self._refusals
        super().apply_entry(entry, producer=producer)  # it logs an error, and raises none
        if self._refusals > before:
            with contextlib.suppress(*_Trouble):  # then it counts as sent
                self._record(term, entry)  # as it was before

    def apply_async(self, entry: ScheduleEntry, *args: Any, **kwargs: Any) -> Any:
        """Send an entry to the broker; called by Celery. Raises its ``SchedulingError``."""
        try:
            result = super().apply_async(entry, *args, **kwargs)
        except SchedulingError as error:
            if isinstance(error.__context__, self._broker_errors):
                self._not_sent(error.__context__)
            raise
        self._refusals = 0
        return result

    @cached_property
    def connection(self) -> Any:
        """The connection to the broker, with limits of time."""
        made = self.app.connection_for_write()
        for name in _LIMITS.get(made.transport.driver_type, ()):
            made.transport_options.setdefault(name, self._send_timeout)
        return made

    @cached_property
    def producer(self) -> Any:
        """What sends; an error if the broker cannot be reached in time."""
        self.connection.ensure_connection(
            interval_start=0.1, interval_step=0.5, interval_max=2.0, timeout=self._send_timeout
        )
        return self.Producer(self.connection, auto_declare=False)

    def close(self) -> None:
        """Hand the leadership over, after the entry that is being sent. May be called twice."""
        if threading.get_ident() in self._ticking:
            return  # beat's signal handler has interrupted a tick, and closes again after it
        self._background.stop()
        super().close()

    def _lead(self, leadership: zklock.Leadership) -> None:
        self._refusals = 0
        self._leadership = leadership
        leadership.should_stop.wait()
        self._leadership = None  # first: a tick that begins from now on sends nothing
        wait_for_end(self._ticking)  # a tick that has begun ends before another beat leads
        if self._refusals >= self._patience:
            # It stands again after a pause, which grows with each such term in a row.
            raise zklock.ZkLockError(
                f"{leadership.lock_path}: the broker refuses this beat ({self._refused!r}): "
                "another beat may lead; check the broker",
                path=leadership.lock_path,
            )

    def _not_sent(self, error: BaseException) -> None:
        """Note that the broker did not take a run. Have another beat lead, if it is often."""
        self._loaded = None  # take over again what was sent last: it is still due
        self._refused = error
        self._refusals += 1
        term = self._leadership
        if term is not None and self._refusals >= self._patience:
            term.resign()

    @property
    def _broker_errors(self) -> tuple[type[BaseException], ...]:
        known = self.connection
        return OperationalError, OSError, *known.connection_errors, *known.channel_errors

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
                "%s: nothing is sent: the last runs are not known (%r)",
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
