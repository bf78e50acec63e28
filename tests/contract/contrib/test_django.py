"""Django: a command on one host at a time, and transactions that a stale token cannot commit."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import zklock
from tests.contract.fencing.databases import MariaDb, PostgreSql, Unavailable
from tests.contract.secure import PASSWORD, USER, Authority
from tests.contract.support import ROOT, SOON, gone, queued
from zklock.testing import ZooKeeperServer, wait_for

PROJECT = Path(__file__).with_name("django_project")
TESTS = len(re.findall(r"^    def test_", (PROJECT / "shop/tests.py").read_text(), re.MULTILINE))

Manage = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def manage(zklock_hosts: str, zklock_path: str, tmp_path: Path) -> Iterator[Manage]:
    """Start ``manage.py``; what still runs is killed after the test."""
    started = []

    def start(*words: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(PROJECT / "manage.py"), *words],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "PYTHONWARNINGS": "error",
                "SHOP_DATABASE": str(tmp_path / "shop.sqlite"),
                "SHOP_HOSTS": zklock_hosts,
                "SHOP_ROOT": zklock_path,
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def said(process: subprocess.Popen[str], status: int = 0) -> str:
    output, _ = process.communicate(timeout=6 * SOON)
    assert process.returncode == status, output
    return output


def check(manage: Manage, **environment: str) -> None:
    output = said(manage("test", "shop", "--noinput", **environment))
    assert f"Ran {TESTS} tests" in output
    assert "OK" in output.splitlines()


@pytest.mark.slow("Django's commands are started, one by one")
def test_fenced_transactions_on_sqlite(manage: Manage) -> None:
    check(manage)


@pytest.mark.thorough("Django's transactions on PostgreSQL: those on SQLite run, and its guard")
@pytest.mark.slow("Django's commands are started, one by one")
def test_fenced_transactions_on_postgresql(manage: Manage) -> None:
    with PostgreSql() as server:
        check(manage, SHOP_POSTGRESQL=str(server.port))


@pytest.mark.slow("Django's commands are started, one by one")
def test_fenced_transactions_on_mariadb(manage: Manage) -> None:
    try:
        made = MariaDb()
    except Unavailable as error:
        pytest.skip(str(error))
    with made as server:
        check(manage, SHOP_MARIADB=str(server.port))


def sales(database: Path) -> list[tuple[str, int]]:
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as connection:
        found = connection.execute("SELECT token, process FROM shop_sale ORDER BY id").fetchall()
    return [(str(token), int(process)) for token, process in found]


@pytest.mark.slow("Django's commands are started, one by one")
def test_a_singleton_goes_on_elsewhere_when_it_is_killed(
    manage: Manage, zklock_client: Any, zklock_path: str, tmp_path: Path
) -> None:
    database = tmp_path / "shop.sqlite"
    said(manage("migrate", "--run-syncdb"))
    said(manage("shell", "-c", "from zklock.contrib.django import *; create_mark('sales')"))
    hosts = [manage("run_singleton", "--again", "sell") for _ in range(2)]
    queued(zklock_client, f"{zklock_path}/sell", 2, 3 * SOON)

    def sellers(count: int) -> list[int]:
        def look() -> list[int] | None:
            found = list(dict.fromkeys(process for _, process in sales(database)))
            return found if len(found) >= count else None

        return wait_for(look, 3 * SOON, lambda: f"{count} sellers: {sales(database)}")

    (first,) = sellers(1)
    (held,) = (host for host in hosts if host.pid in ancestors(first))
    held.kill()  # zklock itself: its supervisor kills the command
    second = sellers(2)[1]
    assert second != first
    wait_for(lambda: not Path(f"/proc/{first}").exists(), SOON, "the end of the first one")
    tokens = [token for token, _ in sales(database)]
    assert tokens == sorted(tokens), "nobody sells after a higher token has"

    other = next(host for host in hosts if host is not held)
    other.terminate()
    said(other, 128 + signal.SIGTERM)
    gone(zklock_client, f"{zklock_path}/sell")


def ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid


@pytest.mark.slow("Django's commands are started, one by one")
def test_a_job_that_another_host_runs_is_left_to_it(
    manage: Manage, zklock_connect: Callable[..., Any], zklock_path: str, tmp_path: Path
) -> None:
    said(manage("migrate", "--run-syncdb"))
    said(manage("shell", "-c", "from zklock.contrib.django import *; create_mark('sales')"))
    with zklock.Lock(zklock_connect(timeout=30), f"{zklock_path}/sell"):
        said(manage("run_singleton", "-n", "sell", "--times", "1"), 75)
    assert sales(tmp_path / "shop.sqlite") == []
    said(manage("run_singleton", "sell", "--times", "2"))
    assert len(sales(tmp_path / "shop.sqlite")) == 2
    assert "say which command" in said(manage("run_singleton"), 1)


@pytest.mark.slow("Django's commands are started, one by one")
def test_a_singleton_connects_by_the_options_of_the_settings(
    manage: Manage, secured: ZooKeeperServer, authority: Authority, tls_port: int, tmp_path: Path
) -> None:
    """A site with TLS could use ``lock()`` or ``run_singleton``, not both."""
    certificate = str(authority.certify("client"))
    options: dict[str, Any] = {
        "use_ssl": True,
        "check_hostname": True,
        "ca": str(authority.certificate),
        "certfile": certificate,
        "keyfile": certificate,
        "verify_certs": True,
        "sasl_options": {"mechanism": "DIGEST-MD5", "username": USER, "password": PASSWORD},
        "auth_data": [("digest", f"{USER}:{PASSWORD}")],
        "start_timeout": 60,
    }
    shop = {"SHOP_HOSTS": f"127.0.0.1:{tls_port}", "SHOP_ROOT": "/singleton"}
    there = (
        "from zklock.contrib.django import *\nwith lock('inside', timeout=30): print('as a client')"
    )
    both = shop | {"SHOP_OPTIONS": json.dumps(options)}
    command = ("run_singleton", "--at-least", "0.1", "shell", "-c", there)
    assert "as a client" in said(manage(*command, **both))
    wrong = options | {"sasl_options": {**options["sasl_options"], "password": "wrong"}}
    refused = said(manage(*command, **shop, SHOP_OPTIONS=json.dumps(wrong)), 125)
    assert "refused the client's credentials" in refused
    unusual = options | {"verify_certs": False, "check_hostname": False}
    refused = said(manage(*command, **shop, SHOP_OPTIONS=json.dumps(unusual)), 1)
    assert "cannot do: verify_certs" in refused
    assert PASSWORD not in refused
