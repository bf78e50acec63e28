"""The table of the marks, and the statements that use it, for each dialect."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

Dialect: TypeAlias = Literal["sqlite", "postgresql", "mysql"]

TABLE = "zklock_fence"

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?", re.ASCII)

# -1, -1 means that no token has been seen.
_CHECK = """\
CHECK (epoch = -1 AND sequence = -1
           OR epoch >= 0 AND sequence >= 0 AND sequence < 2147483648)"""

DDL: dict[Dialect, str] = {
    "sqlite": f"""\
CREATE TABLE IF NOT EXISTS {{table}} (
    resource TEXT NOT NULL PRIMARY KEY,
    epoch INTEGER NOT NULL CHECK (typeof(epoch) = 'integer'),
    sequence INTEGER NOT NULL CHECK (typeof(sequence) = 'integer'),
    stamp INTEGER NOT NULL DEFAULT 0,
    {_CHECK}
)""",
    "postgresql": f"""\
CREATE TABLE IF NOT EXISTS {{table}} (
    resource VARCHAR(255) COLLATE "C" NOT NULL PRIMARY KEY,
    epoch BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    stamp BIGINT NOT NULL DEFAULT 0,
    {_CHECK}
)""",
    "mysql": f"""\
CREATE TABLE IF NOT EXISTS {{table}} (
    resource VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    epoch BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    stamp BIGINT NOT NULL DEFAULT 0,
    {_CHECK}
) ENGINE=InnoDB""",
}

_NEW = "INTO {table} (resource, epoch, sequence) VALUES (:resource, -1, -1)"
INSERT: dict[Dialect, str] = {
    "sqlite": f"INSERT {_NEW} ON CONFLICT (resource) DO NOTHING",
    "postgresql": f"INSERT {_NEW} ON CONFLICT (resource) DO NOTHING",
    "mysql": f"INSERT IGNORE {_NEW}",
}

SELECT = "SELECT epoch, sequence, stamp FROM {table} WHERE resource = :resource"

SELECT_LOCKED = SELECT + " FOR UPDATE"

UPDATE = (
    "UPDATE {table} SET epoch = :epoch, sequence = :sequence, stamp = :stamp "
    "WHERE resource = :resource"
)

# SQLite has no row locks: any write takes its one write lock until the transaction ends.
SQLITE_LOCK = "UPDATE {table} SET resource = resource WHERE resource = :resource"

# What leaves only a rollback. A transaction that has failed on PostgreSQL can only be rolled back.
# InnoDB has no such state: the rest of the transaction becomes one that cannot write.
FAIL: dict[Dialect, tuple[str, ...]] = {
    "sqlite": ("ROLLBACK",),
    "postgresql": ("SELECT CAST('zklock: refused by a guard, roll back' AS INTEGER)",),
    "mysql": ("ROLLBACK", "START TRANSACTION READ ONLY"),
}


def table_name(table: str) -> str:
    """Return a name that is safe in a statement, else raise ``TypeError`` or ``ValueError``."""
    if not isinstance(table, str):
        raise TypeError(f"table must be a str, not {type(table).__name__}")
    if not _IDENTIFIER.fullmatch(table):
        raise ValueError(f"table must be name or schema.name of plain letters, not {table!r}")
    return table
