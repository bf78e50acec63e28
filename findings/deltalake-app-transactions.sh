#!/usr/bin/env bash
# The guess: a write to a Delta table with an application transaction (an id and a version) is done once: the table
#   keeps the highest version, and a write with the same or a lower one is refused or ignored, as Delta's protocol
#   intends and Spark does.
# Instead: deltalake writes the version into the log and never compares it. A repeated write adds its rows again, and a
#   late write with a lower version passes, too, and sets the table's version *back*. Only writers that commit over
#   one another's heads are told of a conflict, which is what a test of two writers shows.
# Why it matters: the retry after an unknown outcome doubles the data, and a fencing token kept there fences nothing.
#   Read transaction_version() and commit from that same DeltaTable object: a write in between is then a conflict.
# Seen: deltalake 1.6.6, 2026-11-28.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install deltalake==1.6.6 pyarrow==26.0.1 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

timeout 60 "$python" - "$dir/table" <<'PYTHON'
import sys
from importlib.metadata import version

import pyarrow
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

place = sys.argv[1]
print("deltalake", version("deltalake"))


def write(table, row, number):
    properties = CommitProperties(app_transactions=[Transaction(app_id="job", version=number)])
    write_deltalake(table, pyarrow.table({"row": [row]}), mode="append", commit_properties=properties)


def state():
    table = DeltaTable(place)
    return sorted(table.to_pyarrow_table()["row"].to_pylist()), table.transaction_version("job")


write(place, "first", 7)
stale = DeltaTable(place)
write(place, "first", 7)
repeated = state()
print("the write of version 7, twice:", repeated)
write(place, "late", 5)
late = state()
print("then a write of version 5:", late)
try:
    write(stale, "conflict", 8)
    concurrent = "committed"
except CommitFailedError:
    concurrent = "refused"
write_deltalake(stale, pyarrow.table({"row": ["plain"]}), mode="append")
print("a write of version 8 by a table object of before:", concurrent, "- a plain one:", "plain" in state()[0])
seen = repeated, late, concurrent
expected = (["first"] * 2, 7), (["first", "first", "late"], 5), "refused"
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
