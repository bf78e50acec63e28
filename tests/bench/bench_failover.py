"""How long it takes until another does the work, by what has become of the one that did it.

``python -m tests.bench.bench_failover [--runs N] [--timeout SECONDS] [--shards N] [--json FILE]``

Three members, each a process with a session of its own, stand in an election, or share the shards
of a pool. Something is done to one that leads, or owns shards, and counted are the seconds from
that moment until the next leader's ``lead`` begins; for a pool, from that moment until the handler
of each of its shards begins on another worker. By the clock that all processes share. Then the
members are made three again, and the next is done.

The causes: **resign** and **stop**: the method is called. **drain**: likewise. **crash**: SIGKILL.
**pause**: SIGSTOP. **partition**: all packets between the member and ZooKeeper vanish. In a pool
the member is one that does not lead the pool, but for **crash of the leader**: the one that assigns
the shards. One server, ticks of 500 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import zklock
from tests.bench.results import write
from zklock import aio
from zklock._ground.clock import clock
from zklock.testing import FaultProxy, ZooKeeperServer

ROOT = Path(__file__).resolve().parents[2]
FRONTS = ("threads", "asyncio")
MEMBERS = 3
LEADS = "lead"
PATIENCE = 60.0
LOOK_EVERY = 0.01


# The members.


class Member:
    """What a process does: it says what it has, heeds commands, and ends with its input."""

    def __init__(self, kind: str, hosts: str, path: str, name: str, shards: str, timeout: str):
        self.client = zklock.connect(hosts, float(timeout))
        self.kind = kind
        self.path = path
        self.name = name
        self.shards = int(shards)
        self._saying = threading.Lock()

    def say(self, what: str, key: object = None) -> None:
        """Tell the director."""
        with self._saying:
            print(json.dumps([clock(), what, key]), flush=True)

    def obey(self, commands: dict[str, Callable[[], object]]) -> None:
        """Do what the director says, until that is to stop."""
        for line in sys.stdin:
            commands[line.strip()]()
            if line.strip() == "stop":
                return
        os._exit(1)

    def threads(self) -> None:
        """Be a member by threads."""
        if self.kind == "election":
            election = zklock.LeaderElection(self.client, self.path, identity=self.name)

            def lead(leadership: zklock.Leadership) -> None:
                self.say("has", LEADS)
                leadership.should_stop.wait()
                self.say("ends", LEADS)

            running = threading.Thread(target=election.run, args=(lead,))
            running.start()
            self.obey({"resign": election.resign, "stop": election.stop})
            running.join()
            return

        def handle(shard: zklock.Shard) -> None:
            self.say("has", shard.number)
            shard.should_stop.wait()
            self.say("ends", shard.number)

        pool = zklock.WorkerPool(
            self.client, self.path, shards=self.shards, identity=self.name, handler=handle
        )
        pool.start()
        self.obey(
            {
                "drain": pool.drain,
                "resume": pool.resume,
                "leads": lambda: self.say("leads", pool.is_leader),
                "stop": pool.stop,
            }
        )

    async def asyncio(self) -> None:
        """Be a member by tasks."""
        loop = asyncio.get_running_loop()

        def on_loop(method: Callable[[], Any]) -> Callable[[], object]:
            async def call() -> None:
                outcome = method()
                if outcome is not None:
                    await outcome

            return lambda: asyncio.run_coroutine_threadsafe(call(), loop).result()

        if self.kind == "election":
            election = aio.LeaderElection(self.client, self.path, identity=self.name)

            async def lead(leadership: aio.Leadership) -> None:
                self.say("has", LEADS)
                try:
                    await leadership.should_stop.wait()
                finally:
                    self.say("ends", LEADS)

            commands = {"resign": on_loop(election.resign), "stop": election.stop}
            await asyncio.gather(election.run(lead), asyncio.to_thread(self.obey, commands))
            return

        async def handle(shard: aio.Shard) -> None:
            self.say("has", shard.number)
            try:
                await shard.should_stop.wait()
            finally:
                self.say("ends", shard.number)

        pool = aio.WorkerPool(
            self.client, self.path, shards=self.shards, identity=self.name, handler=handle
        )
        await pool.start()
        commands = {
            "drain": on_loop(pool.drain),
            "resume": on_loop(pool.resume),
            "leads": lambda: self.say("leads", pool.is_leader),
            "stop": on_loop(pool.stop),
        }
        await asyncio.to_thread(self.obey, commands)


def work(front: str, *settings: str) -> None:
    """Be a member, then end in order."""
    member = Member(*settings)
    if front == "asyncio":
        asyncio.run(member.asyncio())
    else:
        member.threads()
    member.client.stop()
    member.client.close()


# Who directs them.


class Player:
    """One member as the director sees it, behind a proxy of its own."""

    def __init__(self, stage: Stage, front: str, name: str) -> None:
        self.name = name
        self.proxy = FaultProxy(stage.server.hosts)
        self._stage = stage
        self.leads = False
        self.heard = threading.Event()
        settings = (stage.kind, self.proxy.hosts, stage.path, name, stage.shards, stage.timeout)
        module = "tests.bench.bench_failover"
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, "--member", front, *map(str, settings)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def tell(self, word: str) -> float:
        """Give a command; return when that was done."""
        assert self.process.stdin is not None
        at = clock()
        self.process.stdin.write(f"{word}\n")
        return at

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.proxy.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            at, what, key = json.loads(line)
            if what == "leads":
                self.leads = key
                self.heard.set()
            else:
                self._stage.note(at, self.name, what, key)


class Stage:
    """An election or a pool, its members, and who has what."""

    def __init__(
        self, server: ZooKeeperServer, kind: str, front: str, shards: int, timeout: float
    ) -> None:
        self.server = server
        self.kind = kind
        self.path = f"/bench-{uuid.uuid4().hex}"
        self.shards = shards
        self.timeout = timeout
        self._front = front
        self._client = zklock.connect(server.hosts)
        self._lock = threading.Lock()
        self._number = 0
        self._grants: dict[object, list[tuple[float, str]]] = defaultdict(list)
        self.owners: dict[object, str] = {}
        self.players: dict[str, Player] = {}

    def close(self) -> None:
        """End all."""
        for player in self.players.values():
            player.close()
        self._client.stop()
        self._client.close()

    def note(self, at: float, name: str, what: str, key: object) -> None:
        """Note what a member says."""
        with self._lock:
            if what == "has":
                self._grants[key].append((at, name))
                self.owners[key] = name
            elif self.owners.get(key) == name:
                del self.owners[key]

    def settle(self) -> None:
        """Have as many members as are wanted, each in its place."""
        while len(self.players) < MEMBERS:
            self._number += 1
            name = f"m{self._number}"
            self.players[name] = Player(self, self._front, name)
        self._wait(self._settled)

    def _settled(self) -> bool:
        with self._lock:
            owners = dict(self.owners)
        if self.kind == "election":
            election = zklock.LeaderElection(self._client, self.path)
            there = {one.identity for one in election.members()}
            return there == set(self.players) and owners.get(LEADS) in there
        sizes = [list(owners.values()).count(name) for name in self.players]
        return sum(sizes) == self.shards and max(sizes) - min(sizes) <= 1

    def strike(self, cause: str) -> list[float]:
        """Do this to one of them; return the seconds for each thing that it had."""
        self.settle()
        player = self._chosen(cause)
        with self._lock:
            keys = [key for key, name in self.owners.items() if name == player.name]
        began = self._do(cause, player)

        def after() -> list[float]:
            with self._lock:
                firsts = [
                    next(
                        (at for at, who in self._grants[key] if at > began and who != player.name),
                        None,
                    )
                    for key in keys
                ]
            return [at - began for at in firsts if at is not None]

        self._wait(lambda: len(after()) == len(keys))
        found = after()
        self._undo(cause, player)
        return found

    def _chosen(self, cause: str) -> Player:
        if self.kind == "election":
            return self.players[self.owners[LEADS]]
        leading: list[Player] = []
        while not leading:
            for player in self.players.values():
                player.heard.clear()
                player.tell("leads")
                assert player.heard.wait(PATIENCE)
            leading = [player for player in self.players.values() if player.leads]
        if cause == "crash of the leader":
            return leading[0]
        return next(player for player in self.players.values() if player not in leading)

    def _do(self, cause: str, player: Player) -> float:
        if cause in {"resign", "stop", "drain"}:
            return player.tell(cause)
        at = clock()
        if cause == "partition":
            player.proxy.blackhole()
        elif cause == "pause":
            player.process.send_signal(signal.SIGSTOP)
        else:
            player.process.kill()
        return at

    def _undo(self, cause: str, player: Player) -> None:
        if cause == "drain":
            player.tell("resume")
        elif cause == "partition":
            player.proxy.restore()
        elif cause == "pause":
            player.process.send_signal(signal.SIGCONT)
        elif cause != "resign":
            player.process.wait(PATIENCE)
            self.players.pop(player.name).close()

    @staticmethod
    def _wait(done: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < until, "it takes too long"
            time.sleep(LOOK_EVERY)


CAUSES = {
    "election": ("resign", "stop", "crash", "pause", "partition"),
    "pool": ("stop", "drain", "crash", "crash of the leader", "pause", "partition"),
}


def measure(
    options: argparse.Namespace,
) -> tuple[dict[str, dict[str, dict[str, list[float]]]], str]:
    """Return the seconds of all runs, by kind, cause and front; and the server's version."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    with ZooKeeperServer(tick_time=500) as server:
        for kind, causes in CAUSES.items():
            found[kind] = {cause: {front: [] for front in FRONTS} for cause in causes}
            for front in FRONTS:
                with ExitStack() as stack:
                    stage = Stage(server, kind, front, options.shards, options.timeout)
                    stack.callback(stage.close)
                    for _ in range(options.runs):
                        for cause in causes:
                            found[kind][cause][front] += stage.strike(cause)
        return found, server.version()


def text(seconds: list[float]) -> str:
    """Return the median, and the least and the most."""
    return f"{statistics.median(seconds):.3f} ({min(seconds):.3f}–{max(seconds):.3f})"


def main(arguments: list[str] | None = None) -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=4.0, help="of the sessions, in seconds")
    parser.add_argument("--shards", type=int, default=12)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--member", nargs=7, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.member:
        work(*options.member)
        return
    print(
        f"session timeout {options.timeout:g} s, {options.runs} runs; seconds from the cause until "
        f"another works: median (least–most)"
    )
    found, version = measure(options)
    for kind, causes in found.items():
        name = "LeaderElection" if kind == "election" else f"WorkerPool, {options.shards} shards"
        print(f"{name:32}{'threads':>22}{'asyncio':>22}")
        for cause, fronts in causes.items():
            print(f"  {cause:30}" + "".join(f"{text(fronts[front]):>22}" for front in FRONTS))
    if options.json:
        conditions = {"timeout": options.timeout, "runs": options.runs, "shards": options.shards}
        write(options.json, conditions | {"ZooKeeper": version}, found)


if __name__ == "__main__":
    main()
