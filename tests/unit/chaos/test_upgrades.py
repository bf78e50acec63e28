"""Other releases in a run: servers that are upgraded, and workers of an earlier zklock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from tests.chaos import nemesis
from tests.chaos.nemesis import KINDS, Fault, Nemesis, Track, Victims
from tests.chaos.worker import WorkerSettings
from zklock.testing.history import History, load

(RESTART,) = (kind for kind in KINDS if kind.name == "restart leader")


@dataclass
class Server:
    number: int
    done: list[str]

    hosts = "somewhere"

    def stop(self) -> None:
        self.done.append(f"{self.number} stops")

    def launch(self) -> None:
        self.done.append(f"{self.number} starts")


@dataclass
class Servers:
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.servers = [Server(number, self.done) for number in range(2)]

    def leader(self) -> Server:
        return self.servers[0]

    def wait_until_serving(self, timeout: float) -> None:
        self.done.append("all serve")


def test_one_server_after_the_other_is_upgraded_between_two_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def schedule(seed: str, track: Track, session: float, pace: float) -> Iterator[Fault]:
        if track is Track.SERVERS:
            yield from [Fault(0.0, RESTART, 0.0, 0.0, 0.0)] * 3

    monkeypatch.setattr(nemesis, "schedule", schedule)
    servers = Servers()
    victims = Victims(
        cast("Any", servers),
        [],
        cast("Any", None),
        0,
        [],
        upgrade=lambda number: servers.done.append(f"{number} is upgraded"),
        upgrades=(0.0, 0.0),
    )
    with History(tmp_path, "nemesis") as history:
        ours = Nemesis("seed", 1.0, victims, history)
        ours.start()
        for thread in ours._threads:
            thread.join()
        ours.stop()
    restart = ["0 stops", "0 starts", "all serve"]
    assert servers.done == [
        *["0 stops", "0 is upgraded", "0 starts", "all serve", *restart],
        *["1 stops", "1 is upgraded", "1 starts", "all serve", *restart],
        *restart,
    ]
    noted = [event["what"] for event in load(tmp_path)]
    assert noted.count("upgrade") == 2


def test_an_earlier_release_is_told_nothing_that_it_need_not_know() -> None:
    plain = WorkerSettings(
        name="w",
        folder="f",
        hosts="h",
        locks=[],
        seed="s",
        session_timeout=1.0,
        final=1.0,
        actors=1,
    )
    assert {"favourite", "spared"} & json.loads(plain.to_json()).keys() == set()
    assert WorkerSettings(**json.loads(plain.to_json())) == plain
