"""``zklock graph``: who waits for whom, and deadlocks."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from zklock._ground.addresses import session_text
from zklock.cli import connection, settings
from zklock.cli.saying import say_limits, say_missing
from zklock.cli.status import Status
from zklock.cli.view.live import look
from zklock.cli.view.model import Look, Owner, QueuePlace
from zklock.cli.view.reader import Reader
from zklock.cli.view.text import json_of, plain, short
from zklock.cli.view.waits import Deadlock, Stand

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
        seen = look(reader, reader.read())
        reader.must_see_root()
    if reader.missing:
        return say_missing("graph", options.root)
    say_limits("graph", reader)
    hosts = settings.options_for(options)
    if options.json:
        print(json_of(path=options.root, **to_json(seen, hosts)))
    elif options.dot or options.mermaid:
        print(*(dot(seen) if options.dot else mermaid(seen)), sep="\n")
    else:
        print(*text(seen, options.root, hosts), sep="\n")
    if any(deadlock.certain for deadlock in seen.deadlocks):
        return Status.CRITICAL
    return Status.FAILED if seen.deadlocks else Status.OK


def to_json(seen: Look, options: Sequence[str] = ()) -> dict[str, Any]:
    """Return the graph for ``json.dumps``: contenders, what each waits for, deadlocks."""
    nodes = [stand.place.path for stand in seen.stands]
    told = [{"lock": stand.lock.path, **stand.place.to_json()} for stand in seen.stands]
    waits = [
        {
            "node": stand.place.path,
            "lock": stand.lock.path,
            "behind": [nodes[other] for other in stand.behind],
            "until_gone": stand.count,
        }
        for stand in seen.stands
        if not stand.holds
    ]

    def chain(deadlock: Deadlock) -> list[dict[str, Any]]:
        who = [[_who(stand.place) for stand in link] for link in deadlock.chain]
        locks = [waiter.lock.path for waiter, _ in deadlock.chain]
        return [
            {"waiter": waiter, "lock": lock, "blocker": blocker}
            for lock, (waiter, blocker) in zip(locks, who, strict=True)
        ]

    deadlocks = [
        {
            "certain": deadlock.certain,
            "chain": chain(deadlock),
            "nodes": list(deadlock.involved),
            "command": deadlock.remedy(options),
        }
        for deadlock in seen.deadlocks
    ]
    return {"contenders": told, "waits": waits, "deadlocks": deadlocks}


def _who(place: QueuePlace) -> dict[str, Any]:
    told = place.to_json()
    return {name: told[name] for name in ("identity", "session", "node", "holds")}


def _tree(seen: Look) -> Iterator[str]:
    """Yield holders for whom others wait; below each its waiters, below them what they hold."""
    waiters: dict[str, list[Stand]] = defaultdict(list)
    held: dict[Owner, list[Stand]] = defaultdict(list)
    for stand in seen.stands:
        if not stand.holds:
            waiters[stand.lock.path].append(stand)
    busy = [stand for stand in seen.stands if stand.lock.path in waiters]
    for stand in busy:
        if stand.holds:
            held[stand.place.owner].append(stand)
    waiting = {stand.place.owner for queue in waiters.values() for stand in queue}
    drawn, opened = set[str](), set[str]()
    # First those who do not wait. A waiter is a root only where nobody is known to hold.
    roots = sorted(busy, key=lambda it: (not it.holds, it.place.owner in waiting))
    for root in roots:
        work = [] if root.place.path in drawn else [(0, root)]
        while work:  # without recursion: chains may be long
            depth, stand = work.pop()
            owner, path = stand.place.owner, stand.lock.path
            below = waiters[path] if stand.holds else held[owner]
            key = path if stand.holds else str(owner)
            again = below and key in opened
            does = "holds" if stand.holds else "waits for"
            line = f"{_name(owner)} {does} {plain(path)} ({short(stand.place.age)})"
            yield f"{'  ' * depth}{line}{': see above' if again else ''}"
            drawn.add(stand.place.path)
            if not again:
                opened.add(key)
                work += [(depth + 1, other) for other in reversed(below)]


def text(seen: Look, path: str, options: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines for a reader: the tree, then the deadlocks."""
    yield from _tree(seen)
    waiting = sum(not stand.holds for stand in seen.stands)
    for deadlock in seen.deadlocks:
        yield ""
        yield from _told(deadlock, options)
    if not waiting:
        yield f"nobody waits for a lock at or below {plain(path)}"
    elif not seen.deadlocks:
        yield f"no deadlock: {waiting} {'waits' if waiting == 1 else 'wait'}"


def _told(deadlock: Deadlock, options: Sequence[str]) -> Iterator[str]:
    yield f"DEADLOCK ({deadlock.sure}), {len(deadlock.involved)} contenders:"
    for one, before in deadlock.chain:
        waiter, blocker = _name(one.place.owner), _name(before.place.owner)
        does = f"{before.place.state} it" if before.holds else "waits before it"
        yield f"  {waiter} waits for {plain(one.lock.path)}: {blocker} {does}"
    if not deadlock.certain:
        yield (
            "  Their identities name processes, not threads: other threads of these processes may "
            "still go on."
        )
    command = deadlock.remedy(options)
    if command is not None:
        yield f"  This would break it (the holder goes on without the lock): {plain(command)}"


def dot(seen: Look) -> Iterator[str]:
    """Yield the lines of a graph for Graphviz: an edge for each wait."""
    yield "digraph waits {"
    yield "  rankdir=LR; node [shape=box];"
    for (waiter, blocker, path), stuck in _edges(seen).items():
        mark = ", color=red, penwidth=2" if stuck else ""
        yield f"  {_quoted(waiter)} -> {_quoted(blocker)} [label={_quoted(path)}{mark}];"
    yield "}"


def mermaid(seen: Look) -> Iterator[str]:
    """Yield the lines of a graph for Mermaid."""
    edges = _edges(seen)
    names = dict.fromkeys(name for *ends, _ in edges for name in ends)
    nodes = {name: f'n{at}["{_entities(name)}"]' for at, name in enumerate(names)}
    yield "graph LR"
    for (waiter, blocker, path), stuck in edges.items():
        arrow = "==>" if stuck else "-->"
        yield f'  {nodes[waiter]} {arrow}|"{_entities(path)}"| {nodes[blocker]}'


def _edges(seen: Look) -> dict[tuple[str, str, str], bool]:
    """Return who waits behind whom for which lock, each by identity and session.

    The value tells whether both are in a deadlock.
    """
    among = {node for deadlock in seen.deadlocks for node in deadlock.involved}
    edges: dict[tuple[str, str, str], bool] = {}
    for stand in seen.stands:
        for other in (seen.stands[at] for at in stand.behind):
            waiter, blocker = (f"{it.place.identity} {it.place.session}" for it in (stand, other))
            edge, nodes = (waiter, blocker, stand.lock.path), {stand.place.path, other.place.path}
            edges[edge] = edges.get(edge, False) or nodes <= among
    return edges


def _quoted(label: str) -> str:
    escaped = plain(label).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _entities(label: str) -> str:
    return "".join(c if c.isalnum() or c in " /:.-_" else f"#{ord(c)};" for c in plain(label))


def _name(owner: Owner) -> str:
    session, identity = owner
    if identity:
        return plain(identity)
    return "(unnamed)" if session is None else f"(unnamed, session {session_text(session)})"
