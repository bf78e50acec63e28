"""How long it takes until another does the work: elections and pools."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection

import zklock
from tests.bench.results import Run
from tests.bench.together import Worker, new_path
from zklock._ground.clock import clock
from zklock._pool.nodes import PoolPaths
from zklock.testing import FaultProxy, ZooKeeperServer, wait_for

MEMBERS = 3
LEADS = "lead"
PATIENCE = 240.0
LOOK_EVERY = 0.01
CAUSES = {
    "election": ("resign", "stop", "crash", "pause", "partition"),
    "pool": ("stop", "drain", "crash", "crash of the leader", "pause", "partition"),
}


def failover(run: Run, runs: int = 5, timeout: float = 4.0, shards: int = 12) -> None:
    """Seconds until the next one works, by what has become of the one that did.

    Three members, each a process with a session of its own, stand in an election, or share the
    shards of a pool. Something is done to one that leads, or owns shards, and counted are the
    seconds from that moment until the next leader's ``lead`` begins; for a pool, until the handler
    of each of its shards begins on another worker. By the clock that all processes share. Then the
    members are made three again, and the next is done.

    The causes: **resign**, **stop** and **drain**: the method is called. **crash**: SIGKILL.
    **pause**: SIGSTOP. **partition**: all packets between the member and ZooKeeper vanish. In a
    pool the member is one that does not lead the pool, but for **crash of the leader**: the one
    that assigns the shards. One server, ticks of 500 ms.
    """
    with ZooKeeperServer(tick_time=500) as server:
        run.conditions["ZooKeeper"] = server.version()
        for kind, causes in CAUSES.items():
            found: dict[str, list[float]] = {cause: [] for cause in causes}
            with ExitStack() as stack:
                stage = Stage(server, kind, shards, timeout, stack)
                for _ in range(runs):
                    for cause in causes:
                        found[cause] += stage.strike(cause)
            for cause, seconds in found.items():
                run.note(kind, {cause: {"threads": seconds}})


def member(
    pipe: Connection, kind: str, hosts: str, path: str, name: str, shards: int, timeout: float
) -> None:
    """Say what this process has, heed commands, and end with the pipe."""
    client = zklock.connect(hosts, timeout)
    saying = threading.Lock()

    def say(what: str, key: object) -> None:
        with saying:
            pipe.send((clock(), what, key))

    def lead(leadership: zklock.Leadership) -> None:
        say("has", LEADS)
        leadership.should_stop.wait()
        say("ends", LEADS)

    def handle(shard: zklock.Shard) -> None:
        say("has", shard.number)
        shard.should_stop.wait()
        say("ends", shard.number)

    commands: dict[str, Callable[[], object]]
    if kind == "election":
        election = zklock.LeaderElection(client, path, identity=name)
        threading.Thread(target=election.run, args=(lead,), daemon=True).start()
        commands = {"resign": election.resign, "stop": election.stop}
    else:
        worker = zklock.WorkerPool(client, path, shards=shards, identity=name, handler=handle)
        worker.start()
        commands = {"drain": worker.drain, "resume": worker.resume, "stop": worker.stop}
    while True:
        commands[pipe.recv()]()


class Player:
    """One member as the director sees it, behind a proxy of its own."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.name = name
        self.proxy = FaultProxy(stage.server.hosts)
        given = (stage.kind, self.proxy.hosts, stage.path, name, stage.shards, stage.timeout)
        self._worker = Worker(member, *given)
        assert self._worker.process.pid is not None
        self.pid = self._worker.process.pid
        self._stage = stage
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def tell(self, word: str) -> float:
        """Give a command; return when that was done."""
        at = clock()
        self._worker.pipe.send(word)
        return at

    def close(self) -> None:
        """End it."""
        self._worker.process.kill()
        self._reader.join()
        self._worker.close()
        self.proxy.close()

    def _read(self) -> None:
        try:
            while True:
                at, what, key = self._worker.pipe.recv()
                self._stage.hear(at, self.name, what, key)
        except (EOFError, ConnectionResetError):
            return


class Stage:
    """An election or a pool, its members, and who has what."""

    def __init__(
        self, server: ZooKeeperServer, kind: str, shards: int, timeout: float, stack: ExitStack
    ) -> None:
        self.server, self.kind, self.shards, self.timeout = server, kind, shards, timeout
        self.path = new_path()
        client = stack.enter_context(zklock.connect(server.hosts))
        where = self.path if kind == "election" else PoolPaths(self.path).leader
        self._election = zklock.LeaderElection(client, where)
        self._lock = threading.Lock()
        self._number = 0
        self._grants: dict[object, list[tuple[float, str]]] = defaultdict(list)
        self._owners: dict[object, str] = {}
        self._players: dict[str, Player] = {}
        stack.callback(self._close)

    def _close(self) -> None:
        for player in self._players.values():
            player.close()

    def hear(self, at: float, name: str, what: str, key: object) -> None:
        """Note what a member says."""
        with self._lock:
            if what == "has":
                self._grants[key].append((at, name))
                self._owners[key] = name
            elif self._owners.get(key) == name:
                del self._owners[key]

    def strike(self, cause: str) -> list[float]:
        """Do this to one of them; return the seconds for each thing that it had."""
        while len(self._players) < MEMBERS:
            self._number += 1
            name = f"m{self._number}"
            self._players[name] = Player(self, name)
        wait_for(self._settled, PATIENCE, interval=LOOK_EVERY)
        player = self._chosen(cause)
        with self._lock:
            keys = [key for key, name in self._owners.items() if name == player.name]
        began = self._do(cause, player)

        def after() -> list[float]:
            with self._lock:
                later = [
                    [at for at, who in self._grants[key] if at > began and who != player.name]
                    for key in keys
                ]
            return [found[0] - began for found in later if found]

        wait_for(lambda: len(after()) == len(keys), PATIENCE, interval=LOOK_EVERY)
        found = after()
        self._undo(cause, player)
        return found

    def _settled(self) -> bool:
        with self._lock:
            owners = dict(self._owners)
        there = {one.identity for one in self._election.members()}
        if there != set(self._players):
            return False
        if self.kind == "election":
            return owners.get(LEADS) in there
        sizes = [list(owners.values()).count(name) for name in self._players]
        return sum(sizes) == self.shards and max(sizes) - min(sizes) <= 1

    def _chosen(self, cause: str) -> Player:
        if self.kind == "election":
            return self._players[self._owners[LEADS]]
        leader = self._election.leader()
        assert leader is not None
        if cause == "crash of the leader":
            return self._players[leader.identity]
        return next(it for name, it in self._players.items() if name != leader.identity)

    @staticmethod
    def _do(cause: str, player: Player) -> float:
        if cause in {"resign", "stop", "drain"}:
            return player.tell(cause)
        at = clock()
        if cause == "partition":
            player.proxy.blackhole()
        else:
            os.kill(player.pid, signal.SIGSTOP if cause == "pause" else signal.SIGKILL)
        return at

    def _undo(self, cause: str, player: Player) -> None:
        if cause == "drain":
            player.tell("resume")
        elif cause == "partition":
            player.proxy.restore()
        elif cause == "pause":
            os.kill(player.pid, signal.SIGCONT)
        elif cause != "resign":
            self._players.pop(player.name).close()


def pool(
    run: Run,
    shards: int = 1000,
    workers: int = 20,
    killed: int = 5,
    added: int = 5,
    timeout: float = 6.0,
) -> None:
    """How fast a worker pool shares its shards, and what that costs ZooKeeper.

    Workers, each a process with a session of its own, join at once; some are killed; as many join.
    *Settled*: the seconds until each shard is owned, and each worker within one of the others, by
    the clock that all share. *Requests*: those that the server has counted two seconds later, when
    all watches are placed, without those that come anyhow. A killed worker's shards are free once
    its session has ended.
    """
    with ZooKeeperServer(tick_time=500) as server, ExitStack() as stack:
        path = new_path()

        def hire(count: int) -> list[Worker]:
            found = [Worker(own, server.hosts, path, shards, timeout) for _ in range(count)]
            for each in found:
                stack.callback(each.close)
                assert each.hear() == "ready"
            return found

        def settle(what: str, there: list[Worker], act: Callable[[], object]) -> None:
            before = owners(there)
            idle, begun = requests(server), time.monotonic()
            time.sleep(3.0)
            idle = (requests(server) - idle) / (time.monotonic() - begun)
            counted, began = requests(server), clock()
            act()

            def settled() -> bool:
                sizes = [len(each.ask()[1]) for each in there]
                return sum(sizes) == shards and max(sizes) - min(sizes) <= 1

            wait_for(settled, PATIENCE, interval=0.02)
            seconds = max(each.ask()[0] for each in there) - began
            time.sleep(2.0)
            caused = requests(server) - counted - idle * (clock() - began)
            after = owners(there)
            moved = sum(before.get(number) != owner for number, owner in after.items())
            run.note(what, {"shards that move": moved, "settled, s": seconds, "requests": caused})

        first, late = hire(workers), hire(added)
        gone, left = first[:killed], first[killed:]
        settle(f"{workers} join", first, lambda: join(first))
        settle(f"{killed} are killed", left, lambda: kill(gone))
        settle(f"{added} join", left + late, lambda: join(late))


def join(those: list[Worker]) -> None:
    """Have these workers join."""
    for each in those:
        each.pipe.send("go")


def kill(those: list[Worker]) -> None:
    """Kill these workers."""
    for each in those:
        each.process.kill()


def own(pipe: Connection, hosts: str, path: str, shards: int, timeout: float) -> None:
    """Be a worker; tell on demand when its shards have changed last, and which it owns."""
    client = zklock.connect(hosts, timeout)
    worker = zklock.WorkerPool(client, path, shards=shards)
    state: tuple[float, list[int]] = (0.0, [])
    pipe.send("ready")
    joined = False
    while True:
        if pipe.poll(0.02):
            if pipe.recv() == "go":
                joined = True
                threading.Thread(target=worker.start, daemon=True).start()
            else:
                pipe.send(state)
        now = sorted(worker.owned()) if joined else []
        if now != state[1]:
            state = clock(), now


def owners(workers: list[Worker]) -> dict[int, int]:
    """Return the worker of each shard, by its place."""
    return {number: place for place, it in enumerate(workers) for number in it.ask()[1]}


def requests(server: ZooKeeperServer) -> float:
    """Return how many requests the server has counted."""
    return server.status().received
