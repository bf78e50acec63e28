"""Every guard over every store that it is for, through the conformance suite."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.contract.fencing.conftest import Stores
from tests.modes import full, repeated
from zklock.testing.guard_conformance import CHECKS, Check, Effort

KINDS = (
    "memory",
    "http",
    "file",
    "sqlite",
    "sqlite-sqlalchemy",
    "sqlite-aiosqlite",
    "postgresql",
    "postgresql-repeatable-read",
    "postgresql-serializable",
    "postgresql-sqlalchemy",
    "postgresql-asyncpg",
    "mariadb",
    "mariadb-read-committed",
    "mariadb-serializable",
    "mariadb-sqlalchemy",
    "redis",
    "redis-cluster",
    "redis-asyncio",
    "redis-cluster-asyncio",
    "zookeeper",
)

ASYNCHRONOUS = {kind for kind in KINDS if re.search("aiosqlite|asyncpg|asyncio", kind)}
"""The guards for asyncio: another way to wait, around the same text."""

VARIANTS = {kind for kind in KINDS if "-" in kind}
"""The same statements once more, at another isolation level, by another driver, on a cluster."""

LONG = {"interleavings", "races", "rising", "stopped", "crashes"}
"""These checks take up to a minute each."""

# What these stores cannot promise, as their documentation says.
NOT_PROMISED = {
    *(("memory", check) for check in ("crashes", "restart", "lost_mark")),
    *(("http", check) for check in ("restart", "lost_mark")),
}

FEWER = Effort(interleavings=10, races=1, writes=15, kills=3, stops=repeated(25, 5))


def effort(kind: str) -> Effort:
    """Return how many cases to try: fewer of those that are left to the nightly run."""
    return Effort() if full() and kind not in ASYNCHRONOUS else FEWER


STOPPED = next(check for check in CHECKS if check.name == "stopped")


def cases(checks: Sequence[Check]) -> list[Any]:
    """Return each kind with each check; the nightly run has the long ones of variants."""
    mark = pytest.mark.thorough(
        "the long conformance checks: the same statements at other isolation levels, by other "
        "drivers, on a cluster; the short checks run"
    )
    return [
        pytest.param(
            kind,
            check,
            id=f"{kind}-{check}",
            marks=[mark] * (kind in VARIANTS and check.name in {*LONG, "edges"}),
        )
        for kind in KINDS
        for check in checks
    ]


@pytest.mark.hazard("H51")
@pytest.mark.parametrize(("kind", "check"), cases([STOPPED]))
def test_writers_that_are_stopped(
    kind: str, check: Check, stores: Stores, results: dict[str, dict[str, str]]
) -> None:
    subject = stores[kind]
    results.setdefault(subject.name, {})[check.name] = str(check(subject, effort(kind)))


@pytest.mark.parametrize(
    ("kind", "check"), cases([check for check in CHECKS if check is not STOPPED])
)
def test_conforms(
    kind: str, check: Check, stores: Stores, results: dict[str, dict[str, str]]
) -> None:
    subject = stores[kind]
    cells = results.setdefault(subject.name, {})
    assert check.applies_to(subject) is ((kind, check.name) not in NOT_PROMISED)
    cells[check.name] = str(check(subject, effort(kind))) if check.applies_to(subject) else "-"
