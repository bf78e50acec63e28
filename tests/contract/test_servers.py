"""ZooKeeperServer does what it says, on every backend that runs here."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError

import zklock
from tests.backends import NAMES, backend_or_skip
from zklock.testing import (
    Backend,
    Capability,
    ServerError,
    StartFailed,
    ZooKeeperServer,
    four_letter,
    srvr,
    wait_for,
)

ENDS = pytest.mark.thorough(
    "ends of servers, each in each way: they change with zklock.testing alone; one of each way runs"
)
NAMED = pytest.mark.thorough(
    "strange names of a server's folders in C.UTF-8, too: in C, which runs, Java knows fewer"
)
CONTAINERS = pytest.mark.thorough("servers in containers, which take seconds to start and to stop")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[CONTAINERS] * (name == "container")) for name in NAMES],
)
def backend(request: pytest.FixtureRequest) -> Backend:
    return backend_or_skip(request.param)


@pytest.fixture
def server(backend: Backend) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(backend=backend) as running:
        yield running


@pytest.fixture(scope="module")
def standing(backend: Backend) -> Iterator[ZooKeeperServer]:
    """A server for tests that leave it as they found it: a start costs more than they do."""
    with ZooKeeperServer(backend=backend) as running:
        yield running


Start = Callable[[str], tuple["subprocess.Popen[str]", int, str]]


@contextlib.contextmanager
def connected(server: ZooKeeperServer, timeout: float = 4.0) -> Iterator[KazooClient]:
    client = KazooClient(server.hosts, timeout=timeout)
    client.start(15)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def refuses(server: ZooKeeperServer) -> bool:
    try:
        socket.create_connection((server.host, server.port), 1).close()
    except OSError:
        return True
    return False


def test_it_serves_when_entered_and_is_gone_when_left(backend: Backend) -> None:
    with ZooKeeperServer(backend=backend) as server:
        assert server.running
        assert server.hosts == f"127.0.0.1:{server.port}"
        assert server.mode() == "standalone"
        assert server.version().startswith("3.")
        with connected(server) as client:
            client.create("/here", b"")
    assert refuses(server)
    assert server.mode() is None
    server.close()


def test_constructing_starts_nothing(backend: Backend) -> None:
    server = ZooKeeperServer(backend=backend)
    assert not server.running
    assert refuses(server)
    server.stop()
    server.kill()
    server.resume()
    with pytest.raises(StartFailed, match="down"):
        server.pause()
    server.close()
    with pytest.raises(ServerError, match="closed"):
        server.start()


def test_in_a_forked_child_its_end_does_nothing(standing: ZooKeeperServer) -> None:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            standing.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert standing.mode() == "standalone"


@pytest.mark.parametrize("verb", ["stop", "kill", "restart"])
def test_port_data_and_sessions_survive(server: ZooKeeperServer, verb: str) -> None:
    port = server.port
    # zklock's client: a port of a container accepts before its server does, and kazoo's would wait
    # a whole session timeout for the answer to a handshake that nobody reads.
    with zklock.connect(server.hosts, timeout=60) as client:
        client.create("/kept", b"data")
        client.create("/mine", b"", ephemeral=True)
        session = client.client_id[0]
        getattr(server, verb)()
        if verb != "restart":
            assert not server.running
            assert refuses(server)
            server.start()
        assert server.port == port
        assert client.retry(client.get, "/kept")[0] == b"data"
        assert client.retry(client.exists, "/mine").ephemeralOwner == session


def test_paused_it_is_silent_and_goes_on_afterwards(server: ZooKeeperServer) -> None:
    with socket.create_connection((server.host, server.port), 5) as connection:
        server.pause()
        server.pause()
        assert server.running
        connection.sendall(b"srvr")
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        server.resume()
        connection.settimeout(10)
        assert connection.recv(9) == b"Zookeeper"
    server.resume()
    assert server.mode() == "standalone"


@pytest.mark.parametrize(
    "verb", ["stop", pytest.param("kill", marks=ENDS), pytest.param("close", marks=ENDS)]
)
def test_a_paused_server_can_be_ended(backend: Backend, verb: str) -> None:
    with ZooKeeperServer(backend=backend) as server:
        server.pause()
        getattr(server, verb)()
        assert not server.running
        if verb != "close":
            server.start()
            assert server.mode() == "standalone"


def test_tick_and_session_timeouts_take_effect(backend: Backend) -> None:
    with ZooKeeperServer(tick_time=400, max_session_timeout=7000, backend=backend) as server:
        asked = {milliseconds: ask_for_session(server, milliseconds) for milliseconds in ASKED}
    assert asked == ASKED


ASKED = {100: 800, 5000: 5000, 100_000: 7000}
"""Session timeouts that are asked for, and those that are given: the least, this one, the most."""


def ask_for_session(server: ZooKeeperServer, milliseconds: int) -> int:
    """Send a ConnectRequest and return the timeout of the ConnectResponse."""
    request = struct.pack(">iqiqi16s?", 0, 0, milliseconds, 0, 16, b"", False)
    with socket.create_connection((server.host, server.port), 5) as connection:
        connection.sendall(len(request).to_bytes(4) + request)
        answer = connection.recv(12, socket.MSG_WAITALL)
    return int.from_bytes(answer[8:12])


def test_further_settings_reach_the_server(backend: Backend) -> None:
    with ZooKeeperServer(
        backend=backend,
        config={"maxClientCnxns": "7"},
        system_properties={"zookeeper.extendedTypesEnabled": "true"},
        java_options=["-Xmx99m"],
    ) as server:
        assert "maxClientCnxns=7" in four_letter(server.host, server.port, "conf")
        environment = four_letter(server.host, server.port, "envi")
        assert "os.memory.max=9" in environment
        with connected(server) as client:
            client.create("/parent", b"")


def test_any_word_is_answered_and_clients_are_not_limited(standing: ZooKeeperServer) -> None:
    assert four_letter(standing.host, standing.port, "ruok") == "imok"
    assert "maxClientCnxns=0" in four_letter(standing.host, standing.port, "conf")
    before = standing.status().received
    standing.start()  # which changes nothing
    assert standing.status().received > before


def test_a_server_that_cannot_start_says_why(backend: Backend) -> None:
    server = ZooKeeperServer(backend=backend, java_options=["-XX:+NoSuchOption"])
    with pytest.raises(StartFailed, match="NoSuchOption"), server:
        pytest.fail("it started with an option that Java does not know")
    assert not server.running


def test_a_server_that_never_serves_is_ended(backend: Backend) -> None:
    peers = {"server.1": "127.0.0.1:1:2", "server.2": "127.0.0.1:3:4", "server.3": "127.0.0.1:5:6"}
    server = ZooKeeperServer(backend=backend, config=peers)
    with contextlib.closing(server):
        with pytest.raises(StartFailed, match=r"ended instead of serving|does not serve within"):
            server.start(3)
        assert not server.running


def test_a_given_data_dir_is_kept(backend: Backend, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with ZooKeeperServer(backend=backend, data_dir=folder) as server:
        assert server.data_dir == folder
        with connected(server) as client:
            client.create("/kept", b"data")
    assert (folder / "version-2").is_dir()
    with ZooKeeperServer(backend=backend, data_dir=folder) as server, connected(server) as client:
        assert client.get("/kept")[0] == b"data"


@pytest.mark.parametrize("backend", ["java"], indirect=True)
@pytest.mark.parametrize("locale", [pytest.param("C.UTF-8", marks=NAMED), "C"])
@pytest.mark.parametrize("given", [False, True], ids=["own folder", "given folder"])
def test_folders_may_have_any_name(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locale: str, given: bool
) -> None:
    tmp = tmp_path / "tmp: \N{LATIN SMALL LETTER U WITH DIAERESIS}\\u0041 "
    tmp.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp))
    monkeypatch.setenv("LC_ALL", locale)
    with ZooKeeperServer(backend=backend, data_dir=tmp / "data" if given else None) as server:
        assert server.data_dir is not None
        assert (server.data_dir / "version-2").is_dir()
        with connected(server) as client:
            client.create("/a")
        server.stop()
        server.set_child_counter("/a", 7)
        server.start()
        with connected(server) as client:
            assert client.create("/a/", sequence=True).endswith("7")
    assert list(tmp_path.iterdir()) == [tmp]
    assert [path.name for path in tmp.iterdir()] == (["data"] if given else [])


def test_one_line_says_what_serves(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "zklock.testing"), ZooKeeperServer(backend=backend) as server:
        version = server.version()
        server.restart()
    ours = ("zklock.testing", "INFO")
    (record,) = [one for one in caplog.records if (one.name, one.levelname) == ours]
    assert f"ZooKeeper {version}" in record.getMessage()
    assert backend.describe() in record.getMessage()


def test_the_next_child_has_the_number_of_a_counter_that_was_set(server: ZooKeeperServer) -> None:
    if Capability.DATA not in server.capabilities:
        pytest.skip("the data are not shown")
    with connected(server) as client:
        for path in ("/locks/a", "/locks/b", "/negative"):
            client.create(path, b"", makepath=True)
        assert client.create("/locks/a/x-", sequence=True) == "/locks/a/x-0000000000"
    with pytest.raises(ServerError, match="stop it first"):
        server.set_child_counter("/", 1)
    server.kill()
    server.set_child_counter("/locks/a", 2**31 - 2)
    server.set_child_counter("/negative", -5)
    with pytest.raises(KeyError, match="/nowhere"):
        server.set_child_counter("/nowhere", 1)
    server.start()
    with connected(server) as client:
        last = [client.create("/locks/a/x-", sequence=True) for _ in range(2)]
        assert last == ["/locks/a/x-2147483646", "/locks/a/x-2147483647"]
        with pytest.raises(NodeExistsError):
            client.create("/locks/a/x-", sequence=True)
        assert client.create("/locks/b/x-", sequence=True) == "/locks/b/x-0000000000"
        assert client.create("/negative/x-", sequence=True) == "/negative/x--000000005"
        assert sorted(client.get_children("/locks/a"))[0] == "x-0000000000"
    server.restart()
    with connected(server) as client:
        assert len(client.get_children("/locks/a")) == 3


SCRIPT = """
import os, sys, threading, time
from zklock.testing import ZooKeeperServer
server = ZooKeeperServer(backend=sys.argv[1])
if sys.argv[2] != "unstarted":
    starter = threading.Thread(target=server.start)
    starter.start(); starter.join()
if sys.argv[2] == "stopped": server.stop()
if sys.argv[2] == "forked" and os.fork() == 0:
    os.setsid(); time.sleep(60); os._exit(0)
print(server.port, server.data_dir, flush=True)
if sys.argv[2] == "returns": sys.exit(0)
if sys.argv[2] == "fails": raise RuntimeError
if sys.argv[2] == "with":
    with server: time.sleep(60)
time.sleep(60)
"""


class TestNothingIsLeft:
    """However the process ends that started a server: server, folder and container go."""

    @pytest.fixture
    def start(self, backend: Backend) -> Iterator[Start]:
        processes: list[subprocess.Popen[str]] = []

        def start(how: str) -> tuple[subprocess.Popen[str], int, str]:
            process = subprocess.Popen(
                [sys.executable, "-W", "ignore::ResourceWarning", "-c", SCRIPT, backend.name, how],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
            processes.append(process)
            assert process.stdout is not None
            port, folder = process.stdout.readline().split()
            return process, int(port), folder

        yield start
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    @staticmethod
    def assert_gone(backend: Backend, port: int, folder: str) -> None:
        def silent() -> bool:
            try:
                srvr("127.0.0.1", port, timeout=1)
            except OSError:
                return True
            return False

        wait_for(silent, 20, f"port {port} to be silent")
        if folder != "None":
            wait_for(lambda: not Path(folder).parent.exists(), 10, f"{folder} to go")
        wait_for(lambda: port not in published(backend), 20, f"the container at port {port} to go")

    @pytest.mark.parametrize(
        ("how", "number"),
        [
            ("returns", 0),
            ("fails", 0),
            ("with", signal.SIGINT),
            pytest.param("with", signal.SIGTERM, marks=ENDS),
            ("with", signal.SIGKILL),
            *(pytest.param("waits", number, marks=ENDS) for number in (2, 9, 15)),
            ("unstarted", signal.SIGKILL),
            ("stopped", signal.SIGKILL),
            ("forked", signal.SIGKILL),
        ],
    )
    def test_when_a_process_ends(
        self, backend: Backend, start: Start, how: str, number: int
    ) -> None:
        """It returns or fails without closing, or is killed, while its server is up or down."""
        process, port, folder = start(how)
        if how in {"with", "waits"}:
            assert srvr("127.0.0.1", port).mode == "standalone"
        if number:
            process.send_signal(number)
        process.wait(30)
        self.assert_gone(backend, port, folder)

    # A container is removed by the engine, paused or not.
    @pytest.mark.parametrize("backend", ["java"], indirect=True)
    def test_a_paused_server_goes_too(self, backend: Backend, start: Start) -> None:
        process, port, folder = start("waits")
        (pid,) = (pid for pid in working_in(Path(folder).parent) if is_java(pid))
        os.kill(pid, signal.SIGSTOP)
        process.kill()
        process.wait(30)
        self.assert_gone(backend, port, folder)
        wait_for(lambda: not Path(f"/proc/{pid}").exists(), 10, f"process {pid} to go")


def working_in(folder: Path) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cwd").readlink() == folder:
                yield int(entry.name)


def is_java(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").readlink().name == "java"


def engine() -> Any:
    docker = pytest.importorskip("docker")
    return docker.from_env()


def published(backend: Backend) -> set[int]:
    """Return the ports that containers of any test process publish."""
    if backend.name != "container":
        return set()
    with contextlib.closing(engine()) as client:
        found = client.containers.list(
            all=True, filters={"label": "zklock.testing.group"}, ignore_removed=True
        )
        return {
            int(binding["HostPort"])
            for container in found
            for bindings in (container.attrs["HostConfig"]["PortBindings"] or {}).values()
            for binding in bindings
        }
