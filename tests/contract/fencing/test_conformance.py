"""Every guard over every store that it is for, through the conformance suite."""

from __future__ import annotations

import pytest

from tests.contract.fencing.conftest import Stores
from zklock.testing.guard_conformance import CHECKS, Check

KINDS = (
    "memory",
    "http",
    "file",
    "sqlite",
    "sqlite-sqlalchemy",
    "postgresql",
    "postgresql-repeatable-read",
    "postgresql-serializable",
    "postgresql-sqlalchemy",
    "mariadb",
    "mariadb-read-committed",
    "mariadb-serializable",
    "mariadb-sqlalchemy",
    "redis",
    "redis-cluster",
    "zookeeper",
)

# What these stores cannot promise, as their documentation says.
NOT_PROMISED = {
    ("memory", "crashes"),
    ("memory", "restart"),
    ("memory", "lost_mark"),
    ("http", "restart"),
    ("http", "lost_mark"),
}


@pytest.mark.parametrize("check", CHECKS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_conforms(
    kind: str, check: Check, stores: Stores, results: dict[str, dict[str, str]]
) -> None:
    subject = stores[kind]
    cells = results.setdefault(subject.name, {})
    assert check.applies_to(subject) is ((kind, check.name) not in NOT_PROMISED)
    cells[check.name] = str(check(subject)) if check.applies_to(subject) else "-"
