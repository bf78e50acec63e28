"""How much a run of the tests does."""

from __future__ import annotations

from zklock.testing.switches import switch


def strict() -> bool:
    """Whether a test that cannot run fails."""
    return switch("ZKLOCK_TEST_STRICT")


def full() -> bool:
    """Whether tests marked ``thorough`` run, too, as in ``make nightly``."""
    return switch("ZKLOCK_TEST_FULL")


def quick() -> bool:
    """Whether tests marked ``lengthy`` are left to ``make test``, and others try fewer examples."""
    return switch("ZKLOCK_TEST_QUICK") and not full()


def simulated() -> bool:
    """Whether the clients of the contract tests are those of a simulation."""
    return switch("ZKLOCK_TEST_SIMULATED")


def played() -> bool:
    """Whether the contract tests are played on the simulator's system."""
    return switch("ZKLOCK_TEST_PLAYED")


def on_real_servers() -> bool:
    """Whether this run plays what only real servers can show: ``tests.run real``."""
    return switch("ZKLOCK_TEST_REAL")


def bounded(seconds: float) -> float:
    """Return how long something may take that should take so many seconds at most.

    On the simulated system, whose clock no machine slows down, it is just that. Elsewhere it only
    ends a hang, and is a minute more.
    """
    return seconds if played() else seconds + 60.0


def examples(most: int) -> int:
    """Return how many random examples are tried.

    All of so many in the nightly run, else a third of them; a quick run tries a fifth.
    """
    return max(1, most // 5) if quick() else repeated(most, max(1, most // 3))


def repeated(most: int, enough: int) -> int:
    """Return how often something is tried again: ``most`` in the nightly run."""
    return most if full() else enough
