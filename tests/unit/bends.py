"""Wrong code: a function with one of its lines bent, put in the place of the right one."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any
from unittest import mock


@dataclass(frozen=True)
class Bend:
    """Where a function is, what it says, and what it shall say instead."""

    home: ModuleType | type
    name: str
    old: str
    new: str


@contextmanager
def bent(bends: Iterable[Bend], homes: Iterable[ModuleType]) -> Iterator[None]:
    """Put the bent functions in place of the right ones, also in ``homes``, if imported there."""
    with ExitStack() as stack:
        for bend in bends:
            right, made = _bent(bend)
            everywhere: set[ModuleType | type] = {bend.home}
            name = bend.name
            if isinstance(bend.home, ModuleType):
                everywhere.update(homes)
                name = made.__name__
            for home in everywhere:
                if inspect.getattr_static(home, name, None) is right:
                    stack.enter_context(mock.patch.object(home, name, made))
        yield


def _bent(bend: Bend) -> tuple[Any, FunctionType]:
    """Return the right function, and the bent one."""
    right = inspect.getattr_static(bend.home, bend.name)
    function = inspect.unwrap(right)
    text = textwrap.dedent(inspect.getsource(function))
    if text.count(bend.old) != 1:
        raise LookupError(f"{bend.name} does not say {bend.old!r} once")
    text = text.replace(bend.old, bend.new)
    home = sys.modules[function.__module__].__dict__
    space: dict[str, Any] = {}
    exec(compile(text, function.__code__.co_filename, "exec"), home, space)
    made = space[function.__name__]
    assert isinstance(made, FunctionType)
    return right, made
