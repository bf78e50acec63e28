"""``zklock top`` as operators run it."""

from __future__ import annotations

import fcntl
import json
import re
import signal
import termios
from collections.abc import Callable
from typing import Any

import pytest

import zklock
from tests.contract.test_cli import PATIENCE, ZKLOCK, Commands
from tests.terminal import Terminal
from zklock.testing import FaultProxy, ZooKeeperServer, wait_for


def with_addresses(zk: Commands, *arguments: str) -> str:
    """Return the output of ``top``: on a busy machine, the servers may be too slow to be heard."""

    def said() -> str | None:
        _, out, _ = zk.run("top", *arguments)
        return out if re.search("127[.]0[.]0[.]1:[0-9]+", out) else None

    return wait_for(said, PATIENCE, "no addresses")


def top(zk: Commands, *arguments: str, **options: Any) -> Terminal:
    """Start ``zklock top`` on a terminal of 40 lines of 150 columns, which controls its session."""
    size = {"LINES": "40", "COLUMNS": "150"}  # these win, if the tests' own are set
    environ = {**zk.environ, **size, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
    options["preexec_fn"] = lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    return Terminal([*ZKLOCK, "top", *arguments], (40, 150), env=environ, **options)


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
    assert [line.split()[-1] for line in without.splitlines()[1:]] == ["CLIENT", "-"]
    assert nothing["locks"][0]["contenders"][0]["address"] is None


def test_on_a_terminal_it_follows(zk: Commands) -> None:
    zk.patient.ensure_path(zk.path)
    with top(zk, "--interval", "0.1", zk.path) as terminal:
        terminal.expect("0 locks", PATIENCE)
        with zklock.Lock(zk.patient, f"{zk.path}/later", identity="host-7"):
            terminal.expect("/later", PATIENCE)
            terminal.expect("host-7", PATIENCE)
        terminal.type_in("q")
        assert terminal.finish(PATIENCE) == 0


@pytest.mark.parametrize(
    ("how", "silent", "status"),
    [
        ("q", True, 0),
        *[(how, silent, 130) for how in ("\x03", signal.SIGINT) for silent in (False, True)],
        (signal.SIGTERM, False, 143),
        *[("the terminal goes", silent, -signal.SIGHUP) for silent in (False, True)],
    ],
)
def test_it_ends_when_it_is_told(
    zk: Commands, zklock_proxy: FaultProxy, how: str | int, silent: bool, status: int
) -> None:
    """Nothing of the screen waits for an answer: its thread would outlive the terminal."""
    held = zklock_proxy.hold_before_reply(op="sync") if silent else None
    with top(zk, "--hosts", zklock_proxy.hosts, "--session-timeout", "600", "/") as terminal:
        if held is not None:
            held.wait(PATIENCE)
        terminal.expect("reading" if silent else "locks", PATIENCE)
        if isinstance(how, int):
            terminal.process.send_signal(how)
        elif how == "the terminal goes":
            terminal.hang_up()
            assert terminal.process.wait(PATIENCE) == status
            return
        else:
            terminal.type_in(how)
        assert terminal.finish(PATIENCE) == status


def test_without_textual_it_says_what_to_do(zk: Commands) -> None:
    program = (
        "import sys; sys.modules['textual'] = None; "
        "from zklock.cli import main; sys.exit(main(['top', sys.argv[1]]))"
    )
    process = zk.start_program(program, zk.path)
    out, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (64, "")
    assert (
        errors == "zklock top: the live screen needs textual: pip install textual; or pass --once\n"
    )
