"""ZooKeeper run by a local Java: its processes cannot outlive the process that started them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from zklock.testing import snapshot
from zklock.testing.backend import Backend, Capability, Group, Node
from zklock.testing.errors import BackendUnavailable, StartFailed
from zklock.testing.ports import LOOPBACK, free_ports, is_free
from zklock.testing.relay import PeerRelay
from zklock.testing.settings import Settings
from zklock.testing.watchdog import Watchdog, forgotten_by_children

DEBIAN_JAR = Path("/usr/share/java/zookeeper.jar")
DEBIAN_LOGGER = Path("/usr/share/java/slf4j-simple.jar")
# From Netty, for TLS; the class path named in zookeeper.jar leaves them out.
DEBIAN_NETTY = (Path("/usr/share/java/netty-codec.jar"), Path("/usr/share/java/netty-resolver.jar"))
JARS_VARIABLE = "ZKLOCK_ZOOKEEPER_JARS"
HOME_VARIABLE = "ZOOKEEPER_HOME"
HINT = (
    "install Java and ZooKeeper (Debian: apt-get install default-jre-headless libzookeeper-java), "
    f"or unpack a ZooKeeper release and set {HOME_VARIABLE} to its folder, "
    f"or set {JARS_VARIABLE} to a folder with ZooKeeper's jars"
)

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_STOP_SECONDS = 10.0

# These options make a start take 0.2 s and 55 MB instead of 0.4 s and 70 MB: no optimising
# compiler, the plain collector, no performance counters on disk.
_QUICK_JAVA = (
    "-Xshare:auto",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-Xmx256m",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
# Transaction logs start small and are left to the page cache. A killed server keeps its data; a
# machine that loses power may not.
CHEAP_DISK = ("-Dzookeeper.preAllocSize=64", "-Dzookeeper.forceSync=no")

_LOGBACK = """\
<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} [%t] %-5p %c{1} - %m%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="OUT"/></root>
</configuration>
"""

# The shell becomes Java. Before that it leaves a watcher in Java's process group. The other end of
# the watcher's pipe exists in the starting process alone. End of file without a word means that
# the starting process is gone, however it ended and whichever of its threads started the server.
# Then the watcher ends Java and removes $1. (PR_SET_PDEATHSIG would follow the starting thread.)
# Java's pid is also the id of the group. It cannot be used again while the watcher is in the group.
_LAUNCHER = """\
exec 3<&0
{ read -r word <&3 || { kill -KILL $$; rm -rf -- "$1"; }; } >/dev/null 2>&1 &
shift
exec "$@" 3<&- </dev/null
"""


@dataclass(frozen=True, slots=True)
class Installation:
    """A Java, and a class path with ZooKeeper's server; ``origin`` says where that was found."""

    java: str
    classpath: tuple[str, ...]
    origin: str

    @classmethod
    def find(cls, environ: Mapping[str, str] = os.environ) -> Installation:
        """Look for jars in ``ZKLOCK_ZOOKEEPER_JARS``, ``ZOOKEEPER_HOME``, then Debian's.

        If a variable is set but leads to no ZooKeeper, ``BackendUnavailable`` is raised; the next
        place is not tried.
        """
        classpath, origin = cls._jars(environ)
        if not classpath:
            raise BackendUnavailable(f"no ZooKeeper for the java backend: {HINT}")
        java = _java(environ)
        if java is None:
            raise BackendUnavailable(f"no java command for the java backend: {HINT}")
        return cls(java, classpath, origin)

    @staticmethod
    def _jars(environ: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
        for variable, folders in ((JARS_VARIABLE, (".",)), (HOME_VARIABLE, ("lib", "."))):
            if not (value := environ.get(variable)):
                continue
            roots = [Path(value).expanduser().resolve() / folder for folder in folders]
            if not any(_has_server(root) for root in roots):
                raise BackendUnavailable(
                    f"{variable}={value}: no zookeeper-*.jar with zookeeper-jute-*.jar there"
                )
            return tuple(f"{root}/*" for root in roots), f"{variable}={value}"
        if DEBIAN_JAR.exists():
            return tuple(map(str, (DEBIAN_JAR, DEBIAN_LOGGER, *DEBIAN_NETTY))), "Debian's package"
        return (), ""


class JavaBackend(Backend):
    """Servers as child processes of this one, each in a temporary folder of its own."""

    name: ClassVar[str] = "java"

    def __init__(self, installation: Installation | None = None) -> None:
        self.installation = installation or Installation.find()
        self.capabilities = frozenset(Capability)

    def describe(self) -> str:
        return f"java ({self.installation.origin})"

    def single(self, settings: Settings) -> JavaNode:
        return JavaNode(self.installation, settings, free_ports()[0])

    def ensemble(self, settings: Settings, size: int) -> JavaGroup:
        """Prepare servers that reach each other through a relay in this process."""
        return JavaGroup(self.installation, settings, size)


class JavaNode(Node):
    """A ZooKeeper process with its folder."""

    def __init__(
        self,
        installation: Installation,
        settings: Settings,
        port: int,
        *,
        server_id: int = 0,
        peers: Mapping[str, str] | None = None,
        java_options: Iterable[str] = (),
    ) -> None:
        self.host = LOOPBACK
        self.port = port
        self._installation = installation
        self._settings = settings
        self._id = server_id
        self._peers = dict(peers or {})
        self._java_options = tuple(java_options)
        self._folder = Path(tempfile.mkdtemp(prefix="zklock-zookeeper-"))
        # The watcher of a process goes with it. This one stays while the server is down.
        watchdog = Watchdog("rm", "-rf", "--", str(self._folder))
        self._remove_folder = weakref.finalize(
            self, _remove_own, self._folder, watchdog, os.getpid()
        )
        self._data = (settings.data_dir or self._folder / "data").absolute()
        self._log = self._folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        self._write_files()

    def _write_files(self) -> None:
        self._data.mkdir(parents=True, exist_ok=True)
        data = self._folder / "data"
        if self._data != data and not data.is_symlink():
            data.symlink_to(self._data, target_is_directory=True)
        entries = {
            "tickTime": str(self._settings.tick_time),
            "initLimit": str(self._settings.init_limit),
            "syncLimit": str(self._settings.sync_limit),
            "dataDir": "./data",
            "clientPort": str(self.port),
            "clientPortAddress": self.host,
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            **self._peers,
            **self._settings.extra_config(),
        }
        (self._folder / "logback.xml").write_text(_LOGBACK)
        text = "".join(f"{key}={value}\n" for key, value in entries.items())
        (self._folder / "zoo.cfg").write_text(text)
        if self._peers:
            (self._data / "myid").write_text(f"{self._id}\n")

    @property
    def data_dir(self) -> Path:
        return self._data

    def start(self) -> None:
        """Launch; replace a port that is taken, if no client can know it yet."""
        if self.running():
            return
        self._reap()
        if not is_free(self.port):
            if self._log.exists() or self._peers:
                raise StartFailed(f"port {self.port} was taken while the server was down")
            self.port = free_ports()[0]
            self._write_files()
        # Java runs in the folder, and is told no path of it: it reads a file of properties as
        # Latin-1, and a class path ends at a colon. In the locale "C" it knows names in ASCII only.
        command = [
            self._installation.java,
            *_QUICK_JAVA,
            *CHEAP_DISK,
            *self._java_options,
            *self._settings.java_arguments(),
            "-cp",
            os.pathsep.join((".", *self._installation.classpath)),
            _MAIN,
            "./zoo.cfg",
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _LAUNCHER, "zookeeper", str(self._folder), *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                start_new_session=True,
            )
        self._paused = False
        _alive.add(self)

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL after ten seconds."""
        if self._process is None:
            return
        self.resume()
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End at once, frozen or not."""
        if self._process is not None:
            self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        process = self._process
        assert process is not None
        process.send_signal(number)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._reap()

    def _reap(self) -> None:
        """Tell the watcher of an ended process to go, and to leave the folder."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(b"stay\n")
        self._process = None
        self._paused = False
        _alive.discard(self)

    def pause(self) -> None:
        """Send SIGSTOP; return when the whole process has stopped."""
        if not self.running():
            raise StartFailed("a server that is down cannot be paused")
        assert self._process is not None
        if self._paused:
            return
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self._paused = True

    def resume(self) -> None:
        """Send SIGCONT; do nothing if the process is not paused."""
        if self._process is not None and self._paused:
            self._process.send_signal(signal.SIGCONT)
            self._paused = False

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_tail(self, lines: int) -> str:
        with contextlib.suppress(FileNotFoundError):
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def read_snapshot(self) -> tuple[str, bytes]:
        newest = snapshot.newest(path.name for path in (self._data / "version-2").glob("*"))
        return newest, (self._data / "version-2" / newest).read_bytes()

    def write_snapshot(self, name: str, content: bytes) -> None:
        (self._data / "version-2" / name).write_bytes(content)

    def close(self) -> None:
        """Kill the process; remove its folder, but not a given ``data_dir``."""
        self.kill()
        self._remove_folder()

    def _forget(self) -> None:
        """In a forked child: leave the process, and this end of its pipe, to the parent."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.poll()  # finds no child, so that nothing warns of one that still runs
            self._process = None


class JavaGroup(Group):
    """An ensemble on loopback; all outgoing connections to peers pass a relay."""

    def __init__(self, installation: Installation, settings: Settings, size: int) -> None:
        ports = free_ports(3 * size)
        clients, quorum, election = ports[:size], ports[size : 2 * size], ports[2 * size :]
        members = {port: i for i in range(size) for port in (quorum[i], election[i])}
        peers = {
            f"server.{i + 1}": f"{LOOPBACK}:{quorum[i]}:{election[i]}:participant"
            for i in range(size)
        }
        self._relay = PeerRelay(members)
        self.nodes = [
            JavaNode(
                installation,
                replace(settings, data_dir=settings.data_dir and settings.data_dir / str(i + 1)),
                clients[i],
                server_id=i + 1,
                peers=peers,
                java_options=socks_options(self._relay.ports[i]),
            )
            for i in range(size)
        ]

    def cut(self, index: int) -> None:
        self._relay.cut(index)

    def heal(self, index: int) -> None:
        self._relay.heal(index)

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self._relay.close()


def socks_options(port: int) -> tuple[str, ...]:
    """Return the options that send the outgoing connections of a Java through a relay."""
    # By default Java exempts some hosts, among them 127.*; setting this to nothing exempts none.
    return (f"-DsocksProxyHost={LOOPBACK}", f"-DsocksProxyPort={port}", "-DsocksNonProxyHosts=")


def _remove_own(folder: Path, watchdog: Watchdog, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child
        shutil.rmtree(folder, ignore_errors=True)
        watchdog.dismiss()


def _has_server(folder: Path) -> bool:
    names = {path.name for path in folder.glob("zookeeper-*.jar")}
    return any(name.startswith("zookeeper-jute-") for name in names) and any(
        name[len("zookeeper-")].isdigit() for name in names
    )


def _java(environ: Mapping[str, str]) -> str | None:
    if home := environ.get("JAVA_HOME"):
        candidate = Path(home) / "bin" / "java"
        if os.access(candidate, os.X_OK):
            return str(candidate)
    return shutil.which("java", path=environ.get("PATH"))


# A child that outlives this process would keep the watchers waiting.
_alive = forgotten_by_children(JavaNode._forget)
