"""Which states of the explorer are the same: a `World` as plain words.

Two worlds with the same words are equal but for what follows from the rest, or is read by nobody.
So they go on in the same way. Nothing else is left out, not even what can make no difference any
more: the explorer takes a few times as many steps, and no argument is needed that they are all.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import marshal
import types
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from tests.unit.explorer import World


def spelled(world: World) -> bytes:
    """Return what is the same for two worlds if they are equal but for what nobody reads."""
    spelling = Spelling()
    server = world.server
    spelling.add((server.log, sorted(server.sessions), server.dying, server.grants))
    links = [client.link for client in world.clients]
    spelling.add([(link.replica.zxid, link.watched) if link else None for link in links])
    spelling.add(
        (world.clients, world.attempts, world.left, world.acting, world.gave_up, world.chopped)
    )
    return hashlib.blake2b(marshal.dumps(spelling.words, 2), digest_size=12).digest()


# Things as words.

_PLAIN = frozenset({int, str, bytes, bool, float, type(None)})
_LEFT_OUT = {"replica", "sent", "bounds", "judged", "server", "clients"}
"""Attributes that follow from others, or that nobody reads."""


class Spelling:
    """Things written as plain words; one that was met before is written as its number."""

    def __init__(self) -> None:
        self.words: list[Any] = []
        self._met: dict[int, int] = {}
        self._kept: list[Any] = []

    def add(self, thing: Any) -> None:
        kind: Any = type(thing)
        if kind in _PLAIN:
            self.words.append(thing)
            return
        write, has_identity = _ways(kind)
        if has_identity:
            number = self._met.get(id(thing))
            if number is not None:
                self.words += ("met", number)
                return
            self._met[id(thing)] = len(self._met)
            self._kept.append(thing)  # so that its id is not used again
        write(self, thing)

    def all(self, what: str, things: Any) -> None:
        self.words += (what, len(things))
        for each in things:
            self.add(each)

    def frames(self, generator: Any) -> None:
        """Write where a suspended generator is, and what it remembers."""
        frame = generator.gi_frame
        if frame is None:
            self.words.append("over")
            return
        # Their order there depends on when somebody has looked before.
        variables = dict(sorted(frame.f_locals.items()))
        self.all(generator.__qualname__, (frame.f_lasti, variables, generator.gi_yieldfrom))

    def function(self, function: Any) -> None:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        self.all("function", (function.__qualname__, *cells))

    def error(self, error: BaseException) -> None:
        self.all(type(error).__qualname__, error.args)

    def object(self, thing: Any) -> None:
        kind: Any = type(thing)
        self.words.append(kind.__qualname__)
        for name in _attributes(kind):
            self.add(getattr(thing, name, None))
        for name, value in getattr(thing, "__dict__", {}).items():
            if name not in _LEFT_OUT:
                self.words.append(name)
                self.add(value)


Write: TypeAlias = Callable[[Any, Any], object]
_WRITES: tuple[tuple[type | tuple[type, ...], Write], ...] = (
    (enum.Enum, lambda to, one: to.words.extend((type(one).__name__, one.name))),
    ((int, str, bytes, float), lambda to, one: to.words.append(one)),
    (tuple, lambda to, one: to.all("(", one)),
    ((list, deque), lambda to, one: to.all("[", one)),
    ((set, frozenset), lambda to, one: to.all("{", sorted(one))),
    (dict, lambda to, one: to.all("{:", [each for item in one.items() for each in item])),
    (types.GeneratorType, lambda to, one: to.frames(one)),
    (functools.partial, lambda to, one: to.all("partial", (one.func, one.args, one.keywords))),
    (types.MethodType, lambda to, one: to.all("method", (one.__func__.__qualname__, one.__self__))),
    (types.FunctionType, lambda to, one: to.function(one)),
    (types.BuiltinMethodType, lambda to, one: to.all("built in", (one.__qualname__, one.__self__))),
    (type, lambda to, one: to.words.append(one.__qualname__)),
    (types.ModuleType, lambda to, one: to.words.append(one.__name__)),
    (BaseException, lambda to, one: to.error(one)),
)


@functools.cache
def _ways(kind: Any) -> tuple[Write, bool]:
    """Return how things of a kind are written, and whether it matters which one a thing is."""
    alike = issubclass(kind, enum.Enum | int | str | bytes | float | tuple) or _is_value(kind)
    for kinds, write in _WRITES:
        if issubclass(kind, kinds):
            return write, not alike
    return Spelling.object, not alike


@functools.cache
def _attributes(kind: Any) -> tuple[str, ...]:
    slots = [getattr(each, "__slots__", ()) for each in kind.__mro__]
    return tuple(
        name
        for each in slots
        for name in ([each] if isinstance(each, str) else each)
        if name not in _LEFT_OUT and name not in ("__weakref__", "__dict__")
    )


@functools.cache
def _is_value(kind: Any) -> bool:
    """Whether which one it is does not matter, but only what is in it."""
    params = getattr(kind, "__dataclass_params__", None)
    return params is not None and params.frozen and kind.__eq__ is not object.__eq__
