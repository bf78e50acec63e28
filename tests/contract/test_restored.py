"""ZooKeeper goes back to older data: under running clients, or while it is down."""

from __future__ import annotations

import logging
import os
import struct
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, SessionExpiredError

import zklock
from tests.contract.refusing import Refusing
from tests.contract.support import SOON, Losses, boottime, granted
from tests.modes import strict
from zklock.testing import ZooKeeperServer, wait_for
from zklock.testing.java import Installation, JavaBackend
from zklock.testing.ports import free_ports

SHORT = 1.0
JARS_VARIABLE = "ZKLOCK_RESTORING_JARS"
"""A folder of `.ci/get-zookeeper 3.9.5`; Debian's libjetty9-java must be installed."""

JETTY = ("http", "io", "security", "server", "servlet", "util", "util-ajax")
GIVEN_UP = ConnectionLoss, SessionExpiredError


class Rewinding(Refusing):
    """A relay whose answers name transaction 1 once it is ``rewound``."""

    rewound = False
    _PING = -2

    def _reply(self, frame: bytes, refused: set[int]) -> bytes:
        xid, zxid, error = struct.unpack_from(">iqi", frame)
        if self.rewound and (xid > 0 or xid == self._PING) and zxid > 0:
            return struct.pack(">iqi", xid, 1, error) + frame[16:]
        return frame


@pytest.fixture
def relay(zklock_server: ZooKeeperServer) -> Iterator[Rewinding]:
    relay = Rewinding(zklock_server)
    with relay:
        yield relay


def test_an_older_answer_ends_the_lease_before_it_is_passed_on(
    relay: Rewinding, zklock_connect: Callable[..., Any], zklock_path: str
) -> None:
    client, losses = zklock_connect(relay.hosts, timeout=30.0), Losses()
    client.ensure_path(zklock_path)
    grant = granted(zklock.Lock(client, zklock_path, on_lost=losses))
    relay.rewound = True
    with pytest.raises(GIVEN_UP):
        client.exists(zklock_path)
    assert not grant.held
    assert losses.one().reason is zklock.LossReason.SESSION_EXPIRED


@pytest.mark.slow("a session of 1 s is waited for")
def test_nothing_is_granted_on_a_session_that_has_seen_more(
    relay: Rewinding, zklock_connect: Callable[..., Any], zklock_path: str
) -> None:
    client = zklock_connect(relay.hosts, timeout=SHORT)
    client.ensure_path(zklock_path)
    session, timeout = client.client_id[0], client.handler.session_timeout
    relay.rewound, since = True, boottime()
    grant = granted(zklock.Lock(client, zklock_path))
    assert grant.session_id == client.client_id[0] != session
    assert boottime() >= since + timeout  # other holders have had the time to notice it


@pytest.mark.slow("a session of 1 s is waited for, and two servers")
def test_servers_with_less_data_are_used_again(caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as stack:
        full, empty = (stack.enter_context(ZooKeeperServer()) for _ in range(2))
        client = stack.enter_context(zklock.connect(full.hosts, SHORT, start_timeout=SOON))
        lock = zklock.Lock(client, "/lock")
        for _ in range(10):
            before = granted(lock)
            before.release()
        client.set_hosts(empty.hosts)  # in the place of the other one
        full.stop()
        with caplog.at_level(logging.WARNING, logger="zklock"):
            after = granted(lock)
        assert after.session_id != before.session_id
        assert after.token < before.token
    assert "servers have refused this client" in caplog.text


class Restoring:
    """A server of 3.9.5 that takes backups and restores them."""

    def __init__(self, jars: str) -> None:
        jetty = [f"/usr/share/java/jetty9-{each}.jar" for each in JETTY]
        found = Installation.find({**os.environ, "ZKLOCK_ZOOKEEPER_JARS": jars})
        installation = Installation(found.java, (*found.classpath, *jetty), found.origin)
        self._admin = free_ports()[0]
        self.server = ZooKeeperServer(
            backend=JavaBackend(installation),
            config={
                "admin.enableServer": "true",
                "admin.serverAddress": "127.0.0.1",
                "admin.serverPort": f"{self._admin}",
            },
            system_properties={
                "zookeeper.admin.rateLimiterIntervalInMS": "0",
                "zookeeper.admin.restore.enabled": "true",
                "zookeeper.admin.snapshot.enabled": "true",
                "zookeeper.serializeLastProcessedZxid.enabled": "true",
            },
        )

    def ask(self, command: str, data: bytes | None = None) -> bytes:
        headers = {"Authorization": "digest root:root", "Content-Type": "application/octet-stream"}
        url = f"http://127.0.0.1:{self._admin}/commands/{command}"
        request = urllib.request.Request(url, data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=SOON) as answer:
            read: bytes = answer.read()
            return read

    def back_up(self) -> bytes:
        return self.ask("snapshot?streaming=true")

    def restore(self, backup: bytes) -> None:
        assert b'"error" : null' in self.ask("restore", backup)


@pytest.fixture
def restoring() -> Iterator[Restoring]:
    jars = os.environ.get(JARS_VARIABLE)
    if not jars:
        # No failure in strict mode: only a nightly run fetches so much.
        leave = pytest.xfail if strict() else pytest.skip
        leave(f"set {JARS_VARIABLE} to a folder that .ci/get-zookeeper 3.9.5 has filled")
    if not Path("/usr/share/java/jetty9-server.jar").exists():
        pytest.skip("no Jetty: apt-get install libjetty9-java")
    restoring = Restoring(jars)
    with restoring.server:
        yield restoring


@pytest.mark.thorough("it needs ZooKeeper 3.9.5, and Jetty")
def test_a_backup_that_is_restored_is_noticed_by_the_first_answer(restoring: Restoring) -> None:
    with zklock.connect(restoring.server.hosts, 4.0) as client:
        client.ensure_path("/lock")
        backup = restoring.back_up()
        client.set("/lock", b"later")
        session = client.client_id[0]
        restoring.restore(backup)
        with pytest.raises(GIVEN_UP):
            client.exists("/lock")
        assert granted(zklock.Lock(client, "/lock")).session_id != session


@pytest.mark.thorough("it needs ZooKeeper 3.9.5, and Jetty")
def test_a_backup_that_is_restored_ends_what_is_held_and_gives_numbers_again(
    restoring: Restoring,
) -> None:
    with zklock.connect(restoring.server.hosts, 4.0) as client:
        client.ensure_path("/lock")
        backup = restoring.back_up()
        losses = Losses()
        lock = zklock.Lock(client, "/lock", on_lost=losses)
        for _ in range(10):
            granted(lock).release()
        grant = granted(lock)
        restoring.restore(backup)
        # An answer is older than one before, or the next proof finds the holder's node missing.
        wait_for(lambda: not grant.held, SOON, "the loss")
        found = zklock.LossReason.NODE_DELETED, zklock.LossReason.SESSION_EXPIRED
        assert losses.one().reason in found
        again = granted(lock)
        assert again.token.epoch == grant.token.epoch
        assert again.token < grant.token

        # So the lock's path is deleted and made anew: its epoch is above all others.
        again.release()
        client.delete("/lock", recursive=True)
        client.ensure_path("/lock")
        assert granted(lock).token > grant.token
