"""ZooKeeper servers for tests: started on request, gone afterwards."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from zklock._ground.addresses import server_name
from zklock._ground.numbers import check_int
from zklock.testing import snapshot
from zklock.testing.backend import Backend, Capability, Node
from zklock.testing.errors import NotServing, NotSupported, ServerError, StartFailed
from zklock.testing.selection import choose_backend
from zklock.testing.settings import Settings, several
from zklock.testing.status import ServerStatus, srvr
from zklock.testing.waiting import wait_for

log = logging.getLogger("zklock.testing")

START_SECONDS = 60.0
_MAX_SESSION_TIMEOUT = 60_000
_LOG_LINES = 40


class _Run:
    """What a backend runs: one server, or several. ``with`` starts and ends it."""

    def __init__(self, backend: str | Backend | None, announced: bool = False) -> None:
        self._backend = choose_backend(backend)
        self._pid = os.getpid()
        self._announced = announced

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def backend(self) -> str:
        """The name of the backend: "container", "java", "hosts" or "embedded"."""
        return self._backend.name

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What can be done with it."""
        return self._backend.capabilities

    @property
    def hosts(self) -> str:
        """The address, as clients take it."""
        raise NotImplementedError

    def start(self, timeout: float = START_SECONDS) -> None:
        """Start it, and wait until it serves."""
        raise NotImplementedError

    def close(self) -> None:
        """End it, and remove what was made for it."""
        raise NotImplementedError

    def _announce(self, version: str, seconds: float) -> None:
        if not self._announced:
            self._announced = True
            how = self._backend.describe()
            text = "ZooKeeper %s on %s, backend %s, serving after %.2f s"
            log.info(text, version, self.hosts, how, seconds)


class ZooKeeperServer(_Run):
    """A standalone ZooKeeper server that a test may start, stop, kill and pause.

    ::

        with ZooKeeperServer() as server:
            client = zklock.connect(server.hosts)

    ``tick_time`` and the session timeouts are milliseconds; a tick of 500 allows sessions as short
    as 1 s. ``backend`` is "container", "java", "hosts", "embedded" or a ``Backend``;
    ``choose_backend`` says what is used otherwise. ``config`` adds entries to ``zoo.cfg``.
    ``system_properties`` and ``java_options`` are for its Java. The data survive ``stop`` and
    ``kill``. ``close`` removes them, unless ``data_dir`` names a folder to keep them in.

    The constructor starts no server. A server that is left running ends with the process that
    started it, however that process ends. Not thread-safe. Data are not forced to disk: they
    survive a kill of the server, not a crash of the machine.
    """

    def __init__(
        self,
        *,
        tick_time: int = 500,
        backend: str | Backend | None = None,
        min_session_timeout: int | None = None,
        max_session_timeout: int | None = _MAX_SESSION_TIMEOUT,
        config: Mapping[str, str] | None = None,
        system_properties: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
        data_dir: str | Path | None = None,
    ) -> None:
        settings = Settings(
            tick_time=tick_time,
            min_session_timeout=min_session_timeout,
            max_session_timeout=max_session_timeout,
            config=dict(config or {}),
            system_properties=dict(system_properties or {}),
            java_options=several("java_options", java_options),
            data_dir=None if data_dir is None else Path(data_dir),
        )
        super().__init__(backend)
        self._node = self._backend.single(settings)
        self._member = self._closed = False

    @classmethod
    def _of_ensemble(cls, backend: Backend, node: Node) -> ZooKeeperServer:
        server = cls.__new__(cls)
        _Run.__init__(server, backend, announced=True)
        server._node = node
        server._member, server._closed = True, False
        return server

    def __repr__(self) -> str:
        return f"<ZooKeeperServer {self.hosts} on {self._backend.name}>"

    @property
    def host(self) -> str:
        """The name or address under which clients reach it, without the port."""
        return self._node.host

    @property
    def port(self) -> int:
        """The client port, the same after every restart."""
        return self._node.port

    @property
    def hosts(self) -> str:
        """Host and port, as clients take them: ``"127.0.0.1:2181"``, or ``"[::1]:2181"``."""
        return server_name(self.host, self.port)

    @property
    def running(self) -> bool:
        """Whether its process exists; a paused server counts as running."""
        return self._node.running()

    @property
    def data_dir(self) -> Path | None:
        """The folder that contains ``version-2``, if the backend can show it."""
        return self._node.data_dir

    def start(self, timeout: float = START_SECONDS) -> None:
        """Start the server unless it runs, and wait until it serves requests.

        ``StartFailed``, with the end of the log, if it ends or does not serve within ``timeout``
        seconds; then it is killed. A member of an ensemble serves only with a quorum.
        """
        self.launch()
        try:
            self.wait_until_serving(timeout)
        except StartFailed:
            if Capability.CONTROL in self.capabilities:
                self._node.kill()
            raise

    def launch(self) -> None:
        """Start it without waiting: for a member that has no quorum yet."""
        if self._closed:
            raise ServerError(f"{self.hosts} was closed, and what was made for it is gone")
        self._node.start()

    def wait_until_serving(self, timeout: float = START_SECONDS) -> ServerStatus:
        """Wait until it serves requests and return its status; ``StartFailed`` otherwise."""
        deadline = time.monotonic() + timeout
        started = time.monotonic()
        while True:
            try:
                # A server that is still loading accepts, and then says nothing for a while.
                status = srvr(self.host, self.port, timeout=0.5)
            except (OSError, NotServing) as error:
                reason = error
            else:
                self._announce(status.version, time.monotonic() - started)
                return status
            if not self._node.running():
                raise StartFailed(self._with_log(f"{self.hosts} ended instead of serving"))
            if time.monotonic() >= deadline:
                text = f"{self.hosts} does not serve within {timeout:g} s ({reason!r})"
                raise StartFailed(self._with_log(text))
            time.sleep(0.01)

    def _with_log(self, text: str) -> str:
        return f"{text}; the end of its log:\n{self.log_tail() or '(empty)'}"

    def stop(self) -> None:
        """End it in order, keeping port and data. Its sessions live on in the data."""
        self._node.stop()

    def kill(self) -> None:
        """End it with SIGKILL, keeping port and data."""
        self._node.kill()

    def restart(self, timeout: float = START_SECONDS) -> None:
        """End it in order, then start it with the same port and data; the errors of ``start``."""
        self.stop()
        self.start(timeout)

    def pause(self) -> None:
        """Freeze its process: connections stay open, nothing is answered, its clock goes on."""
        self._node.pause()

    def resume(self) -> None:
        """Let a frozen process go on; do nothing if it is not frozen."""
        self._node.resume()

    def close(self) -> None:
        """End it and remove what was made for it. May be called twice.

        In a forked child it does nothing: the server belongs to the parent.
        """
        if not self._member and os.getpid() == self._pid:
            self._closed = True
            self._node.close()

    def status(self, timeout: float = 3.0) -> ServerStatus:
        """Return the answer to ``srvr``; raises the same errors as ``srvr``."""
        return srvr(self.host, self.port, timeout=timeout)

    def version(self) -> str:
        """Return the release that it runs, such as ``"3.8.0"``."""
        return self.status().version

    def mode(self) -> str | None:
        """Return "standalone", "leader" or "follower"; ``None`` while it does not serve."""
        status = self._status_if_serving()
        return None if status is None else status.mode

    def _status_if_serving(self) -> ServerStatus | None:
        with contextlib.suppress(OSError, NotServing):
            return self.status(timeout=1.0)
        return None

    def log_tail(self, lines: int = _LOG_LINES) -> str:
        """Return the last lines of its log, as far as the backend can see one."""
        return self._node.log_tail(lines)

    def set_child_counter(self, path: str, value: int) -> None:
        """Make the next sequential child of ``path`` get the number ``value``.

        ``value`` is a signed 32-bit number. The server must be standalone and stopped. It is
        started and stopped once, which leaves a snapshot with all its transactions. ``KeyError``
        if the znode does not exist. Every create counts, so the next child of any kind moves the
        counter on.
        """
        if self._member:
            raise NotSupported("members of an ensemble must agree; use a standalone server")
        if Capability.DATA not in self.capabilities:
            raise NotSupported(f"the {self.backend} backend does not show the server's data")
        if self.running:
            raise ServerError(f"{self.hosts} runs: stop it first")
        if self._node.set_child_counter(path, value):
            return
        self.start()
        self.stop()
        name, content = self._node.read_snapshot()
        self._node.write_snapshot(name, snapshot.set_child_counter(content, path, value))


class Ensemble(_Run):
    """A replicated ZooKeeper for tests, whose members can be killed, paused and cut off.

    ::

        with Ensemble(3) as ensemble:
            client = zklock.connect(ensemble.hosts)
            ensemble.cut_from_peers(ensemble.leader())

    Settings are as for ``ZooKeeperServer``. ``init_limit`` and ``sync_limit`` count ticks. If a
    follower does not hear its leader for ``sync_limit`` ticks, it stops following. Not thread-safe.
    """

    def __init__(
        self,
        size: int = 3,
        *,
        tick_time: int = 500,
        init_limit: int = 10,
        sync_limit: int = 5,
        backend: str | Backend | None = None,
        min_session_timeout: int | None = None,
        max_session_timeout: int | None = _MAX_SESSION_TIMEOUT,
        config: Mapping[str, str] | None = None,
        system_properties: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
        data_dir: str | Path | None = None,
    ) -> None:
        if check_int("size", size) < 2:
            raise ValueError("an ensemble has at least two servers; use ZooKeeperServer for one")
        settings = Settings(
            tick_time=tick_time,
            init_limit=init_limit,
            sync_limit=sync_limit,
            min_session_timeout=min_session_timeout,
            max_session_timeout=max_session_timeout,
            config=dict(config or {}),
            system_properties=dict(system_properties or {}),
            java_options=several("java_options", java_options),
            data_dir=None if data_dir is None else Path(data_dir),
        )
        super().__init__(backend)
        self._group = self._backend.ensemble(settings, size)
        self.servers: Sequence[ZooKeeperServer] = tuple(
            ZooKeeperServer._of_ensemble(self._backend, node) for node in self._group.nodes
        )
        self._cut: set[int] = set()

    def __repr__(self) -> str:
        return f"<Ensemble {self.hosts} on {self._backend.name}>"

    @property
    def hosts(self) -> str:
        """All members, as clients take them: ``"127.0.0.1:2181,127.0.0.1:2182,…"``."""
        return ",".join(server.hosts for server in self.servers)

    def start(self, timeout: float = START_SECONDS) -> None:
        """Start all members and wait until all serve; ``StartFailed`` with a log otherwise."""
        for server in self.servers:
            server.launch()
        started = time.monotonic()
        self.wait_until_serving(timeout)
        if not self._announced:
            self._announce(self.servers[0].version(), time.monotonic() - started)

    def wait_until_serving(self, timeout: float = START_SECONDS) -> None:
        """Wait until all members that run and are not cut serve under a single leader.

        ``StartFailed``, with the log of one that does not.
        """
        deadline = time.monotonic() + timeout
        joined = [
            server
            for index, server in enumerate(self.servers)
            if index not in self._cut and server.running
        ]
        while True:
            modes = [
                server.wait_until_serving(max(0.0, deadline - time.monotonic())).mode
                for server in joined
            ]
            if modes.count("leader") == 1:
                return
            if time.monotonic() >= deadline:
                raise StartFailed(f"not one leader within {timeout:g} s: {modes}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End all members in order, keeping ports and data."""
        for server in self.servers:
            server.stop()

    def close(self) -> None:
        """End all members and remove what was made for them. May be called twice.

        In a forked child it does nothing: the members belong to the parent.
        """
        if os.getpid() != self._pid:
            return
        for server in self.servers:
            server._closed = True
        self._group.close()

    def leader(self, timeout: float = START_SECONDS) -> ZooKeeperServer:
        """Return the member that leads; wait for one, ``TimeoutError`` if none comes.

        During a partition the old leader may still call itself leader. So the member with the
        newest epoch (the upper half of its zxid) is returned. A cut member is returned only if no
        other member leads.
        """
        return wait_for(self._find_leader, timeout, "a leader")

    def _find_leader(self) -> ZooKeeperServer | None:
        leading = []
        for index, server in enumerate(self.servers):
            status = server._status_if_serving()
            if status is not None and status.mode == "leader":
                leading.append((index not in self._cut, status.zxid >> 32, index))
        return self.servers[max(leading)[-1]] if leading else None

    def followers(self) -> list[ZooKeeperServer]:
        """Return the members that follow at this moment, in order."""
        return [server for server in self.servers if server.mode() == "follower"]

    def cut_from_peers(self, server: ZooKeeperServer) -> None:
        """Drop all packets between this member and the others; its clients stay connected.

        Nothing is closed or refused: both sides must notice the silence by themselves, after up
        to ``sync_limit`` ticks.
        """
        index = self.servers.index(server)
        self._group.cut(index)
        self._cut.add(index)

    def heal(self, server: ZooKeeperServer) -> None:
        """Undo ``cut_from_peers``; do nothing if the member is not cut."""
        index = self.servers.index(server)
        if index in self._cut:
            self._group.heal(index)
            self._cut.discard(index)

    def heal_all(self) -> None:
        """Undo every ``cut_from_peers``. It does not wait until the members have met again."""
        for server in self.servers:
            self.heal(server)
