"""The house rules of docs/design.md, enforced."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TypeGuard

import pytest

import zklock
from zklock import aio

ROOT = Path(zklock.__file__).parent
ORDER = [
    "_version",
    "clock",
    "token",
    "errors",
    "names",
    "nodedata",
    "lease",
    "lifecycle",
    "effects",
    "steps",
    "recipe",
    "marks",
    "queries",
    "permits",
    "interventions",
    "candidacy",
    "leaders",
    "assignment",
    "desks",
    "connection",
    "grant",
    "attempt",
    "worker",
    "store",
    "session",
    "base",
    "kinds",
    "lock",
    "multi",
    "campaign",
    "election",
    "planner",
    "shards",
    "membership",
    "pool",
]
AIO = ["waiting", "connection", "grant", "lock", "multi", "election", "pool"]
TOUCH_KAZOO = {"connection", "store", "session"}
ABOVE = {"aio", "cli", "fencing", "testing"}


def tree(module: str) -> ast.Module:
    return ast.parse((ROOT / f"{module}.py").read_text())


def imported(module: str) -> set[str]:
    """Return what a module imports at run time, as dotted names."""
    found = set()
    for node in tree(module).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "zklock":
            found |= {f"zklock.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_every_module_has_its_place() -> None:
    modules = {path.stem for path in ROOT.glob("*.py")} - {"__init__"}
    assert modules == set(ORDER)


@pytest.mark.parametrize("module", ORDER)
def test_imports_point_upwards_only(module: str) -> None:
    below = {f"zklock.{name}" for name in ORDER[: ORDER.index(module)]}
    ours = {name for name in imported(module) if name.split(".")[0] == "zklock"}
    assert ours <= below


def test_every_module_of_the_asyncio_front_has_its_place() -> None:
    modules = {path.stem for path in (ROOT / "aio").glob("*.py")} - {"__init__"}
    assert modules == set(AIO)


@pytest.mark.parametrize("module", AIO)
def test_imports_of_the_asyncio_front_point_upwards_only(module: str) -> None:
    before = {f"zklock.aio.{name}" for name in AIO[: AIO.index(module)]}
    core = {f"zklock.{name}" for name in set(ORDER) - {"lock", "election", "pool"}}
    names = imported(f"aio/{module}")
    assert {name for name in names if name.split(".")[0] == "zklock"} <= before | core
    assert "kazoo" not in {name.split(".")[0] for name in names}


@pytest.mark.parametrize("module", ORDER)
def test_kazoo_is_known_to_three_modules_only(module: str) -> None:
    uses = any(name.split(".")[0] == "kazoo" for name in imported(module))
    assert uses == (module in TOUCH_KAZOO)


@pytest.mark.parametrize("module", sorted(TOUCH_KAZOO))
def test_nothing_private_of_kazoo_is_used(module: str) -> None:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            owner = ast.unparse(node.value)
            assert "client" not in owner.replace("self._client", "client").split(".")[-1:], (
                f"{module}.py:{node.lineno}: {ast.unparse(node)}"
            )


def test_the_recipe_is_short_enough_to_be_read() -> None:
    body = [node for node in tree("recipe").body if not isinstance(node, ast.ImportFrom)]
    lines = {
        line
        for node in body
        for part in ast.walk(node)
        if isinstance(part, ast.stmt) and not _is_text(part)
        for line in range(part.lineno, (part.end_lineno or part.lineno) + 1)
    }
    texts = {
        line
        for node in body
        for part in ast.walk(node)
        if _is_text(part)
        for line in range(part.lineno, (part.end_lineno or 0) + 1)
    }
    source = (ROOT / "recipe.py").read_text().splitlines()
    code = [at for at in lines - texts if source[at - 1].strip() and "#" not in source[at - 1][:9]]
    assert len(code) <= 150


def _is_text(node: ast.AST) -> TypeGuard[ast.Expr]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def test_public_names_are_documented() -> None:
    reference = (ROOT.parent / "docs" / "reference.md").read_text()
    for name in zklock.__all__:
        if name != "__version__":
            assert f"`{name}" in reference, f"docs/reference.md does not know {name}"
            assert getattr(zklock, name).__doc__
    for name in aio.__all__:
        assert f"`aio.{name}" in reference, f"docs/reference.md does not know aio.{name}"
        assert getattr(aio, name).__doc__
