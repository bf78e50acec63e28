"""``zklock gc``: removes the nodes of locks that nobody uses."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NoAuthError, NoNodeError, NotEmptyError

from zklock.cli import connection
from zklock.cli.ending import ends_on_signals
from zklock.cli.saying import say, say_hidden, say_missing
from zklock.cli.status import Status
from zklock.cli.view.model import Facts, garbage
from zklock.cli.view.reader import Reader, answer
from zklock.cli.view.text import json_of, many, plain

DESCRIPTION = """\
Remove the nodes below PATH that had children, have none now, and have no data: unused locks, and
folders that this leaves empty. PATH itself, semaphores and pools stay. It lists the nodes and asks
first. Tokens stay safe: they begin with the transaction that made the
lock's node, and a node that is made again is made by a later one. But a Lock object of kazoo's does
not make its node again: do not remove the nodes of running programs that use kazoo's own locks.
Exit status 0: done, or nothing to do; 1: not all, or the answer was no; 66: PATH does not exist."""

_SAFE = (
    "Tokens stay safe: a lock's node that is made again has a later epoch, so its tokens are "
    "greater. Programs with kazoo's own Lock objects fail if their node is removed."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("root", metavar="PATH", type=connection.root)
    sure = parser.add_mutually_exclusive_group()
    sure.add_argument("--yes", action="store_true", help="do not ask")
    sure.add_argument("--dry-run", action="store_true", help="only list the nodes")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object; with --yes or --dry-run"
    )


def run(options: argparse.Namespace) -> int:
    asks = not (options.yes or options.dry_run)
    if asks and (options.json or not sys.stdin.isatty()):
        options.parser.error("there is nobody to ask: pass --yes or --dry-run")
    with ends_on_signals(), connection.connected(options) as client:
        reader = Reader(client, options.root)
        reader.read()
        reader.must_see_root()
        if reader.missing:
            return say_missing("gc", options.root)
        say_hidden("gc", reader)
        found = garbage(reader.facts, options.root)
        if not options.json and (asks or options.dry_run):
            for path in found:
                print(plain(path))
        if asks and found and not _agreed(len(found)):
            return Status.FAILED
        kept = {} if options.dry_run else _remove(client, reader.facts, found)
    _report(options, found, kept)
    return Status.FAILED if kept else Status.OK


def _agreed(count: int) -> bool:
    print(_SAFE)
    print(f"Remove {many(count, 'node')}? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _remove(client: KazooClient, facts: Facts, paths: list[str]) -> dict[str, str]:
    """Remove the nodes, children first; return those that were kept, and why."""
    kept: dict[str, str] = {}
    for path in paths:
        try:
            delete = partial(client.delete_async, path, version=facts.nodes[path].version)
            answer(client, delete, path)
        except NotEmptyError:
            kept[path] = "it is in use again"
        except BadVersionError:
            kept[path] = "it has changed meanwhile"
        except NoAuthError:
            kept[path] = "ACLs forbid it"
        except NoNodeError:
            continue  # somebody else has removed it
    return kept


def _report(options: argparse.Namespace, found: list[str], kept: dict[str, str]) -> None:
    removed = [] if options.dry_run else [path for path in found if path not in kept]
    if options.json:
        reasons = [{"path": path, "why": why} for path, why in kept.items()]
        print(json_of(path=options.root, found=found, removed=removed, kept=reasons))
        return
    for path, why in kept.items():
        say("gc", f"{path} is not removed: {why}")
    if not found:
        print(f"nothing to remove below {plain(options.root)}")
    elif options.dry_run:
        print(f"{many(len(found), 'node')} would be removed")
    else:
        print(f"{many(len(removed), 'node')} removed")
