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

**A kept lock** (``keep=``) is granted several times on one znode, with one token. The first grant
is noted like any other. Each one after it has a ``use``, a number of its own on that node; all that
is noted about it says that number, too. The numbers are names: they tell nothing of the order.

These are the events of a checked history, with their fields beside ``at`` and the source. ``node``
names a grant, with ``use`` if it is a later one on a kept node:

- ``begin``, ``end``: of a process; ``crash``: it is about to end itself; ``error`` (what);
- ``ask`` (ask, lock, timeout), then ``answer`` (ask, outcome: none, cancelled, closed) or
  ``grant`` (ask, lock, node, token, session, began). For a lock that is kept, both say ``keep``;
  a shard, which a worker of a pool is given unasked, has no ``ask``;
- ``held`` (node): ``held`` was true, looked at *after* this time; ``unheld``: it was false, looked
  at *before* this time;
- ``write`` (node, store, lock, write, token, value), then ``written`` (write, outcome);
- ``release`` (node, how), then ``released`` (node, outcome: done, lost);
- ``lost`` (node, reason, noticed, lease_end): the callback was called; ``close``: of a client;
- ``kill`` (worker), ``pause`` (worker, until), ``break`` (node), ``fault`` (what, target, seconds);
- ``calm``: the faults are over; ``left`` (lock, names): what stands there at the very end;
  ``contents`` (store, lock, value, writes): what a store says, its log as [write, token, value].
"""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeAlias

from zklock._ground.clock import clock
from zklock.token import FencingToken

Name: TypeAlias = tuple[str, int]
"""What names a grant: its node, and its use of that node, which is 0 for the first one."""


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

    def note(self, kind: str, /, *, at: float | None = None, **data: Any) -> None:
        """Note an event, by default with the present time."""
        at = clock() if at is None else at
        line = json.dumps({"at": at, "kind": kind, **data}, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        """Stop noting events."""
        os.close(self._file)


def load(folder: Path) -> list[HistoryEvent]:
    """Return what all sources of a folder noted, in order of time."""
    events = []
    for path in folder.glob("*.jsonl"):
        *lines, _ = path.read_text().split("\n")  # the last one is torn, or empty
        events += [
            HistoryEvent(data.pop("at"), path.stem, data.pop("kind"), data)
            for data in map(json.loads, lines)
        ]
    return sorted(events, key=lambda event: event.at)


@dataclass(slots=True)
class Holding:
    """One grant, and what its holder noted about it.

    ``held``: the times just before looks that found it held. ``unheld``: the earliest time after a
    look that found it not held. ``broken``: when somebody else deleted its node. ``keep``: for how
    many seconds its node may stay unused; 0: it is not kept.
    """

    node: str
    use: int
    lock: str
    token: FencingToken
    source: str
    began: float
    session: int | None
    keep: float
    held: list[float] = field(default_factory=list)
    unheld: float = math.inf
    releases: list[HistoryEvent] = field(default_factory=list)
    outcome: str | None = None
    losses: list[HistoryEvent] = field(default_factory=list)
    broken: float = math.inf

    @property
    def given_back(self) -> bool:
        """Whether it was released or abandoned, and not lost before."""
        return bool(self.releases) and self.outcome == "done"

    @property
    def released(self) -> float:
        """When ``release()`` found it held; else never, a time in the past."""
        done = self.given_back and self.releases[-1]["how"] == "release"
        return self.releases[-1].at if done else -math.inf

    @property
    def end(self) -> float:
        """The end of its lease interval; a time before ``began`` if it has none."""
        lost = [float(min(loss["noticed"], loss["lease_end"])) for loss in self.losses]
        return min(self.broken, max(self.released, *self.held, *lost, -math.inf))

    @property
    def over(self) -> float:
        """When the holder gave it back, or believed in it for the last time."""
        return max(self.end, *(release.at for release in self.releases), -math.inf)

    @property
    def ended_by(self) -> str:
        """How it ended: ``RELEASED``, ``CRASHED``, or the reason of its loss."""
        if self.losses:
            return str(self.losses[0]["reason"])
        return "RELEASED" if self.given_back else "CRASHED"

    def __str__(self) -> str:
        use = f", use {self.use}" if self.use else ""
        return f"{self.source} {self.node}{use} ({self.ended_by.lower()})"


class Record:
    """A history, sorted by grants, locks and sources.

    ``twice``: grants whose names were met before. ``strays``: events of sources that live, about
    grants that nobody was given.
    """

    def __init__(self, events: Iterable[HistoryEvent]) -> None:
        self.by_kind: dict[str, list[HistoryEvent]] = defaultdict(list)
        for event in sorted(events, key=lambda event: event.at):
            self.by_kind[event.kind].append(event)
        self.dead = {event["worker"] for event in self.by_kind["kill"]}
        self.dead |= {event.source for event in self.by_kind["crash"]}
        self._pauses: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for event in self.by_kind["pause"]:
            self._pauses[event["worker"]].append((event.at, event["until"]))
        self.grants: dict[Name, Holding] = {}
        self.twice: list[HistoryEvent] = []
        self.strays: list[HistoryEvent] = []
        for event in self.by_kind["grant"]:
            if event.grant in self.grants:
                self.twice.append(event)
            self.grants[event.grant] = Holding(
                *event.grant,
                event["lock"],
                FencingToken.parse(event["token"]),
                event.source,
                event["began"],
                event.data.get("session"),
                event.data.get("keep", 0.0),
            )
        for event in self.by_kind["break"]:
            for grant in self.grants.values():
                if grant.node == event["node"]:
                    grant.broken = min(grant.broken, event.at)
        for kind in ("held", "unheld", "release", "released", "lost"):
            for event in self.by_kind[kind]:
                if event.grant in self.grants:
                    self._note(self.grants[event.grant], event)
                elif event.source not in self.dead:
                    self.strays.append(event)

    @staticmethod
    def _note(grant: Holding, event: HistoryEvent) -> None:
        match event.kind:
            case "held":
                grant.held.append(event.at)
            case "unheld":
                grant.unheld = min(grant.unheld, event.at)
            case "release":
                grant.releases.append(event)
            case "released":
                grant.outcome = event["outcome"]
            case "lost":
                grant.losses.append(event)

    def paused(self, source: str, begin: float, end: float) -> float:
        """Return how many seconds of this time a source was paused."""
        spans = self._pauses[source]
        return sum(max(0.0, min(end, until) - max(begin, at)) for at, until in spans)

    def by(self, key: str, *, all_of_them: bool = True) -> dict[str, list[Holding]]:
        """Return the grants by node or lock, in the order of beginning; or those with intervals."""
        found: dict[str, list[Holding]] = defaultdict(list)
        for grant in sorted(self.grants.values(), key=lambda grant: grant.began):
            if all_of_them or grant.end >= grant.began:
                found[getattr(grant, key)].append(grant)
        return found
