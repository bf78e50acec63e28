"""How switches in the environment are read."""

from __future__ import annotations

import pytest

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
