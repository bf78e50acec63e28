from __future__ import annotations

import gc
import os
import platform
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.contract.fencing import databases, guards_under_test
from zklock.fencing import MemoryGuards
from zklock.testing import BackendUnavailable, ZooKeeperServer, srvr
from zklock.testing.guard_conformance import Subject


def started(make: Callable[[], databases.Server]) -> Iterator[databases.Server]:
    try:
        server = make()
    except databases.Unavailable as error:
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def collected() -> Iterator[None]:
    """Collect garbage at the end: what a test leaves open would fail a later one."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[databases.Server]:
    yield from started(databases.PostgreSql)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[databases.Server]:
    yield from started(databases.MariaDb)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[databases.Server]:
    yield from started(databases.Redis)


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[databases.Server]:
    yield from started(lambda: databases.Redis(cluster=True))


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeperServer]:
    # It is restarted and closed while others count descriptors, of which the client of a
    # container engine keeps idle ones: a local Java, unless the environment asks for another.
    asked = os.environ.get("ZKLOCK_TEST_BACKEND") or os.environ.get("ZKLOCK_TEST_HOSTS")
    try:
        server = ZooKeeperServer(backend=None if asked else "java")
    except BackendUnavailable:
        try:
            server = ZooKeeperServer()
        except BackendUnavailable as error:
            pytest.skip(str(error))
    with server:
        yield server


class Stores:
    """Makes the subject of each kind once, starting its server at the first use."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path, stack: ExitStack) -> None:
        self._request = request
        self._folder = folder
        self._stack = stack
        self._made: dict[str, Subject] = {}

    def __getitem__(self, kind: str) -> Subject:
        if kind not in self._made:
            store, _, variant = kind.partition("-")
            self._made[kind] = getattr(self, f"_{store}")(variant)
        return self._made[kind]

    def _server(self, name: str) -> databases.Server:
        server: databases.Server = self._request.getfixturevalue(name)
        return server

    def _memory(self, _: str) -> Subject:
        return guards_under_test.Memory(f"MemoryGuard, Python {platform.python_version()}")

    def _http(self, _: str) -> Subject:
        app = guards_under_test.application(MemoryGuards(capacity=100_000), {})
        url = self._stack.enter_context(guards_under_test.served(app))
        return guards_under_test.Service("MemoryGuards behind HTTP", url=url)

    def _file(self, _: str) -> Subject:
        return guards_under_test.Files(f"FileGuard, {platform.system()}", folder=str(self._folder))

    def _sqlite(self, variant: str) -> Subject:
        path = self._folder / f"database{variant}"
        name = f"SQLite {sqlite3.sqlite_version}"
        url = f"sqlite+aiosqlite:///{path}?timeout=30" if variant == "aiosqlite" else ""
        if variant == "sqlalchemy":
            return self._sql(name, variant, f"sqlite:///{path}?timeout=30", lambda: None)
        return self._sql(name, "sqlite3", str(path), lambda: None, url=url)

    def _postgresql(self, variant: str) -> Subject:
        server = self._server("postgresql")
        name = f"PostgreSQL {server.version}"
        where = f"zklock@127.0.0.1:{server.port}/postgres"
        if variant == "sqlalchemy":
            return self._sql(name, variant, f"postgresql+psycopg://{where}", server.restart)
        assert isinstance(server, databases.PostgreSql)
        if variant == "asyncpg":
            url = f"postgresql+asyncpg://{where}"
            return self._sql(name, "psycopg", server.dsn, server.restart, url=url)
        return self._sql(name, "psycopg", server.dsn, server.restart, variant)

    def _mariadb(self, variant: str) -> Subject:
        server = self._server("mariadb")
        name = f"MariaDB {server.version}"
        if variant == "sqlalchemy":
            url = f"mysql+pymysql://root@127.0.0.1:{server.port}/zklock"
            return self._sql(name, variant, url, server.restart)
        return self._sql(name, "pymysql", str(server.port), server.restart, variant)

    def _sql(
        self,
        name: str,
        driver: str,
        where: str,
        restart: Callable[[], None],
        isolation: str = "",
        url: str = "",
    ) -> Subject:
        """``url``: of the guard for asyncio, if it is to be that one."""
        store: guards_under_test.Sql
        if url:
            package = re.split(r"[+:]", url)[1]
            name = f"aio.SqlGuard, {name}, {package} {version(package)}"
            store = guards_under_test.AsyncSql(name, driver=driver, where=where, url=url)
        else:
            package = {"sqlite3": "Python", "sqlalchemy": "SQLAlchemy", "pymysql": "PyMySQL"}.get(
                driver, driver
            )
            number = platform.python_version() if driver == "sqlite3" else version(package)
            name = f"SqlGuard, {name}, {package} {number} {isolation}".rstrip()
            level = isolation.upper().replace("-", "_")
            store = guards_under_test.Sql(name, driver=driver, where=where, isolation=level)
        guards_under_test.RESTART[name] = restart
        store.create_tables()
        return store

    def _redis(self, variant: str) -> Subject:
        cluster = variant.startswith("cluster")
        server = self._server("redis_cluster" if cluster else "redis_server")
        name = f"RedisGuard, Redis {server.version}{' cluster' if cluster else ''}"
        store = guards_under_test.RedisStore
        if variant.endswith("asyncio"):
            name, store = f"aio.{name}", guards_under_test.AsyncRedisStore
        guards_under_test.RESTART[name] = server.restart
        return store(name, port=server.port, cluster=cluster)

    def _zookeeper(self, _: str) -> Subject:
        server: ZooKeeperServer = self._request.getfixturevalue("zookeeper")
        host, port = server.hosts.split(":")
        name = f"ZooKeeperGuard, ZooKeeper {srvr(host, int(port)).version}"

        def restart() -> None:
            server.stop()
            server.start()

        guards_under_test.RESTART[name] = restart
        return guards_under_test.ZooKeeperStore(name, hosts=server.hosts)


@pytest.fixture(scope="session")
def stores(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stores]:
    with ExitStack() as stack:
        stack.callback(guards_under_test.dispose_engines)
        yield Stores(request, tmp_path_factory.mktemp("stores"), stack)
