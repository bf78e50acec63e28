"""Text for a terminal or a pipe. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_CONTROLS = {
    *range(0x20),
    0x7F,
    0x61C,
    *range(0x80, 0xA0),
    *range(0x200E, 0x2010),
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
}
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _CONTROLS}

JSON_VERSION = 1
"""Of the shape of each command's JSON. A higher one may drop or rename fields."""

CLOCKS_DIFFER = 2.0
"""Seconds by which clocks may differ without a word; ages are shown in whole seconds."""


def json_of(**fields: Any) -> str:
    """Return an object that a command prints with ``--json``."""
    import json  # noqa: PLC0415 - 'zklock run' needs none

    return json.dumps({"version": JSON_VERSION, **fields})


def plain(text: str) -> str:
    """Return the text without what would steer a terminal: that is escaped as in Python."""
    return text.translate(_ESCAPES)


def lines(text: str) -> str:
    """Return the text of several lines without what would steer a terminal."""
    return "\n".join(map(plain, text.split("\n")))


def named(identity: str) -> str:
    """Return an identity as it is shown."""
    return plain(identity) or "(unnamed)"


def many(count: int, word: str) -> str:
    """Return the number with the word, with an s unless it is one."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def some(names: Sequence[str], limit: int = 3) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(map(plain, names[:limit]))
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def short(seconds: float | None) -> str:
    """Return a length of time in its two greatest units; ``-`` if it is not known."""
    if seconds is None:
        return "-"
    left = int(seconds)
    parts: list[str] = []
    for size, unit in _UNITS:
        if left >= size or (unit == "s" and not parts):
            parts.append(f"{left // size}{unit}")
            left %= size
    return "".join(parts[:2])
