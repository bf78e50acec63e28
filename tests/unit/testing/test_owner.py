import os
import subprocess
import sys
from dataclasses import replace

import pytest

from zklock.testing.owner import Owner


def test_this_process_is_not_gone_and_survives_text() -> None:
    owner = Owner.current()
    assert owner.pid == os.getpid()
    assert not owner.gone()
    assert Owner.parse(str(owner)) == owner


def test_a_process_that_has_ended_is_gone() -> None:
    code = "from zklock.testing.owner import Owner; print(Owner.current())"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert Owner.parse(process.stdout.strip()).gone()


def test_a_zombie_is_gone() -> None:
    code = "from zklock.testing.owner import Owner; print(Owner.current(), flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        owner = Owner.parse(process.stdout.readline().strip())
        assert not owner.gone()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert owner.gone()


@pytest.mark.skipif(sys.platform != "linux", reason="start times are read from /proc")
def test_a_pid_used_again_is_another_process() -> None:
    assert replace(Owner.current(), started="1").gone()


def test_after_a_boot_nothing_of_before_runs() -> None:
    assert replace(Owner.current(), boot="another").gone()


def test_what_cannot_be_seen_from_here_is_left_alone() -> None:
    gone = replace(Owner.current(), pid=2**22 + 1)
    assert gone.gone()
    assert not replace(gone, machine="elsewhere").gone()
    assert not replace(gone, namespace="pid:[1]").gone()


@pytest.mark.parametrize("text", ["", "a|b|c|d", "a|b|c|pid|e", "a|b|c|1|e|f"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (int's own words for one of them)
        Owner.parse(text)
