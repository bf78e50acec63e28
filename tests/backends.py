"""The backends that tests of the test servers run on."""

from __future__ import annotations

import os

import pytest

from tests.modes import strict
from zklock.testing import Backend, BackendUnavailable, choose_backend
from zklock.testing.selection import BACKEND_VARIABLE

NAMES = ("java", "container", "embedded")
QUICK_ELECTIONS = {
    # A server that found no leader asks again at intervals that grow to a minute by default, and
    # waits five seconds for a peer to accept a connection.
    "zookeeper.fastleader.maxNotificationInterval": "1000",
    "zookeeper.cnxTimeout": "1000",
}


def backend_or_skip(name: str) -> Backend:
    """Return the backend; skip the test where it cannot run, fail it in strict mode."""
    try:
        return choose_backend(name)
    except BackendUnavailable as error:
        if strict():
            raise
        pytest.skip(str(error))


def backend_to_cut() -> Backend:
    """Return the backend for ensembles whose members are cut off.

    That is the one in ``ZKLOCK_TEST_BACKEND``, else containers, whose packets are really dropped.
    Where there is no container engine, it is a local Java with a relay between the members, but
    not in strict mode.
    """
    name = os.environ.get(BACKEND_VARIABLE)
    if name or strict():
        return backend_or_skip(name or "container")
    try:
        return choose_backend("container")
    except BackendUnavailable:
        return backend_or_skip("java")
