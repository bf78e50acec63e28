"""What docs/howto/jobs.md shows, run as cron and systemd would run it."""

from __future__ import annotations

import configparser
import re
import shlex
import signal
import subprocess
from pathlib import Path

from tests.contract.support import ROOT
from tests.contract.test_cli import Commands
from zklock.testing import wait_for

LONG = 90.0
PAGE = (ROOT / "docs" / "howto" / "jobs.md").read_text()


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def script(file: Path, *lines: str) -> str:
    file.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    file.chmod(0o755)
    return str(file)


def test_the_line_of_the_crontab_runs_its_job_on_one_host(zk: Commands) -> None:
    (line,) = block("text").splitlines()
    ran = zk.folder / "ran"
    job = script(zk.folder / "nightly", f"echo ran >> {ran}")
    command = line.split(" ", 5)[5].replace("/usr/local/bin/nightly", job)
    program, *arguments = shlex.split(command.replace("/locks/nightly", zk.path))
    assert program == "zklock"
    hosts = [zk.start(*arguments) for _ in range(3)]
    wait_for(lambda: sum(host.poll() is not None for host in hosts) >= 2, LONG)
    wait_for(ran.exists, LONG)
    (winner,) = (host for host in hosts if host.poll() is None)
    others = [host for host in hosts if host is not winner]
    assert [host.returncode for host in others] == [0, 0]
    winner.send_signal(signal.SIGTERM)  # else it keeps the lock for five minutes
    winner.wait(LONG)
    assert ran.read_text() == "ran\n"


def test_the_unit_runs_on_one_host_and_hands_over_at_its_stop(zk: Commands) -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.read_string(block("ini"))
    service = unit["Service"]
    began = zk.folder / "began"
    scheduler = script(zk.folder / "scheduler", f"echo $$ >> {began}", "exec sleep 600")
    command = service["ExecStart"].replace("/usr/local/bin/scheduler", scheduler)
    command = command.replace("/elections/scheduler", zk.path)
    program, *arguments = shlex.split(command)
    assert program == "/usr/local/bin/zklock"

    def begun() -> int:
        return len(began.read_text().splitlines()) if began.exists() else 0

    def stop(host: subprocess.Popen[str]) -> None:
        assert service["KillMode"] == "mixed"  # the signal goes to the main process alone
        host.send_signal(signal.SIGTERM)
        status = host.wait(LONG)
        assert 128 + signal.SIGTERM == int(service["SuccessExitStatus"]) == status

    first = zk.start(*arguments)
    wait_for(lambda: begun() == 1, LONG)
    second = zk.start(*arguments)
    stop(first)
    wait_for(lambda: begun() == 2, LONG)
    stop(second)
