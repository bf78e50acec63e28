"""Loops, and the exceptions that signal handlers raise.

When a loop goes back to its top, CPython looks for signals. Where the compiler has made this jump
out of a condition, the ``try`` or ``with`` that the loop directly stands in does not see what a
handler raises there: neither ``except`` nor ``finally`` nor ``__exit__`` is run. CPython 3.13 is so
for ``while condition`` and for an ``if`` that ends the body; 3.14 and 3.15 are so for the latter.
They always see what a called function raises. So a loop of such a form, in a place where an
interrupt can strike, stands in a function of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import zklock

ROOT = Path(zklock.__file__).parent
ROOMS = ("testing", "cli")
"""The rooms that are left out: a struck command ends its process, a struck test fails."""

HARMLESS = {
    "_engine/session.py _on_heartbeat": "kazoo's thread brings the answer",
    "_pool/nodes.py attend": "a recipe: its attempt cleans up after one that was torn apart",
    "_pool/processes.py run": "a thread of the pool runs it",
    "_pool/rebalancer.py run": "the leader's own thread runs it",
    "_recipes/follow.py follow_folder": "a recipe, which makes nothing",
    "contrib/tooz.py break_": "nothing but an error is translated",
    "fencing/http.py __call__": "nothing is held yet",
}
"""Functions with such loops that need not be mended, and why."""


def guards(node: ast.AST) -> list[ast.stmt]:
    """Return the body of a statement that must see every exception."""
    if isinstance(node, ast.With | ast.AsyncWith):
        return node.body
    if isinstance(node, ast.Try):
        caught = {ast.unparse(it.type) if it.type else "BaseException" for it in node.handlers}
        if node.finalbody or any("BaseException" in each for each in caught):
            return node.body
    return []


def conditional(body: list[ast.stmt]) -> bool:
    """Whether a condition leads from here back to the top of the loop."""
    for statement in body:
        if isinstance(statement, ast.If) and (
            statement is body[-1]
            or any(isinstance(each, ast.Continue) for each in ast.walk(statement))
        ):
            return True
    last = body[-1]
    if isinstance(last, ast.While | ast.For | ast.AsyncFor):
        return True
    inner = [getattr(last, name, []) for name in ("body", "orelse", "finalbody")]
    inner += [handler.body for handler in getattr(last, "handlers", [])]
    return any(conditional(each) for each in inner if each)


def at_risk(node: ast.AST) -> bool:
    """Whether a loop goes back to its top by way of a condition."""
    match node:
        case ast.While(test=ast.Constant()) | ast.For() | ast.AsyncFor():
            return conditional(node.body)
        case ast.While():
            return True
        case ast.ListComp() | ast.SetComp() | ast.DictComp():
            return any(each.ifs for each in node.generators)  # since 3.12 it is no function
    return False


def found(tree: ast.AST, function: str = "", guarded: bool = False) -> Iterator[str]:
    """Yield the functions of the loops at risk that stand directly in a ``try`` or a ``with``."""
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.GeneratorExp):
        function, guarded = getattr(tree, "name", function), False
    if guarded and at_risk(tree):
        yield function
    body = guards(tree)
    for child in ast.iter_child_nodes(tree):
        yield from found(child, function, guarded or child in body)


FILES = [
    path for path in sorted(ROOT.rglob("*.py")) if path.relative_to(ROOT).parts[0] not in ROOMS
]


@pytest.mark.hazard("H9")
def test_an_interrupt_at_the_top_of_a_loop_is_seen_by_what_the_loop_stands_in() -> None:
    loops = {
        f"{path.relative_to(ROOT).as_posix()} {function}"
        for path in FILES
        for function in found(ast.parse(path.read_text()))
    }
    assert loops == HARMLESS.keys()


@pytest.mark.parametrize(
    ("loop", "risk"),
    [
        ("while more():\n  step()", True),
        ("while True:\n  if more(): step()", True),
        ("while True:\n  if more(): continue\n  step()", True),
        ("for each in some:\n  if each: step()", True),
        ("for each in some:\n  for one in each: step()", True),
        ("some = [each for each in other if each]", True),
        ("for each in some:\n  step()", False),
        ("some = [each for each in other]", False),
        ("while True:\n  if more(): return\n  step()", False),
    ],
)
@pytest.mark.parametrize(
    ("statement", "end", "sees"),
    [
        ("try:", "finally:\n end()", True),
        ("try:", "except BaseException:\n end()", True),
        ("try:", "except (OSError, BaseException):\n end()", True),
        ("with lock:", "", True),
        ("try:", "except OSError:\n end()", False),
        ("def inner():", "", False),
    ],
)
def test_such_loops_are_found(loop: str, risk: bool, statement: str, end: str, sees: bool) -> None:
    body = "\n".join(f" {line}" for line in loop.splitlines())
    assert bool(list(found(ast.parse(f"{statement}\n{body}\n{end}\n")))) is (risk and sees)
