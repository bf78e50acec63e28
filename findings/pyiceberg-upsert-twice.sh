#!/usr/bin/env bash
# The guess: of two pyiceberg writers that upsert the same new key at the same time, the second is told of the conflict,
#   or looks again and updates the row: the commit is a compare-and-swap, and since 0.12 a retry is validated.
# Instead: the retry looks for changes of rows that the writer has *found*. What it didn't find it appends, and appends
#   conflict with nothing: the losing commit is repeated on top of the winner's, with what it had read before. Both
#   upserts report one row inserted, and the key is in the table twice; later upserts update both rows. "Scan for the
#   key, then append" does the same. Two updates of a row that is there do conflict.
# Why it matters: it was CommitFailedException before 0.12; now an upgrade makes a loud error silent. Set the table's
#   property commit.retry.num-retries to 0 and repeat the whole upsert, or take a lock around it.
# Seen: pyiceberg 0.12.0 (SQL catalog), pyarrow 26.0.1, 2026-11-28.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install 'pyiceberg[sql-sqlite]==0.12.0' pyarrow==26.0.1 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

timeout 100 "$python" - "$dir" <<'PYTHON'
import logging
import sys
from importlib.metadata import version

import pyarrow
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException

logging.disable()
print("pyiceberg", version("pyiceberg"))
home = sys.argv[1]
catalog = SqlCatalog("catalog", uri=f"sqlite:///{home}/catalog.db", warehouse=f"file://{home}")
catalog.create_namespace("shop")
schema = pyarrow.schema([("id", pyarrow.int64()), ("owner", pyarrow.string())])


def upsert(table, number, owner):
    rows = pyarrow.table({"id": [number], "owner": [owner]}, schema=schema)
    try:
        done = table.upsert(rows, join_cols=["id"])
    except (CommitFailedException, ValidationException) as error:
        return type(error).__name__
    return f"{done.rows_inserted} inserted, {done.rows_updated} updated"


def race(name, number, **properties):
    """Two writers that have both loaded the table, which has the row 1, before either commits."""
    table = catalog.create_table(f"shop.{name}", schema=schema, properties=properties)
    upsert(table, 1, "nobody")
    writers = [(catalog.load_table(f"shop.{name}"), owner) for owner in ("a", "b")]
    said = [upsert(writer, number, owner) for writer, owner in writers]
    table = catalog.load_table(f"shop.{name}")
    rows = table.scan(f"id = {number}").to_arrow()["owner"].to_pylist()
    print(f"{name}: {said}, owners of the row: {sorted(rows)}")
    return said, sorted(rows), table


*updates, _ = race("update", 1)
*inserts, table = race("insert", 2)
later = upsert(table, 2, "c")
print("a later upsert of that row:", later)
*once, _ = race("no_retry", 2, **{"commit.retry.num-retries": "0"})
one, refused = "1 inserted, 0 updated", ["ValidationException", "CommitFailedException"]
seen = updates, inserts, later, once
expected = (
    [["0 inserted, 1 updated", refused[0]], ["a"]],
    [[one, one], ["a", "b"]],
    "0 inserted, 2 updated",
    [[one, refused[1]], ["a"]],
)
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
