"""``zklock ls``: the locks below a node."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from zklock.cli import connection
from zklock.cli.saying import say, say_limits, say_missing, say_orphans
from zklock.cli.status import Status
from zklock.cli.view.model import LockView, Look, QueuePlace
from zklock.cli.view.reader import Reader
from zklock.cli.view.table import Table
from zklock.cli.view.text import json_of, many, named, plain, short

_COLUMNS = ("path", "kind", "holders", "waiting")
DESCRIPTION = """\
Print the locks and pools in use at and below a node: the kind, the holder, its age, and the number
of waiters. A lock without contenders looks like any other node. Exit status 66 if there is no such
node."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "root",
        metavar="ROOT",
        nargs="?",
        default="/",
        type=connection.root,
        help="where to look; default /",
    )
    parser.add_argument(
        "--json", action="store_true", help="print a JSON array with an object for each"
    )


def run(options: argparse.Namespace) -> int:
    with connection.connected(options) as client:
        reader = Reader(client, options.root)
        seen = reader.read()
        reader.must_see_root()
    if options.json:
        found = [_lock(lock) for lock in seen.locks]
        found += [
            {"path": pool.path, "kind": "pool", "limit": None, "pool": None, "holders": [],
             "waiting": 0, **pool.to_json()}
            for pool in seen.pools
        ]  # fmt: skip
        found.sort(key=lambda one: one["path"])
        print("[", ",\n".join(json_of(**one) for one in found), "]", sep="")
    else:
        for line in Table(_COLUMNS, _rows(seen)).lines(headed=False):
            print(line)
    if reader.missing:
        return say_missing("ls", options.root)
    say_limits("ls", reader)
    say_orphans("ls", seen.locks)
    if not seen.locks and not seen.pools:
        say("ls", f"no lock is in use at or below {options.root}")
    return Status.OK


def _rows(seen: Look) -> list[list[str]]:
    """Return the rows of the table; the locks of a pool are told by the row of the pool."""
    rows = [
        [
            plain(lock.path),
            lock.name,
            f"held by {_who(lock.holders)}",
            f"{len(lock.waiting)} waiting",
        ]
        for lock in seen.locks
        if lock.pool is None
    ]
    for pool in seen.pools:
        owned = pool.shards - pool.orphans
        workers = many(len(pool.workers), "worker")
        rows.append(
            [plain(pool.path), "pool", f"{owned} of {pool.shards} shards owned by {workers}", ""]
        )
    return sorted(rows)


def _who(holders: Sequence[QueuePlace]) -> str:
    shown = []
    for place in holders:
        known = ["kept"] if place.keeps else []
        known += [] if place.age is None else [f"came {short(place.age)} ago"]
        also = f" ({', '.join(known)})" if known else ""
        shown.append(f"{named(place.identity)}{also}")
    return ", ".join(shown) or "nobody"


def _lock(lock: LockView) -> dict[str, Any]:
    holders = [place.to_json() for place in lock.holders]
    return {**lock.to_json(), "holders": holders, "waiting": len(lock.waiting)}
