"""``zklock break``: take a lock from its holder."""

from __future__ import annotations

import argparse

from kazoo.client import KazooClient

import zklock
from zklock.cli import connection
from zklock.cli.saying import say
from zklock.cli.status import Status
from zklock.cli.view.model import QueuePlace, What
from zklock.cli.view.reader import Reader
from zklock.cli.view.text import json_of, named, plain

DESCRIPTION = """\
Delete the node of a holder of a lock or a semaphore: the next in the queue is granted at once. A
living holder is notified, but may be in the middle of its work: only a resource that compares
tokens is safe then. Exit status 1 if nobody holds it, or no longer with this token."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", type=connection.lock_path)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "token",
        metavar="TOKEN",
        type=connection.token,
        nargs="?",
        help="the holder's token, as 'zklock show' prints it",
    )
    which.add_argument("--oldest", action="store_true", help="the holder, or the oldest of several")
    parser.add_argument(
        "--json", action="store_true", help="print the former holder as a JSON object"
    )


def run(options: argparse.Namespace) -> int:
    """Break the lock, and print who held it."""
    with connection.connected(options) as client:
        broken = _lock(client, options.path).break_lock(options.token)
    if broken is None:
        say("break", f"{options.path}: nobody holds it")
        return Status.FAILED
    if options.json:
        print(json_of(path=options.path, broken=QueuePlace.of(broken).to_json()))
    else:
        print(f"{plain(options.path)} taken from {named(broken.identity)} ({broken.token})")
    return Status.OK


def _lock(client: KazooClient, path: str) -> zklock.Lock | zklock.Semaphore:
    """Return what is at the path; if that cannot be told, a lock."""
    reader = Reader(client, path, alone=True)
    what = reader.find().what
    reader.must_see_queue()
    if what is What.SEMAPHORE:
        return zklock.Semaphore(client, path, limit=None)
    return zklock.Lock(client, path)
