"""The Compose files, driven by the commands that users have."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends import backend_or_skip
from zklock.testing import srvr, wait_for
from zklock.testing.container import ContainerBackend
from zklock.testing.ports import free_ports

COMPOSE = Path(__file__).parents[2] / "compose"
KNOWN = (("docker", "compose"), ("docker-compose",))


def works(words: tuple[str, ...]) -> bool:
    return (
        shutil.which(words[0]) is not None
        and subprocess.run([*words, "version"], capture_output=True, check=False).returncode == 0
    )


# Either will do: which of them a machine has is its own affair.
@pytest.fixture(params=[words for words in KNOWN if works(words)] or KNOWN[:1], ids=" ".join)
def command(request: pytest.FixtureRequest) -> list[str]:
    words: tuple[str, ...] = request.param
    if not works(words):
        pytest.skip("neither docker compose nor docker-compose here")
    return list(words)


@pytest.fixture
def environment() -> dict[str, str]:
    backend = backend_or_skip("container")
    assert isinstance(backend, ContainerBackend)
    ports = free_ports(3)
    return {
        **os.environ,
        "ZOOKEEPER_IMAGE": backend.image,
        "ZOOKEEPER_PORT": str(ports[0]),
        **{f"ZOOKEEPER_PORT_{index}": str(port) for index, port in enumerate(ports, 1)},
        "ZOO_CFG_EXTRA": "globalOutstandingLimit=999",
    }


@pytest.fixture
def project(command: list[str], environment: dict[str, str], file: str) -> Iterator[list[str]]:
    words = [*command, "-p", f"zklock-{secrets.token_hex(4)}", "-f", str(COMPOSE / file)]
    yield words
    subprocess.run([*words, "down", "-v"], env=environment, capture_output=True, check=True)


@pytest.mark.cluster
@pytest.mark.slow("containers are started")
@pytest.mark.parametrize(
    ("file", "modes"),
    [("single.yml", ["standalone"]), ("ensemble.yml", ["follower", "follower", "leader"])],
)
def test_it_comes_up_healthy(
    project: list[str], environment: dict[str, str], modes: list[str]
) -> None:
    subprocess.run([*project, "up", "-d"], env=environment, capture_output=True, check=True)
    listing = subprocess.run(
        [*project, "ps", "-q"], env=environment, capture_output=True, text=True, check=True
    )
    containers = listing.stdout.split()
    assert len(containers) == len(modes)

    def healths() -> list[str]:
        words = ["docker", "inspect", "-f", "{{.State.Health.Status}}", *containers]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()

    wait_for(lambda: set(healths()) == {"healthy"}, 60, lambda: f"healthy: {healths()}")
    ports = [int(environment[f"ZOOKEEPER_PORT_{index + 1}"]) for index in range(len(modes))]
    assert sorted(srvr("127.0.0.1", port).mode for port in ports) == modes


@pytest.mark.parametrize("file", ["single.yml", "ensemble.yml"])
def test_it_is_valid_without_any_variable(command: list[str], file: str) -> None:
    bare = {key: value for key, value in os.environ.items() if not key.startswith("ZOO")}
    result = subprocess.run(
        [*command, "-f", str(COMPOSE / file), "config"],
        env=bare,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "image: zookeeper:3.9" in result.stdout
    assert "WARN" not in result.stderr.upper()
