"""``zklock graph``: who waits for whom, and deadlocks."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from zklock._ground.addresses import session_text
from zklock.cli import connection, settings
from zklock.cli.saying import say_limits, say_missing
from zklock.cli.status import Status
from zklock.cli.view import waits
from zklock.cli.view.live import confirmed
from zklock.cli.view.model import Owner, QueuePlace
from zklock.cli.view.reader import Reader
from zklock.cli.view.text import draws, json_of, plain, short
from zklock.cli.view.waits import Deadlock, Graph, Stand

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
        print(json_of(path=options.root, **to_json(found, hosts)))
    elif options.dot or options.mermaid:
        print(*(dot(found) if options.dot else mermaid(found)), sep="\n")
    else:
        lines = UNICODE if draws(sys.stdout.encoding) else ASCII
        print(*text(found, options.root, lines, hosts), sep="\n")
    return verdict(found)


def verdict(found: Graph) -> int:
    """Return the exit status: 2 for a certain deadlock, 1 for a possible one."""
    if any(deadlock.certain for deadlock in found.deadlocks):
        return Status.CRITICAL
    return Status.FAILED if found.deadlocks else Status.OK


_T = TypeVar("_T")
_Row: TypeAlias = tuple[str, str, Owner | None, str]
"""What stands before the line, and before the lines below it; who waits there; the line."""


def remedy(deadlock: Deadlock, options: Sequence[str] = ()) -> str | None:
    """Return the command that opens the circle; ``options`` are to stand before the path."""
    if deadlock.breaks is None:
        return None
    lock, place = deadlock.breaks
    token = place.contender.token
    which = "--oldest" if token is None else str(token)
    return " ".join(["zklock break", *options, shlex.quote(lock.path), which])


def to_json(graph: Graph, options: Sequence[str] = ()) -> dict[str, Any]:
    """Return the graph for ``json.dumps``: contenders, what each waits for, deadlocks."""
    nodes = [stand.place.contender.path for stand in graph.stands]
    return {
        "contenders": [
            {"lock": stand.lock.path, **stand.place.to_json()} for stand in graph.stands
        ],
        "waits": [
            {
                "node": nodes[at],
                "lock": stand.lock.path,
                "behind": [nodes[other] for other in stand.behind],
                "until_gone": stand.count,
            }
            for at, stand in enumerate(graph.stands)
            if not stand.holds
        ],
        "deadlocks": [
            {
                "certain": deadlock.certain,
                "chain": [
                    {
                        "waiter": _who(link.waiter),
                        "lock": link.lock.path,
                        "blocker": _who(link.blocker),
                    }
                    for link in deadlock.chain
                ],
                "nodes": list(deadlock.involved),
                "command": remedy(deadlock, options),
            }
            for deadlock in graph.deadlocks
        ],
    }


def _who(place: QueuePlace) -> dict[str, Any]:
    it = place.contender
    return {
        "identity": it.identity,
        "session": place.session,
        "node": it.path,
        "holds": it.holds,
    }


@dataclass(frozen=True, slots=True)
class Lines:
    """What a tree is drawn with."""

    tee: str = "├─ "
    end: str = "└─ "
    bar: str = "│  "
    gap: str = "   "


UNICODE = Lines()
ASCII = Lines("|- ", "`- ", "|  ", "   ")


class _Tree:
    """Owners that others wait for; below each its locks, below each lock who waits for it."""

    def __init__(self, graph: Graph, lines: Lines) -> None:
        self._lines = lines
        self._held: dict[Owner, list[Stand]] = defaultdict(list)
        self._shown: set[str] = set()
        self._queues: dict[str, list[Stand]] = defaultdict(list)
        waits: set[Owner] = set()
        for stand in graph.stands:
            if not stand.holds:
                self._queues[stand.lock.path].append(stand)
                waits.add(stand.place.owner)
        for stand in graph.stands:
            if stand.holds and stand.lock.path in self._queues:
                self._held[stand.place.owner].append(stand)
        self._roots = sorted(self._held, key=waits.__contains__)  # first those that do not wait
        self._over: set[Owner] = set()
        known = {stand.lock.path for held in self._held.values() for stand in held}
        self._headless = [queue for path, queue in self._queues.items() if path not in known]

    def draw(self) -> Iterator[str]:
        for owner in self._roots:
            if owner not in self._over:
                self._over.add(owner)
                yield _name(owner)
                yield from self._locks(owner)
        for queue in self._headless:
            yield f"{plain(queue[0].lock.path)}  its holder is not known"
            for mark, _, stand in self._marked(queue):
                yield f"{mark}{self._waiter(stand)}"

    def _locks(self, owner: Owner) -> Iterator[str]:
        """Yield the lines below an owner. Without recursion: chains may be long."""
        work = self._rows("", owner)
        while work:
            before, after, who, line = work.pop()
            yield f"{before}{line}"
            if who is not None and who not in self._over and who in self._held:
                self._over.add(who)
                work += self._rows(after, who)

    def _rows(self, indent: str, owner: Owner) -> list[_Row]:
        """Return the rows of what an owner holds, and of the queues there; the last one first."""
        rows: list[_Row] = []
        held = {stand.lock.path: stand for stand in self._held[owner]}
        for mark, gap, (path, stand) in self._marked(list(held.items())):
            below = f"{indent}{gap}"
            line = f"{plain(path)}  held {short(stand.place.age)}"
            rows.append((f"{indent}{mark}", below, None, line))
            if path in self._shown:
                rows.append((f"{below}{self._lines.end}", "", None, "(its queue stands above)"))
                continue
            self._shown.add(path)
            for inner, further, waiter in self._marked(self._queues[path]):
                line = self._waiter(waiter)
                rows.append((f"{below}{inner}", f"{below}{further}", waiter.place.owner, line))
        return rows[::-1]

    def _marked(self, items: Sequence[_T]) -> Iterator[tuple[str, str, _T]]:
        """Yield each with what stands before its line, and before the lines below it."""
        for at, item in enumerate(items, 1):
            last = at == len(items)
            lines = self._lines
            yield lines.end if last else lines.tee, lines.gap if last else lines.bar, item

    def _waiter(self, stand: Stand) -> str:
        more = "  (see above)" if stand.place.owner in self._over else ""
        return f"{_name(stand.place.owner)}  waits {short(stand.place.age)}{more}"


def text(
    graph: Graph, path: str, lines: Lines = UNICODE, options: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the lines for a reader: the trees, then the deadlocks."""
    yield from _Tree(graph, lines).draw()
    waiting = sum(not stand.holds for stand in graph.stands)
    for deadlock in graph.deadlocks:
        yield ""
        yield from _told(deadlock, options)
    if not waiting:
        yield f"nobody waits for a lock at or below {plain(path)}"
    elif not graph.deadlocks:
        yield f"no deadlock: {waiting} {'waits' if waiting == 1 else 'wait'}"


def _told(deadlock: Deadlock, options: Sequence[str]) -> Iterator[str]:
    sure = "certain" if deadlock.certain else "possible"
    yield f"DEADLOCK ({sure}), {len(deadlock.involved)} contenders:"
    for link in deadlock.chain:
        waiter, blocker = (_name(place.owner) for place in (link.waiter, link.blocker))
        does = "waits before it" if not link.blocker.contender.holds else f"{link.blocker.state} it"
        yield f"  {waiter} waits for {plain(link.lock.path)}: {blocker} {does}"
    if not deadlock.certain:
        yield (
            "  Their identities name processes, not threads: other threads of these processes may "
            "still go on."
        )
    command = remedy(deadlock, options)
    if command is not None:
        yield f"  This would break it (the holder goes on without the lock): {plain(command)}"


def dot(graph: Graph) -> Iterator[str]:
    """Yield the lines of a graph for Graphviz."""
    owners, edges, red = _edges(graph)
    yield "digraph waits {"
    yield "  rankdir=LR; node [shape=box];"
    for owner, number in owners.items():
        mark = ", color=red" if number in red else ""
        yield f"  n{number} [label={_quoted(_name(owner))}{mark}];"
    for waiter, blocker, label, stuck in edges:
        mark = ", color=red, penwidth=2" if stuck else ""
        yield f"  n{waiter} -> n{blocker} [label={_quoted(label)}{mark}];"
    yield "}"


def mermaid(graph: Graph) -> Iterator[str]:
    """Yield the lines of a graph for Mermaid."""
    owners, edges, red = _edges(graph)
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
    graph: Graph,
) -> tuple[dict[Owner, int], list[tuple[int, int, str, bool]], set[int]]:
    """Return the owners with their numbers, the waits between them, and who is in a deadlock."""
    owners: dict[Owner, int] = {}
    edges: dict[tuple[int, int, str], bool] = {}
    stuck = {node for deadlock in graph.deadlocks for node in deadlock.involved}
    red: set[int] = set()

    def number(stand: Stand) -> int:
        found = owners.setdefault(stand.place.owner, len(owners))
        if stand.place.contender.path in stuck:
            red.add(found)
        return found

    for stand in graph.stands:
        for other in stand.behind:
            blocker = graph.stands[other]
            edge = number(stand), number(blocker), stand.lock.path
            nodes = {stand.place.contender.path, blocker.place.contender.path}
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
