"""Texts in columns, for a terminal or a pipe. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

_GAP = "..."
_LEAST = 16


def middle(text: str, size: int) -> str:
    """Return the text, or its two ends if it is longer than ``size``."""
    if len(text) <= size:
        return text
    left = max(0, size - len(_GAP)) // 2
    return f"{text[:left]}{_GAP}{text[len(text) - max(0, size - len(_GAP) - left) :]}"[:size]


@dataclass(frozen=True, slots=True)
class Table:
    """Texts in columns that have names; ``keys`` are the names of the rows.

    Where there is little room, texts of the columns ``shrinks`` lose their middles, but are not
    made shorter than 16, or than ``least`` says for their column. If that is not enough, columns of
    ``drops`` go, in this order.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    keys: Sequence[str] = ()
    shrinks: Sequence[str] = ()
    drops: Sequence[str] = ()
    least: Mapping[str, int] = field(default_factory=dict)

    def only(self, *names: str) -> Table:
        """Return the table of these columns, in this order."""
        places = [self.heads.index(name) for name in names]
        return replace(self, heads=names, rows=[[row[at] for at in places] for row in self.rows])

    def fitted(self, width: int, *, headed: bool = True) -> Table:
        """Return a table whose lines are no longer than ``width``, as far as that can be."""
        kept = self
        for drop in (None, *self.drops):
            kept = kept.only(*(name for name in kept.heads if name != drop))
            sizes = kept._sizes(width, headed)
            if _long(sizes) <= width:
                break
        return replace(kept, rows=[list(map(middle, row, sizes)) for row in kept.rows])

    def _sizes(self, width: int, headed: bool) -> list[int]:
        """Return how wide each column is to be; the longest of those that shrink shrinks first."""
        sizes = _sizes([self.heads, *self.rows] if headed else self.rows)
        able = [at for at, name in enumerate(self.heads) if name in self.shrinks]
        while _long(sizes) > width and able:
            longest = max(able, key=sizes.__getitem__)
            floor = self.least.get(self.heads[longest], _LEAST)
            if sizes[longest] <= floor:
                able.remove(longest)
                continue
            over = _long(sizes) - width
            others = max((sizes[at] for at in able if at != longest), default=floor)
            sizes[longest] -= max(1, min(over, sizes[longest] - max(others, floor)))
        return sizes

    def lines(self, width: int | None = None, *, headed: bool = True) -> list[str]:
        """Return a line for each row, below the names if ``headed``; cut to ``width`` if given."""
        if not self.rows:
            return []
        kept = self if width is None else self.fitted(width, headed=headed)
        shown = [list(map(str.upper, kept.heads)), *kept.rows] if headed else kept.rows
        sizes = _sizes(shown)
        found = ["  ".join(map(str.ljust, row, sizes)).rstrip() for row in shown]
        cut = max(map(len, found)) if width is None else width
        return [line if len(line) <= cut else f"{line[: cut - 1]}>" for line in found]


def _sizes(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _long(sizes: Sequence[int]) -> int:
    """Return how long the lines of columns are that have these sizes."""
    return sum(sizes) + 2 * (len(sizes) - 1)
