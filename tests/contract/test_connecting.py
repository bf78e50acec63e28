"""Connecting, and connecting again, to servers that are not there, refuse, or say nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.protocol.connection import RWPinger

import zklock
import zklock.aio
from tests.contract.support import SOON, Losses, keeps_its_lock, run, serving
from tests.modes import bounded
from tests.stopwatch import Stopwatch
from zklock.testing import FaultProxy, ZooKeeperServer, wait_for

START, SESSION = 3.0, 30.0
AT_ONCE = 16.0
"""Seconds that a call may take over its bound, on a busy machine; kazoo would take far more."""


@pytest.fixture
def mute() -> Iterator[str]:
    """A server that accepts connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def closing() -> Iterator[str]:
    """A server that ends every connection without an answer."""
    with FaultProxy(refusing()) as proxy:
        yield proxy.hosts


def reset(near: socket.socket) -> None:
    """Reset a connection when it has sent its handshake."""
    with near:
        near.recv(4096)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.fixture
def without_sasl() -> Iterator[str]:
    """A server that answers each step of SASL with no token, as ZooKeeper does without SASL."""

    def serve(near: socket.socket) -> None:
        with near, contextlib.suppress(OSError):
            file, greeted = near.makefile("rb"), False
            while head := file.read(4):
                request = file.read(*struct.unpack(">i", head))
                token = struct.pack(">iqii", *struct.unpack(">i", request[:4]), 0, 0, -1)
                welcome = struct.pack(">iiqi16s?", 0, 10_000, 1, 16, b"", False)
                answer = token if greeted else welcome
                near.sendall(struct.pack(">i", len(answer)) + answer)
                greeted = True

    with serving(serve) as hosts:
        yield hosts


def refusing() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def with_threads(hosts: str) -> str:
    with pytest.raises(zklock.NoAnswer) as caught:
        zklock.connect(hosts, SESSION, start_timeout=START, randomize_hosts=False)
    return str(caught.value)


def with_asyncio(hosts: str) -> str:
    async def connect() -> None:
        await zklock.aio.connect(hosts, SESSION, start_timeout=START, randomize_hosts=False)

    with pytest.raises(zklock.NoAnswer) as caught:
        asyncio.run(connect())
    return str(caught.value)


def with_the_command(hosts: str) -> str:
    options = [f"--hosts={hosts}", f"--session-timeout={SESSION}", f"--connect-timeout={START}"]
    command = [sys.executable, "-m", "zklock.cli", "ls", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    return ended.stderr


UNKNOWN = "cannot be the name of a host"
NO_TEXT: list[Any] = [None, b"zk1:2181", ("zk1",), [b"zk1:2181"]]
NO_SERVER: list[Any] = ["", "zk1,", "::1:2181", "zk1:none", []]
NO_CREDENTIALS: list[tuple[Any, type[Exception]]] = [
    ([("digest", b"me:secret")], TypeError),
    ([("digest", 5)], TypeError),
    ([("digest", "me:secret", "more")], TypeError),
    ("digest:me:secret", TypeError),
    ([("digest", "me:secret\udce4")], ValueError),
]
REFUSED: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ("zk1..example.com:2181,zk2", {}, ValueError, f"hosts: 'zk1..example.com' {UNKNOWN}"),
    (f"{'z' * 64}:2181,zk2", {}, ValueError, f"hosts: '{'z' * 64}' {UNKNOWN}"),
    ("zk1/\udce4", {}, ValueError, r"hosts: the chroot '/\\udce4' is not UTF-8 text$"),
    *((hosts, {}, TypeError, "hosts must be text, or a list of it, not ") for hosts in NO_TEXT),
    *((hosts, {}, ValueError, "hosts: ") for hosts in NO_SERVER),
    *(("zk1", {"auth_data": auth}, kind, "auth_data") for auth, kind in NO_CREDENTIALS),
    ("zk1", {"timeout": "1"}, TypeError, ""),
    ("zk1", {"start_timeout": 0}, ValueError, ".*start_timeout"),
    ("zk1", {"handler": object()}, zklock.ClientUnusable, ""),
]


@pytest.mark.parametrize(("hosts", "options", "kind", "said"), REFUSED)
@pytest.mark.parametrize("connect", [zklock.connect, zklock.aio.connect])
def test_what_cannot_be_reached_or_sent_is_refused_at_the_call(
    connect: Any, hosts: Any, options: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=f"^{said}") as caught:
        connect(hosts, **options)
    assert "secret" not in str(caught.value).replace("'user:password'", "")
    assert caught.value.__cause__ is None


def test_further_credentials_that_cannot_be_sent_are_refused_at_the_call(
    zklock_connect: Any, zklock_hosts: str
) -> None:
    client = zklock_connect(zklock_hosts)
    for credential, kind in ((b"user:secret", TypeError), ("user:\udcff", ValueError)):
        with pytest.raises(kind, match=r"^add_auth\(\)"):
            client.add_auth("digest", credential)
    assert client.add_auth("digest", "user:secret")
    client.handler.drop()
    assert client.retry(client.exists, "/") is not None


def test_a_server_without_sasl_is_told_from_a_silent_one_and_leaves_no_thread_busy(
    without_sasl: str,
) -> None:
    """kazoo takes another step after each answer."""
    before = set(threading.enumerate())
    options = {"mechanism": "DIGEST-MD5", "username": "me", "password": "secret"}

    async def later() -> None:
        await zklock.aio.connect(without_sasl, start_timeout=START, sasl_options=options)

    async def cancelled() -> None:
        async with asyncio.timeout(START / 2), asyncio.TaskGroup() as group:
            group.create_task(later())
            await asyncio.sleep(START / 4)
            assert busy()

    def busy() -> list[str]:
        there = set(threading.enumerate()) - before
        return [each.name for each in there if each.name == "kazoo-zk_loop"]

    told = "accepts the client, but answers no request"
    with pytest.raises(zklock.NoAnswer, match=told):
        zklock.connect(without_sasl, start_timeout=START, sasl_options=options)
    with pytest.raises(zklock.NoAnswer, match=told):
        asyncio.run(later())
    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    wait_for(lambda: not busy(), SOON, "the end of the threads")


def test_other_servers_share_the_time_to_connect_anew(zklock_hosts: str) -> None:
    with zklock.connect(zklock_hosts, 3.0) as client:
        assert client.handler.servers == 1
        client.set_hosts(f"{zklock_hosts},{refusing()}")
        assert client.handler.servers == 2
        before = client.hosts
        with pytest.raises(ValueError, match=r"^hosts: 'zk1\.\.example\.com' cannot be"):
            client.set_hosts(f"{zklock_hosts},zk1..example.com")
        assert client.hosts == before


EVERY_WAY = pytest.mark.parametrize("connect", [with_threads, with_asyncio, with_the_command])


@pytest.mark.hazard("H23")
@EVERY_WAY
def test_a_silent_server_is_waited_for_no_longer_than_was_said(
    connect: Callable[[str], str], mute: str
) -> None:
    with Stopwatch() as watch:
        message = connect(mute)
    assert watch.total >= START
    assert watch.awake < bounded(START + AT_ONCE)
    assert f"{mute} accepts connections, and says nothing" in message


@pytest.mark.parametrize("forever", [math.inf, 10**400])
def test_a_connection_may_be_waited_for_without_a_limit(zklock_hosts: str, forever: float) -> None:
    # With a chroot it waits for an answer, too.
    with (
        pytest.warns(UserWarning, match="does not exist"),
        zklock.connect(f"{zklock_hosts}/none", SESSION, start_timeout=forever) as client,
    ):
        assert client.connected


def test_a_server_that_resets_connections_is_told_from_a_silent_one() -> None:
    with serving(reset) as resetting:
        for connect in (with_threads, with_asyncio):
            assert f"{resetting} closes every connection at once" in connect(resetting)


def test_one_that_has_not_closed_the_last_connection_yet_is_not_called_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving_one = run(lambda: reset(listener.accept()[0]))
        message = with_threads(f"127.0.0.1:{listener.getsockname()[1]}")
        serving_one.result(SOON)
    assert "closes connections without an answer" in message


def test_an_address_with_colons_is_named_in_brackets() -> None:
    message = with_threads("[::1]:1")
    assert f"within {START} s: [::1]:1 " in message


def test_the_cause_is_named_for_each_server(mute: str, closing: str) -> None:
    refused = refusing()
    unknown = "no-such-host.invalid:2181"
    message = with_threads(f"{unknown},{refused},{closing},{mute}")
    assert f"{refused} connection refused" in message
    assert f"{closing} closes every connection at once" in message
    assert f"{mute} accepts connections, and says nothing" in message
    assert f"{unknown} was not tried in time, or its name was not resolved" in message
    assert f"{unknown} has a name that was not resolved" in with_asyncio(unknown)


@pytest.mark.hazard("H23")
def test_a_server_that_is_silent_for_a_second_costs_no_lock(
    zklock_proxy: FaultProxy, zklock_connect: Any, zklock_path: str
) -> None:
    """It is starting: its system accepts connections, which nobody answers."""
    client = zklock_connect(zklock_proxy.hosts, timeout=10.0)
    losses = Losses()
    session = client.client_id[0]
    with zklock.Lock(client, zklock_path, on_lost=losses) as grant:
        before = len(zklock_proxy.connections)
        zklock_proxy.hold()
        zklock_proxy.drop()
        with Stopwatch() as watch:
            wait_for(lambda: len(zklock_proxy.connections) > before + 2, SOON, "a second attempt")
        assert watch.total > 0.5
        assert watch.awake < bounded(4.0)
        zklock_proxy.release()
        wait_for(lambda: client.connected, SOON, "a new connection")
        assert client.client_id[0] == session
        grant.verify(SOON)
    assert not losses.losses


@pytest.mark.hazard("H23")
def test_a_silent_server_is_left_for_another(
    mute: str, zklock_hosts: str, zklock_connect: Any
) -> None:
    with Stopwatch() as watch:
        zklock_connect(f"{mute},{zklock_hosts}", timeout=40.0, randomize_hosts=False)
    assert watch.awake < bounded(40.0 / 18 + AT_ONCE)


@pytest.mark.hazard("H23")
def test_silent_addresses_of_one_name_cost_no_lock(
    zklock_proxy: FaultProxy, zklock_connect: Any, zklock_path: str, monkeypatch: Any
) -> None:
    """The name gets them while the lock is held, as that of a headless service does."""
    silent, addresses = [f"127.0.0.{number}" for number in range(2, 6)], ["127.0.0.1"]
    look_up, port = socket.getaddrinfo, zklock_proxy.port

    def looked_up(host: Any, port: Any, *more: Any, **others: Any) -> list[Any]:
        names = addresses if host == "zk.test" else [host]
        return [found for name in names for found in look_up(name, port, *more, **others)]

    @contextlib.contextmanager
    def listening() -> Iterator[None]:
        """Accept connections at these addresses, too, and say nothing."""
        addresses[:0] = silent
        with contextlib.ExitStack() as stack:
            for each in silent:
                stack.enter_context(socket.create_server((each, port)))
            yield

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    client = zklock_connect(f"zk.test:{port}", timeout=10.0, randomize_hosts=False)
    keeps_its_lock(client, zklock_path, zklock_proxy, listening)


@contextlib.contextmanager
def deaf(port: int, addresses: list[str]) -> Iterator[None]:
    """Have servers at these addresses that accept no connection: who tries hears nothing."""
    with contextlib.ExitStack() as stack:
        for each in addresses:
            stack.enter_context(socket.create_server((each, port), backlog=0))
            for _ in range(3):  # the system takes one or two before the queue is full
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex((each, port))
            with pytest.raises(TimeoutError):
                socket.create_connection((each, port), 0.2)
        yield


@pytest.mark.hazard("H23")
@pytest.mark.parametrize(("servers", "dead"), [(3, 1), (3, 2), (5, 2), (5, 4)])
def test_servers_that_accept_nothing_cost_no_lock(
    zklock_proxy: FaultProxy, zklock_connect: Any, zklock_path: str, servers: int, dead: int
) -> None:
    """kazoo tries them in what is left of its round, and once more in the next one."""
    port = zklock_proxy.port
    alive, *others = [f"127.0.0.{number + 1}" for number in range(servers)]
    silent, refusing_ones = others[:dead], others[dead:]
    hosts = [f"{each}:{port}" for each in (alive, *silent, *refusing_ones)]
    client = zklock_connect(",".join(hosts), timeout=10.0, randomize_hosts=False)

    @contextlib.contextmanager
    def moved() -> Iterator[None]:
        client.set_hosts([*hosts[1:], hosts[0]])  # from the next round on
        with deaf(port, silent):
            yield

    keeps_its_lock(client, zklock_path, zklock_proxy, moved)


def test_credentials_may_be_added_while_requests_are_under_way(
    zklock_connect: Any, zklock_path: str
) -> None:
    """The server answers credentials before older requests; kazoo alone ends by that."""
    client = zklock_connect()
    session, losses = client.client_id, Losses()
    with zklock.Lock(client, zklock_path, on_lost=losses) as grant:
        for number in range(20):
            data = b"%d" % number
            writes = [client.set_async(grant.path, data) for _ in range(50)]
            added = client.add_auth_async("digest", f"user:{number}")
            read = client.get_async(grant.path)
            assert added.get(timeout=SOON)
            assert read.get(timeout=SOON)[0] == data
            assert [each.get(timeout=SOON).version for each in writes] == list(
                range(50 * number + 1, 50 * number + 51)
            )
        grant.verify(SOON)
    assert client.client_id == session
    assert not losses.losses


@pytest.mark.hazard("H24")
class TestOtherConnections:
    """kazoo opens more connections than the session's, through the same handler."""

    @staticmethod
    def connects_anew(client: Any) -> None:
        states: list[str] = []
        client.add_listener(states.append)
        client.handler.drop()
        wait_for(lambda: states == ["SUSPENDED", "CONNECTED"], SOON, lambda: f"{states}")

    def test_a_command_is_answered_and_changes_nothing(self, client: Any) -> None:
        assert client.command(b"srvr").startswith("Zookeeper version")
        self.connects_anew(client)

    def test_a_writable_server_is_found(self, zklock_server: Any, client: Any) -> None:
        where = (zklock_server.host, zklock_server.port)
        search = iter(RWPinger([where], client.handler.create_connection, contextlib.nullcontext))
        wait_for(lambda: next(search) == where, SOON, "the writable server")
        self.connects_anew(client)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (0.5, ["instead of 0.5 s", "a lease needs 2.15 ticks", "pass 2 s or more"]),
        (100.0, ["60 s instead of 100 s", "raise maxSessionTimeout"]),
        (4.0, []),
    ],
)
def test_another_timeout_than_was_asked_for_is_said(
    zklock_server: ZooKeeperServer, caplog: pytest.LogCaptureFixture, asked: float, said: list[str]
) -> None:
    with (
        caplog.at_level(logging.WARNING, logger="zklock"),
        zklock.connect(zklock_server.hosts, asked) as client,
    ):
        assert client.connected
    lines = [record.getMessage() for record in caplog.records if record.name == "zklock"]
    assert len(lines) == bool(said)
    assert all(each in lines[0] for each in said)
