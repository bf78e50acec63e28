"""Every public name is in the program that mypy checks."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest

import zklock
from zklock import aio

PROGRAM = Path(__file__).with_name("user_program.py")


@pytest.mark.parametrize(("module", "name"), [(zklock, "zklock"), (aio, "aio")])
def test_every_name_is_used(module: ModuleType, name: str) -> None:
    used = {
        node.attr
        for node in ast.walk(ast.parse(PROGRAM.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == name
    }
    assert set(module.__all__) <= used
