"""What a signal handler raises while a thread is being started arrives as it is."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import zklock
from tests.contract.support import SOON
from zklock.testing import wait_for

STARTS = "_start_joinable_thread", "_start_new_thread"
"""What ``Thread.start()`` calls in C: of Python 3.13, and before."""


class Limit(Exception):
    """What the handler of a time limit raises."""


@pytest.fixture(params=["it runs", "its starter waits"])
def strike(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Return what has the exception strike in ``Thread.start()`` of the next thread of this name.

    It strikes where Python looks for signals: once the call in C has returned that starts the
    thread, which has noted by then that it runs; or once its starter has given back the lock of the
    condition in which it waits for that. What an earlier test has left running starts its threads
    unharmed.
    """

    def arm(name: str) -> None:
        start = next(name for name in STARTS if hasattr(threading, name))
        begin = getattr(threading, start)
        armed = [name]
        others = {*threading.enumerate()} - {threading.current_thread()}
        waits = threading.Event()

        def profile(frame: FrameType, event: str, argument: object) -> None:
            if (event, frame.f_code.co_name) == ("c_return", "_release_save"):
                sys.setprofile(None)
                waits.set()
                raise Limit

        def struck(run: Any, *args: Any, **options: Any) -> Any:
            thread: threading.Thread = run.__self__
            ours = threading.current_thread() not in others
            if not (thread.name.startswith(name) and armed and ours):
                return begin(run, *args, **options)
            armed.clear()
            if request.param == "it runs":
                begin(run, *args, **options)
                wait_for(lambda: thread not in threading._limbo, SOON)  # type: ignore[attr-defined]
                raise Limit
            begun = begin(lambda: waits.wait(SOON) and run(), *args, **options)
            sys.setprofile(profile)
            return begun

        monkeypatch.setattr(threading, start, struck)

    return arm


@pytest.mark.hazard("H55")
@pytest.mark.parametrize("name", ["kazoo-", "zklock-callback"])  # the first is kazoo's
def test_in_connect(zklock_hosts: str, strike: Any, name: str) -> None:
    strike(name)
    with pytest.raises(Limit):
        zklock.connect(zklock_hosts)


@pytest.mark.parametrize("name", ["zklock-lead", "zklock-stop"])
def test_in_an_election(zklock_hosts: str, zklock_path: str, strike: Any, name: str) -> None:
    with zklock.connect(zklock_hosts) as client:
        election = zklock.LeaderElection(client, zklock_path)
        strike(name)
        with pytest.raises(Limit):
            election.run(lambda leadership: leadership.should_stop.wait(), threading.Event())
        wait_for(lambda: not election.members(), SOON)


def test_in_a_pool(zklock_hosts: str, zklock_path: str, strike: Any) -> None:
    with zklock.connect(zklock_hosts) as client:
        pool = zklock.WorkerPool(client, zklock_path, shards=1)
        strike("zklock-campaign")
        with pytest.raises(Limit):
            pool.start()
        wait_for(lambda: not pool.members(), SOON)
        with pool:
            wait_for(lambda: len(pool.members()) == 1, SOON)
