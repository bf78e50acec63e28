"""Progress in lines that a person can read, in place of a dot for each test.

``pytest -p tests.progress`` prints every few seconds how many tests are done, and the name of one
that fails at once. In the end it lists the unit tests that took long and do not say why.
`tests.run` uses it; ``ZKLOCK_TEST_STAGE`` is its title.
"""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

EVERY = 5.0
"""Seconds between two lines."""

LONG = 0.25
"""Seconds from which on a unit test needs a reason. A busy machine is slow: it is no verdict."""

REASONS = {"slow", "lengthy", "thorough"}
"""The marks that give one. A test against a real server needs none."""


class Progress:
    """Counts the tests that are done."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._stage = os.environ.get("ZKLOCK_TEST_STAGE", "tests")
        self._began = self._told = time.monotonic()
        self._done: set[str] = set()
        self._failed: set[str] = set()
        self._long: list[tuple[float, str]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """Print nothing for a test that passes."""
        if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            return "passed", "", "PASSED"
        if report.failed:
            category = "failed" if report.when == "call" else "error"
            return category, "", category.upper()
        if report.skipped:
            category = "xfailed" if hasattr(report, "wasxfail") else "skipped"
            return category, "", category.upper()
        return None

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count a test, and tell of one that fails."""
        if report.failed and report.nodeid not in self._failed:
            self._failed.add(report.nodeid)
            self._say(f"FAILED {report.nodeid}")
        unit = report.nodeid.startswith("tests/unit/") and REASONS.isdisjoint(report.keywords)
        if unit and report.when == "call" and report.duration > LONG:
            self._long.append((report.duration, report.nodeid))
        if report.when == "teardown":
            self._done.add(report.nodeid)
            if time.monotonic() >= self._told + EVERY:
                self.tell()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the long tests without a reason."""
        if self._long:
            terminalreporter.section(f"more than {LONG} s without a mark that says why")
        for seconds, name in sorted(self._long, reverse=True):
            terminalreporter.write_line(f"{seconds:5.2f} s {name}")

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
