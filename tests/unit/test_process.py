"""A forked child is told from its parent, also where both have one pid."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from zklock._ground.process import this_process
from zklock._shell.handler import Handler


def in_child(look: Callable[[], bool]) -> bool:
    """Return what is so in a forked child."""
    child = os.fork()
    if not child:
        code = 2
        try:
            code = look()
        finally:
            os._exit(code)
    return {0: False, 1: True}[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]


@pytest.mark.parametrize("pid", ["its own", "that of its parent"])
def test_a_child_is_another_process_and_a_handler_knows_it(
    pid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process of a PID namespace forks into another: its child is the first, too."""
    if pid == "that of its parent":
        monkeypatch.setattr(os, "getpid", lambda: 1)
    handler, here = Handler(), this_process()
    assert in_child(lambda: handler.forked and this_process() != here)
    assert this_process() == here
    assert not handler.forked


def test_a_fork_of_c_code_shows_by_the_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = Handler()
    pid = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: pid)
    assert handler.forked
