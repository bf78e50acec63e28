"""The mutants of a module's source."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

import parso
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

_OPERATORS = (
    *(
        f"ReplaceComparisonOperator_{operator}"
        for operator in (
            "Eq_NotEq",
            "Eq_LtE",
            "Eq_GtE",
            "NotEq_Eq",
            "Lt_LtE",
            "Lt_GtE",
            "LtE_Lt",
            "LtE_Gt",
            "Gt_GtE",
            "Gt_LtE",
            "GtE_Gt",
            "GtE_Lt",
            "Is_IsNot",
            "IsNot_Is",
        )
    ),
    *(
        f"ReplaceBinaryOperator_{operator}"
        for operator in (
            "Add_Sub",
            "Sub_Add",
            "Mul_Div",
            "Div_Mul",
            "Mod_Mul",
            "Pow_Mul",
            "FloorDiv_Mul",
            "BitAnd_BitOr",
            "BitOr_BitAnd",
        )
    ),
    "ReplaceUnaryOperator_USub_UAdd",
    "ReplaceUnaryOperator_Delete_Not",
    "ReplaceUnaryOperator_Delete_Invert",
    "AddNot",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ExceptionReplacer",
    "NumberReplacer",
    "RemoveDecorator",
    "ZeroIterationForLoop",
)
"""Of cosmic-ray's operators. An operator is replaced by its opposite and its neighbours, not by all
others: ``+`` by ``<<`` is noticed by whatever runs the line."""


class DropStatement:
    """An operator for cosmic-ray: a statement in a function does nothing."""

    _STATEMENTS = frozenset(
        {"expr_stmt", "atom_expr", "yield_expr", "return_stmt", "raise_stmt", "del_stmt"}
    )

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """Yield where ``node`` can be mutated."""
        if (
            node.type == "simple_stmt"
            and node.children[0].type in self._STATEMENTS
            and node.search_ancestor("funcdef")
        ):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Return ``node`` with ``pass`` in the place of the statement."""
        assert index == 0
        statement = node.children[0]
        prefix = statement.get_first_leaf().prefix
        node.children[0] = parso.python.tree.Keyword("pass", statement.start_pos, prefix)
        return node


@dataclass(frozen=True, slots=True)
class Mutant:
    """A source with one fault: which function, what its lines said, and what they say now."""

    source: str
    where: str
    was: str
    now: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from others, though lines may move."""
        return self.where, self.was, self.now


def mutants(source: str) -> list[Mutant]:
    """Return all mutants that differ from the source, and from each other, when they run."""
    seen = {_meaning(source)}
    found = []
    operators = [get_operator(f"core/{name}")() for name in _OPERATORS]
    for operator in (*operators, DropStatement()):
        for occurrence in count():
            mutated = mutate_code(source, operator, occurrence)
            if mutated is None:
                break
            try:
                meaning = _meaning(mutated)
            except SyntaxError:
                continue
            if meaning not in seen:
                seen.add(meaning)
                found.append((_difference(source, mutated), mutated))
    found.sort(key=lambda one: one[0])
    return [
        Mutant(mutated, _function(source, line), was, now) for (line, was, now), mutated in found
    ]


class _WithoutTypes(ast.NodeTransformer):
    """Leave out what has no effect when the code runs: annotations, and names for types.

    ``not a is b`` is written ``a is not b``, and so on. Whether an argument may be passed by its
    name, by its place or by both is for mypy to say.
    """

    _OPPOSITES: ClassVar[dict[type[ast.cmpop], type[ast.cmpop]]] = {
        one: other
        for pair in ((ast.Is, ast.IsNot), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn))
        for one, other in (pair, pair[::-1])
    }

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), same)):
                return same
            case ast.UnaryOp(ast.Not(), ast.Compare(ops=[operator]) as comparison):
                if opposite := self._OPPOSITES.get(type(operator)):
                    comparison.ops = [opposite()]
                    return comparison
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        placed = [*node.posonlyargs, *node.args]
        missing = len(placed) - len(node.defaults)
        node.kw_defaults = [*[None] * missing, *node.defaults, *node.kw_defaults]
        node.args, node.posonlyargs, node.defaults = [], [], []
        node.kwonlyargs = [*placed, *node.kwonlyargs]
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        alias = isinstance(node.annotation, ast.Name) and node.annotation.id == "TypeAlias"
        node.annotation = ast.Constant(None)
        if alias:
            node.value = None
        return self.generic_visit(node)


def _meaning(source: str) -> str:
    return ast.dump(_WithoutTypes().visit(ast.parse(source)))


def _difference(old: str, new: str) -> tuple[int, str, str]:
    """Return the first line that differs, and what stands there in both."""
    before, after = old.splitlines(), new.splitlines()
    changes = [
        one
        for one in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        if one[0] != "equal"
    ]
    (_, start, _, start_after, _), (_, _, end, _, end_after) = changes[0], changes[-1]
    while start < end - 1 and not before[start].strip():
        start += 1
    return (
        start + 1,
        " ".join(" ".join(before[start:end]).split()),
        " ".join(" ".join(after[start_after:end_after]).split()),
    )


def _function(source: str, line: int) -> str:
    """Return the name of the function or class in which the line is, or an empty one."""
    names = []
    node: ast.AST = ast.parse(source)
    while node := next(  # type: ignore[assignment]
        (
            child
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.FunctionDef | ast.ClassDef)
            and min([child.lineno, *(one.lineno for one in child.decorator_list)])
            <= line
            <= (child.end_lineno or 0)
        ),
        None,
    ):
        names.append(node.name)
    return ".".join(names)
