"""How much a run of the tests does."""

from __future__ import annotations

from zklock.testing.switches import switch


def strict() -> bool:
    """Whether a test that cannot run fails."""
    return switch("ZKLOCK_TEST_STRICT")


def full() -> bool:
    """Whether tests marked ``thorough`` run, too: those whose ratio of time to news is for CI.

    Strict runs are full, unless ``ZKLOCK_TEST_FULL`` is 0.
    """
    return switch("ZKLOCK_TEST_FULL", default=strict())


def quick() -> bool:
    """Whether tests marked ``lengthy`` are left to ``make test``, and others try fewer examples."""
    return switch("ZKLOCK_TEST_QUICK") and not full()


def simulated() -> bool:
    """Whether the clients of the contract tests are those of a simulation."""
    return switch("ZKLOCK_TEST_SIMULATED")


def examples(most: int) -> int:
    """Return how many random examples are tried.

    All of so many where nothing is left to CI, else a third of them; a quick run tries a fifth.
    """
    return max(1, most // 5) if quick() else repeated(most, max(1, most // 3))


def repeated(most: int, enough: int) -> int:
    """Return how often something is tried again: ``most`` where nothing is left to CI."""
    return most if full() else enough
