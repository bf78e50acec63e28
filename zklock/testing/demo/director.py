"""Plays the demo: tells the workers, each its own process, what to do and when."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

import zklock
from zklock._ground.clock import clock
from zklock.testing.demo.events import DIRECTOR, Event
from zklock.testing.demo.ledger import Ledger
from zklock.testing.demo.log import Interrupted, Log
from zklock.testing.demo.processes import Player
from zklock.testing.proxy import FaultProxy

ROUNDS = 3
WORK_SECONDS = 0.08
_LIST_EVERY = 0.01
_SLACK_SECONDS = 60.0
"""How many seconds a step may take beyond three session timeouts; then the demo is given up."""

TITLES = (
    "six workers queue for one lock, and write under its tokens",
    "the holder is killed",
    "the holder is paused past its session",
    "the holder is cut from ZooKeeper",
)


class Play:
    """A demo: its acts, and what is left after them. The players are processes."""

    def __init__(self, log: Log, client: KazooClient, path: str, proxy: FaultProxy) -> None:
        self._log = log
        self._client = client
        self._path = path
        self._proxy = proxy
        self._act = 0
        self._patience = _SLACK_SECONDS

    def play(self, zookeeper: str) -> None:
        """Play all acts and check what is left. The log gets what happens.

        Returns even if it cannot go on; then the log says why.
        """
        try:
            self._acts(zookeeper)
            self._act = 0
            self._close()
        except (Interrupted, zklock.ZkLockError) as why:
            self._say("broken", why=str(why))

    def _acts(self, zookeeper: str) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError

    def _open(self, players: Iterable[Player], **told: Any) -> None:
        """Wait until these players are ready, and tell of the demo."""
        ready = [player.expect("ready", self._patience) for player in players]
        timeout = max(event["session_timeout"] for event in ready)
        self._patience += 3 * timeout
        self._say("opening", at=ready[0].at, session_timeout=timeout, path=self._path, **told)

    def _title(self, title: str) -> None:
        self._act += 1
        self._say("act", title=title)

    def _end(self, players: Sequence[Player]) -> None:
        """Have these players end in order."""
        for player in players:
            player.quit()
        for player in players:
            player.expect("ended", self._patience)

    def _children(self, path: str) -> list[str]:
        try:
            found: list[str] = self._client.get_children(path)
        except NoNodeError:
            return []
        return found

    def _cut_off(self, name: str) -> None:
        at = clock()
        self._proxy.blackhole()
        self._say("cut", at=at, worker=name)

    def _say(self, what: str, *, at: float | None = None, **data: Any) -> None:
        self._log.add(Event(clock() if at is None else at, self._act, DIRECTOR, what, data))


class Director(Play):
    """Directs six players at one lock; the last but one reaches ZooKeeper through the proxy."""

    def __init__(
        self,
        log: Log,
        client: KazooClient,
        path: str,
        *,
        ledger: Ledger,
        players: Sequence[Player],
        proxy: FaultProxy,
    ) -> None:
        super().__init__(log, client, path, proxy)
        self._lock = zklock.Lock(client, path)
        self._ledger = ledger
        self._players = players

    def _acts(self, zookeeper: str) -> None:
        self._open(
            self._players,
            zookeeper=zookeeper,
            hosts=",".join(f"{host}:{port}" for host, port in self._client.hosts),
            workers=[player.name for player in self._players],
        )
        for title, act in zip(
            TITLES, (self._queue, self._kill, self._pause, self._cut), strict=True
        ):
            self._title(title)
            act()

    def _queue(self) -> None:
        first, *_ = self._line_up(self._players, turns=ROUNDS)
        first.send("go")
        for player in self._players:
            for _ in range(ROUNDS):
                player.expect("released", self._patience)

    def _kill(self) -> None:
        victim, *others = self._line_up(self._players[0:3])
        at = victim.kill()
        self._say("killed", at=at, worker=victim.name)
        self._finish(others)

    def _pause(self) -> None:
        victim, *others = self._line_up(self._players[1:4], late=True)
        with self._stopped(victim):
            self._finish(others)
        victim.expect("refused", self._patience)
        victim.expect("lost", self._patience)

    def _cut(self) -> None:
        victim, *others = self._line_up([self._players[4], self._players[5], self._players[2]])
        self._cut_off(victim.name)
        victim.expect("lost", self._patience)
        self._finish(others)
        self._proxy.restore()
        self._say("restored", worker=victim.name)

    def _close(self) -> None:
        self._say(
            "ledger",
            entries=[
                {"number": it.number, "token": str(it.token), "worker": it.worker}
                for it in self._ledger.entries()
            ],
        )
        self._end(self._players[1:])  # the first was killed
        self._say("left", nodes=self._children(self._path))

    def _line_up(
        self, players: Sequence[Player], *, turns: int = 1, late: bool = False
    ) -> Sequence[Player]:
        """Make the first acquire and hold until told; make the others queue behind it in order."""
        for place, player in enumerate(players):
            player.send(
                "work", act=self._act, turns=turns, seconds=WORK_SECONDS,
                gated=place == 0, late=late and place == 0,
            )  # fmt: skip
            if place == 0:
                player.expect("claimed", self._patience)
            queue = self._queued(place + 1)
        self._say("queue", contenders=queue)
        return players

    def _queued(self, count: int) -> list[dict[str, Any]]:
        """Wait until this many stand in the queue, and return them."""
        deadline = clock() + self._patience
        while True:
            queue = self._lock.contenders()
            if len(queue) == count:
                return [{"worker": it.identity, "sequence": it.sequence} for it in queue]
            if clock() >= deadline:
                names = " ".join(it.identity for it in queue)
                raise Interrupted(f"{count} should queue, and there are {len(queue)}: {names}")
            self._log.rest(_LIST_EVERY)

    def _finish(self, players: Sequence[Player]) -> None:
        for player in players:
            player.expect("released", self._patience)

    @contextlib.contextmanager
    def _stopped(self, victim: Player) -> Iterator[None]:
        self._say("paused", at=victim.pause(), worker=victim.name)
        yield
        self._say("resumed", at=victim.resume(), worker=victim.name)
