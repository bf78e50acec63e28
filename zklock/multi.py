"""Several locks as one: all of them or none."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Generic, TypeVar

from zklock.base import Acquirable, check_callbacks, note_loss
from zklock.clock import check_timeout, clock
from zklock.connection import check_thread
from zklock.errors import AcquireTimeout, LockLost, NotHeld
from zklock.grant import Grant, GrantBase, Loss, LostCallback
from zklock.lock import Acquiring
from zklock.token import FencingToken

G = TypeVar("G", bound=GrantBase)
L = TypeVar("L", bound=Acquirable[Any])


class MultiGrantBase(Generic[G]):
    """What a grant of several locks is for threads and for asyncio alike; see ``MultiGrant``."""

    def __init__(self, grants: Sequence[G], on_lost: LostCallback | None) -> None:
        self.grants = tuple(grants)
        self._guard = threading.Lock()
        self._loss: Loss | None = None
        self._callbacks = [on_lost] if on_lost else []
        for grant in self.grants:
            grant.add_lost_callback(self._lose)

    @property
    def tokens(self) -> dict[str, FencingToken]:
        """The fencing token of each lock, by the lock's path."""
        return {grant.lock_path: grant.token for grant in self.grants}

    @property
    def held(self) -> bool:
        """Whether all of the locks may be believed to be held (see ``Grant.held``)."""
        return all(grant.held for grant in self.grants)

    def remaining(self) -> float:
        """Return the seconds of lease that all of them have left if nothing more is heard."""
        return min(grant.remaining() for grant in self.grants)

    def check(self) -> None:
        """Raise ``LockLost`` or ``NotHeld`` for the first lock that is not held any more."""
        for grant in self.grants:
            grant.check()

    def abandon(self) -> None:
        """Give all of them back without waiting for ZooKeeper's answer; no error if it is over."""
        for grant in reversed(self.grants):
            grant.abandon()

    def add_lost_callback(self, callback: LostCallback) -> None:
        """Have ``callback(loss)`` called once, for the first lock that is lost: ``loss.grant``.

        At once if one already is. Otherwise as ``Grant.add_lost_callback``.
        """
        if not callable(callback):
            raise TypeError(f"a lost callback must be callable, not {type(callback).__name__}")
        with self._guard:
            loss = self._loss
            if loss is None:
                self._callbacks.append(callback)
        if loss is not None:
            self.grants[0]._notify([lambda: callback(loss)])

    def _lose(self, loss: Loss) -> None:
        with self._guard:
            if self._loss is not None:
                return
            self._loss = loss
            callbacks, self._callbacks = self._callbacks, []
        self._set_lost()
        if callbacks:
            self.grants[0]._notify([lambda call=call: call(loss) for call in callbacks])  # type: ignore[misc]

    def _set_lost(self) -> None:
        """Tell those who wait for the loss."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(grant.lock_path for grant in self.grants)}>"


class MultiBase(Generic[L]):
    """The part of a ``MultiLock`` that does not wait."""

    def __init__(
        self,
        locks: Sequence[L],
        *,
        timeout: float | None = None,
        on_lost: LostCallback | None = None,
    ) -> None:
        found = list(locks)
        for lock in found:
            if not isinstance(lock, self._member()):
                raise TypeError(f"not one of these locks: {lock!r}")
        if not found:
            raise ValueError("no locks: give at least one")
        check_callbacks(on_lost=on_lost)
        # The same order everywhere, so that no two wait for each other.
        self._locks = sorted(found, key=lambda lock: lock.path)
        paths = [lock.path for lock in self._locks]
        twice = [path for path in paths if paths.count(path) > 1]
        if twice:
            raise ValueError(f"{twice[0]}: named twice, which would wait for itself")
        self._timeout = check_timeout(timeout)
        self._on_lost = on_lost

    @property
    def paths(self) -> list[str]:
        """The paths of the locks, in the order in which they are acquired."""
        return [lock.path for lock in self._locks]

    def cancel(self) -> None:
        """Have all pending acquires of the locks raise ``AcquireCancelled``."""
        for lock in self._locks:
            lock.cancel()

    def _member(self) -> type[Any]:
        raise NotImplementedError

    def _end(self, blocking: bool, timeout: float | None) -> float | None:
        """Return when to be done; ``None`` if nothing may be waited for."""
        if not blocking:
            if timeout is not None:
                raise ValueError(
                    "blocking=False waits for nothing: a timeout makes no sense with it"
                )
            return None
        limit = self._timeout if timeout is None else check_timeout(timeout)
        return math.inf if limit is None else clock() + limit if limit else None

    def _drop(self, grants: Sequence[GrantBase]) -> None:
        """Give back what was gathered, without waiting for ZooKeeper's answers."""
        for lock, grant in reversed(list(zip(self._locks, grants, strict=False))):
            if not lock._shared(grant):
                grant.abandon()
                lock._forget(grant)

    def _timed_out(self) -> AcquireTimeout:
        return AcquireTimeout(
            f"{', '.join(self.paths)}: not all granted within {self._timeout:g} s: try again "
            "later, or wait longer (timeout=)",
            path=self.paths[0],
        )


class MultiGrant(MultiGrantBase[Grant]):
    """One acquisition of several locks.

    ``grants``: those of the locks, in the order of their paths. ``lost``: a ``threading.Event``
    that is set once one of them is lost; the others are held until they are released.
    """

    def __init__(
        self, locks: Sequence[Acquiring], grants: Sequence[Grant], on_lost: LostCallback | None
    ) -> None:
        self.lost = threading.Event()
        self._locks = tuple(locks)
        super().__init__(grants, on_lost)

    def verify(self, timeout: float | None = None) -> None:
        """Have a quorum confirm all of them, one after the other; see ``Grant.verify``."""
        limit = check_timeout(timeout)
        end = math.inf if limit is None else clock() + limit
        for grant in self.grants:
            grant.verify(None if limit is None else max(0.0, end - clock()))

    def release(self) -> None:
        """Give all of them back, the last one first, whatever comes of the others.

        Raises the first error there was, ``LockLost`` for a lock that was lost. Each takes as long
        as ``Grant.release``.
        """
        check_thread("release()")
        with ExitStack() as each:
            for lock, grant in zip(self._locks, self.grants, strict=True):
                each.callback(lock._release, grant)

    def _set_lost(self) -> None:
        self.lost.set()


class MultiLock(MultiBase[Acquiring]):
    """Several locks, of any kinds and any clients, as one: all of them or none.

    They are acquired in the order of their paths, so that no two ``MultiLock`` wait for each other;
    the same path twice is refused. While it waits for one it holds those before it. ``timeout``:
    seconds for all of them together, ``None`` for as long as it takes; those of the locks do not
    count. ``on_lost(loss)``: called once, for the first that is lost, besides the locks' own.

    The object may be shared by threads. *Not guaranteed:* that all are lost when one is.
    """

    def __init__(
        self,
        locks: Sequence[Acquiring],
        *,
        timeout: float | None = None,
        on_lost: LostCallback | None = None,
    ) -> None:
        super().__init__(locks, timeout=timeout, on_lost=on_lost)
        self._mine = threading.local()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> MultiGrant | None:
        """Acquire all of them; return their grant, or ``None``: one is not free, or not in time.

        What is lost while the rest is waited for is acquired anew, within the same timeout. Errors
        as of ``Lock.acquire``; nothing is held after an error.
        """
        end = self._end(blocking, timeout)
        check_thread("acquire()")
        grant = None
        try:
            while grant is None:
                grants = self._gather(end)
                if grants is None:
                    return None
                if all(each.held for each in grants):
                    grant = MultiGrant(self._locks, grants, self._on_lost)
                    self._stack.append(grant)
                else:
                    self._drop(grants)
            return grant
        except BaseException:
            if grant is not None:
                grant.abandon()
            raise

    def release(self) -> None:
        """Give back what this thread acquired last; ``NotHeld`` if nothing.

        See ``MultiGrant.release``.
        """
        check_thread("release()")
        if not self._stack:
            raise NotHeld(f"{', '.join(self.paths)}: nothing to release: acquire first")
        self._stack.pop().release()

    @property
    def grant(self) -> MultiGrant | None:
        """What this thread acquired last, ``None`` without; some of it may be lost."""
        return self._stack[-1] if self._stack else None

    @property
    def held(self) -> bool:
        """Whether this thread holds all of the locks."""
        return bool(self._stack) and self._stack[-1].held

    def __enter__(self) -> MultiGrant:
        grant = self.acquire()
        if grant is None:
            raise self._timed_out()
        return grant

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release. ``LockLost`` if one was lost; an error of the body is kept, and noted."""
        try:
            self.release()
        except LockLost as lost:
            if not note_loss(lost, error):
                raise
        except NotHeld:
            if error is None:
                raise

    def _gather(self, end: float | None) -> list[Grant] | None:
        grants: list[Grant] = []
        complete = False
        try:
            for lock in self._locks:
                if end is None:
                    grant = lock._acquire(blocking=False, timeout=None)
                else:
                    grant = lock._acquire(blocking=True, timeout=max(0.0, end - clock()))
                if grant is None:
                    return None
                grants.append(grant)
            complete = True
            return grants
        finally:
            if not complete:
                self._drop(grants)

    @property
    def _stack(self) -> list[MultiGrant]:
        grants: list[MultiGrant] = self._mine.__dict__.setdefault("grants", [])
        return grants

    def _member(self) -> type[Acquiring]:
        return Acquiring
