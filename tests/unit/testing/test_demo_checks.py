"""Each check of the demo holds for what it should see, and fails for something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from zklock.cli import main
from zklock.testing.demo import checks, play
from zklock.testing.demo.checks import Failed, Finding, Owned, Queue


def token(number: int) -> str:
    return f"{7:016x}-{number:010d}"


def turn(granted: float, number: int) -> list[dict[str, Any]]:
    return [
        {"what": "granted", "at": granted, "token": token(number)},
        {"what": "looked", "at": granted + 0.2, "believed": granted + 0.1, "held": True},
        {"what": "over", "at": granted + 0.3},
    ]


def given(shard: int, at: float, under: str) -> dict[str, Any]:
    return {"what": "assigned", "at": at, "shard": shard, "token": under}


def queue(*struck: dict[str, Any]) -> Queue:
    """Return a scene that went well: w1 was struck at 10 s, w2 and w3 had their turns after it."""
    granted = {"what": "granted", "at": 9.0, "token": token(0)}
    reports = {"w1": [granted, *struck], "w2": turn(12.0, 1), "w3": turn(13.0, 2)}
    ledger = [(token(1), "w2"), (token(2), "w3")]
    return Queue(("w1", "w2", "w3"), reports, 10.0, 15.0, ledger, ())


KILLED = queue()
PAUSED = queue(
    {"what": "looked", "at": 15.1, "believed": 10.0, "held": False},
    {"what": "lost", "at": 15.1, "reason": "LEASE_LAPSED"},
    {"what": "refused", "at": 15.2, "highest": token(2)},
)
CUT = queue({"what": "lost", "at": 11.3, "reason": "LEASE_LAPSED"})
BEFORE: Owned = {"w1": {0: token(0), 1: token(0)}, "w2": {2: token(0)}, "w3": {3: token(0)}}
AFTER: Owned = {"w2": {0: token(1), 2: token(0)}, "w3": {1: token(1), 3: token(0)}}
SCENES: dict[Callable[[Any], Iterator[Finding]], Any] = {
    checks.killed: KILLED,
    checks.paused: PAUSED,
    checks.cut: CUT,
}


def failed(found: Iterator[Finding]) -> set[str]:
    return {text for held, text in found if not held}


def told(seen: Queue, worker: str, what: str, **changed: Any) -> Queue:
    """Return the scene with something else in the report of a worker."""
    reports = [
        {**it, **changed} if it["what"] == what else it for it in map(dict, seen.reports[worker])
    ]
    assert reports != seen.reports[worker]
    return replace(seen, reports={**seen.reports, worker: reports})


@pytest.mark.parametrize("check", SCENES)
def test_a_scene_that_went_well_passes(check: Callable[[Any], Iterator[Finding]]) -> None:
    assert failed(check(SCENES[check])) == set()


@pytest.mark.parametrize(
    ("check", "seen", "text"),
    [
        (checks.killed, told(KILLED, "w2", "granted", at=9.9), "after the kill"),
        (checks.killed, told(KILLED, "w3", "granted", at=11.0), "in the order of the queue"),
        (checks.killed, told(KILLED, "w2", "looked", believed=13.1), "one held the lock at a time"),
        (checks.killed, told(KILLED, "w3", "granted", token=token(1)), "a higher token"),
        (checks.killed, told(KILLED, "w2", "granted", token=token(0)), "a higher token"),
        (checks.killed, replace(KILLED, ledger=[(token(1), "w2")]), "the ledger has one entry"),
        (checks.killed, replace(KILLED, left=("w1",)), "nobody is left"),
        (checks.paused, replace(PAUSED, mended=12.5), "had the lock during the pause"),
        (checks.paused, told(PAUSED, "w2", "granted", at=9.9), "had the lock during the pause"),
        (checks.paused, told(PAUSED, "w1", "looked", held=True), "at its first look"),
        (checks.paused, told(PAUSED, "w1", "looked", believed=15.05), "at its first look"),
        (checks.paused, told(PAUSED, "w1", "looked", believed=12.1), "one held the lock at a time"),
        (checks.paused, told(PAUSED, "w1", "lost", at=14.0), "its lost callback"),
        (checks.paused, told(PAUSED, "w1", "refused", highest=token(0)), "late write was refused"),
        (checks.cut, told(CUT, "w1", "lost", at=12.1), "was told of its loss"),
        (checks.cut, told(CUT, "w1", "lost", at=9.9), "was told of its loss"),
    ],
)  # fmt: skip
def test_a_planted_violation_is_found(
    check: Callable[[Any], Iterator[Finding]], seen: Any, text: str
) -> None:
    assert any(text in found for found in failed(check(seen)))


def test_shards_that_were_taken_over_pass() -> None:
    assert failed(checks.taken_over("w1", BEFORE, AFTER, 2.0)) == set()


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (BEFORE, {**AFTER, "w2": {2: token(0)}}, "every shard has one owner again"),
        (BEFORE, {**AFTER, "w3": {**AFTER["w3"], 2: token(0)}}, "every shard has one owner again"),
        (BEFORE, {"w2": dict.fromkeys(range(4), token(1)), "w3": {}}, "the shares are equal"),
        (BEFORE, {**AFTER, "w3": {1: token(1), 3: token(1)}}, "have moved"),
        ({**BEFORE, "w1": {}}, AFTER, "have moved"),
        ({**BEFORE, "w1": {0: token(1), 1: token(0)}}, AFTER, "a higher token than w1"),
    ],
)
def test_a_shard_that_was_not_taken_over_is_found(before: Owned, after: Owned, text: str) -> None:
    assert any(text in found for found in failed(checks.taken_over("w1", before, after, 2.0)))


@pytest.mark.parametrize(
    ("check", "worker", "what"),
    [
        *((checks.killed, worker, "granted") for worker in ("w1", "w2", "w3")),
        (checks.killed, "w2", "looked"),
        *((checks.paused, "w1", what) for what in ("looked", "lost", "refused")),
        (checks.cut, "w1", "lost"),
    ],
)
def test_no_report_that_counts_can_be_missing(
    check: Callable[[Any], Iterator[Finding]], worker: str, what: str
) -> None:
    seen = SCENES[check]
    kept = [it for it in seen.reports[worker] if it["what"] != what]
    with pytest.raises(Failed, match=f"{worker} has never reported '{what}'"):
        list(check(replace(seen, reports={**seen.reports, worker: kept})))


def test_what_a_worker_owns_is_what_it_was_given_last() -> None:
    reports = [
        given(0, 1.0, token(1)),
        given(1, 2.0, token(1)),
        {**given(1, 3.0, token(1)), "what": "revoked"},
        given(0, 4.0, token(2)),
        {**given(0, 5.0, token(1)), "what": "revoked"},
    ]
    assert checks.owned(reports) == {0: token(2)}


@pytest.mark.parametrize(
    ("shares", "so"),
    [
        ({"w1": {0: "t", 1: "t"}, "w2": {2: "t"}}, True),
        ({"w1": {0: "t", 1: "t", 2: "t"}, "w2": {}}, False),
        ({"w1": {0: "t"}, "w2": {2: "t"}}, False),
        ({"w1": {0: "t", 1: "t"}, "w2": {1: "t"}}, False),
    ],
)
def test_shares_are_settled_when_all_is_owned_in_equal_parts(
    shares: dict[str, dict[int, str]], so: bool
) -> None:
    assert checks.settled(shares, 3) is so


def test_the_first_check_that_does_not_hold_ends_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def played(hosts: object, timeout: float, tell: play.Say, say: play.Say) -> None:
        client: Any = SimpleNamespace(handler=SimpleNamespace(session_timeout=timeout))
        play.Play("", "", client, tell)._show([(True, "one"), (False, "two"), (True, "three")])

    monkeypatch.setattr(play, "play", played)
    assert main(["demo"]) == 1
    printed = capsys.readouterr()
    assert printed.out == "   ok: one\n   FAILED: two\n"
    assert printed.err == "zklock demo: not shown: two\n"
