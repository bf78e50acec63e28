"""Lines that repeat are told once a minute, with a count."""

from __future__ import annotations

import logging

import pytest

from zklock._shell import repeats
from zklock._shell.repeats import QUIET, Repeats


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time = [1000.0]
    monkeypatch.setattr(repeats, "clock", lambda: time[0])
    return time


def test_an_equal_warning_is_counted(now: list[float], caplog: pytest.LogCaptureFixture) -> None:
    logger = Repeats(logging.getLogger("kazoo.client"))
    for _ in range(18):
        logger.warning("Cannot resolve %s: %s", "zk-1", "unknown")
    logger.warning("Cannot resolve %s: %s", "zk-2", "unknown")
    now[0] += QUIET
    logger.warning("Cannot resolve %s: %s", "zk-1", "unknown")
    logger.warning("Cannot resolve %s: %s", "zk-1", "unknown")
    assert [record.getMessage() for record in caplog.records] == [
        "Cannot resolve zk-1: unknown",
        "Cannot resolve zk-2: unknown",
        "Cannot resolve zk-1: unknown (and 17 times since the last line)",
    ]


def test_what_is_less_than_a_warning_passes(
    now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    logger = Repeats(logging.getLogger("kazoo.client"))
    for _ in range(3):
        logger.info("connecting")
        logger.log(5, "bytes")
    assert len(caplog.records) == 3


def test_few_lines_are_remembered(now: list[float], caplog: pytest.LogCaptureFixture) -> None:
    logger = Repeats(logging.getLogger("kazoo.client"))
    for number in range(1000):
        logger.error("lost %d", number)
    assert len(logger._told) <= repeats._MOST
    assert len(caplog.records) == 1000
