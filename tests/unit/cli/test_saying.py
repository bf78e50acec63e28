"""What commands say on standard error."""

from __future__ import annotations

import logging
import sys

import pytest

from zklock.cli.saying import LogFormatter, say, say_missing

EVIL = "\x1b]0;x\x07\r\nzklock: all is well\u202e"
SAFE = r"\x1b]0;x\x07\x0d\x0azklock: all is well\u202e"


def test_a_sentence_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say("show", f"held by {EVIL}")
    say(None, EVIL)
    assert say_missing("ls", f"/{EVIL}", ": look") == 66
    assert capsys.readouterr().err.split("\n") == [
        f"zklock show: held by {SAFE}",
        f"zklock: {SAFE}",
        f"zklock ls: /{SAFE} does not exist: look",
        "",
    ]


def test_a_log_record_is_one_line_and_its_traceback_does_not_steer_the_terminal() -> None:
    try:
        raise ValueError(EVIL)
    except ValueError:
        told = sys.exc_info()
    record = logging.LogRecord("zklock", logging.INFO, __file__, 1, "by %s", (EVIL,), told)
    first, *traceback = LogFormatter(logging.BASIC_FORMAT).format(record).split("\n")
    assert first == f"INFO:zklock:by {SAFE}"
    assert traceback[0] == "Traceback (most recent call last):"
    assert not set("\x1b\x07\r\u202e") & set("".join(traceback))
