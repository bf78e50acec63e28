"""The commands as users run them: processes of their own, with a real ZooKeeper."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

import zklock
from tests.contract import scenes
from tests.contract.test_demo import parent_of
from zklock.testing import wait_for
from zklock.testing.proxy import FaultProxy

PATIENCE = 60.0
ZKLOCK = [sys.executable, "-m", "zklock.cli"]
CONSOLE = scenes.BLOCK.findall(Path(__file__).with_name("console.md").read_text())


class Commands:
    """Starts ``zklock`` commands against one server; whatever still runs is killed in the end.

    ``path`` and ``folder`` are those of the test.
    """

    def __init__(
        self, hosts: str, path: str = "", folder: Path = Path(), connect: Any = None
    ) -> None:
        self.environ = {**os.environ, "ZKLOCK_HOSTS": hosts}
        self.path, self.folder = path, folder
        self._connect = connect
        self._running: list[subprocess.Popen[str]] = []

    @functools.cached_property
    def patient(self) -> KazooClient:
        """A client whose session outlives commands that are slow to start."""
        return self._connect(timeout=30.0)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        return self.start_raw([*ZKLOCK, *arguments], **options)

    def start_program(self, program: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start a Python program."""
        program = textwrap.dedent(program)
        return self.start_raw([sys.executable, "-c", program, *arguments], **options)

    def start_raw(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start any command."""
        given: dict[str, Any] = {
            "env": self.environ,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }
        process: subprocess.Popen[str] = subprocess.Popen(command, text=True, **(given | options))
        self._running.append(process)
        return process

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, errors = process.communicate(timeout=PATIENCE)
        return process.returncode, out, errors

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()


def python(program: str) -> Sequence[str]:
    return ("--", sys.executable, "-c", textwrap.dedent(program))


def ends_in_order(folder: Path) -> Sequence[str]:
    """Return a command that notes its id and its token, and takes a moment to end, with 3."""
    return python(f"""
        import os, pathlib, signal, time
        folder = pathlib.Path({str(folder)!r})
        def end(*_):
            time.sleep(0.2)
            (folder / "ended").write_text("in order")
            os._exit(3)
        signal.signal(signal.SIGTERM, end)
        with open(folder / "began", "a") as file:
            print(os.getpid(), os.environ["ZKLOCK_TOKEN"], file=file)
        while True:  # a signal that comes just before a sleep begins does not end it
            time.sleep(0.05)
        """)


def text_of(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def await_file(file: Path) -> str:
    return wait_for(lambda: text_of(file), PATIENCE, f"no {file.name}")


@pytest.mark.parametrize(
    ("scene", "block"), CONSOLE, ids=[f"{at}-{scene}" for at, (scene, _) in enumerate(CONSOLE)]
)
def test_commands_print_and_end_as_written(
    scene: str, block: str, stage: scenes.Stage, zk: Commands
) -> None:
    scenes.is_true(block, scene, stage, zk)


def test_it_waits_its_turn(zk: Commands) -> None:
    mine = zklock.Lock(zk.patient, zk.path)
    with mine:
        waiting = zk.start("run", zk.path, "--", "touch", str(zk.folder / "ran"))
        wait_for(lambda: len(mine.contenders()) == 2, PATIENCE)
        assert not (zk.folder / "ran").exists()
    assert waiting.wait(PATIENCE) == 0
    assert (zk.folder / "ran").exists()


def test_a_signal_goes_to_the_command_which_ends_before_the_release(zk: Commands) -> None:
    running = zk.start("run", zk.path, *ends_in_order(zk.folder))
    await_file(zk.folder / "began")
    running.terminate()
    with zklock.Lock(zk.patient, zk.path, timeout=PATIENCE):
        assert (zk.folder / "ended").exists()
    assert running.wait(PATIENCE) == 3


def test_a_lost_lock_ends_the_command_and_all_it_started(
    zklock_proxy: FaultProxy, zk: Commands
) -> None:
    # The command ends on SIGTERM; what it started ignores it.
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    pids = zk.folder / "pids"
    program = f"""
        import pathlib, os, signal, subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", {stubborn!r}])
        pathlib.Path({str(pids)!r}).write_text(f"{{os.getpid()}} {{child.pid}}")
        time.sleep(60)
    """
    options = ("--hosts", zklock_proxy.hosts, "--session-timeout", "2")
    while True:  # on a busy machine it may lose its lock, and be ended, before it writes
        running = zk.start("run", *options, zk.path, *python(program))
        wait_for(lambda: text_of(pids) or running.poll() is not None, PATIENCE)  # noqa: B023
        if text_of(pids):
            break
        assert running.returncode == 79, running.communicate()
    zklock_proxy.blackhole()
    with zklock.Lock(zk.patient, zk.path, timeout=PATIENCE):
        assert [pid for pid in text_of(pids).split() if parent_of(int(pid)) is not None] == []
    zklock_proxy.restore()
    _, errors = running.communicate(timeout=PATIENCE)
    assert running.returncode == 79
    assert "counts as lost" in errors


@pytest.mark.parametrize("command", ["show", "ls", "break", "check", "top", "wait", "run"])
def test_no_name_steers_the_terminal(command: str, zk: Commands) -> None:
    evil, safe = "\x1b]0;x\x07\r\n\u202e", "\\x1b]0;x\\x07\\x0d\\x0a\\u202e"
    path = f"{zk.path}/\u202ereport"  # ZooKeeper refuses ASCII's controls in a path, not these
    zk.environ["PYTHONIOENCODING"] = "utf-8"
    assert zklock.Lock(zk.patient, path, identity=evil).acquire()
    more = {
        "break": [path, "--oldest"],
        "check": [path, "0000000000000000-0000000000"],
        "top": ["--once", zk.path],
        "ls": [zk.path],
        "show": [path],
        "wait": ["-w", "0.1", path],
        "run": ["-v", "-w", "2", path, "true"],
    }
    file = zk.folder / "said"
    with file.open("wb") as output:
        process = zk.start(command, *more[command], stdout=output, stderr=subprocess.STDOUT)
        process.wait(PATIENCE)
    said = file.read_bytes().decode()
    assert safe in said
    assert f"{zk.path}/\\u202ereport" in said
    assert not set("\x1b\x07\r\u202e") & set(said)


def test_no_path_in_a_log_steers_the_terminal(zk: Commands) -> None:
    path = f"{zk.path}/\u202ereport"
    zk.environ["PYTHONIOENCODING"] = "utf-8"
    with zklock.Semaphore(zk.patient, path, limit=2):
        code, _, errors = zk.run("run", "-v", "--limit", "3", path, "true")
    assert code == 125
    assert f"INFO:zklock:{zk.path}/\\u202ereport" in errors
    assert "Traceback" in errors
    assert "\u202e" not in errors


def test_ages_do_not_trust_a_clock_that_is_behind(zk: Commands) -> None:
    """The clock of the commands is an hour behind that of the server."""
    prelude = """
        import sys, time
        right = time.time
        time.time = lambda: right() - 3600
        from zklock.cli import main
        sys.exit(main(sys.argv[1:]))
    """

    def said(*arguments: str) -> str:
        process = zk.start_program(prelude, *arguments, zk.path)
        out, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        return str(out + errors)

    with zklock.Lock(zk.patient, zk.path, identity="host-7") as grant:
        created = zk.patient.get(grant.path)[1].created

        def later() -> bool:
            other = zk.patient.create(f"{zk.path}-later", ephemeral=True)
            made = zk.patient.get(other)[1].created
            zk.patient.delete(other)
            return bool(made > created + 1.0)

        wait_for(later, PATIENCE)
        with zklock.Lock(zk.patient, f"{zk.path}/newest", identity="host-8"):
            listed, told = said("ls"), said("ls", "--json")
        assert re.search(r"host-7  ([0-9]+m)?[1-9][0-9]*s ", listed), listed
        assert re.search(r'"host-7", "session": "\w+", "age": [1-9]', told), told
        why = (
            "this machine's clock is (59m[0-9]+s|1h) or more behind the clock of ZooKeeper's "
            "leader: keep both by NTP\n"
        )
        assert re.search(f"zklock ls: ages are approximate: {why}", listed), listed
        assert "zklock show: ages are approximate" in said("show")
        assert "ages are approximate" in said("top", "--once")
