"""Locks over TLS and SASL, on a real server that is set up for them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import shutil
import socket
import ssl
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kazoo.security import Permissions, make_acl, make_digest_acl

import zklock
from tests.contract.secure import PASSWORD, USER, Authority
from tests.contract.support import (
    ROOT,
    SOON,
    Losses,
    children,
    granted,
    kazoo_client,
    keeps_its_lock,
    queued,
    run,
    serving,
)
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


def certificate(authority: Authority) -> dict[str, str]:
    both = str(authority.certify("client"))
    return {"certfile": both, "keyfile": both}


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture
def onlooker(secured: ZooKeeperServer) -> Iterator[Any]:
    with kazoo_client(secured.hosts) as client:
        yield client


@pytest.fixture(params=["TLS", "mutual TLS", "SASL", "SASL over TLS", "digest"])
def secure(request: pytest.FixtureRequest, authority: Authority) -> dict[str, Any]:
    """What ``connect`` is told, one for each way to be safe."""
    tls = {"use_ssl": True, "ca": str(authority.certificate)}
    sasl = {"sasl_options": {"mechanism": "DIGEST-MD5", "username": USER, "password": PASSWORD}}
    options: dict[str, dict[str, Any]] = {
        "TLS": tls,
        "mutual TLS": tls
        | {**certificate(authority), "default_acl": [make_acl("x509", "CN=client", all=True)]},
        "SASL": sasl | {"default_acl": [make_acl("sasl", USER, all=True)]},
        "SASL over TLS": sasl | tls | {"default_acl": [make_acl("sasl", USER, all=True)]},
        "digest": {
            "auth_data": [("digest", f"{USER}:{PASSWORD}")],
            "default_acl": [make_digest_acl(USER, PASSWORD, all=True)],
        },
    }
    return options[request.param]


ONE_OF_EACH = pytest.mark.parametrize(
    "secure", ["TLS", "mutual TLS", "SASL", "digest"], indirect=True
)
WITH_SASL = pytest.mark.parametrize("secure", ["SASL"], indirect=True)
ON_BOTH_FRONTS = pytest.mark.parametrize("front", ["threads", "asyncio"])

OTHERS = pytest.mark.thorough(
    "connections that are dropped, with TLS, SASL or a digest: as with certificates of both sides"
)
ONE_IS_ENOUGH = pytest.mark.parametrize(
    "secure",
    ["mutual TLS", *(pytest.param(each, marks=OTHERS) for each in ("TLS", "SASL", "digest"))],
    indirect=True,
)


def connect(front: str, hosts: str, *, lock: str = "", **options: Any) -> None:
    """Connect, and hold a lock of this path, if there is one, which is deleted then."""

    async def main() -> None:
        async with aio.connect(hosts, **options) as client:
            assert client.connected
            if lock:
                async with aio.Lock(client, lock) as grant:
                    await grant.verify()
                await asyncio.to_thread(client.delete, lock)

    if front == "asyncio":
        asyncio.run(main())
        return
    with zklock.connect(hosts, **options) as client:
        assert client.connected
        if lock:
            with zklock.Lock(client, lock):
                pass
            client.delete(lock)


@pytest.fixture
def safe(secured: ZooKeeperServer, secure: dict[str, Any], zklock_connect: Connect) -> Connect:
    """Return ``safe(hosts=…, **options)``: a client of that server, that is safe."""
    return lambda hosts=secured.hosts, **options: zklock_connect(hosts, **secure, **options)


class TestSecure:
    def test_queueing(self, safe: Connect, path: str) -> None:
        one, two = (safe(timeout=4.0) for _ in range(2))
        assert one.handler.session_timeout == 4.0
        assert safe(timeout=3.0).handler.session_timeout == 3.0
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

    def test_large_frames(self, safe: Connect, path: str) -> None:
        client = safe()
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

    @ONE_IS_ENOUGH
    def test_a_dropped_connection_is_made_again(
        self, secured: ZooKeeperServer, safe: Connect, path: str
    ) -> None:
        with FaultProxy(secured) as first, FaultProxy(secured) as second:
            hosts = f"{first.hosts},{second.hosts}"
            client = safe(hosts, timeout=30.0, randomize_hosts=False)
            losses = Losses()
            lock = zklock.Lock(client, path, on_lost=losses)
            grant = granted(lock)
            first.blackhole()
            # A heartbeat went unanswered for a third of the timeout.
            second.wait_until(lambda: bool(second.connections), SOON)
            grant.verify(SOON)
            assert grant.held
            first.restore()
            client.handler.drop()
            grant.verify(SOON)
            assert not losses.losses
            lock.release()
            assert children(client, path) == []
            client.stop()

    @ONE_OF_EACH
    def test_a_loss_is_told_in_time(
        self, secured: ZooKeeperServer, safe: Connect, path: str
    ) -> None:
        with FaultProxy(secured) as proxy:
            losses = Losses()
            client = safe(proxy.hosts, timeout=4.0)
            lock = zklock.Lock(client, path, on_lost=losses)
            grant = granted(lock)
            other = safe()
            proxy.blackhole()
            with zklock.Lock(other, path):
                assert not grant.held
                assert losses.one().reason is zklock.LossReason.LEASE_LAPSED
            proxy.restore()
            with lock as again:
                assert again.token > grant.token
            client.stop()


@pytest.mark.hazard("H23")
def test_servers_that_do_not_answer_tls_cost_no_lock(
    secured: ZooKeeperServer, authority: Authority, zklock_connect: Connect, path: str
) -> None:
    """kazoo tries them in what is left of its round, and once more in the next one."""
    options = {"use_ssl": True, "ca": str(authority.certificate)}
    with FaultProxy(secured) as proxy:
        silent = [f"127.0.0.{number}:{proxy.port}" for number in (2, 3)]
        hosts = ",".join([proxy.hosts, *silent])
        client = zklock_connect(hosts, timeout=10.0, randomize_hosts=False, **options)

        @contextlib.contextmanager
        def moved() -> Iterator[None]:
            client.set_hosts([*silent, proxy.hosts])  # from the next round on
            with ExitStack() as stack:
                for each in silent:
                    stack.enter_context(socket.create_server((each.partition(":")[0], proxy.port)))
                yield

        keeps_its_lock(client, path, proxy, moved)
        client.stop()


@WITH_SASL
@ON_BOTH_FRONTS
class TestStart:
    """kazoo reports a connection before the servers have accepted the credentials."""

    def test_a_connection_lost_on_the_way_is_made_again(
        self, secured: ZooKeeperServer, secure: dict[str, Any], front: str
    ) -> None:
        with FaultProxy(secured) as proxy:
            fault = proxy.drop_before_reply(op="exists")
            connect(front, proxy.hosts, start_timeout=SOON, **secure)
            assert fault.fired.is_set()

    @pytest.mark.parametrize("op", ["exists", "sasl"])
    def test_one_that_is_lost_each_time_is_no_answer(
        self, secured: ZooKeeperServer, secure: dict[str, Any], front: str, op: str
    ) -> None:
        with FaultProxy(secured) as proxy:
            for _ in range(100):
                proxy.drop_before_reply(op=op)
            with pytest.raises(zklock.NoAnswer):
                connect(front, proxy.hosts, start_timeout=1, **secure)


ONCE_ON_THE_WAY = pytest.mark.parametrize("fault", ["drop_before_request", "drop_before_reply"])
"""A connection is cut before the credentials arrive, or before the answer to them does."""


@WITH_SASL
class TestCutInTheMiddleOfSasl:
    """kazoo takes it for a refusal, and gives the client up for good."""

    @ONCE_ON_THE_WAY
    @pytest.mark.parametrize("n", [1, 2])
    def test_it_starts_nevertheless(
        self, secured: ZooKeeperServer, secure: dict[str, Any], fault: str, n: int
    ) -> None:
        with FaultProxy(secured) as proxy:
            armed = getattr(proxy, fault)(n, op="sasl")
            with zklock.connect(proxy.hosts, start_timeout=SOON, **secure) as client:
                assert armed.fired.is_set()
                assert client.exists("/") is not None

    @ONCE_ON_THE_WAY
    def test_a_session_is_taken_up_again(
        self, secured: ZooKeeperServer, secure: dict[str, Any], path: str, fault: str
    ) -> None:
        losses = Losses()
        with (
            FaultProxy(secured) as proxy,
            zklock.connect(proxy.hosts, timeout=30.0, start_timeout=SOON, **secure) as client,
        ):
            lock = zklock.Lock(client, path, on_lost=losses)
            grant = granted(lock)
            armed = getattr(proxy, fault)(op="sasl")
            client.handler.drop()
            assert armed.fired.wait(SOON)
            grant.verify(SOON)
            assert grant.held
            lock.release()
            assert not losses.losses
            assert children(client, path) == []


def code_of(page: str, heading: str) -> str:
    """Return the one Python example below a heading of a page."""
    text = (ROOT / "docs" / page).read_text()
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"^ *```python\n(.*?)^ *```", section, re.MULTILINE | re.DOTALL)
    return textwrap.dedent(code)


def test_the_options_of_the_page_fit_together(
    secured: ZooKeeperServer, authority: Authority, path: str
) -> None:
    code = code_of("howto.md", "TLS, SASL, ACLs, chroot")
    for told, meant in (
        ("zk1:2281,zk2:2281/apps/billing", f"{secured.hosts}{path}"),
        ("/etc/ssl/zk-ca.pem", str(authority.certificate)),
        ("billing", USER),
    ):
        assert told in code
        code = code.replace(told, meant)
    scope: dict[str, Any] = {"zklock": zklock, "secret": PASSWORD}
    exec(compile(code, "howto.md", "exec"), scope)
    with scope["client"] as client:
        with zklock.Lock(client, "/report") as grant:
            assert grant.held
            acls, _ = client.get_acls(grant.path)
            assert {(acl.id.scheme, acl.id.id) for acl in acls} == {("sasl", USER)}
        client.delete("/report")  # others may not look into it


class TestRefused:
    def test_credentials_that_are_refused_later_end_the_client(
        self, secured: ZooKeeperServer, path: str
    ) -> None:
        options = {"mechanism": "DIGEST-MD5", "username": USER, "password": PASSWORD}
        losses = Losses()
        with zklock.connect(secured.hosts, start_timeout=SOON, sasl_options=options) as client:
            with zklock.Lock(client, path):
                pass
            lock = zklock.Lock(client, path, on_lost=losses)
            granted(lock)
            client._connection.sasl_options["password"] = "guess"
            client.handler.drop()
            assert losses.one().reason is zklock.LossReason.CLIENT_CLOSED
            with pytest.raises(zklock.ClientClosed):
                lock.acquire()

    @pytest.mark.parametrize("whom", ["server", "client"])
    def test_a_certificate_that_is_not_trusted(
        self, secured: ZooKeeperServer, authority: Authority, tmp_path: Path, whom: str
    ) -> None:
        other = Authority(tmp_path)
        options: dict[str, Any] = (
            {"ca": str(other.certificate)}
            if whom == "server"
            else {"ca": str(authority.certificate), **certificate(other)}
        )
        with pytest.raises(zklock.NoAnswer, match="answered within 1 s"):
            zklock.connect(secured.hosts, use_ssl=True, start_timeout=1, **options)

    @ON_BOTH_FRONTS
    def test_credentials(self, secured: ZooKeeperServer, front: str) -> None:
        options = {"mechanism": "DIGEST-MD5", "username": USER, "password": "guess"}
        started = time.monotonic()
        with pytest.raises(zklock.ClientClosed, match="credentials"):
            connect(front, secured.hosts, sasl_options=options)
        assert time.monotonic() - started < SOON / 2

    @WITH_SASL
    def test_nobody_with_asyncio(
        self, secured: ZooKeeperServer, secure: dict[str, Any], path: str
    ) -> None:
        connect("asyncio", secured.hosts, lock=f"{path}/lock", **secure)

    @pytest.mark.parametrize(
        "secure", ["mutual TLS", "SASL", "SASL over TLS", "digest"], indirect=True
    )
    def test_somebody_else(
        self, secured: ZooKeeperServer, safe: Connect, zklock_connect: Connect, path: str
    ) -> None:
        client = safe()
        with zklock.Lock(client, f"{path}/private"):
            pass
        lock = zklock.Lock(zklock_connect(secured.hosts), f"{path}/private")
        with pytest.raises(zklock.AccessDenied):
            lock.acquire(timeout=SOON)
        with pytest.raises(zklock.AccessDenied):
            lock.contenders()
        client.delete(f"{path}/private")


@ON_BOTH_FRONTS
@pytest.mark.parametrize("secure", ["SASL", "digest"], indirect=True)
def test_a_root_that_may_not_be_read(
    secured: ZooKeeperServer, secure: dict[str, Any], onlooker: Any, path: str, front: str
) -> None:
    """From 3.8.4 and 3.9.2 on, ZooKeeper does not tell who may not read a node that it is there."""
    (acl,) = secure["default_acl"]
    acl = acl._replace(perms=Permissions.CREATE | Permissions.DELETE)
    onlooker.add_auth("digest", "keeper:secret")
    onlooker.create(f"{path}/root", acl=[acl, make_digest_acl("keeper", "secret", all=True)])
    connect(front, f"{secured.hosts}{path}/root", lock="/lock", **secure)


def refused(cause: str, hosts: str, **options: Any) -> None:
    """Connect in vain, for longer and longer, until the error names the cause."""
    for seconds in (1, 4, 16, 60):
        with pytest.raises(zklock.NoAnswer) as caught:
            zklock.connect(hosts, use_ssl=True, start_timeout=seconds, **options)
        if re.search(cause, str(caught.value)):
            return
    raise caught.value


class TestExpired:
    """A certificate counts when a connection is made, and not later."""

    def test_of_a_holder(
        self,
        secured: ZooKeeperServer,
        authority: Authority,
        zklock_connect: Connect,
        path: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        file = str(authority.certify("holder"))
        options: dict[str, Any] = {"ca": authority.certificate, "certfile": file, "keyfile": file}
        losses = Losses()
        client = zklock_connect(secured.hosts, timeout=4.0, use_ssl=True, **options)
        lock = zklock.Lock(client, path, on_lost=losses)
        grant = granted(lock)
        authority.certify("holder", days=-1)
        grant.verify(SOON)
        client.handler.drop()
        assert losses.one().reason is zklock.LossReason.LEASE_LAPSED
        assert "ALERT_CERTIFICATE_" in caplog.text
        refused("ALERT_CERTIFICATE_.*client certificate", secured.hosts, **options)
        authority.certify("holder")
        granted(lock, timeout=SOON).release()
        caplog.clear()  # its records keep such sockets

    def test_of_a_server(self, authority: Authority) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.certify("expired", days=-1))
        cause = r"CERTIFICATE_VERIFY_FAILED: certificate has expired \(renew its certificate"

        def shake_hands(taken: socket.socket) -> None:
            taken.settimeout(1.0)  # the server may leave the connection open
            with contextlib.suppress(OSError):
                context.wrap_socket(taken, server_side=True).close()

        with serving(shake_hands) as hosts:
            refused(cause, hosts, ca=authority.certificate)


class TestRotation:
    """Credentials are changed, and no lock is lost: docs/operating.md."""

    def test_digest(self, secured: ZooKeeperServer, zklock_connect: Connect, path: str) -> None:
        old_acl, new_acl = (make_digest_acl("billing", word, all=True) for word in ("old", "new"))

        def connect(word: str, acl: list[Any]) -> Any:
            auth = [("digest", f"billing:{word}")]
            return zklock_connect(secured.hosts, auth_data=auth, default_acl=acl)

        losses = Losses()
        before = connect("old", [old_acl])
        before.create(f"{path}/report")
        lock = zklock.Lock(before, f"{path}/report", on_lost=losses)
        grant = granted(lock)

        code = code_of("operating.md", "Rotating credentials")
        code = code.replace("/locks/report", f"{path}/report")
        scope: dict[str, Any] = {"client": before, "old_secret": "old", "new_secret": "new"}
        exec(compile(code, "operating.md", "exec"), scope)
        after = connect("new", scope["both"])
        waiting = run(granted, zklock.Lock(after, f"{path}/report"))
        queued(before, f"{path}/report", 2)
        grant.verify(SOON)
        grant.release()
        again = run(granted, lock)
        queued(before, f"{path}/report", 2)
        waiting.result(SOON).release()
        late = again.result(SOON)

        after.set_acls(f"{path}/report", [new_acl])
        late.verify(SOON)
        with pytest.raises(zklock.AccessDenied):
            late.release()
        before.stop()
        granted(zklock.Lock(after, f"{path}/report")).release()
        assert not losses.losses
        after.delete(f"{path}/report")

    def test_more_of_it_for_a_running_client(
        self, secured: ZooKeeperServer, zklock_connect: Connect, path: str
    ) -> None:
        old_acl, new_acl = (make_digest_acl("billing", word, all=True) for word in ("old", "new"))
        auth = [("digest", "billing:old")]
        client = zklock_connect(secured.hosts, auth_data=auth, default_acl=[old_acl])
        with zklock.Lock(client, f"{path}/report") as grant:
            client.add_auth("digest", "billing:new")
            client.set_acls(f"{path}/report", [new_acl])
            client.handler.drop()
            grant.verify(SOON)
            client.default_acl = [new_acl]
        with zklock.Lock(client, f"{path}/report") as grant:
            assert client.get_acls(grant.path)[0] == [new_acl]
        client.delete(f"{path}/report")

    @pytest.mark.parametrize("secure", ["mutual TLS"], indirect=True)
    def test_a_certificate_that_is_replaced_in_its_file(
        self,
        secured: ZooKeeperServer,
        secure: dict[str, Any],
        authority: Authority,
        zklock_connect: Connect,
        onlooker: Any,
        path: str,
    ) -> None:
        losses = Losses()
        client = zklock_connect(secured.hosts, **secure)
        lock = zklock.Lock(client, f"{path}/report", on_lost=losses)
        grant = granted(lock)
        authority.certify("client")
        client.handler.drop()
        grant.verify(SOON)
        lock.release()
        assert not losses.losses

        granted(lock)
        shutil.copy(authority.certify("somebody"), secure["certfile"])
        client.handler.drop()
        assert losses.one().reason is zklock.LossReason.LEASE_LAPSED
        client.stop()
        onlooker.delete(f"{path}/report")
