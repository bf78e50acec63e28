"""The fencing token: an ordered pair that only grows, for one lock path."""

from __future__ import annotations

import re
from dataclasses import dataclass

from zklock._ground.numbers import check_int

_TEXT = re.compile(r"([0-9a-f]{16})-([0-9]{10})", re.ASCII)


@dataclass(frozen=True, order=True, slots=True)
class FencingToken:
    """The token of one grant; a later grant of the same lock has a greater one.

    ``epoch`` is the ``czxid`` of the lock's parent znode (0 ≤ epoch < 2^63). ``sequence`` is the
    number that ZooKeeper appended to the contender's name (0 ≤ sequence < 2^31). Anything else
    raises ``TypeError`` or ``ValueError``. A parent that is deleted and created again restarts its
    sequence at 0 but has a greater czxid. The pair therefore never goes back, with one exception:
    the whole ensemble is rebuilt from nothing.

    ``str(token)`` is ASCII text of fixed width, ``%016x-%010d``. It sorts like the token, so a
    store may compare the texts.
    """

    epoch: int
    sequence: int

    def __post_init__(self) -> None:
        check_int("epoch", self.epoch, 0, 2**63 - 1)
        check_int("sequence", self.sequence, 0, 2**31 - 1)

    @classmethod
    def parse(cls, text: str) -> FencingToken:
        """Return the token whose ``str()`` is this text; ``ValueError`` for any other text."""
        if not isinstance(text, str):
            raise TypeError(f"a token's text must be a str, not {type(text).__name__}")
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"not a fencing token: {text!r} (expected 16 hex digits-10 digits)")
        return cls(int(match[1], 16), int(match[2]))

    def __str__(self) -> str:
        return f"{self.epoch:016x}-{self.sequence:010d}"
