"""The backends that tests of the test servers run on."""

from __future__ import annotations

import os

import pytest

from zklock.testing import Backend, BackendUnavailable, choose_backend

NAMES = ("java", "container")


def backend_or_skip(name: str) -> Backend:
    """Return the backend; skip the test where it cannot run, fail it in strict mode."""
    try:
        return choose_backend(name)
    except BackendUnavailable as error:
        if os.environ.get("ZKLOCK_TEST_STRICT", "0") not in ("", "0"):
            raise
        pytest.skip(str(error))
