"""``zklock graph``: who waits for whom, and deadlocks."""

from __future__ import annotations

import argparse
import sys

from zklock.cli import connection, settings
from zklock.cli.saying import say_limits, say_missing
from zklock.cli.status import Status
from zklock.cli.view import draw, waits
from zklock.cli.view.live import confirmed
from zklock.cli.view.reader import Reader
from zklock.cli.view.text import draws, json_of

DESCRIPTION = """\
Print who waits for whom, over all locks at and below a node. It names certain deadlocks, where
identities name threads, and possible ones, where they name processes. For each, it prints the
command that would break it. Exit status 0: no deadlock; 1: a possible one; 2: a certain one;
66: there is no such node. It changes nothing."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    connection.add_root(parser)
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print one JSON object")
    shape.add_argument("--dot", action="store_true", help="print a graph for Graphviz")
    shape.add_argument("--mermaid", action="store_true", help="print a graph for Mermaid")


def run(options: argparse.Namespace) -> int:
    with connection.connected(options) as client:
        reader = Reader(client, options.root)
        found = waits.graph(reader.read().locks)
        reader.must_see_root()
        found = confirmed(found, reader)
    if reader.missing:
        return say_missing("graph", options.root)
    say_limits("graph", reader)
    hosts = settings.options_for(options)
    if options.json:
        print(json_of(path=options.root, **draw.to_json(found, hosts)))
    elif options.dot or options.mermaid:
        print(*(draw.dot(found) if options.dot else draw.mermaid(found)), sep="\n")
    else:
        lines = draw.UNICODE if draws(sys.stdout.encoding) else draw.ASCII
        print(*draw.text(found, options.root, lines, hosts), sep="\n")
    return verdict(found)


def verdict(found: waits.Graph) -> int:
    """Return the exit status: 2 for a certain deadlock, 1 for a possible one."""
    if any(deadlock.certain for deadlock in found.deadlocks):
        return Status.CRITICAL
    return Status.FAILED if found.deadlocks else Status.OK
