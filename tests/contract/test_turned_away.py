"""Each way in which a server turns a client away is named by its cause, with what to do."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.server
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kazoo.security import make_digest_acl

import zklock
from tests.backends import backend_or_skip
from tests.contract.secure import NETTY, PASSWORD, SASL, USER, X509, Authority, login
from tests.contract.support import SOON, kazoo_client, serving
from tests.contract.test_cli import Commands
from zklock import aio
from zklock.testing import Ensemble, ZooKeeperServer, wait_for
from zklock.testing.ports import free_ports
from zklock.testing.status import four_letter

pytestmark = [
    pytest.mark.thorough("a real server for each way to refuse, which a client waits for"),
    # kazoo leaves a socket whose TLS handshake fails to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning"),
    pytest.mark.filterwarnings(
        "ignore:.*unclosed <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning"
    ),
]

START = 3.0
"""Seconds that a client tries to connect: several tries."""

DIGEST_MD5 = {"mechanism": "DIGEST-MD5", "username": USER, "password": "guess"}
GUESS = {"ZKLOCK_SASL_USER": USER, "ZKLOCK_SASL_PASSWORD": "guess"}


@dataclass
class Door:
    """Where to connect, and how: the options of ``connect()``, and the same for commands."""

    hosts: str
    options: dict[str, Any] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)


@dataclass
class Places:
    authority: Authority
    folder: Path


def server(**options: Any) -> ZooKeeperServer:
    return ZooKeeperServer(backend=backend_or_skip("java"), **options)


@contextlib.contextmanager
def over_tls(places: Places, wants: str, **client: Any) -> Iterator[Door]:
    """A server with a port for TLS alone."""
    (port,) = free_ports()
    config = {
        "serverCnxnFactory": NETTY,
        "secureClientPort": str(port),
        "ssl.keyStore.location": str(places.authority.certify("server")),
        "ssl.trustStore.location": str(places.authority.certificate),
        "ssl.clientAuth": wants,
    }
    with server(config=config):
        ca = client.get("ca")
        environ = {"ZKLOCK_TLS": "1"} if client else {}
        yield Door(f"127.0.0.1:{port}", client, environ | ({"ZKLOCK_TLS_CA": ca} if ca else {}))


def sasl(places: Places, **door: Any) -> AbstractContextManager[Door]:
    """A server for SASL alone."""
    properties = login(places.folder) | {"zookeeper.sessionRequireClientSASLAuth": "true"}
    return standing(config={"authProvider.1": SASL}, properties=properties, **door)


@contextlib.contextmanager
def standing(
    config: dict[str, str] | None = None,
    properties: dict[str, str] | None = None,
    crowded: bool = False,
    **door: Any,
) -> Iterator[Door]:
    """A server with these settings, and with one client already if it is crowded."""
    with contextlib.ExitStack() as stack:
        strict = server(config=config or {}, system_properties=properties or {})
        stack.enter_context(strict)
        if crowded:
            stack.enter_context(kazoo_client(strict.hosts))
        yield Door(strict.hosts, **door)


def enforces(scheme: str) -> AbstractContextManager[Door]:
    properties = {
        "zookeeper.enforce.auth.enabled": "true",
        "zookeeper.enforce.auth.schemes": scheme,
        "zookeeper.authProvider.x509": X509,
    }
    return standing(properties=properties)


def ca_of(places: Places) -> str:
    return str(places.authority.certificate)


@contextlib.contextmanager
def left_alone(said: str, **properties: str) -> Iterator[Door]:
    """One server of three, when it has noticed that it is alone."""

    def notices() -> bool:
        with contextlib.suppress(OSError):
            return said in four_letter(first.host, first.port, "srvr")
        return False

    backend = backend_or_skip("java")
    with Ensemble(3, backend=backend, system_properties=properties) as ensemble:
        first, *others = ensemble.servers
        for each in others:
            each.stop()
        wait_for(notices, SOON, said)
        yield Door(first.hosts)


@contextlib.contextmanager
def stranger() -> Iterator[Door]:
    """A service that greets its clients in text, as SSH does."""

    def greet(near: socket.socket) -> None:
        with near, contextlib.suppress(OSError):
            near.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u2\r\n")
            while near.recv(4096):
                pass

    with serving(greet) as hosts:
        yield Door(hosts)


NO_ANSWER, DENIED = zklock.NoAnswer, zklock.AccessDenied
FULL = "closes every connection at once: it has reached its maxClientCnxns"
CREDENTIALS = "ZooKeeper requires authentication"
CLOSED = "serves, but closed this client"
START_OTHERS, RAISE = "start the other servers", "raise the limit"
ONE_CLIENT = {"maxClientCnxns": "1"}
DIGEST = f"{USER}:{PASSWORD}"
THROTTLED = {
    "zookeeper.connection_throttle_tokens": "1",
    "zookeeper.connection_throttle_fill_time": "600000",
}
"""It lets in as many sessions as there are tokens, and fills them up again in ten minutes."""

DOORS: dict[str, Callable[[Places], AbstractContextManager[Door]]] = {
    "wants TLS": lambda at: over_tls(at, "none"),
    "unknown authority": lambda at: over_tls(at, "none", use_ssl=True),
    "wants a certificate": lambda at: over_tls(at, "need", use_ssl=True, ca=ca_of(at)),
    "no TLS": lambda at: standing(
        options={"use_ssl": True, "ca": ca_of(at)}, environ={"ZKLOCK_TLS_CA": ca_of(at)}
    ),
    "wants SASL": sasl,
    "another scheme": lambda at: sasl(
        at, options={"auth_data": [("digest", DIGEST)]}, environ={"ZKLOCK_DIGEST": DIGEST}
    ),
    "wrong password": lambda at: sasl(at, options={"sasl_options": DIGEST_MD5}, environ=GUESS),
    "without SASL": lambda _: standing(options={"sasl_options": DIGEST_MD5}, environ=GUESS),
    "wants a digest": lambda _: enforces("digest"),
    "wants x509": lambda _: enforces("x509"),
    "many of one address": lambda _: standing(ONE_CLIENT, crowded=True),
    "many of one address with Netty": lambda _: standing(
        ONE_CLIENT | {"serverCnxnFactory": NETTY}, crowded=True
    ),
    "many clients": lambda _: standing({"maxCnxns": "1"}, crowded=True),
    "throttled": lambda _: standing(properties=THROTTLED, crowded=True),
    "short frames": lambda _: standing(properties={"jute.maxbuffer": "40"}),
    "no quorum": lambda _: left_alone("not currently serving"),
    "read-only": lambda _: left_alone("Mode: read-only", **{"readonlymode.enabled": "true"}),
    "a stranger": lambda _: stranger(),
}
SAID: dict[str, tuple[type[Exception], str, str]] = {
    "wants TLS": (NO_ANSWER, "requires TLS on this port", "use_ssl=True"),
    "unknown authority": (NO_ANSWER, "refused by TLS: CERTIFICATE_VERIFY", "ca= must name"),
    "wants a certificate": (NO_ANSWER, "was refused by TLS: ", "certfile="),
    "no TLS": (NO_ANSWER, "speaks no TLS on this port", "secureClientPort"),
    "wants SASL": (DENIED, CREDENTIALS, "pass sasl_options"),
    "another scheme": (DENIED, CREDENTIALS, "pass sasl_options"),
    "wrong password": (zklock.ClientClosed, "refused the client's credentials", "sasl_options"),
    "without SASL": (NO_ANSWER, "accepts the client, but answers no request", "SASL"),
    "wants a digest": (DENIED, CREDENTIALS, "auth_data for digest"),
    "wants x509": (DENIED, CREDENTIALS, "certfile for x509"),
    "many of one address": (NO_ANSWER, FULL, RAISE),
    "many of one address with Netty": (NO_ANSWER, FULL, RAISE),
    "many clients": (NO_ANSWER, FULL, RAISE),
    "throttled": (NO_ANSWER, CLOSED, "connection_throttle"),
    "short frames": (NO_ANSWER, CLOSED, "jute.maxbuffer"),
    "no quorum": (NO_ANSWER, "serves no client now", START_OTHERS),
    "read-only": (NO_ANSWER, "and serves only reads", START_OTHERS),
    "a stranger": (NO_ANSWER, "does not answer like ZooKeeper", "correct the address"),
}
"""The error of each, its cause, and what to do."""


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()


@pytest.mark.parametrize("name", DOORS)
def test_the_cause_is_named_everywhere(name: str, authority: Authority, tmp_path: Path) -> None:
    error, cause, advice = SAID[name]

    async def connect() -> None:
        await aio.connect(door.hosts, start_timeout=START, **door.options)

    with DOORS[name](Places(authority, tmp_path)) as door:
        with pytest.raises(error) as caught:
            zklock.connect(door.hosts, start_timeout=START, **door.options)
        with pytest.raises(error) as caught_too:
            asyncio.run(connect())
        texts = [str(caught.value), str(caught_too.value)]
        environ = {**door.environ, "ZKLOCK_CONNECT_TIMEOUT": str(START)}
        with contextlib.closing(Commands(door.hosts)) as commands:
            commands.environ.update(environ)
            texts += [commands.run("ls")[2], commands.run("run", "/locks/a", "--", "true")[2]]
        status, findings = doctor(door.hosts, **environ)
    for text in texts:
        assert cause in text
        assert advice in text
        assert "Check the addresses" not in text
    assert status == 2
    assert cause in findings[0]["what"]


def test_a_scheme_that_no_server_knows_is_refused() -> None:
    with server() as plain, pytest.raises(zklock.ClientClosed, match="credentials"):
        zklock.connect(plain.hosts, start_timeout=SOON, auth_data=[("none", "me:secret")])


def test_a_service_that_only_listens_is_silent() -> None:
    handler = http.server.SimpleHTTPRequestHandler
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        serving = threading.Thread(target=web.serve_forever)
        serving.start()
        try:
            with pytest.raises(zklock.NoAnswer, match="Check the addresses"):
                zklock.connect(f"127.0.0.1:{web.server_port}", start_timeout=START)
        finally:
            web.shutdown()
            serving.join(SOON)


def doctor(hosts: str, *arguments: str, **environ: str) -> tuple[int, list[dict[str, Any]]]:
    """Return its status and what it finds."""
    with contextlib.closing(Commands(hosts)) as commands:
        commands.environ.update(environ)
        status, out, errors = commands.run("doctor", "--json", "--admin-port=0", *arguments)
    assert errors == ""
    return status, json.loads(out)["findings"]


def examine(hosts: str, *arguments: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in doctor(hosts, *arguments)[1]:
        found.setdefault(finding["about"], []).append(finding)
    return found


class TestDoctor:
    """What it says of servers that let it in."""

    def test_the_last_connection_that_maxclientcnxns_allows(self) -> None:
        with server(config={"maxClientCnxns": "2"}) as full, kazoo_client(full.hosts):
            (told,) = examine(full.hosts)["server"]
        assert FULL in told["what"]
        assert "raise the limit" in told["do"]
        assert "--hosts" not in told["do"]

    def test_local_sessions(self) -> None:
        config = {"localSessionsEnabled": "true", "localSessionsUpgradingEnabled": "false"}
        with Ensemble(3, backend=backend_or_skip("java"), config=config) as ensemble:
            (told,) = examine(ensemble.hosts)["refused"]
        assert told["level"] == "problem"
        assert "localSessionsEnabled=false" in told["do"]

    def test_a_quota(self) -> None:
        with (
            server(system_properties={"zookeeper.enforceQuota": "true"}) as strict,
            kazoo_client(strict.hosts) as client,
        ):
            limits = b"count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=1"
            client.create("/locks")
            client.create("/zookeeper/quota/locks")
            client.create("/zookeeper/quota/locks/zookeeper_limits", limits)
            client.create("/zookeeper/quota/locks/zookeeper_stats", b"count=1,bytes=0")
            (told,) = examine(strict.hosts, "/locks")["refused"]
            assert "quota is used up" in told["do"]
            client.delete("/zookeeper/quota/locks", recursive=True)

    def test_a_chroot_that_does_not_exist_is_not_written(self) -> None:
        with server() as plain:
            found = examine(f"{plain.hosts}/no/such")
        assert found["chroot"][0]["level"] == "problem"
        assert "write" not in found["speed"][0]["what"]

    def test_a_parent_whose_acl_forbids_it(self) -> None:
        with server() as plain, kazoo_client(plain.hosts) as client:
            client.add_auth("digest", "owner:secret")
            client.create("/locks", acl=[make_digest_acl("owner", "secret", all=True)])
            found = examine(plain.hosts, "/locks/a")
            assert "no create" in found["acl"][0]["what"]
            client.delete("/locks")
