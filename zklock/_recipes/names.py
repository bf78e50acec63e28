"""Contender names: format, parse, order, and who blocks whom. Pure.

zklock writes the names of Apache Curator, ``_c_<uuid>-lock-<sequence>``. So Java (Curator), Go
(go-zookeeper) and Python queue fairly in one lock. On request it writes names that kazoo's lock
recipes see, ``_c_<uuid>-__lock__<sequence>``; Curator does not see those. zklock reads the names of
all of them, of aiozk, and of the recipes that ZooKeeper ships. Any other name is not a contender.
A name that ends as a sequential node's does is a *stranger*: whoever made it may queue, too.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from zklock._ground.cached_property import cached_property

RENEW_AT = 2**30
"""From this sequence number on, a release that leaves the parent empty deletes the parent."""

EXHAUSTED_AT = 2**31 - 2**20
"""No grant is taken on this sequence number, on a higher one, or on a negative one."""


class Kind(Enum):
    EXCLUSIVE = "exclusive"
    READ = "read"
    WRITE = "write"
    LEASE = "lease"
    LATCH = "latch"


class Naming(Enum):
    CURATOR = "curator"
    KAZOO = "kazoo"


_CURATOR = {
    Kind.EXCLUSIVE: "-lock-",
    Kind.READ: "-__READ__",
    Kind.WRITE: "-__WRIT__",
    Kind.LEASE: "-lease-",
    Kind.LATCH: "-latch-",
}
_KAZOO = {
    Kind.EXCLUSIVE: "-__lock__",
    Kind.READ: "-__rlock__",
    Kind.WRITE: "-__WRIT____lock__",  # for kazoo a lock like any other
}
_MARKERS = {marker: kind for written in (_CURATOR, _KAZOO) for kind, marker in written.items()} | {
    "__lock__": Kind.EXCLUSIVE,
    "__rlock__": Kind.READ,
}
_AIOZK = {"lock": Kind.EXCLUSIVE, "read": Kind.READ, "write": Kind.WRITE}
_KINDS = _MARKERS | _AIOZK
_SEQUENCE = "(?P<sequence>[0-9]{10}|-[0-9]{9,10})"  # %010d of a signed 32-bit number
_MARKED = re.compile(  # where several markers end at the sequence number, the longest counts
    rf"(?P<marker>{'|'.join(map(re.escape, _MARKERS))}){_SEQUENCE}\Z", re.ASCII
)
_TAIL = max(map(len, _MARKERS)) + len("-2147483648")
"""The most characters of a marker and a sequence number."""
_SEEN_BY_KAZOO = re.compile(f"__r?lock__{_SEQUENCE}$", re.ASCII)
_RECIPE = re.compile(f"x--?[0-9a-fA-F]+-{_SEQUENCE}", re.ASCII)
_OF_AIOZK = re.compile(f"(?P<marker>{'|'.join(_AIOZK)})-[0-9a-f]{{32}}-{_SEQUENCE}", re.ASCII)
_SEQUENTIAL = re.compile(f".*{_SEQUENCE}", re.ASCII | re.DOTALL)
_DIGITS = re.compile("[0-9a-f]")
_STRANGERS = 16
_UNSIGNED = 0xFFFFFFFF
_ILLEGAL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


class Name(NamedTuple):
    """A parsed contender name. Names sort by age, oldest first.

    ``sequence`` may be negative (ZooKeeper's counter wraps). Such a number is younger than any
    other: ``number`` is the same number without its sign.
    """

    number: int
    text: str
    kind: Kind
    sequence: int


class Standing(NamedTuple):
    """Where a contender stands: behind ``nearest``, its youngest blocker; ``None``: its turn.

    ``sole``: whether there is no other blocker. Nobody can come in before a contender later. So
    when a sole blocker is known to be gone, the turn has come, without another look. ``ahead``
    counts all contenders that stand before it, whether they block it or not.
    """

    nearest: Name | None
    sole: bool
    ahead: int


class Queue:
    """The contenders among some node names, oldest first."""

    def __init__(self, names: Iterable[str]) -> None:
        self.contenders: list[Name] = sorted(filter(None, map(parse, names)))

    @cached_property
    def _latest(self) -> list[int]:
        """For each place: the place of the youngest one before it that blocks a reader, or -1."""
        found, last = [], -1
        for at, name in enumerate(self.contenders):
            found.append(last)
            if blocks(name.kind, Kind.READ):
                last = at
        return found

    def standing(self, me: Name, passed: Container[str] = ()) -> Standing | None:
        """Return where ``me`` stands; ``None`` if it is not in the queue.

        ``passed`` are names that no longer block this kind of contender.
        """
        place = bisect_left(self.contenders, me)
        if self.contenders[place : place + 1] != [me]:
            return None
        if not place:
            return Standing(None, sole=True, ahead=0)
        blockers = self._blockers(place, me.kind, passed)
        nearest = next(blockers, None)
        return Standing(nearest, sole=next(blockers, None) is None, ahead=place)

    def _blockers(self, place: int, kind: Kind, passed: Container[str]) -> Iterator[Name]:
        while (place := self._latest[place] if kind is Kind.READ else place - 1) >= 0:
            if self.contenders[place].text not in passed:
                yield self.contenders[place]


def prefix(kind: Kind, uuid: str, naming: Naming = Naming.CURATOR) -> str:
    """Return the name of a new contender, without its sequence number."""
    return f"_c_{uuid}{(_CURATOR if naming is Naming.CURATOR else _KAZOO)[kind]}"


def kind_of(node: str) -> Kind | None:
    """Return what the contender with this node wants; ``None`` if it is no contender's node."""
    name = parse(node.rpartition("/")[2])
    return None if name is None else name.kind


def seen_by_kazoo(text: str) -> bool:
    """Whether kazoo's lock recipes know this name without ``extra_lock_patterns``."""
    return _SEEN_BY_KAZOO.search(text) is not None


@lru_cache(maxsize=4096)
def parse(text: str) -> Name | None:
    """Return the contender with this node name, or ``None`` if it is not one."""
    marked = _MARKED.search(text, len(text) - _TAIL) or _OF_AIOZK.fullmatch(text)
    match = marked or _RECIPE.fullmatch(text)
    return match and _named(text, match, _KINDS[marked["marker"]] if marked else Kind.EXCLUSIVE)


def _named(text: str, match: re.Match[str], kind: Kind) -> Name | None:
    digits = match["sequence"]
    sequence = int(digits)
    if not -(2**31) <= sequence < 2**31 or digits != f"{sequence:010d}":
        return None  # ZooKeeper does not write such a number
    return Name(sequence & _UNSIGNED, text, kind, sequence)


def strangers(listed: Iterable[str], me: Name | None = None) -> list[str]:
    """Return names of sequential nodes before ``me`` that are not known to be contenders.

    Of names that differ only in digits and letters up to ``f``, the oldest; of all these, the
    sixteen oldest. ``me=None``: before nobody.
    """
    oldest: dict[str, Name] = {}
    for text in listed:
        if parse(text) is not None or (match := _SEQUENTIAL.fullmatch(text)) is None:
            continue
        stranger = _named(text, match, Kind.EXCLUSIVE)
        if stranger is not None and (me is None or stranger < me):
            alike = _DIGITS.sub("", text)
            oldest[alike] = min(oldest.get(alike, stranger), stranger)
    return [stranger.text for stranger in sorted(oldest.values())[:_STRANGERS]]


def blocks(before: Kind, me: Kind) -> bool:
    """Whether a contender of kind ``before`` makes a later one of kind ``me`` wait."""
    return not (before is Kind.READ and me is Kind.READ)


MAX_PATH = 256 * 1024
"""The most bytes that a path may have. ZooKeeper closes the connection for a request of 1 MB. A
request of zklock's contains a path up to three times, and up to 64 KB of data."""


def check_path(path: object) -> str:
    """Return ``path`` if a lock can live there; ``TypeError`` or ``ValueError`` if not."""
    if not isinstance(path, str):
        raise TypeError(f"a lock's path must be a str, not {type(path).__name__}")
    if not path.startswith("/"):
        raise ValueError(f"a lock's path must be absolute (start with '/'): {path!r}")
    parts = path.split("/")[1:]
    if parts == [""]:
        raise ValueError("a lock cannot live at the root '/': give it a path of its own")
    if parts[-1] == "":
        raise ValueError(f"a lock's path must not end with '/': {path!r}")
    if any(part in {"", ".", ".."} for part in parts):
        raise ValueError(f"a lock's path must not have empty, '.' or '..' parts: {path!r}")
    size = len(path.encode(errors="replace"))
    if size > MAX_PATH:
        raise ValueError(
            f"a lock's path must have at most {MAX_PATH} bytes, not {size}: {path[:40]!r}…"
        )
    if _ILLEGAL.search(path):
        raise ValueError(f"a lock's path has a character that ZooKeeper refuses: {path!r}")
    return str.__str__(path)  # a member of an enum may be formatted as something else
