"""The house rules of docs/design.md, enforced by reading imports."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path
from typing import TypeGuard

import pytest

import zklock
from zklock import aio

ROOT = Path(zklock.__file__).parent
ROOMS = [
    "_ground",
    "_telemetry",
    "_recipes",
    "_core",
    "_shell",
    "_locks",
    "_election",
    "_pool",
]
"""From the ground up: a room imports those before it, and no other."""
PURE = ["_election.candidate", "_election.observe", "_shell.sweep"]
"""The recipes of elections, and the order in which addresses are tried."""
ERRORS_OF_KAZOO = {"_core.failures", "_core.link", "_core.wire"}
"""They know the codes of kazoo's errors, and its open ACL."""
GROUND = {"_version", "token", "errors"}
"""Public modules beside the rooms: they import each other and the ground."""
WAITING = {
    "_core.blocking",
    "_locks.grant",
    "_locks.threads",
    "_locks.multi",
    "_election.threads",
    "_election.observers",
    "_pool.threads",
}
"""The layer that waits, for threads."""
PLANS_ON_A_THREAD = {
    ("_pool.member", "_election.threads"),
    ("_pool.rebalancer", "_election.threads"),
    ("_pool.rebalancer", "_core.blocking"),
}
"""A pool's leader plans on a thread of its own for both fronts (docs/design.md says why)."""
FRONTS = {"__main__", "aio", "cli", "contrib", "fencing", "telemetry", "testing"}
PUBLIC = {"aio", "errors", "fencing", "telemetry", "token"}
"""The modules that hold the public names, beside ``zklock`` itself."""
IMPURE = {
    "asyncio",
    "concurrent",
    "kazoo",
    "queue",
    "selectors",
    "socket",
    "threading",
    "time",
}
CORE = [*GROUND, *ROOMS]


def modules() -> list[str]:
    """Return every module of the package, as dotted names below ``zklock``."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return [name for name in found if name]


def source(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(source(module).read_text())


def for_types(module: str) -> set[ast.AST]:
    """Return what stands where only a checker of types looks."""
    return {
        node
        for it in tree(module).body
        if isinstance(it, ast.If) and ast.unparse(it.test) == "TYPE_CHECKING"
        for node in ast.walk(it)
    }


@cache
def imported(module: str, *, types: bool = True) -> frozenset[str]:
    """Return all that a module imports, as dotted names; ``types``: for them, too."""
    found: set[str] = set()
    for node in {*ast.walk(tree(module))} - (set() if types else for_types(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {
                f"{node.module}.{alias.name}"
                if is_module(f"{node.module}.{alias.name}")
                else node.module
                for alias in node.names
            }
    return frozenset(found)


def is_module(dotted: str) -> bool:
    if not dotted.startswith("zklock."):
        return False
    path = ROOT.joinpath(*dotted.split(".")[1:])
    return path.is_dir() or path.with_suffix(".py").exists()


def ours(module: str, *, types: bool = True) -> set[str]:
    """Return the modules of this package that a module imports."""
    names = imported(module, types=types)
    return {name.removeprefix("zklock.") for name in names if name.startswith("zklock.")}


def room(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


ALL = modules()
INSIDE = [module for module in ALL if room(module) in CORE]


def test_every_module_has_its_place() -> None:
    assert {room(module) for module in ALL} <= {*CORE, *FRONTS}
    assert {module for module in ALL if "." not in module} == {*CORE, *FRONTS} & {
        room(module) for module in ALL
    }


def test_no_circle_of_imports() -> None:
    over: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " imports ".join((*path[path.index(module) :], module))
        if module not in over:
            for other in sorted(ours(module, types=False)):
                visit(other, (*path, module))
            over.add(module)

    for module in ALL:
        visit(module, ())


@pytest.mark.parametrize("module", INSIDE)
def test_rooms_stand_on_those_before_them(module: str) -> None:
    here = room(module)
    below = {*GROUND, *ROOMS[: ROOMS.index(here) + 1]} if here in ROOMS else {*GROUND, "_ground"}
    assert {room(name) for name in ours(module)} <= below


@pytest.mark.parametrize(
    "module", [*sorted(PURE), *(name for name in ALL if room(name) in {"_recipes"})]
)
def test_what_is_pure_knows_no_thread_clock_loop_or_kazoo(module: str) -> None:
    assert not {name.split(".")[0] for name in imported(module)} & IMPURE
    assert "_ground.clock" not in ours(module)


@pytest.mark.parametrize("module", [name for name in ALL if room(name) == "_core"])
def test_the_core_has_no_thread_socket_or_clock(module: str) -> None:
    allowed = {"kazoo"} if module in ERRORS_OF_KAZOO else set[str]()
    allowed |= {"threading"} if module == "_core.loops" else set()  # whose loop this thread runs
    assert {name.split(".")[0] for name in imported(module)} & IMPURE <= allowed


@pytest.mark.parametrize("module", INSIDE)
def test_there_is_one_door_to_kazoo(module: str) -> None:
    if room(module) != "_shell" and module not in ERRORS_OF_KAZOO:
        assert "kazoo" not in {name.split(".")[0] for name in imported(module)}


@pytest.mark.parametrize("module", [name for name in INSIDE if name not in WAITING])
def test_what_does_not_wait_imports_nothing_that_waits(module: str) -> None:
    allowed = {target for user, target in PLANS_ON_A_THREAD if user == module}
    assert ours(module) & WAITING == allowed


@pytest.mark.parametrize("module", [name for name in ALL if room(name) == "aio"])
def test_the_asyncio_front_imports_nothing_that_waits_on_threads(module: str) -> None:
    assert not ours(module) & WAITING
    assert {room(name) for name in ours(module)} <= {*CORE, "aio"}
    assert "kazoo" not in {name.split(".")[0] for name in imported(module)}


@pytest.mark.parametrize("module", [name for name in ALL if room(name) == "contrib"])
def test_adapters_import_public_names_only(module: str) -> None:
    public = {*PUBLIC, *(name for name in ALL if room(name) == "contrib")}
    assert ours(module) <= public


def test_nothing_but_an_adapter_imports_an_adapter() -> None:
    users = [module for module in ALL if "contrib" in {room(name) for name in ours(module)}]
    assert {room(module) for module in users} <= {"contrib"}


@pytest.mark.parametrize("module", INSIDE)
def test_no_property_has_a_lock_that_nobody_sees(module: str) -> None:
    names = {
        name
        for node in ast.walk(tree(module))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom) and node.module == "functools"
            else [node.attr]
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "functools"
            else []
        )
    }
    assert "cached_property" not in names, "Python 3.11's takes a lock: use _ground's"


@pytest.mark.hazard("H55")
def test_what_is_undone_twice_is_undone_first() -> None:
    """A second interrupt may strike at any call: at one before it, nothing would be undone."""
    found = 0
    for module in ALL:
        for handler in ast.walk(tree(module)):
            if not isinstance(handler, ast.ExceptHandler):
                continue
            for node in ast.walk(handler):
                if isinstance(node, ast.Try) and _undoes_twice(node):
                    found += 1
                    lines = [
                        call.lineno for call in ast.walk(handler) if isinstance(call, ast.Call)
                    ]
                    assert min(lines) >= node.lineno, f"{module}, line {node.lineno}"
    assert found > 5


def _undoes_twice(node: ast.Try) -> bool:
    again = [node.finalbody, *(handler.body for handler in node.handlers)]
    once = list(map(ast.dump, node.body))
    return any(list(map(ast.dump, body[: len(once)])) == once for body in again)


def test_the_demo_needs_what_its_extra_brings_and_no_more() -> None:
    needed: set[str] = set()

    def visit(module: str) -> None:
        if module not in needed:
            needed.add(module)
            for other in ours(module):
                visit(other)

    visit("testing.demo.stage")
    visit("testing.container")
    tops = {name.partition(".")[0] for module in needed for name in imported(module)}
    foreign = tops - sys.stdlib_module_names - {"zklock"}
    # docker brings requests; SqlGuard imports sqlalchemy for who hands it a connection of that.
    assert foreign == {"kazoo", "docker", "requests", "sqlalchemy", "yaml"}


@pytest.mark.parametrize("here", [*ROOMS, "contrib"])
def test_every_room_opens_with_its_page(here: str) -> None:
    page = ast.get_docstring(tree(here)) or ""
    for part in ("For:", "May come in:", "Must never:"):
        assert part in page
    assert len(tree(here).body) == 1, "a room's page holds nothing but text"


@pytest.mark.parametrize("module", [name for name in INSIDE if room(name) == "_shell"])
def test_nothing_private_of_kazoo_is_used(module: str) -> None:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            owner = ast.unparse(node.value)
            assert "client" not in owner.replace("self._client", "client").split(".")[-1:], (
                f"{module}:{node.lineno}: {ast.unparse(node)}"
            )


def test_the_recipe_is_short_enough_to_be_read() -> None:
    body = [node for node in tree("_recipes.lock").body if not isinstance(node, ast.ImportFrom)]
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
    text = source("_recipes.lock").read_text().splitlines()
    code = [at for at in lines - texts if text[at - 1].strip() and "#" not in text[at - 1][:9]]
    assert len(code) <= 165


def _is_text(node: ast.AST) -> TypeGuard[ast.Expr]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def test_public_names_are_documented() -> None:
    docs = ROOT.parent / "docs"
    reference = (docs / "reference.md").read_text() + (docs / "errors.md").read_text()
    for name in zklock.__all__:
        if name != "__version__":
            assert f"`{name}" in reference, f"docs/reference.md does not know {name}"
            assert getattr(zklock, name).__doc__
    for name in aio.__all__:
        assert f"`aio.{name}" in reference, f"docs/reference.md does not know aio.{name}"
        assert getattr(aio, name).__doc__


def test_the_table_of_modules_is_complete() -> None:
    page = (ROOT.parent / "docs" / "design.md").read_text()
    found = {path.stem for room in ROOMS for path in (ROOT / room).glob("*.py")} - {"__init__"}
    assert sorted(name for name in found if f"`{name}`" not in page) == []


def test_a_name_that_is_not_public_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lock'"):
        getattr(zklock, "lock")  # noqa: B009 - the checker of types would find it, too
    assert set(zklock.__all__) <= set(dir(zklock))
