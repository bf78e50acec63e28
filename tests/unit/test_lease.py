"""The arithmetic of the lease, against a model of what ZooKeeper's leader knows.

The model: a client sends requests to one server; each is received and answered after any delay,
in order. The server tells the leader of the sessions that were active when the leader asks, every
half tick or more often. At some moment the two are cut off from each other. The leader expires
the session one timeout after it was last told of it, and not earlier. A write that is answered
reached the leader before the cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zklock.lease import HEARTBEATS, Lease

TIMEOUT = 10.0
FRACTIONS = [0.3, 2 / 3, 0.75]


@dataclass
class Sent:
    at: float
    received: float
    answered: float


@st.composite
def traffic(draw: st.DrawFn) -> list[Sent]:
    """Requests, sent with any pauses, received and answered in order after any delays."""
    requests, at, received, answered = [], 0.0, 0.0, 0.0
    gaps = st.one_of(st.floats(0.01, 1.2), st.floats(0.01, TIMEOUT))
    delays = st.one_of(st.floats(0, 0.05), st.floats(0, 3))
    for gap in draw(st.lists(gaps, min_size=1, max_size=30)):
        at += gap
        received = max(received, at + draw(delays))
        answered = max(answered, received + draw(delays))
        requests.append(Sent(at, received, answered))
    return requests


def told(requests: list[Sent], moments: list[float], cut: float) -> float:
    """Return when the leader was last told of activity, given when it asked; -inf for never."""
    last, before = 0.0, 0.0  # it knows of the connection, which was made at 0
    for moment in (moment for moment in moments if moment < cut):
        if any(before < request.received <= moment for request in requests):
            last = moment
        before = moment
    return last


@pytest.mark.parametrize("fraction", FRACTIONS)
@given(requests=traffic(), phase=st.floats(0, 1), data=st.data())
def test_the_lease_ends_before_the_leader_can_expire_the_session(
    fraction: float, requests: list[Sent], phase: float, data: st.DataObject
) -> None:
    half_tick = (0.9 - fraction) * TIMEOUT  # the longest that the fraction allows for
    asks = [(index + phase) * half_tick for index in range(int(400 / half_tick))]
    proofs = set(data.draw(st.lists(st.sampled_from(range(len(requests))), min_size=1)))
    last = requests[max(proofs)]
    cut = last.received + data.draw(st.floats(1e-6, 5))

    lease = Lease(TIMEOUT, fraction)
    lease.connected(0.0)
    for index, request in enumerate(requests[: max(proofs) + 1]):
        lease.touched(request.at, request.answered)
        if index in proofs:
            lease.proved(request.at)

    expiry = told(requests, asks, cut) + TIMEOUT
    assert lease.end <= expiry + 1e-9


def test_heartbeats_that_are_answered_at_once_give_all_but_the_whole_fraction() -> None:
    lease = Lease(TIMEOUT)
    lease.connected(0.0)
    interval = TIMEOUT / HEARTBEATS
    for beat in range(100):
        sent = beat * interval
        lease.touched(sent, sent + 0.002)
        lease.proved(sent)
        assert sent + 2 / 3 * TIMEOUT - 0.01 * TIMEOUT <= lease.end <= sent + 2 / 3 * TIMEOUT


def test_a_proof_after_an_idle_time_is_worth_less() -> None:
    """Without this, an idle client that is cut off would believe for longer than is true."""
    half_tick = (0.9 - 2 / 3) * TIMEOUT
    pings = [20.0, 20.0 + TIMEOUT / 3]
    sent = 20.0 + 0.46 * TIMEOUT
    # The leader is told of the first ping, asks once between the two, and is cut off before it
    # asks again, after the proof.
    asks = [20.001 + count * half_tick for count in range(3)]
    requests = [Sent(at, at, at) for at in [*pings, sent]]
    expiry = told(requests, asks, cut=asks[2] - 0.001) + TIMEOUT

    lease = Lease(TIMEOUT)
    for request in requests:
        lease.touched(request.at, request.answered)
    lease.proved(sent)

    assert sent < asks[2] - 0.001
    assert lease.end == pings[0] + TIMEOUT <= expiry < sent + 2 / 3 * TIMEOUT


def test_a_new_connection_goes_through_the_leader() -> None:
    lease = Lease(TIMEOUT)
    lease.connected(50.0)
    lease.proved(50.1)
    assert lease.end == 50.1 + 2 / 3 * TIMEOUT


def test_touches_of_an_earlier_connection_count_for_nothing() -> None:
    lease = Lease(TIMEOUT)
    lease.connected(0.0)
    for at in range(1, 100):
        lease.touched(float(at), at + 0.001)
    lease.connected(30.0)
    lease.proved(100.0)
    assert lease.end == 30.0 + TIMEOUT


def test_a_late_answer_takes_nothing_back() -> None:
    lease = Lease(TIMEOUT)
    lease.connected(0.0)
    lease.proved(0.5)
    end = lease.end
    lease.proved(0.1)
    assert lease.end == end


def test_without_a_proof_there_is_no_lease() -> None:
    lease = Lease(TIMEOUT)
    lease.connected(0.0)
    lease.touched(1.0, 1.1)
    assert lease.end == -math.inf


def test_touches_that_cannot_be_seen_are_taken_as_often_as_they_must_come() -> None:
    lease = Lease(TIMEOUT, idle=TIMEOUT / 3)
    lease.proved(100.0)
    lag = (0.9 - 2 / 3) * TIMEOUT
    assert lease.end == pytest.approx(100.0 - lag - TIMEOUT / 3 + TIMEOUT)


@given(st.floats(0.0001, 1.0))
def test_a_busy_client_is_not_remembered_request_by_request(gap: float) -> None:
    lease = Lease(TIMEOUT)
    lease.connected(0.0)
    for number in range(2000):
        lease.touched(number * gap, number * gap + 0.001)
    assert len(lease._touches) < 60
