"""No process of the command of ``zklock run`` runs on past the next grant, whatever dies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract import promise
from zklock.testing import wait_for

SESSION = 2.0
OTHERS = pytest.mark.thorough(
    "the ends of a command's processes: each fault with each sort of command; each of both runs"
)


@pytest.mark.hazard("H54")
@pytest.mark.parametrize(
    ("fault", "command"),
    [
        # Each fault strikes one command in any run, and each command is struck.
        pytest.param(
            fault, command, marks=[OTHERS] * ((first + second) % len(promise.COMMANDS) > 0)
        )
        for first, fault in enumerate(promise.FAULTS)
        for second, command in enumerate(promise.COMMANDS)
    ],
)
def test_the_command_is_gone_before_the_next_grant(
    fault: str,
    command: str,
    zklock_server: Any,
    zklock_path: str,
    zklock_connect: Callable[..., Any],
    tmp_path: Path,
) -> None:
    client = zklock_connect(timeout=30.0)
    end = wait_for(
        lambda: promise.end_of(
            command, fault, zklock_server, client, zklock_path, SESSION, tmp_path
        ),
        promise.PATIENCE,
    )
    assert end.alive == []
    assert end.margin > 0
