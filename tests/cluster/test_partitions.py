"""H3: cut off with its server, a holder's lease ends before anybody else is granted.

Many holders at once, each with a client, a lock and a rival of its own, in different phases of
their heartbeats: one cut is that many runs. The margin of a run is the time from the moment at
which its holder noticed the loss to the moment at which its rival was granted.

By default one of them. The nightly run has a few minutes' worth, which is all that is marked, and
with ``ZKLOCK_PARTITIONS=all`` there is the whole matrix.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

import zklock
from tests.backends import QUICK_ELECTIONS, backend_to_cut
from tests.contract.support import LEASE_FRACTION, boottime
from tests.stopwatch import Stopwatch
from tests.timed import TimedGrant, timed_grants
from zklock import Client
from zklock.testing import Ensemble, ZooKeeperServer, wait_for

pytestmark = pytest.mark.cluster

RUNS = 10
ALL = os.environ.get("ZKLOCK_PARTITIONS") == "all"
SECONDS = 120.0
REPEATED = pytest.mark.thorough(
    "the partitions with ten holders, of a quarter to half a minute each by themselves: one with a "
    "cut-off follower runs"
)


@dataclass(frozen=True)
class Setting:
    """Of the servers: milliseconds a tick, and ticks."""

    tick_time: int
    sync_limit: int

    def __str__(self) -> str:
        return f"tick {self.tick_time / 1000:g} s, syncLimit {self.sync_limit}"


USUAL = Setting(2000, 5)
FAST = Setting(500, 20)


def sessions(few: dict[Setting, Sequence[float]], shortest: float = 0.0) -> list[Any]:
    """Return the settings and session timeouts to run, in seconds; the usual setting takes long."""
    chosen = {USUAL: (4.0, 6.0, 10.0), FAST: (1.1, 2.0, 4.0, 6.0, 10.0)} if ALL else few
    return [
        pytest.param(setting, session, marks=[REPEATED] * (setting == USUAL and not ALL))
        for setting, many in chosen.items()
        for session in many
        if session >= shortest
    ]


@pytest.fixture(scope="module")
def ensembles() -> Iterator[Callable[[Setting], Ensemble]]:
    """Return the ensemble with such a setting; one runs at a time."""
    backend = backend_to_cut()
    running: dict[Setting, Ensemble] = {}

    def get(setting: Setting) -> Ensemble:
        if setting not in running:
            for other in running.values():
                other.close()
            running.clear()
            running[setting] = Ensemble(
                3,
                tick_time=setting.tick_time,
                sync_limit=setting.sync_limit,
                min_session_timeout=2 * setting.tick_time,
                backend=backend,
                system_properties=QUICK_ELECTIONS,
            )
            running[setting].start()
        ensemble = running[setting]
        ensemble.heal_all()
        ensemble.start()
        return ensemble

    with timed_grants():
        yield get
    for ensemble in running.values():
        ensemble.close()


@dataclass
class Duel:
    """A holder that is going to be cut off, and a rival on the other side."""

    path: str
    holder: Client
    rival: Client
    losses: list[zklock.Loss] = field(default_factory=list)
    told: threading.Event = field(default_factory=threading.Event)
    grant: TimedGrant | None = None
    won: Future[tuple[TimedGrant, bool]] | None = None

    def begin(self) -> None:
        """Have the holder acquire."""
        grant = zklock.Lock(self.holder, self.path, on_lost=self.lost).acquire(timeout=SECONDS)
        assert isinstance(grant, TimedGrant)
        self.grant = grant

    def lost(self, loss: zklock.Loss) -> None:
        self.losses.append(loss)
        self.told.set()

    def queue(self, pool: ThreadPoolExecutor) -> None:
        """Have the rival wait its turn, and see it queued."""
        lock = zklock.Lock(self.rival, self.path)

        def win() -> tuple[TimedGrant, bool]:
            grant = lock.acquire(timeout=SECONDS)
            assert isinstance(grant, TimedGrant)
            assert self.grant is not None
            return grant, self.grant.held

        self.won = pool.submit(win)
        wait_for(lambda: len(lock.contenders()) == 2, 30, "the rival in the queue")

    def judge(self) -> None:
        """Wait for the rival's grant: the holder knew earlier."""
        assert self.won is not None
        assert self.grant is not None
        rival, still_held = self.won.result(SECONDS)
        assert not still_held
        assert not self.grant.held
        assert rival.token > self.grant.token
        assert self.told.wait(10)
        (loss,) = self.losses
        assert loss.reason in {zklock.LossReason.LEASE_LAPSED, zklock.LossReason.SESSION_EXPIRED}
        assert loss.noticed < rival.began, loss.noticed - rival.began


def judge(made: list[Duel]) -> None:
    """Wait for the outcome of each duel."""
    for duel in made:
        duel.judge()


@contextlib.contextmanager
def duels(
    holders: str, rivals: str, session: float, count: int = RUNS, **options: Any
) -> Iterator[tuple[list[Duel], ThreadPoolExecutor]]:
    """Connect so many holders and rivals, each holder a little later in its heartbeat's phase."""
    name = f"/partitions/{time.time_ns()}"
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(count))
        made = []

        def connect(hosts: str) -> Client:
            client = zklock.connect(hosts, session, **options)
            stack.callback(client.close)
            stack.callback(client.stop)
            assert isinstance(client.handler, zklock.Handler)
            assert client.handler.session_timeout == session
            return client

        for number in range(count):
            made.append(Duel(f"{name}/{number}", connect(holders), connect(rivals)))
            time.sleep(session / 10 / count)
        yield made, pool


def hosts(servers: Sequence[ZooKeeperServer]) -> str:
    return ",".join(server.hosts for server in servers)


def others(ensemble: Ensemble, than: ZooKeeperServer) -> list[ZooKeeperServer]:
    return [server for server in ensemble.servers if server is not than]


Ensembles = Callable[[Setting], Ensemble]


@pytest.mark.hazard("H3")
@pytest.mark.slow("an ensemble, and a partition that outlasts sessions")
@pytest.mark.parametrize(
    "idle",
    [
        pytest.param(False, id="busy"),
        pytest.param(True, id="after an idle time", marks=REPEATED),
    ],
)
@pytest.mark.parametrize(("setting", "session"), sessions({USUAL: (4.0,), FAST: (4.0,)}))
def test_h3_cut_off_follower(
    ensembles: Ensembles,
    setting: Setting,
    session: float,
    idle: bool,
) -> None:
    ensemble = ensembles(setting)
    follower = ensemble.followers()[0]
    rivals = hosts(others(ensemble, follower))
    with duels(follower.hosts, rivals, session) as (made, pool):
        if idle:
            idling(session)
            hold_on(made, session)
        else:
            hold_on(made, session, pool)
        ensemble.cut_from_peers(follower)
        if idle:
            for duel in made:
                duel.queue(pool)
        judge(made)


@pytest.mark.hazard("H3")
@pytest.mark.slow("an ensemble, and a partition that outlasts sessions")
@pytest.mark.parametrize(
    "restart",
    [
        pytest.param(False, id="cut"),
        pytest.param(True, id="followers restarted", marks=REPEATED),
    ],
)
@pytest.mark.parametrize(("setting", "session"), sessions({FAST: (4.0,)}))
def test_h3_cut_off_leader(
    ensembles: Ensembles,
    setting: Setting,
    session: float,
    restart: bool,
) -> None:
    """A cut-off leader believes for syncLimit ticks that it leads, and answers ``sync``."""
    ensemble = ensembles(setting)
    leader = ensemble.leader()
    followers = others(ensemble, leader)
    with duels(leader.hosts, hosts(followers), session) as (made, pool):
        hold_on(made, session, pool)
        ensemble.cut_from_peers(leader)
        if restart:
            for server in followers:
                server.kill()
            for server in followers:
                server.launch()
        judge(made)


@REPEATED
@pytest.mark.hazard("H3")
@pytest.mark.slow("an ensemble, and a partition that outlasts sessions")
@pytest.mark.parametrize(("setting", "session"), sessions({FAST: (20.0,), USUAL: (20.0,)}, 4.0))
def test_h3_killed_leader_loses_nothing(
    ensembles: Ensembles,
    setting: Setting,
    session: float,
) -> None:
    """The sessions outlive the leader: the locks stay held, given a lease (2/3 of the timeout)
    that outlasts the election.
    """
    ensemble = ensembles(setting)
    leader = ensemble.leader()
    followers = others(ensemble, leader)
    with duels(hosts(followers), hosts(followers), session) as (made, pool):
        hold_on(made, session, pool)
        leader.kill()
        wait_for_proof(made, session, boottime())
        nothing_lost(made)


def nothing_lost(made: list[Duel]) -> None:
    """Check that all hold, and have them release: then it is the turn of the rivals."""
    for duel in made:
        assert duel.grant is not None
        assert duel.grant.held
        assert not duel.losses
        duel.grant.verify()
        duel.grant.release()
    for duel in made:
        assert duel.won is not None
        assert duel.grant is not None
        rival, still_held = duel.won.result(SECONDS)
        assert not still_held
        assert rival.token > duel.grant.token


def hold_on(made: list[Duel], session: float, pool: ThreadPoolExecutor | None = None) -> None:
    """Have all hold; with a pool, have the rivals queue, and let a session get old.

    Nothing may be lost by then, but for what a machine that stood still has cost.
    """
    with Stopwatch() as watch:
        for duel in made:
            duel.begin()
            if pool is not None:
                duel.queue(pool)
        if pool is not None:
            idling(session)
    stalled = watch.total - watch.awake
    for duel in made:
        assert duel.grant is not None
        assert duel.grant.held or stalled > session / 4, (stalled, duel.losses)


def idling(session: float) -> None:
    """Let a session get as old as its timeout, so that every touch that counts is a late one."""
    threading.Event().wait(session * 1.2)


def wait_for_proof(made: list[Duel], session: float, killed: float) -> None:
    """Wait until every lease rests on a proof sent after this time; none runs out."""

    def renewed() -> bool:
        now = boottime()
        left = min(duel.grant.remaining() for duel in made if duel.grant is not None)
        assert left > 0, "a lease ran out"
        return now + left > killed + session * LEASE_FRACTION

    wait_for(renewed, 60, "renewed leases", interval=0.005)
