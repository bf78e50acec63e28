#!/usr/bin/env bash
# The guess: `merge_insert("key").when_not_matched_insert_all()` of LanceDB inserts a key that is not in the table. When
#   two writers do that, the second finds the first one's row, as it does with `update(where=…)`, and is told 0.
# Instead: `update` reads the newest version, whatever the handle has seen: of many, one is told 1. `merge_insert` reads
#   the version that its handle has seen, and the key that it is given is not part of its commit, so nothing conflicts.
#   An open handle inserts a key that was inserted minutes ago, and so do writers at the same time with fresh handles.
#   Each is told 1.
# Why it matters: a key that is claimed, a message's id that must be new, a document that is indexed once: all are there
#   twice, and the answer says that all is well. `checkout_latest()` before the call cures the first case alone. Both
#   are cured by a field that the schema calls `lance-schema:unenforced-primary-key`, or by a row that is there
#   beforehand and is claimed with `update(where=…)`.
# Seen: lancedb 0.40.0, pyarrow 26.0.1, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install lancedb==0.40.0 pyarrow==26.0.1 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

timeout 120 "$python" - "$dir/tables" <<'PYTHON'
import sys
import threading
from importlib.metadata import version

import lancedb
import pyarrow as pa

path = sys.argv[1]
OWNERS = ["a", "b", "c", "d"]
PLAIN = pa.schema({"key": pa.string(), "owner": pa.string()})
IS_KEY = {"lance-schema:unenforced-primary-key": "true"}
DECLARED = pa.schema([pa.field("key", pa.string(), nullable=False, metadata=IS_KEY), pa.field("owner", pa.string())])
print("lancedb", version("lancedb"), "pyarrow", version("pyarrow"))


def insert(table, owner):
    row = pa.table({"key": ["job"], "owner": [owner]}, table.schema)
    return table.merge_insert("key").when_not_matched_insert_all().execute(row).num_inserted_rows


def insert_now(table, owner):
    table.checkout_latest()
    return insert(table, owner)


def update(table, owner):
    return table.update(where="owner = 'nobody'", values={"owner": owner}).rows_updated


def handle(name):
    table = lancedb.connect(path).open_table(name)
    table.count_rows()
    return table


def claims(name, claim, key, together, schema=PLAIN):
    """What each of four handles is told that were opened before, and how often the key is in the table."""
    told = {}
    lancedb.connect(path).create_table(name, pa.table({"key": [key], "owner": ["nobody"]}, schema))
    handles = [handle(name) for _ in OWNERS]
    barrier = threading.Barrier(len(OWNERS) if together else 1)

    def run(table, owner):
        barrier.wait()
        told[owner] = claim(table, owner)

    threads = [threading.Thread(target=run, args=work) for work in zip(handles, OWNERS)]
    for thread in threads:
        thread.start()
        if not together:
            thread.join()
    for thread in threads:
        thread.join()
    return sorted(told.values()), handle(name).count_rows("key = 'job'")


seen = {
    "merge_insert, in turn": claims("late", insert, "another", False),
    "merge_insert, checkout_latest() before it, in turn": claims("latest", insert_now, "another", False),
    "merge_insert, a declared key, in turn": claims("declared", insert, "another", False, DECLARED),
    "merge_insert, a declared key, at the same time": claims("safe", insert, "another", True, DECLARED),
    "update, in turn": claims("updated", update, "job", False),
    "update, at the same time": claims("raced", update, "job", True),
}
for attempt in range(50):
    told, rows = claims(f"meet{attempt}", insert_now, "another", True)
    if rows > 1:
        break
seen["merge_insert, checkout_latest() before it, at the same time"] = told, rows
for what, (answers, count) in seen.items():
    print(f"{what}: four are told {answers}; the key is there {count} times")
one = [0, 0, 0, 1], 1
expected = [([1] * 4, 4), *[one] * 5, ([0] * (4 - rows) + [1] * rows, rows)]
sys.exit(None if rows > 1 and list(seen.values()) == expected else "the behaviour has changed")
PYTHON
