from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kazoo.exceptions import ConnectionLoss, NoAuthError

import zklock
from tests.terminal import COLUMNS
from zklock import __version__
from zklock.cli import main, parser
from zklock.cli.status import Status
from zklock.testing import embedded
from zklock.testing.demo.play import backend_here

ROOT = Path(__file__).parents[3]


def exit_status(*arguments: str) -> object:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    return raised.value.code


@pytest.mark.parametrize("module", ["zklock", "zklock.cli"])
def test_a_module_is_the_command(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"zklock {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["no-such-command"],
        ["demo", "--no-such-option"],
        ["demo", "--session-timeout", "0.1"],
        ["demo", "--session-timeout", "21"],
        ["demo", "--session-timeout", "nan"],
        ["demo", "--session-timeout", "soon"],
        ["dev", "--port", "any"],
        ["exporter", "--listen", "127.0.0.1:\u00b2"],
        ["exporter", "--listen", "9642"],
        ["top", "--admin-port", "none"],
        ["top", "--admin-port", "8" * 5000],
        ["top", "--sort", "age"],
        ["demo", "--hosts", "127.0.0.1:many"],
        ["demo", "--hosts", ""],
        ["run", "relative", "true"],
        ["run", "/x"],
        ["run", "/x", "--"],
        ["run", "-n", "-w", "1", "/x", "true"],
        ["run", "-w", "0", "/x", "true"],
        ["run", "-w", "long", "/x", "true"],
        ["run", "-E", "256", "/x", "true"],
        ["run", "-E", "high", "/x", "true"],
        ["run", "--limit", "many", "/x", "true"],
        ["run", "--grace", "-1", "/x", "true"],
        ["run", "--shared", "--limit", "2", "/x", "true"],
        ["run", "--shared", "--permits", "2", "/x", "true"],
        ["run", "--limit", "0", "/x", "true"],
        ["run", "--at-least", "-1", "/x", "true"],
        ["run", "-c", "true", "/x", "true"],
        ["run", "/x", "-n", "--", "true"],
        ["run", "/x", "-c"],
        ["elect", "/x", "--again", "true"],
        ["elect", "-c", "true", "/x", "--", "true"],
        ["show"],
        ["show", "/"],
        ["show", "/x/"],
        ["ls", "x"],
        ["check", "/x"],
        ["check", "/x", "17"],
        ["break", "/x"],
        ["break", "/x", "33"],
        ["break", "/x", "--oldest", "0000000000000001-0000000001"],
        ["elect", "/x"],
        ["run", "--identity", "\udcff", "/x", "true"],
        *(["doctor", f"--admin-port={port}"] for port in ("-1", "65536", "1.5")),
    ],
)
def test_wrong_usage(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("ZKLOCK_PATH", "ZKLOCK_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    assert exit_status(*arguments) == Status.USAGE
    errors = capsys.readouterr().err
    assert "usage: zklock" in errors
    assert not re.search(r"invalid \w+ value", errors), "it names a function, not what is allowed"


def test_a_reader_that_has_gone() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        with embedded() as server:
            done = subprocess.run(
                [sys.executable, "-m", "zklock.cli", "demo", "--hosts", server.hosts],
                stdout=write,
                stderr=subprocess.PIPE,
                check=False,
            )
    finally:
        os.close(write)
    assert done.returncode == Status.BROKEN_PIPE
    assert done.stderr == b""


@pytest.mark.parametrize("output", ["a pipe without a reader", "a full disk"])
@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("show --hosts 127.0.0.1:1 --connect-timeout 0.1 /x", Status.UNAVAILABLE),
        ("run --hosts 127.0.0.1:1 --connect-timeout 0.1 /x true", Status.UNAVAILABLE),
        ("check --digest-file /no/such/file /x 0000000000000001-0000000000", Status.USAGE),
        ("demo --hosts 127.0.0.1:1", Status.UNAVAILABLE),
    ],
)
def test_what_nobody_reads_on_standard_error_changes_no_status(
    line: str, status: Status, output: str
) -> None:
    read, errors = os.pipe()
    os.close(read)
    if output == "a full disk":
        os.close(errors)
        errors = os.open("/dev/full", os.O_WRONLY)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "zklock.cli", *line.split()], stderr=errors, check=False
        )
    finally:
        os.close(errors)
    assert done.returncode == status


def test_without_a_zookeeper_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ZKLOCK_TEST_HOSTS", raising=False)
    monkeypatch.setenv("ZKLOCK_TEST_BACKEND", "java")
    monkeypatch.setenv("ZKLOCK_PROVISION", "0")
    monkeypatch.setenv("ZOOKEEPER_HOME", str(tmp_path))
    monkeypatch.delenv("ZKLOCK_ZOOKEEPER_JARS", raising=False)
    assert main(["demo"]) == Status.UNAVAILABLE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "ZOOKEEPER_HOME" in printed.err


def test_where_nothing_runs_zookeeper_it_plays_with_the_embedded_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ZKLOCK_TEST_BACKEND", "ZKLOCK_TEST_HOSTS", "ZKLOCK_ZOOKEEPER_JARS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ZKLOCK_PROVISION", "0")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setenv("ZOOKEEPER_HOME", "/nowhere")
    said: list[str] = []
    assert backend_here(said.append).name == "embedded"
    assert any("never for production" in text for text in said)


@pytest.mark.parametrize(
    ("line", "hosts", "status", "said"),
    [
        ("demo", "127.0.0.1:1", Status.UNAVAILABLE, "zklock demo: .*127.0.0.1:1"),
        ("show", "127.0.0.1:1/\u202eabc", Status.UNAVAILABLE, r".*127.0.0.1:1/\\u202eabc"),
        *[("show", hosts, Status.USAGE, "zklock: hosts: ") for hosts in (" ", "127.0.0.1:1, ")],
        *[
            ("show", f"127.0.0.1:{port}", Status.USAGE, f"zklock: hosts: 127.0.0.1:{port}: ")
            for port in ("99999", "x", "1,")
        ],
        (
            "show",
            "127.0.0.1:1,a..b",
            Status.USAGE,
            "zklock: hosts: 'a..b' cannot be the name of a host",
        ),
    ],
)
def test_an_address_that_is_of_no_use_is_named(
    line: str, hosts: str, status: Status, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--connect-timeout", "0.1", "/x"] if line == "show" else []
    assert main([line, "--hosts", hosts, *more]) == status
    assert re.match(said, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("number", "advice"), [(errno.ENOSPC, "make room"), (errno.EMFILE, "raise its limits")]
)
def test_a_refused_resource(number: int, advice: str) -> None:
    status, said = parser._explain(OSError(number, os.strerror(number)))
    assert status == Status.SYSTEM
    assert said.endswith(f": {advice}")


ENDS: list[tuple[BaseException, int, int]] = [
    (zklock.ZkLockError("x"), 1, 125),
    (ValueError("x"), 64, 64),
    (zklock.NoAnswer("x"), 69, 69),
    (ConnectionLoss(), 69, 69),
    (RuntimeError("x"), 70, 125),
    (RuntimeError("can't start new thread"), 71, 125),
    (MemoryError(), 71, 125),
    (OSError(24, "Too many open files"), 71, 125),
    (zklock.AccessDenied("x"), 77, 77),
    (NoAuthError(), 77, 77),
    (KeyboardInterrupt(), 130, 130),
]


@pytest.mark.parametrize("line", ["show /x", "run /x true", "elect /x true"])
@pytest.mark.parametrize(("error", "status", "under"), ENDS, ids=repr)
def test_what_an_error_is_told_by(
    error: BaseException, status: int, under: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``run`` and ``elect`` end with the command's own status, and with no other that it may be."""
    name, *_ = line.split()

    def fails(_: object) -> int:
        raise error

    monkeypatch.setenv("ZKLOCK_CONFIG", os.devnull)
    monkeypatch.setattr(f"zklock.cli.{name}.run", fails)
    assert main(line.split()) == (status if name == "show" else under)


def test_every_exit_status_is_documented() -> None:
    section = (ROOT / "docs" / "commands.md").read_text().partition("## Exit statuses")[2]
    rows = re.findall(r"^\| ([0-9, ]+) \|", section.partition("\n## ")[0], re.MULTILINE)
    told = {int(number) for row in rows for number in row.split(",")}
    own = {Status.OK, Status.FAILED, Status.CRITICAL}  # the page of each command says what of
    signals = {Status.INTERRUPTED, Status.BROKEN_PIPE, Status.TERMINATED}
    assert told == {*map(int, Status)} - own - signals


@pytest.mark.parametrize("name", parser.COMMANDS)
def test_help_fits_a_terminal_and_the_page_of_the_command(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    assert parser.build(name).format_help() == parser.build(None).format_help()
    assert exit_status(name, "--help") == 0
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if len(line) > COLUMNS] == []
    assert shown.isascii()
    assert "\x1b" not in shown
    pages = [page.read_text() for page in (ROOT / "docs" / "commands").glob("*.md")]
    if name == "demo":
        pages = [(ROOT / "docs" / "demo.md").read_text().replace("# The demo", "# zklock demo")]
    (page,) = (it for it in pages if re.search(rf"^# .*zklock {name}\b", it))
    if "--json" in shown:
        section = page.partition("--json`")[2]
        assert re.search(r"`version` \(1\)|`version`, `path` \| 1;", section)


def test_a_usage_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status("graph", "x") == Status.USAGE
    usage = "usage: zklock graph [-h] [--json | --dot | --mermaid] [-v] [PATH]\n"
    assert capsys.readouterr().err.startswith(usage)
    assert exit_status("demo", "--session-timeout", "0") == Status.USAGE
    assert "[--hosts HOSTS]" in capsys.readouterr().err  # its own


def loaded_by(*arguments: str, main: str = "from zklock.cli import main") -> set[str]:
    """Return the modules that a process has loaded that ran this command line to its end."""
    program = (
        f"import os, sys; {main}; from contextlib import suppress\n"
        "with suppress(SystemExit): assert main(sys.argv[1:]) == 0\n"
        "os.write(2, ' '.join(sys.modules).encode())"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, *arguments],
        capture_output=True, text=True, check=True, env={"HOME": os.devnull},
    )  # fmt: skip
    return set(done.stderr.split())


def within(names: set[str], modules: set[str]) -> set[str]:
    """Return those modules that are among these, or inside of them."""
    return {it for it in modules if any(f"{it}.".startswith(f"{name}.") for name in names)}


VIEW = Path(parser.__file__).parent / "view"
RUN = {"run"}
FOR_NO_COMMAND = {
    "asyncio",
    "concurrent.futures.process",
    "concurrent.futures.thread",
    "decimal",
    "email",
    "fractions",
    "http",
    "multiprocessing",
    "prometheus_client",
    "sqlite3",
    "textual",
    "tomllib",
    "unittest",
    "zklock._election",
    "zklock._pool",
    "zklock.aio",
    "zklock.cli.shipped",
    "zklock.cli.standing",
    "zklock.fencing",
    "zklock.testing",
    *(f"zklock.cli.view.{file.stem}" for file in VIEW.glob("[a-z]*.py") if file.stem != "text"),
    *(f"zklock.cli.{parser.module_of(name)}" for name in parser.COMMANDS if name not in RUN),
}
"""What takes long to load, and is of no use to a lock that is free, nor to help."""

FOR_NO_HELP = {
    "ctypes",
    "dataclasses",
    "inspect",
    "json",
    "kazoo",
    "logging",
    "socket",
    "ssl",
    "subprocess",
    "zklock.cli.run",
    "zklock._engine",
    "zklock._kazoo",
    "zklock._locks",
    "zklock._recipes",
}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_loads_neither_kazoo_nor_locks(arguments: list[str]) -> None:
    loaded = loaded_by(*arguments)
    assert "zklock.cli.parser" in loaded
    # Since Python 3.14, argparse loads dataclasses for its colours, for any program.
    anyhow = loaded_by(
        "--help", main="import argparse; main = argparse.ArgumentParser().parse_args"
    )
    assert within(FOR_NO_COMMAND | FOR_NO_HELP, loaded - anyhow) == set()


def test_a_lock_that_is_free_needs_little() -> None:
    with embedded() as server:
        loaded = loaded_by("run", "--hosts", server.hosts, "/free", "true")
    assert "zklock._locks.threads" in loaded
    assert within(FOR_NO_COMMAND, loaded) == set()


@pytest.mark.parametrize("name", [it for it in parser.COMMANDS if it not in {"demo", "dev"}])
def test_a_command_loads_what_it_needs_by_itself(name: str) -> None:
    """In a process where nothing else has loaded it."""
    token = "0000000000000001-0000000000"
    more = {"run": "true", "elect": "true", "check": token, "break": token, "gc": "--yes"}
    more["top"] = "--once"
    line = f"{name} --connect-timeout 0.01 --hosts 127.0.0.1:1 /x {more.get(name, '')}"
    done = subprocess.run(
        [sys.executable, "-m", "zklock.cli", *line.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {Status.UNAVAILABLE, Status.CRITICAL}, done.stderr
    assert "Traceback" not in done.stderr
