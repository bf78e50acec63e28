"""Commands over TLS, SASL and with a digest, on a real server; no secret is seen by others."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import zklock
from tests.contract.secure import PASSWORD, USER, Authority
from tests.contract.support import ROOT
from tests.contract.test_cli import ZKLOCK, Commands
from zklock._shell.refusals import WANTS_TLS
from zklock.cli.view import servers
from zklock.testing import ZooKeeperServer, wait_for

OTHERS = pytest.mark.thorough(
    "commands that connect in each way by settings from each place: each way and each place is "
    "tried once"
)
CASES = [
    ("SASL over TLS", "options"),
    ("digest", "environment"),
    ("mutual TLS", "file"),
    *(
        pytest.param(way, place, marks=OTHERS)
        for way, place in (
            *((way, "options") for way in ("TLS", "mutual TLS", "SASL", "digest")),
            ("SASL over TLS", "environment"),
            ("SASL over TLS", "file"),
        )
    ),
]
LONG = 100.0


class Patient(Commands):
    """Sessions outlive the stalls of a busy machine, and a command may start others."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.environ |= {"ZKLOCK_SESSION_TIMEOUT": "40", "ZKLOCK_CONNECT_TIMEOUT": "60"}

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, errors = process.communicate(timeout=LONG)
        return process.returncode, out, errors


@pytest.fixture
def zk(secured: ZooKeeperServer, path: str, tmp_path: Path) -> Iterator[Commands]:
    commands = Patient(secured.hosts, path, tmp_path)
    yield commands
    commands.close()


def settings_of(way: str, authority: Authority, folder: Path) -> dict[str, Any]:
    """Return the settings for a way to be safe; secrets stand in files."""
    tls = {"tls": True, "tls-ca": str(authority.certificate)}
    sasl = {"sasl-user": USER, "sasl-password-file": private(folder / "password", PASSWORD)}
    ways: dict[str, dict[str, Any]] = {
        "TLS": tls,
        "mutual TLS": tls | {"tls-cert": str(authority.certify("client"))},
        "SASL": sasl,
        "SASL over TLS": tls | sasl,
        "digest": {"digest-file": private(folder / "digest", f"{USER}:{PASSWORD}")},
    }
    return ways[way]


def private(file: Path, text: str) -> str:
    file.touch(0o600)
    file.write_text(f"{text}\n")
    return str(file)


def bare(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the same settings with the secrets themselves, in place of files with them."""
    return {
        name.removesuffix("-file"): Path(value).read_text().strip()
        if name.endswith("-file")
        else value
        for name, value in settings.items()
    }


def as_options(settings: dict[str, Any]) -> list[str]:
    return [
        word
        for name, value in settings.items()
        for word in ([f"--{name}"] if value is True else [f"--{name}", value])
    ]


def give(settings: dict[str, Any], place: str, zk: Commands, folder: Path) -> list[str]:
    """Have the commands find the settings there; return the options for their command line."""
    match place:
        case "options":
            return as_options(settings)
        case "environment":
            for name, value in bare(settings).items():
                variable = f"ZKLOCK_{name.replace('-', '_').upper()}"
                zk.environ[variable] = "1" if value is True else value
        case "file":
            lines = [f"{name} = {json.dumps(value)}" for name, value in bare(settings).items()]
            zk.environ["ZKLOCK_CONFIG"] = private(folder / "zklock.toml", "\n".join(lines))
    return []


@pytest.mark.parametrize(("way", "place"), CASES)
def test_a_command_connects_and_so_do_those_that_it_runs(
    way: str, place: str, zk: Commands, authority: Authority
) -> None:
    lock = f"{zk.path}/private"
    settings = settings_of(way, authority, zk.folder)
    if way != "TLS":
        settings["acl"] = "creator"
    options = give(settings, place, zk, zk.folder)
    command = ["run", *options, lock, "--", *ZKLOCK, "check"]
    assert zk.run(*command) == (0, "", "")
    if options:  # they may stand before the command, too
        assert zk.run(*options, "run", *command[1 + len(options) :]) == (0, "", "")
    zk.environ = Patient(zk.environ["ZKLOCK_HOSTS"]).environ  # without credentials
    assert zk.run("show", lock)[0] == (0 if way == "TLS" else 77)


@pytest.mark.parametrize("place", ["options", "environment", "file"])
@pytest.mark.parametrize("way", ["SASL", "digest"])
def test_no_secret_is_seen_by_others(
    way: str, place: str, zk: Commands, authority: Authority
) -> None:
    options = give(settings_of(way, authority, zk.folder), place, zk, zk.folder)
    running = zk.start(
        "run", "-v", *options, f"{zk.path}/lock", "--", "sh", "-c", "echo runs; read line",
        stdin=subprocess.PIPE,
    )  # fmt: skip
    assert running.stdout is not None
    assert running.stdout.readline() == "runs\n"
    lines = command_lines()
    assert any(f"{zk.path}/lock" in line for line in lines)
    assert [line for line in lines if PASSWORD in line] == []
    out, errors = running.communicate("go on\n", timeout=LONG)
    assert running.returncode == 0
    assert "Connecting to" in errors
    assert PASSWORD not in out + errors


def command_lines() -> list[str]:
    """Return what ``ps`` shows of all processes."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(each.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it has ended
            continue
    return found


def test_a_wrong_password_is_not_repeated(zk: Commands) -> None:
    zk.environ |= {"ZKLOCK_SASL_USER": USER, "ZKLOCK_SASL_PASSWORD": "plugh-1984"}
    code, out, errors = zk.run("show", "-v", zk.path)
    assert code == 1
    assert "refused the client's credentials" in errors
    assert "plugh-1984" not in out + errors


@pytest.mark.parametrize("checks", [True, False])
def test_a_certificate_for_another_name(checks: bool, zk: Commands, authority: Authority) -> None:
    _, _, port = zk.environ["ZKLOCK_HOSTS"].rpartition(":")
    zk.environ |= {"ZKLOCK_HOSTS": f"127.1:{port}", "ZKLOCK_TLS_CA": str(authority.certificate)}
    options = [] if checks else ["--no-tls-check-hostname"]
    code, _, errors = zk.run("show", "--connect-timeout", "3", *options, zk.path)
    assert code == (69 if checks else 0), errors


def test_a_certificate_that_is_not_trusted(zk: Commands) -> None:
    other = Authority(zk.folder)
    options = ["--connect-timeout", "1", "--tls-ca", str(other.certificate)]
    assert zk.run("show", *options, zk.path)[0] == 69


@pytest.fixture
def over_tls(zk: Commands, authority: Authority, tls_port: int) -> Commands:
    """Commands that know the port alone that takes nothing but TLS."""
    zk.environ |= {
        "ZKLOCK_HOSTS": f"127.0.0.1:{tls_port}",
        "ZKLOCK_TLS_CA": str(authority.certificate),
    }
    return zk


def test_the_doctor_asks_servers_over_tls(over_tls: Commands) -> None:
    _, out, errors = over_tls.run("doctor", "--json", "--admin-port", "0", over_tls.path)
    assert errors == ""
    found = {finding["about"]: finding["what"] for finding in json.loads(out)["findings"]}
    assert "standalone, ZooKeeper 3." in found["server"]
    assert "(from its configuration)" in found["lease"]


def test_a_server_that_is_asked_without_tls_and_wants_it(
    secured: ZooKeeperServer, tls_port: int
) -> None:
    trouble = servers.server(servers.Asked("127.0.0.1", tls_port)).trouble
    assert trouble == WANTS_TLS


def test_the_clients_of_sessions_over_tls(
    over_tls: Commands, authority: Authority, zklock_connect: Callable[..., Any]
) -> None:
    client = zklock_connect(
        over_tls.environ["ZKLOCK_HOSTS"], timeout=LONG, use_ssl=True, ca=str(authority.certificate)
    )

    def told() -> bool:
        code, out, errors = over_tls.run("top", "--json", "--admin-port", "0", over_tls.path)
        assert (code, errors) == (0, "")
        (lock,) = json.loads(out)["locks"]
        return str(lock["contenders"][0]["address"]).startswith("127.0.0.1:")

    with zklock.Lock(client, f"{over_tls.path}/lock"):
        wait_for(told, LONG)  # a server that takes long to tell is not waited for


def test_a_server_whose_certificate_is_not_trusted_is_not_asked(
    secured: ZooKeeperServer, tls_port: int
) -> None:
    other = servers.Asked(secured.host, tls_port, tls=ssl.create_default_context())
    said = servers.server(other).trouble
    assert "was refused by TLS: CERTIFICATE_VERIFY_FAILED: unable to get" in str(said)


PAGE = (ROOT / "docs" / "commands" / "connecting.md").read_text()
EXAMPLES = re.search(r"^```console secured\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_page(zk: Commands, authority: Authority) -> None:
    files = {
        "/etc/zk/ca.pem": str(authority.certificate),
        "/run/secrets/zk-password": private(zk.folder / "password", PASSWORD),
        "/run/secrets/zk-digest": private(zk.folder / "digest", f"{USER}:{PASSWORD}"),
        "billing": USER,
    }
    environ = {
        **zk.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    assert EXAMPLES is not None
    for one in re.split(r"^\$ ", EXAMPLES[1], flags=re.MULTILINE)[1:]:
        line, _, expected = one.partition("\n")
        for there, here in files.items():
            line = line.replace(there, here)
        done = subprocess.run(
            ["sh", "-c", line], env=environ, capture_output=True, text=True, timeout=LONG,
            check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, expected), done.stderr
