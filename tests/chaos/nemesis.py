"""The faults: which, when, on whom. The schedule is pure and comes from the seed alone.

Three tracks run side by side, each with one fault at a time, so that faults of different kinds
meet: on the servers, on the network of the clients, and on the workers. Who leads, and which node
is first in a queue, is found out when a fault begins; all else is in the schedule.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from kazoo import exceptions
from kazoo.client import KazooClient

from tests.chaos.history import History
from zklock._ground.clock import clock
from zklock._recipes import names
from zklock.testing import Ensemble, StartFailed, ZooKeeperServer
from zklock.testing.proxy import FaultProxy

log = logging.getLogger("chaos")

SERVING_SECONDS = 20.0
"""How long a fault of the servers waits for all of them to serve again."""


class Track(Enum):
    """Faults of one track follow each other; the weights say how often each comes.

    Durations are drawn between the two multiples of the session timeout.
    """

    SERVERS = "servers"
    CLIENTS = "clients"
    WORKERS = "workers"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault."""

    name: str
    track: Track
    weight: float
    shortest: float
    longest: float


KINDS: Sequence[Kind] = (
    Kind("kill leader", Track.SERVERS, 3, 0.1, 2),
    Kind("kill follower", Track.SERVERS, 2, 0.1, 2),
    Kind("kill majority", Track.SERVERS, 1, 0.1, 2),
    Kind("restart leader", Track.SERVERS, 1, 0, 0),
    Kind("restart follower", Track.SERVERS, 1, 0, 0),
    Kind("pause leader", Track.SERVERS, 2, 0.2, 4),
    Kind("pause follower", Track.SERVERS, 2, 0.2, 4),
    Kind("cut leader", Track.SERVERS, 3, 0.5, 4),
    Kind("cut follower", Track.SERVERS, 4, 0.5, 4),
    Kind("cut leader, restart followers", Track.SERVERS, 3, 2, 4),
    Kind("drop connections", Track.CLIENTS, 4, 0, 0),
    Kind("cut clients", Track.CLIENTS, 3, 0.2, 2),
    Kind("black hole", Track.CLIENTS, 3, 0.2, 2),
    Kind("black hole to server", Track.CLIENTS, 2, 0.2, 2),
    Kind("black hole to client", Track.CLIENTS, 2, 0.2, 2),
    Kind("delay", Track.CLIENTS, 3, 0.5, 3),
    Kind("hold", Track.CLIENTS, 3, 0.2, 2),
    Kind("delete holder's node", Track.CLIENTS, 2, 0, 0),
    Kind("delete empty lock", Track.CLIENTS, 2, 0.2, 0.5),
    Kind("kill worker", Track.WORKERS, 2, 0.1, 1),
    Kind("pause worker", Track.WORKERS, 3, 0.3, 3),
    Kind("blink worker", Track.WORKERS, 3, 0.02, 0.3),
)


UPGRADE = Kind("upgrade", Track.SERVERS, 0, 0, 0)
"""A server is stopped, and comes back as one of another release."""


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
        at += seconds + session * dice.uniform(0.2, 2)


class Workers(Protocol):
    """What the nemesis may do to the worker processes, which are numbered."""

    def kill(self, number: int) -> str | None:
        """SIGKILL; return the name of the process, ``None`` if there was none."""

    def start(self, number: int) -> None:
        """Start another in its place."""

    def pause(self, number: int) -> str | None:
        """SIGSTOP; return the name of the process, ``None`` if there was none."""

    def resume(self, number: int) -> None:
        """SIGCONT."""


@dataclass(frozen=True, slots=True)
class Victims:
    """What there is to hurt. ``proxies[i]`` stand between one group of workers and the servers.

    ``upgrade`` gives a server, by its number, another release for its next start. ``upgrades``: how
    many seconds after the start one server after the other is due for that, between two faults.
    """

    ensemble: Ensemble
    proxies: Sequence[Sequence[FaultProxy]]
    workers: Workers
    worker_count: int
    locks: Sequence[str]
    upgrade: Callable[[int], None] | None = None
    upgrades: Sequence[float] = ()


class Nemesis:
    """Carries out the schedule of a seed, on a thread for each track, and notes what it does.

    Notes ``fault`` (``what``, ``target``, ``seconds``) as each begins, ``kill`` (``worker``),
    ``pause`` (``worker``, ``until``) once it is over, ``break`` (``node``) just before it deletes
    one.
    """

    def __init__(self, seed: str, session: float, victims: Victims, history: History) -> None:
        self._seed = seed
        self._session = session
        self._victims = victims
        self._history = history
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(track,), name=f"nemesis-{track.value}")
            for track in Track
        ]
        self._failure: BaseException | None = None
        self._begun = 0.0
        self._carry_out: Mapping[str, Callable[[Fault], None]] = {
            "kill leader": lambda it: self._kill(it, [self._leader()]),
            "kill follower": lambda it: self._kill(it, [self._follower(it)]),
            "kill majority": lambda it: self._kill(it, [self._leader(), self._follower(it)]),
            "restart leader": lambda it: self._restart(it, self._leader()),
            "restart follower": lambda it: self._restart(it, self._follower(it)),
            "pause leader": lambda it: self._pause_server(it, self._leader()),
            "pause follower": lambda it: self._pause_server(it, self._follower(it)),
            "cut leader": lambda it: self._cut(it, self._leader()),
            "cut follower": lambda it: self._cut(it, self._follower(it)),
            "cut leader, restart followers": self._cut_and_restart,
            "drop connections": lambda it: self._network(it, FaultProxy.drop),
            "cut clients": lambda it: self._network(it, FaultProxy.cut),
            "black hole": lambda it: self._network(it, FaultProxy.blackhole),
            "black hole to server": lambda it: self._network(
                it, lambda proxy: proxy.blackhole(to_client=False)
            ),
            "black hole to client": lambda it: self._network(
                it, lambda proxy: proxy.blackhole(to_server=False)
            ),
            "delay": lambda it: self._network(
                it, lambda proxy: proxy.delay(it.degree * self._session / 3)
            ),
            "hold": lambda it: self._network(it, FaultProxy.hold),
            "delete holder's node": self._break,
            "delete empty lock": self._prune,
            "kill worker": self._kill_worker,
            "pause worker": self._pause_worker,
            "blink worker": self._pause_worker,
        }

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
                    self._upgrade(Fault(due[1], UPGRADE, 0.0, 0.0, 0.0), due[0])
                    due = next(upgrades, None)
                self._carry_out[fault.kind.name](fault)
        except BaseException as error:
            log.exception("the nemesis failed")
            self._failure = error

    def _note(self, fault: Fault, target: str) -> None:
        self._history.note(
            "fault", what=fault.kind.name, target=target, seconds=round(fault.seconds, 3)
        )
        log.info("%s: %s for %.2f s", fault.kind.name, target, fault.seconds)

    def _last(self, fault: Fault) -> None:
        self._over.wait(fault.seconds)

    # Servers.

    def _leader(self) -> ZooKeeperServer:
        return self._victims.ensemble.leader()

    def _follower(self, fault: Fault) -> ZooKeeperServer:
        leader = self._leader()
        others = [server for server in self._victims.ensemble.servers if server is not leader]
        return others[int(fault.pick * len(others))]

    @contextlib.contextmanager
    def _serving_again(self) -> Iterator[None]:
        try:
            yield
        finally:
            # An election among members that come and go can take more than one round.
            with contextlib.suppress(StartFailed):
                self._victims.ensemble.wait_until_serving(SERVING_SECONDS)

    def _kill(self, fault: Fault, servers: Sequence[ZooKeeperServer]) -> None:
        self._note(fault, ", ".join(server.hosts for server in servers))
        with self._serving_again():
            for server in servers:
                server.kill()
            self._last(fault)
            for server in servers:
                server.launch()

    def _restart(self, fault: Fault, server: ZooKeeperServer) -> None:
        self._note(fault, server.hosts)
        with self._serving_again():
            server.stop()
            server.launch()

    def _upgrade(self, fault: Fault, number: int) -> None:
        server = self._victims.ensemble.servers[number]
        assert self._victims.upgrade is not None
        self._note(fault, server.hosts)
        with self._serving_again():
            server.stop()
            self._victims.upgrade(number)
            server.launch()

    def _pause_server(self, fault: Fault, server: ZooKeeperServer) -> None:
        self._note(fault, server.hosts)
        with self._serving_again():
            server.pause()
            self._last(fault)
            server.resume()

    def _cut(self, fault: Fault, server: ZooKeeperServer) -> None:
        self._note(fault, server.hosts)
        with self._serving_again():
            self._victims.ensemble.cut_from_peers(server)
            self._last(fault)
            self._victims.ensemble.heal(server)

    def _cut_and_restart(self, fault: Fault) -> None:
        leader = self._leader()
        self._note(fault, leader.hosts)
        followers = [each for each in self._victims.ensemble.servers if each is not leader]
        with self._serving_again():
            self._victims.ensemble.cut_from_peers(leader)
            for server in followers:
                server.kill()
            for server in followers:
                server.launch()
            self._last(fault)
            self._victims.ensemble.heal(leader)

    # The network of the clients.

    def _network(self, fault: Fault, begin: Callable[[FaultProxy], None]) -> None:
        group = self._victims.proxies[int(fault.pick * len(self._victims.proxies))]
        some = group if fault.degree < 0.6 else group[: 1 + int(fault.degree * 10) % 2]
        self._note(fault, ", ".join(proxy.hosts for proxy in some))
        for proxy in some:
            begin(proxy)
        self._last(fault)
        for proxy in some:
            proxy.restore()

    @contextlib.contextmanager
    def _client(self) -> Iterator[KazooClient | None]:
        client = KazooClient(self._victims.ensemble.hosts, timeout=self._session * 2)
        try:
            client.start(5)
            yield client
        except client.handler.timeout_exception:
            yield None
        finally:
            client.stop()
            client.close()

    def _break(self, fault: Fault) -> None:
        lock = self._victims.locks[int(fault.pick * len(self._victims.locks))]
        with self._client() as client:
            if client is None:
                return
            try:
                children = client.get_children_async(lock).get(timeout=5)
                queue = names.Queue(children).contenders
                if queue:
                    node = f"{lock}/{queue[0].text}"
                    self._note(fault, node)
                    self._history.note("break", node=node)
                    client.delete_async(node).get(timeout=5)
            except (exceptions.KazooException, client.handler.timeout_exception):
                return

    def _prune(self, fault: Fault) -> None:
        """Delete a lock's parent as soon as it is found empty: its numbers start again at 0."""
        lock = self._victims.locks[int(fault.pick * len(self._victims.locks))]
        with self._client() as client:
            until = clock() + fault.seconds
            while client is not None and clock() < until and not self._over.is_set():
                try:
                    client.delete_async(lock).get(timeout=5)
                except exceptions.NotEmptyError:
                    self._over.wait(0.002)
                except (exceptions.KazooException, client.handler.timeout_exception):
                    return
                else:
                    self._note(fault, lock)
                    return

    # Workers.

    def _kill_worker(self, fault: Fault) -> None:
        number = int(fault.pick * self._victims.worker_count)
        worker = self._victims.workers.kill(number)
        if worker is not None:
            self._history.note("kill", worker=worker)
            self._note(fault, worker)
            self._last(fault)
            self._victims.workers.start(number)

    def _pause_worker(self, fault: Fault) -> None:
        number = int(fault.pick * self._victims.worker_count)
        at = clock()
        worker = self._victims.workers.pause(number)
        if worker is not None:
            self._note(fault, worker)
            self._last(fault)
            self._victims.workers.resume(number)
            self._history.note("pause", at=at, worker=worker, until=clock())
