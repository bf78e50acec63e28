"""The manifests: valid, with numbers that fit together; their entrypoint, on a real ZooKeeper."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.contract.contrib.conftest import Start
from tests.contract.support import ROOT, SOON, children, gone, queued
from zklock.cli.runner import _MOST_GRACE_FRACTION, PARTING_SECONDS
from zklock.testing import wait_for

FOLDER = ROOT / "examples" / "kubernetes"
PAGE = ROOT / "docs" / "contrib" / "kubernetes.md"
VERSIONS = ["1.29", "1.31", "1.34"]
SPARE = 5
"""Seconds that a pod should have left when all has ended in time."""

MANIFESTS = {
    f"{file.stem}-{manifest['kind']}": manifest
    for file in sorted(FOLDER.glob("*.yaml"))
    for manifest in yaml.safe_load_all(file.read_text())
}


def pod(name: str) -> Any:
    return MANIFESTS[f"{name}-Deployment"]["spec"]["template"]["spec"]


def container(name: str) -> Any:
    (only,) = pod(name)["containers"]
    return only


def variables(name: str) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container(name)["env"]}


def options(name: str) -> dict[str, str]:
    """Return the options of the container's command, before those of the program."""
    words = container(name)["args"]
    own = words[: words.index("--")] if "--" in words else words
    return dict(word.removeprefix("--").partition("=")[::2] for word in own)


def table(cells: int) -> dict[str, list[str]]:
    """Return the rows of the page's table about the grace period, by their first cell."""
    section = PAGE.read_text().partition("## The grace period")[2].partition("\n## ")[0]
    rows = [
        [re.sub("[*`]", "", cell).strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    assert all(len(row) == cells for row in rows)
    return {row[0]: row[1:] for row in rows}


def seconds(cell: str) -> float:
    """Return the seconds of a cell; 0 if it names none."""
    return sum(float(number) for number in re.findall(r"(\d+) s\b", cell))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", sorted(MANIFESTS))
def test_the_manifests_are_valid(name: str, version: str) -> None:
    kubernetes_validate.validate(MANIFESTS[name], version, strict=True)


@pytest.mark.parametrize(("name", "column"), [("elect", 0), ("service", 1)])
def test_a_pod_ends_within_its_grace_period(name: str, column: int) -> None:
    rows = {what: cells[column] for what, cells in table(3).items()}
    total = float(rows.pop("terminationGracePeriodSeconds"))
    spare = seconds(rows.pop("to spare"))
    needed = {what: seconds(cell) for what, cell in rows.items()}
    assert pod(name)["terminationGracePeriodSeconds"] == total
    assert sum(needed.values()) + spare == total
    assert spare >= SPARE
    hook = container(name).get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
    assert needed["preStop"] == (0 if hook is None else float(hook[-1]))
    if name == "elect":
        assert needed["ZooKeeper's answer"] == PARTING_SECONDS
        assert needed["the program ends after SIGTERM"] > 0
    else:
        assert needed["the program ends after SIGTERM"] == float(
            options(name)["timeout-graceful-shutdown"]
        )
        assert needed["the work ends"] == 3 * float(variables(name)["WORK_GRACE"])


def test_the_grace_of_a_lease_fits_into_the_session_timeout() -> None:
    timeout = float(variables("elect")["ZKLOCK_SESSION_TIMEOUT"])
    assert float(options("elect")["grace"]) <= timeout * _MOST_GRACE_FRACTION
    default_tick = 2.0
    for name in ("elect", "service"):
        asked = float(variables(name)["ZKLOCK_SESSION_TIMEOUT"])
        assert 2 * default_tick <= asked <= 20 * default_tick
        assert "cpu" not in container(name)["resources"]["limits"], "a pause is no good to a lease"


def test_work_may_end_before_its_pod_is_replaced() -> None:
    probe = container("service")["livenessProbe"]
    assert probe["httpGet"]["path"] == "/zklock/live"
    assert probe["timeoutSeconds"] <= probe["periodSeconds"]
    patience = probe["failureThreshold"] * probe["periodSeconds"]
    assert patience >= float(variables("service")["WORK_GRACE"])
    assert "zklock" not in container("service")["readinessProbe"]["httpGet"]["path"]


def test_selectors_select_the_pods() -> None:
    labels = {}
    for name in ("elect", "service"):
        deployment = MANIFESTS[f"{name}-Deployment"]["spec"]
        labels[name] = deployment["template"]["metadata"]["labels"]
        assert deployment["selector"]["matchLabels"] == labels[name]
        assert deployment["replicas"] > 1
    budget = MANIFESTS["elect-PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]
    assert budget == labels["elect"]
    assert MANIFESTS["service-Service"]["spec"]["selector"] == labels["service"]


PROGRAM = """
import os, signal, sys, time
def end(*ignored):
    print("end", os.environ["ZKLOCK_TOKEN"], file=record, flush=True)
    sys.exit(0)
record = open(sys.argv[1], "a")
signal.signal(signal.SIGTERM, end)
print("begin", os.environ["ZKLOCK_TOKEN"], file=record, flush=True)
while True:
    time.sleep(0.05)
"""


def pods(start: Start, hosts: str, path: str, record: Path) -> dict[str, Any]:
    """Start three times what the container starts, with another program behind ``--``."""
    secret = record.with_name("digest")
    secret.write_text("scheduler:secret\n")
    secret.chmod(0o600)
    given = variables("elect") | {"ZKLOCK_HOSTS": hosts + path, "ZKLOCK_DIGEST_FILE": str(secret)}
    assert given.keys() == variables("elect").keys(), "the manifest sets the others"
    words: list[str] = [*container("elect")["command"], *container("elect")["args"]]
    assert words.pop(0) == "zklock"
    words = [*words[: words.index("--") + 1], sys.executable, "-c", PROGRAM, str(record)]
    running = {}
    for name in ("scheduler-0", "scheduler-1", "scheduler-2"):
        own = [word.replace("$(POD_NAME)", name) for word in words]
        environment = given | {"ZKLOCK_CONFIG": os.devnull, "POD_NAME": name}
        running[name] = start("zklock.cli", *own, **environment)
    return running


@pytest.mark.slow("processes in place of pods are started")
def test_the_entrypoint_leads_in_one_pod(
    start_process: Start, zklock_hosts: str, zklock_client: Any, zklock_path: str, tmp_path: Path
) -> None:
    zklock_client.ensure_path(zklock_path)
    record = tmp_path / "record"
    path = f"{zklock_path}{container('elect')['args'][3]}"

    def words() -> list[list[str]]:
        return [line.split() for line in record.read_text().splitlines()]

    def begun(count: int) -> None:
        wait_for(
            lambda: record.exists() and [word for word, _ in words()].count("begin") >= count,
            3 * SOON,
            lambda: f"{count} terms: {words()}",
        )

    def leader() -> str:
        first = children(zklock_client, path)[0]
        data, _ = zklock_client.get(f"{path}/{first}")
        return str(data.decode().splitlines()[0])

    running = pods(start_process, zklock_hosts, zklock_path, record)
    begun(1)
    queued(zklock_client, path, 3)
    ended = running.pop(leader())
    ended.send_signal(signal.SIGTERM)  # what Kubernetes sends first
    assert ended.wait(pod("elect")["terminationGracePeriodSeconds"]) == 0
    begun(2)
    running.pop(leader()).kill()  # and what comes in the end
    begun(3)
    ((_, last),) = running.items()
    last.terminate()
    assert last.wait(SOON) == 0
    gone(zklock_client, path)
    tokens = [token for word, token in words() if word == "begin"]
    assert tokens == sorted(set(tokens))
    assert words() == [[word, token] for token in tokens for word in ("begin", "end")]
