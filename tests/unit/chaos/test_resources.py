"""The lines about what the processes of a run take."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any, cast

from tests.chaos.resources import lines
from zklock.testing import Ensemble, NotServing


@dataclass
class Server:
    hosts: str
    answer: Any

    def status(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@dataclass
class Status:
    node_count: int


@dataclass
class Servers:
    servers: list[Server]


def test_a_line_for_each_process_and_each_server_that_serves() -> None:
    servers = Servers([Server("one:1", Status(7)), Server("two:2", NotServing("not now"))])
    waits = [sys.executable, "-c", "input()", '{"name": "w0-1"}']
    with subprocess.Popen(waits, stdin=subprocess.PIPE) as child:
        found = [*lines(cast(Ensemble, servers))]
        child.communicate(b"\n")
    (line,) = [line for line in found if line.startswith(f"w0-1 {child.pid}: ")]
    assert " 1 threads, " in line
    assert found[-1] == "one:1: 7 znodes"
    assert not any(line.startswith("two:2") for line in found)
