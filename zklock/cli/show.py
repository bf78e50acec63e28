"""``zklock show``: what is at a path; who holds a lock, and who waits for it."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from zklock.cli import connection
from zklock.cli.saying import columns, say_limits, say_missing, say_orphans
from zklock.cli.status import Status
from zklock.cli.view.model import Found, LockView, PoolView, What, below
from zklock.cli.view.reader import Reader
from zklock.cli.view.table import queue
from zklock.cli.view.text import json_of, many, named, plain

_COLUMNS = ("state", "place", "kind", "token", "session", "age", "identity")
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
        return say_missing("show", path, ": look for it with 'zklock ls'")
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
    if found.what is not What.FOLDER or not strangers:
        yield from _known(found)
    for name in strangers:
        yield (
            f"{plain(below(found.path, name))} may be a contender of a program that zklock does "
            "not know: it is ephemeral and sequential. zklock's locks refuse to queue behind it"
        )


def _known(found: Found) -> Iterator[str]:
    path, parent = found.path, found.path.rpartition("/")[0]
    name = plain(path)
    if found.pool is not None:
        yield from _pool(found.pool)
    if found.lock is not None and found.lock.places:
        yield from _queue(found.lock)
        return
    if found.pool is not None:
        return
    match found.what:
        case What.PART | What.POOL_PART:
            yield f"{name} is {found.what.value}: '{_command('show', parent)}'"
        case What.CONTENDER:
            yield f"{name} is a contender, not a lock: '{_command('show', parent)}'"
        case What.FOLDER:
            yield (
                f"{name} is a folder, not a lock: it has {many(found.children, 'node')}, none of "
                f"them a contender; '{_command('ls', path)}' lists the locks below it"
            )
        case What.EMPTY:
            yield f"{name} is empty: a lock that was never used, or any other node"
        case _:
            yield f"{name} is free"


def _queue(lock: LockView) -> Iterator[str]:
    holding, waiting = len(lock.holders), len(lock.waiting)
    kept = ", kept: it may be idle" if any(it.keeps for it in lock.holders) else ""
    article = "an" if lock.what is What.ELECTION else "a"
    yield (
        f"{plain(lock.path)} is {article} {lock.name}: {holding} hold{'s' * (holding == 1)}, "
        f"{waiting} wait{'s' * (waiting == 1)}{kept}"
    )
    found = replace(queue(lock, {}).only(*_COLUMNS), drops=("session", "token"))
    yield from found.lines(columns(), headed=False)


def _pool(pool: PoolView) -> Iterator[str]:
    orphans = f", {pool.orphans} without an owner" if pool.orphans else ""
    yield (
        f"{plain(pool.path)} is a pool of {many(pool.shards, 'shard')}{orphans}, with "
        f"{many(len(pool.workers), 'worker')}; '{_command('show', f'{pool.path}/leader')}' shows "
        "its leader"
    )
    for one in pool.workers:
        draining = "  draining" if one.draining else ""
        yield (
            f"owns {one.owned} of {one.assigned} assigned shards{draining}  {named(one.identity)}"
        )


def _command(name: str, path: str) -> str:
    """Return the command line for this path."""
    return f"zklock {name} {plain(shlex.quote(path))}"
