"""Puts a row into the table of .ci/newest: ``newest-row.py PAGE CELL…``.

It replaces the row with the same first cell. Without arguments: prints the releases of the extras'
libraries, and of the drivers that tests use, in this environment.
"""

from __future__ import annotations

import re
import sys
from configparser import RawConfigParser
from importlib.metadata import version
from pathlib import Path

BEGIN, END = "<!-- .ci/newest: -->\n\n", "\n<!-- end -->"
TOOLS = {"check", "demo", "docs", "test", "testing"}
DRIVERS = (
    "aiosqlite asyncpg etcd3gw fastapi gevent gunicorn mysql-connector-python pg8000 psycopg"
    " psycopg2-binary pymemcache PyMySQL uvicorn valkey"
)


def with_row(page: str, cells: list[str]) -> str:
    """Return the page with this row in its table."""
    head, table, tail = re.split(f"(?<={BEGIN})|(?={END})", page)
    rows = {row.split(" | ")[0]: row for row in table.splitlines()}
    rows[f"| {cells[0]}"] = f"| {' | '.join(cells)} |"
    return head + "".join(f"{row}\n" for row in rows.values()) + tail


def libraries() -> list[str]:
    """Return the names of the extras' libraries, and of the drivers."""
    setup = RawConfigParser()
    setup.read("setup.cfg")
    extras = setup["options.extras_require"]
    wanted = " ".join(extras[extra] for extra in extras if extra not in TOOLS)
    names = re.findall(r"[A-Za-z][\w-]*(?=[ \[])", wanted) + DRIVERS.split()
    return sorted({*names}, key=str.lower)


if __name__ == "__main__":
    if sys.argv[1:]:
        file = Path(sys.argv[1])
        file.write_text(with_row(file.read_text(), sys.argv[2:]))
    else:
        print(", ".join(f"{name} {version(name)}" for name in libraries()))
