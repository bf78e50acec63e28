"""How switches in the environment are read."""

from __future__ import annotations

import pytest

from tests import modes
from zklock.testing.switches import switch


@pytest.mark.parametrize("text", ["0", "false", "no", "off", "FALSE", " No "])
def test_what_says_no(text: str) -> None:
    assert not switch("IT", {"IT": text}, default=True)


@pytest.mark.parametrize("text", ["1", "true", "yes", "on", "2", "Y"])
def test_what_says_yes(text: str) -> None:
    assert switch("IT", {"IT": text})


@pytest.mark.parametrize("default", [True, False])
@pytest.mark.parametrize("environ", [{}, {"IT": ""}, {"IT": " "}])
def test_what_says_nothing(environ: dict[str, str], default: bool) -> None:
    assert switch("IT", environ, default=default) is default


@pytest.mark.parametrize(
    ("strict", "full", "expected"),
    [
        ("1", None, False),
        ("1", "", False),
        ("1", "yes", True),
        ("", "1", True),
    ],
)
def test_a_run_is_full_if_it_is_told_to_be(
    monkeypatch: pytest.MonkeyPatch, strict: str, full: str | None, expected: bool
) -> None:
    monkeypatch.setenv("ZKLOCK_TEST_STRICT", strict)
    monkeypatch.delenv("ZKLOCK_TEST_FULL", raising=False)
    if full is not None:
        monkeypatch.setenv("ZKLOCK_TEST_FULL", full)
    assert modes.full() is expected
