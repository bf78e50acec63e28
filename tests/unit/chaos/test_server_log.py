"""The servers' log of transactions: read as they write it, and held against histories."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

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
from zklock.testing.checker import Rule
from zklock.testing.history import Event, History, load

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


class TestReading:
    def test_what_comes_and_goes(self, tmp_path: Path) -> None:
        file = written(
            tmp_path,
            entry(1, CREATE_SESSION, struct.pack(">i", 4000)),
            entry(2, CREATE, creation(LOCK), at=10.5),
            entry(3, CREATE2, creation(f"{LOCK}/x"), session=-5, at=11.25),
            entry(4, SET, text(LOCK) + text("other") + struct.pack(">i", 1)),
            entry(5, DELETE, text(f"{LOCK}/x"), at=12),
            entry(6, CLOSE, b"", session=-5, at=13),
        )
        assert list(changes(file)) == [
            Change(2, 10.5, 1, LOCK, created=True),
            Change(3, 11.25, -5, f"{LOCK}/x", created=True),
            Change(5, 12, 1, f"{LOCK}/x"),
            Change(6, 13, -5, None),
        ]

    def test_the_parts_of_a_transaction(self, tmp_path: Path) -> None:
        parts = multi((CREATE, creation("/b")), (13, text("/a") + b"\0" * 4), (DELETE, text("/a")))
        (made, deleted) = changes(written(tmp_path, entry(8, MULTI, parts)))
        assert made == Change(8, 0, 1, "/b", created=True)
        assert deleted == Change(8, 0, 1, "/a")

    @pytest.mark.parametrize("cut", range(1, 60))
    def test_to_the_last_whole_entry(self, tmp_path: Path, cut: int) -> None:
        whole = entry(1, DELETE, text("/a"))
        file = written(tmp_path, whole, entry(2, DELETE, text("/b")), end=b"")
        file.write_bytes(file.read_bytes()[:-cut])
        assert [change.path for change in changes(file)] == ["/a"]

    @pytest.mark.parametrize("data", [b"", b"ZK", b"ZKLG", b"\0" * 100])
    def test_a_file_that_was_hardly_begun(self, tmp_path: Path, data: bytes) -> None:
        file = tmp_path / "log.1"
        file.write_bytes(data)
        assert list(changes(file)) == []


class TestGathering:
    def test_what_most_servers_have_in_order_and_once(self, tmp_path: Path) -> None:
        first, second, third = (entry(zxid, DELETE, text(f"/{zxid}"), at=100) for zxid in (1, 2, 3))
        written(tmp_path / "a", second, first)
        written(tmp_path / "a", second, name="log.2")
        written(tmp_path / "b", first, second)
        written(tmp_path / "c", third)
        happened = gather([tmp_path / "a", tmp_path / "b", tmp_path / "c"], offset=60.0)
        assert happened == [Change(1, 40, 1, "/1"), Change(2, 40, 1, "/2")]

    def test_is_kept_in_a_history(self, tmp_path: Path) -> None:
        both = [Change(1, 5.0, 7, LOCK, created=True), Change(3, 6.0, 7, None)]
        other = Change(2, 5.0, 7, "/other", created=True)
        with History(tmp_path, "servers") as history:
            keep([*both, other], (LOCK,), history)
        assert kept(load(tmp_path)) == both

    def test_of_servers_whose_files_are_elsewhere(self, tmp_path: Path) -> None:
        written(tmp_path, entry(1, DELETE, text("/a")))
        assert gather([tmp_path, None, tmp_path], 0.0) == []


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


def granted(
    number: int, began: float, held: float, *, epoch: int = 2, sequence: int | None = None
) -> list[Event]:
    token = FencingToken(epoch, number if sequence is None else sequence)
    data = {"lock": LOCK, "node": node(number), "token": str(token), "session": number + 1}
    source = f"w{number}"
    return [
        Event(began, source, "grant", {**data, "began": began}),
        Event(held, source, "held", {"node": node(number)}),
    ]


HISTORY = [*granted(0, 2.0, 2.9), *granted(1, 3.1, 6.5)]


def found(events: list[Event], log: list[Change]) -> dict[Rule, str]:
    return {each.rule: each.what for each in compare(events, ServerLog(log)).violations}


class TestDeciding:
    def test_by_both(self) -> None:
        log = [
            Event(
                change.at,
                "servers",
                "server",
                {
                    "zxid": change.zxid,
                    "session": change.session,
                    "path": change.path,
                    "created": change.created,
                },
            )
            for change in LOG[:-1]
        ]
        decision = decide([*HISTORY, *log])
        assert decision.agreement.nodes == 2
        assert decision.agreement.violations
        assert decision.verdict.violations
        assert len(decision.violations) == len(decision.agreement.violations) + len(
            decision.verdict.violations
        )

    def test_without_a_log(self) -> None:
        assert decide(HISTORY).agreement.violations == []

    def test_what_the_servers_have_forgotten_is_told_beside_it(self) -> None:
        forgotten = Event(1.0, "witness", "forgotten", {"confirmed": 7, "given": 5})
        decision = decide([*HISTORY, forgotten])
        assert decision.forgotten == 1
        assert decision.violations == decide(HISTORY).violations


class TestComparing:
    def test_they_agree(self) -> None:
        result = compare(HISTORY, ServerLog(LOG))
        assert result.violations == []
        assert result.nodes == 2
        assert result.margins == pytest.approx({"CRASHED": 0.1, "CRASHED, the session ended": 1.5})

    def test_a_grant_before_its_turn(self) -> None:
        history = [*granted(0, 2.0, 2.9), *granted(1, 2.95, 6.5)]
        assert "0.0500 s before its turn" in found(history, LOG)[Rule.QUEUE]

    def test_belief_after_the_node_was_deleted(self) -> None:
        history = [*granted(0, 2.0, 2.9), *granted(1, 3.1, 8.2)]
        assert "believed 0.2000 s after" in found(history, LOG)[Rule.EXCLUSION]

    def test_a_node_that_an_operator_deletes_is_believed_in_until_then(self) -> None:
        history = [*HISTORY, Event(6.0, "nemesis", "break", {"node": node(1)})]
        assert found(history, LOG) == {}
        assert compare(history, ServerLog(LOG)).margins == pytest.approx({"CRASHED": 0.1})

    def test_a_grant_of_nothing(self) -> None:
        assert "stood nowhere" in found([*HISTORY, *granted(2, 9, 9.1)], LOG)[Rule.TOKENS]

    def test_a_grant_of_another_session(self) -> None:
        log = [replace(change, session=3) if change.session == 2 else change for change in LOG]
        assert "is of session 0x3" in found(HISTORY, log)[Rule.TOKENS]

    def test_an_epoch_of_another_parent(self) -> None:
        history = [*granted(0, 2.0, 2.9), *granted(1, 3.1, 6.5, epoch=1)]
        assert "has no epoch 0x2" in found(history, LOG)[Rule.TOKENS]

    def test_a_number_that_is_given_twice(self) -> None:
        """The servers have lost what they had written down: it is said first."""
        other = node(1).replace("00000000-", "11111111-")
        log = [*LOG, Change(7, 8.5, 3, other, created=True), Change(8, 9.0, 3, other)]
        said = [each.what for each in compare(HISTORY, ServerLog(log)).violations]
        what = f"1 numbers were given twice: the servers have forgotten {node(1)} when they make"
        assert said == [f"{what} {other}, by the log of the servers"]

    def test_the_number_of_a_path_that_is_made_again_is_not_given_twice(self) -> None:
        again = [Change(7, 9.0, 99, LOCK), Change(8, 9.0, 99, LOCK, created=True)]
        other = node(1).replace("00000000-", "11111111-")
        log = [*LOG, *again, Change(9, 9.1, 4, other, created=True), Change(10, 9.9, 4, other)]
        assert ServerLog(log).given_twice == []

    def test_what_is_left(self) -> None:
        assert found(HISTORY, LOG[:-1]) == {
            Rule.SERVICE: f"{node(1)} is still there, by the log of the servers"
        }

    def test_a_parent_made_again_is_another_queue(self) -> None:
        again = [
            Change(7, 9.0, 99, LOCK),
            Change(8, 9.0, 99, LOCK, created=True),
            Change(9, 9.1, 4, node(3), created=True),
            Change(10, 9.9, 4, node(3)),
        ]
        assert found([*HISTORY, *granted(3, 9.2, 9.5, epoch=8)], [*LOG, *again]) == {}


def asked(number: int, at: float, *, timeout: float = 60.0, lock: str = LOCK) -> Event:
    """Return the first ask of the one whose session is that of node ``number``."""
    data = {"ask": f"w{number}-1", "lock": lock, "timeout": timeout}
    return Event(at, f"w{number}", "ask", data)


def answered(number: int, at: float) -> Event:
    return Event(at, f"w{number}", "answer", {"ask": f"w{number}-1", "outcome": "none"})


class TestUnused:
    """``HISTORY``, in which the second has asked for a lock whose first try comes late.

    It is node 5, made by session 2 and gone at ``until``. The session lives for long.
    """

    CAME = 4.0
    OVER = Event(1000.0, "run", "end", {})

    @classmethod
    def unused(
        cls,
        *more: Event,
        until: float,
        expires: bool = False,
        lock: str = LOCK,
        came: float = CAME,
        session: int = 2,
        silent: tuple[float, float] = (0.0, 0.0),
    ) -> str | None:
        late = node(5).replace(LOCK, lock)
        made = [Change(1, 0.0, 99, lock, created=True)] if lock != LOCK else []
        gone = Change(20, until, session, None if expires else late)
        log = [*LOG[:-1], *made, Change(7, came, session, late, created=True)]
        log += [Change(8, 8.0, 2, node(1)), gone]
        others = (n / 2 for n in range(int(2 * until)) if not silent[0] < n / 2 < silent[1])
        log += [Change(30, at, 99, f"/others/{at}", created=True) for at in others]
        log.sort(key=lambda change: change.at)
        return found([*HISTORY, *more, cls.OVER], log).get(Rule.SERVICE)

    @staticmethod
    def granted(at: float = 3.1) -> Event:
        """The second's ask is answered by its grant of node 1."""
        return Event(at, "w1", "answer", {"ask": "w1-1", "outcome": "granted"})

    def test_a_create_that_came_after_its_ask_was_answered_by_another(self) -> None:
        said = self.unused(asked(1, 1.0), self.granted(), until=self.CAME + UNUSED + 5)
        assert said == (
            f"w1 {node(5)} of session 0x2 stood for 25.000 s and nobody used it, "
            "by the log of the servers"
        )

    def test_until_its_session_ends(self) -> None:
        late = self.CAME + UNUSED
        assert self.unused(asked(1, 1.0), self.granted(), until=late + 1, expires=True)
        assert not self.unused(asked(1, 1.0), self.granted(), until=late - 1, expires=True)

    def test_deleted_in_time(self) -> None:
        assert not self.unused(asked(1, 1.0), self.granted(), until=self.CAME + UNUSED - 1)

    def test_counts_from_the_answer_of_an_ask_that_had_begun(self) -> None:
        given_up = asked(1, 1.0), answered(1, 30.0)
        assert not self.unused(*given_up, until=30.0 + UNUSED - 1)
        assert self.unused(*given_up, until=30.0 + UNUSED + 1)

    def test_of_one_who_still_waits(self) -> None:
        assert not self.unused(asked(1, 1.0), until=900.0)

    @pytest.mark.parametrize("lock", [LOCK, "/locks/b"])
    def test_an_ask_that_came_later_or_for_another_lock_does_not_count(self, lock: str) -> None:
        late = asked(1, self.CAME + 1, lock=LOCK)
        assert self.unused(late, until=self.CAME + UNUSED + 1, lock=lock)

    def test_by_the_grant_with_the_ask(self) -> None:
        (grant, _) = granted(1, 3.1, 3.2)
        told = replace(grant, at=3.2, data={**grant.data, "ask": "w1-1"})
        assert self.unused(asked(1, 1.0), told, until=self.CAME + UNUSED + 1)

    def test_of_a_process_that_was_paused(self) -> None:
        pause = Event(10.0, "w1", "pause", {"worker": "w1", "until": 20.0})
        until = self.CAME + UNUSED
        assert not self.unused(asked(1, 1.0), self.granted(), pause, until=until + 9)
        assert self.unused(asked(1, 1.0), self.granted(), pause, until=until + 11)

    def test_while_the_servers_had_no_leader(self) -> None:
        until, silent = self.CAME + UNUSED, (10.0, 20.0)
        mine = asked(1, 1.0), self.granted()
        assert not self.unused(*mine, until=until + 9, silent=silent)
        assert self.unused(*mine, until=until + 11, silent=silent)

    def test_of_one_who_does_not_ask(self) -> None:
        assert not self.unused(until=900.0)

    def test_of_a_session_that_nobody_is_known_by(self) -> None:
        assert not self.unused(asked(1, 1.0), self.granted(), until=900.0, session=7)

    def test_that_is_still_there(self) -> None:
        history = [*HISTORY, asked(1, 1.0), self.granted(), self.OVER]
        log = [*LOG[:-1], Change(7, self.CAME, 2, node(5), created=True)]
        (said, *_) = compare(history, ServerLog(log)).violations
        assert "stood for 996.000 s" in said.what


def used(number: int, use: int, began: float, until: float, *, keep: float = 1.0) -> list[Event]:
    """Return a grant on a node that is kept, which is given back in the end."""
    (first, _) = granted(number, began, until)
    name = {"node": node(number), **({"use": use} if use else {})}
    return [
        replace(first, data={**first.data, **name, "keep": keep}),
        Event(until, first.source, "release", {**name, "how": "release"}),
        Event(until, first.source, "released", {**name, "outcome": "done"}),
    ]


class TestKept:
    """Node 0 is kept: it is used from 1.2 to 1.5, and from 2.0 to 2.9; node 1 comes at ``came``."""

    USES = (*used(0, 0, 1.2, 1.5), *used(0, 1, 2.0, 2.9))

    @staticmethod
    def log(*, came: float, until: float, left: float = 900.0) -> list[Change]:
        others = [Change(30, at / 2, 99, f"/others/{at}", created=True) for at in range(80)]
        changes = [
            *LOG[:3],
            Change(4, came, 2, node(1), created=True),
            Change(5, until, 1, node(0)),
            Change(6, left, 2, node(1)),
            *others,
        ]
        return sorted(changes, key=lambda change: change.at)

    def test_the_other_one_waits_from_the_end_of_the_body_that_ran(self) -> None:
        result = compare(self.USES, ServerLog(self.log(came=2.5, until=3.0)))
        assert result.violations == []
        (waited,) = result.asked["RELEASED"]
        assert (waited.seconds, waited.again) == pytest.approx((0.1, 0.0))
        assert waited.other == node(1)

    def test_or_from_its_coming_if_the_lock_was_idle(self) -> None:
        (waited,) = compare(self.USES, ServerLog(self.log(came=3.0, until=3.4))).asked["RELEASED"]
        assert (waited.seconds, waited.again) == pytest.approx((0.4, 0.0))

    @pytest.mark.parametrize(("came", "until"), [(2.5, 2.9 + 1.1), (3.0, 3.0 + 1.1)])
    def test_no_longer_than_it_must(self, came: float, until: float) -> None:
        log = ServerLog(self.log(came=came, until=until))
        assert compare(self.USES, log, patience=1.2).violations == []
        (violation,) = compare(self.USES, log, patience=1.0).violations
        assert violation.rule is Rule.SERVICE
        assert "for 1.100 s after its last body" in violation.what

    def test_no_body_begins_when_the_keeper_must_know_of_it(self) -> None:
        log = ServerLog(self.log(came=1.3, until=2.9))
        assert compare(self.USES, log, patience=0.8).violations == []
        (violation,) = compare(self.USES, log, patience=0.6).violations
        assert "which began 0.700 s after it had come" in violation.what

    def test_one_that_has_left_does_not_wait(self) -> None:
        log = ServerLog(self.log(came=1.3, until=2.9, left=1.6))
        (waited,) = compare(self.USES, log).asked["RELEASED"]
        assert (waited.seconds, waited.again) == pytest.approx((0.1, 0.0))

    @pytest.mark.parametrize(
        "excuse",
        [
            Event(3.0, "w0", "pause", {"worker": "w0", "until": 4.0}),
            Event(3.0, "nemesis", "fault", {"what": "delay", "target": "", "seconds": 1.0}),
        ],
        ids=["a pause of the keeper", "a fault of the network"],
    )
    def test_what_excuses_a_keeper(self, excuse: Event) -> None:
        log = ServerLog(self.log(came=2.5, until=4.5))
        assert compare(self.USES, log, patience=1.0).violations
        (waited,) = compare([*self.USES, excuse], log, patience=1.0).asked["RELEASED"]
        assert waited.seconds == pytest.approx(0.6)

    def test_the_server_is_no_excuse_for_a_fault_that_is_not_of_the_network(self) -> None:
        log = ServerLog(self.log(came=2.5, until=4.5))
        fault = Event(
            3.0, "nemesis", "fault", {"what": "kill leader", "target": "", "seconds": 1.0}
        )
        assert compare([*self.USES, fault], log, patience=1.0).violations

    def test_a_lock_that_is_not_kept_is_not_asked_for(self) -> None:
        assert compare(HISTORY, ServerLog(LOG)).asked == {}

    def test_an_idle_node_goes_in_time(self) -> None:
        in_time, late = 2.9 + 1.0 + UNUSED - 0.5, 2.9 + 1.0 + UNUSED + 0.5
        assert found([*self.USES], self.log(came=800.0, until=in_time)) == {}
        said = found([*self.USES], self.log(came=800.0, until=late))[Rule.SERVICE]
        assert "use 1 (released) stood unused for 21.500 s" in said

    def test_another_ask_waits_with_the_contender_of_the_first(self) -> None:
        """Who began before the first one ended needs no znode of its own."""
        asks = [asked(1, 1.0), answered(1, 3.0), *self.waiting(2.5, until=30.0)]
        keeping = [replace(each, data={**each.data, "keep": 1.0}) for each in asks]
        until = 30.0 + UNUSED - 1
        assert TestUnused.unused(*asks, until=until, came=1.05)
        assert not TestUnused.unused(*keeping, until=until, came=1.05)
        assert TestUnused.unused(*keeping, until=until + 2, came=1.05)

    @staticmethod
    def waiting(at: float, *, until: float) -> list[Event]:
        ask = {"ask": "w1-2", "lock": LOCK, "timeout": 60.0}
        return [
            Event(at, "w1", "ask", ask),
            Event(until, "w1", "answer", {"ask": "w1-2", "outcome": "none"}),
        ]
