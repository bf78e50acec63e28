"""The faults: which, when, on whom. The schedule is pure and comes from the seed alone.

Four tracks run side by side, each with one fault at a time, so that faults of different kinds
meet: on the servers, on the network of the clients, on the workers, and on those of a pool. Who
leads, and which node is first in a queue, is found out when a fault begins; all else is in the
schedule.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from tests.chaos.history import History
from tests.chaos.workers import CALM, Pool, Workers
from zklock._ground.clock import clock
from zklock._recipes import names
from zklock.testing import Ensemble, StartFailed, ZooKeeperServer
from zklock.testing.proxy import FaultProxy

log = logging.getLogger("chaos")

UNANSWERED = exceptions.KazooException, KazooTimeoutError
SERVING_SECONDS = 20.0
"""How long a fault of the servers waits for all of them to serve again."""


class Track(Enum):
    """Faults of one track follow each other; the weights say how often each comes.

    Durations are drawn between the two multiples of the session timeout.
    """

    SERVERS = "servers"
    CLIENTS = "clients"
    WORKERS = "workers"
    POOL = "pool"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault, and what carries it out."""

    name: str
    track: Track
    weight: float
    shortest: float
    longest: float
    act: Callable[[Nemesis, Fault], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, ``at`` seconds from the start; ``pick`` chooses its target, in 0 … 1.

    ``degree``, in 0 … 1 too, says how bad: how long the delay, whether all servers or one.
    """

    at: float
    kind: Kind
    seconds: float
    pick: float
    degree: float


def schedule(seed: str, track: Track, session: float) -> Iterator[Fault]:
    """Yield the faults of a track without end, the same for the same seed."""
    dice = random.Random(f"{seed}/{track.value}")
    kinds = [kind for kind in KINDS if kind.track is track]
    weights = [kind.weight for kind in kinds]
    at = dice.uniform(1, 3)
    while True:
        kind = dice.choices(kinds, weights)[0]
        seconds = session * dice.uniform(kind.shortest, kind.longest)
        yield Fault(at, kind, seconds, dice.random(), dice.random())
        at += seconds + session * dice.uniform(0.2, 2) * (0.3 if track is Track.POOL else 1)


@dataclass(frozen=True, slots=True)
class Victims:
    """What there is to hurt. ``proxies[i]`` stand between one group of workers and the servers.

    ``upgrade`` gives a server, by its number, another release for its next start. ``upgrades``: how
    many seconds after the start one server after the other is due for that, between two faults.
    """

    ensemble: Ensemble
    proxies: Sequence[Sequence[FaultProxy]]
    workers: Workers
    pool: Pool
    locks: Sequence[str]
    upgrade: Callable[[int], None] | None = None
    upgrades: Sequence[float] = ()


class Nemesis:
    """Carries out the schedule of a seed, on a thread for each track, and notes what it does.

    Notes ``fault`` as each begins, ``kill``, ``pause`` once it is over, ``break`` just before it
    deletes a node.
    """

    def __init__(self, seed: str, session: float, victims: Victims, history: History) -> None:
        self._seed = seed
        self._session = session
        self._victims = victims
        self._ensemble = victims.ensemble
        self._history = history
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(track,), name=f"nemesis-{track.value}")
            for track in Track
        ]
        self._failure: BaseException | None = None
        self._begun = 0.0

    def start(self) -> None:
        """Begin."""
        self._begun = clock()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Undo every fault under way and return; raises what went wrong with the faults."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self, track: Track) -> None:
        try:
            upgrades = enumerate(self._victims.upgrades if track is Track.SERVERS else ())
            due = next(upgrades, None)
            for fault in schedule(self._seed, track, self._session):
                if self._over.wait(max(0.0, self._begun + fault.at - clock())):
                    return
                if due is not None and clock() - self._begun >= due[1]:
                    self._restart(Fault(due[1], UPGRADE, 0, 0, 0), self._ensemble.servers[due[0]])
                    due = next(upgrades, None)
                fault.kind.act(self, fault)
        except BaseException as error:
            log.exception("the nemesis failed")
            self._failure = error

    def _note(self, fault: Fault, *targets: str) -> None:
        what, target = fault.kind.name, ", ".join(targets)
        self._history.note("fault", what=what, target=target, seconds=round(fault.seconds, 3))
        log.info("%s: %s for %.2f s", what, target, fault.seconds)

    def _last(self, fault: Fault) -> None:
        self._over.wait(fault.seconds)

    # Servers.

    def _others(self, server: ZooKeeperServer) -> list[ZooKeeperServer]:
        return [each for each in self._ensemble.servers if each is not server]

    def _hit(self, fault: Fault) -> list[ZooKeeperServer]:
        """Return whom it strikes: that is in the name of its kind."""
        leader = self._ensemble.leader()
        followers = self._others(leader)
        follower = followers[int(fault.pick * len(followers))]
        whom = fault.kind.name.replace(",", "").split()[1]
        return {"leader": [leader], "follower": [follower], "majority": [leader, follower]}[whom]

    @contextlib.contextmanager
    def _serving_again(self, fault: Fault, *servers: ZooKeeperServer) -> Iterator[None]:
        self._note(fault, *(server.hosts for server in servers))
        try:
            yield
        finally:
            # An election among members that come and go can take more than one round.
            with contextlib.suppress(StartFailed):
                self._ensemble.wait_until_serving(SERVING_SECONDS)

    def kill(self, fault: Fault) -> None:
        servers = self._hit(fault)
        with self._serving_again(fault, *servers):
            for server in servers:
                server.kill()
            self._last(fault)
            for server in servers:
                server.launch()

    def restart(self, fault: Fault) -> None:
        self._restart(fault, *self._hit(fault))

    def _restart(self, fault: Fault, server: ZooKeeperServer) -> None:
        with self._serving_again(fault, server):
            server.stop()
            if fault.kind is UPGRADE and self._victims.upgrade is not None:
                self._victims.upgrade(self._ensemble.servers.index(server))
            server.launch()

    def pause(self, fault: Fault) -> None:
        (server,) = self._hit(fault)
        with self._serving_again(fault, server):
            server.pause()
            self._last(fault)
            server.resume()

    def cut(self, fault: Fault) -> None:
        (server,) = self._hit(fault)
        with self._serving_again(fault, server):
            self._ensemble.cut_from_peers(server)
            others = self._others(server) if "restart" in fault.kind.name else []
            for other in others:
                other.kill()
            for other in others:
                other.launch()
            self._last(fault)
            self._ensemble.heal(server)

    # The network of the clients.

    def network(self, fault: Fault, begin: Callable[[FaultProxy], None]) -> None:
        group = self._victims.proxies[int(fault.pick * len(self._victims.proxies))]
        some = group if fault.degree < 0.6 else group[: 1 + int(fault.degree * 10) % 2]
        self._note(fault, *(proxy.hosts for proxy in some))
        for proxy in some:
            begin(proxy)
        self._last(fault)
        for proxy in some:
            proxy.restore()

    def delay(self, fault: Fault) -> None:
        self.network(fault, lambda proxy: proxy.delay(fault.degree * self._session / 3))

    @contextlib.contextmanager
    def _operating(self) -> Iterator[KazooClient]:
        client = KazooClient(self._ensemble.hosts, timeout=self._session * 2)
        try:
            client.start(5)
            yield client
        finally:
            client.stop()
            client.close()

    def _lock(self, fault: Fault) -> str:
        return self._victims.locks[int(fault.pick * len(self._victims.locks))]

    def delete_node(self, fault: Fault) -> None:
        lock = self._lock(fault)
        with contextlib.suppress(*UNANSWERED), self._operating() as client:
            children = client.get_children_async(lock).get(timeout=5)
            for first in names.Queue(children).contenders[:1]:
                node = f"{lock}/{first.text}"
                self._note(fault, node)
                self._history.note("break", node=node)
                client.delete_async(node).get(timeout=5)

    def delete_lock(self, fault: Fault) -> None:
        """Delete a lock's parent as soon as it is found empty: its numbers start again at 0."""
        with contextlib.suppress(*UNANSWERED), self._operating() as client:
            until = clock() + fault.seconds
            while clock() < until and not self._over.wait(0.002):
                with contextlib.suppress(exceptions.NotEmptyError):
                    client.delete_async(self._lock(fault)).get(timeout=5)
                    self._note(fault, self._lock(fault))
                    return

    # Workers.

    def kill_worker(self, fault: Fault) -> None:
        number = int(fault.pick * self._victims.workers.count)
        worker = self._victims.workers.kill(number)
        if worker is not None:
            self._history.note("kill", worker=worker)
            self._note(fault, worker)
            self._last(fault)
            self._victims.workers.start(number)

    def pause_worker(self, fault: Fault) -> None:
        number = int(fault.pick * self._victims.workers.count)
        at = clock()
        worker = self._victims.workers.signal(number, signal.SIGSTOP)
        if worker is not None:
            self._note(fault, worker)
            self._last(fault)
            self._victims.workers.signal(number, signal.SIGCONT)
            self._history.note("pause", at=at, worker=worker, until=clock())

    def pool(self, fault: Fault) -> None:
        pool = self._victims.pool
        worker = pool.workers[int(fault.pick * len(pool.workers))]
        self._note(fault, worker.identity)
        match fault.kind.name.removeprefix("pool: "):
            case "kill":
                self._history.note("kill", worker=worker.identity)
                pool.replace(worker)
            case "pause":
                at = clock()
                os.kill(worker.process.pid, signal.SIGSTOP)
                self._last(fault)
                self._history.note("pause", at=at, worker=worker.identity, until=clock())
                os.kill(worker.process.pid, signal.SIGCONT)
            case "drain":
                worker.ask("drain", 0.0)
                self._last(fault)
                worker.ask("resume")
            case "weigh":
                worker.ask("capacity", (0.5, 1.0, 2.0, 3.0)[int(fault.degree * 4)])
            case "leave":
                worker.ask("stop")
                worker.process.wait(CALM)
                pool.replace(worker)
            case "resize":
                worker.ask("shards", round(pool.shards * (0.5 + 1.5 * fault.degree)))


TO_SERVER = partial(FaultProxy.blackhole, to_client=False)
TO_CLIENT = partial(FaultProxy.blackhole, to_server=False)


def on_network(begin: Callable[[FaultProxy], None]) -> Callable[[Nemesis, Fault], None]:
    """Return what begins a fault of some proxies, and ends it."""
    return lambda nemesis, fault: nemesis.network(fault, begin)


KINDS: Sequence[Kind] = (
    Kind("kill leader", Track.SERVERS, 3, 0.1, 2, Nemesis.kill),
    Kind("kill follower", Track.SERVERS, 2, 0.1, 2, Nemesis.kill),
    Kind("kill majority", Track.SERVERS, 1, 0.1, 2, Nemesis.kill),
    Kind("restart leader", Track.SERVERS, 1, 0, 0, Nemesis.restart),
    Kind("restart follower", Track.SERVERS, 1, 0, 0, Nemesis.restart),
    Kind("pause leader", Track.SERVERS, 2, 0.2, 4, Nemesis.pause),
    Kind("pause follower", Track.SERVERS, 2, 0.2, 4, Nemesis.pause),
    Kind("cut leader", Track.SERVERS, 3, 0.5, 4, Nemesis.cut),
    Kind("cut follower", Track.SERVERS, 4, 0.5, 4, Nemesis.cut),
    Kind("cut leader, restart followers", Track.SERVERS, 3, 2, 4, Nemesis.cut),
    Kind("drop connections", Track.CLIENTS, 4, 0, 0, on_network(FaultProxy.drop)),
    Kind("cut clients", Track.CLIENTS, 3, 0.2, 2, on_network(FaultProxy.cut)),
    Kind("black hole", Track.CLIENTS, 3, 0.2, 2, on_network(FaultProxy.blackhole)),
    Kind("black hole to server", Track.CLIENTS, 2, 0.2, 2, on_network(TO_SERVER)),
    Kind("black hole to client", Track.CLIENTS, 2, 0.2, 2, on_network(TO_CLIENT)),
    Kind("delay", Track.CLIENTS, 3, 0.5, 3, Nemesis.delay),
    Kind("hold", Track.CLIENTS, 3, 0.2, 2, on_network(FaultProxy.hold)),
    Kind("delete holder's node", Track.CLIENTS, 2, 0, 0, Nemesis.delete_node),
    Kind("delete empty lock", Track.CLIENTS, 2, 0.2, 0.5, Nemesis.delete_lock),
    Kind("kill worker", Track.WORKERS, 2, 0.1, 1, Nemesis.kill_worker),
    Kind("pause worker", Track.WORKERS, 3, 0.3, 3, Nemesis.pause_worker),
    Kind("blink worker", Track.WORKERS, 3, 0.02, 0.3, Nemesis.pause_worker),
    Kind("pool: kill", Track.POOL, 1, 0, 0, Nemesis.pool),
    Kind("pool: pause", Track.POOL, 1, 0.1, 2, Nemesis.pool),
    Kind("pool: drain", Track.POOL, 1, 0, 0.25, Nemesis.pool),
    Kind("pool: weigh", Track.POOL, 1, 0, 0, Nemesis.pool),
    Kind("pool: leave", Track.POOL, 1, 0, 0, Nemesis.pool),
    Kind("pool: resize", Track.POOL, 1, 0, 0, Nemesis.pool),
)
UPGRADE = Kind("upgrade", Track.SERVERS, 0, 0, 0, Nemesis.restart)
"""A server is stopped, and comes back as one of another release."""
