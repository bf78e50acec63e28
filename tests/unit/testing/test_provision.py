from __future__ import annotations

import os
import shutil
import subprocess
import time
from types import SimpleNamespace
from typing import IO

import pytest

from zklock.testing import provision as module
from zklock.testing.backend import Backend
from zklock.testing.errors import BackendUnavailable
from zklock.testing.external import ExternalBackend
from zklock.testing.provision import provision

SERVED = ExternalBackend("127.0.0.1:2181")


class Machine:
    """One without ZooKeeper, until its packages are installed; apt-get fails ``failures`` times."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.lasts = 0
        self.commands: list[list[str]] = []
        self.pauses: list[float] = []

    def choose_backend(self, *, environ: object) -> Backend:
        if any("libzookeeper-java" in command for command in self.commands):
            return SERVED
        raise BackendUnavailable("nothing here can run ZooKeeper")

    def start(self, command: list[str], *, stdout: IO[bytes], **options: object) -> Process:
        assert options["stdin"] is subprocess.DEVNULL
        if self.failures:
            self.failures -= 1
            return Process(stdout, self.lasts, [b"E: no network\n"], 100)
        self.commands.append(command)
        lines = [b"Get:%d http://deb.example/debian %s\n" % (n, b"x" * 99) for n in range(9)]
        return Process(stdout, self.lasts, lines, 0)


class Process:
    """Prints a line whenever it is waited for, ``lasts`` times in vain."""

    def __init__(self, stdout: IO[bytes], lasts: int, lines: list[bytes], code: int) -> None:
        self.stdout = stdout
        self.lasts = lasts
        self.lines = lines
        self.code = code

    def wait(self, timeout: float) -> int:
        if self.lines:
            os.write(self.stdout.fileno(), self.lines.pop(0))
        if not self.lasts:
            return self.code
        self.lasts -= 1
        raise subprocess.TimeoutExpired("apt-get", timeout)


def put(monkeypatch: pytest.MonkeyPatch, machine: Machine, *, apt: bool, root: bool) -> None:
    monkeypatch.setattr(module, "choose_backend", machine.choose_backend)
    monkeypatch.setattr(subprocess, "Popen", machine.start)
    clock = SimpleNamespace(sleep=machine.pauses.append, monotonic=time.monotonic)
    monkeypatch.setattr(module, "time", clock)  # other threads sleep as ever
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if apt else None)
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)


def test_what_is_there_is_used_and_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    put(monkeypatch, machine, apt=True, root=True)
    monkeypatch.setattr(module, "choose_backend", lambda **options: SERVED)
    said: list[str] = []
    assert provision({}, say=said.append) is SERVED
    assert (machine.commands, said) == ([], [])


def test_root_on_debian_gets_the_packages_and_hears_of_it_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine()
    put(monkeypatch, machine, apt=True, root=True)
    said: list[tuple[str, int]] = []
    assert provision({}, say=lambda text: said.append((text, len(machine.commands)))) is SERVED
    assert [command[4:6] for command in machine.commands] == [["update"], ["install", "-y"]]
    assert said == [
        ("no ZooKeeper here, so apt-get is asked for one", 0),
        ("installing default-jre-headless and libzookeeper-java", 0),
        ("installed; ZooKeeper is served by given by ZKLOCK_TEST_HOSTS", 2),
    ]


def test_one_sees_that_it_goes_on_in_lines_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    machine.lasts = 3
    put(monkeypatch, machine, apt=True, root=True)
    said: list[str] = []
    provision({}, say=said.append)
    assert said[2:5] == [f"0 s: Get:{n} http://deb.example/debian {'x' * 18}" for n in range(3)]
    assert all(len(f"zklock demo: {line}") < 80 for line in said)


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
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
    apt: bool,
    root: bool,
    instruction: str,
) -> None:
    machine = Machine()
    put(monkeypatch, machine, apt=apt, root=root)
    with pytest.raises(BackendUnavailable) as caught:
        provision(environ, say=pytest.fail)
    assert instruction in str(caught.value)
    assert "nothing here can run ZooKeeper" in str(caught.value)
    assert machine.commands == []


def test_the_java_backend_may_be_asked_for_and_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    put(monkeypatch, machine, apt=True, root=True)
    assert provision({"ZKLOCK_TEST_BACKEND": "java"}, say=lambda text: None) is SERVED


def test_hiccups_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(failures=2)
    put(monkeypatch, machine, apt=True, root=True)
    assert provision({}, say=lambda text: None) is SERVED
    assert len(machine.pauses) == 2


def test_a_failure_that_lasts_shows_what_apt_said(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(failures=99)
    put(monkeypatch, machine, apt=True, root=True)
    with pytest.raises(BackendUnavailable, match=r"(?s)apt-get .*code 100:\nE: no network"):
        provision({}, say=lambda text: None)


def test_as_a_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    put(monkeypatch, Machine(), apt=False, root=True)
    assert module.main() == 1
    assert "ZOOKEEPER_HOME" in capsys.readouterr().err
    monkeypatch.setattr(module, "choose_backend", lambda **options: SERVED)
    assert module.main() == 0
    assert "ZooKeeper: given by ZKLOCK_TEST_HOSTS" in capsys.readouterr().out


def test_the_command_that_is_asked_for_help_installs_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine()
    put(monkeypatch, machine, apt=True, root=True)
    for arguments, status in (["--help"], 0), (["--nope"], 2):
        with pytest.raises(SystemExit) as ended:
            module.main(arguments)
        assert ended.value.code == status
    assert "as root" in capsys.readouterr().out
    assert not machine.commands
