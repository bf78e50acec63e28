"""What the tests of ensembles have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from zklock.testing import Ensemble


@pytest.fixture
def ensemble(shared: Ensemble) -> Iterator[Ensemble]:
    """The ensemble that the tests of a module share; it is whole again after each of them."""
    yield shared
    shared.heal_all()
    shared.start()
