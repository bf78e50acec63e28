"""Wrong code: a function with a part of its syntax tree bent, put in the place of the right one."""

from __future__ import annotations

import ast
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
    """Where a function is, what it says, and what it shall say instead.

    Both are an expression, or whole statements. They are compared as syntax trees: comments, line
    breaks, quotes and parentheses do not matter.
    """

    home: ModuleType | type
    name: str
    old: str
    new: str


@contextmanager
def bent(bends: Iterable[Bend], homes: Iterable[ModuleType]) -> Iterator[None]:
    """Put the bent functions in place of the right ones, also in ``homes``, if imported there.

    Raises ``LookupError`` if a function does not say once what shall be bent.
    """
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
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    old, new = _parsed(bend.old), _parsed(bend.new)
    match old, new:
        case [ast.Expr(value=said)], [ast.Expr(value=instead)]:
            old, new = [said], [instead]
    places = list(_places(tree, old))
    if len(places) != 1:
        where = f"{bend.home.__name__}.{bend.name}"
        raise LookupError(f"{where} says {bend.old!r} {len(places)} times, not once")
    [(parent, name, first)] = places
    if first is None:
        setattr(parent, name, new[0])
    else:
        getattr(parent, name)[first : first + len(old)] = new
    home = sys.modules[function.__module__].__dict__
    space: dict[str, Any] = {}
    exec(compile(tree, function.__code__.co_filename, "exec"), home, space)
    made = space[function.__name__]
    assert isinstance(made, FunctionType)
    return right, made


def _parsed(text: str) -> list[Any]:
    return ast.parse(textwrap.dedent(text)).body


def _places(tree: ast.AST, old: list[Any]) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Find the nodes: where they hang, in which field, and from where on in its list."""
    wanted = [ast.dump(node) for node in old]
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            nodes = value if isinstance(value, list) else [value]
            for first, node in enumerate(nodes):
                if type(node) is not type(old[0]):
                    continue
                if [ast.dump(it) for it in nodes[first : first + len(old)]] == wanted:
                    yield parent, name, first if nodes is value else None
