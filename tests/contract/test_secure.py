"""Locks over TLS and SASL, on a real server that is set up for them."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kazoo.security import make_acl, make_digest_acl

import zklock
from tests.backends import backend_or_skip
from tests.contract.support import SOON, Losses, children, granted, kazoo_client, queued, run
from zklock import aio
from zklock.testing import FaultProxy, ZooKeeperServer

Connect = Callable[..., Any]

# kazoo leaves a socket whose TLS handshake fails to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning"),
    pytest.mark.filterwarnings(
        "ignore:.*unclosed <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning"
    ),
]

# Certificates are files that the server reads, so it must be a process beside this one.
SASL = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
X509 = "org.apache.zookeeper.server.auth.X509AuthenticationProvider"
NETTY = "org.apache.zookeeper.server.NettyServerCnxnFactory"
JAAS = """\
Server {
  org.apache.zookeeper.server.auth.DigestLoginModule required user_alice="secret";
};
"""


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a folder of its own, by the openssl command."""

    folder: Path

    def __post_init__(self) -> None:
        self.openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", "2", "-subj", "/CN=authority"),
            *("-keyout", "ca.key", "-out", "ca.pem"),
        )

    def certify(self, name: str) -> Path:
        """Return a file with a private key and a certificate for loopback."""
        self.openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr"),
        )
        extensions = self.folder / "extensions"
        extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        self.openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-days", "2", "-extfile", "extensions", "-out", f"{name}.crt"),
        )
        both = self.folder / f"{name}.pem"
        parts = [(self.folder / f"{name}.{part}").read_text() for part in ("key", "crt")]
        both.write_text("".join(parts))
        return both

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.pem"

    def openssl(self, *arguments: str) -> None:
        done = subprocess.run(
            ["openssl", *arguments], cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def certificate(authority: Authority) -> dict[str, str]:
    both = str(authority.certify("client"))
    return {"certfile": both, "keyfile": both}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ZooKeeperServer]:
    """A server that takes TLS and plain connections on one port, and SASL on both."""
    backend = backend_or_skip("java")
    jaas = tmp_path_factory.mktemp("sasl") / "jaas.conf"
    jaas.write_text(JAAS)
    with ZooKeeperServer(
        backend=backend,
        config={
            "serverCnxnFactory": NETTY,
            "client.portUnification": "true",
            "ssl.keyStore.location": str(authority.certify("server")),
            "ssl.trustStore.location": str(authority.certificate),
            "ssl.clientAuth": "want",
            "authProvider.1": SASL,
            "authProvider.2": X509,
        },
        system_properties={"java.security.auth.login.config": str(jaas)},
    ) as started:
        yield started


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture
def onlooker(server: ZooKeeperServer) -> Iterator[Any]:
    with kazoo_client(server.hosts) as client:
        yield client


@pytest.fixture
def path(onlooker: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"/{abs(hash(request.node.nodeid)):x}"
    onlooker.create(name)
    yield name
    onlooker.delete(name, recursive=True)


@pytest.fixture(params=["TLS", "mutual TLS", "SASL", "SASL over TLS", "digest"])
def secure(request: pytest.FixtureRequest, authority: Authority) -> dict[str, Any]:
    """What ``connect`` is told, one for each way to be safe."""
    tls = {"use_ssl": True, "ca": str(authority.certificate)}
    sasl = {"sasl_options": {"mechanism": "DIGEST-MD5", "username": "alice", "password": "secret"}}
    options: dict[str, dict[str, Any]] = {
        "TLS": tls,
        "mutual TLS": tls
        | {
            **certificate(authority),
            "default_acl": [make_acl("x509", "CN=client", all=True)],
        },
        "SASL": sasl | {"default_acl": [make_acl("sasl", "alice", all=True)]},
        "SASL over TLS": sasl | tls | {"default_acl": [make_acl("sasl", "alice", all=True)]},
        "digest": {
            "auth_data": [("digest", "alice:secret")],
            "default_acl": [make_digest_acl("alice", "secret", all=True)],
        },
    }
    return options[request.param]


ONE_OF_EACH = pytest.mark.parametrize(
    "secure", ["TLS", "mutual TLS", "SASL", "digest"], indirect=True
)


class TestSecure:
    def test_queueing(
        self, server: ZooKeeperServer, secure: dict[str, Any], zklock_connect: Connect, path: str
    ) -> None:
        one, two = (zklock_connect(server.hosts, **secure) for _ in range(2))
        assert one.handler.session_timeout == 4.0
        assert zklock_connect(server.hosts, timeout=3.0, **secure).handler.session_timeout == 3.0
        first, second = zklock.Lock(one, path), zklock.Lock(two, path)
        for _ in range(20):
            with first as grant:
                assert grant.held
        with first as grant:
            grant.verify()
            waiting = run(granted, second)
            queued(one, path, 2)
            assert len(second.contenders()) == 2
            assert second.holder() == first.contenders()[0]
        waiting.result(SOON).release()
        assert children(one, path) == []

    def test_large_frames(
        self, server: ZooKeeperServer, secure: dict[str, Any], zklock_connect: Connect, path: str
    ) -> None:
        client = zklock_connect(server.hosts, **secure)
        data = bytes(range(256)) * 3900
        losses = Losses()
        with zklock.Lock(client, path, on_lost=losses) as grant:
            client.create(f"{path}/large", data)
            for _ in range(10):
                assert client.get(f"{path}/large")[0] == data
                assert grant.remaining() > 0
            grant.verify()
        assert not losses.losses
        client.delete(f"{path}/large")

    @ONE_OF_EACH
    def test_a_dropped_connection_is_made_again(
        self, server: ZooKeeperServer, secure: dict[str, Any], zklock_connect: Connect, path: str
    ) -> None:
        with ExitStack() as stack:
            proxies = [stack.enter_context(FaultProxy(server)) for _ in range(2)]
            client = zklock_connect(
                ",".join(proxy.hosts for proxy in proxies),
                timeout=4.0,
                randomize_hosts=False,
                **secure,
            )
            losses = Losses()
            lock = zklock.Lock(client, path, on_lost=losses)
            grant = granted(lock)
            proxies[0].blackhole()
            # A heartbeat went unanswered for a third of the timeout.
            proxies[1].wait_until(lambda: bool(proxies[1].connections), SOON)
            grant.verify(SOON)
            assert grant.held
            proxies[0].restore()
            client.handler.drop()
            grant.verify(SOON)
            assert not losses.losses
            lock.release()
            assert children(client, path) == []
            client.stop()

    @ONE_OF_EACH
    def test_a_loss_is_told_in_time(
        self, server: ZooKeeperServer, secure: dict[str, Any], zklock_connect: Connect, path: str
    ) -> None:
        with FaultProxy(server) as proxy:
            losses = Losses()
            client = zklock_connect(proxy.hosts, timeout=1.0, **secure)
            lock = zklock.Lock(client, path, on_lost=losses)
            grant = granted(lock)
            other = zklock.Lock(zklock_connect(server.hosts, **secure), path)
            proxy.blackhole()
            with other:
                assert not grant.held
                assert losses.one().reason is zklock.LossReason.LEASE_LAPSED
            proxy.restore()
            with lock as again:
                assert again.token > grant.token
            client.stop()


class TestRefused:
    @pytest.mark.parametrize("whom", ["server", "client"])
    def test_a_certificate_that_is_not_trusted(
        self,
        server: ZooKeeperServer,
        authority: Authority,
        tmp_path: Path,
        whom: str,
    ) -> None:
        other = Authority(tmp_path)
        options: dict[str, Any] = (
            {"ca": str(other.certificate)}
            if whom == "server"
            else {"ca": str(authority.certificate), **certificate(other)}
        )
        with pytest.raises(zklock.NoAnswer, match="answered within 1 s"):
            zklock.connect(server.hosts, use_ssl=True, start_timeout=1, **options)

    @pytest.mark.parametrize("front", ["threads", "asyncio"])
    def test_credentials(self, server: ZooKeeperServer, front: str) -> None:
        async def connect() -> None:
            await aio.connect(server.hosts, sasl_options=options)

        options = {"mechanism": "DIGEST-MD5", "username": "alice", "password": "guess"}
        started = time.monotonic()
        with pytest.raises(zklock.ClientClosed, match="credentials"):
            if front == "threads":
                zklock.connect(server.hosts, sasl_options=options)
            else:
                asyncio.run(connect())
        assert time.monotonic() - started < SOON / 2

    @pytest.mark.parametrize("secure", ["SASL"], indirect=True)
    def test_nobody_with_asyncio(
        self, server: ZooKeeperServer, secure: dict[str, Any], path: str
    ) -> None:
        async def use() -> None:
            async with aio.connect(server.hosts, **secure) as client:
                async with aio.Lock(client, path) as grant:
                    await grant.verify()
                await asyncio.to_thread(client.delete, path)

        asyncio.run(use())

    @pytest.mark.parametrize(
        "secure", ["mutual TLS", "SASL", "SASL over TLS", "digest"], indirect=True
    )
    def test_somebody_else(
        self, server: ZooKeeperServer, secure: dict[str, Any], zklock_connect: Connect, path: str
    ) -> None:
        client = zklock_connect(server.hosts, **secure)
        with zklock.Lock(client, f"{path}/private"):
            pass
        lock = zklock.Lock(zklock_connect(server.hosts), f"{path}/private")
        with pytest.raises(zklock.AccessDenied):
            lock.acquire(timeout=SOON)
        with pytest.raises(zklock.AccessDenied):
            lock.contenders()
        client.delete(f"{path}/private")
