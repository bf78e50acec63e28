"""What the tests of the guards share."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from tests.contract.fencing.conftest import Stores
from tests.contract.fencing.guards_under_test import Store

S = TypeVar("S", bound=Store)


def on(*kinds: Any) -> pytest.MarkDecorator:
    """Mark a test that runs on stores of these kinds."""
    return pytest.mark.parametrize("store", kinds, indirect=True)


def fresh(stores: Stores, kind: str, what: type[S]) -> S:
    """Return a store of this kind with a resource that no other test has."""
    made = stores[kind].fresh()
    assert isinstance(made, what)
    return made
