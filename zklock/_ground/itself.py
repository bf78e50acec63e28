"""How threads enter and leave the body of a ``with`` statement, whatever interrupts them."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from zklock.errors import ZkLockError

T = TypeVar("T")


class Itself(property):
    """The ``__enter__`` of what ends in its ``__exit__``, and is begun before it is entered.

    ``with lock.acquire() as grant`` holds the lock before its body begins. Python looks for signals
    when a function of Python begins. An exception there would leave the ``with`` statement without
    its ``__exit__``, and the lock held by nobody. So this is no function of Python: a statement
    gets ``weakref.ref(it)``, and the call of that returns ``it``.

    Code that looks it up on the class (``contextlib.ExitStack``) calls it like a method.
    """

    def __init__(self) -> None:
        super().__init__(weakref.ref)

    def __call__(self, it: T) -> T:
        """Return it."""
        return it


class EntersItself:
    """``with it as it``: entered as it is."""

    if TYPE_CHECKING:

        def __enter__(self) -> Self: ...

    else:
        __enter__ = Itself()


class Leaving:
    """Leaves the body; an interrupt on the way abandons what was held.

    The steps stand in ``__exit__`` itself: at the begin of any other function of Python, an
    interrupt would still find nothing abandoned. A second interrupt may strike while it is being
    abandoned: so that is done again.
    """

    def _begin_leaving(self, begun: list[Any]) -> None:
        """Add to the empty list what ``_abandon`` needs to know of the state before."""

    def _abandon(self, begun: list[Any]) -> None:
        """Give up what is still held; ``begun`` is empty if nothing has been done. Repeatable."""
        self._abandon_body()

    def _leave_body(self, error: BaseException | None) -> None:
        """Give back what was held, or end it. ``error`` is that of the body."""
        raise NotImplementedError

    def _abandon_body(self) -> None:
        """Give up what is still held: it is not known whether it was given back."""
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release, or end. An error of the body is kept; one of its own is raised or noted."""
        begun: list[Any] = []
        try:
            self._begin_leaving(begun)
            self._leave_body(error)
        except ZkLockError:  # an outcome; a signal handler may raise any other
            raise
        except BaseException:
            try:
                self._abandon(begun)
            except BaseException:
                self._abandon(begun)
                raise
            raise
