"""The dashboard and the alerts ask for what a program and the exporter really export."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.contract.support import ROOT, kazoo_client, program
from zklock.cli.exporter import metrics
from zklock.cli.view.model import Look

FOLDER = ROOT / "docs" / "telemetry"
RULES = FOLDER / "rules.yml"
DASHBOARD = FOLDER / "dashboard.json"
PAGE = ROOT / "docs" / "telemetry.md"
OURS = re.compile(r"zklock_\w+")

SCRAPED = {"instance", "job"}
"""Labels that Prometheus adds."""

Exported = Mapping[str, set[str]]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def expressions() -> Iterator[Any]:
    for rule in rules():
        yield pytest.param(rule["expr"], id=rule["alert"])
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            name = f"{panel['title']} {target['refId']}"
            yield pytest.param(target["expr"].replace("$__rate_interval", "5m"), id=name)


def of_exporter() -> Exported:
    """Return the names and labels of the exporter's metrics."""
    look = Look(connected=True)
    return {it.name: set(it._labelnames) for it in metrics(look)}


@pytest.fixture(scope="module")
def of_program(zklock_hosts: str) -> Exported:
    """The names and labels of what a program exports that has seen all kinds of events."""
    path = f"/observed-{uuid.uuid4().hex}"
    done = program("-m", "tests.contract.observed", zklock_hosts, path, timeout=180)
    with kazoo_client(zklock_hosts) as client:
        client.delete(path, recursive=True)
    found: dict[str, set[str]] = defaultdict(set)
    for family in text_string_to_metric_families(done.stdout):
        for sample in family.samples:
            found[sample.name] |= set(sample.labels)
    return found


@cache
def parsed(text: str) -> Any:
    return promql.parse(text)


def selectors(node: Any) -> Iterator[Any]:
    """Return the selectors of an expression, with those below others."""
    if isinstance(node, promql.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "vs", "param"):
        below = getattr(node, name, None)
        if below is not None and not isinstance(below, str):
            yield from selectors(below)
    for argument in getattr(node, "args", None) or ():
        yield from selectors(argument)


def grouped(text: str) -> set[str]:
    """Return the labels that an expression groups by, but for those of a histogram's buckets."""
    return {
        label.strip()
        for labels in re.findall(r"\bby\s*\(([^)]*)\)", text)
        for label in labels.split(",")
    }


@pytest.mark.parametrize("text", list(expressions()))
def test_what_an_expression_asks_for_is_exported(text: str, of_program: Exported) -> None:
    exported = {**of_exporter(), **of_program}
    found = list(selectors(parsed(text)))
    assert {each.name for each in found} == set(OURS.findall(text))
    labels = set()
    for each in found:
        assert each.name in exported
        labels |= exported[each.name]
        for matcher in each.matchers.matchers:
            assert matcher.name in exported[each.name] | SCRAPED
    assert grouped(text) <= labels | SCRAPED


def test_what_texts_fill_in_is_there() -> None:
    for rule in rules():
        texts = " ".join(rule["annotations"].values())
        for label in re.findall(r"\$labels\.(\w+)", texts):
            by = grouped(rule["expr"])
            assert not by or label in by, f"{rule['alert']} groups {label} away"


def test_every_metric_of_a_program_is_on_the_page_and_on_the_dashboard(
    of_program: Exported,
) -> None:
    page = set(OURS.findall(PAGE.read_text()))
    drawn = set(OURS.findall(DASHBOARD.read_text()))
    names = {
        re.sub("_(bucket|count|sum)$", "", name)
        for name in of_program
        if not name.endswith("_created")
    }
    assert names == {name for name in page if name.startswith("zklock_client_")} - {
        "zklock_client_"
    }
    assert names - {re.sub("_(bucket|count|sum)$", "", name) for name in drawn} == {
        "zklock_client_heartbeats_total"
    }


def test_the_dashboard_can_be_imported() -> None:
    board = dashboard()
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    places = {
        (x, y)
        for panel in board["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    }
    assert max(x for x, _ in places) < 24
    assert len(places) == sum(it["gridPos"]["w"] * it["gridPos"]["h"] for it in board["panels"])
    known = {it["name"] for it in board["templating"]["list"]}
    asked = set(re.findall(r"\$\{?(\w+)", DASHBOARD.read_text()))
    assert asked <= known | {"__rate_interval", "__all"}


def test_every_alert_is_on_the_page() -> None:
    told = set(re.findall(r"`(Zklock\w+)`", PAGE.read_text()))
    assert told == {rule["alert"] for rule in rules()}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")
@pytest.mark.parametrize("what", ["check rules rules.yml", "test rules rules.test.yml"])
def test_promtool_finds_no_fault(what: str) -> None:
    done = subprocess.run(
        ["promtool", *what.split()],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
