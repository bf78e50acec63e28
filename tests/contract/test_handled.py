"""Signal handlers at every line, threads that cannot be started, the end of the interpreter."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.handled import ASKS, CALLS, STRIDE, TIMEOUT
from tests.contract.refusing import DELETE, Refusing
from tests.contract.support import gone, granted, passes_on, program
from tests.modes import bounded, repeated
from zklock import Lock
from zklock.testing import ZooKeeperServer


def play(part: str, timeout: float = 300.0, **given: Any) -> Any:
    done = program("-m", "tests.contract.handled", part, json.dumps(given), timeout=timeout)
    return json.loads(done.stdout)


@pytest.mark.hazard("H28")
@pytest.mark.parametrize(
    ("what", "hooked"),
    [
        *((what, False) for what in CALLS),
        *((what, True) for what in ("cancel", "abandon", "acquire")),
    ],
)
def test_a_signal_handler_at_every_line(
    zklock_hosts: str, zklock_path: str, other: Any, what: str, hooked: bool
) -> None:
    path = f"{zklock_path}/lock"
    tally = play("handled", hosts=zklock_hosts, path=path, what=what, hooked=hooked)
    assert set(tally) <= {"total", "longest", "lost", "done", "refused", "cancelled"}, tally
    assert tally["done"] + tally.get("refused", 0) > tally["total"] / STRIDE / 2
    assert tally["longest"] < bounded(0.8 * TIMEOUT / 10)
    assert not tally["lost"]
    assert (tally.get("refused", 0) > 0) == (what in ASKS)
    gone(other, path)


@pytest.mark.hazard("H27")
@pytest.mark.parametrize("how", ["deleted", "stopped"])
def test_all_are_told_where_no_thread_can_be_started(
    zklock_hosts: str, zklock_path: str, how: str
) -> None:
    assert play("starved", hosts=zklock_hosts, path=zklock_path, how=how) == [0, 1, 2, 3]


@pytest.mark.hazard("H27")
def test_many_losses_at_once_start_few_threads(zklock_hosts: str, zklock_path: str) -> None:
    assert play("many", hosts=zklock_hosts, path=zklock_path, count=repeated(300, 100)) <= 32


@pytest.mark.hazard("H27")
def test_a_client_that_is_stopped_at_exit_leaves_its_lock_and_tells_of_it(
    zklock_hosts: str, zklock_path: str, other: Any
) -> None:
    assert play("leaving", hosts=zklock_hosts, path=zklock_path) == "CLIENT_CLOSED"
    passes_on(other, zklock_path)


@pytest.mark.hazard("H27")
def test_what_nobody_has_ended_is_ended_with_the_interpreter(
    zklock_hosts: str, zklock_path: str, other: Any
) -> None:
    """Threads run no more by then, and none can be started. The lock is free all the same."""
    assert play("unended", timeout=60.0, hosts=zklock_hosts, path=zklock_path) is True
    passes_on(other, f"{zklock_path}/lock")


@pytest.mark.hazard("H31")
def test_an_error_code_that_the_client_does_not_know_ends_no_connection(
    zklock_server: ZooKeeperServer, zklock_connect: Callable[..., Any], other: Any, zklock_path: str
) -> None:
    with Refusing(zklock_server) as relay:
        client = zklock_connect(relay.hosts)
        path = f"{zklock_path}/lock"
        lock, held = Lock(client, path), Lock(client, f"{path}-held")
        grant, kept = granted(lock), granted(held)
        relay.refuse(-126, 2, DELETE)
        grant.abandon()
        passes_on(other, path)
        assert relay.refused[DELETE] == 2
        kept.verify()
        kept.release()
