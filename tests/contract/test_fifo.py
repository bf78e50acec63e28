"""Two hundred contenders of several processes are granted in the order of their znodes."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import zklock
from tests.contract.support import Child, granted, passes_on, queued
from tests.modes import repeated

PROCESSES = repeated(8, 4)
THREADS = 200 // PROCESSES


def test_grants_come_in_sequence_order(
    zklock_hosts: str, other: Any, zklock_path: str, tmp_path: Path
) -> None:
    ledger = tmp_path / "grants"
    gate = zklock.Lock(other, zklock_path)
    granted(gate)
    with ExitStack() as stack:
        given = {"hosts": zklock_hosts, "path": zklock_path, "ledger": str(ledger)}
        processes = [
            stack.enter_context(Child("queue", threads=THREADS, **given)) for _ in range(PROCESSES)
        ]
        for process in processes:
            assert process.hears() == "ready"
        for threads in THREADS // 2, THREADS:  # in two halves, so that nobody queues in one go
            for process in processes:
                process.tell("go")
            waiting = queued(other, zklock_path, PROCESSES * threads + 1)[1:]
        told = [contender.sequence for contender in gate.contenders()][1:]
        gate.release()
        for process in processes:
            assert process.hears() == "done"
    lines = [line.split() for line in ledger.read_text().splitlines()]
    order = [int(sequence) for sequence, _ in lines]
    assert order == [int(name[-10:]) for name in waiting] == told
    assert len(order) == PROCESSES * THREADS
    turns = sum(a != b for (_, a), (_, b) in pairwise(lines))
    assert turns > PROCESSES
    passes_on(other, zklock_path)
