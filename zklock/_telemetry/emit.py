"""What a session, its attempts and its grants tell telemetry.

The caller has looked at ``subscriptions.hooks`` before. So it costs nothing if nobody has
subscribed. Nothing here blocks, takes a lock, or calls anything of the user's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

from zklock._telemetry import subscriptions
from zklock._telemetry.events import (
    Disconnected,
    EpochChanged,
    Granted,
    Lost,
    Queued,
    Released,
    Suspended,
    Withdrawn,
)

_EPOCHS = 4096  # paths whose epochs are remembered


class Epochs:
    """The epochs of the newest grants, by the path of the lock. The caller has the guard."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, int] = OrderedDict()

    def note(self, path: str, epoch: int) -> int | None:
        """Note the epoch of a new grant → the one before, if that was another."""
        before = self._known.pop(path, epoch)
        self._known[path] = epoch
        if len(self._known) > _EPOCHS:
            self._known.popitem(last=False)
        return None if before == epoch else before


def queued(terms: Any, now: Callable[[], float]) -> Callable[[str, int], object]:
    """Return what tells of a place in the queue: it is called with the node, and how many ahead."""
    told = ""  # an interrupt may have the recipe tell it again

    def tell(node: str, ahead: int) -> None:
        nonlocal told
        if node == told:
            return
        told = node
        subscriptions.emit(Queued(at=now(), node=node, ahead=ahead, **_lock(terms)))

    return tell


def begun(attempt: Any, now: Callable[[], float]) -> None:
    attempt.began = began = now()
    attempt.when_done(partial(_withdrawn, attempt, began, now))


def granted(attempt: Any, grant: Any, epochs: Epochs, now: float) -> None:
    """Tell of a grant; the caller has the guard."""
    path, epoch = grant.lock_path, grant.token.epoch
    before = epochs.note(path, epoch)
    if before is not None:
        subscriptions.emit(EpochChanged(at=now, path=path, before=before, now=epoch))
    waited = None if attempt.began is None else now - attempt.began
    gap = None if attempt.heard is None else now - attempt.heard
    attempt.told = True
    grant._granted_at = now
    permits = len(grant.tokens)
    subscriptions.emit(
        Granted(at=now, permits=permits, waited=waited, gap=gap, kept=grant.kept, **_grant(grant))
    )


def granted_again(grant: Any, now: float) -> None:
    """Tell of a grant for which nobody has waited: its znode was kept."""
    grant._granted_at = now
    event = Granted(at=now, permits=1, waited=0.0, gap=None, kept=True, **_grant(grant))
    subscriptions.emit(event)


def disconnected(session_id: int, grants: list[Any], now: float, lease: float) -> None:
    """Tell that the connection is lost, and of the grants that live on."""
    left = max(0.0, lease)
    held = [grant for grant in grants if not grant._ended]
    lost = Disconnected(at=now, session_id=session_id, remaining=left, grants=len(held))
    subscriptions.emit(lost)
    for grant in held:
        subscriptions.emit(Suspended(at=now, remaining=left, **_grant(grant)), grant._end_told)


def released(grant: Any, now: float) -> None:
    """Tell that a grant is given back. Repeatable."""
    subscriptions.emit(
        Released(at=now, lasted=_lasted(grant, now), **_grant(grant)), grant._end_told
    )


def lost(grant: Any) -> None:
    """Tell that a grant is lost. Repeatable."""
    loss = grant._loss
    if loss is not None:
        event = Lost(
            at=loss.noticed,
            reason=loss.reason,
            lease_end=loss.lease_end,
            lasted=_lasted(grant, loss.noticed),
            **_grant(grant),
        )
        subscriptions.emit(event, grant._end_told)


def _withdrawn(attempt: Any, began: float, now: Callable[[], float]) -> None:
    terms = attempt.terms
    grant, raised = attempt.settled()
    if grant is None and not attempt.told and terms is not None:
        at, error = now(), None if raised is None else type(raised).__name__
        subscriptions.emit(Withdrawn(at=at, waited=at - began, error=error, **_lock(terms)))
        attempt.told = True  # an interrupt may have this called again


def _lasted(grant: Any, now: float) -> float | None:
    return None if grant._granted_at is None else now - grant._granted_at


def _lock(terms: Any) -> Any:
    return {"path": terms.lock_path, "kind": terms.kind, "identity": terms.identity}


def _grant(grant: Any) -> Any:
    identity = {"token": grant.token, "node": grant.path, "session_id": grant.session_id}
    return _lock(grant._terms) | identity
