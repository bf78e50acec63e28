"""No process of the command of ``zklock run`` runs on past the next grant, whatever dies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract import promise
from zklock.testing import wait_for

SESSION = 2.0


@pytest.mark.hazard("H54")
@pytest.mark.parametrize("command", promise.COMMANDS)
@pytest.mark.parametrize("fault", promise.FAULTS)
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
