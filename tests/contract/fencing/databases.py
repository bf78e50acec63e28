"""Database servers from Debian's packages, on loopback ports, gone after the tests."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Self

from zklock.testing.ports import free_ports

PATIENCE = 60.0
_UNPRIVILEGED = "nobody"


class Unavailable(Exception):
    """The server's program is not installed."""


def program(name: str, package: str, *folders: str) -> str:
    """Return the path of a server program."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", *folders])
    found = shutil.which(name, path=path)
    if found is None:
        raise Unavailable(f"no {name}: install the Debian package {package}")
    return found


class Server(ABC):
    """One server with its data in a folder of its own, below ``root``; never runs as root.

    Data are written but not forced to disk: they survive a server that is killed.
    """

    stop_signal = signal.SIGTERM

    def __init__(self, root: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="zklock-database-", dir=root))
        (self.port,) = free_ports()
        self._process: subprocess.Popen[bytes] | None = None
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            entry = pwd.getpwnam(_UNPRIVILEGED)
            os.chown(self.folder, entry.pw_uid, entry.pw_gid)
            self._user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}

    @abstractmethod
    def prepare(self) -> None:
        """Make the data folder."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that runs the server in the foreground."""

    @abstractmethod
    def ping(self) -> str:
        """Return the server's version, or raise while it does not answer."""

    def __enter__(self) -> Self:
        try:
            self.prepare()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def run(self, *command: str) -> None:
        """Run a program to its end, as the server's user."""
        done = subprocess.run(
            command, capture_output=True, cwd=self.folder, check=False, **self._user
        )
        if done.returncode:
            raise OSError(f"{command[0]} failed: {(done.stderr or done.stdout).decode()[-2000:]}")

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                **self._user,
            )
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self.version = self.ping()
            except ImportError:
                raise
            except Exception as error:
                if self._process.poll() is not None or time.monotonic() > end:
                    log_end = (self.folder / "log").read_text(errors="replace")[-2000:]
                    raise OSError(f"{type(self).__name__} did not start: {log_end}") from error
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(self.stop_signal)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """End the server as a crash of its machine does: nothing is said to anyone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class PostgreSql(Server):
    stop_signal = signal.SIGINT  # "fast": does not wait for clients

    def __init__(self) -> None:
        try:
            import psycopg  # noqa: F401 - it asks the server whether it is up
        except ImportError as error:
            raise Unavailable(f"no psycopg: install the extra test ({error})") from error
        folders = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")))
        self._postgres = program("postgres", "postgresql", *folders)
        self._initdb = program(
            "initdb", "postgresql", *folders, str(Path(self._postgres).resolve().parent)
        )
        super().__init__()

    def prepare(self) -> None:
        self.run(
            self._initdb,
            *("-D", str(self.folder / "data"), "-U", "zklock", "-A", "trust"),
            *("-E", "UTF8", "--locale=C.UTF-8", "--no-sync"),
        )

    def command(self) -> list[str]:
        return [
            self._postgres,
            *("-D", str(self.folder / "data"), "-h", "127.0.0.1", "-p", str(self.port)),
            *("-c", "unix_socket_directories="),
            *("-c", "fsync=off"),
        ]

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=zklock dbname=postgres"

    def ping(self) -> str:
        import psycopg

        with psycopg.connect(self.dsn) as connection:
            row = connection.execute("SHOW server_version").fetchone()
            assert row is not None
            return str(row[0]).split()[0]


class PostgreSqlStandby(PostgreSql):
    """A hot standby that streams from ``primary``."""

    def __init__(self, primary: PostgreSql) -> None:
        super().__init__()
        self._primary = primary
        self._backup = program(
            "pg_basebackup", "postgresql", str(Path(self._postgres).resolve().parent)
        )

    def prepare(self) -> None:
        self.run(
            self._backup,
            *("-D", str(self.folder / "data"), "-d", self._primary.dsn, "-R", "-c", "fast"),
            "--no-sync",
        )

    def promote(self) -> None:
        """Make it a primary; return when it is one."""
        import psycopg

        with psycopg.connect(self.dsn, autocommit=True) as connection:
            row = connection.execute("SELECT pg_promote()").fetchone()
            assert row == (True,)


class MariaDb(Server):
    def __init__(self) -> None:
        self._server = program("mariadbd", "mariadb-server")
        self._install = program("mariadb-install-db", "mariadb-server")
        super().__init__()

    def prepare(self) -> None:
        self.run(
            self._install,
            *("--no-defaults", f"--datadir={self.folder / 'data'}", "--skip-test-db"),
            *("--auth-root-authentication-method=normal", f"--tmpdir={self.folder}"),
        )

    def command(self) -> list[str]:
        return [
            self._server,
            *("--no-defaults", f"--datadir={self.folder / 'data'}", f"--tmpdir={self.folder}"),
            *("--bind-address=127.0.0.1", f"--port={self.port}", "--skip-name-resolve"),
            *(f"--socket={self.folder / 'socket'}", f"--pid-file={self.folder / 'pid'}"),
            *("--skip-grant-tables", "--innodb-flush-log-at-trx-commit=2"),
        ]

    def ping(self) -> str:
        import pymysql

        connection = pymysql.connect(host="127.0.0.1", port=self.port, user="root")
        try:
            with connection.cursor() as cursor:
                cursor.execute("CREATE DATABASE IF NOT EXISTS zklock")
                cursor.execute("SELECT VERSION()")
                row = cursor.fetchone()
                assert row is not None
                return str(row[0]).split("-")[0]
        finally:
            connection.close()


class Redis(Server):
    def __init__(self, *, cluster: bool = False) -> None:
        self._server = program("redis-server", "redis-server")
        self._cluster = cluster
        super().__init__()

    def prepare(self) -> None:
        pass

    def command(self) -> list[str]:
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.folder),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "no",
        }
        if self._cluster:
            options |= {"cluster-enabled": "yes", "cluster-port": str(free_ports()[0])}
        return [
            self._server,
            *(text for key, value in options.items() for text in (f"--{key}", value)),
        ]

    def ping(self) -> str:
        import redis

        with redis.Redis(port=self.port) as client:
            info = client.info("server")
            if self._cluster and client.cluster("INFO")["cluster_state"] != "ok":
                if client.cluster("INFO")["cluster_slots_assigned"] == "0":
                    client.execute_command("CLUSTER ADDSLOTSRANGE 0 16383")
                raise OSError("the cluster is not ready")
            return str(info["redis_version"])


class Sentinel(Server):
    """One that promotes a replica of ``primary`` once that has been silent for a second."""

    def __init__(self, primary: Redis) -> None:
        self._server = program("redis-server", "redis-server")
        self._primary = primary
        super().__init__()

    def prepare(self) -> None:
        lines = (
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.folder}",
            f"sentinel monitor store 127.0.0.1 {self._primary.port} 1",
            "sentinel down-after-milliseconds store 1000",
        )
        path = self.folder / "sentinel.conf"  # Redis writes what it learns into it
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o666)

    def command(self) -> list[str]:
        return [self._server, str(self.folder / "sentinel.conf"), "--sentinel"]

    def ping(self) -> str:
        import redis

        with redis.Redis(port=self.port) as client:
            return str(client.info("server")["redis_version"])
