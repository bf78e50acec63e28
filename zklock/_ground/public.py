"""Public classes report their own names, not the names of their base classes."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import Any, TypeVar

C = TypeVar("C")


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
    """Return the signature of ``__init__``, with all options that it passes on."""
    found: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        init = vars(base).get("__init__")
        if init is None:
            continue
        parameters = inspect.signature(init).parameters.values()
        for each in parameters:
            if each.kind is not each.VAR_KEYWORD:
                found.setdefault(each.name, each)
        if not any(each.kind is each.VAR_KEYWORD for each in parameters):
            break
    return inspect.Signature(sorted(found.values(), key=lambda each: each.kind))
