"""docs/runbook.md has one entry for each message of zklock's, and none that is out of date."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import zklock
from zklock import errors
from zklock._core import failures
from zklock._ground import loss
from zklock._recipes.effects import Failure
from zklock._shell import refusals

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
SAY = {"_say", "_say_of_new"}
"""Methods that log: ``records.Logs`` puts the path before the text."""
ERRORS = {
    "ZkLockError",
    *(it.__name__ for it in subclasses(errors.ZkLockError)),
    "BadPlan",
    "Broken",
    "CannotRun",
    "HandlerFailed",
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
    return getattr(function, "attr", getattr(function, "id", ""))


def is_log_call(call: ast.Call) -> bool:
    """Whether a call logs; ``warn()`` of a session has a line logged later."""
    match call.func:
        case ast.Attribute(value=ast.Name(id=logger), attr=name) if logger in LOGS:
            return name in LEVELS
        case ast.Attribute(value=ast.Name("self") | ast.Attribute(), attr="warn"):
            return True
    return False


def is_posted(call: ast.Call) -> bool:
    """Whether a call makes a line that is logged later, by ``partial()``."""
    match call:
        case ast.Call(ast.Name("partial"), [logs, text, *_]):
            return is_log_call(ast.Call(logs, [text], []))
    return False


def text_of_call(call: ast.Call, place: str) -> str | None:
    """Return the message of a call, if it makes an error or a note, logs, warns or prints."""
    name, args = name_of(call.func), call.args
    match name, args:
        case _, []:
            return None
        case _, [_, ast.Constant(str(text)), *_] if name in SAY:
            return skeleton(ast.Constant(f"%s: {text}"), percent=True)
        case _, [first, *_] if is_log_call(call):
            return skeleton(first, percent=True)
        case _, [_, text, *_] if is_posted(call):
            return skeleton(text, percent=True)
        case "_Refused", [_, text, *_]:
            return skeleton(text)
        case "say", [command, what] if place.startswith("cli/"):
            nobody = isinstance(command, ast.Constant) and command.value is None
            return f"zklock{'' if nobody else f' {skeleton(command)}'}: {skeleton(what)}"
    prints = name == "print" and any(ast.unparse(it) == "file=sys.stderr" for it in call.keywords)
    warns = ast.unparse(call.func) == "warnings.warn"
    here = {("TimeoutError", "fencing"), ("Refusal", "_shell"), ("print", "cli")}
    told = (name, place.partition("/")[0]) in here and (prints or name != "print")
    return skeleton(args[0]) if name in ERRORS | {"add_note"} or warns or told else None


def messages_of(tree: ast.AST, place: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if (text := text_of_call(node, place)) is not None:
                yield text
        elif isinstance(node, ast.FunctionDef) and (place, node.name) in TEXTS:
            kind = TEXTS[place, node.name]
            found = (each.value for each in ast.walk(node) if isinstance(each, kind))
            yield from (skeleton(each) for each in found if each is not None)


def trees() -> Iterator[tuple[str, ast.Module]]:
    """Yield the modules of the package, but for those of ``testing``."""
    for file in sorted((ROOT / "zklock").rglob("*.py")):
        place = file.relative_to(ROOT / "zklock").as_posix()
        if not place.startswith("testing/"):
            yield place, ast.parse(file.read_text())


def messages() -> set[str]:
    """Return the skeletons of all messages in which something is said."""
    found = {each for place, tree in trees() for each in messages_of(tree, place)}
    return {each for each in found if re.search(r"\w\w", each)}


def items() -> list[tuple[list[str], str]]:
    """Return the items of the page's lists: their entries, and the one answer to all of them."""
    found = []
    for item in re.findall(r"^- .*\n(?:  .*\n)*", PAGE.read_text(), re.MULTILINE):
        lines = [line[2:] for line in item.splitlines()]
        entries = [line[1:-2] for line in lines if re.fullmatch(r"`[^`]+`\\", line)]
        found.append((entries, " ".join(lines[len(entries) :])))
    return found


def begins(entry: str, message: str) -> bool:
    """Whether an entry is the beginning of a message, long enough to be looked for."""
    head = entry.removesuffix(GAP).rstrip()
    words = [word for word in head.split() if re.search(r"\w", word)]
    return head != entry and len(words) >= 3 and message.startswith(f"{head} ")


PASSED_ON = {
    *(each.value for each in zklock.LossReason),
    loss.STOPPED,
    loss.REFUSED,
    *(each.value for each in Failure),
}
"""Texts that stand in a gap of a message, and have entries of their own."""

HINTS = {meaning.hint for meaning in failures.MEANINGS.values() if meaning.hint} | {
    failures.NO_CHROOT
}

ENTRIES = [entry for entries, _ in items() for entry in entries]


def entries_of(message: str) -> list[str]:
    """Return the entries of a message. Only an entry that is no whole message is cut short."""
    if message in ENTRIES:
        return [message]
    return [entry for entry in set(ENTRIES) - all_texts() if begins(entry, message)]


@functools.cache
def all_texts() -> frozenset[str]:
    return frozenset(messages() | PASSED_ON | HINTS)


def test_every_message_has_one_entry_and_every_entry_one_message() -> None:
    assert [each for each in sorted(all_texts()) if len(entries_of(each)) != 1] == []
    told = [entry for message in all_texts() for entry in entries_of(message)]
    assert [entry for entry in ENTRIES if told.count(entry) != 1] == []
    assert len(ENTRIES) == len(set(ENTRIES))


def test_every_item_has_entries_and_says_what_to_do() -> None:
    assert [item for item in items() if not all(item) or "\\" in item[1]] == []
    assert PAGE.read_text().count("`\\\n") == len(ENTRIES), "an entry outside of an item"


def test_every_way_to_turn_a_client_away_has_an_entry() -> None:
    assert {each.what for each in refusals.CLOSING | {refusals.NO_SASL}} <= all_texts()
    assert all(each.todo for each in refusals.CLOSING)
