"""What calls for fenced work say of a client, or a grant, that they cannot use."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from zklock.contrib.httpx import AsyncFencedTransport, FencedTransport
from zklock.contrib.requests import FencedAdapter
from zklock.fencing import ZooKeeperGuard, verify_owner
from zklock.token import FencingToken

USES_THE_PARENTS = """
import os, signal
import zklock
from zklock.fencing import ZooKeeperGuard, verify_owner
from zklock.testing import embedded

def refused(call):
    try:
        call()
    except zklock.ForkedClient:
        return True

with embedded() as server, zklock.connect(server.hosts) as client:
    guard = ZooKeeperGuard(client, "/mark")
    guard.create()
    with zklock.Lock(client, "/lock") as grant:
        child = os.fork()
        if child == 0:
            signal.alarm(5)
            calls = (
                lambda: guard.claim(grant.token),
                lambda: verify_owner(client, "/lock", grant),
            )
            os._exit(0 if all(map(refused, calls)) else 1)
        status = os.waitpid(child, 0)[1]
assert status == 0, status
"""


def test_a_forked_child_with_its_parents_client_is_told_so_at_once() -> None:
    command = [sys.executable, "-c", USES_THE_PARENTS]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr


def test_what_is_no_client_is_told_at_the_call() -> None:
    with pytest.raises(TypeError, match="pass a started KazooClient"):
        verify_owner("host:2181", "/lock", FencingToken(1, 1))
    with pytest.raises(TypeError, match="pass a started KazooClient"):
        ZooKeeperGuard("host:2181", "/mark")


@pytest.mark.parametrize("make", [FencedAdapter, FencedTransport, AsyncFencedTransport])
def test_what_is_no_grant_is_told_at_the_call(make: Any) -> None:
    with pytest.raises(TypeError, match=r"^grant must be that of one lock, not NoneType$"):
        make(None)
