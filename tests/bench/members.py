"""How long it takes until another does the work: elections and pools."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import count, islice
from multiprocessing.connection import Connection
from typing import Any

import zklock
from tests.bench.results import Run
from tests.bench.together import Worker, new_path
from zklock._ground.clock import clock
from zklock._pool.nodes import PoolPaths
from zklock.testing import FaultProxy, ZooKeeperServer, wait_for

MEMBERS = 3
LEADS = "lead"
SHARES = "shares"
"""A pool whose workers have no handlers and no proxies, where requests are counted."""
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
    """Heed commands, say what this process gets, and end with the pipe."""
    client = zklock.connect(hosts, timeout)
    saying = threading.Lock()

    def has(key: object) -> None:
        with saying:
            pipe.send((clock(), key))

    def work(task: zklock.Leadership | zklock.Shard) -> None:
        has(LEADS if isinstance(task, zklock.Leadership) else task.number)
        task.should_stop.wait()

    commands: dict[str, Callable[[], object]]
    if kind == "election":
        election = zklock.LeaderElection(client, path, identity=name)
        thread = threading.Thread(target=election.run, args=(work,), daemon=True)
        commands = {"join": thread.start, "resign": election.resign, "stop": election.stop}
    else:
        told: Any = {"handler": work} if kind == "pool" else {"on_assigned": lambda it, _: has(it)}
        worker = zklock.WorkerPool(client, path, shards=shards, identity=name, **told)
        thread = threading.Thread(target=worker.start, daemon=True)
        commands = {"join": thread.start, "stop": worker.stop}
        commands |= {"drain": worker.drain, "resume": worker.resume}
    pipe.send((clock(), None))
    while True:
        commands[pipe.recv()]()


class Player:
    """One member as the director sees it; in a failover, behind a proxy of its own."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.name = name
        self.proxy = FaultProxy(stage.server.hosts)
        hosts = stage.server.hosts if stage.kind == SHARES else self.proxy.hosts
        given = (stage.kind, hosts, stage.path, name, stage.shards, stage.timeout)
        self._worker = Worker(member, *given)
        assert self._worker.process.pid is not None
        self.pid = self._worker.process.pid
        self._stage = stage
        self._reader = threading.Thread(target=self._read, daemon=True)

    def listen(self) -> None:
        """Wait until it is connected, and hear what it says from then on."""
        self._worker.hear()
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
        with contextlib.suppress(EOFError, ConnectionResetError):
            while True:
                self._stage.hear(self.name, *self._worker.pipe.recv())


class Stage:
    """An election or a pool, its members, and who has had what last."""

    def __init__(
        self, server: ZooKeeperServer, kind: str, shards: int, timeout: float, stack: ExitStack
    ) -> None:
        self.server, self.kind, self.shards, self.timeout = server, kind, shards, timeout
        self.path = new_path()
        client = stack.enter_context(zklock.connect(server.hosts))
        where = self.path if kind == "election" else PoolPaths(self.path).leader
        self._election = zklock.LeaderElection(client, where)
        self._lock = threading.Lock()
        self._grants: dict[object, list[tuple[float, str]]] = defaultdict(list)
        self._names = map("m{}".format, count(1))
        self.players: dict[str, Player] = {}
        stack.callback(self._close)

    def _close(self) -> None:
        for player in self.players.values():
            player.close()

    def hire(self, many: int) -> list[Player]:
        """Return members that have not joined yet."""
        hired = [Player(self, name) for name in islice(self._names, many)]
        for player in hired:
            player.listen()
            self.players[player.name] = player
        return hired

    def hear(self, name: str, at: float, key: object) -> None:
        """Note what a member says."""
        with self._lock:
            self._grants[key].append((at, name))

    def owners(self) -> dict[object, tuple[float, str]]:
        """Return who has had what last, and since when."""
        with self._lock:
            return {key: grants[-1] for key, grants in self._grants.items()}

    def strike(self, cause: str) -> list[float]:
        """Do this to one of them; return the seconds for each thing that it had."""
        for player in self.hire(MEMBERS - len(self.players)):
            player.tell("join")
        wait_for(self.settled, PATIENCE, interval=LOOK_EVERY)
        player = self._chosen(cause)
        keys = [key for key, (_, name) in self.owners().items() if name == player.name]
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

    def settled(self) -> bool:
        """Whether all members are there, and one leads, or all have equal parts."""
        owners = [name for _, name in self.owners().values()]
        if self.kind != SHARES and not self._all_stand():
            return False
        sizes = [owners.count(name) for name in self.players]
        most = 1 if self.kind == "election" else self.shards
        return sum(sizes) == most and max(sizes) - min(sizes) <= 1

    def _all_stand(self) -> bool:
        return {one.identity for one in self._election.members()} == set(self.players)

    def _chosen(self, cause: str) -> Player:
        if self.kind == "election":
            return self.players[self.owners()[LEADS][1]]
        leader = self._election.leader()
        assert leader is not None
        if cause == "crash of the leader":
            return self.players[leader.identity]
        return next(it for name, it in self.players.items() if name != leader.identity)

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
        match cause:
            case "drain":
                player.tell("resume")
            case "partition":
                player.proxy.restore()
            case "pause":
                os.kill(player.pid, signal.SIGCONT)
            case "stop" | "crash" | "crash of the leader":
                self.players.pop(player.name).close()


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
        stage = Stage(server, SHARES, shards, timeout, stack)

        def requests() -> int:
            return server.status().received

        def settle(what: str, act: Callable[[], object]) -> None:
            before, idle, begun = stage.owners(), requests(), clock()
            time.sleep(3.0)
            idle_rate = (requests() - idle) / (clock() - begun)
            counted, began = requests(), clock()
            act()
            wait_for(stage.settled, PATIENCE, interval=0.02)
            after = stage.owners()
            time.sleep(2.0)
            moved = [at for key, (at, name) in after.items() if before.get(key, (0, ""))[1] != name]
            found = {"shards that move": len(moved), "settled, s": max(moved) - began}
            caused = requests() - counted - idle_rate * (clock() - began)
            run.note(what, {**found, "requests": caused})

        def join(those: list[Player]) -> None:
            for player in those:
                player.tell("join")

        def kill(those: list[Player]) -> None:
            for player in those:
                os.kill(player.pid, signal.SIGKILL)
            for player in those:
                stage.players.pop(player.name).close()

        first = stage.hire(workers)
        settle(f"{workers} join", partial(join, first))
        settle(f"{killed} are killed", partial(kill, first[:killed]))
        settle(f"{added} join", partial(join, stage.hire(added)))
