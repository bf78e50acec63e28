"""The contract suite leaves nothing behind."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import zklock
from tests import modes, trace
from tests.contract import lacking
from tests.contract.fronts import FRONTS, Behind, Loop, Place, Places, Threads, on_loop
from tests.contract.scenes import Stage
from tests.contract.secure import Authority, secure_server
from tests.contract.simulated import SIMULATED, FlowingClock, flowing
from tests.contract.support import SOON, boottime, descriptors, kazoo_client
from zklock import telemetry
from zklock.testing import BackendUnavailable, FaultProxy, Simulation, ZooKeeperServer, wait_for
from zklock.testing.external import ExternalBackend
from zklock.testing.java import Installation, JavaBackend
from zklock.testing.ports import free_ports

if TYPE_CHECKING:
    from tests.contract.test_cli import Commands

PLAYED = modes.played()

# multiprocessing keeps these for as long as the tests run.
KEPT = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")

# The interpreter, pytest and logging open a few files when they are first used.
SPARE_DESCRIPTORS = 8


ON_ONE_FRONT = re.compile(r"/test_(family|pool|pool_names|pool_troubles)\.py")
"""What is tried with threads in every run, and for asyncio each night. There, every run has each
kind of lock in ``test_both_fronts.py`` and ``test_aio_family.py``, and pools in
``test_aio_pool.py``."""


def pytest_configure(config: pytest.Config) -> None:
    if PLAYED:
        from tests.contract import played

        played.register(config)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        pyfuncitem.obj = on_loop(pyfuncitem.obj)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if left_out := lacking.left_out(items):
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    if PLAYED:
        chosen = set(lacking.played(items))
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]
    if modes.on_real_servers():
        elsewhere = pytest.mark.thorough("what stage A plays, with one of each kind played here")
        for item in lacking.played(items):
            if not ALSO_REAL.search(item.nodeid):
                item.add_marker(elsewhere)
    asyncio = pytest.mark.thorough(
        "kinds and pools on both fronts: one recipe drives them; test_both_fronts.py, "
        "test_aio_family.py and test_aio_pool.py run"
    )
    for item in [] if PLAYED else items:
        callspec = getattr(item, "callspec", None)
        if (
            callspec is not None
            and Loop in callspec.params.values()
            and ON_ONE_FRONT.search(item.nodeid)
        ):
            item.add_marker(asyncio)
    lacking.mark(items)


ALSO_REAL = re.compile(
    r"/test_both_fronts\.py::(TestGrants::test_from_acquire|TestGivingUp::test_in_time\[.*how2"
    r"|TestLoss::test_is_told_once)"
    r"|/test_(hostile|numbers|payloads)\.py"
    r"|/test_fifo\.py"
    r"|/test_loss\.py::test_a_(paused_holder_knows|holder_whose_server_was_killed)"
    r"|/test_family\.py::Test(Semaphore|ReadWrite|MultiLock)::test_(keeps_its_limit|readers_)"
    r"|/test_drops\.py::test_every_frame_is_lost_once\[(free_lock|hand_over)"
    r"|/test_election\.py::.*(are_one_at_a_time|loses_its_session)"
    r"|/test_pool\.py::test_(zookeeper_goes|a_crash)"
    r"|/test_negotiation\.py|/test_throttling\.py"
)
"""Tests that are played in stage A, and on a real server in stage B, too: one good and one bad way
of each kind, and what depends on a server's answers."""

TRACED = re.compile(r"/test_(drops|drops_family|fifo|slow_answers|struck|throttling)\.py")
"""The files whose locks are held against the model of the recipe: see ``tests/trace.py``. In these,
frames are lost, interrupts strike and many contend, and no operator deletes nodes or sessions."""

Traced = tuple[list[telemetry.Event], telemetry.Subscription]


@pytest.fixture(scope="module")
def told(nothing_left_over: None) -> Iterator[Traced]:
    """What zklock tells of its locks in all tests of a file; held against the model in the end."""
    events: list[telemetry.Event] = []
    subscription = telemetry.subscribe(events.append, most=10**6)
    yield events, subscription
    try:
        # The end of a grant is told a moment after its client was stopped.
        wait_for(
            lambda: subscription.flush(SOON) and not trace.lasting(events),
            SOON,
            lambda: f"never ended: {trace.lasting(events)}",
        )
    finally:
        subscription.close()
    assert subscription.dropped == 0
    assert trace.faults(events) == []


@pytest.fixture(autouse=True)
def behaves_as_the_model(request: pytest.FixtureRequest) -> None:
    """Have what zklock tells of its locks in this test held against the model."""
    if TRACED.search(str(request.node.path)):
        events, subscription = request.getfixturevalue("told")
        assert subscription.flush(SOON)
        events.append(trace.Elsewhere(at=boottime()))


def offspring() -> list[int]:
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that has ended meanwhile
            found += map(int, (task / "children").read_text().split())
    return sorted(pid for pid in found if not kept(pid))


def kept(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False
    return any(name in command for name in KEPT)


@pytest.fixture(scope="session", autouse=not PLAYED)
def nothing_left_over(zklock_hosts: str) -> Iterator[None]:
    """Compare znodes, threads, processes and descriptors before and after all tests."""
    with kazoo_client(zklock_hosts) as client:
        roots = set(client.get_children("/"))
    before_children, before_descriptors = offspring(), descriptors()
    yield
    gc.collect()
    wait_for(lambda: not left_threads(), SOON, lambda: f"threads left: {left_threads()}")
    wait_for(lambda: offspring() == before_children, SOON, lambda: f"processes left: {offspring()}")
    wait_for(
        lambda: len(descriptors()) <= len(before_descriptors) + SPARE_DESCRIPTORS,
        SOON,
        lambda: f"descriptors left: {sorted(set(descriptors()) - set(before_descriptors))}",
    )
    with kazoo_client(zklock_hosts) as client:
        assert set(client.get_children("/")) == roots


def left_threads() -> list[str]:
    names = (thread.name for thread in threading.enumerate())
    return [name for name in names if name.startswith(("zklock-", "contract-test"))]


@pytest.fixture
def session_seconds() -> float:
    """How long sessions last where a test does not say it: see ``LASTING``."""
    return 10.0


@pytest.fixture(scope="session")
def flowing_clock() -> Iterator[FlowingClock | None]:
    """The clock of the simulation that the tests play on, if they do."""
    if SIMULATED:
        with flowing() as flowing_clock:
            yield flowing_clock
    else:
        yield None


@pytest.fixture(scope="session")
def simulation(flowing_clock: FlowingClock | None) -> Simulation | None:
    """The simulation that the tests play on, if they do."""
    return None if flowing_clock is None else flowing_clock.simulation


@pytest.fixture(autouse=True)
def clock_goes_on(flowing_clock: FlowingClock | None) -> Iterator[None]:
    """Have the test fail, and not hang, if the clock of the simulation fails."""
    with nullcontext() if flowing_clock is None else flowing_clock.watched():
        yield


if PLAYED:

    @pytest.fixture(scope="session")
    def zklock_hosts() -> str:
        """The simulated server that the tests share."""
        from tests.contract.played import SERVER

        return SERVER

    @pytest.fixture(scope="session")
    def zklock_server(zklock_hosts: str) -> SimpleNamespace:
        """As much of a server as a proxy in front of it needs."""
        host, _, port = zklock_hosts.partition(":")
        return SimpleNamespace(hosts=zklock_hosts, host=host, port=int(port))


if SIMULATED:

    @pytest.fixture(scope="session")
    def zklock_server(simulation: Simulation) -> Iterator[ZooKeeperServer]:
        """The server of the simulation, for clients that only look, and for proxies."""
        with ZooKeeperServer(backend=ExternalBackend(simulation.hosts)) as server:
            yield server


@pytest.fixture
def zklock_connect(
    zklock_connect: Callable[..., Any],
    simulation: Simulation | None,
    session_seconds: float,
    request: pytest.FixtureRequest,
) -> Callable[..., Any]:
    """The plugin's, with sessions that outlive the stalls of a busy machine."""

    def connect(hosts: str | None = None, **options: Any) -> Any:
        options = {"timeout": session_seconds, **options}
        if simulation is None or hosts not in {None, simulation.hosts}:
            return zklock_connect(hosts, **options)
        client = simulation.client(**options)
        request.addfinalizer(client.close)
        request.addfinalizer(client.stop)
        return client

    return connect


@pytest.fixture
def client(
    request: pytest.FixtureRequest,
    zklock_hosts: str,
    simulation: Simulation | None,
    session_seconds: float,
) -> Iterator[Any]:
    """A client, stopped before the path of the test is deleted."""
    if "zklock_path" in request.fixturenames:
        request.getfixturevalue("zklock_path")
    if simulation is None:
        started = zklock.connect(zklock_hosts, timeout=session_seconds)
    else:
        started = simulation.client(timeout=session_seconds)
    yield started
    started.stop()
    started.close()


@pytest.fixture
def requests_take_time(
    client: Any, simulation: Simulation | None
) -> Callable[[], AbstractContextManager[None]]:
    """Return ``with requests_take_time(): …``: what the client asks meanwhile takes time.

    Else none passes on a simulation, whose clock waits for answers.
    """

    @contextlib.contextmanager
    def cut_off() -> Iterator[None]:
        assert simulation is not None
        simulation.partition(client)
        try:
            yield
        finally:
            simulation.heal(client)

    return nullcontext if simulation is None else cut_off


@pytest.fixture
def zk(
    zklock_hosts: str, zklock_path: str, tmp_path: Path, zklock_connect: Callable[..., Any]
) -> Iterator[Commands]:
    """The command, as users start it, on the server of these tests."""
    from tests.contract.test_cli import Commands

    commands = Commands(zklock_hosts, zklock_path, tmp_path, zklock_connect)
    yield commands
    commands.close()


@pytest.fixture
def patient(zklock_connect: Callable[..., Any]) -> Any:
    """A client whose session outlives commands that are slow to start."""
    return zklock_connect(timeout=30.0)


@pytest.fixture
def stage(zklock_path: str, zklock_connect: Callable[..., Any]) -> Iterator[Stage]:
    """Contenders for commands to look at."""
    with contextlib.ExitStack() as stack:
        yield Stage(zklock_path, partial(zklock_connect, timeout=30.0), stack)


@pytest.fixture(params=FRONTS, ids=lambda front: front.name)
def front(request: pytest.FixtureRequest) -> Iterator[Threads | Loop]:
    """Each front in turn."""
    made = request.param()
    yield made
    made.close()


@pytest.fixture
def other(zklock_connect: Callable[..., Any], session_seconds: float) -> Any:
    """Another client, with a session of its own."""
    return zklock_connect(timeout=session_seconds)


@pytest.fixture
def mine(front: Any, client: Any, zklock_path: str) -> Place:
    """The path of the test, for each front and a client."""
    return Place(front, client, zklock_path)


@pytest.fixture
def theirs(front: Any, other: Any, zklock_path: str) -> Place:
    """The same path, for another client."""
    return Place(front, other, zklock_path)


@pytest.fixture
def places(front: Any, zklock_connect: Any, zklock_path: str) -> Places:
    """Return ``places(3)``: the same path, for so many clients more."""
    return lambda count, **options: [
        Place(front, zklock_connect(**options), zklock_path) for _ in range(count)
    ]


@pytest.fixture
def behind(front: Any, zklock_proxy: FaultProxy, zklock_connect: Any, zklock_path: str) -> Behind:
    """The same path, for clients behind the proxy: ``behind(timeout=10.0, **options)``."""
    connect = partial(zklock_connect, zklock_proxy.hosts)
    return Behind(lambda **options: Place(front, connect(**options), zklock_path), zklock_proxy)


@pytest.fixture
def make_lock(client: Any, zklock_path: str) -> Callable[..., zklock.Lock]:
    """Return ``Lock`` on the client and the path of the test."""
    return partial(zklock.Lock, client, zklock_path)


def with_admin_server() -> JavaBackend:
    """Return a local Java that can run ZooKeeper's admin server, which needs Jetty."""
    nothing: dict[str, str] = {}
    for environ in (os.environ, nothing):
        try:
            found = Installation.find(environ)
        except BackendUnavailable:
            continue
        folders = {Path(part).parent for part in found.classpath}
        jetty = [jar for folder in folders for jar in folder.glob("jetty*server*.jar")]
        # Debian's class path lacks this one.
        servlets = [str(jar) for folder in folders for jar in folder.glob("*servlet-api*.jar")]
        if jetty and servlets:
            return JavaBackend(replace(found, classpath=(*found.classpath, servlets[0])))
    pytest.skip("no local Java with ZooKeeper and Jetty")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A certificate authority."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tls_port() -> int:
    """The port of ``secured`` that takes TLS alone."""
    (port,) = free_ports()
    return port


@pytest.fixture(scope="module")
def secured(
    authority: Authority, tls_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ZooKeeperServer]:
    """A server for TLS and SASL."""
    with secure_server(authority, tmp_path_factory.mktemp("sasl"), tls_port) as started:
        yield started


@pytest.fixture
def path(secured: ZooKeeperServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """A path of ``secured``."""
    name = f"/{abs(hash(request.node.nodeid)):x}"
    with kazoo_client(secured.hosts) as client:
        client.create(name)
        yield name
        for child in client.get_children(name):  # what is below them may be private
            client.delete(f"{name}/{child}")
        client.delete(name)


@pytest.fixture
def administered() -> Iterator[tuple[ZooKeeperServer, int]]:
    """A server that obeys no four-letter word but ``srvr``, and its admin server's port."""
    (port,) = free_ports()
    config = {
        "admin.enableServer": "true",
        "admin.serverAddress": "127.0.0.1",
        "admin.serverPort": str(port),
        "4lw.commands.whitelist": "srvr",
    }
    backend = with_admin_server()
    with ZooKeeperServer(backend=backend, config=config, max_session_timeout=None) as server:
        yield server, port
