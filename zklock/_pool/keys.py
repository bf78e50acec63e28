"""How the shards of a pool are known: by numbers from 0, or by names. Pure.

All shards of one pool are known in the same way, for good. A shard's key is its number or its name.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable
from typing import Any, TypeAlias
from urllib.parse import quote

from zklock._ground.numbers import check_int, is_number

Key: TypeAlias = int | str
"""A shard's number or name."""

Keys: TypeAlias = range | tuple[str, ...]
"""All shards of a pool. The names are in order."""

MAX_SHARDS = 65536
"""The most shards of a pool: one worker's list of them, with tokens, fits into one node."""

MAX_NAMED = 16384
"""The most shards of a pool that have names."""

MAX_NAMES_SIZE = 262144
"""The size limit of the names of a pool's shards together, in bytes, as they are stored."""


def check_shards(shards: Any) -> Keys:
    """Return the shards that a user asks for; ``TypeError`` or ``ValueError``."""
    if is_number(shards, int):
        return range(check_int("shards", shards, 1, MAX_SHARDS))
    if isinstance(shards, str | bytes | bool) or not isinstance(shards, Collection):
        raise TypeError(f"shards must be an int or a list of names, not {type(shards).__name__}")
    for name in shards:
        if not isinstance(name, str):
            raise TypeError(f"the names of shards must be text, not {type(name).__name__}")
        if not _is_name(name):
            raise ValueError(f"{name!r} is not a name of a shard: it is empty, or not valid text")
    names = tuple(sorted(shards))
    for one, other in itertools.pairwise(names):
        if one == other:
            raise ValueError(f"two shards have the name {one!r}")
    if not 0 < len(names) <= MAX_NAMED:
        raise ValueError(f"shards must be 1 to {MAX_NAMED} names, not {len(names)}")
    size = len(shards_data(names))
    if size > MAX_NAMES_SIZE:
        raise ValueError(
            f"the names of the shards take {size} bytes together, above {MAX_NAMES_SIZE}: "
            "use shorter names"
        )
    return names


def _is_name(name: object) -> bool:
    if not isinstance(name, str) or not name:
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def shards_data(keys: Keys) -> bytes:
    """Return the data of the node that says which shards there are."""
    return str(len(keys)).encode() if isinstance(keys, range) else _listed(keys).encode()


def parse_shards(data: bytes) -> Keys | None:
    """Return the shards that such data says; ``None`` if it cannot be read."""
    text = data.strip()
    if text[:1] != b"[":
        number = int(text) if text.isdigit() and len(text) < 8 else 0
        return range(number) if 0 < number <= MAX_SHARDS else None
    try:
        names = _named(text.decode())
    except ValueError:
        return None
    return tuple(sorted(names)) if 0 < len(names) <= MAX_NAMED else None


def alike(some: Keys, others: Keys) -> bool:
    """Whether both are numbers, or both are names."""
    return isinstance(some, range) == isinstance(others, range)


def node_of(key: Key) -> str:
    """Return the name of a shard's node. That of a number is the number, as ever."""
    return f"_{quote(key, safe='')}" if isinstance(key, str) else str(key)


def in_order(keys: Iterable[Key]) -> list[Key]:
    """Return the keys in order: numbers first."""
    return sorted(keys, key=lambda key: (isinstance(key, str), key))


def told(keys: Keys) -> str:
    """Return how many shards there are, and of which kind, for a message."""
    return f"{len(keys)} shards" if isinstance(keys, range) else f"{len(keys)} shards with names"


def encode(some: Iterable[Key]) -> str:
    """Return keys as text. Numbers: ascending, consecutive ones as ``first-last``. Names: a list.

    Numbers and names do not go together: if there are names, the numbers are passed over.
    """
    keys = set(some)
    names = sorted(key for key in keys if isinstance(key, str))
    if names:
        return _listed(names)
    spans: list[list[int]] = []
    for number in sorted(key for key in keys if isinstance(key, int)):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{one}" if one == last else f"{one}-{last}" for one, last in spans)


def decode(text: str) -> frozenset[Key]:
    """Return the keys of such a text; ``ValueError`` for others."""
    if text.startswith("["):
        return _named(text)
    found: set[int] = set()
    for span in filter(None, text.split(",")):
        one, dash, last = span.partition("-")
        first = _number(one)
        end = _number(last) if dash else first
        if end < first:
            raise ValueError(f"{span!r} is not a range of numbers")
        found.update(range(first, end + 1))
    return frozenset(found)


def _number(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else MAX_SHARDS
    if number >= MAX_SHARDS:
        raise ValueError(f"{text!r} is not a number below {MAX_SHARDS}")
    return number


def _listed(names: Iterable[str]) -> str:
    return json.dumps(list(names), ensure_ascii=False, separators=(",", ":"))


def _named(text: str) -> frozenset[str]:
    try:
        names = json.loads(text)
    except RecursionError:
        raise ValueError("this is not a list of names") from None
    if not isinstance(names, list) or not all(map(_is_name, names)):
        raise ValueError("this is not a list of names")
    return frozenset(names)
