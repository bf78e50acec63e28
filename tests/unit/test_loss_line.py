"""What the log says of a lost lock."""

from __future__ import annotations

import calendar
import logging
import re
import time
from typing import Any

import pytest

import zklock
from zklock.telemetry import log_fields
from zklock.testing import simulated

WHEN = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caplog.records if "lost at" in each.getMessage()]


def held(client: Any, *paths: str) -> list[zklock.Grant]:
    grants = [zklock.Lock(client, path).acquire() for path in paths]
    return [grant for grant in grants if grant is not None]


def test_the_line_of_a_lost_lock_is_the_text_of_its_loss(caplog: pytest.LogCaptureFixture) -> None:
    with simulated() as sim:
        client = sim.client()
        (grant,) = held(client, "/locks/report")
        losses: list[zklock.Loss] = []
        grant.add_lost_callback(losses.append)
        sim.partition(client)
        sim.advance(7.0)
        (line,) = lines(caplog)
    assert line.levelno == logging.WARNING
    assert line.getMessage() == str(losses[0])
    assert re.fullmatch(
        rf"/locks/report: lock lost at {WHEN}, token {grant.token}: the session could not be "
        "proven alive in time; stop the guarded work and acquire again",
        line.getMessage(),
    )
    fields = log_fields(grant, reason=zklock.LossReason.LEASE_LAPSED)
    assert {name: getattr(line, name) for name in fields} == fields
    with pytest.raises(zklock.LockLost, match=re.escape(line.getMessage())):
        grant.check()


def test_locks_that_are_lost_together_share_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with simulated() as sim:
        client = sim.client()
        grants = held(client, *(f"/locks/{number}" for number in range(12)))
        sim.partition(client)
        sim.advance(7.0)
        (line,) = lines(caplog)
    named = ", ".join(sorted(f"{each.lock_path} (token {each.token})" for each in grants))
    assert re.fullmatch(
        rf"12 locks of one session lost at {WHEN}: the session could not be proven alive in time; "
        rf"stop the guarded work and acquire again: {re.escape(named)}",
        line.getMessage(),
    )
    fields = log_fields(session_id=grants[0].session_id, reason=zklock.LossReason.LEASE_LAPSED)
    assert {name: getattr(line, name) for name in fields} == fields


def test_a_line_names_twenty_locks(caplog: pytest.LogCaptureFixture) -> None:
    with simulated() as sim:
        client = sim.client()
        grants = held(client, *(f"/locks/{number:02}" for number in range(23)))
        client.stop()
        sim.advance(0.0)  # the client's own thread tells it
        (line,) = lines(caplog)
    said = line.getMessage()
    assert said.startswith("23 locks of one session lost at ")
    assert said.endswith("and 3 more")
    assert [each.lock_path in said for each in grants] == [True] * 20 + [False] * 3


def test_each_session_has_its_own_line(caplog: pytest.LogCaptureFixture) -> None:
    with simulated() as sim:
        clients = sim.client(), sim.client()
        for number, client in enumerate(clients):
            held(client, f"/{number}/a", f"/{number}/b")
            sim.partition(client)
        sim.advance(7.0)
        said = {each.getMessage().rpartition("again: ")[2][:2] for each in lines(caplog)}
        assert len(lines(caplog)) == 2
    assert said == {"/0", "/1"}


def test_a_pool_loses_its_shards_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with simulated() as sim:
        client = sim.client()
        pool = zklock.WorkerPool(client, "/pool", shards=12)
        sim.run(pool.start)
        for _ in range(1000):
            if len(pool.owned()) == 12:
                break
            sim.advance(0.1)
        shards = {grant.lock_path for grant in pool.owned().values()}
        caplog.clear()
        sim.partition(client)
        sim.advance(7.0)
        (line,) = lines(caplog)
        sim.heal(client)
        sim.run(pool.stop)
    assert len(shards) == 12
    assert all(f"{each} (token " in line.getMessage() for each in shards)
    assert "_ShardGrant" not in caplog.text


def test_a_loss_names_the_real_time_under_a_frozen_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated() as sim:
        client = sim.client()
        (grant,) = held(client, "/locks/report")
        for name in ("time", "time_ns"):  # as freezegun does
            monkeypatch.setattr(time, name, lambda: 0)
        losses: list[zklock.Loss] = []
        grant.add_lost_callback(losses.append)
        before = real_seconds()
        sim.expire(client)
        sim.advance(1.0)
        after = real_seconds()
    told = re.search(WHEN, str(losses[0]))
    assert told is not None
    assert before <= calendar.timegm(time.strptime(told[0], "%Y-%m-%dT%H:%M:%SZ")) <= after


def real_seconds() -> int:
    return int(time.clock_gettime(time.CLOCK_REALTIME))


def test_a_client_that_was_stopped_is_not_said_to_be_refused() -> None:
    with simulated() as sim:
        client = sim.client()
        (grant,) = held(client, "/locks/report")
        client.stop()
        end = "the client was stopped; stop the guarded work and connect first, then acquire again"
        with pytest.raises(zklock.LockLost, match=f": {end}$"):
            grant.check()


@pytest.mark.parametrize(
    ("reason", "refused", "end"),
    [
        (
            zklock.LossReason.FORKED,
            False,
            "this process was forked from the one that holds the lock; stop the guarded work and "
            "connect first, then acquire again",
        ),
        (
            zklock.LossReason.CLIENT_CLOSED,
            True,
            "the client's credentials were refused; stop the guarded work and connect first, then "
            "acquire again",
        ),
        (
            zklock.LossReason.NODE_DELETED,
            False,
            "the contender's node was deleted by somebody else; stop the guarded work and acquire "
            "again",
        ),
    ],
    ids=str,
)
def test_a_loss_says_what_to_do_first(reason: zklock.LossReason, refused: bool, end: str) -> None:
    with simulated() as sim:
        (grant,) = held(sim.client(), "/locks/report")
        grant._note_loss(reason, noticed=1.0, lease_end=2.0, refused=refused)
        with pytest.raises(zklock.LockLost, match=f": {end}$"):
            grant.check()
