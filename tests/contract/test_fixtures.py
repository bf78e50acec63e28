"""The fixtures that users get, on a real server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from zklock.testing import Ensemble, FaultProxy, ServerError, expire_session

pytest_plugins = ["pytester"]

DEADLINE = 60.0
ENSEMBLES = pytest.mark.thorough("ensembles: several servers for each test")


@pytest.fixture
def on_this_server(
    pytester: pytest.Pytester, zklock_hosts: str, monkeypatch: pytest.MonkeyPatch
) -> pytest.Pytester:
    """A project whose tests use the server of this test."""
    monkeypatch.setenv("ZKLOCK_TEST_HOSTS", zklock_hosts)
    monkeypatch.delenv("ZKLOCK_TEST_BACKEND", raising=False)
    return pytester


def lost(client: Any) -> threading.Event:
    event = threading.Event()
    client.add_listener(lambda state: event.set() if state == "LOST" else None)
    return event


def test_expire_session_ends_it_for_server_and_client(
    zklock_client: Any, zklock_connect: Callable[..., Any], zklock_path: str
) -> None:
    zklock_client.create(zklock_path, ephemeral=True)
    session = zklock_client.client_id[0]
    told = lost(zklock_client)
    assert expire_session(zklock_client) == session
    assert zklock_connect().exists(zklock_path) is None
    assert told.wait(DEADLINE)


def test_a_session_expires_once(zklock_client: Any, zklock_hosts: str) -> None:
    session = zklock_client.client_id
    expire_session(session, zklock_hosts)
    with pytest.raises(ServerError, match="knows no session"):
        expire_session(session, zklock_hosts)


def test_expire_session_through_a_cut_proxy(
    zklock_proxy: FaultProxy,
    zklock_connect: Callable[..., Any],
    zklock_expire_session: Callable[[Any], int],
    zklock_client: Any,
    zklock_path: str,
) -> None:
    client = zklock_connect(zklock_proxy.hosts)
    client.create(zklock_path, ephemeral=True)
    session = client.client_id
    zklock_proxy.cut()
    zklock_expire_session(session)
    assert zklock_client.exists(zklock_path) is None
    told = lost(client)
    zklock_proxy.restore()
    assert told.wait(DEADLINE)


def test_an_unstarted_client_has_no_session_to_expire() -> None:
    with pytest.raises(ServerError, match="not connected"):
        expire_session(type("Unstarted", (), {"client_id": None, "hosts": []})())
    with pytest.raises(ValueError, match="needs hosts"):
        expire_session((1, bytes(16)))


PATHS = """
import pytest, zklock
seen = []
@pytest.mark.parametrize("x", ["a/b", "ö ", "c" * 200])
def test_it(zklock_path, zklock_client, zklock_server, zklock_proxy, x):
    assert zklock_path not in seen
    seen.append(zklock_path)
    assert zklock_client.exists(zklock_path) is None
    zklock_client.create(zklock_path + "/deep/er", makepath=True)
    assert zklock_server.backend == "hosts"
"""
PROTECTED = """
import zklock
from kazoo.security import CREATOR_ALL_ACL, make_digest_acl
def test_it(zklock_connect, zklock_path):
    mine = zklock_connect(auth_data=[("digest", "me:secret")])
    yours = zklock_connect(default_acl=CREATOR_ALL_ACL)
    yours.add_auth("digest", "you:secret")
    both = [make_digest_acl(name, "secret", all=True) for name in ("me", "you")]
    mine.create(zklock_path, acl=both)
    mine.create(zklock_path + "/mine", acl=CREATOR_ALL_ACL)
    with zklock.Lock(mine, zklock_path + "/mine"):
        pass
    with zklock.Lock(yours, zklock_path + "/yours"):
        pass
"""
STOPPED = """
made = []
def test_it(zklock_client, zklock_connect, zklock_hosts):
    made[:] = [zklock_client, zklock_connect(), zklock_connect(timeout=6.0)]
    assert len({client.client_id[0] for client in made}) == 3
def test_stopped():
    assert len(made) == 3
    assert not any(client.connected for client in made)
"""


@pytest.mark.parametrize(("tests", "count"), [(PATHS, 3), (PROTECTED, 1), (STOPPED, 2)])
def test_paths_are_unique_and_cleaned_by_who_may_and_clients_are_stopped(
    on_this_server: pytest.Pytester, zklock_client: Any, tests: str, count: int
) -> None:
    on_this_server.makepyfile(tests)
    on_this_server.runpytest("--zklock-strict").assert_outcomes(passed=count)
    assert [n for n in zklock_client.get_children("/") if n.startswith("zklock-test-test-it")] == []


@ENSEMBLES
@pytest.mark.cluster
def test_the_ensemble_is_mended_after_a_test(zklock_ensemble: Ensemble) -> None:
    leader = zklock_ensemble.leader()
    first, second = zklock_ensemble.followers()
    zklock_ensemble.cut_from_peers(leader)
    first.kill()
    second.pause()


@ENSEMBLES
@pytest.mark.cluster
def test_the_ensemble_has_been_mended(zklock_ensemble: Ensemble) -> None:
    assert zklock_ensemble.leader().status().mode == "leader"
    assert len(zklock_ensemble.followers()) == 2
