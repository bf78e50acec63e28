"""The code of docs/fencing.md and of the page on services, run from top to bottom."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import zklock
from tests.contract.fencing import databases, howto
from zklock.errors import StaleToken
from zklock.fencing import RedisGuard, SqlGuard, ZooKeeperGuard
from zklock.testing import ZooKeeperServer
from zklock.token import FencingToken

STALE = FencingToken(0, 0)


def test_the_page(
    zookeeper: ZooKeeperServer,
    redis_server: databases.Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import redis

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "database")

    with contextlib.closing(connect()) as connection, connection:
        connection.execute("CREATE TABLE report (total INTEGER)")
        connection.execute("INSERT INTO report VALUES (0)")

    client = zklock.connect(zookeeper.hosts)
    names: dict[str, Any] = {
        "client": client,
        "connect": connect,
        "redis_client": redis.Redis(port=redis_server.port),
        "app": print,
    }
    try:
        client.create("/app/report", b"", makepath=True)
        once, first, *others = howto.blocks("fencing.md")
        others += howto.blocks("howto/fencing-service.md")
        for code in (once, first):
            exec(code.replace("/var/lib/app", str(tmp_path)), names)
        assert (tmp_path / "report.json").read_bytes() == b'{"total": 7}'
        lock = zklock.Lock(client, "/locks/report", identity="host-7")
        names["grant"] = lock.acquire(timeout=10)
        made = (
            SqlGuard(connect, "report"),
            RedisGuard(names["redis_client"], "report"),
            ZooKeeperGuard(client, "/app/report-fence"),
        )
        made[0].create_table()
        for guard in made:
            guard.create()
        for code in others:
            exec(code, names)
        with contextlib.closing(connect()) as connection:
            assert connection.execute("SELECT total FROM report").fetchone() == (2,)
        assert names["redis_client"].get("{report}:total") == b"12"
        asyncio.run(with_asyncio(names, tmp_path / "database", redis_server.port))
        lock.release()
        with contextlib.closing(connect()) as connection:
            assert connection.execute("SELECT total FROM report").fetchone() == (4,)
        assert names["redis_client"].get("{report}:total") == b"7"
        assert client.get("/app/report")[0] == b"7"
        assert capsys.readouterr().out == "host-7\n"
        for guard in (*made, names["guards"]["report"]):
            assert guard.highest() == names["grant"].token
            with pytest.raises(StaleToken):
                guard.claim(STALE)
    finally:
        names["redis_client"].close()
        client.stop()
        client.close()


async def with_asyncio(names: dict[str, Any], database: Path, port: int) -> None:
    import redis.asyncio
    import sqlalchemy
    from sqlalchemy.ext.asyncio import create_async_engine

    names["sqlalchemy"] = sqlalchemy
    engine = create_async_engine(f"sqlite+aiosqlite:///{database}")
    client = redis.asyncio.Redis(port=port)
    try:
        await names["work"](names["grant"], engine, client)
    finally:
        await client.aclose()
        await engine.dispose()
