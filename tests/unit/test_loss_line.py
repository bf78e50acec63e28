"""What the log says of a lost lock."""

from __future__ import annotations

import calendar
import logging
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

import zklock
from zklock.telemetry import log_fields
from zklock.testing import Simulation, simulated

WHEN = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
LAPSED = "the session could not be proven alive in time; stop the guarded work and acquire again"


@pytest.fixture
def sim() -> Iterator[Simulation]:
    with simulated() as sim:
        yield sim


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caplog.records if "lost at" in each.getMessage()]


def held(client: Any, *paths: str) -> list[zklock.Grant]:
    grants = [zklock.Lock(client, path).acquire() for path in paths]
    return [grant for grant in grants if grant is not None]


def test_the_line_of_a_lost_lock_is_the_text_of_its_loss(
    sim: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    client = sim.client()
    (grant,) = held(client, "/locks/report")
    losses: list[zklock.Loss] = []
    grant.add_lost_callback(losses.append)
    sim.partition(client)
    sim.advance(7.0)
    (line,) = lines(caplog)
    said = line.getMessage()
    assert line.levelno == logging.WARNING
    assert said == str(losses[0])
    assert re.fullmatch(rf"/locks/report: lock lost at {WHEN}, token {grant.token}: {LAPSED}", said)
    fields = log_fields(grant, reason=zklock.LossReason.LEASE_LAPSED)
    assert {name: getattr(line, name) for name in fields} == fields
    with pytest.raises(zklock.LockLost, match=re.escape(said)):
        grant.check()


def test_locks_that_are_lost_together_share_a_line_of_their_session(
    sim: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    clients = sim.client(), sim.client()
    grants = [
        held(client, *(f"/{at}/{number}" for number in range(12)))
        for at, client in enumerate(clients)
    ]
    for client in clients:
        sim.partition(client)
    sim.advance(7.0)
    for its, line in zip(
        grants, sorted(lines(caplog), key=lambda it: it.getMessage()), strict=True
    ):
        named = ", ".join(sorted(f"{each.lock_path} (token {each.token})" for each in its))
        assert re.fullmatch(
            rf"12 locks of one session lost at {WHEN}: {LAPSED}: {re.escape(named)}",
            line.getMessage(),
        )
        fields = log_fields(session_id=its[0].session_id, reason=zklock.LossReason.LEASE_LAPSED)
        assert {name: getattr(line, name) for name in fields} == fields


def test_a_line_names_twenty_locks(sim: Simulation, caplog: pytest.LogCaptureFixture) -> None:
    client = sim.client()
    grants = held(client, *(f"/locks/{number:02}" for number in range(23)))
    client.stop()
    sim.advance(0.0)  # the client's own thread tells it
    (line,) = lines(caplog)
    said = line.getMessage()
    assert said.startswith("23 locks of one session lost at ")
    assert said.endswith("and 3 more")
    assert [each.lock_path in said for each in grants] == [True] * 20 + [False] * 3


def test_a_pool_loses_its_shards_in_one_line(
    sim: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    client = sim.client()
    pool = zklock.WorkerPool(client, "/pool", shards=12)
    sim.run(pool.start)
    for _ in range(1000):
        if len(pool.owned()) == 12:
            break
        sim.advance(0.1)
    shards = {grant.lock_path for grant in pool.owned().values()}
    assert len(shards) == 12
    caplog.clear()
    sim.partition(client)
    sim.advance(7.0)
    (line,) = lines(caplog)
    sim.heal(client)
    sim.run(pool.stop)
    assert all(f"{each} (token " in line.getMessage() for each in shards)
    assert "_ShardGrant" not in caplog.text


def test_a_loss_names_the_real_time_under_a_frozen_clock(
    sim: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = sim.client()
    (grant,) = held(client, "/locks/report")
    for name in ("time", "time_ns"):  # as freezegun does
        monkeypatch.setattr(time, name, lambda: 0)
    losses: list[zklock.Loss] = []
    grant.add_lost_callback(losses.append)
    before = int(time.clock_gettime(time.CLOCK_REALTIME))
    sim.expire(client)
    sim.advance(1.0)
    after = int(time.clock_gettime(time.CLOCK_REALTIME))
    told = re.search(WHEN, str(losses[0]))
    assert told is not None
    assert before <= calendar.timegm(time.strptime(told[0], "%Y-%m-%dT%H:%M:%SZ")) <= after


AGAIN = "stop the guarded work and acquire again"
CONNECT = "stop the guarded work and connect first, then acquire again"


@pytest.mark.parametrize(
    ("reason", "refused", "end"),
    [
        (None, False, f"the client was stopped; {CONNECT}"),
        (
            zklock.LossReason.FORKED,
            False,
            f"this process was forked from the one that holds the lock; {CONNECT}",
        ),
        (
            zklock.LossReason.CLIENT_CLOSED,
            True,
            f"the client's credentials were refused; {CONNECT}",
        ),
        (
            zklock.LossReason.NODE_DELETED,
            False,
            f"the contender's node was deleted by somebody else; {AGAIN}",
        ),
    ],
    ids=str,
)
def test_a_loss_says_what_to_do_first(
    sim: Simulation, reason: zklock.LossReason | None, refused: bool, end: str
) -> None:
    client = sim.client()
    (grant,) = held(client, "/locks/report")
    if reason is None:
        client.stop()
    else:
        grant._note_loss(reason, noticed=1.0, lease_end=2.0, refused=refused)
    with pytest.raises(zklock.LockLost, match=f": {end}$"):
        grant.check()
