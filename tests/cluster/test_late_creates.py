"""A create of a lost connection that is carried out when its client has queued anew elsewhere.

A follower is cut off from the leader. It keeps the creates of a client's connection, and behind
them a handshake that the client has given up. The client goes to another server and is granted all
locks there, by other creates. Then the follower is back. Its backlog reaches the leader: the
handshake makes it the session's server again, and the creates are carried out.

Many locks at once: one cut is that many runs. The leader takes a handshake from the wire at once,
while a create waits in its queue. Requests of somebody else, earlier in the backlog, make the queue
long enough.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from kazoo.client import KazooClient

import zklock
from tests.backends import backend_to_cut
from zklock._core.session import Session
from zklock.testing import Direction, Ensemble, FaultProxy, Frame, FrameKind, wait_for
from zklock.testing.status import four_letter

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow("three servers, and a cut of a minute"),
    pytest.mark.hazard("H56"),
]

COUNT = 30
SESSION = 10.0
SECONDS = 60.0
SETTLED = 10.0
"""Seconds after the end of the cut in which every late node is gone."""

MULTIS, CHECKS = 20, 100
"""The requests of somebody else: 36 kB, so that the sockets hold all that the follower sends."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Ensemble]:
    # A follower that is cut off for less than 10 s goes on with what it has.
    with Ensemble(3, tick_time=500, sync_limit=20, backend=backend_to_cut()) as running:
        yield running


@pytest.fixture
def stage(ensemble: Ensemble) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(ensemble, stack)


class Stage:
    """A client that is sent from one server to another, and two others that stay where they are.

    ``neighbour`` is on the follower that is cut off, ``rival`` on the leader. ``hosts`` is where
    the proxy leads to.
    """

    def __init__(self, ensemble: Ensemble, stack: ExitStack) -> None:
        self.ensemble = ensemble
        self.leader = ensemble.leader()
        self.follower, self.other = ensemble.followers()
        self.hosts = self.follower.hosts
        self.proxy = stack.enter_context(FaultProxy(self))
        self.neighbour = KazooClient(self.follower.hosts, timeout=SECONDS)
        self.rival = zklock.connect(self.leader.hosts, SECONDS)
        self.client: Any = None
        self._stack = stack
        self._pool = stack.enter_context(ThreadPoolExecutor(COUNT))
        self.neighbour.start(SECONDS)
        for each in (self.neighbour, self.rival):
            stack.callback(each.close)
            stack.callback(each.stop)
        self.root = f"/late/{time.time_ns()}"
        self.paths: list[str] = []
        self.used: set[str] = set()

    def locks(self, make: Callable[[Any, str], Any], *, paths: int = COUNT) -> list[Any]:
        """Connect the client to the follower, and return its locks."""
        self.client = zklock.connect(self.proxy.hosts, SESSION)
        self._stack.callback(self.client.close)
        self._stack.callback(self.client.stop)
        self.paths = [f"{self.root}/{number}" for number in range(paths)]
        locks = [make(self.client, self.paths[number % paths]) for number in range(COUNT)]
        for path in self.paths:
            self.client.ensure_path(path)
        for lock in locks:
            assert not lock.contenders()  # kazoo makes sure of the path here
        return locks

    def play(self, locks: Sequence[Any], *, stale_handshake: bool = True) -> list[Any]:
        """Have the creates lost at the follower, all locks granted elsewhere, and the cut healed.

        When this returns what ``acquire`` returned, all that the follower had kept has been carried
        out or refused.
        """
        session = self.client.client_id
        epoch = self.leader.status().zxid >> 32
        mark = self.proxy.mark()
        self.ensemble.cut_from_peers(self.follower)
        multis = [self._occupy() for _ in range(MULTIS)]
        asked = [self._pool.submit(lock.acquire, timeout=SECONDS) for lock in locks]
        self.proxy.wait_until(lambda: len(self._creates(mark)) == COUNT, SECONDS)
        last = self._creates(mark)[-1]
        wait_for(lambda: self._has(last, session[0]), SECONDS, "the creates at the follower")
        if stale_handshake:
            self.proxy.drop()
            wait_for(lambda: self._shakes_hands(session[0]), SECONDS, "a handshake there")
        assert {each.kind for each in self._creates(mark)} == {FrameKind.REQUEST}, "answered"
        self.hosts = self.other.hosts
        self.proxy.drop()
        granted = [each.result(SECONDS) for each in asked]
        assert all(granted)
        self.used = self.nodes()
        assert len(self.used) == COUNT, "the creates that were lost are not carried out so far"
        self.ensemble.heal(self.follower)
        for each in multis:
            each.get(timeout=SECONDS)
        self.neighbour.create(f"{self.root}/after")
        assert self.leader.status().zxid >> 32 == epoch
        # Its connection may have been closed, because the session had moved.
        assert wait_for(lambda: self.client.client_id, SECONDS, "a connection") == session
        return granted

    def _occupy(self) -> Any:
        transaction = self.neighbour.transaction()
        for _ in range(CHECKS):
            transaction.check("/", 0)
        return transaction.commit_async()

    def _creates(self, since: int) -> list[Frame]:
        frames = self.proxy.frames
        return [each for each in frames if each.number > since and each.op.startswith("create")]

    def _has(self, frame: Frame, session: int) -> bool:
        """Whether the follower has read this frame; it says how many it has read."""
        sent = [
            each
            for each in self.proxy.frames
            if each.connection == frame.connection
            and each.direction is Direction.TO_SERVER
            and each.number <= frame.number
        ]
        read = re.search(rf"recved=(\d+),sent=\d+,sid=0x{session:x},", self._connections())
        return read is not None and int(read[1]) >= len(sent)

    def _shakes_hands(self, session: int) -> bool:
        return f"recved=1,sent=0,sid=0x{session:x}," in self._connections()

    def _connections(self) -> str:
        return four_letter(self.follower.host, self.follower.port, "cons")

    def nodes(self) -> set[str]:
        """Return the paths of all contenders."""
        self.rival.sync(self.root)
        return {f"{path}/{name}" for path in self.paths for name in self.rival.get_children(path)}

    def late(self) -> set[str]:
        """Return the paths of the contenders that nobody uses."""
        return self.nodes() - self.used

    def made(self) -> int:
        """Return how many contenders there have been, those that are gone included."""
        self.rival.sync(self.root)
        stats = [self.rival.exists(path) for path in self.paths]
        # ZooKeeper counts a creation and a deletion of a child each.
        return sum((stat.cversion + stat.numChildren) // 2 for stat in stats)


@pytest.mark.parametrize(
    ("make", "paths"),
    [(zklock.Lock, COUNT), (zklock.ReadLock, 2)],
    ids=["a lock each", "two locks of many readers"],
)
def test_a_create_that_is_carried_out_late_keeps_nobody_waiting(
    stage: Stage,
    make: Callable[[Any, str], Any],
    paths: int,
) -> None:
    grants = stage.play(stage.locks(make, paths=paths))
    wait_for(lambda: not stage.late(), SETTLED, lambda: f"the end of {stage.late()}")
    assert stage.made() > COUNT, "no create was late"
    for grant in grants:
        grant.release()
    assert stage.nodes() == set()
    for path in stage.paths:
        assert zklock.Lock(stage.rival, path).acquire(blocking=False)


def of_kazoo(client: KazooClient, path: str) -> Any:
    return client.Lock(path)


@pytest.mark.parametrize("make", [zklock.Lock, of_kazoo], ids=["zklock, looking no more", "kazoo"])
def test_a_late_create_that_nobody_looks_for_stands_until_its_session_ends(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, make: Callable[[Any, str], Any]
) -> None:
    monkeypatch.setattr(Session, "abandon_create", lambda *_: None)
    locks = stage.locks(make)
    granted = stage.play(locks)
    late = stage.late()
    assert late, "no create was late"
    for held in locks if make is of_kazoo else granted:
        held.release()
    blocked = zklock.Lock(stage.rival, min(late).rpartition("/")[0])
    assert blocked.acquire(timeout=SETTLED) is None
    assert stage.late() == late
    stage.client.stop()
    assert blocked.acquire(timeout=SECONDS)


def test_without_a_stale_handshake_no_create_is_carried_out_late(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper refuses them: the session belongs to another server."""
    monkeypatch.setattr(Session, "abandon_create", lambda *_: None)
    stage.play(stage.locks(zklock.Lock), stale_handshake=False)
    assert stage.made() == COUNT
