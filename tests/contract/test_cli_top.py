"""``zklock top`` as operators run it."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

import zklock
from tests.contract.support import queued, run
from tests.contract.test_cli import PATIENCE, Commands
from tests.terminal import Terminal
from zklock.testing import FaultProxy, ZooKeeperServer, four_letter, wait_for


@pytest.fixture
def one(zklock_connect: Callable[..., Any]) -> KazooClient:
    """A client whose session outlives commands that are slow to start."""
    return zklock_connect(timeout=30.0)


def addresses(server: ZooKeeperServer, session: int | None) -> list[str]:
    """Return where the server sees the session."""
    host, port = server.hosts.split(":")
    lines = four_letter(host, int(port), "cons").splitlines()
    return [line.strip(" /").partition("[")[0] for line in lines if f"sid={session:#x}" in line]


def with_addresses(zk: Commands, *arguments: str) -> str:
    """Return the output of ``top``: on a busy machine, the servers may be too slow to be heard."""

    def said() -> str | None:
        _, out, _ = zk.run("top", *arguments)
        return out if "CLIENT" in out or '"address": "' in out else None

    return wait_for(said, PATIENCE, "no addresses")


def test_once(
    zk: Commands, one: KazooClient, zklock_path: str, zklock_server: ZooKeeperServer
) -> None:
    assert zk.run("top", "--once", zklock_path) == (
        66,
        "",
        f"zklock top: {zklock_path} does not exist\n",
    )
    path = f"{zklock_path}/a"
    lock = zklock.Lock(one, path, identity="host-7")
    grant = lock.acquire()
    assert grant is not None
    waiting = run(lock.acquire)
    queued(one, path, 2)
    with zklock.WorkerPool(one, f"{zklock_path}/pool", shards=2, identity="w1") as pool:
        wait_for(lambda: [it.owned for it in pool.members()] == [2], PATIENCE)
        code, _, errors = zk.run("top", "--once", zklock_path)
        out = with_addresses(zk, "--once", zklock_path)
        told = json.loads(with_addresses(zk, "--json", "--filter", "/a", zklock_path))
        pools = json.loads(zk.run("top", "--json", "--sort", "path", zklock_path)[1])["pools"]
    grant.release()
    second = waiting.result(PATIENCE)
    assert second is not None
    second.release()
    assert (code, errors) == (0, "")
    head, columns, first, *_ = out.splitlines()
    assert head == "4 locks, 1 waiting, 1 pool"
    assert columns.split() == [
        "PATH", "KIND", "HOLDER", "HELD", "WAITING", "WAIT", "TOKEN", "SESSION", "CLIENT"
    ]  # fmt: skip
    assert first.split()[:3] == [path, "lock", "host-7"]
    assert first.split()[4] == "1"
    assert first.split()[6:8] == [str(grant.token), f"{grant.session_id:#x}"]
    assert first.split()[8] in addresses(zklock_server, grant.session_id)
    assert "2/2 shards, 1 worker" in out
    assert (told["version"], told["path"], told["pools"]) == (1, zklock_path, [])
    ((shown),) = told["locks"]
    assert (shown["path"], shown["kind"], shown["limit"], shown["pool"]) == (
        path,
        "lock",
        None,
        None,
    )
    assert [it["holds"] for it in shown["contenders"]] == [True, False]
    assert {it["address"] for it in shown["contenders"]} == {first.split()[8]}
    assert pools == [
        {
            "path": f"{zklock_path}/pool",
            "shards": 2,
            "without_owner": 0,
            "workers": [
                {
                    "identity": "w1",
                    "capacity": 1.0,
                    "draining": False,
                    "assigned": 2,
                    "owned": 2,
                }
            ],
        }
    ]


def top(zk: Commands, *arguments: str, **options: Any) -> Terminal:
    """Start ``zklock top`` on a terminal of 40 lines of 150 columns."""
    size = {"LINES": "40", "COLUMNS": "150"}  # these win, if the tests' own are set
    command = [sys.executable, "-m", "zklock.cli", "top", *arguments]
    environ = {**zk.environ, **size, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
    return Terminal(command, (40, 150), env=environ, **options)


def test_the_admin_server_tells_addresses(
    administered: tuple[ZooKeeperServer, int], zklock_connect: Callable[..., Any]
) -> None:
    server, port = administered
    commands = Commands(server.hosts)
    holder = zklock_connect(server.hosts, timeout=30.0)
    try:
        with zklock.Lock(holder, "/a"):
            arguments = ["--admin-port", str(port), "/"]
            out = with_addresses(commands, "--once", *arguments)
            told = json.loads(with_addresses(commands, "--json", *arguments))
            _, without, errors = commands.run("top", "--once", "--admin-port", "0")
            nothing = json.loads(commands.run("top", "--json", "--admin-port", "0")[1])
    finally:
        commands.close()
        holder.stop()
        holder.close()
    heads, row = out.splitlines()[1:]
    assert heads.split()[-1] == "CLIENT"
    address = row.split()[-1]
    assert re.fullmatch("127[.]0[.]0[.]1:[0-9]+", address)
    assert told["locks"][0]["contenders"][0]["address"] == address
    assert errors == ""
    assert without.splitlines()[1].split()[-1] == "SESSION"
    assert nothing["locks"][0]["contenders"][0]["address"] is None


def test_on_a_terminal_it_follows(zk: Commands, one: KazooClient, zklock_path: str) -> None:
    one.ensure_path(zklock_path)
    with top(zk, "--interval", "0.1", zklock_path) as terminal:
        terminal.expect("0 locks", PATIENCE)
        with zklock.Lock(one, f"{zklock_path}/later", identity="host-7"):
            terminal.expect("/later", PATIENCE)
            terminal.expect("host-7", PATIENCE)
        terminal.type_in("q")
        assert terminal.finish(PATIENCE) == 0


@pytest.mark.parametrize(
    ("how", "number"),
    [("Ctrl-C", signal.SIGINT), ("signal", signal.SIGINT), ("signal", signal.SIGTERM)],
)
def test_it_ends_when_it_is_told(
    zk: Commands, one: KazooClient, zklock_path: str, how: str, number: int
) -> None:
    one.ensure_path(zklock_path)
    with top(zk, zklock_path) as terminal:
        terminal.expect("0 locks", PATIENCE)
        if how == "Ctrl-C":
            terminal.type_in("\x03")
        else:
            terminal.process.send_signal(number)
        assert terminal.finish(PATIENCE) == 128 + number


def test_it_ends_with_its_terminal(zk: Commands, one: KazooClient, zklock_path: str) -> None:
    one.ensure_path(zklock_path)
    with top(zk, zklock_path) as terminal:
        terminal.expect("0 locks", PATIENCE)
        terminal.hang_up()
        assert terminal.process.wait(PATIENCE) == 128 + signal.SIGHUP


@pytest.mark.parametrize("how", ["q", "\x03", "the terminal goes"])
def test_it_ends_at_once_while_zookeeper_is_silent(
    zk: Commands, zklock_proxy: FaultProxy, how: str
) -> None:
    """Nothing of the screen waits for the answer: its thread would outlive the terminal."""
    silent = zklock_proxy.hold_before_reply(op="sync")
    with top(zk, "--hosts", zklock_proxy.hosts, "--session-timeout", "600", "/") as terminal:
        silent.wait(PATIENCE)
        terminal.expect("reading", PATIENCE)
        if how == "the terminal goes":
            terminal.hang_up()
            assert terminal.process.wait(PATIENCE) == 128 + signal.SIGHUP
        else:
            terminal.type_in(how)
            assert terminal.finish(PATIENCE) == (0 if how == "q" else 128 + signal.SIGINT)


def test_it_draws_on_standard_output(
    zk: Commands, one: KazooClient, zklock_path: str, tmp_path: Path
) -> None:
    """What libraries say on standard error may go into a file."""
    one.ensure_path(zklock_path)
    log = tmp_path / "log"
    with log.open("w") as file, top(zk, "-v", zklock_path, stderr=file) as terminal:
        terminal.expect("0 locks", PATIENCE)
        terminal.type_in("q")
        assert terminal.finish(PATIENCE) == 0
    assert "kazoo" in log.read_text()
    assert "\x1b" not in log.read_text()


def test_without_textual_it_says_what_to_do(zk: Commands, zklock_path: str) -> None:
    program = (
        "import sys; sys.modules['textual'] = None; "
        "from zklock.cli import main; sys.exit(main(['top', sys.argv[1]]))"
    )
    process = zk.start_program(program, zklock_path)
    out, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (64, "")
    assert (
        errors == "zklock top: the live screen needs textual: pip install textual; or pass --once\n"
    )
