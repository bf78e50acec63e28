"""``zklock show``: what is at a path; who holds a lock, and who waits for it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from zklock.cli import connection
from zklock.cli.saying import say_limits, say_missing, say_orphans
from zklock.cli.status import Status
from zklock.cli.view.model import Found, What, below
from zklock.cli.view.reader import Reader
from zklock.cli.view.table import QUEUE_COLUMNS, inside
from zklock.cli.view.text import json_of, plain

_COLUMNS = QUEUE_COLUMNS.index("client")
DESCRIPTION = """\
Print the contenders of a lock, a semaphore or an election, of zklock and of other libraries, in
queue order: whether it holds, its place, what it wants, token, session, age, identity. Of a pool,
its workers. Of any other node, what it is. Exit status 66 if there is no such node."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", type=connection.lock_path)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    path = options.path
    with connection.connected(options) as client:
        reader = Reader(client, path, alone=True)
        found = reader.find()
        ours = found.what in {What.PART, What.POOL_PART}
        strangers = [] if ours else reader.strangers()
    if found.what is What.MISSING:
        return say_missing("show", path)
    say_limits("show", reader)
    say_orphans("show", [found.lock] if found.lock else [])
    if options.json:
        print(json_of(**_told(found, strangers)))
    else:
        print(*_lines(found, strangers), sep="\n")
    return Status.OK


def _told(found: Found, strangers: list[str]) -> dict[str, Any]:
    return {
        "path": found.path,
        "kind": found.what.value,
        "limit": None if found.lock is None else found.lock.limit,
        "contenders": [] if found.lock is None else found.lock.queue_to_json(),
        **({"strangers": strangers} if strangers else {}),
        **({} if found.pool is None else found.pool.to_json()),
    }


def _lines(found: Found, strangers: list[str]) -> Iterator[str]:
    views = [it for it in (found.pool, found.lock) if it is not None]
    for view in views:
        yield f"{plain(found.path)}: {view.head}"
        yield from inside(view, {}).first(_COLUMNS).lines()
    if not views:
        yield f"{plain(found.path)}: {found.what.value}"
    for name in strangers:
        yield (
            f"{plain(below(found.path, name))}: perhaps a contender of a program that zklock does "
            "not know: zklock's locks refuse to queue behind it"
        )
