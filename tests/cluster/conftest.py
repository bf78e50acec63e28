"""What the tests of ensembles have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from zklock.testing import BackendUnavailable, Ensemble, NotServing, srvr
from zklock.testing.java import Installation
from zklock.testing.ports import LOOPBACK


def mode_of(port: int) -> str | None:
    """Return what a server of this machine says that it is; ``None`` while it does not serve."""
    try:
        return srvr(LOOPBACK, port, timeout=1).mode
    except (OSError, NotServing):
        return None


@pytest.fixture(scope="session")
def installation() -> Installation:
    """A ZooKeeper in local Java, for members that no ensemble of ``zklock.testing`` has."""
    try:
        return Installation.find()
    except BackendUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def ensemble(shared: Ensemble) -> Iterator[Ensemble]:
    """The ensemble that the tests of a module share; it is whole again after each of them."""
    yield shared
    shared.heal_all()
    shared.start()
