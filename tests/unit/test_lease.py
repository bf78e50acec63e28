"""The arithmetic of the lease, against a model of what ZooKeeper's leader knows.

The model: a client sends requests to one server; each is received and answered after any delay,
in order. The server tells the leader of the sessions that were active when the leader asks, every
half tick or more often. At some moment the two are cut off from each other. The leader expires
the session one timeout after it was last told of it, and not earlier. A write that is answered
reached the leader before the cut.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st

from tests.at_once import at_once
from zklock._core.handshake import unanswered
from zklock._core.lease import HEARTBEATS, Lease

TIMEOUT = 10.0
DRIFT = 1 / 30
"""How much a client's clock may be slow or fast, in parts of the leader's time."""
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


def test_nothing_is_believed_before_the_first_proof() -> None:
    lease = Lease(TIMEOUT)
    assert lease.end == -math.inf
    lease.connected(1.0)
    lease.touched(1.0, 1.1)
    assert lease.end == -math.inf


@pytest.mark.parametrize("fraction", FRACTIONS)
@given(requests=traffic(), phase=st.floats(0, 1), drift=st.floats(-DRIFT, DRIFT), data=st.data())
def test_the_lease_ends_before_the_leader_can_expire_the_session(
    fraction: float, requests: list[Sent], phase: float, drift: float, data: st.DataObject
) -> None:
    rate = 1 + drift  # of the client's clock
    # The longest that the fraction allows for.
    half_tick = (0.9 - fraction) * TIMEOUT / max(1.0, rate)
    asks = [(index + phase) * half_tick for index in range(int(400 / half_tick))]
    proofs = set(data.draw(st.lists(st.sampled_from(range(len(requests))), min_size=1)))
    last = requests[max(proofs)]
    cut = last.received + data.draw(st.floats(1e-6, 5))

    lease = Lease(TIMEOUT, fraction)
    lease.connected(0.0)
    for index, request in enumerate(requests[: max(proofs) + 1]):
        lease.touched(rate * request.at, rate * request.answered)
        if index in proofs:
            lease.proved(rate * request.at)

    expiry = told(requests, asks, cut) + TIMEOUT
    assert lease.end <= rate * expiry + 1e-9


@pytest.mark.parametrize(
    ("connected", "sent", "end"),
    [
        (0.0, 0.9 * TIMEOUT, (1 - DRIFT) * TIMEOUT),
        (50.0, 50.0 + 0.4 * TIMEOUT, 50.0 + (1 - DRIFT) * TIMEOUT),
        (50.0, 50.1, 50.1 + 2 / 3 * TIMEOUT),
    ],
    ids=["the leader has heard nothing since", "a slow handshake", "a new connection"],
)
def test_a_lease_after_an_idle_time_has_room_for_a_slow_clock(
    connected: float, sent: float, end: float
) -> None:
    """A connection goes through the leader."""
    lease = Lease(TIMEOUT)
    lease.connected(connected)
    lease.proved(sent)
    assert lease.end == end


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
    assert lease.end == pings[0] + (1 - DRIFT) * TIMEOUT < expiry < sent + 2 / 3 * TIMEOUT


def test_touches_of_an_earlier_connection_count_for_nothing() -> None:
    lease = Lease(TIMEOUT)
    lease.connected(0.0)
    for at in range(1, 100):
        lease.touched(float(at), at + 0.001)
    lease.connected(30.0)
    lease.proved(100.0)
    assert lease.end == 30.0 + (1 - DRIFT) * TIMEOUT


def test_a_late_answer_takes_nothing_back() -> None:
    lease = Lease(TIMEOUT)
    lease.connected(0.0)
    lease.proved(0.5)
    end = lease.end
    lease.proved(0.1)
    assert lease.end == end


@given(st.floats(0.0001, 1.0))
def test_a_busy_client_is_not_remembered_request_by_request(gap: float) -> None:
    lease = Lease(TIMEOUT)
    lease.connected(0.0)
    for number in range(2000):
        lease.touched(number * gap, number * gap + 0.001)
    assert len(lease._touches) < 110


class TestTimeoutsThatChange:
    """ZooKeeper negotiates the timeout anew at every connection of a session."""

    @staticmethod
    def proved(sent: float, timeout: float = TIMEOUT) -> Lease:
        lease = Lease(timeout)
        lease.connected(sent - timeout / 10)
        lease.proved(sent)
        assert lease.end == sent + 2 / 3 * timeout
        return lease

    @pytest.mark.parametrize(("first", "then"), [(TIMEOUT, 3.0), (3.0, TIMEOUT)])
    def test_a_shorter_one_counts_at_once_and_a_longer_one_never(
        self, first: float, then: float
    ) -> None:
        lease = self.proved(50.0, first)
        lease.negotiated(then)
        assert lease.end == 50.0 + 2 / 3 * 3.0
        lease.connected(51.0)
        lease.proved(51.5)
        assert (lease.timeout, lease.end) == (3.0, 51.5 + 2 / 3 * 3.0)

    def test_an_unanswered_handshake_bounds_what_was_proved(self) -> None:
        lease = self.proved(50.0)
        lease.asked(50.5)
        lease.asked(51.5)  # a second attempt takes nothing back
        assert lease.end == 50.5 + unanswered(TIMEOUT)
        lease.connected(51.5)
        assert lease.end == 50.0 + 2 / 3 * TIMEOUT

    def test_no_server_is_thought_to_shorten_beyond_reason(self) -> None:
        assert [unanswered(each) for each in (1.5, 3.0, 6.0, 12.0)] == [0.5, 1.0, 1.0, 2.0]


@dataclass
class Server:
    """Hears every touch at once; goes by the first timeout when it is started anew."""

    first: float
    timeout: float
    expiry: float

    def touch(self, at: float) -> None:
        self.expiry = at + self.timeout

    def restart(self, at: float) -> None:
        self.expiry = at + self.first


@given(data=st.data())
def test_the_lease_ends_before_a_session_whose_timeout_changes(data: st.DataObject) -> None:
    first = data.draw(st.floats(3.0, 20.0), "first timeout")
    server, lease, now = Server(first, first, first), Lease(first), 0.0
    lease.connected(now)
    connected = True
    for _ in range(data.draw(st.integers(1, 25))):
        now += data.draw(st.floats(0.001, 2.0))
        if now >= server.expiry:
            break
        match data.draw(st.sampled_from(["beat", "restart", "connect", "connect unheard"])):
            case "beat" if connected:
                server.touch(now)
                lease.touched(now, now)
                lease.proved(now)
            case "restart":
                server.restart(now)
                connected = False
            case "connect":
                lease.asked(now)
                server.timeout = data.draw(st.floats(unanswered(lease.timeout), 20.0))
                server.touch(now)
                lease.negotiated(server.timeout)
                lease.connected(now)
                connected = True
            case "connect unheard":
                lease.asked(now)
                server.timeout = data.draw(st.floats(unanswered(lease.timeout), 20.0))
                server.touch(now)
                connected = False
        assert lease.end <= server.expiry + 1e-9


def test_one_who_reads_while_it_changes_sees_no_end_that_it_never_had() -> None:
    """It ends by 10 at each moment: first as a handshake is not answered, then for good."""
    lease = Lease(TIMEOUT)
    lease.connected(10.0)
    over = threading.Event()

    def change() -> list[float]:
        try:
            return [most for _ in range(20_000) for most in shortened(lease)]
        finally:
            over.set()

    def read() -> list[float]:
        return list(iter(lambda: math.nan if over.is_set() else lease.end, math.nan))

    changed, seen = at_once(change, read)
    assert max(changed) == 10.0
    assert max(seen, default=0.0) <= 10.0


def shortened(lease: Lease) -> Iterator[float]:
    """Have the lease end at 10, and not at 16 as the last proof says; then end it."""
    lease.asked(10.0 - unanswered(TIMEOUT))
    lease.proved(10.0)
    yield lease.end
    lease._end = lease.end = -math.inf
    lease.connected(10.0)
    yield lease.end
