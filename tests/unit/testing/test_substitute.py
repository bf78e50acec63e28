"""Where nothing can run ZooKeeper, the fixtures play with the embedded server, and say so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough("test runs within test runs: they change with the fixtures alone")

TEST = """
import zklock

def test_a_lock(zklock_client, zklock_path, zklock_server, zklock_own_server):
    assert zklock_server.backend == zklock_own_server.backend == "embedded"
    with zklock.Lock(zklock_client, zklock_path) as grant:
        assert grant.held

def test_an_ensemble(zklock_ensemble):
    raise AssertionError
"""


def tried(folder: Path, *arguments: str) -> str:
    (folder / "test_mine.py").write_text(TEST)
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("ZKLOCK", "ZOO"))
    }
    nothing = {"DOCKER_HOST": "unix:///nowhere/docker.sock", "ZOOKEEPER_HOME": "/nowhere"}
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        [*command, str(folder)],
        cwd=folder,
        env={**environ, **nothing},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.stdout


@pytest.mark.parametrize("processes", [[], ["-n", "1"]], ids=["alone", "shared"])
def test_it_is_used_and_named(tmp_path: Path, processes: list[str]) -> None:
    said = tried(tmp_path, *processes)
    assert "1 passed, 1 skipped" in said
    assert "not a real ZooKeeper" in said
    assert "never for production" in said


def test_strict_mode_has_no_substitute(tmp_path: Path) -> None:
    said = tried(tmp_path, "--zklock-strict")
    assert "passed" not in said
    assert "not a real ZooKeeper" not in said
    assert "skipped, which strict mode does not allow" in said
