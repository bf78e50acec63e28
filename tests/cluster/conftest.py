"""What the tests of ensembles have in common."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from zklock.testing import Ensemble

if TYPE_CHECKING:
    from tests.cluster.test_partitions import Duel

Report = Callable[[str, "list[Duel]"], None]
QUICK_ELECTIONS = {
    "zookeeper.fastleader.maxNotificationInterval": "1000",
    "zookeeper.cnxTimeout": "1000",
}


@pytest.fixture
def ensemble(shared: Ensemble) -> Iterator[Ensemble]:
    """The ensemble that the tests of a module share; it is whole again after each of them."""
    yield shared
    shared.heal_all()
    shared.start()


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Return what prints a line, though the test passes."""

    def printed(line: str) -> None:
        with capsys.disabled():
            print(f"\n{line}", file=sys.stderr)

    return printed


@pytest.fixture
def report(say: Callable[[str], None]) -> Report:
    """Return what waits for the outcome of every duel, and prints the margins."""

    def show(what: str, made: list[Duel]) -> None:
        margins = [duel.margin() for duel in made]
        say(
            f"{what}: {len(margins)} runs, margins {min(margins):.3f} … {max(margins):.3f} s, "
            f"median {statistics.median(margins):.3f} s"
        )

    return show
