"""Adapters for frameworks: an exception of a signal handler leaves nothing that others wait for."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import celery
import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from kazoo.protocol.states import KeeperState

from tests.at_once import at_once
from tests.unit.bytecodes import nothing_collected
from tests.unit.fencing.strikes import interrupted
from zklock.contrib._clients import client_for, end_all
from zklock.contrib.apscheduler import LeaderJobs
from zklock.contrib.celery import LeaderScheduler

SOON = 60.0
NOWHERE = "127.0.0.1:1"


def strike(call: Callable[[], object]) -> None:
    """Interrupt a call, which is repeated, at many moments."""
    # logging takes a lock when it looks up a level for the first time. A strike just then would
    # leave it taken, and later tests would hang.
    for level in (logging.INFO, logging.WARNING):
        logging.getLogger("zklock").isEnabledFor(level)

    def again() -> None:
        while True:
            call()

    with nothing_collected():
        interrupted(again, lambda: None, 0.000_002)
    assert ends(lambda: logging.getLogger("new").isEnabledFor(logging.INFO)), "logging is locked"


def ends(call: Callable[[], object]) -> bool:
    """Tell whether a call on another thread ends."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(SOON)
    return not thread.is_alive()


class Client(contextlib.nullcontext[None]):
    """Stands for a client; ``ended`` tells whether it was."""

    ended = False
    client_state = KeeperState.CONNECTED

    def __exit__(self, *_: object) -> None:
        self.ended = True


pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Python swallows what a handler raises in the callback of a weak reference."""


def test_the_clients_of_a_process() -> None:
    client = Client()
    make: Any = lambda: client  # noqa: E731
    strike(lambda: client_for("key", make))
    assert ends(lambda: client_for("key", make))
    assert ends(end_all)
    assert client.ended


def test_clients_that_are_made_at_once_are_one() -> None:
    for _ in range(50):
        made: list[Any] = []

        def make(made: list[Any] = made) -> Any:
            client = Client()
            made.append(client)
            return client

        got = at_once(*[lambda make=make: client_for("key", make)] * 3)
        (client,) = {id(each): each for each in got}.values()
        assert [each for each in made if not each.ended] == [client]
        end_all()


@pytest.mark.parametrize("state", [KeeperState.CLOSED, KeeperState.AUTH_FAILED])
def test_a_client_that_is_closed_for_good_is_followed_by_another_one(state: str) -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(Client())
        return made[-1]

    for number in range(1, 4):
        for client_state in (KeeperState.CONNECTED, KeeperState.CONNECTING):
            client_for("key", make).client_state = client_state
            assert client_for("key", make) is made[-1]
        assert len(made) == number
        made[-1].client_state = state
    end_all()
    assert all(client.ended for client in made)


def over() -> Any:
    """Return a leadership that has to end."""
    stop = threading.Event()
    stop.set()
    return SimpleNamespace(should_stop=stop, held=True)


def test_ticks_of_beat() -> None:
    app = celery.Celery("struck", set_as_current=False)
    app.conf.update(zklock_hosts=NOWHERE)
    scheduler = LeaderScheduler(app, lazy=True)
    strike(scheduler.tick)
    assert ends(lambda: scheduler._lead(over()))


def test_jobs_of_apscheduler(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR", "zklock")
    jobs = LeaderJobs(BackgroundScheduler(timezone="UTC"), NOWHERE, "/jobs")
    strike(jobs.only(lambda: None))
    assert ends(lambda: jobs._lead(over()))
