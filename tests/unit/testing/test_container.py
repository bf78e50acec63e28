"""What the container backend makes of an engine's answers."""

from __future__ import annotations

from typing import Any

import pytest
from docker.errors import APIError

from zklock.testing import container

BUSY = APIError("500 Server Error", explanation="OCI runtime pause failed: unable to freeze")
OTHER = APIError("500 Server Error", explanation="cgroups not configured for container")


class Refusing:
    """A container that the engine pauses after these errors."""

    def __init__(self, *errors: APIError) -> None:
        self._errors = list(errors)
        self.paused = False

    def pause(self) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self.paused = True


def test_a_busy_machine_pauses_it_in_the_end() -> None:
    busy = Refusing(BUSY, BUSY)
    container._freeze(busy)
    assert busy.paused


def test_an_engine_that_cannot_pause_is_asked_once() -> None:
    refusing = Refusing(OTHER)
    with pytest.raises(APIError, match="not configured"):
        container._freeze(refusing)
    assert not refusing.paused


def test_a_machine_that_never_pauses_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "_FREEZE_SECONDS", 0.0)
    never: Any = Refusing(*[BUSY] * 10)
    with pytest.raises(TimeoutError, match="unable to freeze"):
        container._freeze(never)
