"""The tests that pages name, each as a link that has the test's name as its text."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEST = re.compile(r"\[`((?:Test\w+::)?test_\w+)`\]\(\.\./(tests/[\w/]+\.py)\)")
HAZARD = re.compile(r"H[0-9]+")


@functools.cache
def names_in(file: Path) -> dict[str, set[str]]:
    """Return the functions of a file, as pytest spells tests, with the hazards that each holds.

    A hazard's number stands in the name of a test (``_h5``), or in a mark or another decorator of
    the test, of its class or of the file.
    """
    body = ast.parse(file.read_text()).body
    marks = [each.value for each in body if isinstance(each, ast.Assign) and _is_mark(each)]
    return dict(_functions(body, "", _hazards(marks)))


def missing(told: str) -> list[tuple[str, str]]:
    """Return the tests that a text names and that do not exist."""
    return [(name, file) for name, file in TEST.findall(told) if name not in _names(ROOT / file)]


def _names(file: Path) -> dict[str, set[str]]:
    return names_in(file) if file.exists() else {}


def _functions(body: list[ast.stmt], before: str, hazards: set[str]) -> list[tuple[str, set[str]]]:
    found = []
    for each in body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            own = {f"H{number}" for number in re.findall(r"_h([0-9]+)(?=_|$)", each.name)}
            held = hazards | own | _hazards(each.decorator_list)
            found.append((f"{before}{each.name}", held))
        elif isinstance(each, ast.ClassDef):
            of_class = hazards | _hazards(each.decorator_list)
            found += _functions(each.body, f"{before}{each.name}::", of_class)
    return found


def _is_mark(statement: ast.Assign) -> bool:
    return [ast.unparse(target) for target in statement.targets] == ["pytestmark"]


def _hazards(expressions: list[ast.expr]) -> set[str]:
    values = [
        node.value
        for expression in expressions
        for node in ast.walk(expression)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return {value for value in values if HAZARD.fullmatch(value)}
