"""A mark for tests of the contract."""

from __future__ import annotations

import pytest

LASTING = pytest.mark.parametrize("session_seconds", [30.0], ids=["lasting"])
"""Marks a test whose sessions must outlast whatever keeps the processors busy."""
