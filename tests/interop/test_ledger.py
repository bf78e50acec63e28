"""The judge of the other tests here convicts the guilty, and nobody else."""

from __future__ import annotations

import pytest

from tests.interop.ledger import Hold, most_at_once, violations


def hold(kind: str, sequence: int, entered: int, left: int) -> Hold:
    return Hold(kind, sequence, entered, left, "somebody")


GOOD = {
    "nobody": [],
    "one after the other": [hold("exclusive", n, 10 * n, 10 * n + 5) for n in range(5)],
    "without a gap": [hold("exclusive", 1, 0, 5), hold("exclusive", 2, 5, 9)],
    "readers together": [hold("read", n, 10 - n, 20 + n) for n in range(5)],
    "readers, then a writer": [
        hold("read", 1, 0, 9),
        hold("read", 2, 1, 5),
        hold("write", 3, 9, 12),
        hold("read", 4, 12, 13),
    ],
}
BAD = {
    "two at once": [hold("exclusive", 1, 0, 5), hold("exclusive", 2, 4, 9)],
    "out of turn": [hold("exclusive", 2, 0, 5), hold("exclusive", 1, 6, 9)],
    "a reader beside a writer": [hold("write", 1, 0, 5), hold("read", 2, 4, 9)],
    "a writer beside a reader that came long before": [
        hold("read", 1, 0, 9),
        hold("read", 2, 1, 3),
        hold("write", 3, 4, 12),
    ],
    "a reader before the writer that it queues behind": [
        hold("read", 1, 0, 9),
        hold("read", 3, 1, 3),
        hold("write", 2, 9, 12),
    ],
    "one number twice": [hold("exclusive", 1, 0, 5), hold("exclusive", 1, 6, 9)],
}


@pytest.mark.parametrize("name", [*GOOD, *BAD])
def test_what_is_wrong(name: str) -> None:
    holds = BAD[name] if name in BAD else GOOD[name][::-1]
    assert len(violations(holds)) == (name in BAD)


def test_how_many_at_once() -> None:
    assert most_at_once([]) == 0
    assert most_at_once([hold("lease", 1, 0, 5), hold("lease", 2, 5, 9)]) == 1
    three = [hold("lease", n, n, 10) for n in range(3)]
    assert most_at_once([*three, hold("lease", 4, 10, 12)]) == 3
