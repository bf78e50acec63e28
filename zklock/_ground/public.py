"""Public classes report their own names, not the names of their base classes."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import Any, TypeVar

C = TypeVar("C")

RARE = ("track_abandoned", "lock_delay", "session_timeout", "lease_fraction")
"""Options that few programs need. They stand at the end of a signature, in this order."""


def public(cls: type[C]) -> type[C]:
    """Make a class show its whole signature, and name itself in errors about its arguments.

    The base classes have their own ``__init__`` methods, which pass options on by ``**``. Users see
    one signature, with every option and its default.
    """
    init = cls.__init__
    whole = _signature(cls)

    @wraps(init)
    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807 - it becomes that
        try:
            init(self, *args, **options)
        except TypeError:
            try:
                whole.bind(self, *args, **options)
            except TypeError as error:
                why = _too_many(whole, args) or str(error)
                raise TypeError(f"{cls.__name__}() {why}") from None
            raise

    __init__.__qualname__ = f"{cls.__name__}.__init__"
    __init__.__signature__ = whole  # type: ignore[attr-defined]
    cls.__init__ = __init__  # type: ignore[method-assign]
    return cls


def _too_many(whole: inspect.Signature, args: tuple[object, ...]) -> str:
    """Return what to do if there are too many positional arguments; else nothing."""
    kinds = whole.parameters.values()
    taken = [each.name for each in kinds if each.kind is each.POSITIONAL_OR_KEYWORD][1:]
    if len(args) <= len(taken):
        return ""
    found = f"takes {' and '.join(taken)} by position, and all others by name"
    if "identity" in whole.parameters and isinstance(args[len(taken)], str):
        found += f": did you mean identity={args[len(taken)]!r}?"
    return found


def _signature(cls: type) -> inspect.Signature:
    """Return the signature of ``__init__``, with all options that it passes on.

    Those that base classes share stand first: they are the commonest ones.
    """
    groups: list[dict[str, inspect.Parameter]] = []
    for base in cls.__mro__:
        init = vars(base).get("__init__")
        if init is None:
            continue
        parameters = inspect.signature(init).parameters.values()
        own = {each.name: each for each in parameters if each.kind is not each.VAR_KEYWORD}
        groups.insert(0, own)
        if len(own) == len(parameters):
            break
    found = {name: each for group in groups for name, each in group.items()}
    return inspect.Signature(sorted(found.values(), key=_rank))


def _rank(each: inspect.Parameter) -> tuple[int, bool, int]:
    """Return what sorts parameters: what must be given first, what few programs need last."""
    rare = RARE.index(each.name) if each.name in RARE else -1
    return each.kind, each.default is not each.empty, rare
