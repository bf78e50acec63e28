"""Histories of locks: what happened, as noted by those who took part.

There is one file of JSON lines for each process. The times are from the clock since boot, which is
the same for all processes of a machine. Each line reaches the kernel in one write. A killed process
loses nothing that it has noted; at most, its last line is torn.

**The lease interval** of a grant is the time in which its holder demonstrably believed in it:

- It begins when the library made the grant (``began``, read inside the library, not later than
  ``acquire`` returned).
- It ends at the last moment for which it is certain that ``held`` was true, or would have been
  true. That is just *before* a look at ``held`` that said yes, or just before a ``release()`` that
  found the grant held. For a lost grant it is the earlier of two moments: the end of its lease, and
  when the loss was noticed. Any look before that moment would have said yes.
- If somebody else deletes the holder's node, the interval ends at that moment. Nothing that the
  holder does can protect it from that; only the fencing token can.

An interval therefore never includes a moment that the holder could dispute, however long it was
paused between a look and its note. A grant has no interval if its lease was over before the holder
was told of the grant.

**A kept lock** (``keep=``) is granted several times on one znode, with one token. Those grants have
their node in common. The first one is noted like any other. Each one after it has a number of its
own on that node, its ``use``, from 1 on; all that is noted about it says that number, too. The
numbers are names: they tell nothing of the order.
"""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeAlias

from zklock._ground.clock import clock
from zklock.token import FencingToken

Name: TypeAlias = tuple[str, int]
"""What names a grant: its node, and its use of that node, which is 0 for the first one."""

CRASHED = "CRASHED"
RELEASED = "RELEASED"


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """Something that happened; ``source`` saw it at ``at`` (seconds since boot)."""

    at: float
    source: str
    kind: str
    data: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    @property
    def grant(self) -> Name:
        """What names the grant that it is about."""
        return self.data["node"], self.data.get("use", 0)


class History:
    """Writes the history of one source. Safe to use from any thread."""

    def __init__(self, folder: Path, source: str) -> None:
        self.source = source
        path = folder / f"{source}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def note(self, kind: str, /, *, at: float | None = None, **data: Any) -> float:
        """Note an event, by default with the present time; return its time."""
        at = clock() if at is None else at
        line = json.dumps({"at": at, "kind": kind, **data}, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")
        return at

    def close(self) -> None:
        """Stop noting events."""
        os.close(self._file)


def load(folder: Path) -> list[HistoryEvent]:
    """Return what all sources of a folder noted, in order of time."""
    events = []
    for path in sorted(folder.glob("*.jsonl")):
        *lines, torn = path.read_text().split("\n")
        del torn  # the text after the last newline
        for line in lines:
            data = json.loads(line)
            events.append(HistoryEvent(data.pop("at"), path.stem, data.pop("kind"), data))
    return sorted(events, key=lambda event: event.at)


@dataclass(slots=True)
class Holding:
    """One grant, and what its holder noted about it.

    ``began``: when the library made it. ``held``: the times just before looks that found it held.
    ``unheld``: the earliest time after a look that found it not held. ``broken``: when somebody
    else deleted its node. ``outcome``: that of its release. ``use``: see the head of this module.
    ``keep``: for how many seconds its node may stay unused; 0: it is not kept.
    """

    node: str
    lock: str
    token: FencingToken
    source: str
    began: float
    held: list[float] = field(default_factory=list)
    unheld: float = math.inf
    released: HistoryEvent | None = None
    outcome: str | None = None
    releases: int = 0
    losses: list[HistoryEvent] = field(default_factory=list)
    broken: float = math.inf
    use: int = 0
    keep: float = 0.0

    @property
    def given_back(self) -> bool:
        """Whether it was released, and not lost before."""
        return self.released is not None and self.outcome == "done"

    @property
    def end(self) -> float:
        """The end of its lease interval; a time before ``began`` if it has none."""
        certain = [*self.held]
        if self.given_back and self.released is not None and self.released["how"] == "release":
            certain.append(self.released.at)
        certain += [min(loss["noticed"], loss["lease_end"]) for loss in self.losses]
        return min(self.broken, max(certain, default=-math.inf))

    @property
    def ended_by(self) -> str:
        """How it ended: ``RELEASED``, ``CRASHED``, or the reason of its loss."""
        if self.losses:
            return str(self.losses[0]["reason"])
        return RELEASED if self.given_back else CRASHED

    def __str__(self) -> str:
        use = f", use {self.use}" if self.use else ""
        return f"{self.source} {self.node}{use} ({self.ended_by.lower()})"


class Record:
    """A history, sorted by grants, locks and sources.

    ``strays`` are events of sources that live, about grants that nobody was given.
    """

    def __init__(self, events: Iterable[HistoryEvent]) -> None:
        self.by_kind: dict[str, list[HistoryEvent]] = defaultdict(list)
        for event in sorted(events, key=lambda event: event.at):
            self.by_kind[event.kind].append(event)
        self.dead = {event["worker"] for event in self.by_kind["kill"]}
        self.dead |= {event.source for event in self.by_kind["crash"]}
        self.pauses: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for event in self.by_kind["pause"]:
            self.pauses[event["worker"]].append((event.at, event["until"]))
        self.grants: dict[Name, Holding] = {}
        self.twice: list[HistoryEvent] = []
        self.strays: list[HistoryEvent] = []
        self._gather()

    def _gather(self) -> None:
        for event in self.by_kind["grant"]:
            if event.grant in self.grants:
                self.twice.append(event)
            node, use = event.grant
            self.grants[event.grant] = Holding(
                node,
                event["lock"],
                FencingToken.parse(event["token"]),
                event.source,
                event["began"],
                use=use,
                keep=event.data.get("keep", 0.0),
            )
        by_node = self.by_node()
        for event in self.by_kind["break"]:
            for broken in by_node.get(event["node"], ()):
                broken.broken = min(broken.broken, event.at)
        take: dict[str, Callable[[Holding, HistoryEvent], None]] = {
            "held": lambda grant, event: grant.held.append(event.at),
            "unheld": lambda grant, event: setattr(grant, "unheld", min(grant.unheld, event.at)),
            "release": _released,
            "released": lambda grant, event: setattr(grant, "outcome", event["outcome"]),
            "lost": lambda grant, event: grant.losses.append(event),
        }
        for kind, note in take.items():
            for event in self.by_kind[kind]:
                if grant := self.grants.get(event.grant):
                    note(grant, event)
                elif event.source not in self.dead:
                    self.strays.append(event)

    def paused(self, source: str, begin: float, end: float) -> float:
        """Return how many seconds of this time a source was paused."""
        spans = self.pauses[source]
        return sum(max(0.0, min(end, until) - max(begin, at)) for at, until in spans)

    def of(self, lock: str) -> list[Holding]:
        """Return all grants of a lock, in the order in which they began."""
        grants = [grant for grant in self.grants.values() if grant.lock == lock]
        return sorted(grants, key=lambda grant: grant.began)

    def by_node(self) -> dict[str, list[Holding]]:
        """Return, for each node, the grants on it, in the order in which they began."""
        nodes: dict[str, list[Holding]] = defaultdict(list)
        for grant in sorted(self.grants.values(), key=lambda grant: grant.began):
            nodes[grant.node].append(grant)
        return dict(nodes)

    def locks(self) -> list[list[Holding]]:
        """Return, for each lock, its grants that have an interval, in the order of beginning."""
        by_lock: dict[str, list[Holding]] = defaultdict(list)
        for grant in self.grants.values():
            if grant.end >= grant.began:
                by_lock[grant.lock].append(grant)
        return [sorted(grants, key=lambda grant: grant.began) for grants in by_lock.values()]


def _released(grant: Holding, event: HistoryEvent) -> None:
    grant.released = event
    grant.releases += 1
