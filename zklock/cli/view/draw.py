"""Shows a graph of who waits for whom: as text, for Graphviz, for Mermaid, for programs. Pure."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from zklock._ground.addresses import session_text
from zklock.cli.view.model import Place
from zklock.cli.view.text import plain, short
from zklock.cli.view.waits import Deadlock, Graph, Stand

Owner: TypeAlias = tuple[int | None, str]
_Row: TypeAlias = tuple[str, str, Owner | None, str]  # indent, mark, who waits there, line


def remedy(deadlock: Deadlock, options: str = "") -> str | None:
    """Return the command that opens the circle; ``options`` are to stand before the path."""
    if deadlock.breaks is None:
        return None
    lock, place = deadlock.breaks
    token = place.contender.token
    which = "--oldest" if token is None else str(token)
    return f"zklock break {options}{shlex.quote(lock.path)} {which}"


def to_json(graph: Graph, options: str = "") -> dict[str, Any]:
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


def _who(place: Place) -> dict[str, Any]:
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
                waits.add(_owner(stand))
        for stand in graph.stands:
            if stand.holds and stand.lock.path in self._queues:
                self._held[_owner(stand)].append(stand)
        self._roots = [owner for owner in self._held if owner not in waits]
        self._roots += [owner for owner in self._held if owner in waits]
        self._over: set[Owner] = set()
        self._headless = [
            queue for path, queue in self._queues.items()
            if not any(stand.lock.path == path for held in self._held.values() for stand in held)
        ]  # fmt: skip

    def draw(self) -> Iterator[str]:
        """Yield the lines."""
        for owner in self._roots:
            if owner not in self._over:
                self._over.add(owner)
                yield _name(owner)
                yield from self._locks(owner)
        for queue in self._headless:
            yield f"{plain(queue[0].lock.path)}  its holder is not known"
            yield from self._below([(self._waiter(stand), _owner(stand)) for stand in queue])

    def _locks(self, owner: Owner) -> Iterator[str]:
        """Yield the lines below an owner. Without recursion: chains may be long."""
        work: list[_Row] = []
        self._push_locks(work, "", owner)
        while work:
            indent, mark, who, line = work.pop()
            yield f"{indent}{mark}{line}"
            if who is not None and who not in self._over and who in self._held:
                self._over.add(who)
                further = self._lines.gap if mark == self._lines.end else self._lines.bar
                self._push_locks(work, f"{indent}{further}", who)

    def _push_locks(self, work: list[_Row], indent: str, owner: Owner) -> None:
        lines = self._lines
        rows: list[_Row] = []
        locks = list({stand.lock.path: stand for stand in self._held[owner]}.values())
        for at, stand in enumerate(locks):
            last = at == len(locks) - 1
            path = stand.lock.path
            rows.append((indent, lines.end if last else lines.tee, None, self._held_line(stand)))
            inner = f"{indent}{lines.gap if last else lines.bar}"
            if path in self._shown:
                rows.append((inner, lines.end, None, "(its queue stands above)"))
                continue
            self._shown.add(path)
            queue = self._queues[path]
            for number, waiter in enumerate(queue):
                mark = lines.end if number == len(queue) - 1 else lines.tee
                rows.append((inner, mark, _owner(waiter), self._waiter(waiter)))
        work += reversed(rows)

    def _below(self, rows: list[tuple[str, Owner]]) -> Iterator[str]:
        for at, (line, _) in enumerate(rows):
            yield f"{self._lines.end if at == len(rows) - 1 else self._lines.tee}{line}"

    def _held_line(self, stand: Stand) -> str:
        return f"{plain(stand.lock.path)}  held {short(stand.place.age)}"

    def _waiter(self, stand: Stand) -> str:
        more = (
            "  (see above)" if _owner(stand) in self._over and self._held.get(_owner(stand)) else ""
        )
        return f"{_name(_owner(stand))}  waits {short(stand.place.age)}{more}"


def text(graph: Graph, path: str, lines: Lines = UNICODE, options: str = "") -> Iterator[str]:
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


def _told(deadlock: Deadlock, options: str) -> Iterator[str]:
    sure = "certain" if deadlock.certain else "possible"
    yield f"DEADLOCK ({sure}), {len(deadlock.involved)} contenders:"
    for link in deadlock.chain:
        waiter, blocker = (_name(_owner_of(place)) for place in (link.waiter, link.blocker))
        does = "holds it" if link.blocker.contender.holds else "waits before it"
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
        found = owners.setdefault(_owner(stand), len(owners))
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


def _owner(stand: Stand) -> Owner:
    return _owner_of(stand.place)


def _owner_of(place: Place) -> Owner:
    return place.contender.session_id, place.contender.identity


def _name(owner: Owner) -> str:
    session, identity = owner
    if identity:
        return plain(identity)
    return "(unnamed)" if session is None else f"(unnamed, session {session_text(session)})"
