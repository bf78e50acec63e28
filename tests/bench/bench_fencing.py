"""What a guarded write costs beside an unguarded one, for each store, in the same run.

``python -m tests.bench.bench_fencing [--writes N] [STORE …]``

Both kinds of write change the same 1 kB value, over connections that are open already, in turns of
one, so that whatever else the machine does falls on both. The token stays the same: the normal
case, a holder that writes many times. "Durable" writes wait for the disk, which then dominates.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.bench import results
from tests.contract.fencing import databases, guards_under_test
from zklock.fencing import MemoryGuards, RedisGuard, verify_owner
from zklock.testing import ZooKeeperServer
from zklock.token import FencingToken

TOKEN = FencingToken(7, 34)
_number = itertools.count()


def value() -> bytes:
    """Return another kilobyte each time: databases skip writes that change nothing."""
    return f"{next(_number):01000}".encode()


Write = Callable[[], object]
Pair = tuple[str, Write, Write]


def sql(stack: contextlib.ExitStack, name: str, store: guards_under_test.Sql) -> Pair:
    store.create_tables()
    store = store.fresh()
    handle = stack.enter_context(contextlib.closing(store.open()))

    def plain() -> None:
        store.execute(
            "UPDATE data SET value = :v WHERE resource = :r",
            handle.connection,
            v=value(),
            r=store.resource,
        )
        handle.connection.commit()

    return name, plain, lambda: handle.write(value(), TOKEN)


def memory(stack: contextlib.ExitStack) -> Iterator[Pair]:
    values: dict[str, bytes] = {}
    guard = MemoryGuards()["report"]

    def plain() -> None:
        values["report"] = value()

    def guarded() -> None:
        with guard.hold(TOKEN):
            values["report"] = value()

    yield "memory, a dict", plain, guarded


def http(stack: contextlib.ExitStack) -> Iterator[Pair]:
    values: dict[str, bytes] = {}
    fenced = guards_under_test.application(MemoryGuards(), values)
    handles = []
    for app in (fenced._app, fenced):
        url = stack.enter_context(guards_under_test.served(app))
        handles.append(guards_under_test.Service("http", url=url).open())
    yield (
        "HTTP, wsgiref",
        lambda: handles[0].write(value(), TOKEN),
        lambda: handles[1].write(value(), TOKEN),
    )


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

    yield "file, durable", plain, lambda: handle.write(value(), TOKEN)


def sqlite(stack: contextlib.ExitStack) -> Iterator[Pair]:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    store = guards_under_test.Sql("sqlite", driver="sqlite3", where=f"{folder}/database")
    yield sql(stack, "SQLite, durable", store)


def postgresql(stack: contextlib.ExitStack) -> Iterator[Pair]:
    server = stack.enter_context(databases.PostgreSql())
    store = guards_under_test.Sql("postgresql", driver="psycopg", where=server.dsn)
    yield sql(stack, f"PostgreSQL {server.version}, durable", store)


def mariadb(stack: contextlib.ExitStack) -> Iterator[Pair]:
    server = stack.enter_context(databases.MariaDb())
    store = guards_under_test.Sql("mariadb", driver="pymysql", where=str(server.port))
    yield sql(stack, f"MariaDB {server.version}, durable", store)


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
    yield (
        f"ZooKeeper {server.version()}",
        lambda: client.set(store.data, value()),
        lambda: handle.write(value(), TOKEN),
    )
    node = client.create("/lock/_c_0-lock-", b"", ephemeral=True, sequence=True, makepath=True)
    token = FencingToken(client.exists("/lock").czxid, int(node[-10:]))
    yield (
        "verify_owner beside a read",
        lambda: client.get(node),
        lambda: verify_owner(client, "/lock", token),
    )


STORES: dict[str, Callable[[contextlib.ExitStack], Iterator[Pair]]] = {
    "memory": memory,
    "http": http,
    "file": file,
    "sqlite": sqlite,
    "postgresql": postgresql,
    "mariadb": mariadb,
    "redis": redis,
    "zookeeper": zookeeper,
}


def measure(plain: Write, guarded: Write, writes: int) -> tuple[list[float], list[float]]:
    """Return microseconds of each write, the two kinds in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(writes + 10):
        for write, taken in zip((plain, guarded), times, strict=True):
            start = time.perf_counter()
            write()
            if number >= 10:
                taken.append(1e6 * (time.perf_counter() - start))
    return times


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stores", nargs="*", metavar="STORE", help=f"of {', '.join(STORES)}")
    parser.add_argument("--writes", type=int, default=500, help="of each kind and store")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args(arguments)
    found: dict[str, dict[str, float]] = {}
    print(f"{'median (90 %) in µs':36} {'unguarded':>20} {'guarded':>20}  ratio")
    for name in options.stores or STORES:
        with contextlib.ExitStack() as stack:
            for label, plain, guarded in STORES[name](stack):
                columns = [
                    (statistics.median(times), statistics.quantiles(times, n=10)[8])
                    for times in measure(plain, guarded, options.writes)
                ]
                cells = [f"{middle:.1f} ({high:.1f})".rjust(20) for middle, high in columns]
                ratio = columns[1][0] / columns[0][0]
                print(f"{label:36} {' '.join(cells)}  {ratio:5.2f}", flush=True)
                plainly, guardedly = (middle for middle, _ in columns)
                found[label] = {"unguarded": plainly, "guarded": guardedly}
    if options.json:
        results.write(options.json, {"writes": options.writes, "unit": "µs, median"}, found)


if __name__ == "__main__":
    main(sys.argv[1:])
