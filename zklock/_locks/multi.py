"""Several locks as one: all of them or none. For threads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager

from zklock._core.blocking import run
from zklock._core.contexts import Acquired
from zklock._ground.events import Event
from zklock._ground.loss import LostCallback
from zklock._locks.grant import Attempting, Entered, Enters, Grant, Mine
from zklock._locks.multi_base import MultiBase, MultiGrantBase
from zklock._locks.threads import ThreadLock


class MultiGrant(MultiGrantBase[Grant], Entered):
    """One acquisition of several locks. Like a ``Grant``, it is a context manager.

    ``grants``: the grants of the locks, in the order of ``MultiLock.paths``. ``lost``: a
    ``threading.Event`` that is set once one of them is lost. The others are held until they are
    released.
    """

    def __init__(
        self, locks: Sequence[ThreadLock], grants: Sequence[Grant], on_lost: LostCallback | None
    ) -> None:
        self.lost: threading.Event = Event()
        super().__init__(locks, grants, on_lost)

    def verify(self, timeout: float | None = None) -> None:
        """Ask a quorum about all of them, one after the other; see ``Grant.verify``."""
        run(self._verify, timeout)

    def release(self) -> None:
        """Release all of them. An error at one does not stop the others.

        A re-entrant lock that was acquired more often stays held. Raises ``LockLost`` for a lock
        that was lost, and ``NotHeld`` if it was released before. If there are several errors, the
        last one is raised, with the earlier ones as its context. It takes as long as
        ``Grant.release``.
        """
        run(self._release)

    def _set_lost(self) -> None:
        self.lost.set()


class MultiLock(MultiBase[ThreadLock, MultiGrant], Enters[MultiGrant]):
    """Several locks, of any kinds and any clients, as one: all of them or none.

    They are acquired one after the other, in the order of their full paths (with the client's
    chroot): no two ``MultiLock`` can deadlock. While it waits for one lock, it holds those before
    it. The same path twice raises ``ValueError`` if the clients name a server in common.

    ``timeout``: seconds for all of them together, ``None`` for no limit. The timeouts of the locks
    do not count. ``on_lost(loss)``: called once, for the first lock that is lost. The callbacks of
    the locks are called, too.

    The object may be shared by threads.

    *Not guaranteed:* that all are lost when one is. An order between locks with the same full path
    on two ensembles: give them in the same order everywhere, or use a ``timeout``. That the same
    path twice is found if the clients name the servers of one ensemble in different ways.
    """

    _GRANT = MultiGrant
    _MEMBER = ThreadLock

    def __init__(
        self,
        locks: Sequence[ThreadLock],
        *,
        timeout: float | None = None,
        on_lost: LostCallback | None = None,
    ) -> None:
        super().__init__(locks, timeout=timeout, on_lost=on_lost)
        self._mine = Mine()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> MultiGrant | None:
        """Acquire all of them; return their grant, or ``None``: one is not free, or not in time.

        If a lock is lost while others are still awaited, it is acquired anew, in the same timeout.
        Raises the same errors as ``Lock.acquire``; nothing is held after an error.
        """
        return run(self._acquire, blocking, timeout)

    def attempt(
        self, blocking: bool = True, timeout: float | None = None
    ) -> AbstractContextManager[MultiGrant | None]:
        """Return a context manager whose grant may be ``None``; see :meth:`Lock.attempt`."""
        return Attempting(lambda: self.acquire(blocking, timeout))

    def release(self) -> None:
        """Release what this thread acquired last; ``NotHeld`` if there is nothing.

        See ``MultiGrant.release``.
        """
        run(self._release)

    async def _take(self) -> MultiGrant | None:
        return self.acquire()

    def _holdings(self) -> Acquired[MultiGrant]:
        mine: Acquired[MultiGrant] = self._mine.holdings
        return mine
