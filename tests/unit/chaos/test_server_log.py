"""The servers' log of transactions: read as they write it, and held against histories."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.checker import Rule
from tests.chaos.history import History, HistoryEvent, load
from tests.chaos.server_log import (
    UNUSED,
    Change,
    ServerLog,
    changes,
    compare,
    decide,
    gather,
    keep,
    kept,
)
from zklock import FencingToken

LOCK = "/locks/a"
CREATE, DELETE, SET, CREATE2, MULTI, CREATE_SESSION, CLOSE = 1, 2, 5, 15, 14, -10, -11


def text(value: str) -> bytes:
    return struct.pack(">i", len(value)) + value.encode()


def creation(path: str) -> bytes:
    acl = struct.pack(">ii", 1, 31) + text("world") + text("anyone")
    return text(path) + text("data") + acl + b"\x01" + struct.pack(">i", 7)


def entry(zxid: int, kind: int, body: bytes, *, session: int = 1, at: float = 0.0) -> bytes:
    """Return a transaction as it is written, with the digest that comes after it since 3.6."""
    head = struct.pack(">qiqqi", session, 1, zxid, int(at * 1000), kind)
    record = head + body + struct.pack(">iq", 2, 99)
    return struct.pack(">qi", 12345, len(record)) + record + b"B"


def multi(*parts: tuple[int, bytes]) -> bytes:
    packed = [struct.pack(">ii", kind, len(body)) + body for kind, body in parts]
    return struct.pack(">i", len(parts)) + b"".join(packed)


def written(folder: Path, *entries: bytes, name: str = "log.1", end: bytes = b"\0" * 64) -> Path:
    file = folder / "version-2" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"ZKLG" + struct.pack(">iq", 2, 0) + b"".join(entries) + end)
    return file


def test_what_comes_and_goes_is_read(tmp_path: Path) -> None:
    parts = multi((CREATE, creation("/b")), (13, text("/a") + b"\0" * 4), (DELETE, text("/a")))
    file = written(
        tmp_path,
        entry(1, CREATE_SESSION, struct.pack(">i", 4000)),
        entry(2, CREATE, creation(LOCK), at=10.5),
        entry(3, CREATE2, creation(f"{LOCK}/x"), session=-5, at=11.25),
        entry(4, SET, text(LOCK) + text("other") + struct.pack(">i", 1)),
        entry(5, DELETE, text(f"{LOCK}/x"), at=12),
        entry(6, CLOSE, b"", session=-5, at=13),
        entry(8, MULTI, parts),
    )
    assert list(changes(file)) == [
        Change(2, 10.5, 1, LOCK, created=True),
        Change(3, 11.25, -5, f"{LOCK}/x", created=True),
        Change(5, 12, 1, f"{LOCK}/x"),
        Change(6, 13, -5, None),
        Change(8, 0, 1, "/b", created=True),
        Change(8, 0, 1, "/a"),
    ]


@pytest.mark.parametrize("cut", [1, 20, 59])
def test_a_torn_file_is_read_to_its_last_whole_entry(tmp_path: Path, cut: int) -> None:
    whole = entry(1, DELETE, text("/a"))
    file = written(tmp_path, whole, entry(2, DELETE, text("/b")), end=b"")
    file.write_bytes(file.read_bytes()[:-cut])
    assert [change.path for change in changes(file)] == ["/a"]
    file.write_bytes(b"ZKLG")
    assert list(changes(file)) == []


def test_what_most_servers_have_is_kept_in_order_and_once(tmp_path: Path) -> None:
    first, second, third = (entry(zxid, DELETE, text(f"/{zxid}"), at=100) for zxid in (1, 2, 3))
    written(tmp_path / "a", second, first)
    written(tmp_path / "a", second, name="log.2")
    written(tmp_path / "b", first, second)
    written(tmp_path / "c", third)
    happened = gather([tmp_path / "a", tmp_path / "b", tmp_path / "c"], offset=60.0)
    assert happened == [Change(1, 40, 1, "/1"), Change(2, 40, 1, "/2")]
    assert gather([tmp_path / "a", None, tmp_path / "b"], 0.0) == []  # in a container
    with History(tmp_path, "servers") as history:
        keep(happened, ("/2",), history)
    assert kept(load(tmp_path)) == happened[1:]


def node(number: int) -> str:
    return f"{LOCK}/_c_00000000-0000-0000-0000-00000000000{number}-lock-{number:010d}"


LOG = [
    Change(1, 0.0, 99, "/locks", created=True),
    Change(2, 0.0, 99, LOCK, created=True),
    Change(3, 1.0, 1, node(0), created=True),
    Change(4, 1.1, 2, node(1), created=True),
    Change(5, 3.0, 1, node(0)),
    Change(6, 8.0, 2, None),
]
"""The first releases, the second's session ends."""


def granted(number: int, began: float, held: float, *, epoch: int = 2) -> list[HistoryEvent]:
    token = FencingToken(epoch, number)
    data = {"lock": LOCK, "node": node(number), "token": str(token), "session": number + 1}
    source = f"w{number}"
    return [
        HistoryEvent(began, source, "grant", {**data, "began": began}),
        HistoryEvent(held, source, "held", {"node": node(number)}),
    ]


FIRST = granted(0, 2.0, 2.9)
HISTORY = [*FIRST, *granted(1, 3.1, 6.5)]
BROKEN = [*HISTORY, HistoryEvent(6.0, "nemesis", "break", {"node": node(1)})]
OTHER = node(1).replace("00000000-", "11111111-")
OF_ANOTHER = [replace(each, session=3) if each.session == 2 else each for each in LOG]
AGAIN = [*LOG, Change(7, 9.0, 99, LOCK), Change(8, 9.0, 99, LOCK, created=True)]
"""The path is made again."""


def stood(log: list[Change], path: str) -> list[Change]:
    """Return a log that goes on: a znode comes and goes."""
    return [*log, Change(9, 9.1, 4, path, created=True), Change(10, 9.9, 4, path)]


def found(events: list[HistoryEvent], log: list[Change], patience: float = 5.5) -> dict[Rule, str]:
    violations = compare(events, ServerLog(log), patience=patience).violations
    return {each.rule: each.what for each in violations}


def test_a_verdict_is_by_both_and_tells_what_was_forgotten(tmp_path: Path) -> None:
    result = compare(HISTORY, ServerLog(LOG))
    assert result.violations == []
    assert result.nodes == 2
    with History(tmp_path, "servers") as history:
        keep(LOG[:-1], ("/",), history)
    decision = decide([*HISTORY, *load(tmp_path), HistoryEvent(1.0, "witness", "forgotten", {})])
    assert decision.forgotten == 1
    assert decision.agreement.violations
    assert decision.violations == [*decision.verdict.violations, *decision.agreement.violations]
    assert decide(HISTORY).agreement.violations == []


@pytest.mark.parametrize(
    ("events", "log", "rule", "said"),
    [
        ([*FIRST, *granted(1, 2.95, 6.5)], LOG, Rule.QUEUE, "0.0500 s before its turn"),
        ([*FIRST, *granted(1, 3.1, 8.2)], LOG, Rule.EXCLUSION, "believed 0.2000 s after"),
        ([*HISTORY, *granted(2, 9, 9.1)], LOG, Rule.TOKENS, "stood nowhere"),
        (HISTORY, OF_ANOTHER, Rule.TOKENS, "is of session 0x3"),
        ([*FIRST, *granted(1, 3.1, 6.5, epoch=1)], LOG, Rule.TOKENS, "has no epoch 0x2"),
        (HISTORY, stood(LOG, OTHER), Rule.TOKENS, f"{OTHER} has the number of {node(1)}"),
        (HISTORY, LOG[:-1], Rule.SERVICE, f"{node(1)} is still there"),
        # An operator deletes a node: it is believed in until then.
        (BROKEN, LOG, None, ""),
        # A path that is made again has another queue, and other numbers.
        (HISTORY, stood(AGAIN, OTHER), None, ""),
        ([*HISTORY, *granted(3, 9.2, 9.5, epoch=8)], stood(AGAIN, node(3)), None, ""),
    ],
)
def test_a_disagreement_is_found(
    events: list[HistoryEvent], log: list[Change], rule: Rule | None, said: str
) -> None:
    violations = found(events, log)
    assert [*violations] == ([rule] if rule else [])
    assert all(said in what for what in violations.values())


# A znode that nobody uses: node 5, of the second's session, which came at ``CAME``.

CAME = 4.0
LATE = CAME + UNUSED


def asked(
    at: float, until: float | None = None, number: int = 1, **more: object
) -> list[HistoryEvent]:
    """Return an ask of the second one, which is answered, or waits for ever."""
    ask = {"ask": f"w1-{number}", "lock": LOCK, "timeout": 60.0, **more}
    answer = {"ask": f"w1-{number}", "outcome": "none"}
    answers = [] if until is None else [HistoryEvent(until, "w1", "answer", answer)]
    return [HistoryEvent(at, "w1", "ask", ask), *answers]


def unused(
    *more: HistoryEvent,
    until: float,
    expires: bool = False,
    lock: str = LOCK,
    came: float = CAME,
    session: int = 2,
    silent: tuple[float, float] = (0.0, 0.0),
) -> str | None:
    """Return what is said of it, gone at ``until``, while others change something all the time."""
    late = node(5).replace(LOCK, lock)
    made = [Change(1, 0.0, 99, lock, created=True)] if lock != LOCK else []
    gone = Change(20, until, session, None if expires else late)
    log = [*LOG[:-1], *made, Change(7, came, session, late, created=True)]
    log += [Change(8, 8.0, 2, node(1)), gone]
    others = (n / 2 for n in range(int(2 * until)) if not silent[0] < n / 2 < silent[1])
    log += [Change(30, at, 99, f"/others/{at}", created=True) for at in others]
    log.sort(key=lambda change: change.at)
    over = HistoryEvent(1000.0, "run", "end", {})
    return found([*HISTORY, *more, over], log).get(Rule.SERVICE)


def test_a_node_that_nobody_uses_is_found() -> None:
    said = unused(*asked(1.0, 3.1), until=LATE + 5)
    assert said is not None
    assert f"w1 {node(5)} of session 0x2 stood for 25.000 s and nobody used it" in said
    history = [*HISTORY, *asked(1.0, 3.1), HistoryEvent(1000.0, "run", "end", {})]
    log = [*LOG[:-1], Change(7, CAME, 2, node(5), created=True)]
    (left, *_) = compare(history, ServerLog(log)).violations
    assert "stood for 996.000 s" in left.what


PAUSE = HistoryEvent(10.0, "w1", "pause", {"worker": "w1", "until": 20.0})
KEEPING = [*asked(1.0, 3.0, keep=1.0), *asked(2.5, 30.0, 2, keep=1.0)]


@pytest.mark.parametrize(
    ("more", "until", "how"),
    [
        (asked(1.0, 3.1), LATE, {}),
        (asked(1.0, 3.1), LATE, {"expires": True}),
        (asked(1.0, 30.0), 30.0 + UNUSED, {}),  # from the answer of an ask that had begun
        ([*asked(1.0, 3.1), PAUSE], LATE + 10, {}),
        (asked(1.0, 3.1), LATE + 10, {"silent": (10.0, 20.0)}),  # no leader
        (KEEPING, 30.0 + UNUSED, {"came": 1.05}),  # who began before the first one ended
        (asked(CAME + 1), LATE, {}),  # an ask that came later does not count
        (asked(CAME + 1), LATE, {"lock": "/locks/b"}),  # nor one for another lock
    ],
)
def test_for_how_long_a_node_may_stand_unused(
    more: list[HistoryEvent], until: float, how: dict[str, object]
) -> None:
    assert not unused(*more, until=until - 1, **how)  # type: ignore[arg-type]
    assert unused(*more, until=until + 1, **how)  # type: ignore[arg-type]


def test_whose_nodes_are_used() -> None:
    assert not unused(*asked(1.0), until=900.0)  # it still waits
    assert not unused(until=900.0)  # it does not ask
    assert not unused(*asked(1.0, 3.1), until=900.0, session=7)  # nobody knows whose it is


# Node 0 is kept: it is used from 1.2 to 1.5, and from 2.0 to 2.9; node 1 comes at ``came``.


def used(use: int, began: float, until: float) -> list[HistoryEvent]:
    (first, _) = granted(0, began, until)
    name = {"node": node(0), **({"use": use} if use else {})}
    return [
        replace(first, data={**first.data, **name, "keep": 1.0}),
        HistoryEvent(until, first.source, "release", {**name, "how": "release"}),
        HistoryEvent(until, first.source, "released", {**name, "outcome": "done"}),
    ]


USES = [*used(0, 1.2, 1.5), *used(1, 2.0, 2.9)]


def keeping(*, came: float, until: float, left: float = 900.0) -> list[Change]:
    others = [Change(30, at / 2, 99, f"/others/{at}", created=True) for at in range(80)]
    log = [
        *LOG[:3],
        Change(4, came, 2, node(1), created=True),
        Change(5, until, 1, node(0)),
        Change(6, left, 2, node(1)),
        *others,
    ]
    return sorted(log, key=lambda change: change.at)


def fault(what: str) -> HistoryEvent:
    return HistoryEvent(3.0, "nemesis", "fault", {"what": what, "target": "", "seconds": 1.0})


@pytest.mark.parametrize(
    ("more", "log", "seconds", "again"),
    [
        ([], keeping(came=2.5, until=3.0), 0.1, 0.0),  # from the end of the body that ran
        ([], keeping(came=3.0, until=3.4), 0.4, 0.0),  # from its coming, to an idle lock
        ([], keeping(came=1.3, until=2.9, left=1.6), 0.1, 0.0),  # until it leaves
        ([], keeping(came=1.3, until=2.9), 0.0, 0.7),  # a body began after it had come
        ([HistoryEvent(3.0, "w0", "pause", {"worker": "w0", "until": 4.0})], None, 0.6, 0.0),
        ([fault("delay")], None, 0.6, 0.0),  # of the network
        ([fault("kill leader")], None, 1.6, 0.0),  # no excuse
    ],
)
def test_for_how_long_another_waits_for_a_kept_lock(
    more: list[HistoryEvent], log: list[Change] | None, seconds: float, again: float
) -> None:
    log = log or keeping(came=2.5, until=4.5)
    longest = max(seconds, again)
    assert found([*USES, *more], log, patience=longest + 0.1) == {}
    said = found([*USES, *more], log, patience=longest - 0.1)
    assert [*said] == [Rule.SERVICE]
    waited = f"for {seconds:.3f} s after its last body, which began {again:.3f} s"
    assert said[Rule.SERVICE].startswith(f"{node(1)} waited for w0 {node(0)}")
    assert waited in said[Rule.SERVICE]


def test_an_idle_kept_node_goes_in_time() -> None:
    in_time = 2.9 + 1.0 + UNUSED
    assert found(USES, keeping(came=800.0, until=in_time - 0.5)) == {}
    said = found(USES, keeping(came=800.0, until=in_time + 0.5))[Rule.SERVICE]
    assert "use 1 (released) stood unused for 21.500 s" in said
