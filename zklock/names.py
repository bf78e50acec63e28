"""Contender names: format, parse, order, and who blocks whom. Pure.

Names that zklock writes are those of Apache Curator, ``_c_<uuid>-lock-<sequence>``, so that
Java (Curator), Go (go-zookeeper) and Python queue fairly in one lock. Read are also the names of
kazoo's lock recipes and of the recipes that ZooKeeper ships; anything else is no contender.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

RENEW_AT = 2**30
"""From this sequence number on, a release that leaves the parent empty removes it."""

EXHAUSTED_AT = 2**31 - 2**20
"""No grant is ever taken on this sequence number or beyond, nor on a negative one."""


class Kind(Enum):
    """What a contender wants."""

    EXCLUSIVE = "exclusive"
    READ = "read"
    WRITE = "write"
    LEASE = "lease"
    LATCH = "latch"


_CURATOR = {
    Kind.EXCLUSIVE: "-lock-",
    Kind.READ: "-__READ__",
    Kind.WRITE: "-__WRIT__",
    Kind.LEASE: "-lease-",
    Kind.LATCH: "-latch-",
}
_MARKERS = {marker: kind for kind, marker in _CURATOR.items()} | {
    "__lock__": Kind.EXCLUSIVE,
    "__rlock__": Kind.READ,
}
_SEQUENCE = "(?P<sequence>[0-9]{10}|-[0-9]{9,10})"  # %010d of a signed 32-bit number
_MARKED = re.compile(
    f".*(?P<marker>{'|'.join(map(re.escape, _MARKERS))}){_SEQUENCE}", re.ASCII | re.DOTALL
)
_RECIPE = re.compile(f"x--?[0-9a-fA-F]+-{_SEQUENCE}", re.ASCII)
_ILLEGAL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Name:
    """A parsed contender name; ``sequence`` may be negative (ZooKeeper's counter wraps)."""

    text: str
    kind: Kind
    sequence: int

    @property
    def order(self) -> tuple[int, str]:
        """Sorts contenders by age; a wrapped (negative) number is younger than any other."""
        return self.sequence & 0xFFFFFFFF, self.text


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a contender stands: its blockers, oldest first. None of them: it is its turn."""

    blockers: tuple[Name, ...]

    @property
    def first(self) -> bool:
        """Whether nothing blocks the contender."""
        return not self.blockers

    @property
    def nearest(self) -> Name:
        """The youngest blocker, the one to watch."""
        return self.blockers[-1]

    @property
    def sole(self) -> bool:
        """Whether the nearest blocker is the only one, and nobody can take its place.

        Nobody can come in before a contender later on, so once a sole blocker is known to be
        gone the turn has come, without another look. A writer is the exception: Curator's may
        become a reader, under a node of the same number that is made before the writer's goes.
        """
        return len(self.blockers) == 1 and self.nearest.kind is not Kind.WRITE


def prefix(kind: Kind, uuid: str) -> str:
    """Return the name, without its sequence number, of a new contender."""
    return f"_c_{uuid}{_CURATOR[kind]}"


@lru_cache(maxsize=4096)
def parse(text: str) -> Name | None:
    """Return the contender with this node name, or ``None`` if it is not one."""
    match = _MARKED.fullmatch(text) or _RECIPE.fullmatch(text)
    if match is None:
        return None
    sequence = int(match["sequence"])
    if not -(2**31) <= sequence < 2**31 or match["sequence"] != f"{sequence:010d}":
        return None  # nothing that ZooKeeper writes
    return Name(text, _MARKERS.get(match.groupdict().get("marker", ""), Kind.EXCLUSIVE), sequence)


def queue(names: Iterable[str]) -> list[Name]:
    """Return the contenders among these node names, oldest first."""
    return sorted(filter(None, map(parse, names)), key=lambda name: name.order)


def standing(me: Name, names: Iterable[str]) -> Standing | None:
    """Return where ``me`` stands among these node names; ``None`` if it is not among them."""
    contenders = queue(names)
    if me not in contenders:
        return None
    before = contenders[: contenders.index(me)]
    return Standing(tuple(name for name in before if blocks(name.kind, me.kind)))


def blocks(before: Kind, me: Kind) -> bool:
    """Whether a contender of kind ``before`` makes a later one of kind ``me`` wait."""
    return not (before is Kind.READ and me is Kind.READ)


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
    if _ILLEGAL.search(path):
        raise ValueError(f"a lock's path has a character that ZooKeeper refuses: {path!r}")
    return path
