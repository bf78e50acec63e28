"""A property that is computed when it is first read, and kept; no lock is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class cached_property(Generic[T]):  # noqa: N801 - a decorator, as property is
    """Compute the property at the first read, and keep it in the object.

    ``functools.cached_property`` of Python 3.11 takes a lock, one for all objects of the class. A
    signal handler may interrupt the computation, while its thread has that lock. Then the thread
    that brings the handler's answer would wait for the lock. Here two threads may both compute the
    value, so it must be the same.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Any, owner: type) -> T:
        # Not read again: the value in the object's __dict__ comes before this.
        value: T = instance.__dict__.setdefault(self._name, self._compute(instance))
        return value
