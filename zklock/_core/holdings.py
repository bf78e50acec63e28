"""What is held on one ZooKeeper session, until when that may be believed, and how it is lost.

All that is not said to be for any thread runs in a step: see ``session``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from zklock._core.grant import End, GrantBase
from zklock._core.lease import DEFAULT_FRACTION, HEARTBEATS, Lease
from zklock._core.nodes import OwnNodes
from zklock._ground.copy_error import copy_error
from zklock._ground.loss import Loss, LossReason
from zklock._ground.not_copyable import NotCopyable
from zklock._ground.records import Fields, log_fields
from zklock._recipes.effects import Claim
from zklock._telemetry import emit, subscriptions
from zklock._telemetry.events import Event
from zklock.errors import WouldDeadlock

if TYPE_CHECKING:
    from zklock._core.ports import Shell

log = logging.getLogger("zklock")

ASSUMED_TIMEOUT = 4.0
"""The session timeout, in seconds, before the first connection."""

MOMENT = 1.0
"""How long a non-blocking call may wait for ZooKeeper's answer, in seconds."""

_NAMED = 20
"""How many lost locks a log line names."""


class Holdings(NotCopyable):
    """The nodes and grants of a session, and their lease."""

    _INSTEAD = "make what needs it in the other process, with a client of that process"

    delete_orphan: Callable[[str], None]
    """Deletes a node that nobody uses."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.fraction = DEFAULT_FRACTION  # of the timeout, for which a proof is good
        self._settled = False
        self.now = shell.now  # seconds; the lease runs on this clock
        self.step, self.post, self.later = shell.step, shell.post, shell.later
        self.limit = shell.limit
        self.thread, self.notify = shell.thread, shell.notify
        self.final: Exception | None = None  # why no session will come any more
        self._id: int | None = None
        self._lease = Lease(ASSUMED_TIMEOUT, self.fraction)
        self._nodes = OwnNodes()
        self.owns = self._nodes.__contains__  # a node by its path
        # Whether heartbeats can work: they need read permission on the session's own nodes.
        self._readable = True
        self._refused = False  # the client's credentials were
        self._proved_at = -math.inf  # when the newest answered proof was sent
        self._rested_at = -math.inf  # when the newest heartbeat at rest was sent

    # For any thread.

    @property
    def client(self) -> Any:
        return self.shell.client

    @property
    def timeout(self) -> float:
        """The session timeout in seconds, as negotiated."""
        return self._lease.timeout

    @property
    def moment(self) -> float:
        """How long a non-blocking call may wait for an answer, in seconds."""
        return min(MOMENT, self._lease.timeout / 3)

    @property
    def interrupted(self) -> bool:
        """Whether this is a signal handler, or a finalizer, that has interrupted a step."""
        return self.shell.inside()

    @property
    def lease_end(self) -> float:
        """When the lease ends, or has ended."""
        return self._lease.end

    @property
    def at_stake(self) -> bool:
        """Whether there is a grant that lives on a lease."""
        return self._nodes.any_held and self._lease.end > self.now()

    def check_process(self) -> None:
        """Raise ``ForkedClient`` in a forked child, ``ZkLockError`` while Python shuts down."""
        self.shell.check_process()

    def check_usable(self) -> None:
        """Raise ``ForkedClient`` or ``ClientClosed`` if ZooKeeper cannot be asked.

        Raise ``WouldDeadlock`` in a signal handler that has interrupted a step on its own thread:
        no answer could be taken until the handler returns.
        """
        self.shell.check_process()
        if self.interrupted:
            raise handler_error()
        if self.final is not None:
            raise copy_error(self.final)

    def settle(self, fraction: float) -> float:
        """Have proofs be good for this part of the timeout, unless that is settled; return it."""
        if not self._settled:
            self._settled, self.fraction = True, fraction
            self._lease.fraction = fraction
        return self.fraction

    def readable(self, known: bool) -> None:
        """Note whether this client is known to have read permission on its own nodes."""
        self._readable = known

    def remaining(self) -> float:
        """Return the seconds of lease left.

        When it is over, the client's thread declares all grants lost: there may be thousands. Who
        asks for one does not wait for that. It loses its own, as no proof revives a lease.
        """
        left = self._lease.end - self.now()
        if self.shell.forked:
            self._lose_in_child()
            return 0.0
        if left > 0:
            return left
        if self._nodes.any_held:
            self.later(self._over)
        return 0.0

    def _over(self) -> None:
        self.step(self._lapse)

    def held(self) -> list[GrantBase]:
        """Return all grants that are held on this session."""
        return [grant for grant in self._nodes.grants() if grant.held]

    def grants(self, lock_path: str) -> list[GrantBase]:
        """Return the grants of a lock that are held on this session."""
        return [grant for grant in self.grants_at(lock_path) if grant.held]

    def grants_at(self, lock_path: str) -> list[GrantBase]:
        """Return the grants of a lock on this session; some may be over by now."""
        return self._nodes.grants_of(lock_path)

    # In steps.

    def may_grant(self, claim: Claim) -> bool:
        """Whether its nodes are there, of this session, and enough lease is left."""
        there = claim.path in self._nodes and all(path in self._nodes for path, _ in claim.others)
        return there and self._readable and self._live()

    def forget(self, path: str) -> None:
        """Forget a node that is about to be deleted."""
        self._nodes.forget([path])

    def lose(self, path: str) -> None:
        """Forget a node that is deleted, and lose the grant on it."""
        self._lose([path], LossReason.NODE_DELETED)

    def lost_before(self, grant: GrantBase) -> None:
        """Lose a grant that has ended: its release has found nothing to delete."""
        loss = Loss(LossReason.NODE_DELETED, grant, self.now(), self._lease.end)
        grant._ended = End(loss)
        self.post(grant._tell_loss)
        self.post(partial(_warn, [loss]))

    def _live(self) -> bool:
        """Whether enough lease is left for two heartbeats, so that a grant can last.

        After a rest, it takes a proof. So a grant is no nearer to its loss for having been waited
        for in rest.
        """
        if self._id is None or self._proved_at < self._rested_at:
            return False
        return self._lease.end - self.now() >= 2 * self._lease.timeout / HEARTBEATS

    def _lapse(self) -> None:
        """Lose every grant if the lease is over."""
        if self._lease.end <= self.now() and self._nodes.any_held:
            self._lose(self._nodes.held(), LossReason.LEASE_LAPSED)

    def _lose(self, paths: Iterable[str], reason: LossReason) -> None:
        """Forget these nodes, and lose their grants. Repeatable after an interrupt."""
        losses: list[Loss] = []
        for path in paths:
            self._lose_one(path, reason, losses)
        if losses:
            self.post(partial(_warn, losses))

    def _lose_one(self, path: str, reason: LossReason, losses: list[Loss]) -> None:
        own = self._nodes.get(path)
        grant = own.grant if own is not None else None
        if grant is None:
            self._nodes.forget([path])
            return
        grant._note_loss(
            reason,
            noticed=self.now(),
            lease_end=self._lease.end,
            refused=self._refused and reason is LossReason.CLIENT_CLOSED,
        )
        if grant._loss is not None:  # by this call, or before it by the grant itself
            losses.append(grant._loss)
        self.post(grant._tell_loss)
        if grant._place is not None:
            grant._place.lose(grant, deleted=reason is LossReason.NODE_DELETED)
        if subscriptions.hooks:
            emit.lost(grant)
        # The session may live on, and keep the nodes. A grant on several nodes is lost if one of
        # them is gone: the others must be deleted.
        several = reason is LossReason.NODE_DELETED and len(grant._paths) > 1
        if reason is LossReason.LEASE_LAPSED or several:
            for each in grant._paths:
                self.delete_orphan(each)
        self._nodes.forget(grant._paths)

    def _tell(self, event: Callable[..., Event], **what: Any) -> None:
        if subscriptions.hooks:
            subscriptions.emit(event(at=self.now(), session_id=self._id or 0, **what))

    def warn(self, message: str, *details: object) -> None:
        """Log a warning, once nobody waits."""
        self.post(partial(log.warning, message, *details, extra=self._fields()))

    def _fields(self) -> Fields:
        return log_fields(session_id=self._id)

    # The fork.

    def after_fork(self) -> None:
        """Start over in a forked child, where no thread of the client runs."""
        self._nodes.orphan_waiters()

    def _lose_in_child(self) -> None:
        """Lose all in a forked child: the connection is the parent's. The asking thread tells."""
        for grant in self._nodes.grants():
            grant._note_loss(LossReason.FORKED, noticed=self.now(), lease_end=self._lease.end)
            self._nodes.forget(grant._paths)
            grant._tell_loss()


def _warn(losses: list[Loss]) -> None:
    """Log one line for all grants that were lost together."""
    first = losses[0]
    if len(losses) == 1:
        log.warning("%s", first, extra=log_fields(first.grant, reason=first.reason))
        return
    named = sorted(f"{it.grant.lock_path} (token {it.grant.token})" for it in losses)
    if len(named) > _NAMED:
        named[_NAMED:] = [f"and {len(named) - _NAMED} more"]
    log.warning(
        "%d locks of one session lost at %s: %s; stop the guarded work and %s: %s",
        len(losses),
        first._since,
        first._why,
        first._todo,
        ", ".join(named),
        extra=log_fields(session_id=first.grant.session_id, reason=first.reason),
    )


def handler_error() -> WouldDeadlock:
    """Return the error to raise in a signal handler that has interrupted the session."""
    return WouldDeadlock(
        "this signal handler interrupted zklock and cannot wait for an answer: set a flag, and "
        "make this call from the main program; a handler may use cancel(), abandon() and held"
    )
