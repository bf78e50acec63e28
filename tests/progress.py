"""Progress in lines that a person can read, in place of a dot for each test.

``pytest -p tests.progress`` prints every few seconds how many tests are done, and the
name of a test that fails at once. `tests.run` uses it; ``ZKLOCK_TEST_STAGE`` is its title.
"""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

EVERY = 5.0
"""Seconds between two lines."""


class Progress:
    """Counts the tests that are done."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._stage = os.environ.get("ZKLOCK_TEST_STAGE", "tests")
        self._began = self._told = time.monotonic()
        self._done: set[str] = set()
        self._failed: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """Print nothing for a test that passes."""
        if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            return "passed", "", ""
        if report.failed:
            return ("failed" if report.when == "call" else "error"), "", ""
        if report.skipped:
            return ("xfailed" if hasattr(report, "wasxfail") else "skipped"), "", ""
        return None

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count a test, and tell of one that fails."""
        if report.failed and report.nodeid not in self._failed:
            self._failed.add(report.nodeid)
            self._say(f"FAILED {report.nodeid}")
        if report.when == "teardown":
            self._done.add(report.nodeid)
            if time.monotonic() >= self._told + EVERY:
                self.tell()

    def tell(self) -> None:
        """Print a line."""
        self._told = time.monotonic()
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        total = getattr(getattr(reporter, "_session", None), "testscollected", 0)
        minutes = (self._told - self._began) / 60
        failed = f", {len(self._failed)} failed" if self._failed else ""
        self._say(f"{self._stage}: {len(self._done)} of {total} tests{failed}, {minutes:.1f} min")

    def _say(self, line: str) -> None:
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    """Register it where results are reported."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(config), "zklock-progress")
