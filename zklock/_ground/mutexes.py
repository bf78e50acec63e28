"""The locks that zklock takes by ``with`` on threads of its users: no interrupt leaves one taken.

On Python 3.14 alone, an exception of a signal handler can strike between the return of an
``__enter__`` that is written in C and the body of the ``with`` statement. Then ``__exit__`` does
not run (CPython 148874), and a ``threading.Lock`` stays taken for ever. Python looks for signals
when a function of Python begins and when a call of C returns, but not when a function of Python
returns. So, on 3.14:

- ``__enter__`` is a function of Python. Its last step takes the lock: the iterator of a ``for``
  statement does it, and this is no call of C;
- ``__exit__`` is C: it has released the lock before Python looks for signals.

On all other releases these are the locks of ``threading`` themselves.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from operator import attrgetter
from typing import Any

_BLOCKING = (True,)


class _Mutex:
    """Stands for ``threading.Lock``, in ``with`` statements alone."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        for _ in map(self._lock.acquire, _BLOCKING):
            return

    __exit__ = property(attrgetter("_lock.__exit__"))


class _ReentrantMutex(type(threading.RLock())):  # type: ignore[misc]
    """A ``threading.RLock``, for ``with`` statements and for ``threading.Condition``."""

    __slots__ = ()

    def __enter__(self) -> None:
        for _ in map(self.acquire, _BLOCKING):
            return


if sys.version_info[:2] == (3, 14):
    Mutex, ReentrantMutex = _Mutex, _ReentrantMutex
else:
    Mutex, ReentrantMutex = threading.Lock, threading.RLock


def owned_by_me(mutex: Any) -> Callable[[], bool]:
    """Return what tells whether this thread has a reentrant mutex. It takes no lock.

    The mutex itself knows. It tells conditions, by a name that is not public: where there is no
    such name, a condition is asked.
    """
    tells: Callable[[], bool] | None = getattr(mutex, "_is_owned", None)
    if tells is not None:
        return tells
    condition = threading.Condition(mutex)

    def owned() -> bool:
        try:
            condition.notify(0)
        except RuntimeError:
            return False
        return True

    return owned
