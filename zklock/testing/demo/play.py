"""Plays the demo: starts a ZooKeeper and workers, does them harm, and has the checks made."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

import zklock
from zklock._ground.addresses import server_name
from zklock._ground.clock import clock
from zklock.testing import Backend, BackendUnavailable, NotServing, ZooKeeperServer, srvr, wait_for
from zklock.testing.demo import checks, worker
from zklock.testing.demo.checks import Failed, Finding, Report
from zklock.testing.external import parse_hosts
from zklock.testing.provision import provision
from zklock.testing.proxy import FaultProxy
from zklock.testing.selection import choose_or_embed

NAMES = ("w1", "w2", "w3")
SHARDS = 12
_SLACK_SECONDS = 60.0
"""How many seconds a step may take beyond three session timeouts; then the demo is given up."""

Say = Callable[[str], object]


class Worker:
    """A worker process, and what it has reported so far. ``close`` makes sure that it is gone."""

    def __init__(self, role: str, name: str, *arguments: object) -> None:
        self.name = name
        self.reports: list[Report] = []
        roots = [str(Path(zklock.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", worker.__name__, role, name, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A group of its own: Ctrl-C goes to the demo only, which ends its workers. If the demo
            # is gone while the group is stopped, the kernel sends the group a hang-up.
            process_group=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, roots))},
        )
        self._reader = threading.Thread(target=self._read, name=f"demo-{name}", daemon=True)
        self._reader.start()

    def expect(self, what: str, patience: float) -> Report:
        """Wait for its first report of this kind; `Failed` if that does not come."""

        def found() -> Report | None:
            ended = self._process.poll()
            if ended is not None:
                self._reader.join()
            with contextlib.suppress(Failed):
                return checks.first(self.name, list(self.reports), what)
            if ended is not None:
                raise Failed(f"{self.name} has ended, with {ended}, and never reported '{what}'")
            return None

        return wait_for(found, patience, f"{self.name} has not reported '{what}'")

    def go_on(self) -> None:
        """Tell it to write and to release, or to leave the pool."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # expect() tells that it has ended
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()

    def send(self, number: signal.Signals) -> float:
        """Send a signal; return the time just before that, or when all of it stands still."""
        at = clock()
        self._process.send_signal(number)
        if number is signal.SIGSTOP:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            at = clock()
        return at

    def close(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):  # else it was killed in the middle of a line
                self.reports.append(json.loads(line))


@dataclass(frozen=True, slots=True)
class ZooKeeper:
    """A ZooKeeper: all ``hosts``; ``one`` that serves, for the proxy; and its ``name``."""

    hosts: str
    one: str
    name: str


class Play:
    """The scenes. ``tell`` gets each line; a check that does not hold raises `Failed`."""

    def __init__(
        self, zookeeper: ZooKeeper, client: KazooClient, root: str, folder: Path, tell: Say
    ) -> None:
        self._zookeeper = zookeeper
        self._client = client
        self._root = root
        self._folder = folder
        self._tell = tell
        self._timeout = client.handler.session_timeout
        self._patience = _SLACK_SECONDS + 3 * self._timeout

    def play(self) -> None:
        """Play all scenes."""
        self._tell(f"ZooKeeper {self._zookeeper.name} at {self._zookeeper.hosts}")
        self._tell(f"Workers are processes. A session ends after {self._timeout:g} s of silence.")
        self._kill()
        self._pause()
        self._cut()
        self._kill_in_pool()

    def _kill(self) -> None:
        self._tell("\n1. The holder of a lock is killed")
        with self._line(self._zookeeper.hosts) as line:
            self._tell("   SIGKILL to w1")
            fault = line.holder.send(signal.SIGKILL)
            self._check(checks.killed(line.end(fault, fault)))

    def _pause(self) -> None:
        self._tell("\n2. The holder of a lock is paused, for longer than its session lives")
        with self._line(self._zookeeper.hosts) as line:
            self._tell("   SIGSTOP to w1")
            fault = line.holder.send(signal.SIGSTOP)
            line.await_others()
            self._tell("   SIGCONT to w1, which then tries to write, like any program would")
            mended = line.holder.send(signal.SIGCONT)
            line.holder.expect("looked", self._patience)
            line.holder.go_on()
            line.holder.expect("over", self._patience)
            self._check(checks.paused(line.end(fault, mended)))

    def _cut(self) -> None:
        self._tell("\n3. The holder of a lock is cut off from ZooKeeper")
        with FaultProxy(self._zookeeper.one) as proxy, self._line(proxy.hosts) as line:
            self._tell("   from now on, all packets between w1 and ZooKeeper are lost")
            fault = clock()
            proxy.blackhole()
            line.holder.expect("lost", self._patience)
            self._check(checks.cut(line.end(fault, fault)))

    def _kill_in_pool(self) -> None:
        self._tell("\n4. A worker of a pool is killed")
        path = f"{self._root}/pool"
        with contextlib.ExitStack() as stack:
            workers = []
            for name in NAMES:
                hosts = self._zookeeper.hosts
                workers.append(Worker("pool", name, hosts, self._timeout, path, SHARDS))
                stack.callback(workers[-1].close)
            before = self._settled(workers)
            self._tell(f"   {', '.join(NAMES)} share {SHARDS} shards, each with a lock")
            victim, *others = workers
            self._tell(f"   SIGKILL to {victim.name}")
            fault = victim.send(signal.SIGKILL)
            after = self._settled(others)
            reports = {each.name: list(each.reports) for each in workers}
            seen = checks.Shares(SHARDS, victim.name, fault, before, after, reports)
            self._check(checks.taken_over(seen))
            for each in others:
                each.go_on()
            for each in others:
                each.expect("over", self._patience)

    def _settled(self, workers: Iterable[Worker]) -> dict[str, dict[int, str]]:
        """Wait until these workers share the shards, and return who has which."""

        def shares() -> dict[str, dict[int, str]] | None:
            found = {each.name: checks.owned(each.reports) for each in workers}
            return found if checks.settled(found, SHARDS) else None

        return wait_for(shares, self._patience, "the shards are not shared")

    @contextlib.contextmanager
    def _line(self, holder: str) -> Iterator[Line]:
        """Have the workers queue; ``holder``: where the first of them, which holds, connects to."""
        path = f"{self._root}/lock-{secrets.token_hex(4)}"
        self._client.ensure_path(path)
        file = self._folder / path.rpartition("/")[2]
        line = Line(zklock.Lock(self._client, path), file, self._patience)
        with contextlib.closing(line):
            first, *others = line.form(holder, self._zookeeper.hosts, self._timeout)
            self._tell(f"   {first} holds the lock; {', then '.join(others)} wait for it")
            yield line

    def _check(self, found: Iterable[Finding]) -> None:
        for check in found:
            self._tell(f"   {'ok' if check.held else 'FAILED'}: {check.text}")
            if not check.held:
                raise Failed(f"not shown: {check.text}")


class Line:
    """Workers that queue for one lock: the first holds it, the others write as soon as they can."""

    def __init__(self, lock: zklock.Lock, file: Path, patience: float) -> None:
        self.workers: list[Worker] = []
        self._lock = lock
        self._patience = patience
        self._file = file
        self._ledger = worker.Ledger(file)
        self._ledger.create()

    @property
    def holder(self) -> Worker:
        """The first worker."""
        return self.workers[0]

    def form(self, holder: str, others: str, timeout: float) -> list[str]:
        """Start the workers with these hosts; return the order in which ZooKeeper lists them."""
        for name, hosts in zip(NAMES, (holder, others, others), strict=True):
            added = Worker("lock", name, hosts, timeout, self._lock.path, self._file)
            self.workers.append(added)
            if added is self.holder:
                added.expect("granted", self._patience)
            else:
                added.go_on()

        def all_of_them() -> list[str] | None:
            found = self._queue()
            return found if len(found) == len(self.workers) else None

        self._before = wait_for(all_of_them, self._patience, "not all of the workers queue")
        return self._before

    def await_others(self) -> None:
        """Wait until all but the holder have had their turns."""
        for each in self.workers[1:]:
            each.expect("over", self._patience)

    def end(self, fault: float, mended: float) -> checks.Queue:
        """Wait until all turns are over, and return what was seen."""
        self.await_others()
        with contextlib.suppress(TimeoutError):  # the check tells who is left
            wait_for(lambda: not self._queue(), self._patience)
        reports = {each.name: list(each.reports) for each in self.workers}
        entries = self._ledger.entries()
        return checks.Queue(self._before, reports, fault, mended, entries, self._queue())

    def close(self) -> None:
        """End all workers."""
        for each in self.workers:
            each.close()

    def _queue(self) -> list[str]:
        return [it.identity for it in self._lock.contenders()]


def play(hosts: str | None, timeout: float, tell: Say, say: Say) -> None:
    """Play the demo; `Failed`, or ``TimeoutError``, if it does not show what it has to.

    ``hosts``: the ZooKeeper to play on; with ``None`` the demo starts its own. ``timeout``: the
    workers' session timeout in seconds. ``tell`` gets the lines of the demo, ``say`` what else
    there is to know. All that was made is removed, however the demo ends.
    """
    with contextlib.ExitStack() as stack:
        zookeeper = _zookeeper(stack, hosts, min(0.5, timeout / 4), say)
        client = stack.enter_context(zklock.connect(zookeeper.hosts, timeout))
        root = f"/zklock-demo-{secrets.token_hex(4)}"
        stack.callback(_remove, client, root)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="zklock-demo-"))
        Play(zookeeper, client, root, Path(folder), tell).play()


def _zookeeper(stack: contextlib.ExitStack, hosts: str | None, tick: float, say: Say) -> ZooKeeper:
    """Use the ZooKeeper at these hosts, or start one; ``tick`` is then its tick in seconds."""
    if hosts is None:
        backend = backend_here(say)
        server = stack.enter_context(ZooKeeperServer(tick_time=int(tick * 1000), backend=backend))
        name = f"{server.status().version} ({server.backend})"
        return ZooKeeper(server.hosts, server.hosts, name)
    servers, slash, chroot = hosts.partition("/")
    reasons = []
    for host, port in parse_hosts(servers):
        one = f"{server_name(host, port)}{slash}{chroot}"
        try:
            return ZooKeeper(hosts, one, srvr(host, port).version)
        except NotServing:
            return ZooKeeper(hosts, one, "of unknown version")
        except OSError as error:
            reasons.append(f"{host}:{port}: {error}")
    raise BackendUnavailable("no ZooKeeper answers at " + "; ".join(reasons))


def backend_here(say: Say) -> Backend:
    """Return a backend that can run ZooKeeper here, or else the embedded server."""
    try:
        return provision(say=say)
    except BackendUnavailable:
        return choose_or_embed(say)


def _remove(client: KazooClient, path: str) -> None:
    if client.connected:
        with contextlib.suppress(KazooException):
            client.delete(path, recursive=True)
