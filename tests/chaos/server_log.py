"""ZooKeeper's own log of transactions, held against what the workers noted.

The servers write down each change in the order in which it is made: which session created which
znode, when, and which transaction deleted it. So the log knows, without zklock, who stood in which
queue. `compare` holds the grants of a history against it: was the holder's znode there, was
it the first, was it still there at the last moment of belief? And did any znode stand for long that
nobody used?

Only servers on local Java are read: `gather` returns nothing for others. The format of the files:
https://github.com/apache/zookeeper/blob/master/zookeeper-jute/src/main/resources/zookeeper.jute
and ``FileTxnLog`` of the same repository.
"""

from __future__ import annotations

import io
import math
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
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


class _Fields:
    """Reads the fields of a record, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def number(self, kind: str) -> int:
        """Read an ``i``, 4 bytes, or a ``q``, 8 bytes."""
        value: int
        (value,) = struct.unpack(f">{kind}", self._data.read(struct.calcsize(f">{kind}")))
        return value

    def data(self) -> bytes:
        """Read a length, and so many bytes."""
        return self._data.read(max(0, self.number("i")))


def changes(file: Path) -> Iterator[Change]:
    """Yield what a file of the log says; it may end in the middle of an entry."""
    log = io.BytesIO(file.read_bytes())
    if log.read(HEADER_BYTES)[: len(MAGIC)] != MAGIC:
        return  # a server that was killed may leave an empty file
    while len(head := log.read(12)) == 12:
        (length,) = struct.unpack(">8xi", head)
        entry = log.read(length)
        if not length or log.read(1) != END_OF_ENTRY:
            return  # the rest is filled up with zeros, or torn
        fields = _Fields(entry)
        session, _, zxid = fields.number("q"), fields.number("i"), fields.number("q")
        at, kind = fields.number("q") / 1000, fields.number("i")
        yield from _changed(kind, fields, Change(zxid, at, session, None))


def _changed(kind: int, fields: _Fields, by: Change) -> Iterator[Change]:
    if kind in CREATES or kind in DELETES:
        yield replace(by, path=fields.data().decode(), created=kind in CREATES)
    elif kind == CLOSE_SESSION:
        yield by
    elif kind == MULTI:
        for _ in range(fields.number("i")):
            part = fields.number("i")
            yield from _changed(part, _Fields(fields.data()), by)


def wall_offset() -> float:
    """Return by how much the clock that servers write down is ahead of the clock since boot."""
    return time.time() - clock()


def keep(changes: Sequence[Change], below: tuple[str, ...], history: History) -> None:
    """Note ends of sessions, and what happened below some paths.

    As ``server`` (zxid, session, path, created).
    """
    for change in changes:
        if change.path is not None and not change.path.startswith(below):
            continue
        history.note(
            "server",
            at=change.at,
            zxid=change.zxid,
            session=change.session,
            path=change.path,
            created=change.created,
        )


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
    """A znode below a lock: from when to when it was there, by the log."""

    path: str
    session: int
    parent: int
    """The zxid that created the lock's path."""
    since: float
    until: float = math.inf
    expired: bool = False
    """Whether it was deleted because its session ended."""


class ServerLog:
    """All znodes that there have ever been below some locks."""

    def __init__(self, changes: Iterable[Change]) -> None:
        self.nodes: dict[str, Standing] = {}
        self._silences: list[tuple[float, float]] = []
        self.created_twice: list[str] = []
        self.given_twice: list[tuple[Standing, Standing]] = []
        """Two znodes below one path that have the same number: the servers forgot the first."""
        parents: dict[str, int] = {}
        numbers: dict[tuple[str, int, str], Standing] = {}
        of_session: dict[int, list[Standing]] = defaultdict(list)
        last = math.inf
        for change in changes:
            if change.at - last > SILENCE:
                self._silences.append((last, change.at))
            last = change.at
            if change.path is None:
                for node in of_session.pop(change.session, ()):
                    self._delete(node, change)
            elif not change.created:
                if gone := self.nodes.get(change.path):
                    self._delete(gone, change)
            else:
                parents[change.path] = change.zxid
                lock, _, name = change.path.rpartition("/")
                if lock in parents and names.parse(name) is not None:
                    if change.path in self.nodes:
                        self.created_twice.append(change.path)
                    node = Standing(change.path, change.session, parents[lock], change.at)
                    number = lock, node.parent, name[-10:]
                    first = numbers.setdefault(number, node)
                    if first.path != node.path:
                        self.given_twice.append((first, node))
                    self.nodes[change.path] = node
                    of_session[change.session].append(node)

    def silent(self, begin: float, end: float) -> float:
        """Return for how many seconds between these times the servers carried out nothing."""
        return sum(max(0.0, min(end, to) - max(begin, since)) for since, to in self._silences)

    @staticmethod
    def _delete(node: Standing, change: Change) -> None:
        if node.until == math.inf:
            node.until, node.expired = change.at, change.path is None


@dataclass(frozen=True, slots=True)
class Waited:
    """Another contender came and waited for a kept lock; in seconds.

    ``seconds``: beyond the last body of the keeper. ``again``: until that began, if it did so after
    the other one had come. ``ended_by``: how that body ended.
    """

    keeper: str
    other: str
    came: float
    seconds: float
    again: float
    ended_by: str

    def __str__(self) -> str:
        return (
            f"{self.other} waited for {self.keeper} for {self.seconds:.3f} s after its last body, "
            f"which began {self.again:.3f} s after it had come"
        )


@dataclass(slots=True)
class Agreement:
    """What a history and the log of the servers say of each other.

    ``violations``: where they disagree. ``margins``: for each way in which a grant ended, the least
    time from the last moment of belief to the moment when the servers deleted its znode: by itself,
    or since they ended its session. ``asked``: for each way in which the last grant on a kept node
    ended, how long others waited for its deletion.
    """

    violations: list[Violation] = field(default_factory=list)
    nodes: int = 0
    margins: dict[str, float] = field(default_factory=dict)
    asked: dict[str, list[Waited]] = field(default_factory=dict)


def compare(
    events: Iterable[HistoryEvent], log: ServerLog, slack: float = SLACK, patience: float = PATIENCE
) -> Agreement:
    """Hold the grants of a history against the log; ``slack``: by how much its times may be off.

    ``patience``: see `_asked`.

    - The holder's znode was created by its session, and its token is that of the znode.
    - When it was granted, every znode with a lower number had been deleted.
    - When the servers deleted it, its holder believed no more. If an operator deleted it, belief
      ends there, as in the history itself.
    - A znode that was never granted is gone ``UNUSED`` seconds after its ask was answered, or with
      its session. See `_unused` for what is known of that.
    - A kept znode that nobody used goes ``UNUSED`` seconds after its idle time; where others queue,
      as soon as the body that ran is over, and no other body begins before. See `_asked`.
    - In the end there are no znodes.

    If the servers give a number twice, they have lost transactions that most of them had written
    down. Then they have broken the other promises, and not their clients.
    """
    record = Record(events)
    result = Agreement(nodes=len(log.nodes))

    def object_(rule: Rule, at: float, what: str) -> None:
        result.violations.append(Violation(rule, at, f"{what}, by the log of the servers"))

    for at, what in _twice(log):
        object_(Rule.TOKENS, at, what)
    cleared = _cleared(log)
    sessions = {event.grant: event["session"] for event in record.by_kind["grant"]}
    for grant in record.grants.values():
        node = log.nodes.get(grant.node)
        if node is None:
            object_(Rule.TOKENS, grant.began, f"{grant} stood nowhere")
            continue
        if sessions[grant.node, grant.use] != node.session:
            object_(Rule.TOKENS, grant.began, f"{grant} is of session {node.session:#x}")
        if grant.token.epoch != node.parent:
            object_(Rule.TOKENS, grant.began, f"{grant} has no epoch {node.parent:#x}")
        if cleared[grant.node] > grant.began + slack:
            late = cleared[grant.node] - grant.began
            object_(Rule.QUEUE, grant.began, f"{grant} was granted {late:.4f} s before its turn")
        if grant.end < grant.began:
            continue  # its lease was over before the holder was told of the grant
        margin = node.until - grant.end
        if margin < -slack:
            object_(
                Rule.EXCLUSION, grant.end, f"{grant} was believed {-margin:.4f} s after its end"
            )
        if grant.broken == math.inf:
            how = f"{grant.ended_by}, the session ended" if node.expired else grant.ended_by
            result.margins[how] = min(result.margins.get(how, math.inf), margin)
    for waited in _asked(record, log):
        result.asked.setdefault(waited.ended_by, []).append(waited)
        if max(waited.seconds, waited.again) > patience:
            object_(Rule.SERVICE, waited.came, str(waited))
    for at, what in _left(record, log, slack):
        object_(Rule.SERVICE, at, what)
    return result


@dataclass(frozen=True, slots=True)
class Decision:
    """What a history says, and what the servers' own log says of it, if that can be read.

    ``forgotten``: how often a witness, or the last look, found that servers had lost what they had
    confirmed. Then the violations may be theirs, and nothing is decided. ``strangers``: the longest
    wait of each kind, in seconds; ``waits``: that of the workers, by the folder of the locks.
    ``versions``: those of the servers.
    """

    verdict: Verdict
    agreement: Agreement
    forgotten: int = 0
    strangers: Mapping[str, float] = field(default_factory=dict)
    waits: Mapping[str, float] = field(default_factory=dict)
    versions: Sequence[str] = ()

    @property
    def violations(self) -> list[Violation]:
        """Return those of both."""
        return [*self.verdict.violations, *self.agreement.violations]


def decide(
    events: Sequence[HistoryEvent], bounds: Bounds | None = None, patience: float = PATIENCE
) -> Decision:
    """Decide about a history, and hold it against the log that was kept with it."""
    changes = kept(events)
    log = ServerLog(changes)
    agreement = compare(events, log, patience=patience) if changes else Agreement()
    forgotten = sum(event.kind == "forgotten" for event in events)
    asked = {event["ask"]: event.at for event in events if event.kind == "ask"}
    strangers, waits = defaultdict[str, float](float), defaultdict[str, float](float)
    versions: list[str] = []
    for event in events:
        if event.kind == "stranger":
            strangers[event["who"]] = max(strangers[event["who"]], event["waited"])
        elif event.kind == "grant" and "ask" in event.data:
            folder = event["lock"].rpartition("/")[0]
            waits[folder] = max(waits[folder], event.at - asked[event["ask"]])
        elif event.kind == "versions":
            versions = sorted({*event["before"], *event["after"]})
    return Decision(check(events, bounds), agreement, forgotten, strangers, waits, versions)


def _twice(log: ServerLog) -> Iterator[tuple[float, str]]:
    """Yield what the servers have made twice, and when."""
    if log.given_twice:
        first, second = log.given_twice[0]
        count = f"{len(log.given_twice)} numbers were given twice"
        what = f"{count}: the servers have forgotten {first.path} when they make {second.path}"
        yield second.since, what
    for path in log.created_twice:
        yield log.nodes[path].since, f"{path} was created twice"


def _left(record: Record, log: ServerLog, slack: float) -> Iterator[tuple[float, str]]:
    """Yield which znodes stood for too long, and from when on."""
    for node, source, begin, end in _unused(record, log, slack):
        what = f"{source} {node.path} of session {node.session:#x} stood for {end - begin:.3f} s"
        yield begin, f"{what} and nobody used it"
    for idle, since, grant in _idle_for_long(record, log):
        yield since, f"{grant} stood unused for {idle:.3f} s"
    for node in log.nodes.values():
        if node.until == math.inf:
            yield node.since, f"{node.path} is still there"


def _unused(
    record: Record, log: ServerLog, slack: float
) -> Iterator[tuple[Standing, str, float, float]]:
    """Yield the znodes that nobody used for too long: whose they were, from when to when.

    A process notes an ask before it creates a znode for it. So nobody uses the znode any more when
    all asks of its process for this lock that had begun by then are answered.

    Pauses of the process do not count, and times in which the servers carried out nothing: they had
    no leader. Left out are znodes that were granted; sessions that were granted nothing, for
    nothing says whose they are; and shards, which are had without an ask.

    The asks for a kept lock share their contender: one that still waits uses the znode that was
    created for another, if it had begun by the end of that.
    """
    sources = {event["session"]: event.source for event in record.by_kind["grant"]}
    used = {node for node, _ in record.grants}
    keeping = {(ask.source, ask["lock"]) for ask in record.by_kind["ask"] if ask.data.get("keep")}
    answered = {
        event["ask"]: event.at
        for event in (*record.by_kind["grant"], *record.by_kind["answer"])
        if "ask" in event.data
    }
    spans: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for ask in record.by_kind["ask"]:
        span = ask.at, answered.get(ask["ask"], math.inf)
        spans[ask.source, ask["lock"]].append(span)
    asking = {source for source, _ in spans}
    over = max((event.at for events in record.by_kind.values() for event in events), default=0.0)
    for node in log.nodes.values():
        source = sources.get(node.session)
        if source not in asking or node.path in used:
            continue
        key = source, node.path.rpartition("/")[0]
        begin = node.since
        for asked, done in sorted(spans[key]):
            if asked <= (begin if key in keeping else node.since) + slack:
                begin = max(begin, done)
        end = min(node.until, over)
        quiet = record.paused(source, begin, end) + log.silent(begin, end)
        if end - begin - quiet > UNUSED:
            yield node, source, begin, end


def _queues(log: ServerLog) -> list[list[Standing]]:
    """Return the znodes of each queue in the order of their numbers."""
    queues: dict[tuple[str, int], list[tuple[int, Standing]]] = defaultdict(list)
    for node in log.nodes.values():
        lock, _, name = node.path.rpartition("/")
        parsed = names.parse(name)
        assert parsed is not None
        queues[lock, node.parent].append((parsed.sequence, node))
    return [[node for _, node in sorted(each, key=itemgetter(0))] for each in queues.values()]


def _cleared(log: ServerLog) -> dict[str, float]:
    """Return for each znode when the last of those with a lower number was gone."""
    cleared = {}
    for queue in _queues(log):
        gone = -math.inf
        for node in queue:
            cleared[node.path] = gone
            gone = max(gone, node.until)
    return cleared


def _over(grant: Holding) -> float:
    """Return when the holder gave it back, or believed in it for the last time."""
    return grant.end if grant.released is None else max(grant.end, grant.released.at)


def _idle_for_long(record: Record, log: ServerLog) -> Iterator[tuple[float, float, Holding]]:
    """Yield the kept znodes that stood unused for more than their time and ``UNUSED`` seconds.

    For how long, from when on, and the last grant on it.
    """
    for path, grants in record.by_node().items():
        node = log.nodes.get(path)
        if node is None or not grants[-1].keep or node.until == math.inf:
            continue
        since = max(map(_over, grants))
        quiet = record.paused(grants[-1].source, since, node.until)
        stood = node.until - since - quiet - log.silent(since, node.until)
        if stood > max(grant.keep for grant in grants) + UNUSED:
            yield stood, since, grants[-1]


def _asked(record: Record, log: ServerLog) -> Iterator[Waited]:
    """Yield how long others waited for each kept znode: the keeper owes them one body.

    The time until the keeper was told, and that of its requests, count. Its pauses do not, nor
    times in which the servers carried out nothing, nor in which the network of the clients was
    disturbed.
    """
    kept = {node: grants for node, grants in record.by_node().items() if grants[-1].keep}
    disturbed: list[tuple[float, float]] = [
        (fault.at, fault.at + fault["seconds"])
        for fault in record.by_kind["fault"]
        if fault["what"] in DISTURBS
    ]
    for queue in _queues(log):
        for place, node in enumerate(queue):
            grants = kept.get(node.path)
            if grants is None or node.until == math.inf:
                continue
            source = grants[-1].source

            def counted(begin: float, end: float, source: str = source) -> float:
                quiet = record.paused(source, begin, end) + log.silent(begin, end)
                quiet += sum(max(0.0, min(end, to) - max(begin, at)) for at, to in disturbed)
                return max(0.0, end - begin - quiet)

            for other in queue[place + 1 :]:
                if other.since >= node.until:
                    break
                came, left = max(other.since, grants[0].began), min(node.until, other.until)
                before = [grant for grant in grants if grant.began <= left]
                if not before:
                    continue
                last = max(before, key=_over)
                yield Waited(
                    str(last),
                    other.path,
                    came,
                    counted(max(came, _over(last)), left),
                    counted(came, before[-1].began),
                    last.ended_by,
                )
