"""Players: processes that hold locks of zklock, kazoo and Curator when they are told to."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.interop.curator import Curator, CuratorUnavailable
from tests.players import Player
from tests.releases import REPOSITORY, check_out_earlier

Players = Callable[..., "list[Player]"]
"""``players(sort, count, hosts=None)``: so many processes, of the sort "java", "python" (see
``player.py``) or "elector" (see ``elector.py``); "earlier python" and "earlier elector" are of the
release before this one."""


@pytest.fixture(scope="session")
def curator() -> Curator:
    """Curator; the test is skipped where there is none."""
    try:
        return Curator.find()
    except CuratorUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def curator_command(curator: Curator, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that starts the contender, compiled."""
    return curator.contender(tmp_path_factory.mktemp("contender"))


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the release before this one."""
    folder = tmp_path_factory.mktemp("earlier")
    check_out_earlier(folder)
    return folder


@pytest.fixture(scope="session")
def stage() -> Iterator[dict[str, list[Player]]]:
    """The players that wait for the next test."""
    idle: dict[str, list[Player]] = defaultdict(list)
    yield idle
    with ExitStack() as stack:
        for players in idle.values():
            for player in players:
                stack.callback(player.close)


@pytest.fixture
def other(zklock_connect: Callable[..., Any]) -> Any:
    """An onlooker, with a session of its own."""
    return zklock_connect()


@pytest.fixture
def players(
    request: pytest.FixtureRequest,
    stage: dict[str, list[Player]],
    zklock_hosts: str,
    zklock_path: str,
    tmp_path: Path,
) -> Iterator[Players]:
    """Return what hires players; who is not idle after the test is ended.

    Without ``hosts`` they are connected to the shared server, and wait for the next test.
    """
    playing: list[tuple[str, Player]] = []

    def hire(sort: str, count: int, hosts: str | None = None) -> list[Player]:
        module = "elector" if sort.endswith("elector") else "player"
        folder = request.getfixturevalue("earlier") if sort.startswith("earlier") else REPOSITORY
        command = [sys.executable, "-m", f"tests.interop.{module}"]
        if sort == "java":
            command = request.getfixturevalue("curator_command")
        idle = [] if hosts else stage[sort]
        hired = [idle.pop() for _ in range(min(count, len(idle)))]
        for number in range(len(hired), count):
            log = tmp_path / f"{sort}-{len(playing) + number}.log"
            hired.append(Player([*command, hosts or zklock_hosts], log, folder))
        playing.extend(("elsewhere" if hosts else sort, player) for player in hired)
        for player in hired:
            if not player.idle:
                assert player.hears() == "ready"
        return hired

    yield hire
    for sort, player in playing:
        if sort != "elsewhere" and player.idle and player.process.poll() is None:
            stage[sort].append(player)
        else:
            player.close()
