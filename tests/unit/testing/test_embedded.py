"""The embedded server behind its socket: start, stop, faults, and what its users meet."""

from __future__ import annotations

import logging
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import (
    ConnectionLoss,
    NoNodeError,
    NotReadOnlyCallError,
    SessionExpiredError,
    ThrottledOpError,
)
from kazoo.protocol.states import KazooState

import zklock
from tests.contract.support import open_files
from tests.forked import copied_by_a_child
from tests.terminal import Terminal
from zklock.cli.parser import main
from zklock.testing import (
    BackendUnavailable,
    Capability,
    EmbeddedServer,
    Ensemble,
    FaultProxy,
    NotSupported,
    ServerError,
    StartFailed,
    ZooKeeperServer,
    embedded,
    expire_session,
    four_letter,
    wait_for,
)

SOON = 60.0

Join = Callable[..., KazooClient]


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with embedded() as started:
        yield started


@pytest.fixture
def join() -> Iterator[Join]:
    """Make started clients, and stop them afterwards."""
    made: list[KazooClient] = []

    def make(server: EmbeddedServer | ZooKeeperServer, timeout: float = 30.0) -> KazooClient:
        client = KazooClient(
            server.hosts,
            timeout,
            connection_retry={"max_tries": -1, "delay": 0.02, "backoff": 1, "max_delay": 0.1},
        )
        client.start(SOON)
        made.append(client)
        return client

    yield make
    for client in made:
        client.stop()
        client.close()


def close_each(listening: socket.socket) -> None:
    """Read from each connection, and close it."""
    with suppress(OSError):
        while True:
            link, _ = listening.accept()
            with link:
                link.recv(4096)


def lost(client: KazooClient) -> threading.Event:
    told = threading.Event()
    client.add_listener(lambda state: told.set() if state == KazooState.LOST else None)
    return told


def connected(client: KazooClient) -> None:
    """Wait until a connection is there that was not lost before."""

    def answered() -> bool:
        try:
            client.exists_async("/").get(timeout=SOON)
        except (ConnectionLoss, SessionExpiredError):
            return False
        return True

    wait_for(answered, SOON, "connected")


class TestItsLife:
    def test_data_and_sessions_outlive_a_restart_which_says_what_it_is_for(
        self, server: EmbeddedServer, join: Join, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = join(server)
        client.create("/kept", b"data", ephemeral=True)
        session = client.client_id[0]
        caplog.clear()
        with caplog.at_level(logging.WARNING, "zklock.testing"):
            server.restart()
        connected(client)
        data, stat = client.get("/kept")
        assert (data, stat.ephemeralOwner) == (b"data", session)
        (said,) = (each.message for each in caplog.records if each.name == "zklock.testing")
        assert "never for production" in said
        assert server.hosts in said

    def test_it_is_silent_when_it_is_down(self, server: EmbeddedServer) -> None:
        server.stop()
        server.stop()
        assert not server.running
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((server.host, server.port), SOON)
        with pytest.raises(ServerError, match="start it first"):
            server.mute()
        server.start()
        server.start()
        assert four_letter(server.host, server.port, "ruok") == "imok"

    def test_a_taken_port_is_an_error(
        self, server: EmbeddedServer, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(StartFailed, match=str(server.port)):
            embedded(port=server.port).start()
        assert main(["dev", "--port", str(server.port)]) == 71
        assert "use another --port" in capsys.readouterr().err

    def test_a_forked_child_keeps_nothing_open(self, server: EmbeddedServer, join: Join) -> None:
        client = join(server)
        with copied_by_a_child():
            server.stop()
            wait_for(lambda: not client.connected, SOON, "disconnected")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((server.host, server.port), SOON)

    def test_nothing_is_left_open(self) -> None:
        # Those of an earlier test may end meanwhile: what counts is what is new.
        threads, files = set(threading.enumerate()), open_files()
        with embedded() as server:
            four_letter(server.host, server.port, "srvr")
        assert (set(threading.enumerate()) - threads, open_files() - files) == (set(), set())


class TestFaults:
    def test_a_throttled_request_is_not_carried_out(
        self, server: EmbeddedServer, join: Join
    ) -> None:
        client = join(server)
        fault = server.throttle("create", n=2)
        client.exists("/x")
        for _ in range(2):
            with pytest.raises(ThrottledOpError):
                client.create("/x")
        fault.wait(SOON)
        assert fault.struck == 2
        assert client.exists("/x") is None
        client.create("/x")

    @pytest.mark.parametrize("carried_out", [False, True])
    def test_a_request_or_its_reply_is_lost(
        self, server: EmbeddedServer, join: Join, carried_out: bool
    ) -> None:
        client = join(server)
        session = client.client_id
        fault = server.lose_reply("create") if carried_out else server.lose_request("create")
        with pytest.raises(ConnectionLoss):
            client.create("/x")
        fault.wait(SOON)
        connected(client)
        assert client.client_id == session
        assert (client.exists("/x") is not None) == carried_out

    def test_pings_count_only_if_they_are_named(self, server: EmbeddedServer, join: Join) -> None:
        client = join(server, 1.0)
        any_, ping = server.throttle(), server.throttle("ping")
        ping.wait(SOON)
        assert not any_.fired.is_set()
        any_.cancel()
        client.create("/x")

    def test_bad_numbers(self, server: EmbeddedServer, join: Join) -> None:
        for bad in ({"tick_time": 0}, {"max_session_timeout": "2000"}, {"port": 65536}):
            with pytest.raises((ValueError, TypeError), match="|".join(bad)):
                embedded(**bad)
        with pytest.raises(TypeError, match="max_session_timeout must be an int, not str"):
            server.restart(max_session_timeout="2000")  # type: ignore[arg-type]
        for seconds in (-1.0, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="seconds must be 0 or more, and finite"):
                server.delay(seconds)
        with pytest.raises(ValueError, match=r"no operation paint: use .*getData"):
            server.throttle("paint")
        with pytest.raises(ValueError, match="at least 1"):
            server.throttle(n=0)
        join(server).create("/goes-on")

    def test_what_is_delayed_keeps_its_order(self, server: EmbeddedServer, join: Join) -> None:
        client = join(server)
        server.delay(0.2)
        answers = [client.create_async(f"/{number}") for number in range(5)]
        assert not any(each.ready() for each in answers)
        server.delay(0)
        assert [each.get(timeout=SOON) for each in answers] == [f"/{n}" for n in range(5)]

    def test_an_expired_session_is_over(self, server: EmbeddedServer, join: Join) -> None:
        client, other = join(server), join(server)
        client.create("/mine", ephemeral=True)
        told, session = lost(client), client.client_id
        server.expire(client)
        assert other.exists("/mine") is None
        assert told.wait(SOON)
        connected(client)
        assert client.client_id != session
        with pytest.raises(ServerError, match="over already"):
            server.expire(session)

    def test_a_session_whose_server_closes_before_it_answers_is_asked_for_again_for_a_while(
        self, server: EmbeddedServer, join: Join
    ) -> None:
        client = join(server)
        told = lost(client)
        with FaultProxy(server.hosts) as proxy:
            fault = proxy.drop_before_reply(op="connect")
            expire_session(client, proxy.hosts)
            assert fault.fired.is_set()
        assert told.wait(SOON)
        connected(client)
        with closing(socket.create_server(("127.0.0.1", 0))) as closes:
            closes.settimeout(SOON)
            threading.Thread(target=close_each, args=(closes,), daemon=True).start()
            port = closes.getsockname()[1]
            with pytest.raises(TimeoutError):
                expire_session(client, f"127.0.0.1:{port}", timeout=0.2)

    def test_a_mute_server_lets_sessions_expire(self, server: EmbeddedServer, join: Join) -> None:
        client = join(server, 1.0)
        told = lost(client)
        client.create("/mine", ephemeral=True)
        server.mute()
        wait_for(lambda: not server._machine.tree.ephemerals, SOON, "expiry")
        server.mute(False)
        assert told.wait(SOON)
        connected(client)
        assert client.exists("/mine") is None

    def test_a_paused_server_goes_on(self, server: EmbeddedServer, join: Join) -> None:
        client = join(server)
        server.pause()
        answer = client.create_async("/x")
        with pytest.raises(TimeoutError):
            four_letter(server.host, server.port, "ruok", timeout=0.2)
        assert not answer.ready()
        server.resume()
        assert answer.get(timeout=SOON) == "/x"

    def test_refused_connections(self, server: EmbeddedServer, join: Join) -> None:
        client = join(server)
        server.refuse()
        client.create("/x")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((server.host, server.port), SOON)
        server.drop()
        wait_for(lambda: not client.connected, SOON, "disconnected")
        server.refuse(False)
        connected(client)
        assert client.exists("/x")

    def test_a_read_only_server(self, server: EmbeddedServer, join: Join) -> None:
        join(server).create("/x", b"1")
        server.read_only()
        assert four_letter(server.host, server.port, "isro") == "ro"
        client = KazooClient(server.hosts, read_only=True)
        client.start(SOON)
        try:
            assert client.get("/x")[0] == b"1"
            with pytest.raises(NotReadOnlyCallError):
                client.set("/x", b"2")
        finally:
            client.stop()
            client.close()
        server.read_only(False)
        assert four_letter(server.host, server.port, "isro") == "rw"

    def test_a_restart_with_shorter_timeouts_shortens_sessions(
        self, server: EmbeddedServer
    ) -> None:
        client = zklock.connect(server.hosts, timeout=10.0)
        try:
            assert client.handler.session_timeout == 10.0
            server.restart(max_session_timeout=2000)
            wait_for(lambda: client.handler.session_timeout == 2.0, SOON, "negotiated anew")
        finally:
            client.stop()
            client.close()

    def test_a_counter_can_be_set(self, server: EmbeddedServer, join: Join) -> None:
        client = join(server)
        client.create("/p")
        server.set_child_counter("/p", 2**31 - 1)
        assert client.create("/p/n-", sequence=True) == "/p/n-2147483647"
        with pytest.raises(KeyError):
            server.set_child_counter("/none", 0)
        with pytest.raises(ValueError, match="32-bit"):
            server.set_child_counter("/p", 2**31)


class TestAsABackend:
    def test_it_is_a_test_server_like_others(self, join: Join) -> None:
        with ZooKeeperServer(backend="embedded") as server:
            assert server.backend == "embedded"
            assert server.mode() == "standalone"
            assert server.version() == "3.8.0"
            client = join(server)
            client.create("/p")
            with pytest.raises(ServerError, match="stop it first"):
                server.set_child_counter("/p", 7)
            server.kill()
            assert server.mode() is None
            server.set_child_counter("/p", 7)
            server.start()
            connected(client)
            assert client.create("/p/n-", sequence=True) == "/p/n-0000000007"
            server.pause()
            assert server.running
            server.resume()

    @pytest.mark.parametrize(
        ("settings", "name"),
        [
            ({"config": {"sslQuorum": "true"}}, "setting sslQuorum"),
            ({"system_properties": {"zookeeper.enforceQuota": "true"}}, "enforceQuota"),
            ({"java_options": ["-Xmx1g"]}, "-Xmx1g"),
            ({"data_dir": "/tmp"}, "data_dir"),
        ],
    )
    def test_what_it_does_not_know_is_refused(self, settings: Any, name: str) -> None:
        with pytest.raises(NotSupported, match=name):
            ZooKeeperServer(backend="embedded", **settings)

    def test_limits_take_effect(self, join: Join) -> None:
        properties = {"jute.maxbuffer": "1000"}
        with ZooKeeperServer(backend="embedded", system_properties=properties) as server:
            client = join(server)
            client.create("/x", bytes(900))
            with pytest.raises(ConnectionLoss):
                client.create("/y", bytes(1000))
            connected(client)
            with pytest.raises(NoNodeError):
                client.get("/y")

    def test_it_has_no_ensembles(self) -> None:
        with pytest.raises(BackendUnavailable, match="container engine or Java"):
            Ensemble(3, backend="embedded")
        with ZooKeeperServer(backend="embedded") as server:
            assert Capability.CUT not in server.capabilities


def test_the_command_serves_until_it_is_ended(join: Join) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "zklock.cli", "dev", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        hosts = process.stdout.readline().strip()
        client = KazooClient(hosts)
        client.start(SOON)
        client.create("/x")
        client.stop()
        client.close()
    finally:
        process.terminate()
        _, said = process.communicate(timeout=SOON)
    assert process.returncode == 143
    assert hosts in said
    assert "never for production" in said


STARTS = """
import os, subprocess, sys
os.open(os.ttyname(2), os.O_RDWR)  # the leader of a session has the terminal that it opens
command = [sys.executable, "-m", "zklock.cli", "dev", "--port", "0"]
group = 0 if sys.argv[1] == "background" else None
session = sys.argv[1] == "without a terminal"
with subprocess.Popen(
    command, stdout=subprocess.PIPE, process_group=group, start_new_session=session
) as server:
    print("serves" if server.stdout.readline() else "has ended")
    server.terminate()
"""


@pytest.mark.parametrize("place", ["foreground", "background", "without a terminal"])
def test_the_command_says_how_to_end_it_and_writes_into_no_prompt(place: str) -> None:
    with Terminal([sys.executable, "-c", STARTS, place]) as terminal:
        assert terminal.finish(SOON) == 0
    *said, last, rest = terminal.lines
    assert (last, rest) == ("serves", "")
    assert [bool(re.search(r"Ctrl-C or kill \d+ ends it", line)) for line in said] == [True] * (
        place != "background"
    )


def test_cons_tells_where_sessions_come_from(server: EmbeddedServer, join: Join) -> None:
    client = join(server)
    session, _ = client.client_id
    first, second, *rest = four_letter(server.host, server.port, "cons").split("\n")
    assert rest == ["", ""]
    assert f"sid={session:#x})" in first
    assert first.startswith(f" /{server.host}:")
    assert "sid=" not in second, "that is the connection that asks"
