"""A demo in which everything went well, to be tampered with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from zklock.testing.demo.events import DIRECTOR, Event
from zklock.token import FencingToken

PATH = "/zklock-demo-0/report"
WORKERS = ["w1", "w2", "w3", "w4", "w5", "w6"]
EPOCH = 7


def token(sequence: int) -> str:
    return str(FencingToken(EPOCH, sequence))


class Story:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.entries: list[dict[str, Any]] = []
        self.act = 0
        self._sequence = 0
        self._play()

    def find(self, what: str, who: str | None = None, nth: int = 0) -> Event:
        found = [it for it in self.events if it.what == what and who in (None, it.who)]
        return found[nth]

    def change(self, event: Event, **data: Any) -> None:
        """Change an event's data, or its time (``at``)."""
        at = data.pop("at", event.at)
        changed = replace(event, at=at, data={**event.data, **data})
        self.events[self.events.index(event)] = changed

    def drop(self, event: Event) -> None:
        self.events.remove(event)

    def add(self, at: float, who: str, what: str, **data: Any) -> None:
        self.events.append(Event(at, self.act, who, what, data))

    def _play(self) -> None:
        self.add(
            0.0, DIRECTOR, "opening",
            zookeeper="3.8.0", hosts="127.0.0.1:1", session_timeout=2.0, path=PATH, workers=WORKERS,
        )  # fmt: skip
        self._begin(1.0, 1)
        self._line_up(1.0, WORKERS)
        for place, worker in enumerate(WORKERS):
            self._turn(1.1 + place / 10, worker, place)
        self._begin(10.0, 2)
        self._line_up(10.0, ["w1", "w2"])
        self._grant(10.1, "w1", 6)
        self.add(10.2, "w1", "look", token=token(6), held=True)
        self.add(10.3, DIRECTOR, "killed", worker="w1")
        self.add(10.3, "w1", "ended", code=-9)
        self._turn(12.5, "w2", 7)
        self._begin(20.0, 3)
        self._line_up(20.0, ["w2", "w3"])
        self._grant(20.1, "w2", 8)
        self.add(20.2, "w2", "look", token=token(8), held=True)
        self.add(20.3, DIRECTOR, "paused", worker="w2")
        self._turn(22.5, "w3", 9)
        self.add(23.0, DIRECTOR, "resumed", worker="w2")
        self.add(23.1, "w2", "look", token=token(8), held=False)
        self._lose(23.1, "w2", 8, 21.5)
        self.add(23.2, "w2", "refused", token=token(8), number=8, highest=token(9))
        self._begin(30.0, 4)
        self._line_up(30.0, ["w5", "w6"])
        self._grant(30.1, "w5", 10)
        self.add(30.2, "w5", "look", token=token(10), held=True)
        self.add(30.3, DIRECTOR, "cut", worker="w5")
        self.add(31.2, "w5", "suspended", token=token(10), remaining=0.3)
        self._lose(31.5, "w5", 10, 31.5)
        self.add(31.5, "w5", "look", token=token(10), held=False)
        self._turn(32.5, "w6", 11)
        self.add(33.0, DIRECTOR, "restored", worker="w5")
        self.add(34.0, DIRECTOR, "ledger", entries=self.entries)
        for worker in WORKERS[1:]:
            self.add(34.5, worker, "ended", code=0)
        self.add(35.0, DIRECTOR, "left", nodes=[])

    def _begin(self, at: float, act: int) -> None:
        self.act = act
        self.add(at, DIRECTOR, "act", title=f"the title of act {act}")

    def _line_up(self, at: float, workers: list[str]) -> None:
        for worker in workers:
            self.add(at, worker, "asks")
        contenders = [
            {"worker": worker, "sequence": self._sequence + place}
            for place, worker in enumerate(workers)
        ]
        self._sequence += len(workers)
        self.add(at + 0.05, DIRECTOR, "queue", contenders=contenders)

    def _grant(self, at: float, worker: str, sequence: int) -> None:
        node = f"{PATH}/_c_0-lock-{sequence:010d}"
        self.add(at, worker, "granted", token=token(sequence), node=node, waited=0.1)

    def _lose(self, at: float, worker: str, sequence: int, lease_end: float) -> None:
        self.add(
            at, worker, "lost",
            token=token(sequence), reason="LEASE_LAPSED", noticed=at, lease_end=lease_end,
        )  # fmt: skip

    def _turn(self, at: float, worker: str, sequence: int) -> None:
        number = len(self.entries) + 1
        self._grant(at, worker, sequence)
        self.add(at + 0.01, worker, "claimed", token=token(sequence), last=number - 1)
        self.add(at + 0.04, worker, "look", token=token(sequence), held=True)
        self.add(at + 0.05, worker, "wrote", token=token(sequence), number=number)
        self.add(at + 0.06, worker, "released", token=token(sequence))
        self.entries.append({"number": number, "token": token(sequence), "worker": worker})


Tampering = Callable[[Story], None]
