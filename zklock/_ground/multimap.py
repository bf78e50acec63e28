"""Sets by key, most of which have few members."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)

_FEW = 4


class Multimap(Generic[K, V]):
    """A set for each key, in the order in which its members came; an empty one is not kept.

    A member stands for the set of itself, and a few are a tuple: that takes a third of the memory
    of a dictionary, or less. More are a dictionary, so that their number slows no change down. So a
    member is neither of these. A change that is broken off can be repeated.
    """

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[K, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def __iter__(self) -> Iterator[V]:
        """Iterate over all members of all sets."""
        for key in list(self._found):  # one step: other threads may change it
            yield from self.of(key)

    def of(self, key: K) -> list[V]:
        """Return the members for a key."""
        found = self._found.get(key, ())
        return list(found) if isinstance(found, (tuple, dict)) else [found]

    def add(self, key: K, member: V) -> None:
        """Add a member, unless it is there already."""
        found = self._found.setdefault(key, member)
        if found is member:
            return
        if isinstance(found, dict):
            found[member] = None
            return
        before = found if isinstance(found, tuple) else (found,)
        if member not in before:
            more = (*before, member)
            self._found[key] = more if len(more) <= _FEW else dict.fromkeys(more)

    def discard(self, key: K, member: V) -> None:
        """Take a member out, if it is there."""
        found = self._found.get(key)
        if found is member:
            del self._found[key]
        elif isinstance(found, dict):
            found.pop(member, None)
            if not found:
                self._found.pop(key, None)
        elif isinstance(found, tuple):
            left = tuple([each for each in found if each is not member])
            self._found[key] = left if len(left) > 1 else left[0]
