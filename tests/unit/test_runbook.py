"""docs/runbook.md has one entry for each message of zklock's, and none that is out of date."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import zklock
from zklock import errors
from zklock._kazoo import refusals, store
from zklock._recipes.effects import Failure

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "runbook.md"

GAP = "…"
"""Stands in an entry for what is filled in when the message is made."""


def subclasses(kind: type[Exception]) -> Iterator[type[Exception]]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


LOGS = {"log", "_log"}
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
ERRORS = {
    "ZkLockError",
    *(it.__name__ for it in subclasses(errors.ZkLockError)),
    "BadPlan",
    "CannotRun",
    "HandlerFailed",
    "_Refused",
}
"""The classes whose text a user meets: in an exception, in a log, or in the answer of a service."""

TEXTS: dict[tuple[str, str], type[ast.Assign] | type[ast.Return]] = {
    ("_ground/loss.py", "__str__"): ast.Return,
    ("_pool/processes.py", "_obituary"): ast.Return,
    ("cli/parser.py", "_explain"): ast.Assign,
}
"""Functions that make messages for elsewhere, and the statements with their texts."""


def skeleton(text: ast.expr, *, percent: bool = False) -> str:
    """Return the literal parts of a text, with a gap for each other part."""
    match text:
        case ast.Constant(value=str(value)):
            found = re.sub(r"%[-#0-9.]*[a-z]", GAP, value) if percent else value
        case ast.JoinedStr(values=values):
            found = "".join(skeleton(each) for each in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            found = skeleton(left) + skeleton(right)
        case _:
            found = GAP
    return re.sub(f"{GAP}+", GAP, found)


def name_of(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def is_stderr(keyword: ast.keyword) -> bool:
    return keyword.arg == "file" and ast.unparse(keyword.value) == "sys.stderr"


def is_log_call(call: ast.Call) -> bool:
    """Whether a call logs, at once or later."""
    match call.func:
        case ast.Attribute(value=ast.Name(id=logger), attr=name):
            return logger in LOGS and name in LEVELS
        case ast.Attribute(value=ast.Attribute(attr="_outbox"), attr=name):
            return name == "warn"
    return False


def texts_of_call(call: ast.Call, place: str) -> Iterator[str]:
    """Return the message of a call, if it makes an error or a note, logs, warns or prints."""
    if not call.args:
        return
    first, name = call.args[0], name_of(call.func)
    if is_log_call(call):
        yield skeleton(first, percent=True)
        return
    match call.func:
        case ast.Attribute(value=ast.Name(id="warnings")) if name == "warn":
            yield skeleton(first)
            return
    if name == "_Refused":
        yield skeleton(call.args[1])
    elif isinstance(call.func, ast.Name) and name == "say" and place.startswith("cli/"):
        yield said(*call.args)
    elif (
        name in ERRORS
        or (name == "TimeoutError" and place.startswith("fencing/"))
        or (name == "print" and place.startswith("cli/") and any(map(is_stderr, call.keywords)))
        or name == "add_note"
    ):
        yield skeleton(first)


def said(command: ast.expr, what: ast.expr) -> str:
    """Return the line that ``zklock.cli.saying.say()`` prints."""
    nobody = isinstance(command, ast.Constant) and command.value is None
    return f"zklock{'' if nobody else f' {skeleton(command)}'}: {skeleton(what)}"


def messages_of(tree: ast.AST, place: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from texts_of_call(node, place)
        elif isinstance(node, ast.FunctionDef) and (place, node.name) in TEXTS:
            kind = TEXTS[place, node.name]
            found = (each.value for each in ast.walk(node) if isinstance(each, kind))
            yield from (skeleton(each) for each in found if each is not None)


def says_something(message: str) -> bool:
    return re.search(r"\w\w", message) is not None


def messages() -> set[str]:
    """Return the skeletons of all messages in which something is said."""
    found: set[str] = set()
    for file in (ROOT / "zklock").rglob("*.py"):
        place = file.relative_to(ROOT / "zklock").as_posix()
        if not place.startswith("testing/"):
            found |= set(messages_of(ast.parse(file.read_text()), place))
    return {each for each in found if says_something(each)}


def rows_of(columns: int) -> list[list[str]]:
    """Return the cells of the page's rows that have so many of them."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in rows if len(row) == columns]


PASSED_ON = {*(each.value for each in zklock.LossReason), *(each.value for each in Failure)}
"""Texts that stand in a gap of a message, and have entries of their own."""

HINTS = {meaning.hint for meaning in store.MEANINGS.values() if meaning.hint} | {store.NO_CHROOT}

ENTRIES = [row[0].strip("`") for row in rows_of(3) if row[0].startswith("`")]


def test_every_message_has_an_entry() -> None:
    assert sorted((messages() | PASSED_ON) - set(ENTRIES)) == []


def test_no_entry_is_out_of_date() -> None:
    assert sorted(set(ENTRIES) - messages() - PASSED_ON) == []


def test_no_entry_is_there_twice() -> None:
    assert sorted(each for each in set(ENTRIES) if ENTRIES.count(each) > 1) == []


def test_every_entry_says_what_to_do() -> None:
    assert [row for row in rows_of(3) if not all(row)] == []


def test_every_row_has_two_or_three_cells() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    assert len(lines) == len(rows_of(2)) + len(rows_of(3))


def test_every_way_to_turn_a_client_away_has_an_entry() -> None:
    told = [row[1] for row in rows_of(3)]
    assert [each for each in refusals.CLOSING | {refusals.NO_SASL} if each.what not in told] == []
    assert all(each.todo for each in refusals.CLOSING)


def test_every_hint_of_an_answer_has_an_entry() -> None:
    assert {row[0] for row in rows_of(2)} - {"hint"} == HINTS


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('raise NoAnswer(f"{path}: none in {limit:g} s")', "…: none in … s"),
        ('raise zklock.ZkLockError("one " "two")', "one two"),
        ('log.warning("%s and %.3g", 1, 2)', "… and …"),
        ('log.error("one: " + ("two" if it else "three"))', "one: …"),
        ('self._outbox.warn("%s lost", grant)', "… lost"),
        ('warnings.warn(f"no {path}", stacklevel=3)', "no …"),
        ('error.add_note(f"moreover: {loss}")', "moreover: …"),
        ('log.error("%s", stuck)', None),
        ('raise ValueError("a wrong argument")', None),
        ('parser.error("a wrong argument")', None),
    ],
)
def test_what_is_a_message(source: str, message: str | None) -> None:
    found = set(messages_of(ast.parse(source), "_engine/session.py"))
    assert {each for each in found if says_something(each)} == ({message} if message else set())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('say("ls", f"no {path}")', "zklock ls: no …"),
        ('say(command, "no path")', "zklock …: no path"),
        ('say(None, f"{path}: none")', "zklock: …: none"),
        ('print("no path", file=sys.stderr)', "no path"),
    ],
)
def test_what_is_a_message_of_a_command(source: str, message: str) -> None:
    assert set(messages_of(ast.parse(source), "cli/list.py")) == {message}


def test_each_entry_is_in_a_table() -> None:
    """A row behind an empty line is shown as plain text."""
    for block in re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), re.MULTILINE):
        head, rule, *rows = block.splitlines()
        assert re.fullmatch(r"\|[-:| ]+\|", rule), head
        assert rows
