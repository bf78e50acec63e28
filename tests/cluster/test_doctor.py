"""``zklock doctor`` and an ensemble, of which it is told one server or all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.test_cli import Commands
from zklock.testing import Ensemble

pytestmark = [pytest.mark.cluster, pytest.mark.slow("three servers are started")]


def examine(hosts: str) -> dict[str, list[dict[str, Any]]]:
    """Return the findings on all that is there, by what they are about."""
    commands = Commands(hosts)
    try:
        _, out, errors = commands.run("doctor", "--json", "--admin-port", "0")
    finally:
        commands.close()
    assert errors == ""
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(out)["findings"]:
        found.setdefault(finding["about"], []).append(finding)
    return found


def test_all_servers_of_an_ensemble(zklock_ensemble: Ensemble) -> None:
    found = examine(zklock_ensemble.hosts)
    modes = sorted(one["what"].split(": ")[1].split(",")[0] for one in found["server"])
    assert modes == ["follower", "follower", "leader"]
    assert "ensemble" not in found
    assert "from its configuration" in found["lease"][0]["what"]
    assert "numbers" not in found, "nothing was used up"


def test_one_server_of_an_ensemble_is_not_taken_for_all(zklock_ensemble: Ensemble) -> None:
    found = examine(zklock_ensemble.hosts.split(",")[0])
    (one,) = found["ensemble"]
    assert one["level"] == "note"
    assert one["what"].startswith(
        "the ensemble has 3 voters, but --hosts names only 1 of its servers"
    )
