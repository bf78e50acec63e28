"""The fencing token: an ordered pair that only ever grows for one lock path."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TEXT = re.compile(r"([0-9a-f]{16})-([0-9]{10})", re.ASCII)


@dataclass(frozen=True, order=True, slots=True)
class FencingToken:
    """The token of one grant; a later grant of the same lock has a greater one.

    ``epoch`` is the ``czxid`` of the lock's parent znode (0 ≤ epoch < 2^63), ``sequence`` the
    number that ZooKeeper appended to the contender's name (0 ≤ sequence < 2^31); anything else
    raises ``TypeError`` or ``ValueError``. A parent that is deleted and created again restarts
    its sequence at 0 but has a greater czxid, so the pair never goes back. It would only if the
    whole ensemble were rebuilt from nothing.

    ``str(token)`` is ASCII text of fixed width, ``%016x-%010d``, that sorts like the token, so
    that a store may compare texts.
    """

    epoch: int
    sequence: int

    def __post_init__(self) -> None:
        _check("epoch", self.epoch, 2**63)
        _check("sequence", self.sequence, 2**31)

    @classmethod
    def parse(cls, text: str) -> FencingToken:
        """Return the token that ``str()`` turned into this text; ``ValueError`` for any other."""
        if not isinstance(text, str):
            raise TypeError(f"a token's text must be a str, not {type(text).__name__}")
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"not a fencing token: {text!r} (expected 16 hex digits-10 digits)")
        return cls(int(match[1], 16), int(match[2]))

    def __str__(self) -> str:
        return f"{self.epoch:016x}-{self.sequence:010d}"


def _check(name: str, value: object, limit: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not 0 <= value < limit:
        raise ValueError(f"{name} must be in 0 … {limit - 1}, not {value}")
