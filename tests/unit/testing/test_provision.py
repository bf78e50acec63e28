from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

import pytest

from zklock.testing import provision as module
from zklock.testing.backend import Backend
from zklock.testing.errors import BackendUnavailable
from zklock.testing.external import ExternalBackend
from zklock.testing.provision import provision

SERVED = ExternalBackend("127.0.0.1:2181")


class Machine:
    """One without ZooKeeper, until its packages are installed; ``code``: of its apt-get."""

    def __init__(self) -> None:
        self.code = 0
        self.commands: list[list[str]] = []

    def choose_backend(self, *, environ: object) -> Backend:
        if any("libzookeeper-java" in command for command in self.commands):
            return SERVED
        raise BackendUnavailable("nothing here can run ZooKeeper")

    def run(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        assert options["stdin"] is subprocess.DEVNULL
        self.commands.append(command)
        return subprocess.CompletedProcess(command, self.code)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Be root on a Debian without ZooKeeper."""
    made = Machine()
    monkeypatch.setattr(module, "choose_backend", made.choose_backend)
    monkeypatch.setattr(subprocess, "run", made.run)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return made


def test_what_is_there_is_used_and_nothing_is_installed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "choose_backend", lambda **options: SERVED)
    assert provision({}, say=pytest.fail) is SERVED
    assert module.main() == 0
    assert "ZooKeeper: given by ZKLOCK_TEST_HOSTS" in capsys.readouterr().out
    assert machine.commands == []


@pytest.mark.parametrize("environ", [{}, {"ZKLOCK_TEST_BACKEND": "java"}])
def test_root_on_debian_gets_the_packages_and_hears_of_it_first(
    machine: Machine, environ: dict[str, str]
) -> None:
    said: list[tuple[str, int]] = []
    assert provision(environ, say=lambda it: said.append((it, len(machine.commands)))) is SERVED
    assert [command[6:8] for command in machine.commands] == [["update"], ["install", "-y"]]
    assert all("Acquire::Retries=3" in command for command in machine.commands)
    assert said == [
        ("no ZooKeeper here, so apt-get is asked for one", 0),
        ("installing default-jre-headless and libzookeeper-java", 0),
        ("installed; ZooKeeper is served by given by ZKLOCK_TEST_HOSTS", 2),
    ]


@pytest.mark.parametrize(
    ("environ", "apt", "root", "instruction"),
    [
        ({}, True, False, "As root, run:  apt-get update && apt-get install default-jre-headless"),
        ({}, False, True, "set ZOOKEEPER_HOME"),
        ({"ZKLOCK_PROVISION": "0"}, True, True, "As root, run:  apt-get update"),
        ({"ZKLOCK_PROVISION": "no"}, True, True, "As root, run:  apt-get update"),
        ({"ZKLOCK_TEST_BACKEND": "container"}, True, True, "Nothing is installed"),
        ({"ZKLOCK_TEST_HOSTS": "zk:2181"}, True, True, "Nothing is installed"),
    ],
)
def test_otherwise_it_says_what_to_do_and_touches_nothing(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
    apt: bool,
    root: bool,
    instruction: str,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if apt else None)
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    with pytest.raises(BackendUnavailable) as caught:
        provision(environ, say=pytest.fail)
    assert instruction in str(caught.value)
    assert "nothing here can run ZooKeeper" in str(caught.value)
    assert machine.commands == []


def test_a_failure_tells_what_was_run(
    machine: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.code = 100
    with pytest.raises(BackendUnavailable, match=r"apt-get .* update failed with code 100"):
        provision({}, say=lambda text: None)
    assert len(machine.commands) == 1
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert module.main() == 1
    assert "ZOOKEEPER_HOME" in capsys.readouterr().err


def test_the_command_that_is_asked_for_help_installs_nothing(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, status in (["--help"], 0), (["--nope"], 2):
        with pytest.raises(SystemExit) as ended:
            module.main(arguments)
        assert ended.value.code == status
    assert "as root" in capsys.readouterr().out
    assert not machine.commands
