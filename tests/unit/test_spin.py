"""Adaptive spinning, by a clock that the answers move."""

from __future__ import annotations

import math
import socket
import threading
from itertools import groupby

import pytest

from tests.unit.bytecodes import Bytecodes
from zklock._kazoo import spin as spinning
from zklock._kazoo.spin import LIMIT, LONGEST, NEAR, ROUND, ROUNDS, Glance, Spin
from zklock._kazoo.turn import Bell
from zklock.testing import wait_for

LOOK = LIMIT / 30
"""Seconds that one look takes."""
WOKEN = LIMIT / 4
"""Seconds by which a sleeper is late."""
SOON = 30.0


class Server:
    """Answers after ``answer`` seconds, and ``disturbed`` seconds later to those who spin."""

    def __init__(self, answer: float = LIMIT / 2, disturbed: float = 0.0) -> None:
        self.now = 0.0
        self.answer = answer
        self.disturbed = disturbed
        self.spin = Spin(lambda: self.now)
        self._due = 0.0
        self._disturbs = 0.0
        self.looks = 0
        self.sleeps: list[float | None] = []

    def poll(self, limit: float | None) -> list[int]:
        if limit == 0:
            self.looks += 1
            self.now += LOOK
            self._disturbs = self.disturbed
        else:
            self.sleeps.append(limit)
            end = math.inf if limit is None else self.now + limit / 1000
            self.now = min(max(self.now, self._due + self._disturbs) + WOKEN, end)
        return [1] if self.now >= self._due + self._disturbs else []

    def waits(self, seconds: float = math.inf) -> float:
        """Return how long a wait takes."""
        self.looks, self._disturbs = 0, 0.0
        self.sleeps.clear()
        begin, self._due = self.now, self.now + self.answer
        self.spin.wait(self.poll, seconds)
        return self.now - begin

    def spins(self) -> bool:
        """Wait; return whether the wait has spun."""
        self.waits()
        return self.looks > 0

    def rounds(self, waits: int) -> list[tuple[bool, int]]:
        """Return how many waits have spun, have slept, … one after the other."""
        spun = [self.spins() for _ in range(waits)]
        return [(spins, len(list(same))) for spins, same in groupby(spun)]


class Others:
    """Those who may run instead of one who spins. No processor is given up: that takes time."""

    def __init__(self) -> None:
        self.turns = 0

    def run(self) -> None:
        self.turns += 1


@pytest.fixture(autouse=True)
def others(monkeypatch: pytest.MonkeyPatch) -> Others:
    others = Others()
    monkeypatch.setattr(spinning, "_let_others_run", others.run)
    return others


@pytest.fixture
def near() -> Server:
    """A server of which it is known that it is near."""
    server = Server()
    assert server.rounds(ROUND) == [(False, ROUND)]
    return server


def test_who_knows_nothing_sleeps() -> None:
    server = Server()
    assert server.waits() == pytest.approx(LIMIT / 2 + WOKEN)
    assert (server.looks, server.sleeps) == (0, [None])


def test_who_is_answered_soon_spins_from_then_on_and_measures_anew(near: Server) -> None:
    assert near.waits() == pytest.approx(LIMIT / 2, abs=1.5 * LOOK)
    assert not near.sleeps
    assert near.rounds(2 * (ROUNDS + 1) * ROUND - 1) == [
        (True, ROUNDS * ROUND - 1),
        (False, ROUND),
        (True, ROUNDS * ROUND),
        (False, ROUND),
    ]


def test_nobody_spins_for_a_server_behind_a_network() -> None:
    assert Server(NEAR).rounds(100 * ROUND) == [(False, 100 * ROUND)]


def test_a_server_that_comes_nearer_is_noticed_and_one_that_goes() -> None:
    server = Server(NEAR)
    server.rounds(3 * ROUND)
    server.answer = LIMIT / 2
    assert server.rounds(ROUND + 1) == [(False, ROUND), (True, 1)]
    server.answer = NEAR
    assert server.rounds(3 * ROUND - 1) == [(True, 2 * ROUND - 1), (False, ROUND)]
    assert server.rounds(100 * ROUND) == [(False, 100 * ROUND)]


def test_the_first_round_that_spins_is_not_judged(near: Server) -> None:
    near.answer = 2 * LIMIT
    near.rounds(ROUND)
    near.answer = LIMIT / 2
    assert near.rounds(10 * ROUND) == [(True, 10 * ROUND)]


def test_where_spinning_keeps_the_server_from_answering_it_becomes_rare() -> None:
    server = Server(LIMIT / 4, disturbed=LIMIT / 2)
    rounds = server.rounds(5 * LONGEST)
    assert [size for spins, size in rounds if spins] == [2 * ROUND] * (len(rounds) // 2)
    sleeps = [size for spins, size in rounds if not spins]
    assert sleeps[:8] == [16, 32, 64, 128, 256, 512, 1024, LONGEST]
    assert set(sleeps[8:-1]) <= {LONGEST}
    assert 2 * ROUND * LIMIT / LONGEST < 5e-6


def test_a_round_that_is_judged_well_makes_good_for_earlier_ones() -> None:
    server = Server(LIMIT / 4, disturbed=LIMIT / 2)
    while len(server.rounds(ROUND)) == 1 and server.spin._sleeps < 512:
        pass
    server.disturbed = 0.0
    server.rounds(512 + 3 * ROUND)
    server.disturbed = LIMIT / 2
    rounds = server.rounds(100 * ROUND)
    assert (False, 2 * ROUND) in rounds


def test_who_spins_in_vain_sleeps_for_the_rest(near: Server) -> None:
    near.answer = 10 * LIMIT
    assert near.waits(20 * LIMIT) == pytest.approx(10 * LIMIT + WOKEN)
    assert near.looks == pytest.approx(LIMIT / LOOK, abs=2)
    assert near.sleeps == [pytest.approx(19 * LIMIT * 1000)]


def test_a_wait_ends_in_time(near: Server) -> None:
    near.answer = math.inf
    assert near.waits(3 * LIMIT) == pytest.approx(3 * LIMIT, abs=1.5 * LOOK)


def test_a_wait_that_is_shorter_than_spinning_sleeps(near: Server) -> None:
    assert near.waits(0.9 * LIMIT) == pytest.approx(LIMIT / 2 + WOKEN)
    assert near.looks == 0


@pytest.mark.parametrize("how", ["sleeps", "spins"])
def test_who_is_struck_does_not_end_the_measuring(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = 4
    monkeypatch.setattr(spinning, "ROUNDS", rounds)

    def server() -> Server:
        """Return one at the last wait of a round."""
        server = Server()
        server.rounds(ROUND - 1 if how == "sleeps" else 2 * ROUND - 1)
        return server

    bytecodes = Bytecodes("_kazoo/spin.py")
    bytecodes.run(server().waits)
    assert bytecodes.count > 50
    for at in range(1, bytecodes.count + 1):
        struck = server()
        assert bytecodes.run(struck.waits, at)
        seen = struck.rounds((rounds + 2) * ROUND)
        assert len(seen) > 1, f"struck at {at}: {seen}"


@pytest.mark.parametrize("spins", [False, True])
def test_a_bell_wakes_who_waits_for_a_connection(spins: bool) -> None:
    here, there = socket.socketpair()
    with here, there:
        bell = Bell()
        bell._spin._spins = spins
        waiting = threading.Thread(target=bell.wait, args=(here.fileno(), math.inf, lambda: True))
        waiting.start()
        bell.ring()
        wait_for(lambda: not waiting.is_alive(), SOON, "the end of the wait")
        bell.hush()
        there.send(b"x")
        assert bell.wait(here.fileno(), SOON, lambda: True)
        assert here.recv(1) == b"x"
        bell.close()


def test_what_rings_as_it_is_hushed_is_forgotten_the_next_time() -> None:
    here, there = socket.socketpair()
    with here, there:
        bell = Bell()

        class Late:
            def send(self, data: bytes) -> int:
                bell.hush()
                return there.send(data)

        bell._read.close()
        bell._write.close()
        here.setblocking(False)
        bell._read, bell._write = here, Late()  # type: ignore[assignment]
        bell.ring()
        assert here.recv(1, socket.MSG_PEEK)
        bell.hush()
        with pytest.raises(BlockingIOError):
            here.recv(1)


class Glancing(Server):
    """Answers those who glance, or wait in another way."""

    def __init__(self, answer: float) -> None:
        super().__init__(answer)
        self.glance = Glance(lambda: self.now)

    def glances(self) -> bool | None:
        """Return whether the answer came in time; ``None``: this glance is left out."""
        if not self.glance.due():
            return None
        begin, self._due = self.now, self.now + self.answer
        came = self.glance.wait(self.poll)
        assert self.now - begin <= LIMIT + LOOK
        assert self.sleeps == []
        return came

    def left_out(self) -> int:
        """Return how many glances are left out before the next one."""
        left = 0
        while (came := self.glances()) is None:
            left += 1
        assert came == (self.answer <= LIMIT)
        return left


def test_who_glances_sees_what_comes_in_time() -> None:
    assert [Glancing(LIMIT / 2).glances() for _ in range(100)] == [True] * 100


def test_glances_that_are_in_vain_become_rare() -> None:
    server = Glancing(2 * LIMIT)
    assert [server.left_out() for _ in range(14)] == [
        0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, LONGEST, LONGEST,
    ]  # fmt: skip


def test_one_slow_answer_costs_one_glance() -> None:
    server = Glancing(2 * LIMIT)
    assert server.glances() is False
    server.answer = LIMIT / 2
    assert [server.glances() for _ in range(20)] == [None] + [True] * 19


def test_where_half_the_answers_come_in_time_glances_stay_rare() -> None:
    server = Glancing(2 * LIMIT)
    for _ in range(10):
        server.left_out()
    server.answer = LIMIT / 2
    server.left_out()
    server.answer = 2 * LIMIT
    assert [server.left_out() for _ in range(2)] == [0, 512]
    server.answer = LIMIT / 2
    assert server.left_out() == 1024
    assert [server.left_out() for _ in range(20)] == [0] * 20


def test_others_run_while_a_thread_spins(others: Others) -> None:
    server = Glancing(LIMIT / 2)
    assert server.glances()
    assert others.turns == server.looks - 1 > 1
