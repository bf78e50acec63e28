"""The worked example of docs/election.md: late commands of an old leader are refused."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.contract.commands import send
from tests.contract.support import SOON, Child, queued
from zklock.testing import wait_for


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.hazard("H19")
def test_late_commands_are_refused_by_every_worker(
    other: Any, zklock_hosts: str, zklock_path: str
) -> None:
    where = {"hosts": zklock_hosts, "path": zklock_path}
    with ExitStack() as stack:
        workers = [stack.enter_context(Child("obey", **where)) for _ in range(3)]
        ports = [worker.hears() for worker in workers]
        first, second = (
            stack.enter_context(Child("command", identity=name, ports=ports, **where))
            for name in ("first", "second")
        )
        queued(other, zklock_path, 2)
        leader, waiting = first, second
        names = other.get_children(zklock_path)
        oldest = min(names, key=lambda name: name[-10:])
        if other.get(f"{zklock_path}/{oldest}")[0] == b"second":
            leader, waiting = second, first
        early = leader.hears()
        leader.tell("send 0,1,2")
        assert leader.hears() == ["obeyed"] * 3

        leader.tell("stop and send 0,1,2")
        pid = leader.process.pid
        wait_for(lambda: stopped(pid), SOON, "not paused")
        late = waiting.hears()
        assert late > early
        waiting.tell("send 0")  # the others have not heard of the new leader
        assert waiting.hears() == ["obeyed"]
        os.kill(pid, signal.SIGCONT)
        assert leader.hears() == ["stale", "not the leader", "not the leader"]

        waiting.tell("send 0,1,2")
        assert waiting.hears() == ["obeyed"] * 3
        queued(other, zklock_path, 2)
        waiting.tell("resign 0")
        again = leader.hears()
        assert again > late
        leader.tell("send 0,1,2")
        assert leader.hears() == ["obeyed"] * 3

        forged = {"identity": "nobody", "token": again, "what": "send"}
        for port, more in zip(ports, (1, 0, 0), strict=True):
            answer, obeyed = send(port, forged)
            assert answer == "not the leader's identity"
            tokens = [each["token"] for each in obeyed]
            assert tokens == [early] + [late] * (1 + more) + [again]
