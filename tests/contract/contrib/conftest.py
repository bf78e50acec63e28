from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.contract.support import ROOT

Start: TypeAlias = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def start_process(log: Path) -> Iterator[Start]:
    """Starts modules of Python: words, and variables. They are killed after the test."""
    started = []

    def start(*words: str, **environment: str) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", *words],
                    cwd=ROOT,
                    env={**os.environ, **environment},
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
