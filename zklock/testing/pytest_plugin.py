"""pytest fixtures for a real ZooKeeper, real faults and real session losses, and a simulated one.

What needs kazoo is imported where a fixture first uses it. A test run that uses none of them does
not pay for the import. See ``docs/testing.md``.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import pytest

import zklock
from zklock import testing
from zklock.testing.switches import switch

if TYPE_CHECKING:
    from zklock._shell.connect import Client

Connect: TypeAlias = "Callable[..., Client]"
Expire: TypeAlias = "Callable[[Client | tuple[int, bytes]], int]"

T = TypeVar("T")

_STRICT = "ZKLOCK_TEST_STRICT"
_SESSION_SECONDS = 4.0
_TRIES = 10


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--zklock-strict`` and the ini option with the same meaning."""
    text = (
        f"let every skipped test fail, so that no missing server goes unnoticed; also {_STRICT}=1"
    )
    parser.getgroup("zklock").addoption("--zklock-strict", action="store_true", help=text)
    parser.addini("zklock_strict", text, type="bool", default=False)


def _strict(config: pytest.Config) -> bool:
    asked = config.getoption("--zklock-strict") or config.getini("zklock_strict")
    return bool(asked) or switch(_STRICT)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure in strict mode; an expected failure stays one."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and _strict(item.config):
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn the skip of a whole module into an error in strict mode."""
    report = yield
    if report.skipped and _strict(collector.config):
        _fail(report)
    return report


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"skipped, which strict mode does not allow: {reason}"


_SUBSTITUTE = pytest.StashKey[str]()
"""Why this run plays with the embedded server, if it does."""


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say that tests have run on the embedded server."""
    if why := config.stash.get(_SUBSTITUTE, ""):
        terminalreporter.section("zklock: not a real ZooKeeper")
        terminalreporter.write_line(why)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the reason over to the process that reports."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["zklock_substitute"] = session.config.stash.get(_SUBSTITUTE, "")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take the reason over from one of several processes."""
    del error
    if why := getattr(node, "workeroutput", {}).get("zklock_substitute"):
        node.config.stash[_SUBSTITUTE] = why


def _server(config: pytest.Config) -> testing.ZooKeeperServer:
    """Make a real server; an embedded one where there is none, unless strict mode is on."""
    from zklock.testing.selection import choose_or_embed  # noqa: PLC0415

    if _strict(config):
        return _or_skip(testing.ZooKeeperServer)

    def note(why: str) -> None:
        config.stash[_SUBSTITUTE] = why

    return _or_skip(lambda: testing.ZooKeeperServer(backend=choose_or_embed(note)))


@pytest.fixture(scope="session")
def zklock_server(pytestconfig: pytest.Config) -> Iterator[testing.ZooKeeperServer]:
    """Return a running server that the whole run shares: leave it running as you found it.

    Where neither an engine nor Java can run ZooKeeper, it is the embedded server, and the run's
    summary says so. Strict mode has no substitute.
    """
    with _server(pytestconfig) as server:
        yield server


@pytest.fixture
def zklock_own_server(pytestconfig: pytest.Config) -> Iterator[testing.ZooKeeperServer]:
    """Return a running server for this test alone, to stop, kill and pause."""
    with _server(pytestconfig) as server:
        yield server


@pytest.fixture(scope="session")
def zklock_hosts(zklock_server: testing.ZooKeeperServer) -> str:
    """Return the address of the shared server, ``"host:port"``."""
    return zklock_server.hosts


@pytest.fixture
def _zklock_digests() -> set[tuple[str, str]]:
    """Return the digests of the test's clients: what only these may delete is deleted by them."""
    return set()


@pytest.fixture
def zklock_connect(
    request: pytest.FixtureRequest, zklock_hosts: str, _zklock_digests: set[tuple[str, str]]
) -> Iterator[Connect]:
    """Return ``connect(hosts=None, **options)``: calls `zklock.connect`, stops it after the test.

    ``hosts`` defaults to the shared server; the session timeout defaults to 4 s. Everything below
    ``zklock_path`` is deleted when these clients are stopped: until then they may write.
    """
    if "zklock_path" in request.fixturenames:
        request.getfixturevalue("zklock_path")
    clients: list[Client] = []

    def connect_for_test(hosts: str | None = None, **options: Any) -> Client:
        options.setdefault("timeout", _SESSION_SECONDS)
        clients.append(zklock.connect(zklock_hosts if hosts is None else hosts, **options))
        return clients[-1]

    yield connect_for_test
    for client in reversed(clients):
        _zklock_digests |= {each for each in client.auth_data if each[0] == "digest" and each[1]}
        client.stop()
        client.close()


@pytest.fixture
def zklock_client(zklock_connect: Connect) -> Client:
    """Return a client with its own session on the shared server; stopped after the test."""
    return zklock_connect()


@pytest.fixture
def zklock_path(
    request: pytest.FixtureRequest, zklock_hosts: str, _zklock_digests: set[tuple[str, str]]
) -> Iterator[str]:
    """Return a path that no other test has; not created. Delete what is below it after the test.

    It is deleted with the digests of all clients of ``zklock_connect``. A deletion that ACLs forbid
    to these fails the test.
    """
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")[:60]
    path = f"/zklock-test-{name}-{uuid.uuid4().hex[:12]}"
    yield path
    with zklock.connect(
        zklock_hosts, timeout=_SESSION_SECONDS, auth_data=_zklock_digests
    ) as client:
        _delete_tree(client, path)


@pytest.fixture
def zklock_proxy(zklock_server: testing.ZooKeeperServer) -> Iterator[testing.FaultProxy]:
    """Return a fault proxy for this test alone, in front of the shared server."""
    with testing.FaultProxy(zklock_server) as proxy:
        yield proxy


@pytest.fixture
def zklock_sim() -> Iterator[testing.Simulation]:
    """Return a simulated ZooKeeper for this test alone; the test moves its clock."""
    with testing.simulated() as simulation:
        yield simulation


@pytest.fixture
def zklock_expire_session(zklock_hosts: str) -> Expire:
    """Return ``expire(session)``: `zklock.testing.expire_session` on the shared server."""
    return lambda session: testing.expire_session(session, zklock_hosts)


@pytest.fixture(scope="session")
def _zklock_shared_ensemble() -> Iterator[testing.Ensemble]:
    with _or_skip(testing.Ensemble) as ensemble:
        yield ensemble


@pytest.fixture
def zklock_ensemble(_zklock_shared_ensemble: testing.Ensemble) -> Iterator[testing.Ensemble]:
    """Return three running servers that the run shares; mended after each test."""
    ensemble = _zklock_shared_ensemble
    yield ensemble
    ensemble.heal_all()
    if testing.Capability.CONTROL in ensemble.capabilities:
        for server in ensemble.servers:
            server.resume()
            server.launch()
        if not _whole(ensemble):
            ensemble.stop()
            ensemble.start()


def _whole(ensemble: testing.Ensemble) -> bool:
    modes = sorted(str(server.mode()) for server in ensemble.servers)
    # A leader that was cut off still calls itself leader for a while; so test for sessions, too.
    return modes == [*["follower"] * (len(modes) - 1), "leader"] and all(
        testing.serves_sessions(server.hosts) for server in ensemble.servers
    )


def _delete_tree(client: Client, path: str) -> None:
    from kazoo.exceptions import NoAuthError, NotEmptyError  # noqa: PLC0415
    from kazoo.retry import KazooRetry  # noqa: PLC0415

    again = KazooRetry(max_tries=3)  # a connection is lost where a busy server is slow
    for _ in range(_TRIES):
        try:
            again(client.delete, path, recursive=True)
        except NotEmptyError:  # a contender that was dying has created one more node
            continue
        except NoAuthError as error:
            raise RuntimeError(
                f"an ACL below {path} forbids its deletion: delete it in the test, or use a client "
                "of zklock_connect with the digest that may"
            ) from error
        return
    raise RuntimeError(f"{path} is still written to after its test: stop its clients in the test")


def _or_skip(make: Callable[[], T]) -> T:
    try:
        return make()
    except testing.BackendUnavailable as error:
        pytest.skip(str(error))
