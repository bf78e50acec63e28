"""The guards and stores that the conformance suite is run over."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import socketserver
import sqlite3
import threading
import urllib.error
import urllib.request
import uuid
import wsgiref.simple_server
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from kazoo.client import KazooClient

import zklock
from zklock.errors import StaleToken
from zklock.fencing import (
    Fenced,
    FileGuard,
    Guard,
    MemoryGuard,
    MemoryGuards,
    RedisGuard,
    SqlGuard,
    WsgiFencing,
    ZooKeeperGuard,
    aio as fencing_aio,
)
from zklock.fencing.guard import token_of
from zklock.fencing.http import HEADER
from zklock.fencing.sql import Dialect
from zklock.testing.guard_conformance import Handle, Subject
from zklock.token import FencingToken

RESTART: dict[str, Callable[[], None]] = {}
"""How the store of a subject is restarted, by the subject's name; this process alone can."""


def unused() -> str:
    return uuid.uuid4().hex[:12]


@dataclass(frozen=True)
class Store(Subject):
    name: str
    resource: str = field(default_factory=unused)

    def restart(self) -> None:
        RESTART[self.name]()


# SQL


@dataclass(frozen=True)
class Sql(Store):
    driver: str = "sqlite3"
    where: str = ""
    isolation: str = ""

    def connect(self) -> Any:
        if self.driver == "sqlite3":
            return sqlite3.connect(self.where, timeout=30)
        if self.driver == "psycopg":
            import psycopg

            connection = psycopg.connect(self.where)
            if self.isolation:
                connection.isolation_level = psycopg.IsolationLevel[self.isolation]
            return connection
        if self.driver == "pymysql":
            import pymysql

            level = self.isolation.replace("_", " ")
            setting = f"SET SESSION TRANSACTION ISOLATION LEVEL {level}" if level else None
            return pymysql.connect(
                host="127.0.0.1",
                port=int(self.where),
                user="root",
                database="zklock",
                init_command=setting,
            )
        return _engine(self.where).connect()

    def fresh(self) -> Sql:
        made = replace(self, resource=unused())
        guard_of(made).create()
        made.execute("INSERT INTO data (resource, value) VALUES (:r, NULL)", r=made.resource)
        return made

    def open(self) -> SqlHandle:
        return SqlHandle(self)

    @contextlib.contextmanager
    def used(self) -> Iterator[tuple[SqlGuard, Callable[[], Any]]]:
        """Yield the guard, and what makes a connection that is passed to it."""
        yield SqlGuard(self.connect, self.resource), self.connect

    def execute(self, statement: str, connection: Any = None, **values: object) -> Any:
        if connection is None:
            with contextlib.closing(self.connect()) as opened:
                row = self.execute(statement, opened, **values)
                opened.commit()
                return row
        if hasattr(connection, "get_bind") or hasattr(connection, "exec_driver_sql"):
            import sqlalchemy

            result = connection.execute(sqlalchemy.text(statement), values)
            return result.fetchone() if result.returns_rows else None
        if self.driver != "sqlite3":
            statement = re.sub(r":(\w+)", r"%(\1)s", statement)
        cursor = connection.cursor()
        cursor.execute(statement, values)
        row = cursor.fetchone() if cursor.description else None
        cursor.close()
        return row

    @property
    def dialect(self) -> Dialect:
        found = {"sqlite3": "sqlite", "psycopg": "postgresql", "pymysql": "mysql"}.get(self.driver)
        return cast(Dialect, found or self.where.partition("+")[0].partition(":")[0])

    def create_tables(self) -> None:
        """Make the tables, the marks' without its CHECKs: the guard must see a spoilt mark."""
        ddl = SqlGuard.ddl(self.dialect)
        ddl = re.sub(r" CHECK \(typeof\(\w+\) = 'integer'\)", "", ddl)
        ddl = re.sub(r",\s*CHECK \(.*\)(?=\s*\))", "", ddl, flags=re.DOTALL)
        assert "CHECK" not in ddl
        self.execute(ddl)
        kind = "BYTEA" if self.dialect == "postgresql" else "LONGBLOB"
        self.execute(
            f"CREATE TABLE IF NOT EXISTS data (resource VARCHAR(40) PRIMARY KEY, value {kind})"
        )

    def remove_mark(self) -> None:
        self.execute("DELETE FROM zklock_fence WHERE resource = :r", r=self.resource)

    def spoil_mark(self) -> None:
        # The types of servers leave only this; SQLite stores texts in any column.
        wrong = "epoch = 'ffff'" if self.dialect == "sqlite" else "sequence = -1"
        self.execute(f"UPDATE zklock_fence SET {wrong} WHERE resource = :r", r=self.resource)


IMPATIENT = {
    "mysql": "SET SESSION innodb_lock_wait_timeout = 1",
    "postgresql": "SET SESSION lock_timeout = 100",
}
"""Statements that end a wait for a lock soon."""


def guard_of(store: Sql) -> SqlGuard:
    """Return a guard for threads."""
    return SqlGuard(store.connect, store.resource)


def read(store: Sql, connection: Any = None) -> bytes:
    row = store.execute("SELECT value FROM data WHERE resource = :r", connection, r=store.resource)
    return bytes(row[0] or b"")


def write(store: Sql, connection: Any, value: bytes) -> None:
    store.execute(
        "UPDATE data SET value = :v WHERE resource = :r", connection, v=value, r=store.resource
    )


@dataclass
class SqlHandle(Handle):
    store: Sql

    def __post_init__(self) -> None:
        # One connection for as long as the handle lives, as a service would have.
        self.connection = self.store.connect()
        self.sql_guard = SqlGuard(self._again, self.store.resource)
        self.guard: Guard = self.sql_guard

    def write(self, data: bytes, token: Fenced) -> None:
        self.sql_guard.run(
            token, lambda connection: write(self.store, connection, data), attempts=100
        )

    def read(self) -> bytes | None:
        found = read(self.store, self.connection)
        self.connection.rollback()
        return found or None

    def close(self) -> None:
        self.connection.close()

    def _again(self) -> Any:
        return contextlib.nullcontext(self.connection)


class Awaited:
    """A guard or a client for asyncio, on a loop that runs for as long as a call."""

    def __init__(self, runner: asyncio.Runner, target: Any) -> None:
        self._runner = runner
        self._target = target

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found):
            return found

        async def called(*args: Any, **options: Any) -> Any:
            given = (arg._target if isinstance(arg, Awaited) else arg for arg in args)
            result = found(*given, **options)
            return await result if inspect.isawaitable(result) else result

        return lambda *args, **options: self._runner.run(called(*args, **options))

    def __enter__(self) -> Self:
        self.__aenter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.__aexit__(*exception)


class AwaitedSqlGuard(Awaited):
    """The guard for SQL; its changes are plain functions, and its blocks are for ``with``."""

    def run(self, token: Fenced, change: Callable[[Any], Any], **options: Any) -> Any:
        async def awaited(connection: Any) -> Any:
            return await connection.run_sync(change)

        return self._runner.run(self._target.run(token, awaited, **options))

    def advance(self, connection: Awaited, token: Fenced) -> Awaited:
        fence = self._runner.run(self._target.advance(connection._target, token))
        return Awaited(self._runner, fence)


@dataclass(frozen=True)
class AsyncSql(Sql):
    """The guard's connections are those of ``url``; the test's own are as in ``Sql``."""

    url: str = ""

    def open(self) -> AsyncSqlHandle:
        return AsyncSqlHandle(self)

    @contextlib.contextmanager
    def used(self) -> Iterator[tuple[SqlGuard, Callable[[], Any]]]:
        with contextlib.closing(self.open()) as handle:
            yield handle.sql_guard, handle.connect

    def engine(self) -> Any:
        from sqlalchemy.ext.asyncio import create_async_engine

        return create_async_engine(self.url)


@dataclass
class AsyncSqlHandle(SqlHandle):
    store: AsyncSql

    def __post_init__(self) -> None:
        self.runner = asyncio.Runner()
        self.engine = self.store.engine()
        guard = fencing_aio.SqlGuard(self.engine.connect, self.store.resource)
        self.guard = self.sql_guard = cast(SqlGuard, AwaitedSqlGuard(self.runner, guard))

    def connect(self) -> Any:
        return Awaited(self.runner, Awaited(self.runner, self.engine).connect())

    def read(self) -> bytes | None:
        return read(self.store) or None

    def close(self) -> None:
        self.runner.run(self.engine.dispose())
        self.runner.close()


_engines: dict[str, Any] = {}


def _engine(url: str) -> Any:
    import sqlalchemy

    if url not in _engines:
        _engines[url] = sqlalchemy.create_engine(url, pool_pre_ping=True)
    return _engines[url]


def dispose_engines() -> None:
    while _engines:
        _engines.popitem()[1].dispose()


# Redis


@dataclass(frozen=True)
class RedisStore(Store):
    port: int = 0
    cluster: bool = False

    def client(self) -> Any:
        import redis

        if self.cluster:
            return redis.RedisCluster(host="127.0.0.1", port=self.port)
        return redis.Redis(port=self.port)

    def fresh(self) -> RedisStore:
        made = replace(self, resource=unused())
        with contextlib.closing(made.client()) as client:
            RedisGuard(client, made.resource).create()
        return made

    def open(self) -> RedisHandle:
        return RedisHandle(self)

    def remove_mark(self) -> None:
        with contextlib.closing(self.client()) as client:
            assert client.delete(f"{{{self.resource}}}:zklock-fence") == 1

    def spoil_mark(self) -> None:
        with contextlib.closing(self.client()) as client:
            assert client.set(f"{{{self.resource}}}:zklock-fence", b"")


@dataclass
class RedisHandle(Handle):
    store: RedisStore

    def __post_init__(self) -> None:
        self.client = self.store.client()
        self.redis_guard = RedisGuard(self.client, self.store.resource)
        self.guard: Guard = self.redis_guard
        self.key = self.redis_guard.key("data")

    def write(self, data: bytes, token: Fenced) -> None:
        self.redis_guard.set(self.key, data, token)

    def read(self) -> bytes | None:
        data: bytes | None = self.client.get(self.key)
        return data

    def close(self) -> None:
        self.client.close()


@dataclass(frozen=True)
class AsyncRedisStore(RedisStore):
    def open(self) -> AsyncRedisHandle:
        return AsyncRedisHandle(self)

    def async_client(self) -> Any:
        import redis.asyncio

        if self.cluster:
            return redis.asyncio.RedisCluster(host="127.0.0.1", port=self.port)
        return redis.asyncio.Redis(port=self.port)


@dataclass
class AsyncRedisHandle(RedisHandle):
    store: AsyncRedisStore

    def __post_init__(self) -> None:
        self.runner = asyncio.Runner()
        # The client of a cluster is made on the loop that it is used on.
        client = self.runner.run(self._made())
        guard = fencing_aio.RedisGuard(client, self.store.resource)
        self.client = Awaited(self.runner, client)
        self.guard = self.redis_guard = cast(RedisGuard, Awaited(self.runner, guard))
        self.key = guard.key("data")

    async def _made(self) -> Any:
        return self.store.async_client()

    def close(self) -> None:
        self.client.aclose()
        self.runner.close()


# ZooKeeper


@dataclass(frozen=True)
class ZooKeeperStore(Store):
    hosts: str = ""

    def fresh(self) -> ZooKeeperStore:
        made = replace(self, resource=f"/fences/{unused()}/mark")
        with zklock.connect(self.hosts) as client:
            ZooKeeperGuard(client, made.resource).create()
            client.create(made.data, b"")
        return made

    def open(self) -> ZooKeeperHandle:
        return ZooKeeperHandle(self)

    @property
    def data(self) -> str:
        return self.resource.replace("/mark", "/data")

    def remove_mark(self) -> None:
        with zklock.connect(self.hosts) as client:
            client.delete(self.resource)

    def spoil_mark(self) -> None:
        with zklock.connect(self.hosts) as client:
            client.set(self.resource, b"")


@dataclass
class ZooKeeperHandle(Handle):
    store: ZooKeeperStore

    def __post_init__(self) -> None:
        self.client = KazooClient(self.store.hosts, timeout=10)
        self.client.start(30)
        self.node_guard = ZooKeeperGuard(self.client, self.store.resource, timeout=30)
        self.guard: Guard = self.node_guard

    def write(self, data: bytes, token: Fenced) -> None:
        self.node_guard.transaction(token).set_data(self.store.data, data).commit()

    def read(self) -> bytes | None:
        self.client.sync(self.store.data)
        data: bytes = self.client.get(self.store.data)[0]
        return data or None

    def close(self) -> None:
        self.client.stop()
        self.client.close()


class Unconnected(Handle):
    def close(self) -> None:
        pass


# Files


@dataclass(frozen=True)
class Files(Store):
    folder: str = ""

    def fresh(self) -> Files:
        made = replace(self, resource=unused())
        FileGuard(made.path).create()
        return made

    @property
    def path(self) -> Path:
        return Path(self.folder) / self.resource

    def open(self) -> FileHandle:
        return FileHandle(self)

    def restart(self) -> None:
        """Nothing runs: whoever opens it next is a restart."""

    def remove_mark(self) -> None:
        Path(f"{self.path}.fence").unlink()

    def spoil_mark(self) -> None:
        Path(f"{self.path}.fence").write_bytes(b"")


@dataclass
class FileHandle(Unconnected):
    store: Files

    def __post_init__(self) -> None:
        self.file_guard = FileGuard(self.store.path, timeout=30)
        self.guard: Guard = self.file_guard

    def write(self, data: bytes, token: Fenced) -> None:
        self.file_guard.write(data, token)

    def read(self) -> bytes | None:
        try:
            return self.store.path.read_bytes()
        except FileNotFoundError:
            return None


# Memory


@dataclass(frozen=True)
class Memory(Store):
    shared: ClassVar[bool] = False
    durable: ClassVar[bool] = False
    detects_lost_mark: ClassVar[bool] = False
    guards: MemoryGuards = field(default_factory=lambda: MemoryGuards(capacity=100_000))
    values: dict[str, bytes] = field(default_factory=dict)

    def fresh(self) -> Memory:
        return replace(self, resource=unused())

    def open(self) -> MemoryHandle:
        return MemoryHandle(self)


@dataclass
class MemoryHandle(Unconnected):
    store: Memory

    def __post_init__(self) -> None:
        self.memory_guard: MemoryGuard = self.store.guards[self.store.resource]
        self.guard: Guard = self.memory_guard

    def write(self, data: bytes, token: Fenced) -> None:
        with self.memory_guard.hold(token):
            self.store.values[self.store.resource] = data

    def read(self) -> bytes | None:
        return self.store.values.get(self.store.resource)


# A service behind the middleware


@dataclass(frozen=True)
class Service(Store):
    durable: ClassVar[bool] = False
    detects_lost_mark: ClassVar[bool] = False
    url: str = ""

    def fresh(self) -> Service:
        return replace(self, resource=unused())

    def open(self) -> ServiceHandle:
        return ServiceHandle(self)


@dataclass
class ServiceHandle(Unconnected):
    """A client of the service; it is its own ``guard``."""

    store: Service

    @property
    def guard(self) -> Guard:  # type: ignore[override]
        return self

    @property
    def resource(self) -> str:
        return self.store.resource

    def create(self) -> None:
        pass

    def claim(self, token: Fenced) -> None:
        self._send("POST", token_of(token), b"")

    def highest(self) -> FencingToken | None:
        text = self._send("GET", None, b"", "mark").decode()
        return FencingToken.parse(text) if text else None

    def write(self, data: bytes, token: Fenced) -> None:
        self._send("PUT", token_of(token), data)

    def read(self) -> bytes | None:
        return self._send("GET", None, b"", "data") or None

    def _send(self, method: str, token: FencingToken | None, data: bytes, what: str = "") -> bytes:
        request = urllib.request.Request(
            f"{self.store.url}/{self.resource}/{what}", data=data or None, method=method
        )
        request.add_header("Content-Length", str(len(data)))
        if token is not None:
            request.add_header(HEADER, str(token))
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                body: bytes = response.read()
                return body
        except urllib.error.HTTPError as error:
            with error:
                message = error.read().decode()
            if error.code != 412 or token is None:
                raise
            found = re.findall(r"[0-9a-f]{16}-[0-9]{10}", message)
            raise StaleToken(
                message,
                resource=message.partition(":")[0],
                token=FencingToken.parse(found[0]),
                highest=FencingToken.parse(found[1]),
            ) from None


def application(guards: MemoryGuards, values: dict[str, bytes]) -> Any:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        _, resource, what = environ["PATH_INFO"].split("/")
        body = b""
        if environ["REQUEST_METHOD"] == "PUT":
            data = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            if len(data) != int(environ["CONTENT_LENGTH"]):
                start_response("400 Bad Request", [("Content-Length", "0")])
                return []  # the client died while it was sending
            values[resource] = data
        elif environ["REQUEST_METHOD"] == "GET" and what == "mark":
            body = str(guards[resource].highest() or "").encode()
        elif environ["REQUEST_METHOD"] == "GET":
            body = values.get(resource, b"")
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    return WsgiFencing(app, lambda environ: environ["PATH_INFO"].split("/")[1], guards)


class _Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class _Threaded(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    daemon_threads = True
    request_queue_size = 64


@contextlib.contextmanager
def served(app: Any) -> Any:
    """Serve a WSGI application from threads of this process; yield its URL."""
    server = wsgiref.simple_server.make_server(
        "127.0.0.1", 0, app, server_class=_Threaded, handler_class=_Quiet
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
