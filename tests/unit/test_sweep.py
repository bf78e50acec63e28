"""Which address is tried next, and for how long: all are tried before a lease is over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, pairwise, permutations

import pytest
from hypothesis import given, strategies as st

from zklock._core.handshake import unanswered
from zklock._shell.sweep import Sweep

PAUSE = 0.07
"""Seconds, at most, that kazoo waits before its first new round."""
TIMEOUT = 1.0
"""Seconds. With longer ones a pause weighs less, and all else is in proportion, or shorter."""

Wait = Callable[[Sweep, float, int], float]


def until_alive(offers: Iterable[int | None], alive: int, servers: int, wait: Wait) -> float:
    """Return after how many seconds one of the first servers, which are alive, is tried.

    ``None`` in ``offers``: kazoo begins a new round.
    """
    sweep, seconds, tried = Sweep(), 0.0, list[int]()
    for each in offers:
        if each is None:
            seconds += PAUSE
        elif sweep.takes(each, servers):
            assert each not in tried
            if each < alive:
                return seconds
            tried.append(each)
            seconds += wait(sweep, TIMEOUT, servers)
            sweep.was_silent()
    raise AssertionError("it is not tried in two rounds")


@pytest.mark.parametrize("wait", [Sweep.to_accept, Sweep.to_answer])
@pytest.mark.parametrize(
    ("servers", "dead"),
    [(n, dead) for n in range(2, 8) for dead in sorted({n - 1, (n - 1) // 2})],
)
def test_a_server_that_is_alive_is_tried_within_a_third_of_the_timeout(
    servers: int, dead: int, wait: Wait
) -> None:
    """In each order of kazoo's next round, however many dead ones the broken round still has.

    Which ones these are makes no difference: dead servers are alike.
    """
    alive = servers - dead
    for order in permutations(range(servers)):
        for rest in range(dead + 1):
            offers = [*range(alive, alive + rest), None, *order]
            assert until_alive(offers, alive, servers, wait) <= TIMEOUT / 3


@given(st.lists(st.permutations(range(4)), min_size=6, max_size=6), st.integers(4, 6))
def test_no_address_is_left_out(rounds: list[list[int]], known: int) -> None:
    """Not even where a name that has no address is counted: then, in two rounds of kazoo's."""
    sweep = Sweep()
    taken = [{each for each in order if sweep.takes(each, known)} for order in rounds]
    for one, two in pairwise(taken):
        assert one | two == set(range(4))


@given(st.lists(st.permutations(range(5)), min_size=4, max_size=4), st.integers(0, 4))
def test_what_has_failed_comes_last(rounds: list[list[int]], begin: int) -> None:
    sweep = Sweep()
    tried = [each for each in [*chain(*rounds)][begin:] if sweep.takes(each, 5)]
    for sweep_of_all in range(0, len(tried) - 4, 5):
        assert {*tried[sweep_of_all : sweep_of_all + 5]} == set(range(5))


def test_each_sweep_in_which_all_were_silent_doubles_the_time() -> None:
    sweep, timeout, servers = Sweep(), 12.0, 3
    accept, answer = list[float](), list[float]()
    for _ in range(8):
        accept.append(sweep.to_accept(timeout, servers))
        answer.append(sweep.to_answer(timeout, servers))
        for _ in range(servers):
            sweep.was_silent()
    first = unanswered(timeout) / 4
    assert answer == [*(first * 2**rounds for rounds in range(6)), *(2 * [1.5 * timeout])]
    assert accept[:2] == [1.0, 2.0]
    assert accept[2:] == 6 * [3.0]
