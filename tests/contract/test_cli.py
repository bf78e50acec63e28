"""The commands as users run them: processes of their own, with a real ZooKeeper."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

import zklock
from tests.contract.support import queued
from tests.contract.test_demo import parent_of
from zklock.testing import wait_for
from zklock.testing.proxy import FaultProxy

SESSION = "2"
PATIENCE = 60.0


class Commands:
    """Starts ``zklock`` commands against one server; whatever still runs is killed in the end."""

    def __init__(self, hosts: str) -> None:
        self.environ = {**os.environ, "ZKLOCK_HOSTS": hosts}
        self._running: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        return self._start(["-m", "zklock.cli", *arguments], options)

    def start_program(self, program: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start a Python program."""
        return self._start(["-c", program, *arguments], options)

    def _start(self, arguments: Sequence[str], options: dict[str, Any]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env=self.environ,
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
            env={**self.environ, **environ},
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
def zklock_client(zklock_connect: Callable[..., Any]) -> Any:
    """A client whose session outlives commands that are slow to start."""
    return zklock_connect(timeout=30.0)


def python(program: str) -> Sequence[str]:
    return ("--", sys.executable, "-c", textwrap.dedent(program))


def text_of(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def await_file(file: Path) -> str:
    return wait_for(lambda: text_of(file), PATIENCE, f"no {file.name}")


def short_session(
    zk: Commands, proxy: FaultProxy, path: str, program: str, file: Path
) -> tuple[subprocess.Popen[str], str]:
    """Run a program under a lock, with a short session; return what it writes to a file.

    On a busy machine it may lose its lock, and be ended, before it writes. Then it is run again.
    """
    options = ("--hosts", proxy.hosts, "--session-timeout", SESSION)
    while True:
        running = zk.start("run", *options, path, *python(program))
        wait_for(lambda: text_of(file) or running.poll() is not None, PATIENCE)  # noqa: B023
        if said := text_of(file):
            return running, said
        assert running.returncode == 79, running.communicate()


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
    ("options", "status"), [(["-n"], 75), (["-w", "0.2"], 75), (["-n", "-E", "42"], 42)]
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
        while True:  # a signal that comes just before a sleep begins does not end it
            time.sleep(0.05)
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
    running, said = short_session(zk, zklock_proxy, zklock_path, program, tmp_path / "pids")
    pids = [int(pid) for pid in said.split()]
    zklock_proxy.blackhole()
    with zklock.Lock(zklock_client, zklock_path, timeout=PATIENCE):
        assert [pid for pid in pids if parent_of(pid) is not None] == []
    zklock_proxy.restore()
    _, errors = running.communicate(timeout=PATIENCE)
    assert running.returncode == 79
    assert "counts as lost" in errors


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
    running, said = short_session(zk, zklock_proxy, zklock_path, program, tmp_path / "pid")
    pid = int(said)
    zklock_proxy.blackhole()
    with zklock.Lock(zklock_client, zklock_path, timeout=PATIENCE):
        assert parent_of(pid) is None
    zklock_proxy.restore()
    running.communicate(timeout=PATIENCE)
    assert running.returncode == 79


# show, ls, check


def shown(out: str) -> list[list[str]]:
    """Return the cells of the lines, without ages."""
    plain = re.sub(r" \(came [0-9]+s ago\)", "", out)
    return [re.split(" {2,}", line) for line in plain.splitlines()]


def test_the_queue_is_shown(zk: Commands, zklock_path: str, zklock_client: KazooClient) -> None:
    with zklock.Lock(zklock_client, zklock_path):
        pass
    assert zk.run("show", zklock_path) == (0, f"{zklock_path} is free\n", "")
    assert json.loads(zk.run("show", "--json", zklock_path)[1]) == {
        "version": 1,
        "path": zklock_path,
        "kind": "free",
        "limit": None,
        "contenders": [],
    }
    lock = zklock.Lock(zklock_client, zklock_path, identity="host-7")
    foreign = zklock_client.Lock(zklock_path, "kazoo's own", extra_lock_patterns=["-lock-"])
    with lock as grant:
        waiting = zklock_client.handler.spawn(foreign.acquire)
        wait_for(lambda: len(lock.contenders()) == 2, PATIENCE)
        code, out, _ = zk.run("show", zklock_path)
        _, text, _ = zk.run("show", "--json", zklock_path)
    waiting.join(PATIENCE)
    foreign.release()
    (head,), holder, waiter = shown(out)
    assert (code, head) == (0, f"{zklock_path} is a lock: 1 holds, 1 waits")
    session = f"{grant.session_id:#x}"
    assert holder[:5] == ["holds", "-", "lock", str(grant.token), session]
    assert re.fullmatch("[0-9]+s", holder[5])
    assert holder[6] == "host-7"
    assert [*waiter[:3], waiter[6]] == ["waits", "1", "lock", "kazoo's own"]
    told = json.loads(text)
    assert (told["version"], told["kind"], told["limit"]) == (1, "lock", None)
    first, second = told["contenders"]
    assert 0 <= first.pop("age") < PATIENCE
    assert first == {
        "holds": True,
        "keeps": False,
        "kind": "lock",
        "token": str(grant.token),
        "sequence": grant.token.sequence,
        "identity": "host-7",
        "session": f"{grant.session_id:#x}",
        "node": grant.path,
        "place": None,
    }
    assert (second["holds"], second["place"]) == (False, 1)


def test_a_kept_lock_is_shown_as_one(
    zk: Commands, zklock_path: str, zklock_client: KazooClient
) -> None:
    lock = zklock.Lock(zklock_client, zklock_path, identity="host-7", keep=600.0)
    with lock:
        pass
    (contender,) = lock.contenders()
    assert (contender.holds, contender.keeps, contender.payload) == (True, True, b"")
    (head,), holder = shown(zk.run("show", zklock_path)[1])
    assert head == f"{zklock_path} is a lock: 1 holds, 0 wait, kept: it may be idle"
    assert (holder[0], holder[-1]) == ("keeps", "host-7")
    (told,) = json.loads(zk.run("show", "--json", zklock_path)[1])["contenders"]
    assert (told["holds"], told["keeps"]) == (True, True)
    assert "host-7 (kept)" in zk.run("top", "--once", zklock_path)[1]
    assert re.search(r"held by host-7 \(kept, came [0-9]+s ago\)", zk.run("ls", zklock_path)[1])


def test_locks_are_listed(zk: Commands, zklock_path: str, zklock_client: KazooClient) -> None:
    zklock_client.ensure_path(f"{zklock_path}/unused")
    nothing = f"zklock ls: no lock is in use at or below {zklock_path}\n"
    assert zk.run("ls", zklock_path) == (0, "", nothing)
    assert zk.run("ls", "--json", zklock_path) == (0, "[]\n", nothing)
    missing = f"{zklock_path}/missing"
    assert zk.run("ls", missing) == (66, "", f"zklock ls: {missing} does not exist\n")
    lock = zklock.Lock(zklock_client, f"{zklock_path}/deep/er", identity="host-7")
    with lock as grant, zklock.Lock(zklock_client, zklock_path, identity="host-8"):
        code, out, errors = zk.run("ls", zklock_path)
        assert (code, errors) == (0, "")
        assert all(re.search(r" \(came [0-9]+s ago\) ", line) for line in out.splitlines())
        assert shown(out) == [
            [zklock_path, "lock", "held by host-8", "0 waiting"],
            [f"{zklock_path}/deep/er", "lock", "held by host-7", "0 waiting"],
        ]
        everything = shown(zk.run("ls")[1])
        assert [f"{zklock_path}/deep/er", "lock", "held by host-7", "0 waiting"] in everything
        (found,) = json.loads(zk.run("ls", "--json", f"{zklock_path}/deep")[1])
        assert [it["path"] for it in json.loads(zk.run("ls", "--json", zklock_path)[1])] == [
            zklock_path,
            f"{zklock_path}/deep/er",
        ]
    assert (found["version"], found["path"]) == (1, f"{zklock_path}/deep/er")
    assert (found["kind"], found["limit"], found["pool"]) == ("lock", None, None)
    assert found["waiting"] == 0
    assert [it["token"] for it in found["holders"]] == [str(grant.token)]


def test_a_semaphore_is_one(zk: Commands, zklock_path: str, zklock_client: KazooClient) -> None:
    path = f"{zklock_path}/permits"
    semaphore = zklock.Semaphore(zklock_client, path, limit=2, identity="host-7")
    with semaphore as grant, semaphore:
        (line,) = shown(zk.run("ls", zklock_path)[1])
        assert line == [path, "semaphore of 2", "held by host-7, host-7", "0 waiting"]
        code, out, _ = zk.run("show", path)
        assert zk.run("check", path, str(grant.token))[0] == 0
    head, *holders = out.splitlines()
    assert (code, head) == (0, f"{path} is a semaphore of 2: 2 hold, 0 wait")
    assert [line.split()[0] for line in holders] == ["holds", "holds"]
    assert str(grant.token) in out
    assert zk.run("show", path)[1] == f"{path} is free\n"


def test_who_waits_for_permits_is_shown(
    zk: Commands, zklock_path: str, zklock_client: KazooClient
) -> None:
    semaphore = zklock.Semaphore(zklock_client, zklock_path, limit=1, identity="host-7")
    with semaphore as grant:
        waiting = zklock_client.handler.spawn(semaphore.acquire)
        queued(zklock_client, f"{zklock_path}/locks", 1)
        _, *lines = shown(zk.run("show", zklock_path)[1])
        part = zk.run("show", f"{zklock_path}/leases")
        told = json.loads(zk.run("show", "--json", zklock_path)[1])
    waiting.join(PATIENCE)
    assert [line[:4] for line in lines] == [
        ["holds", "-", "permit", str(grant.token)],
        ["waits", "1", "lock", "-"],
    ]
    assert part == (
        0,
        f"{zklock_path}/leases is part of a semaphore: 'zklock show {zklock_path}'\n",
        "",
    )
    assert (told["kind"], told["limit"]) == ("semaphore", 1)
    assert [one["kind"] for one in told["contenders"]] == ["permit", "lock"]


def test_what_is_no_lock_is_said(
    zk: Commands, zklock_path: str, zklock_client: KazooClient
) -> None:
    assert zk.run("show", zklock_path) == (
        66,
        "",
        f"zklock show: {zklock_path} does not exist: look for it with 'zklock ls'\n",
    )
    zklock_client.ensure_path(f"{zklock_path}/report/today")
    code, out, _ = zk.run("show", zklock_path)
    assert (code, out.split(":")[0]) == (0, f"{zklock_path} is a folder, not a lock")
    code, out, _ = zk.run("show", f"{zklock_path}/report/today")
    assert (code, out.split(":")[0]) == (0, f"{zklock_path}/report/today is empty")
    assert json.loads(zk.run("show", "--json", zklock_path)[1])["kind"] == "folder"


def test_nodes_that_may_be_contenders_are_said(
    zk: Commands, zklock_path: str, zklock_client: KazooClient
) -> None:
    """H20: contenders of a program that zklock does not know are no folder."""
    zklock_client.create(f"{zklock_path}/entry-", sequence=True, makepath=True)
    assert "folder" in zk.run("show", zklock_path)[1]
    unknown = zklock_client.create(f"{zklock_path}/n_", sequence=True, ephemeral=True)
    line = (
        f"{unknown} may be a contender of a program that zklock does not know: it is ephemeral and "
        "sequential. zklock's locks refuse to queue behind it\n"
    )
    assert zk.run("show", zklock_path) == (0, line, "")
    name = unknown.rpartition("/")[2]
    assert json.loads(zk.run("show", "--json", zklock_path)[1])["strangers"] == [name]
    zklock_client.create(f"{zklock_path}/-lock-", sequence=True, ephemeral=True)
    told = zk.run("show", zklock_path)[1]
    assert told.startswith(f"{zklock_path} is a lock: 1 holds")
    assert told.endswith(line)


def test_a_contender_is_no_lock(zk: Commands, zklock_path: str, zklock_client: KazooClient) -> None:
    with zklock.Lock(zklock_client, zklock_path) as grant:
        assert zk.run("show", grant.path) == (
            0,
            f"{grant.path} is a contender, not a lock: 'zklock show {zklock_path}'\n",
            "",
        )


def test_a_contender_without_data_is_shown(
    zk: Commands, zklock_path: str, zklock_client: KazooClient
) -> None:
    zklock_client.ensure_path(zklock_path)
    zklock_client.create(f"{zklock_path}/-lock-", None, ephemeral=True, sequence=True)
    for command in ("show", "ls", "top --once"):
        status, told, _ = zk.run(*command.split(), zklock_path)
        assert status == 0
        assert "(unnamed)" in told


PRIVATE = [make_digest_acl("owner", "secret", all=True)]


@pytest.fixture
def owner(zklock_connect: Callable[..., KazooClient]) -> KazooClient:
    """The one client that may look at what has the ACL ``PRIVATE``."""
    owner = zklock_connect(timeout=30.0)
    owner.add_auth("digest", "owner:secret")
    return owner


@pytest.fixture
def closed(owner: KazooClient, zklock_path: str) -> Iterator[str]:
    """A node that nobody else may look at."""
    path = f"{zklock_path}/closed"
    owner.ensure_path(zklock_path)
    owner.create(path, acl=PRIVATE)
    yield path
    owner.delete(path)


def words_of(command: str, path: str) -> list[str]:
    return (command.format(path) if "{}" in command else f"{command} {path}").split()


def test_what_acls_hide_is_said_and_the_rest_is_shown(
    zk: Commands, zklock_path: str, owner: KazooClient
) -> None:
    owner.ensure_path(zklock_path)
    name = f"{zklock_path}/_c_{'0' * 32}-lock-"
    node = owner.create(name, b"a secret", acl=PRIVATE, ephemeral=True, sequence=True)
    code, out, errors = zk.run("show", zklock_path)
    assert (code, errors) == (0, f"zklock show: ACLs forbid reading {node}\n")
    head, row = shown(out)
    assert head == [f"{zklock_path} is a lock: 1 holds, 0 wait"]
    assert (row[0], row[4:]) == ("holds", ["-", "-", "(unnamed)"])
    assert zk.run("ls", zklock_path) == (
        0,
        f"{zklock_path}  lock  held by (unnamed)  0 waiting\n",
        f"zklock ls: ACLs forbid reading {node}\n",
    )


@pytest.mark.parametrize("command", ["show", "ls", "break", "check", "top", "wait", "run"])
def test_no_name_steers_the_terminal(
    command: str, zk: Commands, zklock_path: str, zklock_client: KazooClient, tmp_path: Path
) -> None:
    evil, safe = "\x1b]0;x\x07\r\n\u202e", "\\x1b]0;x\\x07\\x0d\\x0a\\u202e"
    path = f"{zklock_path}/\u202ereport"  # ZooKeeper refuses ASCII's controls in a path, not these
    zk.environ["PYTHONIOENCODING"] = "utf-8"
    lock = zklock.Lock(zklock_client, path, identity=evil)
    grant = lock.acquire()
    assert grant is not None
    more = {
        "break": [path, "--oldest"],
        "check": [path, "0000000000000000-0000000000"],
        "top": ["--once", zklock_path],
        "ls": [zklock_path],
        "show": [path],
        "wait": ["-w", "0.1", path],
        "run": ["-v", "-w", "2", path, "true"],
    }
    file = tmp_path / "said"
    with file.open("wb") as output:
        process = zk.start(command, *more[command], stdout=output, stderr=subprocess.STDOUT)
        process.wait(PATIENCE)
    said = file.read_bytes().decode()
    assert safe in said
    assert f"{zklock_path}/\\u202ereport" in said
    assert not set("\x1b\x07\r\u202e") & set(said)
    if command != "break":
        grant.release()


def test_no_path_in_a_log_steers_the_terminal(
    zk: Commands, zklock_path: str, zklock_client: KazooClient
) -> None:
    path = f"{zklock_path}/\u202ereport"
    zk.environ["PYTHONIOENCODING"] = "utf-8"
    with zklock.Semaphore(zklock_client, path, limit=2):
        code, _, errors = zk.run("run", "-v", "--limit", "3", path, "true")
    assert code == 125
    assert f"INFO:zklock:{zklock_path}/\\u202ereport" in errors
    assert "Traceback" in errors
    assert "\u202e" not in errors


def test_ages_do_not_trust_a_clock_that_is_behind(
    zk: Commands, zklock_path: str, zklock_client: KazooClient
) -> None:
    """The clock of the commands is an hour behind that of the server."""
    prelude = """
        import sys, time
        right = time.time
        time.time = lambda: right() - 3600
        from zklock.cli import main
        sys.exit(main(sys.argv[1:]))
    """

    def said(*arguments: str) -> tuple[str, str]:
        process = zk.start_program(textwrap.dedent(prelude), *arguments)
        out, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        return out, errors

    lock = zklock.Lock(zklock_client, zklock_path, identity="host-7")
    with lock as grant:
        created = zklock_client.get(grant.path)[1].created

        def later() -> bool:
            other = zklock_client.create(f"{zklock_path}-later", ephemeral=True)
            made = zklock_client.get(other)[1].created
            zklock_client.delete(other)
            return bool(made > created + 1.0)

        wait_for(later, PATIENCE)
        with zklock.Lock(zklock_client, f"{zklock_path}/newest", identity="host-8"):
            out, errors = said("ls", zklock_path)
            objects = json.loads(said("ls", "--json", zklock_path)[0])
        assert re.search(r"held by host-7 \(came ([0-9]+m)?[1-9][0-9]*s ago\)", out), out
        assert objects[0]["holders"][0]["age"] >= 1.0
        assert re.fullmatch(
            "zklock ls: ages are approximate: this machine's clock is (59m[0-9]+s|1h) or more "
            "behind the clock of ZooKeeper's leader: keep both by NTP\n",
            errors,
        ), errors
        assert "zklock show: ages are approximate" in said("show", zklock_path)[1]
        assert "ages are approximate: this clock is" in said("top", "--once", zklock_path)[0]


def test_an_election_and_readers_are_shown(
    zk: Commands, zklock_path: str, zklock_client: KazooClient
) -> None:
    told: dict[str, Any] = {}

    def lead(leadership: zklock.Leadership) -> None:
        told.update(json.loads(zk.run("show", "--json", zklock_path)[1]))
        election.stop()

    election = zklock.LeaderElection(zklock_client, zklock_path, identity="host-7")
    election.run(lead)
    assert (told["kind"], told["contenders"][0]["kind"]) == ("election", "member")
    table = f"{zklock_path}/table"
    with zklock.ReadLock(zklock_client, table):
        told = json.loads(zk.run("show", "--json", table)[1])
    assert (told["kind"], told["contenders"][0]["kind"]) == ("read-write lock", "reader")


def test_a_lock_at_the_path_of_a_pool_is_shown_too(
    zk: Commands, zklock_path: str, zklock_client: KazooClient
) -> None:
    lock = zklock.Lock(zklock_client, zklock_path, identity="host-7")
    with zklock.WorkerPool(zklock_client, zklock_path, shards=3, identity="w1"):
        with lock as grant:
            out = zk.run("show", zklock_path)[1]
            told = json.loads(zk.run("show", "--json", zklock_path)[1])
            checked = zk.run("check", zklock_path, str(grant.token))
        assert zk.run("check", zklock_path, str(grant.token))[0] == 1
    assert f"{zklock_path} is a pool of 3 shards" in out
    assert f"{zklock_path} is a lock: 1 holds, 0 wait\nholds " in out
    assert told["kind"] == "pool"
    assert [one["token"] for one in told["contenders"]] == [str(grant.token)]
    assert checked == (0, "", "")


def test_a_pool_is_shown(zk: Commands, zklock_path: str, zklock_client: KazooClient) -> None:
    with zklock.WorkerPool(zklock_client, zklock_path, shards=3, identity="w1") as pool:
        wait_for(lambda: [one.owned for one in pool.members()] == [3], PATIENCE)
        code, out, _ = zk.run("show", zklock_path)
        told = json.loads(zk.run("show", "--json", zklock_path)[1])
        names = ("members", "assigned", "owned", "shards", "leader", "shards/2")
        parts = {name: zk.run("show", f"{zklock_path}/{name}")[1] for name in names}
        leader = parts.pop("leader"), parts.pop("shards/2")
        listed = zk.run("ls", zklock_path)
        shards = zk.run("ls", f"{zklock_path}/shards")[1].splitlines()
        objects = json.loads(zk.run("ls", "--json", zklock_path)[1])
        inside = zk.run("--hosts", f"{zk.environ['ZKLOCK_HOSTS']}{zklock_path}", "ls")
    assert code == 0
    assert out.splitlines() == [
        f"{zklock_path} is a pool of 3 shards, with 1 worker; 'zklock show {zklock_path}/leader' "
        "shows its leader",
        "owns 3 of 3 assigned shards  w1",
    ]
    worker = {"identity": "w1", "capacity": 1.0, "draining": False, "assigned": 3, "owned": 3}
    of_pool = {"shards": 3, "without_owner": 0, "workers": [worker]}
    assert told == {"version": 1, "path": zklock_path, "kind": "pool", "limit": None,
                    "contenders": [], **of_pool}  # fmt: skip
    assert parts == {
        name: f"{zklock_path}/{name} is part of a pool: 'zklock show {zklock_path}'\n"
        for name in parts
    }
    assert leader[0].startswith(f"{zklock_path}/leader is an election: 1 holds, 0 wait\n")
    assert leader[1].startswith(f"{zklock_path}/shards/2 is a lock: 1 holds, 0 wait\n")
    assert listed == (0, f"{zklock_path}  pool  3 of 3 shards owned by 1 worker\n", "")
    assert [line.split()[0] for line in shards] == [f"{zklock_path}/shards/{at}" for at in range(3)]
    first, *locks = objects
    assert first == {"version": 1, "path": zklock_path, "kind": "pool", "limit": None,
                     "pool": None, "holders": [], "waiting": 0, **of_pool}  # fmt: skip
    assert {one["pool"] for one in locks} == {zklock_path}
    assert [one["kind"] for one in locks] == ["election", "lock", "lock", "lock"]
    assert inside[0] == 0, "a client whose root is the pool sees its parts"
    assert [line.split()[0] for line in inside[1].splitlines()] == [
        "/leader", "/shards/0", "/shards/1", "/shards/2"
    ]  # fmt: skip


def test_what_may_not_be_looked_at_is_said(zk: Commands, zklock_path: str, closed: str) -> None:
    code, out, errors = zk.run("show", closed)
    assert (code, out) == (77, "")
    assert "ACLs forbid" in errors
    code, out, errors = zk.run("ls", zklock_path)
    assert (code, out) == (0, "")
    assert f"zklock ls: ACLs forbid reading {closed}\n" in errors


@pytest.mark.parametrize(
    "command",
    [
        "show",
        "ls",
        "wait -w 1",
        "watch",
        "graph",
        "top --once",
        "top --json",
        "gc --yes",
        "break --oldest",
        f"check {{}} {zklock.FencingToken(1, 0)}",
    ],
)
def test_what_acls_hide_altogether_is_not_told_to_be_free(
    command: str, zk: Commands, closed: str
) -> None:
    code, out, errors = zk.run(*words_of(command, closed))
    assert (code, out) == (77, "")
    assert "ACLs forbid" in errors


@pytest.mark.parametrize(
    "command", ["wait -w 1", "watch", "break --oldest", f"check {{}} {zklock.FencingToken(1, 0)}"]
)
def test_a_semaphore_whose_permits_are_hidden_is_not_told_to_be_free(
    command: str, zk: Commands, zklock_path: str, owner: KazooClient
) -> None:
    with zklock.Semaphore(owner, zklock_path, limit=1):
        owner.set_acls(f"{zklock_path}/leases", PRIVATE)
        code, out, errors = zk.run(*words_of(command, zklock_path))
        owner.set_acls(f"{zklock_path}/leases", OPEN_ACL_UNSAFE)
    assert (code, out) == (77, "")
    assert "ACLs forbid" in errors


def test_a_chroot_that_is_missing_is_said(zk: Commands, zklock_path: str) -> None:
    hosts = f"{zk.environ['ZKLOCK_HOSTS']}{zklock_path}"
    assert zk.run("ls", "--hosts", hosts) == (
        66,
        "",
        f"zklock: the chroot {zklock_path} does not exist: create it\n"
        "zklock ls: / does not exist\n",
    )


def test_what_acls_hide_in_part_is_said_by_all(zk: Commands, zklock_path: str, closed: str) -> None:
    for command in (["top", "--json"], ["gc", "--dry-run"]):
        code, _, errors = zk.run(*command, zklock_path)
        assert code == 0
        assert errors == f"zklock {command[0]}: ACLs forbid reading {closed}\n"


@pytest.mark.parametrize("path", ["/a", ""])
def test_folders_that_are_named_as_a_semaphores_nodes(
    path: str, zk: Commands, zklock_path: str, zklock_client: KazooClient
) -> None:
    root = f"{zklock_path}{path}"
    lock = zklock.Lock(zklock_client, f"{root}/locks/report", identity="host-7")
    other = zklock.Lock(zklock_client, f"{root}/leases/x", identity="host-8")
    with lock, other:
        chrooted = f"{zk.environ['ZKLOCK_HOSTS']}{root}"
        assert shown(zk.run("ls", root)[1]) == [
            [f"{root}/leases/x", "lock", "held by host-8", "0 waiting"],
            [f"{root}/locks/report", "lock", "held by host-7", "0 waiting"],
        ]
        assert shown(zk.run("--hosts", chrooted, "ls")[1]) == [
            ["/leases/x", "lock", "held by host-8", "0 waiting"],
            ["/locks/report", "lock", "held by host-7", "0 waiting"],
        ]


def test_where_zookeeper_is_may_be_said_before_the_command(
    zk: Commands, zklock_path: str, zklock_client: KazooClient
) -> None:
    with zklock.Lock(zklock_client, zklock_path, identity="host-7"):
        hosts = zk.environ.pop("ZKLOCK_HOSTS")
        expected = [[zklock_path, "lock", "held by host-7", "0 waiting"]]
        for before in (
            ["--hosts", hosts],
            [f"--hosts={hosts}"],
            ["--session-timeout", "4", "--hosts", hosts, "--connect-timeout=9"],
        ):
            code, out, errors = zk.run(*before, "ls", zklock_path)
            assert (code, shown(out), errors) == (0, expected, "")
        code, out, errors = zk.run("ls", "--hosts", hosts, zklock_path)
        assert (code, shown(out), errors) == (0, expected, "")
        code, _, errors = zk.run("ls", "-v", "--hosts", hosts, zklock_path)
        assert code == 0
        assert "Connecting" in errors
        zk.environ["ZKLOCK_HOSTS"] = hosts


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
    assert f"token {first.token} does not hold it" in errors
    assert second.held

    code, out, _ = zk.run("break", "--json", "--oldest", zklock_path)
    assert code == 0
    told = json.loads(out)
    assert (told["version"], told["path"]) == (1, zklock_path)
    assert (told["broken"]["token"], told["broken"]["node"]) == (str(second.token), second.path)
    assert zk.run("break", "--oldest", zklock_path) == (
        1,
        "",
        f"zklock break: {zklock_path}: nobody holds it\n",
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


def test_a_persistent_contender_is_told_with_its_remedy(
    zk: Commands, zklock_path: str, zklock_client: KazooClient
) -> None:
    node = zklock_client.create(
        f"{zklock_path}/_c_{uuid.uuid4()}-lock-", b"gone", sequence=True, makepath=True
    )
    told = f"{node} belongs to no session: it stays when its process ends, and later contenders"
    remedy = f"if nobody needs it, delete it: zklock break {zklock_path} "
    for command in (["show"], ["ls"], ["run", "-v", "-w", "0.5"]):
        more = ["true"] if command[0] == "run" else []
        status, out, error = zk.run(*command, zklock_path, *more)
        assert status == (75 if more else 0)
        assert told in error
        assert remedy in error
        assert "0x0" not in out + error
