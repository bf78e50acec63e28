"""The house rules of docs/design.md, enforced by reading imports."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

import zklock

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
PURE = {"_election.candidate", "_election.observe", "_shell.sweep"}
"""The recipes of elections, and the order in which addresses are tried; beside ``_recipes``."""
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
CORE = {*GROUND, *ROOMS}


def source(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def modules() -> list[str]:
    """Return every module of the package, as dotted names below ``zklock``."""
    paths = [path.relative_to(ROOT).with_suffix("") for path in sorted(ROOT.rglob("*.py"))]
    names = [".".join(path.parts).removesuffix("__init__").rstrip(".") for path in paths]
    return [name for name in names if name]


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(source(module).read_text())


@cache
def imported(module: str) -> frozenset[str]:
    """Return all that a module imports, as dotted names, for types, too."""
    found: set[str] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                is_module = name.removeprefix("zklock.") in ALL and name.startswith("zklock.")
                found.add(name if is_module else node.module)
    return frozenset(found)


def tops(module: str) -> set[str]:
    return {name.partition(".")[0] for name in imported(module)}


def ours(module: str) -> set[str]:
    """Return the modules of this package that a module imports."""
    return {it.removeprefix("zklock.") for it in imported(module) if it.startswith("zklock.")}


def room(module: str) -> str:
    return module.partition(".")[0]


ALL = modules()


def test_every_module_has_its_place() -> None:
    assert {room(module) for module in ALL} == {*CORE, *FRONTS}
    page = (ROOT.parent / "docs" / "design.md").read_text()
    found = {path.stem for room in ROOMS for path in (ROOT / room).glob("*.py")} - {"__init__"}
    assert sorted(name for name in found if f"`{name}`" not in page) == []


@pytest.mark.parametrize("module", ALL)
def test_a_module_imports_what_its_room_may(module: str) -> None:
    here, used, adapters = room(module), ours(module), {it for it in ALL if room(it) == "contrib"}
    if module in adapters:
        assert used <= {*PUBLIC, *adapters, "_ground.interrupts"}
        return
    assert not used & adapters
    if here in CORE:
        below = {*ROOMS[: ROOMS.index(here) + 1]} if here in ROOMS else {"_ground"}
        assert {room(name) for name in used} <= below | GROUND
        if here != "_shell" and module not in ERRORS_OF_KAZOO:
            assert "kazoo" not in tops(module), "there is one door to kazoo"
        if module not in WAITING:
            allowed = {target for user, target in PLANS_ON_A_THREAD if user == module}
            assert used & WAITING == allowed, "it waits"
    if here == "_recipes" or module in PURE:
        assert not tops(module) & IMPURE
        assert "_ground.clock" not in used
    if here == "_core":
        kazoo = {"kazoo"} if module in ERRORS_OF_KAZOO else set[str]()
        loops = {"threading"} if module == "_core.loops" else set[str]()  # whose loop runs here
        assert tops(module) & IMPURE <= kazoo | loops
    if here == "aio":
        assert not used & WAITING
        assert {room(name) for name in used} <= {*CORE, "aio"}
        assert "kazoo" not in tops(module)


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
                    calls = [each for each in ast.walk(handler) if isinstance(each, ast.Call)]
                    first = min(call.lineno for call in calls)
                    assert first >= node.lineno, f"{module}, line {node.lineno}"
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

    visit("testing.demo.play")
    visit("testing.container")
    foreign = {top for module in needed for top in tops(module)} - sys.stdlib_module_names
    # SqlGuard imports sqlalchemy for who hands it a connection of that.
    assert foreign == {"zklock", "kazoo", "docker", "sqlalchemy"}


@pytest.mark.parametrize("here", [*ROOMS, "contrib"])
def test_every_room_opens_with_its_page(here: str) -> None:
    page = ast.get_docstring(tree(here)) or ""
    assert all(part in page for part in ("For:", "May come in:", "Must never:"))


@pytest.mark.parametrize("module", [it for it in ALL if room(it) == "_shell"])
def test_nothing_private_of_kazoo_is_used(module: str) -> None:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            owner = ast.unparse(node.value).replace("self._client", "client")
            assert "client" not in owner.split(".")[-1:], f"{module}:{node.lineno}"


def test_a_name_that_is_not_public_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lock'"):
        getattr(zklock, "lock")  # noqa: B009 - the checker of types would find it, too
    assert set(zklock.__all__) <= set(dir(zklock))
