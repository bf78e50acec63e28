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
from tests.contract.support import SOON, kazoo_client
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


def wants_tls(places: Places) -> AbstractContextManager[Door]:
    return over_tls(places, "none")


def unknown_authority(places: Places) -> AbstractContextManager[Door]:
    return over_tls(places, "none", use_ssl=True)


def wants_a_certificate(places: Places) -> AbstractContextManager[Door]:
    return over_tls(places, "need", use_ssl=True, ca=str(places.authority.certificate))


@contextlib.contextmanager
def no_tls(places: Places) -> Iterator[Door]:
    ca = str(places.authority.certificate)
    with server() as plain:
        yield Door(plain.hosts, {"use_ssl": True, "ca": ca}, {"ZKLOCK_TLS_CA": ca})


@contextlib.contextmanager
def sasl(places: Places, **door: Any) -> Iterator[Door]:
    properties = login(places.folder) | {"zookeeper.sessionRequireClientSASLAuth": "true"}
    with server(config={"authProvider.1": SASL}, system_properties=properties) as strict:
        yield Door(strict.hosts, **door)


def wants_sasl(places: Places) -> AbstractContextManager[Door]:
    return sasl(places)


def another_scheme(places: Places) -> AbstractContextManager[Door]:
    options = {"auth_data": [("digest", f"{USER}:{PASSWORD}")]}
    return sasl(places, options=options, environ={"ZKLOCK_DIGEST": f"{USER}:{PASSWORD}"})


def wrong_password(places: Places) -> AbstractContextManager[Door]:
    return sasl(places, options={"sasl_options": DIGEST_MD5}, environ=GUESS)


@contextlib.contextmanager
def without_sasl(places: Places) -> Iterator[Door]:
    with server() as plain:
        yield Door(plain.hosts, {"sasl_options": DIGEST_MD5}, GUESS)


@contextlib.contextmanager
def enforces(scheme: str) -> Iterator[Door]:
    properties = {
        "zookeeper.enforce.auth.enabled": "true",
        "zookeeper.enforce.auth.schemes": scheme,
        "zookeeper.authProvider.x509": X509,
    }
    with server(system_properties=properties) as strict:
        yield Door(strict.hosts)


def wants_a_digest(places: Places) -> AbstractContextManager[Door]:
    return enforces("digest")


def wants_x509(places: Places) -> AbstractContextManager[Door]:
    return enforces("x509")


@contextlib.contextmanager
def crowded(**config: str) -> Iterator[Door]:
    with server(config=config) as full, kazoo_client(full.hosts):
        yield Door(full.hosts)


def many_of_one_address(places: Places) -> AbstractContextManager[Door]:
    return crowded(maxClientCnxns="1")


def many_of_one_address_with_netty(places: Places) -> AbstractContextManager[Door]:
    return crowded(maxClientCnxns="1", serverCnxnFactory=NETTY)


def many_clients(places: Places) -> AbstractContextManager[Door]:
    return crowded(maxCnxns="1")


@contextlib.contextmanager
def throttled(places: Places) -> Iterator[Door]:
    """A server that has let in as many sessions as it may for now."""
    tokens = {
        "zookeeper.connection_throttle_tokens": "1",
        "zookeeper.connection_throttle_fill_time": "600000",
    }
    with server(system_properties=tokens) as busy, kazoo_client(busy.hosts):
        yield Door(busy.hosts)


@contextlib.contextmanager
def short_frames(places: Places) -> Iterator[Door]:
    with server(system_properties={"jute.maxbuffer": "40"}) as narrow:
        yield Door(narrow.hosts)


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


def no_quorum(places: Places) -> AbstractContextManager[Door]:
    return left_alone("not currently serving")


def read_only(places: Places) -> AbstractContextManager[Door]:
    return left_alone("Mode: read-only", **{"readonlymode.enabled": "true"})


@contextlib.contextmanager
def stranger(places: Places) -> Iterator[Door]:
    """A service that greets its clients in text, as SSH does."""

    def greet() -> None:
        with contextlib.suppress(OSError):  # the listener is shut down
            while True:
                near = listener.accept()[0]
                near.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u2\r\n")
                greeted.append(near)

    greeted: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        greeting = threading.Thread(target=greet)
        greeting.start()
        try:
            yield Door(f"127.0.0.1:{listener.getsockname()[1]}")
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            greeting.join(SOON)
            for each in greeted:
                each.close()


FULL = "closes every connection at once: it has reached its maxClientCnxns"
CREDENTIALS = "ZooKeeper requires authentication"

WAYS: list[tuple[Callable[[Places], AbstractContextManager[Door]], type[Exception], str, str]] = [
    (wants_tls, zklock.NoAnswer, "requires TLS on this port", "use_ssl=True"),
    (unknown_authority, zklock.NoAnswer, "refused by TLS: CERTIFICATE_VERIFY", "ca= must name"),
    (wants_a_certificate, zklock.NoAnswer, "was refused by TLS: ", "certfile="),
    (no_tls, zklock.NoAnswer, "speaks no TLS on this port", "secureClientPort"),
    (wants_sasl, zklock.AccessDenied, CREDENTIALS, "pass sasl_options"),
    (another_scheme, zklock.AccessDenied, CREDENTIALS, "pass sasl_options"),
    (wrong_password, zklock.ClientClosed, "refused the client's credentials", "sasl_options"),
    (without_sasl, zklock.NoAnswer, "accepts the client, but answers no request", "SASL"),
    (wants_a_digest, zklock.AccessDenied, CREDENTIALS, "auth_data for digest"),
    (wants_x509, zklock.AccessDenied, CREDENTIALS, "certfile for x509"),
    (many_of_one_address, zklock.NoAnswer, FULL, "raise the limit"),
    (many_of_one_address_with_netty, zklock.NoAnswer, FULL, "raise the limit"),
    (many_clients, zklock.NoAnswer, FULL, "raise the limit"),
    (throttled, zklock.NoAnswer, "serves, but closed this client", "connection_throttle"),
    (short_frames, zklock.NoAnswer, "serves, but closed this client", "jute.maxbuffer"),
    (no_quorum, zklock.NoAnswer, "serves no client now", "start the other servers"),
    (read_only, zklock.NoAnswer, "and serves only reads", "start the other servers"),
    (stranger, zklock.NoAnswer, "does not answer like ZooKeeper", "correct the address"),
]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()


@pytest.mark.parametrize(
    ("way", "error", "cause", "advice"), WAYS, ids=[way[0].__name__ for way in WAYS]
)
def test_the_cause_is_named_everywhere(
    way: Callable[[Places], AbstractContextManager[Door]],
    error: type[Exception],
    cause: str,
    advice: str,
    authority: Authority,
    tmp_path: Path,
) -> None:
    async def connect() -> None:
        await aio.connect(door.hosts, start_timeout=START, **door.options)

    with way(Places(authority, tmp_path)) as door:
        with pytest.raises(error) as caught:
            zklock.connect(door.hosts, start_timeout=START, **door.options)
        with pytest.raises(error) as caught_too:
            asyncio.run(connect())
        texts = [str(caught.value), str(caught_too.value)]
        commands = Commands(door.hosts)
        commands.environ.update(door.environ, ZKLOCK_CONNECT_TIMEOUT=str(START))
        try:
            texts += [commands.run("ls")[2], commands.run("run", "/locks/a", "--", "true")[2]]
            status, out, errors = commands.run("doctor", "--json", "--admin-port=0")
        finally:
            commands.close()
    for text in texts:
        assert cause in text
        assert advice in text
        assert "Check the addresses" not in text
    assert (status, errors) == (2, "")
    assert cause in json.loads(out)["findings"][0]["what"]


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


def examine(hosts: str, *arguments: str) -> dict[str, list[dict[str, Any]]]:
    commands = Commands(hosts)
    try:
        _, out, errors = commands.run("doctor", "--json", "--admin-port=0", *arguments)
    finally:
        commands.close()
    assert errors == ""
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(out)["findings"]:
        found.setdefault(finding["about"], []).append(finding)
    return found


class TestDoctor:
    """What it says of servers that let it in."""

    @pytest.mark.parametrize(("tick", "shortest"), [(6000, 2000), (500, 30_000)])
    def test_no_tick_is_guessed(self, tick: int, shortest: int) -> None:
        options: dict[str, Any] = {"tick_time": tick, "min_session_timeout": shortest}
        word = {"4lw.commands.whitelist": "srvr"}
        with server(config=word, max_session_timeout=60_000, **options) as plain:
            (lease,) = examine(plain.hosts)["lease"]
        assert lease["level"] == "unknown"
        assert f"they grant {shortest / 1000:g} to 60 s" in lease["what"]

    def test_the_last_connection_that_maxclientcnxns_allows(self) -> None:
        with server(config={"maxClientCnxns": "2"}) as full, kazoo_client(full.hosts):
            (told,) = examine(full.hosts)["server"]
        assert FULL in told["what"]
        assert "raise the limit" in told["do"]
        assert "--hosts" not in told["do"]

    def test_few_connections_are_left(self) -> None:
        with server(config={"maxClientCnxns": "5"}) as near, contextlib.ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(kazoo_client(near.hosts))
            found = examine(near.hosts)
            (told,) = found["connections"]
            assert told["what"].startswith("4 of the 5 connections")
            stack.close()
            assert "connections" not in examine(near.hosts)

    @pytest.mark.parametrize("upgrading", [False, True])
    def test_local_sessions(self, upgrading: bool) -> None:
        config = {
            "localSessionsEnabled": "true",
            "localSessionsUpgradingEnabled": str(upgrading).lower(),
        }
        with Ensemble(3, backend=backend_or_skip("java"), config=config) as ensemble:
            found = examine(ensemble.hosts)
        (told,) = found["sessions" if upgrading else "refused"]
        assert told["level"] == ("warning" if upgrading else "problem")
        assert "localSessionsEnabled=false" in told["do"]
        assert not ({"sessions", "refused"} <= found.keys())

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
