"""What a loop that tries again remembers of its failures: how long it pauses, and what it says."""

from __future__ import annotations

from zklock._election.options import pause_after


class Trouble:
    """The failures in a row of something that is tried again. For one thread at a time.

    ``retry``: the first and the longest pause, in seconds.
    """

    def __init__(self, retry: tuple[float, float]) -> None:
        self._retry = retry
        self._failures = 0
        self._said: set[tuple[object, ...]] = set()

    def fails(self) -> None:
        """Note a failure that is said each time."""
        self._failures += 1

    def strikes(self, error: BaseException) -> bool:
        """Note a failure; return whether its cause is a new one, which is to be said."""
        self.fails()
        # The text may name a node that is another one at each try.
        where = getattr(error, "path", None) or str(error)
        cause = type(error), where, type(error.__cause__)
        new = cause not in self._said
        self._said.add(cause)
        return new

    def pause(self) -> float:
        """Return how long to wait before the next try, in seconds. It grows up to a bound."""
        return pause_after(self._failures, self._retry)

    def ends(self) -> bool:
        """Note a success; return whether a trouble was said before, so that its end is."""
        said = bool(self._said)
        self._failures = 0
        self._said.clear()
        return said
