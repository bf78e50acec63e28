"""ZooKeeper's own log of transactions, held against what the workers noted.

The servers write down each change in the order in which it is made: which session created which
znode, when, and which transaction deleted it. So the log knows, without zklock, who stood in which
queue. Only servers on local Java are read: `gather` returns nothing for others. The format of the
files: ``zookeeper.jute`` and ``FileTxnLog`` of https://github.com/apache/zookeeper.
"""

from __future__ import annotations

import io
import math
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path

from tests.chaos.checker import Bounds, Rule, Verdict, Violation, check
from tests.chaos.history import History, HistoryEvent, Holding, Record
from tests.chaos.nemesis import KINDS, Track
from zklock._ground.clock import clock
from zklock._recipes import names

MAGIC = b"ZKLG"
HEADER_BYTES = 16
END_OF_ENTRY = b"B"
CREATES = {1, 15, 19, 21}
"""create, create2, createContainer, createTTL: their first fields are the same."""
DELETES = {2, 20}
MULTI = 14
CLOSE_SESSION = -11

SILENCE = 1.0
"""Seconds without a change after which the servers count as silent: they are always asked."""

SLACK = 0.002
"""Seconds by which a time of the log may be off: it is in milliseconds."""

UNUSED = 20.0
"""For how long a znode may stand after its ask was answered, in seconds.

A create whose reply was lost may be carried out a minute late. Its session looks for it again at
ages that grow by a quarter, so within 15 s. The rest is for faults: no server may be in reach.
"""

PATIENCE = 5.5
"""For how long another one may wait for a kept lock beyond the body that runs, in seconds.

A keeper that is not in reach is out after its session timeout and a tick: 2.5 s of a usual run. The
rest is for a busy machine, as in ``Bounds.slack``.
"""

DISTURBS = {kind.name for kind in KINDS if kind.track is Track.CLIENTS and kind.longest}


@dataclass(frozen=True, slots=True)
class Change:
    """A znode came or went, at a time of the server's clock in seconds.

    ``session``: whose transaction it was. ``path`` is ``None`` if that session ended, and all its
    ephemeral nodes with it.
    """

    zxid: int
    at: float
    session: int
    path: str | None
    created: bool = False


def changes(file: Path) -> Iterator[Change]:
    """Yield what a file of the log says; it may end in the middle of an entry."""
    log = io.BytesIO(file.read_bytes())
    if log.read(HEADER_BYTES)[: len(MAGIC)] != MAGIC:
        return  # a server that was killed may leave an empty file
    while len(head := log.read(12)) == 12:
        (length,) = struct.unpack(">8xi", head)
        entry = io.BytesIO(log.read(length))
        if not length or log.read(1) != END_OF_ENTRY:
            return  # the rest is filled up with zeros, or torn
        session, zxid, at, kind = struct.unpack(">q4xqqi", entry.read(32))
        yield from _changed(kind, entry, Change(zxid, at / 1000, session, None))


def _changed(kind: int, body: io.BytesIO, by: Change) -> Iterator[Change]:
    if kind in CREATES or kind in DELETES:
        yield replace(by, path=_data(body).decode(), created=kind in CREATES)
    elif kind == CLOSE_SESSION:
        yield by
    elif kind == MULTI:
        for _ in range(_number(body)):
            part = _number(body)
            yield from _changed(part, io.BytesIO(_data(body)), by)


def _number(body: io.BytesIO) -> int:
    return int.from_bytes(body.read(4), signed=True)


def _data(body: io.BytesIO) -> bytes:
    return body.read(max(0, _number(body)))


def wall_offset() -> float:
    """Return by how much the clock that servers write down is ahead of the clock since boot."""
    return time.time() - clock()


def keep(changes: Sequence[Change], below: tuple[str, ...], history: History) -> None:
    """Note ends of sessions, and what happened below some paths, as ``server``."""
    for it in changes:
        if it.path is None or it.path.startswith(below):
            what = {"zxid": it.zxid, "session": it.session, "path": it.path, "created": it.created}
            history.note("server", at=it.at, **what)


def kept(events: Iterable[HistoryEvent]) -> list[Change]:
    """Return what was noted by `keep`."""
    return [Change(at=event.at, **event.data) for event in events if event.kind == "server"]


def gather(folders: Sequence[Path | None], offset: float) -> list[Change]:
    """Return what most servers have written down, in order, with times of the clock since boot.

    ``folders``: their data folders; nothing is returned if one cannot be read. ``offset``: see
    `wall_offset`. What a majority has not written down has not happened: a leader that dies may
    leave transactions that nobody else has.
    """
    known: Counter[Change] = Counter()
    for folder in folders:
        if folder is None:
            return []
        logs = sorted((folder / "version-2").glob("log.*"))
        known.update(dict.fromkeys(change for log in logs for change in changes(log)).keys())
    happened = [change for change, servers in known.items() if servers * 2 > len(folders)]
    happened.sort(key=lambda change: change.zxid)
    return [replace(change, at=change.at - offset) for change in happened]


@dataclass(slots=True)
class Standing:
    """A znode below a lock: from when to when it was there, by the log.

    ``parent``: the zxid that created the lock's path.
    """

    path: str
    lock: str
    number: int
    session: int
    parent: int
    since: float
    until: float = math.inf


class ServerLog:
    """All znodes that there have ever been below some locks, and the same by queue, in order.

    ``twice``: what the servers made twice, and when: they have forgotten the first one.
    """

    def __init__(self, changes: Iterable[Change]) -> None:
        self.nodes: dict[str, Standing] = {}
        self.twice: list[tuple[float, str]] = []
        self._silences: list[tuple[float, float]] = []
        parents: dict[str, int] = {}
        numbers: dict[tuple[str, int, int], str] = {}
        of_session: dict[int, list[Standing]] = defaultdict(list)
        last = math.inf
        for change in changes:
            if change.at - last > SILENCE:
                self._silences.append((last, change.at))
            last = change.at
            if change.path is not None and change.created:
                parents[change.path] = change.zxid
                lock, _, name = change.path.rpartition("/")
                if lock not in parents or (parsed := names.parse(name)) is None:
                    continue
                if change.path in self.nodes:
                    self.twice.append((change.at, f"{change.path} was created twice"))
                key = lock, parents[lock], parsed.sequence
                if (first := numbers.setdefault(key, change.path)) != change.path:
                    self.twice.append((change.at, f"{change.path} has the number of {first}"))
                self.nodes[change.path] = Standing(
                    change.path, lock, parsed.sequence, change.session, parents[lock], change.at
                )
                of_session[change.session].append(self.nodes[change.path])
                continue
            of_all = change.path is None
            for node in of_session.pop(change.session, ()) if of_all else self._at(change.path):
                node.until = min(node.until, change.at)
        self.queues: dict[tuple[str, int], list[Standing]] = defaultdict(list)
        for node in sorted(self.nodes.values(), key=attrgetter("number")):
            self.queues[node.lock, node.parent].append(node)

    def _at(self, path: str | None) -> list[Standing]:
        return [self.nodes[path]] if path in self.nodes else []

    def silent(self, begin: float, end: float) -> float:
        """Return for how many seconds between these times the servers carried out nothing."""
        return _common(begin, end, self._silences)


def _common(begin: float, end: float, spans: Iterable[tuple[float, float]]) -> float:
    return sum(max(0.0, min(end, to) - max(begin, since)) for since, to in spans)


@dataclass(slots=True)
class Agreement:
    """What a history and the log of the servers say of each other.

    ``violations``: where they disagree.
    """

    violations: list[Violation] = field(default_factory=list)
    nodes: int = 0


def compare(
    events: Iterable[HistoryEvent], log: ServerLog, slack: float = SLACK, patience: float = PATIENCE
) -> Agreement:
    """Hold the grants of a history against the log; ``slack``: by how much its times may be off.

    - The holder's znode was created by its session, and its token is that of the znode.
    - When it was granted, every znode with a lower number had been deleted.
    - When the servers deleted it, its holder believed no more. If an operator deleted it, belief
      ends there, as in the history itself.
    - A znode that was never granted is gone ``UNUSED`` seconds after its ask was answered, or with
      its session. See `_unused` for what is known of that.
    - A kept znode that nobody used goes ``UNUSED`` seconds after its idle time; where others queue,
      as soon as the body that ran is over, and no other body begins before. See `_asked`.
    - In the end there are no znodes, and none had a number that was given before.
    """
    record = Record(events)
    result = Agreement(nodes=len(log.nodes))

    def object_(rule: Rule, at: float, what: str) -> None:
        result.violations.append(Violation(rule, at, f"{what}, by the log of the servers"))

    for at, what in log.twice:
        object_(Rule.TOKENS, at, what)
    cleared = _cleared(log)
    for grant in record.grants.values():
        node = log.nodes.get(grant.node)
        if node is None:
            object_(Rule.TOKENS, grant.began, f"{grant} stood nowhere")
            continue
        early = cleared[grant.node] - grant.began
        # If the lease was over before the holder was told of the grant, there was no belief.
        margin = node.until - grant.end if grant.end >= grant.began else math.inf
        for rule, broken, what in (
            (Rule.TOKENS, grant.session != node.session, f"is of session {node.session:#x}"),
            (Rule.TOKENS, grant.token.epoch != node.parent, f"has no epoch {node.parent:#x}"),
            (Rule.QUEUE, early > slack, f"was granted {early:.4f} s before its turn"),
            (Rule.EXCLUSION, margin < -slack, f"was believed {-margin:.4f} s after its end"),
        ):
            if broken:
                object_(rule, grant.began, f"{grant} {what}")
    unused, idle = _unused(record, log, slack), _idle_for_long(record, log)
    for at, what in (*_asked(record, log, patience), *unused, *idle):
        object_(Rule.SERVICE, at, what)
    for node in log.nodes.values():
        if node.until == math.inf:
            object_(Rule.SERVICE, node.since, f"{node.path} is still there")
    return result


@dataclass(frozen=True, slots=True)
class Decision:
    """What a history says, and what the servers' own log says of it, if that can be read.

    ``forgotten``: how often a witness, or the last look, found that servers had lost what they had
    confirmed. Then the violations may be theirs, and nothing is decided.
    """

    verdict: Verdict
    agreement: Agreement
    forgotten: int = 0

    @property
    def violations(self) -> list[Violation]:
        """Return those of both."""
        return [*self.verdict.violations, *self.agreement.violations]


def decide(
    events: Sequence[HistoryEvent], bounds: Bounds | None = None, patience: float = PATIENCE
) -> Decision:
    """Decide about a history, and hold it against the log that was kept with it."""
    changes = kept(events)
    agreement = compare(events, ServerLog(changes), patience=patience) if changes else Agreement()
    forgotten = sum(event.kind == "forgotten" for event in events)
    return Decision(check(events, bounds), agreement, forgotten)


def _cleared(log: ServerLog) -> dict[str, float]:
    """Return for each znode when the last of those with a lower number was gone."""
    cleared = {}
    for queue in log.queues.values():
        gone = -math.inf
        for node in queue:
            cleared[node.path] = gone
            gone = max(gone, node.until)
    return cleared


def _unused(record: Record, log: ServerLog, slack: float) -> Iterator[tuple[float, str]]:
    """Yield which znodes nobody used for too long, and from when on.

    A process notes an ask before it creates a znode for it. So nobody uses the znode any more when
    all asks of its process for this lock that had begun by then are answered.

    Pauses of the process do not count, and times in which the servers carried out nothing: they had
    no leader. Left out are znodes that were granted; sessions that were granted nothing, for
    nothing says whose they are; and shards, which are had without an ask.

    The asks for a kept lock share their contender: one that still waits uses the znode that was
    created for another, if it had begun by the end of that.
    """
    sources = {grant.session: grant.source for grant in record.grants.values()}
    used = {node for node, _ in record.grants}
    keeping = {(ask.source, ask["lock"]) for ask in record.by_kind["ask"] if ask.data.get("keep")}
    answered = {
        event["ask"]: event.at
        for event in (*record.by_kind["grant"], *record.by_kind["answer"])
        if "ask" in event.data
    }
    spans: dict[tuple[str | None, str], list[tuple[float, float]]] = defaultdict(list)
    for ask in record.by_kind["ask"]:
        spans[ask.source, ask["lock"]].append((ask.at, answered.get(ask["ask"], math.inf)))
    asking = {source for source, _ in spans}
    over = max((event.at for events in record.by_kind.values() for event in events), default=0.0)
    for node in log.nodes.values():
        source = sources.get(node.session)
        if source not in asking or source is None or node.path in used:
            continue
        begin = node.since
        for asked, done in sorted(spans[source, node.lock]):
            if asked <= (begin if (source, node.lock) in keeping else node.since) + slack:
                begin = max(begin, done)
        end = min(node.until, over)
        if end - begin - record.paused(source, begin, end) - log.silent(begin, end) > UNUSED:
            what = f"{source} {node.path} of session {node.session:#x} stood"
            yield begin, f"{what} for {end - begin:.3f} s and nobody used it"


def _idle_for_long(record: Record, log: ServerLog) -> Iterator[tuple[float, str]]:
    """Yield which kept znodes stood unused for more than their time and ``UNUSED`` seconds."""
    for path, grants in record.by("node").items():
        node, last = log.nodes.get(path), grants[-1]
        if node is None or not last.keep or node.until == math.inf:
            continue
        since = max(grant.over for grant in grants)
        quiet = record.paused(last.source, since, node.until) + log.silent(since, node.until)
        stood = node.until - since - quiet
        if stood > max(grant.keep for grant in grants) + UNUSED:
            yield since, f"{last} stood unused for {stood:.3f} s"


def _asked(record: Record, log: ServerLog, patience: float) -> Iterator[tuple[float, str]]:
    """Yield who waited for a kept znode for too long, and since when: one body is owed to them.

    The time until the keeper was told, and that of its requests, count. Its pauses do not, nor
    times in which the servers carried out nothing, nor in which the network of the clients was
    disturbed.
    """
    grants = record.by("node")
    disturbed = [
        (fault.at, fault.at + fault["seconds"])
        for fault in record.by_kind["fault"]
        if fault["what"] in DISTURBS
    ]

    def counted(begin: float, end: float, source: str) -> float:
        quiet = record.paused(source, begin, end) + log.silent(begin, end)
        return max(0.0, end - begin - quiet - _common(begin, end, disturbed))

    for queue in log.queues.values():
        for place, node in enumerate(queue):
            of_node: list[Holding] = grants.get(node.path, [])
            if node.until == math.inf or not of_node or not of_node[-1].keep:
                continue
            for other in queue[place + 1 :]:
                if other.since >= node.until:
                    break
                came = max(other.since, of_node[0].began)
                left = min(node.until, other.until)
                if before := [grant for grant in of_node if grant.began <= left]:
                    last = max(before, key=attrgetter("over"))
                    seconds = counted(max(came, last.over), left, last.source)
                    again = counted(came, before[-1].began, last.source)
                    if max(seconds, again) > patience:
                        what = f"{other.path} waited for {last} for {seconds:.3f} s after its last"
                        yield came, f"{what} body, which began {again:.3f} s after it had come"
