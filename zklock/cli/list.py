"""``zklock ls``: the locks below a node."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from zklock.cli import connection
from zklock.cli.saying import say, say_limits, say_missing, say_orphans
from zklock.cli.status import Status
from zklock.cli.view import table
from zklock.cli.view.model import LockView
from zklock.cli.view.reader import Reader
from zklock.cli.view.text import json_of

_COLUMNS = table.COLUMNS.index("token")
DESCRIPTION = """\
Print the locks and pools in use at and below a node: the kind, the holder, its age, and the number
of waiters. A lock without contenders looks like any other node. Exit status 66 if there is no such
node."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    connection.add_root(parser)
    parser.add_argument(
        "--json", action="store_true", help="print a JSON array with an object for each"
    )


def run(options: argparse.Namespace) -> int:
    with connection.connected(options) as client:
        reader = Reader(client, options.root)
        seen = reader.read()
        reader.must_see_root()
    none = not seen.locks and not seen.pools
    if options.json:
        nobody: dict[str, Any] = {
            "kind": "pool",
            "limit": None,
            "pool": None,
            "holders": [],
            "waiting": 0,
        }
        found = [_lock(lock) for lock in seen.locks]
        found += [{"path": pool.path, **nobody, **pool.to_json()} for pool in seen.pools]
        found.sort(key=lambda one: one["path"])
        print("[", ",\n".join(json_of(**one) for one in found), "]", sep="")
    elif not none:  # the locks of a pool are told by the row of the pool
        outside = replace(seen, locks=[lock for lock in seen.locks if lock.pool is None])
        print(*table.locks(outside, table.Order.PATH).first(_COLUMNS).lines(), sep="\n")
    if reader.missing:
        return say_missing("ls", options.root)
    say_limits("ls", reader)
    say_orphans("ls", seen.locks)
    if none:
        say("ls", f"no lock is in use at or below {options.root}")
    return Status.OK


def _lock(lock: LockView) -> dict[str, Any]:
    holders = [place.to_json() for place in lock.holders]
    return {**lock.to_json(), "holders": holders, "waiting": len(lock.waiting)}
