"""All log records of zklock have the same fields, and none of them is a secret."""

from __future__ import annotations

import ast
import logging
import math
import re
import subprocess
import sys

import pytest

from tests.unit.sessions import PATH, TIMEOUT, World
from tests.unit.test_runbook import LEVELS, LOGS, ROOT, is_log_call, is_posted, name_of, trees
from zklock import LossReason
from zklock._ground.records import log_fields
from zklock.token import FencingToken

MAKERS = {"log_fields", "_fields"}
"""``_fields``: a method that returns ``log_fields(…)`` with what its object knows."""


def has_fields(call: ast.Call) -> bool:
    extras = (each.value for each in call.keywords if each.arg == "extra")
    return any(isinstance(each, ast.Call) and name_of(each.func) in MAKERS for each in extras)


def test_every_log_call_passes_the_fields() -> None:
    calls = [
        (place, node)
        for place, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and name_of(node.func) != "warn"  # what that posts has them
        and (is_log_call(node) or is_posted(node))
    ]
    assert len(calls) > 40
    assert [(place, it.lineno) for place, it in calls if not has_fields(it)] == []


@pytest.mark.parametrize(("place", "tree"), [pytest.param(*it, id=it[0]) for it in trees()])
def test_makers_and_loggers_are_what_their_names_say(place: str, tree: ast.Module) -> None:
    """So log calls and fields are known by them."""
    made = {
        id(each.value): {name_of(target) for target in each.targets}
        for each in ast.walk(tree)
        if isinstance(each, ast.Assign)
    }
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name="_fields"):
                (returned,) = [each for each in ast.walk(node) if isinstance(each, ast.Return)]
                assert ast.unparse(returned).startswith("return log_fields(")
            case ast.Call(args=[ast.Constant("kazoo.client")]):
                pass
            case ast.Call(func=called) if name_of(called) == "getLogger":
                assert made.get(id(node), {""}) <= LOGS, f"{place}:{node.lineno}"
            case ast.Attribute(value=ast.Name("logging"), attr=name):
                assert name not in LEVELS, f"{place}:{node.lineno}"


def test_the_page_names_all_fields() -> None:
    page = (ROOT / "docs" / "operating.md").read_text()
    section = page.split("### Fields of log records")[1].split("\n## ")[0]
    assert set(re.findall(r"^- `(\w+)`", section, re.MULTILINE)) == set(log_fields())


def test_fields_are_written_as_elsewhere() -> None:
    token = FencingToken(7, 33)
    assert log_fields(
        path="/a",
        token=token,
        session_id=0x1000A,
        identity="host-7",
        shard=3,
        resource="reports",
        reason=LossReason.SESSION_EXPIRED,
    ) == {
        "zklock_path": "/a",
        "zklock_token": str(token),
        "zklock_session": "0x1000a",
        "zklock_identity": "host-7",
        "zklock_shard": 3,
        "zklock_resource": "reports",
        "zklock_reason": "session_expired",
    }
    # kazoo's number is negative where the server's id is 128 or more.
    assert log_fields(session_id=-(2**60))["zklock_session"] == "0xf000000000000000"
    assert {*log_fields().values()} == {None}
    assert log_fields(session_id=0)["zklock_session"] is None  # a session that is not known


def test_a_loss_is_found_by_its_lock_token_and_session(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.connect()
    grant = world.acquire()
    world.latency = math.inf
    world.run(2 * TIMEOUT)
    (loss,) = [record for record in caplog.records if "lock lost at" in record.message]
    expected = log_fields(grant, path=PATH, reason=LossReason.LEASE_LAPSED)
    assert {name: getattr(loss, name) for name in expected} == expected
    assert expected["zklock_token"] == str(grant.token)
    assert expected["zklock_session"] == f"{grant.session_id:#x}"
    assert expected["zklock_identity"] == grant.identity


def test_every_record_can_be_formatted_by_all_fields_and_has_no_password(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.connect()
    world.acquire()
    world.latency = math.inf
    world.run(3 * TIMEOUT)
    formatter = logging.Formatter(" ".join(f"%({name})s" for name in log_fields()))
    assert world.client.client_id is not None
    _, password = world.client.client_id
    ours = [record for record in caplog.records if record.name == "zklock"]
    assert len(ours) > 1
    for record in ours:
        assert formatter.format(record)
        assert repr(password)[2:-1] not in str(vars(record))


def test_the_page_configures_logging_so_that_all_lines_appear() -> None:
    """After the import of zklock, and with a field that other libraries' records do not have."""
    page = (ROOT / "docs" / "operating.md").read_text()
    section = page.partition("### When the lines do not appear")[2].partition("\n## ")[0]
    (example,) = re.findall(r"```python\n(.*?)```", section, re.S)
    logs = (
        "logging.getLogger('other').warning('theirs')\n"
        "logging.getLogger('zklock').warning('ours', extra={'zklock_path': '/l'})\n"
    )
    program = f"import zklock._core.session\n{example}{logs}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == "WARNING other None theirs\nWARNING zklock /l ours\n"
