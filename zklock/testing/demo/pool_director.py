"""Plays the demo of the pool: workers join, stop, drain, crash, are paused, are cut off."""

from __future__ import annotations

from collections.abc import Callable

from kazoo.client import KazooClient

from zklock._ground.clock import clock
from zklock._pool.nodes import PoolPaths
from zklock.testing.demo.director import Play
from zklock.testing.demo.log import Interrupted, Log
from zklock.testing.demo.processes import Player
from zklock.testing.proxy import FaultProxy

_LOOK_EVERY = 0.02

BEHIND_PROXY = "w5"

ON_A_LOOP = {"w2", "w3", "w5", "w6"}
"""The workers that use asyncio: one leaves, one is paused, one is cut off, one works."""


class PoolDirector(Play):
    """Directs the workers of one pool. ``hire(name)`` starts the process of one."""

    def __init__(
        self,
        log: Log,
        client: KazooClient,
        path: str,
        *,
        shards: int,
        hire: Callable[[str], Player],
        proxy: FaultProxy,
    ) -> None:
        super().__init__(log, client, path, proxy)
        self._shards = shards
        self._hire = hire
        self._players: dict[str, Player] = {}
        self._active: set[str] = set()
        self._seen = 0
        self._owned: dict[str, dict[int, str]] = {}

    def _acts(self, zookeeper: str) -> None:
        self._open(self._hired("w1", "w2", "w3", "w4"), zookeeper=zookeeper, shards=self._shards)
        self._scene("four workers share the shards", "start", lambda: None)
        self._scene("a worker joins", "join", lambda: self._join("w5"))
        self._scene("a worker leaves in order", "stop", lambda: self._stop("w2"))
        self._scene("a worker crashes (SIGKILL)", "crash", lambda: self._kill("w1"))
        self._scene("two workers join", "joins", lambda: self._join("w6", "w7"))
        self._scene("a worker stands still (SIGSTOP)", "pause", lambda: self._pause("w3"))
        self._scene("it goes on (SIGCONT)", "resume", lambda: self._resume("w3"))
        self._scene("a worker is cut from ZooKeeper", "partition", lambda: self._cut("w5"))
        self._scene("it is connected again", "repair", lambda: self._restore("w5"))
        self._scene("a worker drains", "drain", lambda: self._drain("w4"))

    def _scene(self, title: str, name: str, what: Callable[[], object]) -> None:
        self._title(title)
        what()
        began = clock()
        while not self._settled():
            if clock() >= began + self._patience:
                now = {who: len(mine) for who, mine in self._owned.items()}
                raise Interrupted(f"{title}: the shards were not settled: {now}")
            self._log.rest(_LOOK_EVERY)
        owned = {who: sorted(self._owned.get(who, ())) for who in sorted(self._active)}
        self._say("settled", after=name, shards=self._shards, owned=owned)

    def _settled(self) -> bool:
        """Whether the active workers own all shards, in equal parts to within one shard."""
        count = self._log.count()
        for event in self._log.arrived()[self._seen : count]:
            mine = self._owned.setdefault(event.who, {})
            if event.what == "granted":
                mine[event["shard"]] = event["token"]
            elif event.what in {"released", "lost"} and mine.get(event["shard"]) == event["token"]:
                del mine[event["shard"]]
        self._seen = count
        sizes = [len(self._owned.get(who, ())) for who in self._active]
        numbers = [number for who in self._active for number in self._owned.get(who, ())]
        return sorted(numbers) == list(range(self._shards)) and max(sizes) - min(sizes) <= 1

    def _hired(self, *names: str) -> list[Player]:
        hired = [self._hire(name) for name in names]
        self._players |= zip(names, hired, strict=True)
        self._active |= set(names)
        return hired

    def _join(self, *names: str) -> None:
        for player in self._hired(*names):
            player.expect("ready", self._patience)

    def _stop(self, name: str) -> None:
        self._active.discard(name)
        self._say("stopped", worker=name)
        self._end([self._players[name]])

    def _kill(self, name: str) -> None:
        self._active.discard(name)
        self._say("killed", at=self._players[name].kill(), worker=name)

    def _pause(self, name: str) -> None:
        self._active.discard(name)
        self._say("paused", at=self._players[name].pause(), worker=name)

    def _resume(self, name: str) -> None:
        self._active.add(name)
        self._say("resumed", at=self._players[name].resume(), worker=name)

    def _cut(self, name: str) -> None:
        self._active.discard(name)
        self._cut_off(name)

    def _restore(self, name: str) -> None:
        self._active.add(name)
        self._proxy.restore()
        self._say("restored", worker=name)

    def _drain(self, name: str) -> None:
        self._active.discard(name)
        self._say("drains", worker=name)
        self._players[name].send("drain")
        self._players[name].expect("drained", self._patience)

    def _close(self) -> None:
        self._end([self._players[name] for name in sorted({*self._active, "w4"})])
        places = PoolPaths(self._path)
        parents = [places.leader, places.members, places.assigned, places.owned]
        parents += [places.shard(number) for number in range(self._shards)]
        nodes = [f"{parent}/{name}" for parent in parents for name in self._children(parent)]
        self._say("left", nodes=nodes)
