"""Which address is tried next when a client connects, and for how long. Pure.

kazoo tries all addresses in a round, in a random order. A connection may end in the middle of a
round. Then kazoo finishes this round, and begins another one in another order. So an address that
has just failed may come before one that was not tried yet.

A *sweep* tries each address once. It may begin in one of kazoo's rounds, and end in the next one.
An address that has failed in this sweep is passed over as long as there are others.

The addresses of the first sweep share a third of the session timeout. Their number is raised by
one. The rest is for kazoo's pause between two rounds, and for the answer of the last one.
"""

from __future__ import annotations

from collections.abc import Hashable

from zklock._core.handshake import unanswered

_FIRST = 1 / 3
"""The share of a session timeout in which the first sweep tries all addresses."""


class Sweep:
    """The tries since a server has answered. ``known`` is how many addresses there are."""

    def __init__(self) -> None:
        self._failed: set[Hashable] = set()  # in this sweep
        self._passed_over: set[Hashable] = set()  # in this sweep
        self._silent = 0  # in all sweeps

    def takes(self, address: Hashable, known: int) -> bool:
        """Return whether an address that kazoo offers is tried now; else another one is due.

        It is passed over once at most. When it is offered again, all others were offered, so the
        sweep is over. ``known`` may be too high: a name may have no address.
        """
        if address in self._failed:
            if len(self._failed) < known and address not in self._passed_over:
                self._passed_over.add(address)
                return False
            self._failed.clear()
            self._passed_over.clear()
        self._failed.add(address)
        return True

    def was_silent(self) -> None:
        """Note that an address has used all its time: it did not accept, or did not answer."""
        self._silent += 1

    def to_accept(self, timeout: float, known: int) -> float:
        """Return for how long an address is tried, in seconds, until it has accepted."""
        return min(1.0, _FIRST * self._growth(known)) * timeout / (known + 1)

    def to_answer(self, timeout: float, known: int) -> float:
        """Return for how long an answer is waited for, in seconds.

        The first wait is so short that another server finds the lease alive. In the end a wait is
        longer than a session timeout: if requests arrive and answers do not, the session must be
        able to expire.
        """
        return min(1.5 * timeout, unanswered(timeout) / (known + 1) * self._growth(known))

    def _growth(self, known: int) -> float:
        """Each sweep in which all were silent doubles the time."""
        return 2.0 ** min(self._silent // known, 32)
