"""How switches in the environment are read."""

from __future__ import annotations

import pytest

from tests import modes
from zklock.testing.switches import switch


@pytest.mark.parametrize(
    ("says", "texts"),
    [
        (False, ["0", "false", "no", "off", "FALSE", " No "]),
        (True, ["1", "true", "yes", "on", "2", "Y"]),
    ],
)
def test_what_a_switch_says(says: bool, texts: list[str]) -> None:
    assert [switch("IT", {"IT": text}, default=not says) for text in texts] == [says] * len(texts)
    nothing: list[dict[str, str]] = [{}, {"IT": ""}, {"IT": " "}]
    assert [switch("IT", it, default=says) for it in nothing] == [says] * len(nothing)


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
