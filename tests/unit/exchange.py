"""A recipe as a generator: what it asks for, and how it ends, one answer after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeAlias

import pytest

Said: TypeAlias = list[Any]
"""What a recipe asks, what it is answered, what it asks then, and so on. The last is what it asks
in the end, its error or the type of this, or that it `Returns`."""
Table: TypeAlias = dict[str, tuple[Callable[[], Any], Said]]


@dataclass(frozen=True)
class Returns:
    value: Any = None


def answered(recipe: Any, answer: Any = None, wanted: Any = None) -> Any:
    """Answer a recipe, or throw an exception into it; return what it says, as in `Said`."""
    try:
        if isinstance(answer, BaseException):
            return recipe.throw(answer)
        return recipe.send(answer)
    except StopIteration as stop:
        return Returns(stop.value)
    except Exception as error:
        return error if error is wanted else type(error)


def exchanged(recipe: Any, said: Said) -> Any:
    """Play the other side of a recipe; return the recipe."""
    turns = zip_longest([None, *said[1::2]], said[::2])
    assert [answered(recipe, *turn) for turn in turns] == said[::2]
    return recipe


def cases(table: Table) -> pytest.MarkDecorator:
    """Return the parameters of a test of exchanges."""
    return pytest.mark.parametrize(("make", "said"), table.values(), ids=table)
