"""No method's logic is written twice, for threads and for asyncio."""

from __future__ import annotations

import ast
from difflib import SequenceMatcher
from pathlib import Path

import pytest

import zklock

ROOT = Path(zklock.__file__).parent
BOUNDS = {
    ("_locks/grant", "aio/grant"): 2,
    ("_locks/threads", "aio/lock"): 3,
    ("_locks/multi", "aio/multi"): 6,
    ("_election/threads", "aio/election"): 22,
    ("_election/observers", "aio/observers"): 10,
    ("_pool/threads", "aio/pool"): 11,
}
"""How many lines of logic two modules may have in common. What is left are declarations and idioms
of a line or two. A front says in one line which script it runs: that line says how, too."""
BARE = {"pass", "try:", "else:", "finally:", "raise", "return"}
RENAMED = {
    "AsyncExitStack": "ExitStack",
    "TaskLock": "ThreadLock",
    "StopAsyncIteration": "StopIteration",
}


class Plain(ast.NodeTransformer):
    """Takes away what only asyncio has, and what says nothing about the logic."""

    def visit_Await(self, node: ast.Await) -> ast.AST:
        self.generic_visit(node)
        value: ast.AST = node.value
        return value

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(RENAMED.get(node.id, node.id), node.ctx)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AST:
        self.generic_visit(node)
        return ast.With(node.items, node.body)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        self.generic_visit(node)
        return ast.For(node.target, node.iter, node.body, node.orelse)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        self.generic_visit(node)
        return None if isinstance(node.value, ast.Constant) else node

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None


def logic(source: str) -> list[str]:
    """Return the lines of a module that say what is done: no signatures, docstrings or imports."""
    tree = Plain().visit(ast.parse(source))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.args = ast.arguments([], [], None, [], [], None, [])
            node.returns = None
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            node.body = node.body or [ast.Pass()]
    lines = map(str.strip, ast.unparse(ast.fix_missing_locations(tree)).splitlines())
    heads = ("def ", "async def ", "class ", "@")
    return [line for line in lines if line and line not in BARE and not line.startswith(heads)]


def in_common(one: str, other: str) -> list[str]:
    """Return the lines of logic that both have, in the same order."""
    lines, others = logic(one), logic(other)
    blocks = SequenceMatcher(None, lines, others, autojunk=False).get_matching_blocks()
    return [line for block in blocks for line in lines[block.a : block.a + block.size]]


@pytest.mark.parametrize("pair", BOUNDS, ids=" ".join)
def test_the_fronts_share_their_logic(pair: tuple[str, str]) -> None:
    one, other = (ROOT.joinpath(f"{name}.py").read_text() for name in pair)
    common = in_common(one, other)
    assert len(common) <= BOUNDS[pair], "\n".join(["written for both fronts:", *common])


def test_what_is_written_twice_is_seen() -> None:
    threads = '''
class Lock:
    def verify(self, timeout):
        """Ask."""
        with self.limit(timeout) as end:
            answer = self.ask(end)
        return answer'''
    aio = """
class Lock:
    async def verify(self, timeout: float) -> bool:
        async with self.limit(timeout) as end:
            answer = await self.ask(end)
        # It has come.
        return answer"""
    assert in_common(threads, aio) == [
        "with self.limit(timeout) as end:",
        "answer = self.ask(end)",
        "return answer",
    ]
