"""How threads enter and leave the body of a ``with`` statement, whatever interrupts them.

Python looks for signals when a function of Python begins. So what a signal handler raises may
strike before the first line of an ``__exit__``, or of an ``__enter__``. Two facts of CPython help:

- A ``with`` statement looks up ``__exit__`` before it calls ``__enter__``, and keeps nothing but
  what it has found. It drops that as soon as its call has raised.
- A frame that has raised keeps its arguments alive, for as long as the traceback lives.

So ``__exit__`` is another object for each statement: an *exit*, which is ``partial``'s, in C, and
no argument of the function that it calls. Whoever drops an exit that has not done its work gives
back what the statement holds, at once.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from zklock._ground.interrupts import raised_by_zklock
from zklock.errors import ZkLockError

Exit: TypeAlias = "partial[None]"


class ContextExit:
    """What is held for a ``with`` body, and given back at its end."""

    _BODY: ClassVar[type[Body]]
    _OUTCOMES: ClassVar[tuple[type[BaseException], ...]] = (ZkLockError,)
    """What giving back may raise when it is done; a signal handler may raise any other error."""

    def _leave_body(self, error: BaseException | None) -> None:
        """Give back what was held, or end it. ``error`` is that of the body."""
        raise NotImplementedError

    def _abandon_body(self) -> None:
        """Give up what is still held, which an interrupt has kept from being given back.

        Repeatable. Once this or ``_leave_body`` has done its last step, nothing may follow at
        which an interrupt can strike: else it would be given up once more.
        """
        raise NotImplementedError


def _nothing() -> None:
    pass


class Body:
    """One ``with`` statement, from its beginning to its end.

    ``held``: whether there is something to give back. ``watches``: what tells that the exit is
    dropped. Both are set by the caller: a call would be a moment at which an interrupt can strike.
    ``unentered``: returns something until the statement has entered.
    """

    __slots__ = ("held", "it", "unentered", "watches")

    def __init__(self, it: ContextExit) -> None:
        self.it = it
        self.held = False
        self.watches: tuple[object, ...] = ()
        self.unentered: Callable[[], object] = _nothing

    def leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Any:
        """Release, or end. An error of the body is kept; one of its own is raised or noted."""
        if not self.held:  # nobody watches this exit: it was called by hand
            return self.held_exit()(kind, error, traceback)
        try:
            self.it._leave_body(error)
        except raised_by_zklock(*self.it._OUTCOMES):
            self.watches = ()
            raise
        self.watches = ()
        return None

    def held_exit(self) -> Exit:
        """Return an exit that gives back what is held already. Keep no other reference to it."""
        exit: Exit = partial(self.leave)
        self.watch(exit)
        self.held = True
        return exit

    def watch(self, exit: Any) -> None:
        """Give up what is held if this exit is dropped while there are ``watches``.

        There are two, as a second interrupt may strike the first. What is raised in them arrives
        nowhere: so nothing is watched any more once all has gone well.
        """
        dropped = self._dropped
        self.watches = (weakref.ref(exit, dropped), weakref.ref(exit, dropped))

    def _dropped(self, exit: object) -> None:
        if self.held and self.unentered() is None:
            self.it._abandon_body()
            self.held = False


ContextExit._BODY = Body


class Exiting(property):
    """An ``__exit__`` that is another object at each look-up.

    Code that looks it up on the class (``contextlib.ExitStack``) calls it like a method.
    """

    def __call__(
        self,
        it: ContextExit,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Any:
        """Leave the body of what is held."""
        return it._BODY(it).leave(kind, error, traceback)


# What begins to be held in its __enter__.


class _Newest(threading.local):
    """The exit that the running thread has looked up last."""

    def __init__(self) -> None:
        self.exit: weakref.ref[Exit] | None = None


_newest = _Newest()


def look_up(it: ContextExit) -> Exit:
    """Return another exit; the running thread is about to enter."""
    exit: Exit = partial(it._BODY(it).leave)
    _newest.exit = weakref.ref(exit)
    return exit


def entered(it: ContextExit) -> Body:
    """Return the body that the running ``__enter__`` of ``it`` begins; it watches its exit.

    Set ``held`` once something is held, and take away the ``watches`` if nothing will be.
    """
    newest, _newest.exit = _newest.exit, None
    exit = newest() if newest is not None else None
    if exit is not None:
        body: Body = exit.func.__self__  # type: ignore[attr-defined]
        if body.it is it:
            body.watch(exit)
            return body
    return it._BODY(it)  # called by hand, or for an ExitStack


class EntersContext(ContextExit):
    """Held from its ``__enter__`` on."""

    if TYPE_CHECKING:

        def __exit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            traceback: TracebackType | None,
        ) -> None: ...

    else:
        __exit__ = Exiting(look_up)


# What is held before it is entered.


class _ByHand:
    """What is entered, or left, without getting ready: another time, by hand, or when it is over.

    It has no ``__set__``, so that what is ready goes before it.
    """

    def __get__(self, it: HeldContext, owner: type) -> SimpleNamespace:
        return SimpleNamespace(enter=lambda: it, exit=partial(it._BODY(it).leave))


class _Entering(property):
    """The ``__enter__`` of what is held already. The class has it as a method: see above."""

    def __call__(self, it: HeldContext) -> HeldContext:
        return it


class HeldContext(ContextExit):
    """``with it as it``: held before it is entered.

    ``with lock.acquire() as grant`` holds the lock before its body begins. So nothing between the
    return of ``acquire`` and the body may be a function of Python: an exit is made ready before.
    Whoever enters takes it out, which leaves it to the ``with`` statement alone, and gets ``it``.
    ``filter`` does both, in C.
    """

    _ready = _ByHand()

    def _get_ready(self) -> None:
        """Make an exit ready, before it is held by whoever may enter it."""
        mine = self.__dict__
        if "_ready" not in mine:
            take_out = partial(mine.pop, "_ready")
            body = self._BODY(self)
            exit = body.held_exit()
            # It lives until the call of ``enter`` is over. One that is dropped by then is nobody's.
            body.unentered = weakref.ref(take_out)
            enter = filter(take_out, (self,)).__next__
            mine["_ready"] = SimpleNamespace(body=body, enter=enter, exit=exit)

    def _get_unready(self) -> None:
        """Forget the exit. It is over: nothing has to be given back."""
        ready = self.__dict__.get("_ready")
        if ready is not None:
            ready.body.watches = ()
            self.__dict__.pop("_ready", None)

    if TYPE_CHECKING:

        def __enter__(self) -> Self: ...

        def __exit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            traceback: TracebackType | None,
        ) -> None: ...

    else:
        __enter__ = _Entering(attrgetter("_ready.enter"))
        __exit__ = Exiting(attrgetter("_ready.exit"))
