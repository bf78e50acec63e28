"""What a guarded write costs, for each store."""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.results import Run
from tests.contract.fencing import databases, guards_under_test
from zklock.fencing import MemoryGuards, RedisGuard
from zklock.testing import ZooKeeperServer
from zklock.testing.guard_conformance import Handle
from zklock.token import FencingToken

TOKEN = FencingToken(7, 34)
_number = itertools.count()


def value() -> bytes:
    """Return another kilobyte each time: databases skip writes that change nothing."""
    return f"{next(_number):01000}".encode()


Write = Callable[[], object]
Pair = tuple[str, Write, Write]


def sql(stack: contextlib.ExitStack) -> Iterator[Pair]:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    postgresql = stack.enter_context(databases.PostgreSql())
    mariadb = stack.enter_context(databases.MariaDb())
    for label, driver, where in (
        ("SQLite", "sqlite3", f"{folder}/database"),
        (f"PostgreSQL {postgresql.version}", "psycopg", postgresql.dsn),
        (f"MariaDB {mariadb.version}", "pymysql", str(mariadb.port)),
    ):
        store = guards_under_test.Sql(driver, driver=driver, where=where)
        store.create_tables()
        store = store.fresh()
        handle = stack.enter_context(contextlib.closing(store.open()))

        def plain(
            store: guards_under_test.Sql = store, connection: Any = handle.connection
        ) -> None:
            guards_under_test.write(store, connection, value())
            connection.commit()

        yield f"{label}, durable", plain, partial(guarded, handle)


def guarded(handle: Handle) -> None:
    handle.write(value(), TOKEN)


def http(stack: contextlib.ExitStack) -> Iterator[Pair]:
    values: dict[str, bytes] = {}
    fenced = guards_under_test.application(MemoryGuards(), values)
    handles = []
    for app in (fenced._app, fenced):
        url = stack.enter_context(guards_under_test.served(app))
        handles.append(guards_under_test.Service("http", url=url).open())
    yield "HTTP, wsgiref", partial(guarded, handles[0]), partial(guarded, handles[1])


def file(stack: contextlib.ExitStack) -> Iterator[Pair]:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    store = guards_under_test.Files("file", folder=folder).fresh()
    handle = store.open()
    path = Path(folder) / "plain"

    def plain() -> None:
        """Replace atomically and durably, as anybody careful would."""
        new = path.with_suffix(".new")
        with new.open("wb") as stream:
            stream.write(value())
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(path)
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    yield "file, durable", plain, partial(guarded, handle)


def redis(stack: contextlib.ExitStack) -> Iterator[Pair]:
    server = stack.enter_context(databases.Redis())
    client = stack.enter_context(
        contextlib.closing(guards_under_test.RedisStore("redis", port=server.port).client())
    )
    guard = RedisGuard(client, "report")
    guard.create()
    key = guard.key("data")
    for name, policy in (("durable", "always"), ("in memory", "no")):
        client.config_set("appendfsync", policy)
        yield (
            f"Redis {server.version}, {name}",
            lambda: client.set(key, value()),
            lambda: guard.set(key, value(), TOKEN),
        )


def zookeeper(stack: contextlib.ExitStack) -> Iterator[Pair]:
    server = stack.enter_context(ZooKeeperServer())
    store = guards_under_test.ZooKeeperStore("zookeeper", hosts=server.hosts).fresh()
    handle = stack.enter_context(contextlib.closing(store.open()))
    client: Any = handle.client
    name = f"ZooKeeper {server.version()}"
    yield name, lambda: client.set(store.data, value()), partial(guarded, handle)


def fencing(run: Run, writes: int = 500) -> None:
    """What a guarded write costs beside an unguarded one, for each store: microseconds, medians.

    Both kinds of write change the same 1 kB value, over connections that are open already, in turns
    of one, so that whatever else the machine does falls on both. The token stays the same: the
    normal case, a holder that writes many times. "Durable" writes wait for the disk, which then
    dominates.
    """
    run.conditions["unit"] = "µs, median"
    for store in (http, file, sql, redis, zookeeper):
        with contextlib.ExitStack() as stack:
            for label, *kinds in store(stack):
                times: list[list[float]] = [[], []]
                for number in range(writes + 10):
                    for write, taken in zip(kinds, times, strict=True):
                        start = time.perf_counter()
                        write()
                        if number >= 10:
                            taken.append(1e6 * (time.perf_counter() - start))
                unguarded, guarded = map(statistics.median, times)
                run.note(label, {"unguarded": unguarded, "guarded": guarded}, "unguarded")
