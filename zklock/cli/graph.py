"""``zklock graph``: who waits for whom, and deadlocks."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from zklock._ground.addresses import session_text
from zklock.cli import connection, settings
from zklock.cli.saying import say_limits, say_missing
from zklock.cli.status import Status
from zklock.cli.view.live import look
from zklock.cli.view.model import Look, Owner, QueuePlace
from zklock.cli.view.reader import Reader
from zklock.cli.view.text import draws, json_of, plain, short
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
        lines = UNICODE if draws(sys.stdout.encoding) else ASCII
        print(*text(seen, options.root, lines, hosts), sep="\n")
    if any(deadlock.certain for deadlock in seen.deadlocks):
        return Status.CRITICAL
    return Status.FAILED if seen.deadlocks else Status.OK


_Item: TypeAlias = Owner | Stand | str
"""An owner; a lock that it holds, or who waits there; the path of a lock, or a remark."""


def to_json(seen: Look, options: Sequence[str] = ()) -> dict[str, Any]:
    """Return the graph for ``json.dumps``: contenders, what each waits for, deadlocks."""
    nodes = [stand.place.path for stand in seen.stands]
    return {
        "contenders": [{"lock": stand.lock.path, **stand.place.to_json()} for stand in seen.stands],
        "waits": [
            {
                "node": stand.place.path,
                "lock": stand.lock.path,
                "behind": [nodes[other] for other in stand.behind],
                "until_gone": stand.count,
            }
            for stand in seen.stands
            if not stand.holds
        ],
        "deadlocks": [
            {
                "certain": deadlock.certain,
                "chain": [
                    {
                        "waiter": _who(waiter.place),
                        "lock": waiter.lock.path,
                        "blocker": _who(blocker.place),
                    }
                    for waiter, blocker in deadlock.chain
                ],
                "nodes": list(deadlock.involved),
                "command": deadlock.remedy(options),
            }
            for deadlock in seen.deadlocks
        ],
    }


def _who(place: QueuePlace) -> dict[str, Any]:
    told = place.to_json()
    return {name: told[name] for name in ("identity", "session", "node", "holds")}


UNICODE = ("├─ ", "└─ ", "│  ", "   ")
ASCII = ("|- ", "`- ", "|  ", "   ")


def _tree(seen: Look, lines: Sequence[str]) -> Iterator[str]:
    """Yield owners that others wait for; below each its locks, below each lock who waits for it."""
    tee, end, bar, gap = lines
    queues: dict[str, list[Stand]] = defaultdict(list)
    held: dict[Owner, dict[str, Stand]] = defaultdict(dict)
    for stand in seen.stands:
        if not stand.holds:
            queues[stand.lock.path].append(stand)
    for stand in seen.stands:
        if stand.holds and stand.lock.path in queues:
            held[stand.place.owner][stand.lock.path] = stand
    waits = {stand.place.owner for queue in queues.values() for stand in queue}
    known = {path for locks in held.values() for path in locks}
    shown: set[Owner | str] = set()

    def told(item: _Item) -> tuple[str, Sequence[_Item]]:
        """Return the line of an item, and what stands below it."""
        if isinstance(item, str):
            queue = queues.get(item, ())
            return f"{plain(item)}  its holder is not known" if queue else item, queue
        if isinstance(item, Stand) and item.holds:
            path = item.lock.path
            below = ["(its queue stands above)"] if path in shown else queues[path]
            shown.add(path)
            return f"{plain(path)}  held {short(item.place.age)}", below
        owner = item.place.owner if isinstance(item, Stand) else item
        again, locks = owner in shown, held.get(owner, {})
        shown.update([owner] if locks else ())
        line = _name(owner)
        if isinstance(item, Stand):
            line += f"  waits {short(item.place.age)}{'  (see above)' if again else ''}"
        return line, [] if again else [*locks.values()]

    roots: list[Owner | str] = sorted(held, key=waits.__contains__)  # first those that do not wait
    roots += [path for path in queues if path not in known]
    for root in roots:
        work: list[tuple[str, str, _Item]] = [] if root in shown else [("", "", root)]
        while work:  # without recursion: chains may be long
            before, after, item = work.pop()
            line, below = told(item)
            yield f"{before}{line}"
            for at, inner in enumerate(below[::-1]):
                mark, more = (tee, bar) if at else (end, gap)
                work.append((f"{after}{mark}", f"{after}{more}", inner))


def text(
    seen: Look, path: str, lines: Sequence[str] = UNICODE, options: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the lines for a reader: the trees, then the deadlocks."""
    yield from _tree(seen, lines)
    waiting = sum(not stand.holds for stand in seen.stands)
    for deadlock in seen.deadlocks:
        yield ""
        yield from _told(deadlock, options)
    if not waiting:
        yield f"nobody waits for a lock at or below {plain(path)}"
    elif not seen.deadlocks:
        yield f"no deadlock: {waiting} {'waits' if waiting == 1 else 'wait'}"


def _told(deadlock: Deadlock, options: Sequence[str]) -> Iterator[str]:
    sure = "certain" if deadlock.certain else "possible"
    yield f"DEADLOCK ({sure}), {len(deadlock.involved)} contenders:"
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
    """Yield the lines of a graph for Graphviz."""
    owners, edges, red = _edges(seen)
    yield "digraph waits {"
    yield "  rankdir=LR; node [shape=box];"
    for owner, number in owners.items():
        mark = ", color=red" if number in red else ""
        yield f"  n{number} [label={_quoted(_name(owner))}{mark}];"
    for waiter, blocker, label, stuck in edges:
        mark = ", color=red, penwidth=2" if stuck else ""
        yield f"  n{waiter} -> n{blocker} [label={_quoted(label)}{mark}];"
    yield "}"


def mermaid(seen: Look) -> Iterator[str]:
    """Yield the lines of a graph for Mermaid."""
    owners, edges, red = _edges(seen)
    yield "graph LR"
    for owner, number in owners.items():
        yield f'  n{number}["{_entities(_name(owner))}"]'
    stuck_edges = []
    for at, (waiter, blocker, label, stuck) in enumerate(edges):
        yield f'  n{waiter} -->|"{_entities(label)}"| n{blocker}'
        if stuck:
            stuck_edges.append(str(at))
    if red:
        yield f"  style {','.join(f'n{number}' for number in sorted(red))} stroke:#c00"
    if stuck_edges:
        yield f"  linkStyle {','.join(stuck_edges)} stroke:#c00,stroke-width:3px"


def _edges(
    seen: Look,
) -> tuple[dict[Owner, int], list[tuple[int, int, str, bool]], set[int]]:
    """Return the owners with their numbers, the waits between them, and who is in a deadlock."""
    owners: dict[Owner, int] = {}
    edges: dict[tuple[int, int, str], bool] = {}
    stuck = {node for deadlock in seen.deadlocks for node in deadlock.involved}
    red: set[int] = set()

    def number(stand: Stand) -> int:
        found = owners.setdefault(stand.place.owner, len(owners))
        if stand.place.path in stuck:
            red.add(found)
        return found

    for stand in seen.stands:
        for other in stand.behind:
            blocker = seen.stands[other]
            edge = number(stand), number(blocker), stand.lock.path
            nodes = {stand.place.path, blocker.place.path}
            edges[edge] = edges.get(edge, False) or nodes <= stuck
    return owners, [(*edge, red_one) for edge, red_one in edges.items()], red


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
