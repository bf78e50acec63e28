"""The commands as users run them: processes of their own, with a real ZooKeeper."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

import zklock
from tests.contract.test_demo import parent_of
from zklock.clock import clock
from zklock.testing import wait_for
from zklock.testing.proxy import FaultProxy

SESSION = "2"
PATIENCE = 20.0
PROMPT = "now-type> "


class Commands:
    """Starts ``zklock`` commands against one server; whatever still runs is killed in the end."""

    def __init__(self, hosts: str) -> None:
        self._environ = {**os.environ, "ZKLOCK_HOSTS": hosts}
        self._running: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "zklock.cli", *arguments],
            env=self._environ,
            text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )
        self._running.append(process)
        return process

    def start_raw(
        self, command: Sequence[str], environ: dict[str, str], terminal: int
    ) -> subprocess.Popen[str]:
        """Start any command, on a terminal."""
        process: subprocess.Popen[str] = subprocess.Popen(
            command,
            env={**self._environ, **environ},
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            text=True,
        )
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


@pytest.fixture
def zk(zklock_hosts: str) -> Iterator[Commands]:
    commands = Commands(zklock_hosts)
    yield commands
    commands.close()


def python(program: str) -> Sequence[str]:
    return ("--", sys.executable, "-c", textwrap.dedent(program))


def await_file(file: Path) -> str:
    return wait_for(
        lambda: file.read_text() if file.exists() else None, PATIENCE, f"no {file.name}"
    )


# run


def test_the_command_is_told_of_its_lock(zk: Commands, zklock_path: str) -> None:
    code, out, errors = zk.run("run", zklock_path, "--", "sh", "-c", "env; exit 7")
    given = dict(line.partition("=")[::2] for line in out.splitlines())
    assert (code, errors) == (7, "")
    assert given["ZKLOCK_PATH"] == zklock_path
    assert given["ZKLOCK_HELD"] == "1"
    assert zklock.FencingToken.parse(given["ZKLOCK_TOKEN"]).sequence == 0
    assert zk.run("run", zklock_path, "--", "printenv", "ZKLOCK_TOKEN")[1] > given["ZKLOCK_TOKEN"]


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 200"], 200),
        (["sh", "-c", "kill -KILL $$"], 137),
        (["/no/such/command"], 127),
        (["/etc/passwd"], 126),
    ],
)
def test_exit_statuses(
    command: list[str], status: int, zk: Commands, zklock_path: str, zklock_client: KazooClient
) -> None:
    assert zk.run("run", zklock_path, "--", *command)[0] == status
    assert zklock_client.get_children(zklock_path) == []


@pytest.mark.parametrize("command", [["echo", "-n", "--", "--help"], ["echo", "--", "-w", "--"]])
@pytest.mark.parametrize("separator", [[], ["--"]])
def test_the_command_gets_its_arguments_as_they_are(
    separator: list[str], command: list[str], zk: Commands, zklock_path: str
) -> None:
    expected = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert zk.run("run", zklock_path, *separator, *command) == (0, expected, "")


@pytest.mark.parametrize(
    ("options", "status"), [(["-n"], 1), (["-w", "0.2"], 1), (["-n", "-E", "42"], 42)]
)
def test_a_lock_that_is_not_got(
    options: list[str], status: int, zk: Commands, zklock_path: str, zklock_client: KazooClient
) -> None:
    with zklock.Lock(zklock_client, zklock_path):
        assert zk.run("run", *options, zklock_path, "--", "echo", "ran") == (status, "", "")
        assert len(zklock_client.get_children(zklock_path)) == 1
    assert zk.run("run", *options, zklock_path, "--", "echo", "ran") == (0, "ran\n", "")


def test_it_waits_its_turn(
    zk: Commands, zklock_path: str, zklock_client: KazooClient, tmp_path: Path
) -> None:
    mine = zklock.Lock(zklock_client, zklock_path)
    with mine:
        waiting = zk.start("run", zklock_path, "--", "touch", str(tmp_path / "ran"))
        wait_for(lambda: len(mine.contenders()) == 2, PATIENCE)
        assert not (tmp_path / "ran").exists()
    assert waiting.wait(PATIENCE) == 0
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait(
    number: signal.Signals, zk: Commands, zklock_path: str, zklock_client: KazooClient
) -> None:
    mine = zklock.Lock(zklock_client, zklock_path)
    with mine:
        waiting = zk.start("run", zklock_path, "--", "true")
        wait_for(lambda: len(mine.contenders()) == 2, PATIENCE)
        waiting.send_signal(number)
        assert waiting.wait(PATIENCE) == 128 + number
        assert len(mine.contenders()) == 1


def test_a_signal_goes_to_the_command_which_ends_before_the_release(
    zk: Commands, zklock_path: str, zklock_client: KazooClient, tmp_path: Path
) -> None:
    program = f"""
        import pathlib, signal, sys, time
        def end(*_):
            time.sleep(0.5)
            pathlib.Path({str(tmp_path / "ended")!r}).write_text("yes")
            sys.exit(3)
        signal.signal(signal.SIGTERM, end)
        pathlib.Path({str(tmp_path / "began")!r}).write_text("yes")
        time.sleep(60)
    """
    running = zk.start("run", zklock_path, *python(program))
    await_file(tmp_path / "began")
    running.terminate()
    with zklock.Lock(zklock_client, zklock_path, timeout=PATIENCE):
        assert (tmp_path / "ended").exists()
    assert running.wait(PATIENCE) == 3


def test_a_lost_lock_ends_the_command_and_all_it_started(
    zklock_proxy: FaultProxy,
    zk: Commands,
    zklock_path: str,
    zklock_client: KazooClient,
    tmp_path: Path,
) -> None:
    # The command ends on SIGTERM; what it started ignores it.
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    program = f"""
        import pathlib, os, signal, subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", {stubborn!r}])
        pathlib.Path({str(tmp_path / "pids")!r}).write_text(f"{{os.getpid()}} {{child.pid}}")
        time.sleep(60)
    """
    running = zk.start(
        "run",
        "--hosts",
        zklock_proxy.hosts,
        "--session-timeout",
        SESSION,
        zklock_path,
        *python(program),
    )
    pids = [int(pid) for pid in await_file(tmp_path / "pids").split()]
    zklock_proxy.blackhole()
    with zklock.Lock(zklock_client, zklock_path, timeout=PATIENCE):
        assert [pid for pid in pids if parent_of(pid) is not None] == []
    zklock_proxy.restore()
    _, errors = running.communicate(timeout=PATIENCE)
    assert running.returncode == 75
    assert "lock lost" in errors


def test_a_command_that_ignores_sigterm_is_killed_after_the_grace(
    zklock_proxy: FaultProxy,
    zk: Commands,
    zklock_path: str,
    zklock_client: KazooClient,
    tmp_path: Path,
) -> None:
    program = f"""
        import pathlib, os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(os.getpid()))
        time.sleep(60)
    """
    running = zk.start(
        "run",
        "--hosts",
        zklock_proxy.hosts,
        "--session-timeout",
        SESSION,
        zklock_path,
        *python(program),
    )
    pid = int(await_file(tmp_path / "pid"))
    zklock_proxy.blackhole()
    with zklock.Lock(zklock_client, zklock_path, timeout=PATIENCE):
        assert parent_of(pid) is None
    zklock_proxy.restore()
    running.communicate(timeout=PATIENCE)
    assert running.returncode == 75


def test_on_a_terminal_it_stops_goes_on_and_is_interrupted_with_its_command(
    zk: Commands, zklock_path: str
) -> None:
    # A job of an interactive shell: Ctrl-Z, fg, Ctrl-C.
    terminal, slave = pty.openpty()
    shell = ["setsid", "--ctty", "bash", "--norc", "--noediting", "-i"]
    bash = zk.start_raw(shell, {"PS1": PROMPT, "TERM": "dumb"}, slave)
    os.close(slave)
    seen = ""

    def expect(text: str) -> None:
        nonlocal seen
        deadline = clock() + PATIENCE
        while text not in seen:
            assert select.select([terminal], [], [], deadline - clock())[0], (text, seen)
            seen += os.read(terminal, 4096).decode()
        seen = seen.partition(text)[2]

    def type_in(text: str) -> None:
        os.write(terminal, text.encode())

    try:
        program = 'echo be""gan; exec sed -u s/^/got-/'
        expect(PROMPT)
        type_in(f"{sys.executable} -m zklock.cli run {zklock_path} -- sh -c '{program}'\n")
        expect("began")
        type_in("one\n")
        expect("got-one")
        type_in("\x1a")
        expect(PROMPT)
        type_in("fg\n")
        expect("sed -u")  # the shell says what goes on
        type_in("two\n")
        expect("got-two")
        type_in("\x03")
        expect(PROMPT)
        type_in("echo status-$?\n")
        expect("status-130")
        type_in("exit\n")
        assert bash.wait(PATIENCE) == 0
    finally:
        os.close(terminal)
    wait_for(lambda: zk.run("show", zklock_path)[1] == f"{zklock_path} is free\n", PATIENCE)


# show, ls, check


def test_the_queue_is_shown(zk: Commands, zklock_path: str, zklock_client: KazooClient) -> None:
    assert zk.run("show", zklock_path) == (0, f"{zklock_path} is free\n", "")
    assert (
        zk.run("show", "--json", zklock_path)[1]
        == json.dumps({"path": zklock_path, "contenders": []}) + "\n"
    )
    lock = zklock.Lock(zklock_client, zklock_path, identity="host-7")
    foreign = zklock_client.Lock(zklock_path, "kazoo's own", extra_lock_patterns=["-lock-"])
    with lock as grant:
        waiting = zklock_client.handler.spawn(foreign.acquire)
        wait_for(lambda: len(lock.contenders()) == 2, PATIENCE)
        code, out, _ = zk.run("show", zklock_path)
        _, text, _ = zk.run("show", "--json", zklock_path)
    waiting.join(PATIENCE)
    foreign.release()
    holder, waiter = (line.split(None, 3) for line in out.splitlines())
    assert code == 0
    assert holder == ["holds", str(grant.token), f"{grant.session_id:#x}", "host-7"]
    assert [waiter[0], waiter[3]] == ["waits", "kazoo's own"]
    first, second = json.loads(text)["contenders"]
    assert first == {
        "holds": True,
        "token": str(grant.token),
        "sequence": grant.token.sequence,
        "identity": "host-7",
        "session": f"{grant.session_id:#x}",
        "node": grant.path,
    }
    assert second["holds"] is False


def test_locks_are_listed(zk: Commands, zklock_path: str, zklock_client: KazooClient) -> None:
    zklock_client.ensure_path(f"{zklock_path}/unused")
    assert zk.run("ls", zklock_path) == (0, "", "")
    assert zk.run("ls", f"{zklock_path}/missing") == (0, "", "")
    lock = zklock.Lock(zklock_client, f"{zklock_path}/deep/er", identity="host-7")
    with lock as grant, zklock.Lock(zklock_client, zklock_path, identity="host-8"):
        assert zk.run("ls", zklock_path)[1].splitlines() == [
            f"{zklock_path}  held by host-8  0 waiting",
            f"{zklock_path}/deep/er  held by host-7  0 waiting",
        ]
        assert f"{zklock_path}/deep/er  held by host-7" in zk.run("ls")[1]
        found = json.loads(zk.run("ls", "--json", f"{zklock_path}/deep")[1])
    assert (found["path"], found["waiting"]) == (f"{zklock_path}/deep/er", 0)
    assert [it["token"] for it in found["holders"]] == [str(grant.token)]


def test_a_semaphore_is_one(zk: Commands, zklock_path: str, zklock_client: KazooClient) -> None:
    path = f"{zklock_path}/permits"
    semaphore = zklock.Semaphore(zklock_client, path, limit=2, identity="host-7")
    with semaphore as grant, semaphore:
        assert zk.run("ls", zklock_path)[1] == f"{path}  held by host-7, host-7  0 waiting\n"
        code, out, _ = zk.run("show", path)
        assert zk.run("check", path, str(grant.token))[0] == 0
    assert (code, [line.split()[0] for line in out.splitlines()]) == (0, ["holds", "holds"])
    assert str(grant.token) in out
    assert zk.run("show", path)[1] == f"{path} is free\n"


def test_a_token_is_checked(zk: Commands, zklock_path: str, zklock_client: KazooClient) -> None:
    with zklock.Lock(zklock_client, zklock_path, identity="host-7") as grant:
        token = str(grant.token)
        assert zk.run("check", zklock_path, token) == (0, "", "")
    code, _, errors = zk.run("check", zklock_path, token)
    assert code == 1
    assert "held by nobody" in errors
    with zklock.Lock(zklock_client, zklock_path, identity="host-8") as grant:
        code, _, errors = zk.run("check", zklock_path, token)
        assert code == 1
        assert f"held by host-8 ({grant.token})" in errors


def test_under_run_a_check_needs_no_arguments(zk: Commands, zklock_path: str) -> None:
    check = [sys.executable, "-m", "zklock.cli", "check"]
    assert zk.run("run", zklock_path, "--", *check)[0] == 0


def test_a_lock_is_broken(zk: Commands, zklock_path: str, zklock_client: KazooClient) -> None:
    losses: list[zklock.Loss] = []
    lock = zklock.Lock(zklock_client, zklock_path, identity="host-7", on_lost=losses.append)
    first = lock.acquire()
    assert first is not None
    waiting = zklock_client.handler.spawn(lock.acquire)
    wait_for(lambda: len(lock.contenders()) == 2, PATIENCE)
    assert zk.run("break", zklock_path, str(first.token)) == (
        0,
        f"{zklock_path} taken from host-7 ({first.token})\n",
        "",
    )
    assert first.lost.wait(PATIENCE)
    waiting.join(PATIENCE)
    second = lock.grant
    assert second is not None
    assert second.held
    wait_for(lambda: len(losses) == 1, PATIENCE)
    assert losses[0].reason is zklock.LossReason.NODE_DELETED

    code, out, errors = zk.run("break", zklock_path, str(first.token))
    assert (code, out) == (1, "")
    assert f"not held with token {first.token}" in errors
    assert second.held

    code, out, _ = zk.run("break", "--json", "--oldest", zklock_path)
    assert code == 0
    told = json.loads(out)
    assert told["path"] == zklock_path
    assert (told["broken"]["token"], told["broken"]["node"]) == (str(second.token), second.path)
    assert zk.run("break", "--oldest", zklock_path) == (
        1,
        "",
        f"zklock break: {zklock_path}: held by nobody\n",
    )


def test_a_semaphores_permit_is_taken(
    zk: Commands, zklock_path: str, zklock_client: KazooClient
) -> None:
    semaphore = zklock.Semaphore(zklock_client, zklock_path, limit=2, identity="host-7")
    with semaphore as first, pytest.raises(zklock.LockLost), semaphore as second:
        assert zk.run("break", zklock_path, str(second.token))[0] == 0
        assert second.lost.wait(PATIENCE)
        assert first.held


@pytest.mark.parametrize("arguments", [[], ["--oldest", "0000000000000001-0000000001"], ["33"]])
def test_what_is_to_be_broken_has_to_be_said(arguments: list[str], zk: Commands) -> None:
    code, out, errors = zk.run("break", "/x", *arguments)
    assert (code, out) == (64, "")
    assert "usage: zklock" in errors


@pytest.mark.parametrize("command", ["show", "ls", "check", "break", "run"])
def test_where_no_zookeeper_answers(command: str, zk: Commands) -> None:
    token = "0000000000000000-0000000000"
    more = {"check": [token], "break": [token], "run": ["true"]}.get(command, [])
    options = ["--hosts", "127.0.0.1:1", "--connect-timeout", "0.5"]
    code, out, errors = zk.run(command, *options, "/x", *more)
    assert (code, out) == (69, "")
    assert "no ZooKeeper server of 127.0.0.1:1 answered" in errors
