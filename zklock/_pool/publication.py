"""What a worker owns and should have, written for others to read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from zklock._engine.grant import GrantBase
from zklock._engine.outcome import Once
from zklock._engine.session import Session
from zklock._ground.records import Fields
from zklock._pool import nodes
from zklock._pool.agenda import Agenda
from zklock._pool.keys import Key
from zklock._pool.nodes import WorkerNodes
from zklock._pool.trouble import Trouble
from zklock._recipes import queries
from zklock.errors import AccessDenied

log = logging.getLogger("zklock")

_AFTER = 0.1
"""How long a worker collects changes of what it owns before it writes them, in seconds."""

REFUSED = 1.0
"""How long a worker waits after ACLs have refused a write, in seconds. Then it tries again."""

_LONGEST = 30.0
"""The longest such pause, after several refusals in a row, in seconds."""


def write(
    session: Session,
    agenda: Agenda,
    node: str,
    data: bytes,
    written: Callable[[AccessDenied | None], object],
) -> None:
    """Write to a node. ``written(refusal)`` is called later, on the agenda's thread.

    ``refusal``: the error, if ACLs have refused it. They may be changed again.
    """
    attempt = session.attempt(queries.retry_on_new_session(lambda: nodes.write(node, data)))

    def answered() -> None:
        error = attempt.settled()[1]
        written(error if isinstance(error, AccessDenied) else None)

    attempt.when_done(partial(agenda.later, Once(answered)))
    attempt.start()


class Refusals:
    """What ACLs have refused in a row to write to one node, said once, and when it ends."""

    def __init__(self, fields: Callable[[], Fields]) -> None:
        self._trouble = Trouble((REFUSED, _LONGEST))
        self._fields = fields

    def heard(self, refusal: AccessDenied | None) -> float | None:
        """Take an answer; return the pause until the next try, ``None`` if it was not refused."""
        if refusal is None:
            if self._trouble.ends():
                log.info("this worker writes its node again", extra=self._fields())
            return None
        if self._trouble.strikes(refusal):
            log.error(
                "this worker may not write its own node: %s",
                refusal,
                extra=self._fields(),
            )
        return self._trouble.pause()


class Publication:
    """Writes which shards a worker owns, a moment after each change.

    Only the pool's thread uses it. ``owned`` has the grants by their shards. Nothing is
    written once ``stopping()``.
    """

    def __init__(
        self,
        session: Session,
        desk: WorkerNodes,
        agenda: Agenda,
        owned: Mapping[Key, GrantBase],
        stopping: Callable[[], bool],
        *,
        refusals: Refusals,
    ) -> None:
        self._session = session
        self._desk = desk
        self._agenda = agenda
        self._owned = owned
        self._stopping = stopping
        self._refusals = refusals
        self._written: tuple[str | None, bytes] | None = None  # the node, and its data
        self._under_way = False

    def soon(self) -> None:
        """Write soon: something has changed."""
        if not self._under_way and not self._stopping():
            self._under_way = True
            self._again()

    def _again(self) -> None:
        # Again after each time: something may have changed while it was written.
        self._agenda.at(self._agenda.now() + _AFTER, self._write)

    def _write(self) -> None:
        node = self._desk.owned
        data = nodes.owned_data({shard: it.token for shard, it in self._owned.items()})
        if node is None or self._stopping() or (node, data) == self._written:
            self._under_way = False
            return
        self._written = node, data
        write(self._session, self._agenda, node, data, self._answered)

    def _answered(self, refusal: AccessDenied | None) -> None:
        pause = self._refusals.heard(refusal)
        if pause is None:
            self._again()
        else:
            self._written = None
            self._agenda.at(self._agenda.now() + pause, self._write)


class PlaceKeeper:
    """Writes which shards were assigned to a worker, where they are kept for it.

    Only the pool's thread uses it. One write is under way at a time, so that the newest comes last.
    A place that is gone is left alone.
    """

    def __init__(
        self,
        session: Session,
        path: str,
        agenda: Agenda,
        stopping: Callable[[], bool],
        *,
        refusals: Refusals,
    ) -> None:
        self._session = session
        self._path = path
        self._agenda = agenda
        self._stopping = stopping
        self._refusals = refusals
        self._wanted = b""
        self._written = b""
        self._under_way = False

    def forget(self) -> None:
        """Write the next data in any case: the place may have been made anew."""
        self._written = b""

    def say(self, data: bytes) -> None:
        """Write this soon."""
        self._wanted = data
        if not self._under_way:
            self._write()

    def _write(self) -> None:
        data = self._wanted
        self._under_way = data != self._written and not self._stopping()
        if self._under_way:
            self._written = data
            write(self._session, self._agenda, self._path, data, self._answered)

    def _answered(self, refusal: AccessDenied | None) -> None:
        pause = self._refusals.heard(refusal)
        if pause is None:
            self._write()
        else:
            self._written = b""
            self._agenda.at(self._agenda.now() + pause, self._write)
