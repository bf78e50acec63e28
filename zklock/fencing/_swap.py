"""Compare-and-swap guards: the mark of a store that can only replace what has not changed.

The mark says the token, and the numbers of the last writes. Each write has a random number, so the
text of a mark never comes again: a request that arrives late, or twice, finds another mark and is
refused. A refusal alone does not tell whether a write has happened, because a client such as boto3
sends a request again when no answer comes: then the second is refused for what the first has done.
The numbers tell.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from zklock.errors import GuardUnusable, OutcomeUnknown
from zklock.fencing.guard import NO_TOKEN, Fenced, admit, in_doubt, parse_mark, token_of, unreadable
from zklock.token import FencingToken

KEPT = 8
"""So many writes may come between a write and the look that tells whether it happened."""
_NUMBER = 16  # hexadecimal digits
LONGEST = 27 + KEPT * (1 + _NUMBER)
"""No mark is longer than this text."""


@dataclass(frozen=True)
class Mark:
    """What a store keeps beside the data."""

    token: FencingToken | None
    writes: tuple[str, ...]
    """The numbers of the last writes, the newest first."""

    def after(self, token: FencingToken | None) -> Mark:
        """Return the mark of one more write."""
        return Mark(token, (secrets.token_hex(_NUMBER // 2), *self.writes)[:KEPT])

    def __str__(self) -> str:
        return " ".join((NO_TOKEN if self.token is None else str(self.token), *self.writes))

    @staticmethod
    def parse(resource: str, where: str, text: str) -> Mark:
        """Read a mark; ``GuardUnusable`` for any other text."""
        head, *writes = text.split(" ")
        if not 0 < len(writes) <= KEPT or not all(map(_is_number, writes)):
            raise unreadable(resource, where, text)
        return Mark(parse_mark(resource, where, head), tuple(writes))


FIRST = Mark(None, ())


def _is_number(text: str) -> bool:
    return len(text) == _NUMBER and not text.strip("0123456789abcdef")


Found = TypeVar("Found")


class Refused(Exception):
    """The store has refused a write; ``error`` is what it said.

    ``again``: the client has sent the request more than once, so an earlier one may have been
    accepted.
    """

    def __init__(self, error: Exception, again: bool) -> None:
        super().__init__(error, again)
        self.error = error
        self.again = again


class SwapGuard:
    """The part that is the same for every store.

    ``_PATIENCE``: how often in a row a write is sent again that was refused though the mark is as
    it was. Some stores refuse a write that meets another one, even if that one then fails.
    """

    _PATIENCE: ClassVar[int] = 0

    def __init__(self, resource: str) -> None:
        self._resource = resource

    @property
    def resource(self) -> str:
        """The name that errors give to the resource."""
        return self._resource

    def _swap(
        self,
        token: Fenced,
        look: Callable[[], tuple[Mark, Found]],
        put: Callable[[Mark, Found], None],
    ) -> None:
        """Put the next mark, until it is written or refused for good.

        ``look()`` returns the mark, and what the next ``put`` must still find. ``put(mark, found)``
        raises ``Refused`` if the store has something else.
        """
        given = token_of(token)
        before, found = look()
        admit(self._resource, given, before.token)
        mark = before.after(given)
        unchanged, again = 0, False
        while True:
            try:
                put(mark, found)
            except Refused as refused:
                again = again or refused.again
                now, found = self._looked(look, given, again)
                if mark.writes[0] in now.writes:
                    return
                if now == before:
                    # The same number: what was sent before may still come, and is this write.
                    unchanged, again = unchanged + 1, True
                    if unchanged > self._PATIENCE:
                        if self._PATIENCE:
                            raise in_doubt(self._resource) from refused.error
                        raise refused.error from None  # a condition of the user's is false
                    self._wait(unchanged)
                    continue
                # The mark has changed: what was sent cannot happen any more. All later writes are
                # in the new mark, if the one before this write is.
                if again and before.writes[0] not in now.writes:
                    raise OutcomeUnknown(
                        f"{self._resource}: no answer came to a write with token {given}; zklock "
                        f"sent it again, and {KEPT} or more others wrote meanwhile: it may have "
                        "happened before them, but cannot happen any more; read, and decide",
                        resource=self._resource,
                        token=given,
                    ) from refused.error
                admit(self._resource, given, now.token)
                before, mark = now, now.after(given)
                unchanged, again = 0, False
            else:
                return

    @staticmethod
    def _wait(turn: int) -> None:
        time.sleep(random.uniform(0, 0.01 * 2 ** min(turn, 6)))

    def _looked(
        self, look: Callable[[], tuple[Mark, Found]], given: FencingToken, again: bool
    ) -> tuple[Mark, Found]:
        try:
            return look()
        except GuardUnusable as error:
            if again:
                error.add_note(
                    f"A write with token {given} was sent more than once: it may have happened "
                    "before the mark was lost."
                )
            raise
